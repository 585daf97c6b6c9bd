"""Where bulk stores may start and end.

A bulk store of a tensor map writes whole 16 bytes of a row: what is left of 16 bytes behind the
extent of the contiguous dimension is overwritten, and a start that is no multiple of 16 bytes is an
illegal instruction. Loads know neither limit. Ref: seen on an H200; the PTX ISA says nothing of it.
"""

from __future__ import annotations

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.specs import TMA_ALIGN_BYTES

BULK_BYTES = TMA_ALIGN_BYTES


def bulk_starts(graph: TileGraph) -> dict[int, int]:
    """By id of a store: bytes that divide where its blocks start along the contiguous dimension."""
    out: dict[int, int] = {}
    quick = AxisFacts(graph.facts.get("divisors", {}))
    thorough = axis_facts(graph.body, graph.facts.get("divisors", {}))
    for store in graph.find(Store):
        t = tensor_type(store.tensor, "store")
        if t.inner_dim is not None:
            start = store.offsets[t.inner_dim]
            every = quick.of(start).every
            if every * t.dtype.bytes % BULK_BYTES:
                every = thorough.of(start).every
            out[store.id] = every * t.dtype.bytes
    return out
