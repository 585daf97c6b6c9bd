"""Layouts of tiles whose accesses want different ones: what exchanges and scans cost is weighed too."""

from __future__ import annotations

import re

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import simulator
from tiledsl.compiled import Kernel


@tiledsl.jit
def running_sums(x, out, sums, heads, SCANNED: tl.constexpr, H: tl.constexpr, C: tl.constexpr):
    """Columns of a matrix whose rows lie apart, as rows; with their running sums."""
    h, c = tl.program_id(0) * H + tl.arange(0, H), tl.arange(0, C)
    mask = (h < heads)[:, None] & (c < C)[None, :]
    value = tl.load(x + c[None, :] * heads + h[:, None], mask=mask, other=0.0).to(tl.float32)
    tl.store(out + h[:, None] * C + c[None, :], value, mask=mask)
    total = tl.cumsum(value, 1) if SCANNED else value + 1
    tl.store(sums + h[:, None] * C + c[None, :], total, mask=mask)


def arguments(heads: int, device: str) -> list[torch.Tensor | int]:
    x = torch.rand(256, heads, device=device).to(torch.bfloat16)
    outs = [torch.full((heads, 256), float("nan"), device=device) for _ in range(2)]
    return [x, *outs, heads]


def made(*, scanned: bool) -> Kernel:
    args = arguments(80, "meta")
    return running_sums.compile(*args, scanned, 4, 256, grid=(20,), num_warps=4)


def test_a_scan_lies_in_the_lanes_of_a_warp() -> None:
    """Loaded as memory lies, exchanged once, then scanned without shared memory and stored in vectors."""
    kernel = made(scanned=True)
    text = kernel.module.source
    assert "load_lanes<8, 4, Load>" in text
    assert text.count("store_lanes<8, 4, Store>") == 2
    assert text.count("block_sync()") == 1
    assert re.findall(r"scan_1\.(\w+)<", text) == ["registers", "lanes", "registers"]
    assert sum("converted from blocked to blocked" in note for note in kernel.notes) == 1


def test_without_a_scan_too() -> None:
    text = made(scanned=False).module.source
    assert "load_lanes<8, 4, Load>" in text
    assert text.count("store_lanes<8, 4, Store>") == 2


@pytest.mark.parametrize("heads", [8, 80])
@pytest.mark.parametrize("seed", range(2))
def test_values(heads: int, seed: int) -> None:
    args = arguments(heads, "cpu")
    grid = (heads // 4,)
    kernel = running_sums.compile(*args, True, 4, 256, grid=grid, num_warps=4)
    given = dict(zip(running_sums.description.names, args, strict=False))
    simulator.emulate(kernel, given, (*grid, 1, 1), seed=seed)
    x, out, sums, _ = args
    torch.testing.assert_close(out, x.float().T.contiguous())
    torch.testing.assert_close(sums, x.float().T.cumsum(1), rtol=1e-5, atol=1e-5)
