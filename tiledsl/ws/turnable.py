"""Which rows of programs that a CTA runs one after the other can be turned (ws/turned_rows.py)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tiledsl.dtypes import int32
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.pointer_copy import LINE_BYTES
from tiledsl.ir.ops.pointer_copy import FetchLanes
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.vectors import vectors_of

Access = pointer.LoadLanes | pointer.StoreLanes


@dataclass(frozen=True)
class Rows:
    """What is turned: tiles of a shape along a dimension. limit: elements of a row."""

    anchor: pointer.LoadLanes
    dim: int
    limit: Value

    @property
    def extent(self) -> int:
        return self.anchor.shape[self.dim]

    @property
    def line(self) -> int:
        """Elements of a line."""
        return LINE_BYTES // self.anchor.dtype.bytes

    def holds(self, value: Value) -> bool:
        return isinstance(value.type, TileType) and value.type.shape == self.anchor.shape

    def concerns(self, op: Op) -> bool:
        """Whether an op reads, makes or accesses such tiles."""
        own = getattr(op, "shape", None) == self.anchor.shape
        return own or any(map(self.holds, (*op.operands, *op.results)))


def find_rows(graph: TileGraph, loop: While) -> Rows | str | None:
    """The rows of a loop, where all that concerns them can be turned.

    None where there are none, a line of the report where an access keeps them from it.
    """
    loads = [op for op in loop.body.ops if isinstance(op, pointer.LoadLanes) and _is_chained(op)]
    if not loads or loads[0].slot is None:
        return None
    anchor = loads[0]
    found = vectors_of(anchor.layout)
    if found is None:
        return None
    extent = anchor.shape[found.dim]
    is_row = anchor.layout.padded_shape[found.dim] == extent == prod(anchor.shape)
    limit = _limit(anchor, found.dim, loop)
    if not is_row or extent & (extent - 1) or limit is None:
        return None
    rows = Rows(anchor, found.dim, limit)
    if 2 * rows.line > extent:
        return None
    concerned = [op for op in loop.body.ops if rows.concerns(op)]
    left = [op for op in concerned if not _can_turn(graph, op, rows, loop)]
    if left:
        return _shifted(left[0], rows)
    return None if concerned[0] is not anchor or _leave(loop, rows) else rows


def _shifted(op: Op, rows: Rows) -> str:
    """Says what keeps rows from being turned."""
    where, size = op.loc.short if op.loc else "?", rows.anchor.dtype.bytes
    why = f"a {op.opcode.rpartition('.')[2]} of them"
    if isinstance(op, Access | FetchLanes) and op.dtype.bytes != size:
        why = f"elements of {op.dtype.bytes} bytes beside those of {size}"
    return f"{where}: rows are shifted between lanes, not turned: {why}"


def _leave(loop: While, rows: Rows) -> bool:
    """Whether rows are read under a condition, which is not rewritten, or made outside the loop."""
    return any(
        rows.holds(v) and (op.parent is loop.body) != _is_made_in(v, loop.body)
        for op in loop.body.walk()
        for v in op.operands
    )


def _is_made_in(value: Value, body: Region) -> bool:
    return value.defining_op is not None and value.defining_op.parent is body


def _is_chained(op: Op) -> bool:
    """Whether an access is shifted, and all of it follows from the program's number."""
    return (
        isinstance(op, Access | FetchLanes) and bool(op.shifted and op.chained) and _is_scalar(op)
    )


def _is_scalar(op: pointer.Lanes) -> bool:
    return op.masked and not any(op.follows)


def _can_turn(graph: TileGraph, op: Op, rows: Rows, loop: While) -> bool:
    """Whether an op does the same for places that hold other elements."""
    match op:
        case pointer.LoadLanes(filled_slot=True):
            same = op.dtype.bytes == rows.anchor.dtype.bytes and op.layout == rows.anchor.layout
            in_maps = all(isinstance(use.op, tile.Map) for use in graph.users(op.result))
            is_whole = same and in_maps and op.width == rows.anchor.width and _is_scalar(op)
            return is_whole and _limit(op, rows.dim, loop) is rows.limit
        case pointer.LoadLanes() | pointer.StoreLanes():
            same = op.dtype.bytes == rows.anchor.dtype.bytes and op.layout == rows.anchor.layout
            return same and _is_chained(op) and _limit(op, rows.dim, loop) is rows.limit
        case FetchLanes():
            return _is_chained(op) and op.dtype.bytes == rows.anchor.dtype.bytes
        case tile.Map():
            return not op.part and op.in_place < 0 and op.shape == rows.anchor.shape
        case Reduce():
            return rows.dim in op.axes and bool(op.kind) and not op.kind.startswith("arg")
        case _:
            return False


def _limit(op: pointer.Lanes, dim: int, loop: While) -> Value | None:
    """The number of elements that a mask lets in along a dimension, the same for all programs.

    None where something else of the mask or the filling changes along it.
    """
    body: Region = op.regions[0]
    at = body.args[len(op.inputs) + dim]
    end = body.terminator
    assert isinstance(end, Yield)
    pointer_, mask, *other = end.values
    limits: list[Value] = []
    todo = [mask]
    while todo:
        made = todo.pop().defining_op
        if isinstance(made, ew.And):
            todo += made.operands
        elif bound_of(made, at) is not None:
            limits.append(bound_of(made, at) or mask)
        elif made is not None and _needs(made.results[0], at):
            return None
    if len(limits) != 1 or any(_needs(v, at) for v in other) or not _needs(pointer_, at):
        return None
    limit = limits[0]
    if limit.owner is not body or limit.index >= len(op.inputs) or limit.type != ScalarType(int32):
        return None
    value = op.inputs[limit.index]
    made = value.defining_op
    is_inside = made.parent is loop.body if made is not None else value.owner is loop.body
    return None if is_inside else value


def bound_of(op: Op | None, at: Value) -> Value | None:
    """What the coordinate is compared with: `at < bound`, or the other way round."""
    if isinstance(op, ew.Compare) and op.predicate == "lt" and op.a is at:
        return op.b
    if isinstance(op, ew.Compare) and op.predicate == "gt" and op.b is at:
        return op.a
    return None


@deep
def _needs(value: Value, at: Value) -> bool:
    """Whether a value is made from a coordinate."""
    if value is at:
        return True
    op = value.defining_op
    return op is not None and any(_needs(v, at) for v in op.operands)
