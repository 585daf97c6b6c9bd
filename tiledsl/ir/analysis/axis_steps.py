"""How far apart in memory neighbours along a dimension most often lie, as far as that is known.

Where no run of consecutive addresses is proven, the least step still says which neighbours may
share a sector: `x % W` counts up by one nearly everywhere whatever W is, and a stride that is a
multiple of 16 is not below 16.
"""

from __future__ import annotations

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.types import TileType

FAR = 1 << 40
"""Of neighbours that nothing is known of."""


def least_step(value: Value, dim: int, facts: AxisFacts) -> int:
    """At least so many elements lie between most neighbours of a tile; 0 where they are equal."""
    return _step(value, dim, facts)


@deep
def _step(value: Value, dim: int, facts: AxisFacts) -> int:  # noqa: C901 - a case per op
    if not isinstance(value.type, TileType) or value.type.shape[dim] == 1:
        return 0

    def of(v: Value, d: int = dim) -> int:
        return _step(v, d, facts)

    op = value.defining_op
    match op:
        case tile.Splat() | ew.FloorDiv() | ew.Shr() | ew.Compare():
            # Quotients of neighbours are mostly equal.
            found = 0
        case tile.Arange():
            found = 1
        case tile.Broadcast():
            found = of(op.a)
        case tile.ExpandDims():
            found = 0 if dim == op.axis else of(op.a, dim - (dim > op.axis))
        case tile.Transpose():
            found = of(op.a, op.order[dim])
        case tile.ConvertLayout() | Hint() | ew.Cast() | ew.Neg() | ew.Mod():
            found = of(op.a)
        case ew.Add() | ew.Sub() | ew.Min() | ew.Max() | pointer.Add():
            found = sum(of(v) for v in op.operands)
        case ew.Mul():
            steps = [(of(x), y) for x, y in ((op.a, op.b), (op.b, op.a))]
            found = sum(step * _size(facts, y) for step, y in steps)
        case ew.Shl():
            by = facts.of(op.b).value
            found = of(op.a) << by if by is not None else FAR
        case None:
            found = _carried(value, dim, facts)
        case _:
            found = FAR
    return min(found, FAR)


def _size(facts: AxisFacts, factor: Value) -> int:
    """At least how large a factor is, where it is not 0."""
    info = facts.of(factor)
    return max(1, info.every if info.value is None else abs(info.value))


def _carried(value: Value, dim: int, facts: AxisFacts) -> int:
    """What a loop carries steps as what it begins with."""
    loop = getattr(value.owner, "parent", None)
    if isinstance(loop, For) and value in loop.carried:
        return _step(loop.init[loop.carried.index(value)], dim, facts)
    return FAR
