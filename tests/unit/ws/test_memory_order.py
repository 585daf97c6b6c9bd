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
def rows_and_the_next(x: tl.Tensor, y: tl.Tensor, n, GAP: tl.constexpr):
    for i in range(n):
        y.store((2 * i, 0), x.load((i, 64), (1, 64)))
        y.store((2 * i + GAP, 0), x.load((i, 0), (1, 64)))


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


@tiledsl.jit
def updates(x: tl.Tensor, n, STEP: tl.constexpr, TWICE: tl.constexpr):
    for i in range(0, n, STEP):
        for j in range(TWICE):
            x.store((i, 32 * j), x.load((i, 32 * j), (8, 32)) * 2.0)


@tiledsl.jit
def updates_from(x: tl.Tensor, n, first):
    """The same block in each iteration, which begins anywhere."""
    for _ in range(n):
        x.store((first, 0), x.load((first, 0), (8, 32)) * 2.0)


@tiledsl.jit
def updates_while(x: tl.Tensor, n, FAR: tl.constexpr):
    i = n * 0
    while i < n:
        x.store((i * FAR, 0), x.load((i * FAR, 0), (8, 32)) * 2.0)
        i += 1


def test_blocks_that_iterations_change_may_overlap() -> None:
    def is_ordered(kernel, *args: object, **constants: object) -> bool:
        meta = torch.empty(128, 128, device="meta")
        source = kernel.cuda(meta, *args, grid=(1,), num_warps=4, **constants)
        return "block_sync();" in source

    assert not is_ordered(updates, 40, STEP=8, TWICE=1)
    assert not is_ordered(updates, 40, STEP=16, TWICE=2)
    assert is_ordered(updates, 40, STEP=4, TWICE=1)
    assert is_ordered(updates, 40, STEP=12, TWICE=2)
    assert not is_ordered(updates_from, 3, 5)
    assert not is_ordered(updates_while, 3, FAR=8)
    assert is_ordered(updates_while, 3, FAR=4)


@pytest.mark.parametrize(("gap", "is_ordered"), [(64, False), (80, False), (63, True), (0, True)])
def test_blocks_of_known_distance(gap: int, is_ordered: bool) -> None:
    assert ("_sync();" in text(halves, GAP=gap)) == is_ordered


def test_a_load_and_a_store_that_lie_apart() -> None:
    assert "_sync();" not in text(next_row)
    assert "_sync();" in text(moved, 1)


@pytest.mark.parametrize(("gap", "is_ordered"), [(1, False), (2, True)])
def test_iterations_of_a_loop_may_meet(gap: int, is_ordered: bool) -> None:
    assert "block_sync();" not in text(rows_of_a_loop, 7, num_warps=4)
    source = text(rows_and_the_next, 7, GAP=gap, num_warps=4)
    assert ("block_sync();" in source) == is_ordered


def test_numbers_of_few_bits_wrap() -> None:
    assert "_sync();" in text(narrow)


@tiledsl.jit
def scalars_then_a_tile(x, n, OWN: tl.constexpr):
    for i in range(n):
        tl.store(x + i, i * 2.0)
    if OWN:
        tl.debug_barrier()
    at = tl.arange(0, 64)
    tl.store(x + 64 + at, tl.load(x + at))


@tiledsl.jit
def tiles_of_one_shape(x):
    at = tl.arange(0, 64)
    tl.store(x + at, tl.load(x + at) + 1.0)
    tl.store(x + 64 + at, tl.load(x + at))


@tiledsl.jit
def scalars_by_turns_with_tiles(x, y, n):
    at = tl.arange(0, 64)
    for i in range(n):
        tl.store(y + i * 64 + at, tl.load(x + at))
        tl.store(x + i, i * 2.0)


@pytest.mark.parametrize("own", [False, True])
def test_lanes_of_other_shapes_are_ordered_once(own: bool) -> None:
    x = torch.empty(128, device="meta")
    made = scalars_then_a_tile.cuda(x, 7, OWN=own, num_warps=2, grid=(1,))
    assert made.count("_sync();") == 1


def test_iterations_order_lanes_in_both_directions() -> None:
    x, y = torch.empty(128, device="meta"), torch.empty(1024, device="meta")
    made = scalars_by_turns_with_tiles.cuda(x, y, 7, num_warps=2, grid=(1,))
    assert made.count("_sync();") == 2


def test_lanes_of_one_shape_are_not() -> None:
    assert "_sync();" not in tiles_of_one_shape.cuda(torch.empty(128, device="meta"), grid=(1,))
