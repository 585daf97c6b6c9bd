"""Index expressions agree with the layouts that they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from tiledsl import dtypes as dt
from tiledsl.codegen.fragments import Fragment
from tiledsl.codegen.fragments import fragment_of
from tiledsl.codegen.indexing import Coordinate
from tiledsl.codegen.indexing import index_map
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.indexing import replica_conditions
from tiledsl.codegen.indexing import thread_part
from tiledsl.codegen.indexing import vector_width
from tiledsl.errors import CodegenError
from tiledsl.ir.layout import Digit
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.layout import blocked
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.types import TileType

LAYOUTS = [
    blocked((128,), 4, vector=4),
    blocked((64, 64), 4, vector=8),
    blocked((4, 6, 32), 2, vector=4),
    blocked((48, 40), 4, vector=8),
    blocked((3, 5), 4),
    mma_accumulator(64, 64),
    mma_accumulator(128, 192),
    mma_accumulator(128, 176, 2),
    mma_accumulator(64, 256, 2, split=1).transpose((1, 0)),
]


def evaluate(text: str, **names: int) -> int:
    """A C++ index expression on non-negative integers."""
    return int(eval((text or "0").replace("/", "//"), {}, names))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_coordinates(layout: Layout) -> None:
    expected = layout.coords()
    rng = np.random.default_rng(0)
    for _ in range(200):
        warp, lane, reg = (int(rng.integers(n)) for n in (layout.num_warps, 32, layout.num_regs))
        for dim in range(layout.rank):
            thread = evaluate(thread_part(layout, dim, layout.num_warps), lane=lane, warp=warp)
            joined = thread_part(layout, dim, layout.num_warps, joins=True)
            joined = joined.replace("threadIdx.x", "thread")
            assert thread == evaluate(joined, lane=lane, warp=warp, thread=32 * warp + lane)
            assert (
                thread + evaluate(register_part(layout, dim), i=reg)
                == expected[warp, lane, reg, dim]
            )


def test_the_number_of_the_thread_stands_for_lane_and_warp() -> None:
    layout = blocked((1024,), 4, vector=8)
    assert thread_part(layout, 0, 4) == "lane * 8 + warp * 256"
    assert thread_part(layout, 0, 4, joins=True) == "threadIdx.x * 8"


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_registers_decide_on_which_side_of_a_limit_they_are(layout: Layout) -> None:
    coords = layout.coords()
    for dim in range(layout.rank):
        at = Coordinate("lane", layout, dim)
        part = np.asarray([layout.reg_coord(dim, reg) for reg in range(layout.num_regs)])
        for limit in range(0, layout.padded_shape[dim] + 8, 4):
            below = coords[..., dim] < limit
            assert at.is_decided(limit) == bool((below == (part < limit)).all())


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("num_warps", [1, 4, 8])
def test_one_replica_is_first(layout: Layout, num_warps: int) -> None:
    """Threads that pass hold every thread's elements, and no two of them the same."""
    num_warps = max(num_warps, layout.num_warps)
    conditions = replica_conditions(layout, num_warps)
    held: dict[tuple[int, ...], int] = {}
    first: set[tuple[int, ...]] = set()
    for warp in range(num_warps):
        for lane in range(32):
            key = tuple(
                evaluate(thread_part(layout, d, num_warps), lane=lane, warp=warp)
                for d in range(layout.rank)
            )
            held[key] = held.get(key, 0) + 1
            if all(
                eval(c.replace("/", "//"), {}, {"lane": lane, "warp": warp}) for c in conditions
            ):
                assert key not in first
                first.add(key)
    assert first == set(held)


def test_index_maps() -> None:
    acc = mma_accumulator(128, 192)
    assert index_map(acc, acc, (0, 1)).text == "i"
    row = acc.drop(1, keep=True)
    found = index_map(acc, row, (0, None))
    expected = acc.reg_index_map(row, (0, None))
    assert not found.table
    assert [evaluate(found.text, i=i) for i in range(acc.num_regs)] == list(expected)


def test_an_odd_index_map_is_a_table() -> None:
    target = Layout(((Digit(3, Unit.REG, 1),),), 3, 1)
    source = Layout(((Digit(3, Unit.REG, 2),),), 6, 1)
    assert index_map(target, source, (0,)).text == "i * 2"
    with pytest.raises(CodegenError, match="change its layout"):
        index_map(blocked((64,), 1), blocked((64,), 1, vector=2), (0,))


def test_vector_width() -> None:
    layout = blocked((64, 64), 4, vector=8)
    assert vector_width(layout, 1, 64, 2) == 8
    assert vector_width(layout, 1, 64, 4) == 4
    assert vector_width(layout, 1, 60, 2) == 4
    assert vector_width(layout, 0, 64, 2) == 1
    assert vector_width(mma_accumulator(64, 64), 1, 64, 2) == 2
    assert vector_width(mma_accumulator(64, 64), 1, 64, 1) == 1


def test_fragments() -> None:
    def of(shape: tuple[int, int], layout: Layout) -> Fragment | None:
        return fragment_of(TileType(shape, dt.float32, layout))

    assert of((128, 192), mma_accumulator(128, 192)) == Fragment(0, 128, 192, 1, 1)
    assert of((128, 256), mma_accumulator(128, 256, 2)) == Fragment(0, 64, 256, 2, 1)
    assert of((64, 256), mma_accumulator(64, 256, 2, split=1)) == Fragment(0, 64, 128, 1, 2)
    assert of((192, 64), mma_accumulator(64, 192).transpose((1, 0))) == Fragment(1, 64, 192, 1, 1)
    assert of((64, 64), blocked((64, 64), 4)) is None
