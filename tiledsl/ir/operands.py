"""What functions of the language accept: values and Python numbers, their dtypes, and shapes.

A Python number is weak: it takes the dtype of the value it meets unless its kind is the higher one
(bool < int < float).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TypeGuard

from tiledsl.dtypes import BY_USER_NAME
from tiledsl.dtypes import FOREIGN
from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import float64
from tiledsl.dtypes import int1
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.dtypes import promote
from tiledsl.dtypes import uint32
from tiledsl.dtypes import uint64
from tiledsl.errors import TypeMismatch
from tiledsl.ir.builder import Builder
from tiledsl.ir.markers import LanguageObject
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Value
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.pointer_values import need_numbers
from tiledsl.ir.pointer_values import spelled
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType

Operand = Value | bool | int | float
ShapeLike = Sequence[int] | int

_FLOAT32_MAX = (
    3.4028235677973366e38  # halfway to the next power of two: rounds to a finite float32 below this
)


def is_number(x: object) -> TypeGuard[bool | int | float]:
    """Whether x is a Python number."""
    return isinstance(x, bool | int | float)


def is_sequence(x: object) -> TypeGuard[tuple[object, ...] | list[object]]:
    """Whether x is a tuple or a list."""
    return isinstance(x, tuple | list)


def describe(x: object) -> str:
    """How error messages call an argument: `a tl.float32 tile of shape [64, 32]`, `the int 3`."""
    if not isinstance(x, Value):
        if is_number(x) or isinstance(x, str | DType):
            kind = "dtype" if isinstance(x, DType) else type(x).__name__
            return f"the {kind} {x!r}"
        if isinstance(x, type):
            return f"the class {x.__name__}"
        if is_sequence(x) and not isinstance(x, LanguageObject):
            return f"a {type(x).__name__} of {len(x)}"
        return "None" if x is None else f"a {type(x).__name__}"
    match x.type:
        case (ScalarType() | TileType()) as type_ if type_.dtype.is_pointer:
            return spelled(type_)
        case ScalarType(dtype=dtype):
            return f"a run-time {dtype!r} scalar"
        case TileType(shape=shape, dtype=dtype):
            return f"a {dtype!r} tile of shape {list(shape)}"
        case TensorType(rank=rank, dtype=dtype):
            return f"a {dtype!r} tensor of rank {rank}"
        case other:
            return f"a {other}"


def element_type(x: Operand, what: str) -> DType:
    """The dtype of a scalar or tile, or the one that a Python number has on its own.

    Raises: TypeMismatch for anything else.
    """
    if isinstance(x, Value):
        if isinstance(x.type, ScalarType | TileType):
            return x.type.dtype
    elif is_number(x):
        return literal_dtype(x)
    raise not_an_operand(x, what)


def not_an_operand(x: object, what: str) -> TypeMismatch:
    """The error for an operand that is neither a value nor a number."""
    hint = None
    if isinstance(x, Value) and isinstance(x.type, TensorType):
        hint = f"load a block of it first: {x.name or 'a'}.load(offsets, block_shape)"
    return TypeMismatch(
        f"{what}: expected a tile, a scalar or a number, got {describe(x)}", hint=hint
    )


def literal_dtype(x: bool | int | float) -> DType:
    """The dtype of a number alone: bool i1, float f32 (f64 beyond its range).

    An int is the first of i32, u32, i64, u64 that holds it.
    """
    if isinstance(x, bool):
        return int1
    if isinstance(x, int):
        return next((d for d in (int32, uint32, int64, uint64) if _fits(x, d)), int64)
    return float64 if math.isfinite(x) and abs(x) >= _FLOAT32_MAX else float32


def _fits(x: int, dtype: DType) -> bool:
    if dtype.kind == "bool":
        return x in (0, 1)
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return low <= x < 1 << (dtype.bits - 1 if dtype.is_signed else dtype.bits)


def _kind_rank(x: DType) -> int:
    return 2 if x.is_float else 1 if x.is_int else 0


def common_dtype(xs: Sequence[Operand], what: str) -> DType:
    """The dtype in which operands meet: values promote, numbers count if their kind is higher."""
    dtypes = [element_type(x, what) for x in xs]
    if len(set(dtypes)) > 1:
        if all(d.is_pointer for d in dtypes):
            got = " and ".join(map(describe, xs))
            raise TypeMismatch(f"{what}: pointers of one dtype are expected, got {got}")
        need_numbers(what, *xs)
    strong = [d for d, x in zip(dtypes, xs, strict=True) if isinstance(x, Value)]
    if not strong:
        return functools.reduce(promote, dtypes)
    result = functools.reduce(promote, strong)
    for dtype, x in zip(dtypes, xs, strict=True):
        if not isinstance(x, Value) and _kind_rank(dtype) > _kind_rank(result):
            result = dtype
    return result


def constant(b: Builder, x: bool | int | float, dtype: DType, *, what: str = "argument") -> Value:
    """A scalar constant. Raises TypeMismatch for an int that the dtype does not hold."""
    if dtype.is_float:
        return b.value(Constant(_as_float(x, what), dtype))
    if dtype.kind == "bool":
        return b.value(Constant(bool(x), dtype))
    if isinstance(x, float) and not math.isfinite(x):
        raise TypeMismatch(f"{what}: {x!r} cannot become {dtype!r}")
    whole = int(x)
    if not _fits(whole, dtype):
        raise TypeMismatch(f"{what}: the constant {whole} does not fit {dtype!r}")
    return b.value(Constant(whole, dtype))


def _as_float(x: bool | int | float, what: str) -> float:
    try:
        return float(x)
    except OverflowError:
        raise TypeMismatch(f"{what}: an integer constant exceeds the range of floats") from None


def as_value(
    b: Builder, x: Operand, dtype: DType | None = None, *, what: str = "argument"
) -> Value:
    """X as a value, cast to `dtype` when one is given; pointers are never cast unasked."""
    found = element_type(x, what)
    if not isinstance(x, Value):
        return constant(b, x, dtype or found, what=what)
    if dtype is None or dtype == found:
        return x
    need_numbers(what, x)
    if dtype.is_pointer:
        raise TypeMismatch(
            f"{what}: expected {dtype!r}, got {describe(x)}", hint=f"cast it: x.to({dtype!r})"
        )
    return b.value(Cast(x, dtype))


def is_true(b: Builder, x: Operand, what: str) -> Value:
    """X as a bool: `x != 0`."""
    return as_value(b, x, int1, what=what)


def compile_time_int(x: object, what: str) -> int:
    """An int known at compile time; an `AutoInt` keeps its class. Raises TypeMismatch."""
    x = unwrap(x)
    if isinstance(x, int) and not isinstance(x, bool):
        return x
    hint = None
    if isinstance(x, Value):
        hint = (
            f"make {x.name!r} a tl.constexpr parameter"
            if x.name
            else "use a tl.constexpr parameter"
        )
    raise TypeMismatch(f"{what} must be an int known at compile time, got {describe(x)}", hint=hint)


def compile_time_shape(shape: object, what: str) -> tuple[int, ...]:
    """A shape known at compile time, every extent positive. Raises TypeMismatch."""
    items = shape if is_sequence(shape) else (shape,)
    out: list[int] = []
    for i, item in enumerate(items):
        name = f"{what}[{i}]" if is_sequence(shape) else what
        extent = compile_time_int(item, name)
        if extent < 1:
            raise TypeMismatch(f"{name} must be positive, got {extent}")
        out.append(extent)
    return tuple(out)


def dtype_argument(x: object, what: str) -> DType:
    """A dtype. Raises TypeMismatch."""
    x = unwrap(x)
    if isinstance(x, DType):
        if x in FOREIGN:
            raise TypeMismatch(
                f"{what}: {x!r} is a format of other hardware",
                hint="Hopper has tl.float8e4nv (e4m3) and tl.float8e5 (e5m2)",
            )
        return x
    name = getattr(x, "__name__", "") or str(x).rpartition(".")[2]
    twin = BY_USER_NAME.get(name)
    hint = f"write {twin!r}" if twin else None
    raise TypeMismatch(f"{what} must be a dtype such as tl.float32, got {describe(x)}", hint=hint)


def axis_argument(x: object, rank: int, what: str) -> int:
    """An axis in 0..rank-1; a negative one counts from the end. Raises TypeMismatch."""
    axis = compile_time_int(x, what)
    if not -rank <= axis < rank:
        raise TypeMismatch(f"{what} must be in {-rank}..{rank - 1}, got {axis}")
    return axis % rank
