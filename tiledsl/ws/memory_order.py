"""Barriers that keep the order of one program's accesses to one tensor.

Threads hold other elements of one access than of another one, so that an element that one thread
stores may be another one's next. Blocks that have no element in common need no order.
"""

from __future__ import annotations

from itertools import combinations

from tiledsl.ir.analysis.affine import NotAffine
from tiledsl.ir.analysis.affine import sum_of
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.pointer import Barrier


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
