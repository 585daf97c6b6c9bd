"""Lets exponentials take the hardware's approximation."""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.ops.elementwise import Exp
from tiledsl.ir.ops.elementwise import Exp2
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.target import Target


@register_pass("fast-math", consumes=Level.TILE, produces=Level.TILE)
def fast_math(graph: TileGraph, target: Target) -> PassReport:
    """Marks f32 exponentials `fast`: `ex2.approx.ftz`, 2 ulp, subnormal results flushed to zero."""
    del target
    changes = 0
    for op in list(graph.walk()):
        if isinstance(op, Exp | Exp2) and not op.fast:
            graph.replace_op(op, op.rebuild({}, fast=True))
            changes += 1
    return PassReport("fast-math", changes)
