"""What it costs to make left operands in registers: clocks of CUDA cores, and registers."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.loop_schedule import op_clocks
from tiledsl.ws.plan import Plan

READ_CLOCKS, CAST_CLOCKS = 2.7, 0.6
"""Of a warp for one element a lane: to read it from a slot, two at a time, with the bits of whole
numbers that it has; to make a float of them, in pairs.
"""
HEAVY_CLOCKS = 4.0
"""Of floats for an element, from which on the schedule of a flow is better where there is much to
multiply: silu(a) @ b, 4096 cubed, 299 us and 233 as a flow, max(a, 0) @ b 204 and 193; 1024 x 4096
x 4096 71.6 and 61.7, 47.7 and 64.9.
"""


@dataclass(frozen=True)
class MadeWork:
    """How left operands are made.

    clocks: of a warp, for one element a lane of all of a loop's dots. loaded_bytes: of an element
    in the slot. dots: that have an operand of their own. math: the clocks of floats.
    """

    clocks: float
    loaded_bytes: int
    dots: int
    math: float = 0.0

    @property
    def is_heavy(self) -> bool:
        """Whether there is more to do than to widen and scale."""
        return self.math > HEAVY_CLOCKS * self.dots

    def of_slot(self, tile: tuple[int, int, int]) -> float:
        """Clocks of the CUDA cores in an iteration, over all warpgroups."""
        return tile[0] * tile[2] / 128 * self.clocks

    def registers(self, plan: Plan, tile: tuple[int, int, int]) -> int:
        """Of a thread: what has been read of a slot, and made of it."""
        own = tile[0] * tile[2] // (128 * plan.warpgroups_per_tile)
        return own * self.loaded_bytes // 4 + own * self.dots // 2


def made_work(found: DotLoop) -> MadeWork | None:
    """The work on the left operands of a loop; None where they are loaded as they are."""
    if not found.made:
        return None
    loads = {m.load.id: m.load for m in found.made.values()}
    bytes_ = sum(tile_type(load.result, "load").dtype.bytes for load in loads.values())
    clocks, math = READ_CLOCKS * len(loads), 0.0
    for op in {op.id: op for m in found.made.values() for op in m.ops}.values():
        type_ = tile_type(op.results[0], "made")
        if isinstance(op, Cast):
            clocks += CAST_CLOCKS if type_.dtype.is_float else 0.0
        elif type_.dtype.is_float and not isinstance(op, Splat):
            math += op_clocks(op, 1) / (type_.num_elements / 128)
    return MadeWork(clocks + math, bytes_, len(found.made), math)
