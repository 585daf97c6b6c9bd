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


@tiledsl.jit
def squared(x, out, n_cols, BLOCK: tl.constexpr):
    """The squares of x - 3, and 0 behind the row."""
    cols = tl.arange(0, BLOCK)
    row = tl.load(x + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    row = tl.where(cols < n_cols, row - tl.load(x + 2).to(tl.float32), 0.0)
    tl.store(out + cols, row * row)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neighbours_that_share_a_comparison(dtype) -> None:
    """A row of every length that is a multiple of 16, and one that is not known to be."""
    x, out = torch.arange(1, 1025, dtype=dtype), torch.empty(1024, dtype=dtype)
    of_sixteen = compiled(squared, [x, out, 1008, 1024], num_warps=1)[0].module
    any_length = compiled(squared, [x, out, 1007, 1024], num_warps=1)[0].module
    assert "i / " in of_sixteen.source.partition("< limit_1")[0].splitlines()[-1]
    for n_cols in (16, 48, 512, 1008, 1024, 0, 17, 1007):
        module = any_length if n_cols % 16 or not n_cols else of_sixteen
        out.fill_(5.0)
        arrays = {"x": numpy_view(x), "out": numpy_view(out), "n_cols": n_cols}
        emulate.run(module, arrays, (1, 1, 1), seconds=60.0)
        want = (x.float() - 3.0) ** 2
        want[n_cols:] = 0
        assert torch.equal(out, want.to(dtype)), n_cols
