"""Conversions between layouts: where two meet, and where an access would touch memory badly."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout_moves import exchange_bytes
from tiledsl.ir.layout_moves import keeps_threads
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import atomic
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.mma_warp import WarpDot
from tiledsl.ir.types import TileType
from tiledsl.ws.access_layouts import access_of
from tiledsl.ws.access_layouts import anchor
from tiledsl.ws.access_layouts import better_block_layout
from tiledsl.ws.access_layouts import better_layout
from tiledsl.ws.access_layouts import fast_dim
from tiledsl.ws.dot_shapes import register_operand_layout
from tiledsl.ws.free import VIEWS
from tiledsl.ws.free import FreeTiles
from tiledsl.ws.layout_groups import is_tile
from tiledsl.ws.links import links
from tiledsl.ws.vector_stores import can_move
from tiledsl.ws.vector_stores import move_store
from tiledsl.ws.vector_stores import row_layout
from tiledsl.ws.warp_dots import warp_layouts


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


def convert_accesses(
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
        others = [v for v in access.operands if is_tile(v) and v is not anchor(access)]
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


def convert_links(graph: TileGraph, ops: list[Op]) -> list[str]:
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


def convert_register_operands(graph: TileGraph, ops: list[Op], groups: int) -> list[str]:
    """Operands in registers lie as their product wants them, whatever else they are used for."""
    notes: list[str] = []
    for op in ops:
        if isinstance(op, WarpDot):
            wanted = [warp_layouts(op, 4 * groups)[1]]
        elif isinstance(op, mma.Issue) and is_tile(op.a):
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
