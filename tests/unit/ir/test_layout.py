"""Layouts against brute force over `coords()` and against the PTX fragment formula."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tiledsl.dtypes import float32
from tiledsl.ir.layout import Digit
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.layout import blocked
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.layout import mma_operand_8bit
from tiledsl.ir.layout_moves import keeps_threads
from tiledsl.ir.parser import parse_type
from tiledsl.ir.types import TileType


def fragment(N: int, blocks: int) -> np.ndarray:
    """[128 threads, blocks * N / 2 registers, 2]: rows and columns of one warpgroup (recipes 1.4)."""
    t = np.arange(128)[:, None]
    r = np.arange(blocks * N // 2)[None, :]
    w, lane, block, r = t // 32, t % 32, r // (N // 2), r % (N // 2)
    row = 64 * block + 16 * w + lane // 4 + 8 * (r // 2 & 1)
    col = 8 * (r // 4) + 2 * (lane % 4) + (r & 1)
    return np.stack(np.broadcast_arrays(row, col), axis=-1)


@pytest.mark.parametrize("split", [0, 1])
@pytest.mark.parametrize("warpgroups", [1, 2, 3])
@pytest.mark.parametrize("blocks", [1, 2])
def test_mma_accumulator_is_the_fragment_of_the_isa(
    blocks: int, warpgroups: int, split: int
) -> None:
    for N in range(8, 257, 8):
        want = fragment(N, blocks)
        groups = (warpgroups, 1) if split == 0 else (1, warpgroups)
        layout = mma_accumulator(64 * blocks * groups[0], N * groups[1], warpgroups, split=split)
        got = layout.coords().reshape(warpgroups, 128, -1, 2)
        for group in range(warpgroups):
            shift = (64 * blocks * group, 0) if split == 0 else (0, N * group)
            np.testing.assert_array_equal(got[group], want + shift)


@pytest.mark.parametrize(("M", "N", "groups"), [(32, 64, 1), (64, 12, 1), (64, 64, 2), (96, 8, 1)])
def test_mma_accumulator_rejects_what_does_not_split(M: int, N: int, groups: int) -> None:
    with pytest.raises(ValueError, match="does not split"):
        mma_accumulator(M, N, groups)


def test_paired_columns_are_fours_of_a_left_operand() -> None:
    """What a lane holds of four columns side by side is what the operand wants of it."""
    for N in range(32, 257, 32):
        paired, operand = mma_accumulator(128, N, 2, paired=True), mma_operand_8bit(128, N, 2)
        natural = mma_accumulator(128, N, 2)
        # Column c of the instruction is this column of the product.
        c = natural.coords()[..., 1]
        half = c // (N // 2)
        order = c % (N // 2) // 2 * 4 + half * 2 + c % 2
        np.testing.assert_array_equal(paired.coords()[..., 1], order)
        assert thread_sets(paired) == thread_sets(operand)
        assert keeps_threads(paired, operand)
        assert not keeps_threads(natural, operand)


def test_operand_of_8_bits_is_the_fragment_of_the_isa() -> None:
    lane, v = np.arange(32)[:, None], np.arange(32)[None, :]
    row = lane // 4 + 8 * (v // 4 & 1)
    k = 4 * (lane % 4) + (v & 3) + 16 * (v // 8)
    got = mma_operand_8bit(64, 64).coords()
    for w in range(4):
        np.testing.assert_array_equal(got[w, ..., 0], 16 * w + np.broadcast_to(row, (32, 32)))
        np.testing.assert_array_equal(got[w, ..., 1], k)


def thread_sets(layout: Layout) -> list[Counter[tuple[int, ...]]]:
    """The coordinates that each thread holds."""
    flat = layout.coords().reshape(layout.num_warps * 32, layout.num_regs, layout.rank)
    return [Counter(map(tuple, thread.tolist())) for thread in flat]


def assert_covers(layout: Layout, shape: tuple[int, ...]) -> None:
    """Every element is held, equally often up to replicas, and once by any thread that holds it."""
    assert all(p >= n for p, n in zip(layout.padded_shape, shape, strict=True))
    sets = thread_sets(layout)
    assert all(count == 1 for held in sets for count in held.values())
    total = Counter[tuple[int, ...]]()
    for held in sets:
        total.update(held)
    assert set(total) == set(product(*map(range, layout.padded_shape)))
    replicas = layout.num_warps * 32 * layout.num_regs / prod(layout.padded_shape)
    assert set(total.values()) == {replicas}


SHAPES = [(), (1,), (3,), (64,), (100,), (1024,), (8, 8), (5, 7), (64, 24), (1, 96), (2, 3, 20)]


@pytest.mark.parametrize("num_warps", [1, 4, 8, 12])
@pytest.mark.parametrize("vector", [1, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_blocked_covers_each_element(shape: tuple[int, ...], vector: int, num_warps: int) -> None:
    for order in permutations(range(len(shape))):
        assert_covers(blocked(shape, num_warps, vector=vector, order=order), shape)


def test_blocked_is_coalesced() -> None:
    coords = blocked((16, 256), 4, vector=4).coords()
    np.testing.assert_array_equal(coords[0, 0, :4], [[0, 0], [0, 1], [0, 2], [0, 3]])
    np.testing.assert_array_equal(coords[0, 1, 0], [0, 4])


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Any digits in any order: up to three dimensions over registers, lanes and warps."""
    rank = draw(st.integers(1, 3))
    lanes = draw(st.permutations(draw(st.sampled_from([(), (32,), (2, 16), (4, 8), (2, 2, 8)]))))
    warps = draw(st.sampled_from([(), (2,), (4,), (3,), (2, 2)]))
    regs = draw(st.lists(st.sampled_from([2, 3, 4]), max_size=3))
    dims: list[list[Digit]] = [[] for _ in range(rank)]
    for unit, sizes in ((Unit.LANE, lanes), (Unit.WARP, warps), (Unit.REG, regs)):
        stride = 1
        for size in sizes:
            digits = dims[draw(st.integers(0, rank - 1))]
            digits.insert(draw(st.integers(0, len(digits))), Digit(size, unit, stride))
            stride *= size
    return Layout(tuple(map(tuple, dims)), prod(regs), prod(warps))


def without(held: Counter[tuple[int, ...]], dim: int, keep: bool) -> set[tuple[int, ...]]:
    return {(*c[:dim], *((0,) if keep else ()), *c[dim + 1 :]) for c in held}


@settings(deadline=None, max_examples=60)
@given(layout=layouts(), data=st.data())
def test_edits_agree_with_coords(layout: Layout, data: st.DataObject) -> None:
    coords = layout.coords()
    assert_covers(layout, layout.padded_shape)
    dim = data.draw(st.integers(0, layout.rank - 1))
    keep = data.draw(st.booleans())
    dropped = layout.drop(dim, keep=keep)
    for before, after in zip(thread_sets(layout), thread_sets(dropped), strict=True):
        assert set(after) == without(before, dim, keep)
        assert set(after.values()) == {1}
    order = data.draw(st.permutations(range(layout.rank)))
    np.testing.assert_array_equal(layout.transpose(order).coords(), coords[..., order])
    at = data.draw(st.integers(0, layout.rank))
    np.testing.assert_array_equal(layout.expand(at).coords(), np.insert(coords, at, 0, axis=-1))


@settings(deadline=None, max_examples=60)
@given(layout=layouts(), data=st.data())
def test_reg_index_map_finds_the_element(layout: Layout, data: st.DataObject) -> None:
    """The row of a tile after a reduction, read at every element of the tile."""
    dim = data.draw(st.integers(0, layout.rank - 1))
    row = layout.drop(dim, keep=True)
    follows = [None if d == dim else d for d in range(layout.rank)]
    table = layout.reg_index_map(row, follows)
    wanted = np.where(np.arange(layout.rank) == dim, 0, layout.coords())
    np.testing.assert_array_equal(row.coords()[:, :, table], wanted)


def test_reg_index_map_refuses_to_move_lanes() -> None:
    mma = mma_accumulator(64, 64)
    with pytest.raises(ValueError, match="dimension 0 lies differently over lanes"):
        mma.reg_index_map(blocked((64, 64), 4), (0, 1))
    with pytest.raises(ValueError, match="another thread"):
        mma_accumulator(64, 64).reg_index_map(mma_accumulator(64, 32), (0, 1))


@settings(deadline=None, max_examples=60)
@given(layout=layouts(), kind=st.sampled_from(["blocked", "mma"]))
def test_text_reads_back(layout: Layout, kind: str) -> None:
    named = Layout(layout.dims, layout.num_regs, layout.num_warps, kind)
    type_ = TileType(layout.padded_shape, float32, named)
    assert parse_type(str(type_)) == type_


def test_same_places_merges_digits_that_follow_on_each_other() -> None:
    pairs = Layout(((Digit(2, Unit.REG, 1), Digit(2, Unit.REG, 2), Digit(32, Unit.LANE, 1)),), 4, 1)
    fours = Layout(((Digit(4, Unit.REG, 1), Digit(1, Unit.WARP), Digit(32, Unit.LANE, 1)),), 4, 1)
    swapped = Layout(
        ((Digit(2, Unit.REG, 2), Digit(2, Unit.REG, 1), Digit(32, Unit.LANE, 1)),), 4, 1
    )
    assert np.array_equal(pairs.coords(), fours.coords())
    assert pairs.same_places(fours)
    assert not pairs.same_places(swapped)


def test_same_places_ignores_the_kind() -> None:
    a = mma_accumulator(64, 8)
    assert a.same_places(Layout(a.dims, a.num_regs, a.num_warps, "other"))
    assert not a.same_places(mma_accumulator(64, 16))


def test_same_places_ignores_how_digits_are_cut() -> None:
    cut = (Digit(2, Unit.REG, 1), Digit(2, Unit.REG, 2), Digit(1, Unit.LANE), Digit(32, Unit.LANE))
    whole = (Digit(4, Unit.REG, 1), Digit(32, Unit.LANE, 1))
    a, b = Layout((cut,), 4, 1), Layout((whole,), 4, 1)
    assert a.same_places(b)
    assert b.same_places(a)
    swapped = (Digit(2, Unit.REG, 2), Digit(2, Unit.REG, 1), Digit(32, Unit.LANE, 1))
    assert not a.same_places(Layout((swapped,), 4, 1))
