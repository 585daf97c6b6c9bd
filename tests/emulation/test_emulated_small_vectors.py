"""Vectors of two bytes, and elements that several registers of a thread hold."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.runtime.interop import numpy_view


@tiledsl.jit
def scaled(x, scale, y, n, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """y = x times the number of its group, and the sum of each pair."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n, other=3)
    s = tl.load(scale + at // GROUP, mask=at < n, other=2.0)
    tl.store(y + at, (a.to(tl.float32) * s).to(tl.uint8), mask=at < n)


@pytest.mark.parametrize(
    ("n", "group", "forms"),
    [
        (240, 32, ("load_lanes<2, 2, Load>", "store_lanes<2, 2, Store>", "load_repeated<2, 2, Load>")),
        (256, 4, ("load_repeated<2, 2, Load>",)),
        (255, 32, ("load_partial<2, 2, ByEnds, Load>", "store_partial<2, 2, ByEnds, Store>")),
        (256, 1, ("load_lanes<2, 2, Load>(s",)),
    ],
)  # fmt: skip
def test_pairs_of_bytes(n: int, group: int, forms: tuple[str, ...]) -> None:
    x = (torch.arange(512) * 7 % 16).to(torch.uint8)
    scale = (torch.arange(512) % 5).float()
    got, want = torch.full((512,), 9).to(torch.uint8), torch.full((512,), 9).to(torch.uint8)
    args = [x, scale, got, n, group, 256]
    made, _ = compiled(scaled, args, grid=(2,), num_warps=4)
    text = made.module.source
    for form in forms:
        assert form in text
    assert ("load_repeated" in text) == (group > 1 and n % 2 == 0)
    scaled[(2,)](x, scale, want, n, group, 256)
    arrays = {"x": x, "scale": scale, "y": got}
    emulate.run(made.module, {**{k: numpy_view(v) for k, v in arrays.items()}, "n": n}, (2,))
    assert torch.equal(got, want)
    assert torch.equal(
        want[:n].float(), (x[:n].float() * scale[torch.arange(n) // group]).byte().float()
    )
