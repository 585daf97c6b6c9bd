"""Index math that is done once for a loop: rows that a division finds stay in registers.

Addresses are made anew where they are used, which costs less than to keep them, unless a division
is among what they are made of: a loop would divide for each access of each iteration.
"""

from __future__ import annotations

from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import FloorDiv
from tiledsl.ir.ops.elementwise import Mod
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.pointer import Load
from tiledsl.ir.ops.pointer import Store
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import TileType
from tiledsl.ws.accesses import fuse_accesses
from tiledsl.ws.counted_divisions import count_divisions
from tiledsl.ws.free import VIEWS
from tiledsl.ws.free import is_index
from tiledsl.ws.fuse import fuse_elementwise
from tiledsl.ws.layouts import assign_layouts
from tiledsl.ws.split_addresses import split_addresses


def lay_out_copies(graph: TileGraph, roles: list[Role]) -> list[str]:
    """Lays out roles that copy, with the computation of their addresses; notes of the layouts."""
    notes: list[str] = []
    for role in roles:
        count_divisions(graph, role.body)
        split_addresses(graph, role.body)
        keep_indexes(graph, role)
        notes += assign_layouts(graph, role.body, role.num_warps)
        fuse_accesses(graph, role.body, graph.facts.get("divisors", {}))
        fuse_elementwise(graph, role.body)
    return notes


def keep_indexes(graph: TileGraph, role: Role) -> int:
    """Keeps rows and columns of indexes from in front of loops with accesses; returns how many.

    Also those of an access of a larger tile, which has each of them in many elements.
    """
    finder = _Finder()
    for op in [op for op in role.body.walk() if isinstance(op, Copy | Load | Store)]:
        loop = next((o for o in graph.enclosing(op) if isinstance(o, For)), None)
        if loop is not None or _is_wide_tile(op.pointer):
            finder.look(loop, [v for v in (op.pointer, op.mask) if v is not None])
    for value in finder.found:
        op = value.defining_op
        assert op is not None
        held = Hint(value, kept=True, loc=op.loc, names=(value.name,))
        graph.insert_after(op, held)
        graph.replace_uses(value, held.result, keep=[held])
    return len(finder.found)


class _Finder:
    """found: what is to be kept, in the order in which it was found."""

    def __init__(self) -> None:
        self.found: dict[Value, None] = {}
        self._seen: set[tuple[For | None, Value]] = set()
        self._slow: dict[Value, bool] = {}

    def look(self, loop: For | None, values: list[Value]) -> None:
        """Looks behind what accesses take, in a loop or outside of all."""
        inside = {op.id for op in loop.body.walk()} if loop is not None else set[int]()
        work = list(values)
        while work:
            value = work.pop()
            op = value.defining_op
            if op is None or (loop, value) in self._seen or not isinstance(value.type, TileType):
                continue
            self._seen.add((loop, value))
            is_narrow = sum(n > 1 for n in value.type.shape) <= 1
            if op.id not in inside and is_narrow and self.is_slow(value):
                self.found[self._narrower(value)] = None
            elif isinstance(op, VIEWS) or is_index(op):
                work += op.operands

    def _narrower(self, value: Value) -> Value:
        """The value of 32 bits or fewer that alone makes one of 64 bits slow; or the value."""
        at = value
        while _is_wide(at) and (op := at.defining_op) is not None:
            slow = [v for v in op.operands if _is_tile(v) and self.is_slow(v)]
            if len(slow) != 1:
                return value
            at = slow[0]
        return at

    def is_slow(self, value: Value) -> bool:
        """Whether a division is among the index math behind a tile."""
        if value not in self._slow:
            op = value.defining_op
            self._slow[value] = op is not None and self._is_slow(op)
        return self._slow[value]

    @deep
    def _is_slow(self, op: Op) -> bool:
        if not (isinstance(op, VIEWS) or is_index(op)):
            return False
        return _divides(op) or any(self.is_slow(v) for v in op.operands if _is_tile(v))


def _is_wide_tile(value: Value) -> bool:
    """Whether a tile has more than one dimension of several elements."""
    return isinstance(value.type, TileType) and sum(n > 1 for n in value.type.shape) > 1


def _is_wide(value: Value) -> bool:
    """Whether an element takes two registers."""
    return isinstance(value.type, TileType) and value.type.dtype.bits > 32


def _is_tile(value: Value) -> bool:
    return isinstance(value.type, TileType)


def _divides(op: Op) -> bool:
    """Whether an op divides by something else than a power of two that is known."""
    if not isinstance(op, FloorDiv | Mod):
        return False
    by = op.b.defining_op
    while isinstance(by, tile.Splat | tile.Broadcast | tile.ExpandDims):
        by = by.a.defining_op
    return not (isinstance(by, Constant) and int(by.value).bit_count() == 1)
