"""Whether copies that start late are better, since one slot less lets more CTAs share an SM.

Copies that start at the end of an iteration go to the slot that it has read: with one slot less
they come as many iterations ahead, for one barrier more in each. Where tiles are so small that the
CTAs of an SM have few bytes on their way, more of them are worth that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.types import TileType
from tiledsl.ws.copy_loop import RingLoad
from tiledsl.ws.fetch_loop import FLIGHT_BYTES
from tiledsl.ws.likely_trips import FACT
from tiledsl.ws.likely_trips import Launched
from tiledsl.ws.ring_loads import RingLimits


def late_copies_pay(graph: TileGraph, loads: Sequence[RingLoad], limits: RingLimits) -> bool:
    """Whether a launch has programs for the CTAs that one slot less makes room for.

    Shared memory counts alone: programs of small tiles have few registers.
    """
    launched = graph.facts.get(FACT)
    if not isinstance(launched, Launched) or limits.depth <= 2:
        return False
    slot_bytes = sum(c.memory.bytes for c in loads)
    target = limits.target
    most = min(target.max_blocks_per_sm, target.threads_per_sm // (32 * limits.num_warps))

    def resident(slots: int) -> int:
        size = slots * slot_bytes + target.smem_reserved_bytes
        return min(most, target.smem_per_sm_bytes // size)

    now = resident(limits.depth)
    has_programs = prod(launched.grid) > now * target.num_sms
    in_flight = now * (limits.depth - 1) * sum(map(_tile_bytes, loads))
    return has_programs and resident(limits.depth - 1) > now and in_flight < FLIGHT_BYTES


def _tile_bytes(c: RingLoad) -> int:
    """Bytes that are copied to a slot, which may be larger."""
    type_ = c.load.result.type
    assert isinstance(type_, TileType)
    return type_.num_elements * type_.dtype.bits // 8
