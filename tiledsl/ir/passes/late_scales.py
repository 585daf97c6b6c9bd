"""Factors of what a maximum is taken of, and what it is then taken off, go behind the maximum.

max(c * x) is c * max(x) for a positive c, to the last bit, as rounding keeps order. What is left of
the product is c * x - broadcast(m), a fused multiply-add instead of a multiplication for all that
read it and a subtraction.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.passes.fold_scales import constant_of
from tiledsl.ir.passes.fold_scales import scale_after_mask
from tiledsl.ir.passes.fold_scales import scale_after_maximum
from tiledsl.ir.passes.fold_scales import scaled
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import TileType
from tiledsl.target import Target


@register_pass("late-scales", consumes=Level.TILE, produces=Level.TILE)
def late_scales(graph: TileGraph, target: Target) -> PassReport:
    """Rewrites maxima of f32 products that nothing but differences reads as well.

    Not of one row, whose program is short, and whose exponentials may be merged as they are.
    """
    del target
    changes = 0
    for op in list(graph.walk()):
        if not isinstance(op, Reduce) or op.kind != "max" or len(op.inputs) != 1:
            continue
        if not isinstance(op.results[0].type, TileType):
            continue  # one row
        value = op.inputs[0]
        if not _only_subtracted(graph, value, op):
            continue
        masked = value.defining_op
        if isinstance(masked, Select) and _is_masked_product(graph, masked):
            changes += scale_after_mask(graph, masked)
        changes += scale_after_maximum(graph, op)
    return PassReport("late-scales", changes)


def _only_subtracted(graph: TileGraph, value: Value, maximum: Op) -> bool:
    """Whether something is taken off a value, and else only the maximum reads it."""
    users = [u.op for u in graph.users(value) if u.op is not maximum]
    return bool(users) and all(isinstance(u, Sub) and u.a is value for u in users)


def _is_masked_product(graph: TileGraph, op: Select) -> bool:
    """Whether a mask chooses between a product that nothing else reads and -inf."""
    return (
        isinstance(op.a.defining_op, Mul)
        and scaled(op.a) is not None
        and len(graph.users(op.a)) == 1
        and constant_of(op.b) == -float("inf")
    )
