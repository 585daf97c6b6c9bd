"""By how much an index or address grows from one iteration of a loop to the next."""

from __future__ import annotations

from tiledsl.dtypes import int64
from tiledsl.ir.analysis.constants import splat_source
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

_SAME = (tile.Splat, tile.Broadcast, tile.ExpandDims, Hint)


class Unknown(Exception):
    """It does not grow by the same number each time, as far as can be seen."""


def increment_of(b: Builder, loop: For, value: Value) -> Value | None:
    """The scalar (i64) by which a value grows with each iteration, made at `b` before the loop.

    None where that is unknown. Arithmetic counts as exact: indexes are taken not to wrap.
    """
    try:
        found = _Increments(b, loop).of(value)
    except Unknown:
        return None
    return b.value(ew.Constant(0, int64)) if found is None else found


class _Increments:
    """Makes the sums and products; None stands for 0."""

    def __init__(self, b: Builder, loop: For) -> None:
        self.b = b
        self.loop = loop

    @deep
    def of(self, value: Value) -> Value | None:
        if value is self.loop.iv:
            return self.wide(self.loop.step)
        op = value.defining_op
        if op is None and value.owner is self.loop.body:
            raise Unknown
        if op is None or op.parent is not self.loop.body:
            return None
        if isinstance(op, _SAME) or (isinstance(op, ew.Cast) and _is_index(op.a)):
            return self.of(op.operands[0])
        if isinstance(op, ew.Add | pointer.Add):
            return self.sum(*map(self.of, op.operands))
        if isinstance(op, ew.Mul):
            return self.product(op.a, op.b)
        if any(self.of(v) is not None for v in op.operands):
            raise Unknown
        return None

    def sum(self, one: Value | None, other: Value | None) -> Value | None:
        if one is None or other is None:
            return one or other
        return self.b.value(ew.Add(one, other))

    def product(self, one: Value, other: Value) -> Value | None:
        grows = self.of(one), self.of(other)
        if grows == (None, None):
            return None
        if None not in grows:
            raise Unknown
        factor, grown = (other, grows[0]) if grows[0] is not None else (one, grows[1])
        assert grown is not None
        return self.b.value(ew.Mul(grown, self.wide(splat_source(factor))))

    def wide(self, value: Value) -> Value:
        """A scalar from outside of the loop in 64 bits."""
        op = value.defining_op
        is_inside = value.owner is self.loop.body if op is None else op.parent is self.loop.body
        if isinstance(op, ew.Cast) and is_inside:
            return self.wide(op.a)
        if is_inside or not isinstance(value.type, ScalarType) or not value.type.dtype.is_int:
            raise Unknown
        return value if value.type.dtype == int64 else self.b.value(ew.Cast(value, int64))


def _is_index(value: Value) -> bool:
    """Whether a value is a number or a tile of numbers of 32 or 64 bits."""
    type_ = value.type
    return (
        isinstance(type_, ScalarType | TileType) and type_.dtype.is_int and type_.dtype.bits >= 32
    )
