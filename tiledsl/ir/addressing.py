"""Pointer arithmetic: `pointer + offset` with offsets that never overflow.

Offsets are ordinary int32 arithmetic in the source, which wraps beyond 2**31 elements. Here the
expression of an offset is made again in 64 bits, from the values that it is computed from.
"""

from __future__ import annotations

from tiledsl.dtypes import int64
from tiledsl.errors import TypeMismatch
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.broadcasting import unify
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import constant
from tiledsl.ir.operands import describe
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.pointer import Add
from tiledsl.ir.pointer_values import pointer_dtype
from tiledsl.ir.pointer_values import read_hint
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

_ARITHMETIC = (ew.Add, ew.Sub, ew.Mul, ew.Neg)
_VIEWS = (tile.Splat, tile.ExpandDims, tile.Broadcast, tile.Transpose, tile.Reshape, Hint)


def pointer_arithmetic(b: Builder, symbol: str, x: Operand, y: Operand) -> Value:
    """`pointer + integer`, `integer + pointer`, `pointer - integer`, in elements."""
    left, right = pointer_dtype(x) is not None, pointer_dtype(y) is not None
    if symbol not in ("+", "-") or (symbol == "-" and right):
        raise TypeMismatch(
            f"{symbol}: pointers take + and - with an integer only, "
            f"got {describe(x)} and {describe(y)}",
            hint=_hint(x if left else y),
        )
    if left and right:
        raise TypeMismatch("+: two pointers cannot be added", hint=_hint(y))
    pointer, offset = (x, y) if left else (y, x)
    distance = _offset(b, offset, symbol, pointer)
    if symbol == "-":
        distance = b.value(ew.Neg(distance))
    base, distance = unify(b, (pointer, distance), None, symbol)
    return b.value(Add(base, distance))


def _hint(pointer: object) -> str | None:
    return read_hint(pointer) if isinstance(pointer, Value) else None


def _offset(b: Builder, x: Operand, symbol: str, pointer: object) -> Value:
    value = constant(b, x, int64) if isinstance(x, int) else x
    if isinstance(value, Value) and _is_integer(value):
        return widened(b, value)
    made = value.defining_op if isinstance(value, Value) else None
    hints = [_hint(pointer)]
    if made is not None and made.opcode == "elementwise.div":
        hints = ["`/` makes a float, `//` an integer"]
    elif isinstance(value, Value) and isinstance(value.type, TileType):
        hints.insert(0, "offsets are of an integer dtype, where loaded those of their tensor")
    hint = "; or ".join(h for h in hints if h)
    raise TypeMismatch(f"{symbol}: a pointer moves by an integer, got {describe(x)}", hint=hint)


def _is_integer(value: Value) -> bool:
    type_ = value.type
    if not isinstance(type_, ScalarType | TileType):
        return False
    return type_.dtype.is_int or type_.dtype.kind == "bool"


def widened(b: Builder, value: Value) -> Value:
    """An integer scalar or tile as int64, computed in 64 bits from the start."""
    return _Widening(b).widen(value)


class _Widening:
    """Makes int32 expressions again in 64 bits; what is no sum or product is cast."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.known: dict[Value, Value] = {}

    def widen(self, value: Value) -> Value:
        if value not in self.known:
            self.known[value] = self._make(value)
        return self.known[value]

    @deep
    def _make(self, value: Value) -> Value:
        assert isinstance(value.type, ScalarType | TileType)
        dtype, op = value.type.dtype, value.defining_op
        if dtype.name == "i32" and isinstance(op, ew.Constant):
            return constant(self.b, op.value, int64)
        if dtype.name in ("i32", "i64") and isinstance(op, (*_ARITHMETIC, *_VIEWS)):
            return self._again(op)
        if dtype.name == "i32" and isinstance(op, ew.Shl) and _constant(op.b):
            return self._again(op)
        if dtype.name == "i64" and isinstance(op, ew.Cast) and _is_int32(op.a):
            return self.widen(op.a)
        return as_value(self.b, value, int64)

    def _again(self, op: Op) -> Value:
        new = {v: self.widen(v) for v in op.operands}
        if all(new[v] is v for v in op.operands):
            return op.result
        return self.b.value(op.rebuild(new))


def _constant(value: Value) -> bool:
    op = value.defining_op
    return isinstance(op.a.defining_op if isinstance(op, tile.Splat) else op, ew.Constant)


def _is_int32(value: Value) -> bool:
    return isinstance(value.type, ScalarType | TileType) and value.type.dtype.name == "i32"
