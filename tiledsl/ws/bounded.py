"""Loaded operands of dots whose last rows count as zeros: `where(row < end, loaded, 0)`.

Zero times NaN is NaN, so that rows behind the end of a sequence have to be cleared, not only
weighted by zero. The consumers do that in the slot, where rows are behind the end at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.analysis.affine import Dims
from tiledsl.ir.analysis.affine import NotAffine
from tiledsl.ir.analysis.affine import Product
from tiledsl.ir.analysis.affine import Sum
from tiledsl.ir.analysis.affine import inner_dims
from tiledsl.ir.analysis.affine import sum_of
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import FloorDiv
from tiledsl.ir.ops.elementwise import Max
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.tile import Broadcast
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import TileType
from tiledsl.ws.dot_loop import is_zero_tile
from tiledsl.ws.operands import constant_value
from tiledsl.ws.operands import operand_load


@dataclass(frozen=True)
class Bound:
    """Rows of a loaded tile from `limit` on are zero.

    select: the op that says so; load: of the tile. limit: a sum of scalars. dim: of the tile.
    only_last: no trip but the last one of the loop has such rows.
    """

    select: Select
    load: Load
    limit: Sum
    dim: int
    only_last: bool

    @property
    def scalars(self) -> tuple[Value, ...]:
        """The scalars of the limit."""
        return tuple(dict.fromkeys(v for p in self.limit.products for v in p.scalars))


def bound_of(value: Value, loop: For) -> Bound | None:
    """The bound behind a dot operand of a loop, through transposes; None where there is none."""
    op = value.defining_op
    while isinstance(op, Transpose):
        op = op.a.defining_op
    if not isinstance(op, Select) or not is_zero_tile(op.b) or op.parent is not loop.body:
        return None
    found = operand_load(op.a)
    if found is None or found[0].parent is not loop.body:
        return None
    kept = _kept_rows(op.condition)
    if kept is None:
        return None
    limit, dim = kept
    # A limit that falls with the loop: where a trip has no rows behind it, none before has.
    steps = [p.number for p in limit.products if loop.iv in p.scalars]
    if any(n > 0 for n in steps) or any(
        p.scalars != (loop.iv,) for p in limit.products if loop.iv in p.scalars
    ):
        return None
    type_ = op.result.type
    assert isinstance(type_, TileType)
    step = constant_value(loop.step)
    is_tight = steps == [-1] and isinstance(step, int) and type_.shape[dim] <= step
    rest = limit + Sum.of([Product(1, (loop.iv,))])
    only_last = is_tight and _is_reached(loop.upper, rest, loop.lower)
    return Bound(op, found[0], limit, 1 - dim if found[1] else dim, only_last)


@deep
def _is_reached(upper: Value, bound: Sum, lower: Value) -> bool:
    """Whether a loop surely ends at a bound or before, if it has a trip at all."""
    op = upper.defining_op
    number = constant_value(upper)
    if number is not None and number <= 0 and _is_positive(lower):
        return True
    try:
        if (sum_of(upper) + bound.times(-1)).number in (0, *range(-64, 0)):
            return True
    except NotAffine:
        return False
    match op:
        case Min():
            return any(_is_reached(v, bound, lower) for v in (op.a, op.b))
        case Select():
            return all(_is_reached(v, bound, lower) for v in (op.a, op.b))
        case _:
            return False


@deep
def _is_positive(value: Value) -> bool:
    """Whether a scalar is surely not below zero."""
    number = constant_value(value)
    if number is not None:
        return number >= 0
    match value.defining_op:
        case Max() as op:
            return _is_positive(op.a) or _is_positive(op.b)
        case FloorDiv() | Mul() as op:
            return _is_positive(op.a) and _is_positive(op.b)
        case _:
            return False


def _kept_rows(condition: Value) -> tuple[Sum, int] | None:
    """(limit, dim) of a condition that holds for coordinates below a limit along one dimension."""
    dims: Dims = (0, 1)
    op = condition.defining_op
    while isinstance(op, ExpandDims | Broadcast | Transpose):
        dims, op = inner_dims(op, dims), op.a.defining_op
    if not isinstance(op, Compare):
        return None
    sides = {
        "lt": (op.a, op.b, 0),
        "le": (op.a, op.b, 1),
        "gt": (op.b, op.a, 0),
        "ge": (op.b, op.a, 1),
    }
    if op.predicate not in sides:
        return None
    low, high, more = sides[op.predicate]
    try:
        gap = sum_of(high, dims) + sum_of(low, dims).times(-1)
    except NotAffine:
        return None
    along = [p for p in gap.products if p.dim is not None]
    if len(along) != 1 or along[0].number != -1 or along[0].scalars or along[0].modulus is not None:
        return None
    dim = along[0].dim
    assert dim is not None
    return gap.uniform + Sum.number_of(more), dim
