"""Which rings share their memory: those of loops that follow each other.

Before a loop's first copies, the loop before has read its last slot, for which all threads waited.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.smem_ring import Ring
from tiledsl.ir.ops.smem_ring import RingSlot

ALIGN_BYTES = 1024


def ring_groups(graph: TileGraph) -> list[list[Ring]]:
    """Rings that are in use at the same time, largest group first; groups may share memory.

    What no copy writes stays zero: such rings are a group with all others.
    """
    rings: list[Ring] = graph.find(Ring)
    if any(r.is_zeroed for r in rings):
        return [rings]
    groups: list[tuple[set[int], list[Ring]]] = []
    for ring in rings:
        loops = _loops(graph, ring)
        mine = [g for g in groups if g[0] & loops or not loops]
        merged = (loops.union(*(g[0] for g in mine)), [*(r for g in mine for r in g[1]), ring])
        groups = [*(g for g in groups if g not in mine), merged]
    return sorted((found for _, found in groups), key=lambda found: -bytes_of(found))


def shared_ring_bytes(graph: TileGraph) -> int:
    """What all rings take."""
    return max((bytes_of(group) for group in ring_groups(graph)), default=0)


def bytes_of(rings: Iterable[Ring]) -> int:
    """What rings take side by side."""
    return sum(_up(ring.depth * ring.type_.bytes) for ring in rings)


def _up(num_bytes: int) -> int:
    return -(-num_bytes // ALIGN_BYTES) * ALIGN_BYTES


def _loops(graph: TileGraph, ring: Ring) -> set[int]:
    """The innermost loops that use slots of a ring."""
    slots = [u.op for u in graph.users(ring.result) if isinstance(u.op, RingSlot)]
    around = [next((o for o in graph.enclosing(s) if isinstance(o, For)), None) for s in slots]
    return {loop.id for loop in around if loop is not None}
