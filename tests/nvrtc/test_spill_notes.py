"""What the report says where registers of a single-role kernel spill."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.spills import spill_notes
from tiledsl.ws.single_plan import SinglePlan

pytestmark = pytest.mark.nvrtc


@tiledsl.jit
def softmax(x, y, N, BLOCK: tl.constexpr):
    row, at = tl.program_id(0) * N, tl.arange(0, BLOCK)
    value = tl.load(x + row + at, mask=at < N, other=-float("inf"))
    value = tl.exp(value - tl.max(value))
    tl.store(y + row + at, value / tl.sum(value), mask=at < N)


def report(columns: int, **options: int) -> str:
    x = torch.empty(4096, columns, device="meta")
    return softmax.report(x, x, columns, columns, grid=(4096,), **options)


def test_many_warps_that_take_the_cluster_away() -> None:
    note = report(65536, num_warps=32).partition("notes:")[2]
    assert "num_warps=32 is followed, and no cluster shares the program" in note
    assert "64 elements of a tile of 65536 for each thread, 64 registers a thread" in note
    assert "bytes of registers spill; without the option the plan is single role, " in note
    assert "clusters of 8 CTAs a program" in note
    assert "num_warps" not in report(65536)


def test_too_few_warps() -> None:
    note = report(8192, num_warps=1)
    assert "num_warps=1 is followed and too few warps: 256 elements of a tile of 8192" in note
    assert "255 registers a thread" in note


def test_spills_that_nobody_asked_for() -> None:
    x = torch.empty(4096, 4096, device="meta")
    _, request = softmax.request_for((x, x, 4096, 4096), {}, (4096,))
    made = softmax.compile(x, x, 4096, 4096, grid=(4096,))
    assert spill_notes(request, made) == []
    assert isinstance(made.plan, SinglePlan)
    assert made.compiled is not None
    made.compiled = replace(made.compiled, spill_bytes=8, registers=64)
    (note,) = spill_notes(request, made)
    blocks, warps = made.plan.min_blocks, made.plan.num_warps
    assert note.startswith(f"8 bytes of registers spill: {blocks} CTAs of {warps} warps share")
    made.plan = replace(made.plan, min_blocks=1)
    (note,) = spill_notes(request, made)
    assert note.endswith("a smaller tile or more num_warps would need fewer")


def pair(a, b, c, d):
    return a * c, c * b + d


@tiledsl.jit
def recurrence(x, y, o, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    _, out = tl.associative_scan((tl.load(x + at), tl.load(y + at)), 0, pair)
    tl.store(o + at, out)


@pytest.mark.parametrize(("M", "N"), [(64, 64), (128, 64), (64, 128), (256, 16)])
def test_scans_of_pairs_along_rows_spill_little(M: int, N: int) -> None:
    """They kept every element's total until rows lay side by side in a thread."""
    x = torch.empty(M, N, device="meta")
    made = recurrence.compile(x, x, x, M, N, grid=(400,))
    assert made.compiled is not None
    assert made.compiled.spill_bytes <= 64
