"""Reductions in the loops of a cluster: partial results arrive on mbarriers.

A barrier of the cluster waits for everything that its threads have under way, the stores of the
iteration before among it. An mbarrier waits for the partial results alone.
"""

from __future__ import annotations

from tiledsl.ir.axis_plan import AxisPlan
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops.reduce import MergeExponentials
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.reduce import exchanged_bytes
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import Setup
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ws.budget import SmemPlan

DEPTH = 2
"""Exchanges that alternate: whoever is at the next but one has heard from all in between."""
MOST_VALUES = 4
"""Partial results of a warp that are stored one by one."""


def exchange_on_mbarriers(graph: TileGraph, role: Role, plan: SmemPlan, top: Builder) -> None:
    """Gives the reductions in loops of a role two mbarriers, where lanes hold one value each.

    top: where the mbarriers are made. Nothing is done with small elements and absent ones.
    """
    found = [op for op in role.body.walk() if _suits(graph, op)]
    if not found:
        return
    loc = found[0].loc
    at = plan.take("mbarriers of reductions", 8 * DEPTH, align=8)
    array = top.value(barrier.MbarrierArray(DEPTH, 1, at, loc=loc), "arrived")
    cursor = Builder(graph, role.body, 0, loc).value(barrier.CursorCreate(DEPTH), "turn")
    for op in found:
        new = op.rebuild({}, op.regions, barriers=array, cursor=cursor)
        for old, value in zip(op.results, new.results, strict=True):
            value.type = old.type
        graph.supersede(op, new, dict(zip(op.results, new.results, strict=True)))
    setup = top.add(Setup(loc=loc))
    with top.at(setup.body):
        top.add(barrier.MbarrierInit(array, 1))
        top.add(barrier.InitFence())


def _suits(graph: TileGraph, op: Op) -> bool:
    """Whether an exchange runs again and again, of scalars that all lanes of a warp hold."""
    if not isinstance(op, Reduce) or op.within_warps:
        return isinstance(op, MergeExponentials)
    type_ = tile_type(op.inputs[0], "reduce")
    assert type_.layout is not None
    axes = AxisPlan(type_.layout, op.axes)
    is_padded = any(type_.layout.padded_shape[a] > type_.shape[a] for a in op.axes)
    return (
        any(around.is_loop for around in graph.enclosing(op))
        and axes.needs_warps
        and axes.num_lanes == 1
        and axes.result.num_regs <= MOST_VALUES
        and all(exchanged_bytes(d) in (4, 8) for d in op.dtypes)
        and (bool(op.kind) or not is_padded)
    )
