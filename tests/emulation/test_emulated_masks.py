"""Masks as counts in the emitted text, up to the ends of int32."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.runtime.interop import numpy_view

BLOCK = 2048
LOWEST, HIGHEST = -(2**31), 2**31 - 1


# fmt: off
@tiledsl.jit
def shown(out, lower, upper, first, last, end, after, BLOCK: tl.constexpr):
    """out: where n + arange is in [first, end) and in (after, last], one row for each n."""
    for n in range(lower, upper, BLOCK):
        row, at = (n - lower) // BLOCK, n + tl.arange(0, BLOCK)
        seen = (at < end) & (first <= at) & (last >= at) & (at > after)
        tl.store(out + row * BLOCK + tl.arange(0, BLOCK), tl.where(seen, 1.0, 0.0))
# fmt: on


def bounds() -> list[tuple[int, int, int, int, int]]:
    """(lower, first, last, end, after) of launches."""
    found: list[tuple[int, int, int, int, int]] = []
    for lower in (LOWEST, -BLOCK, 5, HIGHEST - 2 * BLOCK):
        inside = [lower + x for x in (0, 17, BLOCK - 1, BLOCK, BLOCK + 33)]
        for low in (LOWEST, *inside):
            for high in (*inside, HIGHEST):
                found += [(lower, low, HIGHEST, high, LOWEST), (lower, LOWEST, high, HIGHEST, low)]
        found.append((lower, HIGHEST, HIGHEST, HIGHEST, LOWEST))
        found.append((lower, LOWEST, LOWEST, HIGHEST, LOWEST))
    return found


@pytest.fixture(scope="module")
def module():
    made, _ = compiled(shown, [torch.empty(2 * BLOCK), 5, 6, 7, 8, 9, 10, BLOCK], num_warps=4)
    assert made.module.source.count("count_below<2048>(") == 2
    assert made.module.source.count("count_up_to<2048>(") == 2
    return made.module


def test_the_same_elements(module) -> None:
    for lower, first, last, end, after in bounds():
        out = torch.full((2, BLOCK), 5.0)
        args = {"out": numpy_view(out), "lower": lower, "upper": lower + 2 * BLOCK}
        args |= {"first": first, "last": last, "end": end, "after": after}
        emulate.run(module, args, (1, 1, 1), seconds=60.0)
        at = lower + torch.arange(2 * BLOCK).view(2, BLOCK)
        seen = (at >= first) & (at < end) & (at <= last) & (at > after)
        assert torch.equal(out, seen.float()), (lower, first, last, end, after)
