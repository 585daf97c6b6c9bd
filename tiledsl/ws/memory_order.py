"""Barriers that keep the order of one program's accesses to one tensor.

Threads hold other elements of one access than of another one, so that an element that one thread
stores may be another one's next. Blocks that have no element in common need no order. Accesses
through pointers are ordered where their shapes differ, as a scalar and a tile; lanes of equal
shapes stay with their threads, and what other lanes store is for the user to order.
"""

from __future__ import annotations

from itertools import combinations

from tiledsl.ir.analysis.affine import NotAffine
from tiledsl.ir.analysis.affine import sum_of
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.atomic import Cas
from tiledsl.ir.ops.atomic import Rmw
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.pointer import Barrier
from tiledsl.ir.ops.pointer import Load as PointerLoad
from tiledsl.ir.ops.pointer import Store as PointerStore
from tiledsl.ir.ops.pointer import origin_of
from tiledsl.ir.types import TileType

Lanes = PointerLoad | PointerStore | Rmw | Cas


def order_memory(graph: TileGraph) -> None:
    """Barriers between the accesses of a tensor that one program both loads and stores.

    A load that one store of the same block follows needs none, nor do accesses outside of loops
    whose blocks lie apart.
    """
    touched: dict[Value, list[Load | Store]] = {}
    for op in graph.walk():
        if isinstance(op, Load | Store):
            touched.setdefault(op.tensor, []).append(op)
    for accesses in touched.values():
        stores = [op for op in accesses if isinstance(op, Store)]
        if not stores or len(accesses) == 1 or _are_apart(graph, accesses):
            continue
        if len(stores) == 1 and len(accesses) == 2 and _is_update(accesses[0], accesses[1]):
            continue
        for op in accesses:
            graph.insert_before(op, Barrier(loc=op.loc))


def order_lanes(graph: TileGraph) -> None:
    """Barriers between stores and loads of other shapes through one pointer argument.

    A kernel with barriers of its own is left as it is.
    """
    if graph.find(Barrier):
        return
    touched: dict[str, list[Lanes]] = {}
    for op in graph.walk():
        if isinstance(op, Lanes) and (name := origin_of(op.pointer)):
            touched.setdefault(name, []).append(op)
    for accesses in touched.values():
        made: list[tuple[int, Barrier]] = []
        for at, op in enumerate(accesses):
            first, cut = _last_before(graph, op, made)
            before = accesses[first:at]
            before += [o for o in accesses[at:] if _meet_again(graph, o, op, cut)]
            if any(_may_exchange(other, op) for other in before):
                barrier = Barrier(loc=op.loc)
                graph.insert_before(op, barrier)
                made.append((at, barrier))


def _last_before(
    graph: TileGraph, op: Op, made: list[tuple[int, Barrier]]
) -> tuple[int, Barrier | None]:
    """The last barrier that surely runs ahead of an op, and which access it stands before."""
    around = [op.parent, *(o.parent for o in graph.enclosing(op))]
    return next(((i, b) for i, b in reversed(made) if b.parent in around), (0, None))


def _meet_again(graph: TileGraph, one: Op, other: Op, cut: Barrier | None) -> bool:
    """Whether a loop runs `one`, then `other` in its next iteration, without a barrier between."""
    loops = [o for o in graph.enclosing(one) if isinstance(o, For | While)]
    shared = [o for o in graph.enclosing(other) if o in loops]
    return bool(shared) and (cut is None or shared[0] not in graph.enclosing(cut))


def _may_exchange(one: Lanes, other: Lanes) -> bool:
    """Whether one access writes and the other one's lanes belong to other threads."""
    is_read = isinstance(one, PointerLoad) and isinstance(other, PointerLoad)
    return not is_read and _shape(one) != _shape(other)


def _shape(op: Lanes) -> tuple[int, ...]:
    return op.pointer.type.shape if isinstance(op.pointer.type, TileType) else ()


def _is_update(first: Load | Store, second: Load | Store) -> bool:
    """Whether two accesses are a load and then a store of one block."""
    return (
        isinstance(first, Load)
        and isinstance(second, Store)
        and first.parent is second.parent
        and first.offsets == second.offsets
        and first.block_shape == second.block_shape
    )


def _are_apart(graph: TileGraph, accesses: list[Load | Store]) -> bool:
    """Whether each element is touched once: no loop repeats an access, and no two blocks meet."""
    if any(isinstance(around, For | While) for op in accesses for around in graph.enclosing(op)):
        return False
    pairs = combinations(accesses, 2)
    return all((isinstance(a, Load) and isinstance(b, Load)) or lie_apart(a, b) for a, b in pairs)


def lie_apart(a: Load | Store, b: Load | Store) -> bool:
    """Whether two blocks of one tensor surely have no element in common.

    Along some dimension they start at places whose distance is known and as large as the first one.
    """
    for d in range(len(a.offsets)):
        try:
            distance = (sum_of(b.offsets[d]) + sum_of(a.offsets[d]).times(-1)).number
        except NotAffine:
            continue
        if distance is not None and (distance >= a.block_shape[d] or -distance >= b.block_shape[d]):
            return True
    return False
