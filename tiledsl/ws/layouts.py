"""Layout assignment: every register tile of a role gets a layout, fixed ones first.

Values that an elementwise op, a loop or a branch ties together share one layout. Accumulators fix
theirs; shape ops (broadcast, expand_dims, transpose) carry a layout to the other side; what is left
gets a coalesced layout. Where two
fixed layouts meet, a `tile.convert_layout` is inserted and reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import blocked
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.layout_moves import exchange_bytes
from tiledsl.ir.layout_moves import keeps_threads
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import atomic
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.ops import tile_moves
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.mma_warp import WarpDot
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.scan import Scan
from tiledsl.ir.ops.tile_asm import InlineAsm
from tiledsl.ir.types import TileType
from tiledsl.ws.access_layouts import Shape
from tiledsl.ws.access_layouts import access_of
from tiledsl.ws.access_layouts import anchor
from tiledsl.ws.access_layouts import better_block_layout
from tiledsl.ws.access_layouts import better_layout
from tiledsl.ws.access_layouts import fast_dim
from tiledsl.ws.access_layouts import group_shape
from tiledsl.ws.combined_dims import combined_dims
from tiledsl.ws.combined_dims import dim_of_runs
from tiledsl.ws.combined_dims import lanes_of_row
from tiledsl.ws.combined_dims import warp_order as order_of_warps
from tiledsl.ws.dot_shapes import accumulator_layout
from tiledsl.ws.dot_shapes import register_operand_layout
from tiledsl.ws.free import VIEWS
from tiledsl.ws.free import FreeTiles
from tiledsl.ws.free import is_elementwise
from tiledsl.ws.links import Link
from tiledsl.ws.links import links
from tiledsl.ws.own_indexes import join_alike
from tiledsl.ws.own_indexes import own_indexes
from tiledsl.ws.shared_layouts import reshaped_operands
from tiledsl.ws.shared_layouts import shared_shape
from tiledsl.ws.short_rows import ShortRows
from tiledsl.ws.short_rows import short_rows
from tiledsl.ws.vector_stores import can_move
from tiledsl.ws.vector_stores import move_store
from tiledsl.ws.vector_stores import row_layout
from tiledsl.ws.warp_dots import warp_layouts
from tiledsl.ws.widening import widen_at_use

WIDE_VECTOR = 4
"""Elements of a vector that fill the sectors of memory, with lanes side by side."""
ROW_VECTORS = 2
"""Vectors of a short row for a lane: with more, what rows share takes the registers of rows."""
_SHAPING = (Load, Store, Reduce, Scan, pointer.Load, pointer.Store, atomic.Rmw, atomic.Cas, Copy)
"""Ops that say which layout their tiles should have."""


_SHARING = (mma.Dot, smem.Read, tile.Reshape, tile_moves.Join)
"""Ops that say how tiles lie that shared memory holds before or after."""


@dataclass(frozen=True)
class Room:
    """What there is for exchanges between threads that only make accesses better.

    num_bytes: of shared memory of a CTA. num_ctas: of a cluster that shares the program; above 1
    nothing is exchanged for the sake of longer vectors alone, or what one CTA had no room for.
    """

    num_bytes: int = 1 << 40
    num_ctas: int = 1

    def problem(self, value: Value, want: Layout) -> str:
        """Why a tile does not get another layout; empty where it does."""
        type_, have = value.type, _layout(value)
        assert isinstance(type_, TileType)
        if keeps_threads(have, want):
            return ""
        needed = exchange_bytes(type_.num_elements, type_.dtype.bytes)
        if self.num_ctas > 1 and (fast_dim(have) == fast_dim(want) or needed > self.num_bytes):
            return f"the {self.num_ctas} CTAs that share it exchange no tiles"
        if needed > self.num_bytes:
            return f"{needed} bytes to exchange it between threads, {self.num_bytes} are left"
        return ""


UNLIMITED = Room()


class _Groups:
    """Union-find over tile values; each group has at most one layout."""

    def __init__(self) -> None:
        self.parent: dict[Value, Value] = {}
        self.layout: dict[Value, Layout] = {}

    def root(self, v: Value) -> Value:
        self.parent.setdefault(v, v)
        while self.parent[v] is not v:
            self.parent[v] = self.parent[self.parent[v]]
            v = self.parent[v]
        return v

    def tie(self, a: Value, b: Value) -> None:
        ra, rb = self.root(a), self.root(b)
        if ra is not rb:
            self.parent[rb] = ra

    def tied(self, a: Value, b: Value) -> bool:
        """Whether two values lie alike."""
        return self.root(a) is self.root(b)

    def get(self, v: Value) -> Layout | None:
        return self.layout.get(self.root(v))

    def among(self, values: list[Value]) -> dict[Value, set[Value]]:
        """Some values by the root of their group."""
        out: dict[Value, set[Value]] = {}
        for v in values:
            out.setdefault(self.root(v), set()).add(v)
        return out

    def offer(self, v: Value, layout: Layout) -> bool:
        """Sets a group's layout unless it has one; True when it did."""
        root = self.root(v)
        if root in self.layout:
            return False
        self.layout[root] = layout
        return True


def _is_tile(v: Value) -> bool:
    return isinstance(v.type, TileType)


def _ties(op: Op, free: FreeTiles) -> Iterator[tuple[Value, Value]]:  # noqa: C901 - a case per op
    """Pairs of values of an op that must lie alike."""
    if isinstance(op, For):
        end = _yield(op.body)
        for init, arg, nxt, res in zip(op.init, op.carried, end, op.results, strict=True):
            yield from ((arg, init), (arg, nxt), (arg, res))
    elif isinstance(op, If):
        for i, res in enumerate(op.results):
            yield from ((res, _yield(op.then)[i]), (res, _yield(op.orelse)[i]))
    elif isinstance(op, While):
        for i, res in enumerate(op.results):
            before = _yield(op.before)[i + 1]
            yield from ((res, op.init[i]), (res, op.before.args[i]), (res, before))
            yield from ((res, op.body.args[i]), (res, _yield(op.body)[i]))
    elif isinstance(op, mma.Issue | mma.ClusterReduce | mma.Dot | WarpDot):
        yield (op.results[0], op.acc)
    elif isinstance(op, mma.Wait):
        yield from zip(op.results, op.accs, strict=True)
    elif isinstance(op, mma.Spread):
        yield (op.results[0], op.a)
    elif isinstance(op, Reduce):
        yield from ((op.inputs[0], v) for v in op.inputs[1:])
    elif isinstance(op, Scan):
        yield from ((op.inputs[0], v) for v in (*op.inputs[1:], *op.results))
    elif isinstance(op, InlineAsm):
        yield from ((op.args[0], v) for v in (*op.args[1:], *op.results))
    elif isinstance(op, tile_moves.Join):
        yield (op.a, op.b)
    elif isinstance(op, tile_moves.Split | tile_moves.Unstack):
        yield from ((op.results[0], v) for v in op.results[1:])
    elif isinstance(op, tile_moves.Stack):
        yield from ((op.parts[0], v) for v in op.parts[1:])
    elif isinstance(op, tile_moves.Gather):
        yield (op.index, op.result)
    elif isinstance(op, tile_moves.Histogram) and op.mask is not None:
        yield (op.a, op.mask)
    elif is_elementwise(op) or access_of(op) is not None:
        tiles = _places(op, free)
        yield from ((tiles[0], v) for v in tiles[1:])


def _places(op: Op, free: FreeTiles) -> list[Value]:
    """Tiles of an elementwise op or an access that lie alike: those that are not made anew."""
    access = access_of(op)
    fixed = anchor(access) if access is not None else None
    tiles = [v for v in (*op.operands, *op.results) if _is_tile(v)]
    return [v for v in tiles if v is fixed or not free(v)]


def _yield(region: Region) -> tuple[Value, ...]:
    end = region.terminator
    return end.values if isinstance(end, Yield) else ()


def _derive(link: Link, groups: _Groups) -> bool:
    """Carries a layout from one side of a link to the other; True when a new one was set."""
    inner, out = groups.get(link.operand), groups.get(link.result)
    if out is not None and inner is None and link.up is not None:
        found = link.up(out)
        return found is not None and groups.offer(link.operand, found)
    if inner is not None and out is None and link.down is not None:
        found = link.down(inner)
        return found is not None and groups.offer(link.result, found)
    return False


def _propagate(open_links: list[Link], groups: _Groups) -> None:
    """Derives layouts until nothing new follows; links with both sides known are taken out."""
    for _ in range(len(open_links) + 1):
        # Every link derives what it can: no short cut.
        if not sum([_derive(link, groups) for link in open_links]):
            break
    open_links[:] = [
        k for k in open_links if groups.get(k.operand) is None or groups.get(k.result) is None
    ]


def _default(
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


def assign_layouts(
    graph: TileGraph, region: Region, num_warps: int, room: Room = UNLIMITED
) -> list[str]:
    """Sets the layout of every register tile under `region`; a line per inserted conversion.

    room: for conversions that only make accesses better; a line too for each that has none.
    """
    widen_at_use(graph, region)
    copies = own_indexes(graph, region)
    _split_sources(graph, region)
    ops = list(region.walk())
    groups = _Groups()
    free = FreeTiles()
    facts = axis_facts(region, graph.facts.get("divisors", {}))
    for op in ops:
        for a, b in _ties(op, free):
            if _is_tile(a) and _is_tile(b):
                groups.tie(a, b)
    _offer_fixed(ops, groups, num_warps)
    open_links = [link for op in ops for link in links(op)]
    _offer_copies(ops, groups, facts, num_warps)
    _propagate(open_links, groups)
    _offer_reads(ops, groups, num_warps)
    _propagate(open_links, groups)
    values = [
        v
        for op in ops
        for v in (*op.results, *(a for r in op.regions for a in r.args))
        if _is_tile(v)
    ]
    # What is cut into tiles lies as these do.
    cut = {op.a for op in ops if isinstance(op, tile_moves.Unstack)}
    values.sort(key=lambda v: (v in cut, -_size(v)))
    _offer_defaults(ops, groups, values, facts, num_warps, open_links, short_rows(ops))
    for v in values:
        assert isinstance(v.type, TileType)
        graph.set_type(v, v.type.with_layout(groups.get(v)))
    join_alike(graph, copies)
    ops = list(region.walk())
    notes = _convert(graph, ops) + _convert_accesses(graph, ops, facts, num_warps, room)
    return notes + _convert_register_operands(graph, ops, num_warps // 4)


def _offer_fixed(ops: list[Op], groups: _Groups, num_warps: int) -> None:
    """Layouts that instructions and conversions give."""
    for op in ops:
        if isinstance(op, mma.Issue | mma.Dot):
            groups.offer(op.acc, accumulator_layout(op, num_warps // 4))
    for op in ops:
        if isinstance(op, mma.Issue) and _is_tile(op.a):
            groups.offer(op.a, register_operand_layout(op, num_warps // 4))
        elif isinstance(op, WarpDot):
            for value, layout in warp_layouts(op, num_warps):
                groups.offer(value, layout)
        elif isinstance(op, tile.ConvertLayout):
            groups.offer(op.result, op.layout)


def _is_block_of(op: Op, group: set[Value]) -> bool:
    """Whether a group has a block that an op loads or stores."""
    return isinstance(op, Load | Store) and not group.isdisjoint((*op.results, *op.operands))


def _offer_copies(ops: list[Op], groups: _Groups, facts: AxisFacts, num_warps: int) -> None:
    """Copies lie as memory does, before anything else says how their addresses do."""
    copies: list[Op] = [op for op in ops if isinstance(op, Copy)]
    members = groups.among([c.results[0] for c in copies])
    for op in copies:
        mine = members[groups.root(op.results[0])]
        wanted = group_shape(copies, facts, mine, num_warps)
        groups.offer(op.results[0], _default(copies, op.results[0], num_warps, mine, (wanted, 32)))


def _offer_reads(ops: list[Op], groups: _Groups, num_warps: int) -> None:
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


def _offer_defaults(
    ops: list[Op],
    groups: _Groups,
    values: list[Value],
    facts: AxisFacts,
    num_warps: int,
    open_links: list[Link],
    rows: ShortRows | None,
) -> None:
    """Coalesced layouts for groups without one, and what follows from them.

    What is accessed through pointers comes first, in order of size; equals do not wait for each
    other, so that both sides of a transposition are accessed well.
    """
    members = groups.among(values)

    def offer(v: Value) -> None:
        if groups.get(v) is None:
            mine = members[groups.root(v)]
            shape = group_shape(accesses, facts, mine, num_warps), 32
            if shape[0] is None and through and not any(_is_block_of(op, mine) for op in accesses):
                shape = shared_shape(through, mine, num_warps) or shape
            is_staged = any(side in mine for dot in dots for side in (dot.a, dot.b))
            made = _default(accesses, v, num_warps, mine, shape, rows, is_staged=is_staged)
            groups.offer(v, made)

    through: list[Op] = [o for o in ops if isinstance(o, _SHARING)]
    dots = [o for o in through if isinstance(o, mma.Dot)]
    accesses: list[Op] = [o for o in ops if isinstance(o, _SHAPING)]
    anchors = {anchor(access) for op in ops if (access := access_of(op)) is not None}
    for _, same in groupby([v for v in values if v in anchors], key=_size):
        for v in list(same):
            offer(v)
        _propagate(open_links, groups)
    for v in [*reshaped_operands(ops, groups.tied), *values]:
        if groups.get(v) is None:
            offer(v)
            _propagate(open_links, groups)


def _convert_accesses(
    graph: TileGraph, ops: list[Op], facts: AxisFacts, num_warps: int, room: Room
) -> list[str]:
    """Gives accesses that would touch memory badly a layout of their own."""
    notes: list[str] = []
    free = FreeTiles()
    for op in ops:
        if isinstance(op, Load | Store):
            notes += _convert_block(graph, op, num_warps, room)
            continue
        access = access_of(op)
        unread = isinstance(access, atomic.Rmw) and not graph.has_uses(access.result)
        if access is None or not (unread or isinstance(access, pointer.Load | pointer.Store)):
            continue
        if isinstance(access, pointer.Store) and not free(access.value):
            rows = row_layout(access, facts) if can_move(access, free) else None
            if rows is not None:
                notes.append(_note(access, access.value, _layout(access.value), rows))
                move_store(graph, access, rows)
                continue
        others = [v for v in access.operands if _is_tile(v) and v is not anchor(access)]
        if not all(free(v) for v in others) or free(anchor(access)):
            continue
        value = anchor(access)
        have = _layout(value)
        want = better_layout(access, have, facts, num_warps)
        if want is None:
            continue
        if problem := room.problem(value, want):
            notes.append(_stays(access, value, problem))
            continue
        if not isinstance(access, pointer.Load):
            _convert_operand(graph, access, value, want)
        else:
            _convert_result(graph, access, value, want, have)
        notes.append(_note(access, value, have, want))
    return notes


def _convert_block(graph: TileGraph, op: Load | Store, num_warps: int, room: Room) -> list[str]:
    """The same for the block of a tensor."""
    value = op.result if isinstance(op, Load) else op.value
    have = _layout(value)
    want = better_block_layout(op, have, num_warps) if have.kind == "blocked" else None
    if want is None:
        return []
    if problem := room.problem(value, want):
        return [_stays(op, value, problem)]
    if isinstance(op, Store):
        _convert_operand(graph, op, value, want)
    else:
        _convert_result(graph, op, value, want, have)
    return [_note(op, value, have, want)]


def _size(v: Value) -> int:
    return v.type.num_elements if isinstance(v.type, TileType) else 0


def _split_sources(graph: TileGraph, region: Region) -> None:
    """One source per use: each use may want its own layout, and making one anew costs nothing.

    What a dot behind a loop starts from is made in front of it: from there on it takes registers.
    """
    for op in list(region.walk()):
        if not isinstance(op, tile.Arange | tile.Splat):
            continue
        uses = graph.users(op.result)
        for use in uses:
            starts = isinstance(use.op, mma.Dot) and use.op.acc is op.result
            starts = starts and _passes_loop(op, use.op)
            if use is uses[0] and not starts:
                continue
            copy = op.rebuild({})
            graph.insert_before(use.op, copy) if starts else graph.insert_after(op, copy)
            graph.set_operand(use.op, use.index, copy.results[0])
        if not graph.has_uses(op.result):
            graph.erase(op)


def _passes_loop(made: Op, user: Op) -> bool:
    """Whether a loop stands between two ops of one region."""
    if made.parent is not user.parent or made.parent is None:
        return False
    ops = made.parent.ops
    return any(op.is_loop for op in ops[ops.index(made) : ops.index(user)])


def _convert(graph: TileGraph, ops: list[Op]) -> list[str]:
    """Inserts conversions where the two sides of an op got layouts that do not match."""
    notes: list[str] = []
    free = FreeTiles()
    for op in ops:
        for link in list(links(op)):
            if isinstance(op, VIEWS) and free(link.operand):
                continue  # made anew wherever it is read
            have, out = _layout(link.operand), _layout(link.result)
            want = link.up(out) if link.up is not None else None
            made = link.down(have) if link.down is not None else None
            is_met = (want is not None and have.same_places(want)) or (
                made is not None and made.same_places(out)
            )
            if is_met or not link.strict:
                continue
            if want is not None:
                _convert_operand(graph, op, link.operand, want)
                notes.append(_note(op, link.operand, have, want))
            elif made is not None:
                _convert_result(graph, op, link.result, made, out)
                notes.append(_note(op, link.result, made, out))
    return notes


def _convert_register_operands(graph: TileGraph, ops: list[Op], groups: int) -> list[str]:
    """Operands in registers lie as their product wants them, whatever else they are used for."""
    notes: list[str] = []
    for op in ops:
        if isinstance(op, WarpDot):
            wanted = [warp_layouts(op, 4 * groups)[1]]
        elif isinstance(op, mma.Issue) and _is_tile(op.a):
            wanted = [(op.a, register_operand_layout(op, groups))]
        else:
            continue
        for value, want in wanted:
            if not (have := _layout(value)).same_places(want):
                notes.append(_note(op, value, have, want))
                _convert_operand(graph, op, value, want)
    return notes


def _convert_operand(graph: TileGraph, op: Op, value: Value, want: Layout) -> None:
    convert = tile.ConvertLayout(value, want, loc=op.loc, names=(value.name,))
    graph.insert_before(op, convert)
    for i, operand in enumerate(op.operands):
        if operand is value:
            graph.set_operand(op, i, convert.result)


def _convert_result(graph: TileGraph, op: Op, value: Value, made: Layout, want: Layout) -> None:
    assert isinstance(value.type, TileType)
    graph.set_type(value, value.type.with_layout(made))
    convert = tile.ConvertLayout(value, want, loc=op.loc, names=(value.name,))
    graph.insert_after(op, convert)
    graph.replace_uses(value, convert.result, keep=(convert,))


def _note(op: Op, value: Value, have: Layout, want: Layout) -> str:
    at = op.loc.short if op.loc else "?"
    return f"{at}: {value.name or 'tile'} converted from {have.kind} to {want.kind} layout"


def _stays(op: Op, value: Value, problem: str) -> str:
    at = op.loc.short if op.loc else "?"
    return f"{at}: {value.name or 'tile'} is accessed as it lies, in more pieces: {problem}"


def _layout(v: Value) -> Layout:
    assert isinstance(v.type, TileType)
    assert v.type.layout is not None
    return v.type.layout
