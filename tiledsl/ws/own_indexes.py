"""Addresses and masks of accesses that share no tile, so that each takes the layout of its access.

Rows of indexes that a division or a load has made stay in registers (ws/kept.py). Where a loop
gathers by them and an accumulator is stored by them, one layout for both would have the loop
exchange its addresses between the threads in each iteration; made once more in front of the loop
they cost less. What turns out to lie alike is one again.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.types import TileType
from tiledsl.ws.free import VIEWS
from tiledsl.ws.free import FreeTiles
from tiledsl.ws.free import is_index


def own_indexes(graph: TileGraph, region: Region) -> list[tuple[Op, Op]]:
    """Gives accesses under `region` index tiles of their own; pairs of ops and copies of them."""
    finder = _Slices(FreeTiles())
    owner: dict[int, Op] = {}
    made: list[tuple[Op, Op]] = []
    for access in list(region.walk()):
        if not isinstance(access, pointer.Load | pointer.Store | Copy):
            continue
        ops = finder.of(access)
        shared = [op for op in ops if owner.setdefault(op.id, access) is not access]
        if shared:
            made += _copy(graph, access, ops)
    for old, _ in made:
        _drop(graph, old)
    return [pair for pair in made if all(op.parent is not None for op in pair)]


def join_alike(graph: TileGraph, pairs: list[tuple[Op, Op]]) -> None:
    """Makes one of each op and its copy that have got the same layout and operands."""
    for old, copy in pairs:
        if old.operands == copy.operands and old.results[0].type == copy.results[0].type:
            graph.replace_uses(copy.results[0], old.results[0])
            graph.erase(copy)


def _copy(graph: TileGraph, access: Op, ops: list[Op]) -> list[tuple[Op, Op]]:
    mapping: dict[Value, Value] = {}
    made: list[tuple[Op, Op]] = []
    for op in ops:
        copy = clone_op(op, mapping)
        graph.insert_after(op, copy)
        made.append((op, copy))
    for index, value in enumerate(access.operands):
        if value in mapping:
            graph.set_operand(access, index, mapping[value])
    return made


def _drop(graph: TileGraph, op: Op) -> None:
    """Erases what only the access read that has a copy now."""
    todo = [op]
    while todo:
        dead = todo.pop()
        if dead.parent is None or any(graph.has_uses(v) for v in dead.results):
            continue
        makers = [v.defining_op for v in dead.operands]
        graph.erase(dead)
        todo += [m for m in makers if m is not None and not isinstance(m, Hint)]


class _Slices:
    """The ops that index tiles are made of, as far as these have a layout."""

    def __init__(self, free: FreeTiles) -> None:
        self.free = free

    def of(self, access: Op) -> list[Op]:
        """What makes the addresses, mask and filling of an access, operands first.

        Empty where some of it is neither index math nor kept or loaded in one line of indexes.
        """
        assert isinstance(access, pointer.Load | pointer.Store | Copy)
        found: dict[Op, None] = {}
        data = access.value if isinstance(access, pointer.Store) else None
        values = [v for v in access.operands if v is not data]
        return list(found) if all(self._add(v, found) for v in values) else []

    def _add(self, value: Value, found: dict[Op, None]) -> bool:
        """Enters the ops behind a value; False where they cannot be made twice."""
        todo = [value]
        while todo:
            value = todo[-1]
            op = value.defining_op
            if not isinstance(value.type, TileType) or self.free(value) or op in found:
                todo.pop()
                continue
            if op is None or not _can_be_made_twice(op, value.type):
                return False
            if missing := [v for v in op.operands if self._is_missing(v, found)]:
                todo += reversed(missing)
                continue
            found[op] = None
            todo.pop()
        return True

    def _is_missing(self, value: Value, found: dict[Op, None]) -> bool:
        is_made = isinstance(value.type, TileType) and not self.free(value)
        return is_made and value.defining_op not in found


def _can_be_made_twice(op: Op, type_: TileType) -> bool:
    if isinstance(op, pointer.Load):
        is_line = sum(n > 1 for n in type_.shape) <= 1
        return is_line and not op.volatile and not type_.dtype.is_float
    return isinstance(op, (*VIEWS, Hint)) or is_index(op)
