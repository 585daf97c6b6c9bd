"""What the planner takes for the extents that a kernel does not check, and the bytes it counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.copy_kernels import fused_moe
from tests.copy_kernels import moe_args
from tests.ring_kernels import copied_kernel
from tiledsl.compiled import Kernel
from tiledsl.ws.cost import Problem
from tiledsl.ws.launch import Extents
from tiledsl.ws.planner import Planner
from tiledsl.ws.view_extents import completed_extents
from tiledsl.ws.view_extents import elements_of

CASES = [
    ((None, None, 7168), (7168 * 4096, 1, 4096), 8 * 7168 * 4096, (8, 4096, 7168)),
    ((None, None), (4096, 1), 128 * 4096, (128, 4096)),
    ((None, 64), (64, 1), 128 * 64, (128, 64)),
    ((128, 64), (64, 1), 1 << 20, (128, 64)),
    ((None, None), (1024, 1), 256, (1, 256)),  # rows of a wider tensor: no more than there is
    ((None, None), (1, 1), 256, (256, 1)),
    ((None, None), (64, 0), 256, (1, 256)),  # a stride of 0 says nothing
    ((None, None), (64, 1), 0, (1, 1)),
    ((None, 64), (64, 1), 70, (1, 64)),
    ((None, None, 32, 96), (96 * 128, 32, 1, 128), 8 * 96 * 128, (8, 4, 32, 96)),  # pieces of rows
    ((None, None, 80), (80, 80, 1), 48 * 80, (1, 48, 80)),  # rows of one piece
    ((None, 80, None), (80, 1, 80), 48 * 80, (1, 80, 48)),
    ((None, None, None, 80), (960, 80, 80, 1), 2 * 960, (2, 1, 12, 80)),
    ((None, None, None, 64), (4096, 4096, 64, 1), 8192, (2, 1, 64, 64)),  # batches of one head
]


@pytest.mark.parametrize(("known", "strides", "elements", "want"), CASES, ids=str)
def test_a_dimension_ends_where_the_one_around_it_goes_on(
    known: tuple[int | None, ...], strides: tuple[int, ...], elements: int, want: tuple[int, ...]
) -> None:
    assert completed_extents(known, strides, elements) == want


def test_elements_of_what_is_given() -> None:
    assert elements_of(torch.empty(3, 5)) == elements_of(Extents((3, 5), (5, 1))) == 15
    assert elements_of(4096) == elements_of(None) == 0


# fmt: off
@triton.jit
def unchecked(a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """No extent is known from a mask."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, K, BK):
        a = tl.load(a_ptr + m[:, None] * K + i + k[None, :])
        b = tl.load(b_ptr + n[:, None] * K + i + k[None, :])
        acc = tl.dot(a, b.T, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc.to(tl.bfloat16))
# fmt: on


def test_operands_without_masks_have_the_bytes_of_their_tensors() -> None:
    x, w = (torch.empty(2048, 1024, device="meta", dtype=torch.bfloat16) for _ in range(2))
    y = torch.empty(2048, 2048, device="meta", dtype=torch.bfloat16)
    made: Kernel = unchecked.compile(x, w, y, 2048, 1024, 128, 128, 64, grid=(16, 16))
    assert made.cost is not None
    assert made.cost.us < 50


def test_copied_rows_are_no_more_than_their_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs along one grid axis share the tokens, which the axis alone does not say."""
    seen: list[Problem] = []

    def best(self: Planner, tiles: Any, problem_of: Any) -> Any:
        seen.extend(problem_of(t) for t in tiles)
        return ranked(self, tiles, problem_of)

    ranked = Planner.best
    monkeypatch.setattr(Planner, "best", best)
    args, _, grid = moe_args(512, 4, 512, 512, (128, 128, 64))
    copied_kernel(fused_moe, args, grid=(*grid, 1))
    assert {p.operand_bytes for p in seen} == {(512 * 512 + 4 * 512 * 512) * 2}
