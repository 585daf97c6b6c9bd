"""Accesses through one pointer whose order the consumers of a specialised kernel would not keep.

A tile is stored in other layouts than it is loaded, by other threads; scalars are written by one
thread and loaded by all. In a single role barriers stand between them (ws/memory_order.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.pointer import Load
from tiledsl.ir.ops.pointer import Store
from tiledsl.ir.ops.pointer import origin_of
from tiledsl.ir.types import TileType
from tiledsl.ws.memory_order import Lanes
from tiledsl.ws.memory_order import lanes_shape


def pointer_hazard(graph: TileGraph) -> Op | None:
    """An access that needs a barrier between itself and one before.

    Tiles that are loaded, changed and stored again need none, nor have two stores an order.
    """
    before: dict[str, list[Lanes]] = {}
    for op in graph.walk():
        if isinstance(op, Lanes) and (name := origin_of(op.pointer)):
            others = before.setdefault(name, [])
            if any(_meet(graph, other, op) for other in others):
                return op
            others.append(op)
    return None


def depends(value: Value, sources: Sequence[Value]) -> bool:
    """Whether a value is made from one of some others."""
    todo, seen = [value], set[Value]()
    while todo:
        v = todo.pop()
        if v in sources:
            return True
        op = v.defining_op
        if v in seen or op is None:
            continue
        seen.add(v)
        todo += op.operands
        todo += [each for r in op.regions for inner in r.walk() for each in inner.operands]
    return False


def _meet(graph: TileGraph, one: Lanes, other: Lanes) -> bool:
    """Whether an access follows one that other threads do at the same place."""
    kinds = {isinstance(one, Load), isinstance(other, Load)}
    scalars = [not isinstance(op.pointer.type, TileType) for op in (one, other)]
    if kinds == {True} or (kinds == {False} and isinstance(one, Store) == isinstance(other, Store)):
        return False
    if kinds == {False}:
        return not all(scalars)
    if not isinstance(one, Load) or any(scalars) or lanes_shape(one) != lanes_shape(other):
        return True
    if other.effect is not Effect.WRITE or not depends(other.operands[1], one.results):
        return True
    loops = [o for o in graph.enclosing(one) if isinstance(o, For) and o in graph.enclosing(other)]
    return not all(depends(one.pointer, loop.body.args) for loop in loops)
