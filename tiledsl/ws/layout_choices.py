"""Which layouts tiles get: those of instructions first, coalesced ones for what is left.

Nothing here changes the graph.
"""

from __future__ import annotations

from itertools import groupby
from math import prod

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import blocked
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import atomic
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.ops import tile_moves
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.mma_warp import WarpDot
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.scan import Scan
from tiledsl.ir.types import TileType
from tiledsl.ws.access_layouts import Shape
from tiledsl.ws.access_layouts import access_of
from tiledsl.ws.access_layouts import anchor
from tiledsl.ws.combined_dims import combined_dims
from tiledsl.ws.combined_dims import dim_of_runs
from tiledsl.ws.combined_dims import lanes_of_row
from tiledsl.ws.combined_dims import warp_order as order_of_warps
from tiledsl.ws.dot_shapes import accumulator_layout
from tiledsl.ws.dot_shapes import register_operand_layout
from tiledsl.ws.group_shapes import group_shape
from tiledsl.ws.layout_groups import Groups
from tiledsl.ws.layout_groups import is_tile
from tiledsl.ws.layout_groups import propagate
from tiledsl.ws.links import Link
from tiledsl.ws.shared_layouts import reshaped_operands
from tiledsl.ws.shared_layouts import shared_shape
from tiledsl.ws.short_rows import ShortRows
from tiledsl.ws.warp_dots import warp_layouts

WIDE_VECTOR = 4
"""Elements of a vector that fill the sectors of memory, with lanes side by side."""
ROW_VECTORS = 2
"""Vectors of a short row for a lane: with more, what rows share takes the registers of rows."""
_SHAPING = (Load, Store, Reduce, Scan, pointer.Load, pointer.Store, atomic.Rmw, atomic.Cas, Copy)
"""Ops that say which layout their tiles should have."""
_SHARING = (mma.Dot, smem.Read, tile.Reshape, tile_moves.Join)
"""Ops that say how tiles lie that shared memory holds before or after."""


def _coalesced(
    ops: list[Op],
    value: Value,
    num_warps: int,
    group: set[Value],
    shape: tuple[Shape | None, int],
    rows: ShortRows | None = None,
    *,
    is_staged: bool = False,
) -> Layout:
    """A coalesced layout for a group.

    Its vectors lie along the contiguous dimension of a load or store that touches it. shape: what
    is wanted of it, and lanes of its fastest dimension. rows: of a program that stores something of
    each; a thread has some that lie side by side.
    """
    type_ = value.type
    assert isinstance(type_, TileType)
    order = list(reversed(range(type_.rank)))
    vector = 1
    for op in ops:
        if isinstance(op, Load | Store):
            touched = op.result if isinstance(op, Load) else op.value
            t = tensor_type(op.tensor, "memory")
            if touched in group and t.inner_dim is not None and t.inner_dim not in op.squeeze:
                kept = [d for d in range(t.rank) if d not in op.squeeze]
                fast = kept.index(t.inner_dim)
                order = [fast, *(d for d in order if d != fast)]
                vector = max(1, 16 // t.dtype.bytes)
                break
    wanted, most_lanes = shape
    if wanted is not None:
        order, vector = list(wanted.order), wanted.vector
    if type_.rank:
        share = -(-type_.num_elements // (32 * num_warps))
        if isinstance(value.defining_op, Copy):
            share = vector  # fewer threads copy as much at once
        while vector > 1 and (vector > share or type_.shape[order[0]] % vector):
            vector //= 2
    combined = combined_dims(ops, group)
    warp_order = order_of_warps(combined, order, type_.shape, num_warps)
    lanes = most_lanes
    share = prod(type_.shape) // (32 * num_warps)
    in_vectors = is_staged and vector == 1
    run_dim, most_run = dim_of_runs(ops, group, type_, order, in_vectors=in_vectors), 1 << 30
    are_short = rows is not None and type_.shape == (rows.rows, rows.cols) and order == [1, 0]
    if type_.rank > 1 and order[0] in combined and vector >= WIDE_VECTOR:
        most = ROW_VECTORS * vector if are_short else share
        lanes = lanes_of_row(type_.shape, order[0], num_warps, min(share, most))
        if are_short and run_dim < 0:
            run_dim, most_run = 0, max(1, share * lanes // type_.shape[1])
    return blocked(
        type_.shape, num_warps, vector=vector, order=order, warp_order=warp_order, most_lanes=lanes,
        chained=wanted is not None and wanted.chained, run_dim=run_dim, most_run=most_run,
    )  # fmt: skip


def offer_fixed(ops: list[Op], groups: Groups, num_warps: int) -> None:
    """Layouts that instructions and conversions give."""
    for op in ops:
        if isinstance(op, mma.Issue | mma.Dot):
            groups.offer(op.acc, accumulator_layout(op, num_warps // 4))
    for op in ops:
        if isinstance(op, mma.Issue) and is_tile(op.a):
            groups.offer(op.a, register_operand_layout(op, num_warps // 4))
        elif isinstance(op, WarpDot):
            for value, layout in warp_layouts(op, num_warps):
                groups.offer(value, layout)
        elif isinstance(op, tile.ConvertLayout):
            groups.offer(op.result, op.layout)


def _is_block_of(op: Op, group: set[Value]) -> bool:
    """Whether a group has a block that an op loads or stores."""
    return isinstance(op, Load | Store) and not group.isdisjoint((*op.results, *op.operands))


def offer_copies(ops: list[Op], groups: Groups, facts: AxisFacts, num_warps: int) -> None:
    """Copies lie as memory does, before anything else says how their addresses do."""
    copies: list[Op] = [op for op in ops if isinstance(op, Copy)]
    members = groups.among([c.results[0] for c in copies])
    for op in copies:
        mine = members[groups.root(op.results[0])]
        wanted = group_shape(copies, facts, mine, num_warps)
        made = _coalesced(copies, op.results[0], num_warps, mine, (wanted, 32))
        groups.offer(op.results[0], made)


def offer_reads(ops: list[Op], groups: Groups, num_warps: int) -> None:
    """Slots whose rows are summed up are read as accumulators lie: a quad of lanes has a row."""
    reads = [op for op in ops if isinstance(op, smem.Read) and groups.get(op.result) is None]
    sums = [v for op in ops if (v := _summed_rows(op)) is not None] if reads else []
    for op in reads:
        type_ = op.result.type
        assert isinstance(type_, TileType)
        summed = any(groups.root(v) is groups.root(op.result) for v in sums)
        if summed and type_.shape[0] % (16 * num_warps) == 0 and type_.shape[1] % 8 == 0:
            layout = mma_accumulator(type_.shape[0], type_.shape[1], num_warps // 4, split=0)
            groups.offer(op.result, layout)


def _summed_rows(op: Op) -> Value | None:
    """The tile of two dimensions whose rows a reduction combines, whole or in parts."""
    if not isinstance(op, Reduce) or 0 in op.axes:
        return None
    value = op.inputs[0]
    source = value.defining_op
    if isinstance(source, tile.Reshape) and isinstance(value.type, TileType):
        type_ = source.a.type
        assert isinstance(type_, TileType)
        return source.a if type_.shape[:1] == value.type.shape[:1] and type_.rank == 2 else None
    return value if isinstance(value.type, TileType) and value.type.rank == 2 else None


def offer_defaults(
    ops: list[Op],
    groups: Groups,
    values: list[Value],
    facts: AxisFacts,
    num_warps: int,
    open_links: list[Link],
    rows: ShortRows | None,
    *,
    may_exchange: bool,
) -> None:
    """Coalesced layouts for groups without one, and what follows from them.

    What is accessed through pointers comes first, in order of size; equals do not wait for each
    other, so that both sides of a transposition are accessed well. may_exchange: whether threads
    may exchange tiles for the sake of their accesses.
    """
    members = groups.among(values)

    def offer(v: Value) -> None:
        if groups.get(v) is None:
            mine = members[groups.root(v)]
            near = sorted({n for member in mine for n in touching.get(member, ())})
            own = [accesses[n] for n in near]
            wanted = group_shape(own, facts, mine, num_warps, may_exchange=may_exchange)
            shape = wanted, 32
            if shape[0] is None and through and not any(_is_block_of(op, mine) for op in own):
                shape = shared_shape(through, mine, num_warps) or shape
            is_staged = any(side in mine for dot in dots for side in (dot.a, dot.b))
            made = _coalesced(own, v, num_warps, mine, shape, rows, is_staged=is_staged)
            groups.offer(v, made)

    through: list[Op] = [o for o in ops if isinstance(o, _SHARING)]
    dots = [o for o in through if isinstance(o, mma.Dot)]
    accesses: list[Op] = [o for o in ops if isinstance(o, _SHAPING)]
    touching: dict[Value, list[int]] = {}
    for n, op in enumerate(accesses):
        for v in (*op.operands, *op.results):
            touching.setdefault(v, []).append(n)
    anchors = {anchor(access) for op in ops if (access := access_of(op)) is not None}
    for _, same in groupby([v for v in values if v in anchors], key=size_of):
        for v in list(same):
            offer(v)
        propagate(open_links, groups)
    for v in [*reshaped_operands(ops, groups.tied), *values]:
        if groups.get(v) is None:
            offer(v)
            propagate(open_links, groups)


def size_of(v: Value) -> int:
    """Elements of a tile, 0 of anything else."""
    return v.type.num_elements if isinstance(v.type, TileType) else 0
