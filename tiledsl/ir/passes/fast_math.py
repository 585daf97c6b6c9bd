"""Lets exponentials and divisions take fewer instructions."""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Div
from tiledsl.ir.ops.elementwise import Exp
from tiledsl.ir.ops.elementwise import Exp2
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.tile import Broadcast
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.target import Target


@register_pass("fast-math", consumes=Level.TILE, produces=Level.TILE)
def fast_math(graph: TileGraph, target: Target) -> PassReport:
    """Marks f32 exponentials `fast` and divides by a broadcast tile once per element of that tile.

    `ex2.approx.ftz`: 2 ulp, subnormal results flushed to zero. x / broadcast(y) becomes
    x * broadcast(1 / y): two roundings instead of one. A fact of the graph tells later passes.
    """
    del target
    graph.facts["fast_math"] = True
    changes = 0
    for op in list(graph.walk()):
        if isinstance(op, Exp | Exp2) and not op.fast:
            graph.replace_op(op, op.rebuild({}, fast=True))
            changes += 1
        elif isinstance(op, Div):
            changes += _divide_once(graph, op)
    return PassReport("fast-math", changes)


def _divide_once(graph: TileGraph, op: Div) -> int:
    """Replaces a division by a repeated value; returns how many were replaced."""
    shapes: list[Op] = []
    value = op.b
    while isinstance(step := value.defining_op, Broadcast | ExpandDims | Splat):
        shapes.append(step)
        value = step.a
    if not any(isinstance(s, Broadcast | Splat) for s in shapes):
        return 0
    parent = op.parent
    assert parent is not None
    b = Builder(graph, parent, parent.ops.index(op), op.loc)
    type_ = value.type
    assert isinstance(type_, ScalarType | TileType)
    one = b.value(Constant(1.0, type_.dtype))
    if isinstance(type_, TileType):
        one = b.value(Splat(one, type_.shape))
    inverse = b.value(Div(one, value))
    for step in reversed(shapes):
        inverse = b.value(step.rebuild({step.operands[0]: inverse}))
    graph.replace_op(op, Mul(op.a, inverse, loc=op.loc, names=(op.result.name,)))
    return 1
