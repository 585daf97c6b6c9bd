"""Trees of selects that number the intervals of a value, as quantisers have them.

`where(x > 0.4, where(x > 0.7, 3, 2), where(x > 0.1, 1, 0))` counts the limits that x is over.
Comparisons and selects have half the rate of sums: a comparison that gives 1.0 or 0.0 and a sum of
these take less time than a comparison and a select for each limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.elementwise_steps import MOST_LIMITS
from tiledsl.ir.ops.elementwise_steps import CountSteps
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import TileType
from tiledsl.target import Target

LEAST_LIMITS = 4
"""Fewer are as quickly compared and selected."""

_TURNED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge"}


@dataclass(frozen=True)
class Steps:
    """Leaves of a tree in the order of the intervals that `limits` part, of a value `x`.

    Where no comparison holds, as for a NaN, the leaf is the last one of those that ask whether x is
    below, else the first.
    """

    x: Value
    predicate: str
    limits: tuple[float, ...]
    leaves: tuple[int, ...]


@register_pass("count-steps", consumes=Level.TILE, produces=Level.TILE)
def count_steps(graph: TileGraph, target: Target) -> PassReport:
    """Replaces trees whose leaves rise or fall by one from interval to interval."""
    del target
    changes = 0
    for op in list(graph.walk()):
        if not isinstance(op, ew.Select) or op.parent is None or _is_inner(graph, op):
            continue
        found = _steps(graph, op)
        if found is None or not LEAST_LIMITS <= len(found.limits) <= MOST_LIMITS:
            continue
        steps = {b - a for a, b in pairwise(found.leaves)}
        rises = all(a < b for a, b in pairwise(found.limits))
        if rises and steps in ({1}, {-1}):
            _replace(graph, op, found)
            changes += 1
    return PassReport("count-steps", changes)


def _is_inner(graph: TileGraph, op: ew.Select) -> bool:
    """Whether a select is a branch of another one alone."""
    uses = graph.users(op.result)
    return len(uses) == 1 and isinstance(uses[0].op, ew.Select) and uses[0].index > 0


def _steps(graph: TileGraph, op: ew.Select, depth: int = 0) -> Steps | None:
    """What a tree of selects between constants comes to; None for any other."""
    found = _test(op.condition)
    if found is None or ew.element_dtype(op.result, "select") != int32:
        return None
    if depth and (depth > MOST_LIMITS or len(graph.users(op.result)) != 1):
        return None
    x, predicate, limit = found
    order = (op.b, op.a) if predicate in ("gt", "ge") else (op.a, op.b)
    low, high = (_branch(graph, v, x, predicate, depth + 1) for v in order)
    if low is None or high is None:
        return None
    limits = (*low.limits, limit, *high.limits)
    return Steps(x, predicate, limits, (*low.leaves, *high.leaves))


def _test(condition: Value) -> tuple[Value, str, float] | None:
    """(x, predicate, limit) of a comparison of f32 with a constant, on either side."""
    test = condition.defining_op
    if not isinstance(test, ew.Compare) or test.predicate not in _TURNED:
        return None
    sides = ((test.a, test.b, test.predicate), (test.b, test.a, _TURNED[test.predicate]))
    for x, limit, predicate in sides:
        number = constant_value(limit)
        if isinstance(number, float) and ew.element_dtype(x, "compare") == float32:
            return x, predicate, float(np.float32(number))
    return None


def _branch(graph: TileGraph, value: Value, x: Value, predicate: str, depth: int) -> Steps | None:
    """A leaf, or a tree of the same comparisons."""
    number = constant_value(value)
    if isinstance(number, int) and not isinstance(number, bool):
        return Steps(x, predicate, (), (number,))
    op = value.defining_op
    found = _steps(graph, op, depth) if isinstance(op, ew.Select) else None
    same = found is not None and found.x is x and found.predicate == predicate
    return found if same else None


def _replace(graph: TileGraph, op: ew.Select, found: Steps) -> None:
    """A leaf and the number of limits beyond it."""
    assert op.parent is not None
    b = Builder(graph, op.parent, op.parent.ops.index(op), op.loc)
    count = b.value(CountSteps(found.x, found.limits, found.predicate))
    over = found.predicate in ("gt", "ge")
    start = found.leaves[0] if over else found.leaves[-1]
    rises = found.leaves[1] > found.leaves[0]
    base = b.value(ew.Constant(start, int32))
    if isinstance(op.result.type, TileType):
        base = b.value(tile.Splat(base, op.result.type.shape))
    made = ew.Add(base, count) if rises == over else ew.Sub(base, count)
    graph.replace_op(op, made)
