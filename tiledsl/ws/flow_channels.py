"""The channels of flow loops, and of what is loaded before them."""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Value
from tiledsl.ws.channels import Channel
from tiledsl.ws.channels import make_aref
from tiledsl.ws.flow import Flow
from tiledsl.ws.plan import Plan


def make_flow_channels(
    builder: Builder, flow: Flow, plan: Plan
) -> tuple[dict[int, Channel], dict[int, tuple[Value, ...]], dict[int, Value]]:
    """Arefs: one per load group (siblings share), one per outer load.

    Returns channels by a key of their own (for the producer), arefs per loop, arefs per outer load.
    """
    channels: dict[int, Channel] = {}
    outer: dict[int, Value] = {}
    for item in flow.outer:
        outer[item.op.id] = make_aref(builder, (item,), plan.outer_stages)
        channels[item.op.id] = Channel((item,), outer[item.op.id], (False,))
    shared: dict[tuple[object, ...], Value] = {}
    arefs: dict[int, tuple[Value, ...]] = {}
    for f in flow.loops:
        made: list[Value] = []
        for group in f.groups:
            key = flow.channel_key(group)
            if key not in shared:
                shared[key] = make_aref(builder, group, plan.num_stages)
            channels[group[0].op.id] = Channel(group, shared[key], (False,) * len(group))
            made.append(shared[key])
        arefs[f.loop.id] = tuple(made)
    return channels, arefs, outer
