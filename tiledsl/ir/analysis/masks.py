"""Masks that only fall: where one holds for an element, it holds for those before.

A bound on an index that counts up is such a mask; asking for the last of some neighbours then says
it for all of them.
"""

from __future__ import annotations

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.types import TileType


@deep
def only_falls(mask: Value, dim: int, run: int, facts: AxisFacts) -> bool:
    """Whether conditions go at most from true to false in each run along a dimension."""
    info = facts.of(mask).axes[dim]
    if info.constancy % run == 0:
        return True
    op = mask.defining_op
    match op:
        case ew.And() | ew.Or():
            return all(only_falls(v, dim, run, facts) for v in op.operands)
        case ew.Compare():
            return _is_bound(op, dim, run, facts)
        case tile.Broadcast():
            assert isinstance(op.a.type, TileType)
            return op.a.type.shape[dim] == op.shape[dim] and only_falls(op.a, dim, run, facts)
        case tile.ExpandDims():
            return dim != op.axis and only_falls(op.a, dim - (dim > op.axis), run, facts)
        case tile.Transpose():
            return only_falls(op.a, op.order[dim], run, facts)
        case _:
            return False


def _is_bound(op: ew.Compare, dim: int, run: int, facts: AxisFacts) -> bool:
    """Whether a comparison is an upper bound, equal along the run, of what counts up along it."""
    index, bound = (op.a, op.b) if op.predicate in ("lt", "le") else (op.b, op.a)
    if op.predicate not in ("lt", "le", "gt", "ge"):
        return False
    return (
        facts.of(index).axes[dim].contiguity % run == 0
        and facts.of(bound).axes[dim].constancy % run == 0
    )
