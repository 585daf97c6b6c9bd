"""Products of few rows with operands that threads compute, by warps instead of warpgroups.

A warpgroup's instruction has 64 rows, takes a computed operand from shared memory, behind a proxy
fence and a barrier, and is waited for. Where a product has 16 or 32 rows, each warp computes some
of its columns from an operand that stays in registers; rows come from the ring by ldmatrix.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.mma_warp import WarpDot
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ir.warp_layouts import COLS
from tiledsl.ir.warp_layouts import STEP
from tiledsl.ir.warp_layouts import warp_accumulator
from tiledsl.ir.warp_layouts import warp_operand

ROWS = (16, 32)
MOST_WORDS = 64
"""Registers of an operand."""


def warp_dot(graph: TileGraph, loop: For, num_warps: int) -> mma.Dot | None:
    """The only dot of a program, where warps compute it: in a loop, added to what this carries."""
    dots: list[mma.Dot] = graph.find(mma.Dot)
    if len(dots) != 1 or dots[0].parent is not loop.body:
        return None
    (dot,) = dots
    a, b, acc = dot.a.type, dot.b.type, dot.acc.type
    end = loop.body.terminator
    assert isinstance(end, Yield)
    if not (isinstance(a, TileType) and isinstance(b, TileType) and isinstance(acc, TileType)):
        return None
    if dot.acc not in loop.carried or end.values[loop.carried.index(dot.acc)] is not dot.result:
        return None
    K, N = b.shape
    sums = ("f32", "f16") if a.dtype.name == "f16" else ("f32",)
    if a.dtype.name not in ("f16", "bf16") or acc.dtype.name not in sums:
        return None
    if acc.shape[0] not in ROWS or N % (COLS * num_warps) or K % STEP:
        return None
    if K * N // (64 * num_warps) > MOST_WORDS or not _is_computed(loop, dot.b):
        return None
    return dot if isinstance(dot.a.defining_op, memory.Load | pointer.Load) else None


def _is_computed(loop: For, value: Value) -> bool:
    """Whether threads compute an operand in a loop."""
    op: Op | None = value.defining_op
    while isinstance(op, tile.Transpose):
        op = op.a.defining_op
    if op is None or op.parent is not loop.body:
        return False
    return not isinstance(op, memory.Load | pointer.Load)


def rows_in_ring(dot: mma.Dot) -> SmemType:
    """How a slot of the left operand lies."""
    a = dot.a.type
    assert isinstance(a, TileType)
    return SmemType((a.shape[0], a.shape[1]), a.dtype, 1)


def warp_layouts(op: WarpDot, num_warps: int) -> list[tuple[Value, Layout]]:
    """How the sums and the right operand lie."""
    acc, b = op.acc.type, op.b.type
    assert isinstance(acc, TileType)
    assert isinstance(b, TileType)
    return [
        (op.acc, warp_accumulator(acc.shape[0], acc.shape[1], num_warps)),
        (op.b, warp_operand(b.shape[0], b.shape[1], num_warps)),
    ]
