"""The layout of tiles that lie alike, where their accesses want different ones.

What costs least together is taken: sectors and instructions of the accesses, each as its tile lies
or with an exchange between threads, and what scans exchange. A row of a scan in the registers of a
lane and the lanes of a warp takes few shuffles; one in many lanes' first registers takes a chain of
them for each register, and one in several warps shared memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.axis_plan import scan_levels
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.scan import Scan
from tiledsl.ir.types import TileType
from tiledsl.ws.access_layouts import Shape
from tiledsl.ws.access_layouts import access_cost
from tiledsl.ws.access_layouts import access_of
from tiledsl.ws.access_layouts import least_cost
from tiledsl.ws.access_layouts import loops_around
from tiledsl.ws.access_layouts import shaped_layout
from tiledsl.ws.access_layouts import touches
from tiledsl.ws.access_layouts import wanted_shape

LOOP_TRIPS = 8
"""How often a loop is taken to run when accesses are weighed."""
SHUFFLE_SECTORS = 2
"""What a shuffle costs, or an access to shared memory, in sectors moved."""


def group_shape(
    ops: Iterable[Op],
    facts: AxisFacts,
    group: set[Value],
    num_warps: int,
    *,
    may_exchange: bool = False,
) -> Shape | None:
    """The order and vector for a group of tiles, None where nothing accesses them.

    may_exchange: whether threads may exchange what an access wants otherwise. They do where it
    wants another dimension first; for longer vectors alone, what the group has is cheaper.
    """
    among = list(ops)
    accesses = [a for op in among if (a := access_of(op)) is not None and touches(a, group)]
    scans = [op for op in among if isinstance(op, Scan) and op.inputs[0] in group]
    shapes = list(dict.fromkeys(wanted_shape(a, facts) for a in accesses))
    if len(shapes) <= 1:
        return shapes[0] if shapes else None
    may_exchange &= len({shape.order for shape in shapes}) > 1

    def cost(shape: Shape) -> tuple[float, int]:
        total = 0.0
        for a in accesses:
            assert isinstance(a.pointer.type, TileType)
            layout = shaped_layout(a.pointer.type.shape, num_warps, shape)
            if may_exchange:
                each = least_cost(a, layout, facts, num_warps)
            else:
                each = access_cost(a, layout, facts)
            total += each * LOOP_TRIPS ** loops_around(a)
        for op in scans:
            type_ = op.inputs[0].type
            assert isinstance(type_, TileType)
            layout = shaped_layout(type_.shape, num_warps, shape)
            total += _scan_cost(op, layout) * LOOP_TRIPS ** loops_around(op)
        return total, -shape.vector

    return min(shapes, key=cost)


def _scan_cost(op: Scan, layout: Layout) -> float:
    """What the lanes and warps of a scan exchange, in sectors."""
    exchanges = 0
    for level in scan_levels(layout, op.axis):
        blocks = level.blocks(layout.num_regs)
        if level.unit is Unit.LANE:  # each doubling, what came before, and the total
            exchanges += blocks * (level.size.bit_length() - 1 + 2)
        elif level.unit is Unit.WARP:  # its own total, and all of them
            exchanges += blocks * (1 + level.size)
    return float(SHUFFLE_SECTORS * len(op.inputs) * exchanges)
