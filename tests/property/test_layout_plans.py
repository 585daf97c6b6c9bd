"""Reductions, scans, reshapes and joins done by simulated threads, as the digits of a layout say.

Every thread has registers that hold what `Layout.coords` puts there; a step may use a thread's own registers, those of
other lanes of the warp, or of other warps. The results have to be what numpy computes.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tiledsl.ir.axis_plan import AxisPlan
from tiledsl.ir.axis_plan import dense_terms
from tiledsl.ir.axis_plan import evaluate
from tiledsl.ir.axis_plan import scan_levels
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.layout import blocked
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.layout_moves import append_pair
from tiledsl.ir.layout_moves import is_padded
from tiledsl.ir.layout_moves import prepend
from tiledsl.ir.layout_moves import reshape_layout
from tiledsl.ir.layout_moves import without_first
from tiledsl.ir.layout_moves import without_last
from tiledsl.target import HOPPER
from tiledsl.ws.dot_shapes import dot_shape

EXTENTS = st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 32, 48, 64])


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], Layout]:
    """A shape and a layout for it."""
    if draw(st.integers(0, 4)) == 0:
        groups = draw(st.sampled_from([1, 2]))
        split = draw(st.integers(0, 1)) if groups == 2 else 0
        M = 64 * (groups if split == 0 else 1)
        N = draw(st.sampled_from([16, 32, 48]))
        layout = mma_accumulator(M, N, groups, split=split)
        flip = draw(st.booleans())
        return ((N, M), layout.transpose((1, 0))) if flip else ((M, N), layout)
    shape = tuple(draw(st.lists(EXTENTS, min_size=1, max_size=3)))
    order = draw(st.permutations(range(len(shape))))
    warp_order = draw(st.permutations(range(len(shape))))
    warps, vector = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    run = draw(st.sampled_from([-1, *order[1:]]))
    return shape, blocked(
        shape, warps, vector=vector, order=order, warp_order=warp_order, run_dim=run
    )


def registers(layout: Layout, array: np.ndarray, outside: int) -> np.ndarray:
    """What every register holds: [warps, 32, registers]."""
    coords = layout.coords()
    inside = np.ones(coords.shape[:-1], bool)
    index = []
    for d, n in enumerate(array.shape):
        inside &= coords[..., d] < n
        index.append(np.minimum(coords[..., d], n - 1))
    held = array[tuple(index)] if array.ndim else np.broadcast_to(array, inside.shape)
    return np.where(inside, held, outside)


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(int(np.prod(shape))).integers(0, 1000, shape)


def reduced(plan: AxisPlan, held: np.ndarray) -> np.ndarray:
    """Sums by the plan: in registers, over lanes by xor, over warps."""
    regs = plan.result.num_regs
    part = np.stack(
        [
            sum(held[..., plan.source_register(o, r)] for r in range(plan.count))
            for o in range(regs)
        ],
        axis=-1,
    )
    lanes, warps = np.arange(32), np.arange(held.shape[0])
    for p in plan.along(Unit.LANE):
        mask = p.stride
        while mask < p.stride * p.size:
            part = part + part[:, lanes ^ mask]
            mask *= 2
    slots: dict[tuple[int, int, int], int] = {}
    if plan.needs_warps:
        terms = dense_terms(plan.across(Unit.LANE))
        for w, lane, o in itertools.product(warps, lanes, range(regs)):
            key = (int(w), evaluate(terms, int(lane)), o)
            value = int(part[w, lane, o])
            assert slots.setdefault(key, value) == value, "lanes that share a place disagree"
        assert len(slots) == plan.partials(regs)
        for p in plan.along(Unit.WARP):
            own = warps - warps // p.stride % p.size * p.stride
            part = sum(part[own + k * p.stride] for k in range(p.size))
    return part


@given(layouts(), st.data())
@settings(max_examples=150)
def test_every_register_of_a_reduction_gets_its_sum(
    case: tuple[tuple[int, ...], Layout], data: st.DataObject
) -> None:
    shape, layout = case
    axes = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1))))
    array, plan = numbers(shape), AxisPlan(layout, axes)
    got = reduced(plan, registers(layout, array, 0))
    want = array.sum(axis=axes)
    coords = plan.result.coords() if plan.result.dims else np.zeros((*got.shape, 0), int)
    for at in itertools.product(*map(range, got.shape)):
        place = tuple(coords[at])
        if all(c < n for c, n in zip(place, want.shape, strict=True)):
            assert got[at] == want[place]


@given(layouts(), st.data(), st.booleans())
@settings(max_examples=150)
def test_every_register_of_a_scan_gets_its_sum(
    case: tuple[tuple[int, ...], Layout], data: st.DataObject, reverse: bool
) -> None:
    shape, layout = case
    axis = data.draw(st.sampled_from(range(len(shape))))
    array = numbers(shape)
    x = registers(layout, array, 0)
    total, lanes, warps = x.copy(), np.arange(32), np.arange(x.shape[0])
    for level in scan_levels(layout, axis):
        blocks = sorted({level.first(i) for i in range(layout.num_regs)})
        before = np.zeros_like(x)
        after = np.zeros_like(x)

        def digit(index: np.ndarray | int, level=level):
            d = index // level.stride % level.size
            return level.size - 1 - d if reverse else d

        for block in blocks:
            if level.unit is Unit.REG:
                base = block - block // level.stride % level.size * level.stride
                for v in range(level.size):
                    source = total[..., base + v * level.stride]
                    after[..., block] += source
                    if digit(base + v * level.stride) < digit(block):
                        before[..., block] += source
            else:
                units, axis_of = (lanes, 1) if level.unit is Unit.LANE else (warps, 0)
                base = units - units // level.stride % level.size * level.stride
                for v in range(level.size):
                    source = np.take(total[..., block], base + v * level.stride, axis=axis_of)
                    earlier = digit(base + v * level.stride) < digit(units)
                    shape_ = (1, -1) if axis_of == 1 else (-1, 1)
                    before[..., block] += np.where(earlier.reshape(shape_), source, 0)
                    after[..., block] += source
        for i in range(layout.num_regs):
            x[..., i] += before[..., level.first(i)]
            total[..., i] = after[..., level.first(i)]
    flipped = np.flip(array, axis) if reverse else array
    want = np.cumsum(flipped, axis)
    want = np.flip(want, axis) if reverse else want
    coords = layout.coords()
    inside = functools.reduce(np.logical_and, (coords[..., d] < n for d, n in enumerate(shape)))
    clipped = tuple(np.minimum(coords[..., d], n - 1) for d, n in enumerate(shape))
    assert (x == want[clipped])[inside].all()


@given(layouts(), st.data())
@settings(max_examples=150)
def test_a_reshape_moves_nothing(case: tuple[tuple[int, ...], Layout], data: st.DataObject) -> None:
    shape, layout = case
    count = int(np.prod(shape))
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    first = data.draw(st.sampled_from(divisors))
    second = data.draw(st.sampled_from([d for d in divisors if (count // first) % d == 0]))
    new_shape = (first, second, count // first // second)
    found = reshape_layout(layout, shape, new_shape)
    if found is None:
        return
    array = numbers(shape)
    held, now = registers(layout, array, -1), registers(found, array.reshape(new_shape), -1)
    if not is_padded(layout, shape):
        assert (held == now).all()
    else:
        assert ((held == now) | (held < 0) | (now < 0)).all()
        assert set(now[now >= 0].tolist()) == set(array.ravel().tolist())


@given(layouts())
@settings(max_examples=60)
def test_joined_axes_come_apart_again(case: tuple[tuple[int, ...], Layout]) -> None:
    shape, layout = case
    pair = append_pair(layout)
    assert pair.padded_shape == (*layout.padded_shape, 2)
    back = without_last(pair)
    assert back is not None
    assert back.coords()[..., : len(shape)].shape == layout.coords().shape
    stacked = prepend(layout, 3)
    assert stacked.padded_shape == (3, *layout.padded_shape)
    assert without_first(stacked) is not None
    array = numbers((3, *shape))
    held = registers(stacked, array, -1)
    for n in range(3):
        part = held[..., n * layout.num_regs : (n + 1) * layout.num_regs]
        assert (part == registers(layout, array[n], -1)).all()


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([1, 2, 4]))
def test_accumulators_cover_their_product(M: int, N: int, groups: int) -> None:
    if min(M, N) > 256:
        return
    shape = dot_shape(M, N, groups)
    layout = shape.layout(groups)
    assert layout.padded_shape == (shape.M, shape.N)
    assert shape.M >= M
    assert shape.N >= N
    assert layout.num_regs == shape.registers(groups)
    rows, cols = (shape.N, shape.M) if shape.swapped else (shape.M, shape.N)
    assert rows % HOPPER.wgmma_M == 0
    assert cols % 8 == 0
    assert cols // (groups if shape.split else 1) <= HOPPER.wgmma_max_N
