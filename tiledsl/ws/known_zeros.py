"""What peeled first iterations know: under fast math, zero times anything is zero.

The first iteration of an online softmax fades an accumulator that is still zero. A factor that is
infinite or NaN would show, so that only fast math leaves it out; the accumulator is then the one
before the loop, and the branches of the first iteration need not write it.
"""

from __future__ import annotations

from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import element_dtype


def drop_zeros(graph: TileGraph, region: Region) -> int:
    """Replaces float products with zero, sums with them, and what both branches then agree on.

    Returns how many values were replaced.
    """
    changes = 0
    ops = list(region.walk())
    for op in ops:
        known = _without_zero(op) if isinstance(op, Mul | Add) else None
        if known is not None:
            graph.replace_uses(op.results[0], known)
            changes += 1
    for op in reversed(ops):
        if isinstance(op, If):
            changes += _same_in_both(graph, op)
    return changes


def _without_zero(op: Mul | Add) -> Value | None:
    """The operand that a float product or sum is equal to, where one is zero."""
    result = op.results[0]
    if element_dtype(result, "zero").is_int:
        return None
    for zero, other in ((op.a, op.b), (op.b, op.a)):
        known = zero if isinstance(op, Mul) else other
        if known.type == result.type and constant_value(zero) == 0:
            return known
    return None


def _same_in_both(graph: TileGraph, op: If) -> int:
    """Takes the results that both branches have from before the branch from there."""
    changes = 0
    for a, b, result in zip(yielded(op.then), yielded(op.orelse), op.results, strict=True):
        if a is b and a.type == result.type and graph.has_uses(result):
            graph.replace_uses(result, a)
            changes += 1
    return changes
