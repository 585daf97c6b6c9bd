"""Under which loop's last product the staging of a tile's store is waited for.

A store finds its slabs free long after the one before it has read them, but still meets the
warpgroup at a barrier to know. Where the slabs hold the whole tile, that can happen while the last
product runs, and all chunks are written and copied together, with one more barrier.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ws.flow import Flow
from tiledsl.ws.loop_schedule import LoopSchedule
from tiledsl.ws.plan import Plan
from tiledsl.ws.stores import StoreGeometry


def loop_before_store(
    graph: TileGraph,
    flow: Flow,
    schedules: Mapping[int, LoopSchedule],
    stores: Mapping[int, StoreGeometry],
    plan: Plan,
) -> For | None:
    """The last flow loop before the only staged store of a program, or None.

    The store runs at most once a tile, and the loop has a product that ends behind it.
    """
    if len(stores) != 1 or next(iter(stores.values())).num_chunks != plan.store_buffers:
        return None
    store = next(o for o in graph.walk() if o.id in stores)
    at = _top_level(graph, store)
    if at < 0 or any(f.loop.parent is not graph.body for f in flow.loops):
        return None
    places = {graph.body.ops.index(f.loop): f.loop for f in flow.loops}
    last = max(places)
    loop = places[last]
    return loop if last < at and schedules[loop.id].is_rotated else None


def _top_level(graph: TileGraph, op: Op) -> int:
    """Index of the program's op that an op is, or stands under branches of; -1 inside of a loop."""
    while op.parent is not graph.body:
        around = op.parent.parent if op.parent is not None else None
        if not isinstance(around, If):
            return -1
        op = around
    return graph.body.ops.index(op)
