"""Channels between roles: an aref for each dot loop, and what one put of it loads."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.types import SmemType
from tiledsl.ws.analysis import Analysis
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.operands import OperandLoad
from tiledsl.ws.plan import Plan
from tiledsl.ws.slot_vectors import slot_vectors

TILE_SLOTS = 2
TILE_FIELDS = ("tile", "pid_0", "pid_1", "pid_2")
"""What the channel of drawn tiles carries: the index of a tile, and its place in the grid."""


@dataclass(frozen=True)
class Channel:
    """One aref and the loads that one put of it makes.

    loads: the operands of dots, then vectors.
    loop: the accumulating dot loop that it feeds, where it feeds just one.
    multicast: per payload, whether the cluster's CTAs share it. hints: L2 eviction priorities.
    """

    loads: tuple[OperandLoad, ...]
    aref: Value
    multicast: tuple[bool, ...] = ()
    hints: tuple[str, ...] = ()
    loop: DotLoop | None = None


def last_load(channel: Channel) -> Load | pointer.Load:
    """The last load of a channel in the program."""
    loads = [item.op for item in channel.loads]
    region = loads[0].parent
    assert region is not None
    return max(loads, key=region.ops.index)


def make_channels(builder: Builder, analysis: Analysis, plan: Plan) -> dict[int, Channel]:
    """One aref per accumulating dot loop, by loop id."""
    out: dict[int, Channel] = {}
    for found in analysis.loops:
        vectors = slot_vectors(found)
        loads = (*found.loads, *vectors)
        value = make_aref(builder, loads, plan.num_stages)
        shared = plan.cluster_size > 1 and plan.split_k == 1
        multicast = tuple(
            shared and plan.cluster_axis not in o.axes and o not in vectors for o in loads
        )
        hints = eviction_hints(found, plan)
        hints += ("",) * len(vectors) if hints else ()
        out[found.loop.id] = Channel(loads, value, multicast, hints, found)
    return out


def make_tile_aref(builder: Builder) -> Value:
    """The channel that carries drawn tiles."""
    payload = SmemType((len(TILE_FIELDS),), int32, 0, 0)
    return builder.value(aref.Create((payload,), TILE_SLOTS), "tiles")


def make_aref(builder: Builder, loads: tuple[OperandLoad, ...], depth: int) -> Value:
    """A channel's aref, named after what it carries."""
    with builder.located(loads[0].op.loc):
        payload = tuple(o.smem for o in loads)
        return builder.value(aref.Create(payload, depth), "_".join(o.name for o in loads))


def eviction_hints(found: DotLoop, plan: Plan) -> tuple[str, ...]:
    """An operand that one program alone reads leaves L2 first, so that the shared ones stay."""
    if not plan.unit_axes:
        return ()
    once = [o.is_read_once(plan.unit_axes) for o in found.loads]
    if not any(once) or all(once):
        return ()
    return tuple("evict_first" if one else "evict_last" for one in once)
