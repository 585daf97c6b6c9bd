"""Masks the smaller operand of a difference instead of the difference.

`where(c, x - mean, 0)` asks for every element. Where x was loaded as 0 wherever c does not hold, it
is x - where(c, mean, 0): neighbours that share a mean and a comparison share the select too. Fewer
than a vector of them are not worth it: such rows lie at odd addresses, and each element is asked.
"""

from __future__ import annotations

import math

from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import is_lossless
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.pointer import Load
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.target import Target

VECTOR_BYTES = 16


@register_pass("narrow-selects", consumes=Level.TILE, produces=Level.TILE)
def narrow_selects(graph: TileGraph, target: Target) -> PassReport:
    """Rewrites selects between a sum or difference with a spread operand, and 0."""
    del target
    changes = 0
    facts = axis_facts(graph.body, graph.facts.get("divisors", {}))
    for op in list(graph.walk()):
        if isinstance(op, ew.Select) and not op.masks and _is_zero(op.b):
            axes = facts.of(op.condition).axes
            changes += bool(axes) and _narrow(graph, op, axes[-1].constancy)
    return PassReport("narrow-selects", changes)


def _narrow(graph: TileGraph, select: ew.Select, constancy: int) -> bool:
    """constancy: neighbours of which the condition says the same."""
    whole = select.a.defining_op
    if not isinstance(whole, ew.Add | ew.Sub) or len(graph.users(whole.result)) != 1:
        return False
    is_spread = isinstance(whole.b.defining_op, tile.Broadcast | tile.Splat)
    load = _zero_outside(whole.a, select.condition) if is_spread else None
    if load is None or constancy * ew.element_dtype(load, "load").bytes < VECTOR_BYTES:
        return False
    parent = select.parent
    assert parent is not None
    b = Builder(graph, parent, parent.ops.index(select), select.loc)
    few = b.value(ew.Select(select.condition, whole.b, select.b), whole.b.name)
    graph.replace_op(select, type(whole)(whole.a, few, loc=whole.loc))
    graph.erase(whole)
    return True


def _is_zero(value: Value) -> bool:
    """Whether every element is the float 0, and not -0."""
    found = constant_value(value)
    return isinstance(found, float) and not found and math.copysign(1, found) > 0


def _zero_outside(value: Value, condition: Value) -> Value | None:
    """The loaded tile behind a value that is 0 wherever a condition does not hold."""
    op = value.defining_op
    while isinstance(op, ew.Cast) and is_lossless(ew.element_dtype(op.a, "cast"), op.dtype):
        op = op.a.defining_op
    if not isinstance(op, Load) or op.mask is None:
        return None
    if op.other is not None and not _is_zero(op.other):
        return None
    return op.result if _conjuncts(condition) <= _conjuncts(op.mask) else None


def _conjuncts(mask: Value) -> set[Value]:
    """What all has to hold, behind broadcasts to the mask's shape."""
    found, seen = set[Value](), set[Value]()
    todo = [mask]
    while todo:
        if (value := todo.pop()) in seen:
            continue
        seen.add(value)
        op = value.defining_op
        if isinstance(op, ew.And):
            todo += (op.a, op.b)
        elif isinstance(op, tile.Broadcast):
            todo.append(op.a)
        else:
            found.add(value)
    return found
