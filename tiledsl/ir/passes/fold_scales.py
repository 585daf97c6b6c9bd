"""Moves constant factors to where they cost nothing: into the argument of an exponential.

exp2(c * (x - broadcast(m))) takes a subtraction and a multiplication for each element; as
exp2(c * x - broadcast(c * m)) it takes one fused multiply-add. A factor on scores moves through
masks and maxima in the same way, and exp becomes exp2: the loop of the textbook is then as short as
one in which the scale was folded by hand.
"""

from __future__ import annotations

import math

from tiledsl.dtypes import float32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Exp
from tiledsl.ir.ops.elementwise import Exp2
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.tile import Broadcast
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import TileType
from tiledsl.target import Target


@register_pass("fold-scales", consumes=Level.TILE, produces=Level.TILE)
def fold_scales(graph: TileGraph, target: Target) -> PassReport:
    """Rewrites fast exponentials of f32 tiles and what multiplies their arguments.

    The products are rounded in another place: relative to its size an exponential may be off by
    6e-8 times the larger of its argument's parts.
    """
    del target
    changes = 0
    for op in list(graph.walk()):
        if not op.results or not _is_f32_tile(op.results[0]):
            continue
        match op:
            case Exp(fast=True):
                changes += _fold_exponential(graph, op, op.a, math.log2(math.e))
            case Exp2(fast=True):
                found = scaled(op.a)
                if found is not None:
                    changes += _fold_exponential(graph, op, *found)
            case Select():
                changes += scale_after_mask(graph, op)
            case Reduce(kind="max" | "min"):
                changes += scale_after_maximum(graph, op)
            case _:
                pass
    return PassReport("fold-scales", changes)


def _fold_exponential(graph: TileGraph, op: Op, value: Value, factor: float) -> int:
    """The exponential as exp2(factor * value), the factor taken inward."""
    new = Exp2(_times(_before(graph, op), value, factor), fast=True, loc=op.loc)
    new.result.name = op.results[0].name
    graph.replace_op(op, new)
    return 1


def _times(b: Builder, value: Value, factor: float) -> Value:
    """value * factor, where factors inside of `value` and sums with repeated tiles take part."""
    added: list[tuple[type[Add | Sub], Value]] = []
    while True:
        if (found := scaled(value)) is not None:
            value, factor = found[0], found[1] * factor
            continue
        op = value.defining_op
        if not isinstance(op, Add | Sub) or not (shapes := _repetition(op.b)):
            break
        other = _times(b, shapes[-1].operands[0], factor)
        for step in reversed(shapes):
            other = b.value(step.rebuild({step.operands[0]: other}))
        added.append((type(op), other))
        value = op.a
    if isinstance(value.type, TileType):
        product = b.value(Mul(value, _constant(b, factor, value.type)))
    else:
        product = b.value(Mul(value, b.value(Constant(factor, float32))))
    for kind, other in reversed(added):
        product = b.value(kind(product, other))
    return product


def scale_after_mask(graph: TileGraph, op: Select) -> int:
    """select(mask, x * c, -inf) is select(mask, x, -inf) * c for a positive c."""
    found, other = scaled(op.a), constant_of(op.b)
    if found is None or found[1] <= 0 or other is None or not math.isinf(other):
        return 0
    b = _before(graph, op)
    masked = b.value(op.rebuild({op.a: found[0]}), op.result.name)
    assert isinstance(masked.type, TileType)
    graph.replace_op(op, Mul(masked, _constant(b, found[1], masked.type), loc=op.loc))
    return 1


def scale_after_maximum(graph: TileGraph, op: Reduce) -> int:
    """max(x * c) is max(x) * c for a positive c."""
    if len(op.inputs) != 1:
        return 0
    found = scaled(op.inputs[0])
    if found is None or found[1] <= 0:
        return 0
    b = _before(graph, op)
    reduced = b.value(op.rebuild({op.inputs[0]: found[0]}), op.results[0].name)
    assert isinstance(reduced.type, TileType)
    graph.replace_op(op, Mul(reduced, _constant(b, found[1], reduced.type), loc=op.loc))
    return 1


def _before(graph: TileGraph, op: Op) -> Builder:
    assert op.parent is not None
    return Builder(graph, op.parent, op.parent.ops.index(op), op.loc)


def scaled(value: Value) -> tuple[Value, float] | None:
    """(x, c) of a product x * c with a finite constant other than 0."""
    op = value.defining_op
    if not isinstance(op, Mul) or not _is_f32_tile(value):
        return None
    for x, c in ((op.a, op.b), (op.b, op.a)):
        factor = constant_of(c)
        if factor is not None and factor != 0 and math.isfinite(factor):
            return x, factor
    return None


def constant_of(value: Value) -> float | None:
    """The number that every element of a tile is, where it is known."""
    shapes = _repetition(value)
    source = shapes[-1].operands[0] if shapes else value
    op = source.defining_op
    return float(op.value) if isinstance(op, Constant) else None


def _constant(b: Builder, number: float, type_: TileType) -> Value:
    return b.value(Splat(b.value(Constant(number, float32)), type_.shape))


def _repetition(value: Value) -> list[Op]:
    """The ops that repeat a smaller tile (or a scalar) to make this one, outermost first."""
    out: list[Op] = []
    while isinstance(op := value.defining_op, Broadcast | ExpandDims | Splat):
        out.append(op)
        value = op.operands[0]
    return out if any(isinstance(o, Broadcast | Splat) for o in out) else []


def _is_f32_tile(value: Value) -> bool:
    return isinstance(value.type, TileType) and value.type.dtype == float32
