"""What is known at compile time: constants, uniform tiles, trip counts, lossless casts."""

from __future__ import annotations

from tiledsl.dtypes import DType
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

EXPONENT_BITS = {"e4m3": 4, "e5m2": 5, "f16": 5, "bf16": 8, "f32": 8, "f64": 11}


def splat_source(value: Value) -> Value:
    """The scalar that a tile repeats, or the value itself."""
    op = value.defining_op
    return op.a if isinstance(op, Splat) else value


def constant_op(value: Value) -> Constant | None:
    """The constant that a scalar is, or that a tile repeats."""
    op = splat_source(value).defining_op
    return op if isinstance(op, Constant) else None


def constant_value(value: Value) -> bool | int | float | None:
    """The number that a scalar is, or that a tile repeats, where known; integers are wrapped."""
    op = constant_op(value)
    if op is None:
        return None
    if op.dtype.is_int:
        return wrap(int(op.value), op.dtype)
    return bool(op.value) if op.dtype.kind == "bool" else float(op.value)


def wrap(number: int, dtype: DType) -> int:
    """An integer modulo the range of an integer dtype."""
    low, _ = int_limits(dtype)
    return (number - low) % (1 << dtype.bits) + low


def int_limits(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    if dtype.kind == "int":
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


def trip_count(op: Op) -> int | None:
    """Iterations of a `for` with constant bounds, else None (also for a step of 0)."""
    if not isinstance(op, For):
        return None
    bounds = [constant_value(v) for v in (op.lower, op.upper, op.step)]
    if any(b is None for b in bounds) or not bounds[2]:
        return None
    lower, upper, step = (int(b) for b in bounds if b is not None)
    return len(range(lower, upper, step))


def is_lossless(source: DType, to: DType) -> bool:
    """Whether every value of `source` survives a cast to `to` and back."""
    if source == to:
        return True
    if source.kind == "bool":
        return True
    if source.is_float:
        return (
            to.is_float
            and source.mantissa_bits <= to.mantissa_bits
            and EXPONENT_BITS[source.name] <= EXPONENT_BITS[to.name]
        )
    if to.is_float:
        return source.bits - (source.kind == "int") <= to.mantissa_bits + 1
    if to.kind == "bool":
        return False
    return source.bits < to.bits and (source.kind == "uint" or to.kind == "int")


def is_int_valued(value: Value) -> bool:
    """A scalar or tile of integers or bools."""
    return isinstance(value.type, ScalarType | TileType) and not value.type.dtype.is_float
