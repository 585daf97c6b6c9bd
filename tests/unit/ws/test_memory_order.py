"""Barriers between the accesses of a program to one tensor: only where blocks may meet."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl


@tiledsl.jit
def halves(x: tl.Tensor, y: tl.Tensor, GAP: tl.constexpr):
    row = tl.program_id(0)
    y.store((row, 0), x.load((row, GAP), (1, 64)))
    y.store((row, GAP), x.load((row, 0), (1, 64)))


@tiledsl.jit
def rows_of_a_loop(x: tl.Tensor, y: tl.Tensor, n):
    for i in range(n):
        y.store((i, 0), x.load((i, 64), (1, 64)))
        y.store((i, 64), x.load((i, 0), (1, 64)))


@tiledsl.jit
def moved(x: tl.Tensor, n):
    row = tl.program_id(0)
    x.store((row + n, 0), x.load((row, 0), (1, 64)))


@tiledsl.jit
def next_row(x: tl.Tensor):
    row = tl.program_id(0) * 2
    x.store((row + 1, 0), x.load((row, 0), (1, 64)))


@tiledsl.jit
def narrow(x: tl.Tensor):
    """Rows apart by 264, and by 8 where 8 bits count them."""
    row = tl.program_id(0)
    x.store((row.to(tl.int8), 0), x.load(((row + 264).to(tl.int8), 0), (16, 64)))


def text(kernel, *args: object, **constants: object) -> str:
    tensors = [torch.empty(128, 128, device="meta") for _ in range(2)]
    count = 1 if kernel in (moved, next_row, narrow) else 2
    return kernel.cuda(*tensors[:count], *args, grid=(32,), **constants)


@pytest.mark.parametrize(("gap", "is_ordered"), [(64, False), (80, False), (63, True), (0, True)])
def test_blocks_of_known_distance(gap: int, is_ordered: bool) -> None:
    assert ("_sync();" in text(halves, GAP=gap)) == is_ordered


def test_a_load_and_a_store_that_lie_apart() -> None:
    assert "_sync();" not in text(next_row)
    assert "_sync();" in text(moved, 1)


def test_iterations_of_a_loop_may_meet() -> None:
    assert "_sync();" in text(rows_of_a_loop, 7)


def test_numbers_of_few_bits_wrap() -> None:
    assert "_sync();" in text(narrow)
