"""Functions of the language over the ops of `elementwise.py`: casts, math, choice, hints."""

from __future__ import annotations

from tiledsl.dtypes import BY_NAME
from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import int1
from tiledsl.dtypes import int64
from tiledsl.errors import TypeMismatch
from tiledsl.ir import operators
from tiledsl.ir.broadcasting import unify
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import PropagateNan
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import common_dtype
from tiledsl.ir.operands import dtype_argument
from tiledsl.ir.operands import element_type
from tiledsl.ir.operands import is_true
from tiledsl.ir.ops.elementwise import Abs
from tiledsl.ir.ops.elementwise import Bitcast
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Ceil
from tiledsl.ir.ops.elementwise import Cos
from tiledsl.ir.ops.elementwise import Erf
from tiledsl.ir.ops.elementwise import Exp
from tiledsl.ir.ops.elementwise import Exp2
from tiledsl.ir.ops.elementwise import Floor
from tiledsl.ir.ops.elementwise import Fma
from tiledsl.ir.ops.elementwise import Log
from tiledsl.ir.ops.elementwise import Log2
from tiledsl.ir.ops.elementwise import Max
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.ops.elementwise import Rsqrt
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.elementwise import Sin
from tiledsl.ir.ops.elementwise import Sqrt
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.elementwise import Tanh
from tiledsl.ir.ops.elementwise import Unary
from tiledsl.ir.ops.elementwise import check_conversion
from tiledsl.ir.pointer_values import need_numbers
from tiledsl.ir.pointer_values import pointer_dtype
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

ON_VALUES = (TileType, ScalarType)


@builtin(methods=ON_VALUES, also=("to",))
def cast(
    b: Builder,
    input: Operand,
    dtype: DType,
    fp_downcast_rounding: str | None = None,
    bitcast: bool = False,
) -> Value:
    """Converts to another dtype; with `bitcast=True` keeps the bits (equal widths only).

    Float to narrower float rounds to nearest even, float to int truncates toward zero, anything to
    int1 is `!= 0`. A pointer becomes an address, of 64 bits, and an integer a pointer.
    fp_downcast_rounding: "rtne", the default, or "rtz" toward zero.
    """
    dtype = dtype_argument(dtype, "cast(): dtype")
    rounding = unwrap(fp_downcast_rounding)
    if rounding not in (None, "rtne", "rtz"):
        raise TypeMismatch(
            f"cast(): fp_downcast_rounding must be 'rtne' or 'rtz', got {rounding!r}"
        )
    if rounding == "rtz" and isinstance(input, Value):
        source = element_type(input, "cast()")
        if source.is_float and dtype.is_float and dtype.bits < source.bits:
            return _truncated(b, input, dtype)
    if isinstance(input, Value) and unwrap(bitcast):
        return input if element_type(input, "cast()") == dtype else b.value(Bitcast(input, dtype))
    if isinstance(input, float) and dtype.is_int:
        return b.value(Cast(as_value(b, input), dtype))
    if isinstance(input, Value) and (dtype.is_pointer or pointer_dtype(input)):
        if dtype == int1:
            return b.value(Cast(b.value(Cast(input, int64)), int1))
        same = check_conversion(input, dtype, "cast()") == dtype
        return input if same else b.value(Cast(input, dtype))
    return as_value(b, input, dtype, what="cast()")


def _truncated(b: Builder, x: Value, dtype: DType) -> Value:
    """A float as a narrower one, toward zero: one step back where the nearest is farther out."""
    source = element_type(x, "cast()")
    near = b.value(Cast(x, dtype))
    is_far = operators.compare(b, ">", b.value(Abs(b.value(Cast(near, source)))), b.value(Abs(x)))
    bits = b.value(Bitcast(near, BY_NAME[f"u{dtype.bits}"]))
    back = b.value(Sub(bits, as_value(b, is_far, BY_NAME[f"u{dtype.bits}"])))
    return b.value(Bitcast(back, dtype))


# ---------------------------------------------------------------------- math
def _math(b: Builder, op: type[Unary], x: Operand, name: str) -> Value:
    """A function of floats; numbers and small integers of the source become float32 constants."""
    need_numbers(f"{name}()", x)
    value = as_value(b, float(x) if isinstance(x, int) else x, what=f"{name}()")
    dtype = element_type(value, f"{name}()")
    if not dtype.is_float:
        raise TypeMismatch(
            f"{name}(): expected a float, got {dtype!r}",
            hint=f"cast it first: {value.name or 'x'}.to(tl.float32)",
        )
    return b.value(op(value))


@builtin(methods=ON_VALUES)
def exp(b: Builder, x: Operand) -> Value:
    """e**x, elementwise."""
    return _math(b, Exp, x, "exp")


@builtin(methods=ON_VALUES)
def exp2(b: Builder, x: Operand) -> Value:
    """2**x, elementwise."""
    return _math(b, Exp2, x, "exp2")


@builtin(methods=ON_VALUES)
def log(b: Builder, x: Operand) -> Value:
    """Natural logarithm, elementwise."""
    return _math(b, Log, x, "log")


@builtin(methods=ON_VALUES)
def log2(b: Builder, x: Operand) -> Value:
    """Logarithm to base 2, elementwise."""
    return _math(b, Log2, x, "log2")


@builtin(methods=ON_VALUES)
def sqrt(b: Builder, x: Operand) -> Value:
    """Square root, elementwise."""
    return _math(b, Sqrt, x, "sqrt")


@builtin(methods=ON_VALUES)
def rsqrt(b: Builder, x: Operand) -> Value:
    """1 / sqrt(x), elementwise."""
    return _math(b, Rsqrt, x, "rsqrt")


@builtin(methods=ON_VALUES)
def sin(b: Builder, x: Operand) -> Value:
    """Sine of an angle in radians, elementwise."""
    return _math(b, Sin, x, "sin")


@builtin(methods=ON_VALUES)
def cos(b: Builder, x: Operand) -> Value:
    """Cosine of an angle in radians, elementwise."""
    return _math(b, Cos, x, "cos")


@builtin(methods=ON_VALUES)
def tanh(b: Builder, x: Operand) -> Value:
    """Hyperbolic tangent, elementwise."""
    return _math(b, Tanh, x, "tanh")


@builtin(methods=ON_VALUES)
def erf(b: Builder, x: Operand) -> Value:
    """Error function, elementwise."""
    return _math(b, Erf, x, "erf")


@builtin(methods=ON_VALUES)
def floor(b: Builder, x: Operand) -> Value:
    """Largest integer not above x, as a float."""
    return _math(b, Floor, x, "floor")


@builtin(methods=ON_VALUES)
def ceil(b: Builder, x: Operand) -> Value:
    """Smallest integer not below x, as a float."""
    return _math(b, Ceil, x, "ceil")


@builtin(methods=ON_VALUES)
def sigmoid(b: Builder, x: Operand) -> Value:
    """1 / (1 + exp(-x)), elementwise; a narrow float is computed in float32 and rounded once."""
    need_numbers("sigmoid()", x)
    value = as_value(b, float(x) if isinstance(x, int) else x, what="sigmoid()")
    dtype = element_type(value, "sigmoid()")
    wide = as_value(b, value, float32) if dtype.is_float and dtype.bits < 32 else value
    bottom = operators.binary(b, "+", _math(b, Exp, operators.unary(b, "-", wide), "sigmoid"), 1.0)
    return as_value(b, operators.binary(b, "/", 1.0, bottom), dtype)


@builtin(methods=ON_VALUES)
def abs(b: Builder, x: Operand) -> Operand:
    """|x|, elementwise; the most negative integer stays."""
    if not isinstance(x, Value):
        return x if x >= 0 else -x
    need_numbers("abs()", x)
    dtype = element_type(x, "abs()")
    return x if dtype.kind in ("bool", "uint") else b.value(Abs(x))


@builtin
def fma(b: Builder, x: Operand, y: Operand, z: Operand) -> Value:
    """X * y + z with one rounding, elementwise."""
    need_numbers("fma()", x, y, z)
    dtype = common_dtype((x, y, z), "fma()")
    if not dtype.is_float:
        raise TypeMismatch(f"fma(): expected floats, got {dtype!r}")
    left, right, addend = unify(b, (x, y, z), dtype, "fma()")
    return b.value(Fma(left, right, addend))


# ---------------------------------------------------------------------- choice
@builtin
def where(b: Builder, condition: Operand, x: Operand, y: Operand) -> Value:
    """X where the condition holds, else y, elementwise; both are always computed.

    x and y meet in one dtype as for `+`; all three broadcast together.
    """
    dtype = common_dtype((x, y), "where()")
    choice = is_true(b, condition, "where(): condition")
    values = (as_value(b, x, dtype, what="where(): x"), as_value(b, y, dtype, what="where(): y"))
    picked, left, right = unify(b, (choice, *values), None, "where()")
    return b.value(Select(picked, left, right))


def _extremum(
    b: Builder, op: type[Max | Min], x: Operand, y: Operand, nan: PropagateNan, what: str
) -> Operand:
    if not isinstance(x, Value) and not isinstance(y, Value):
        return (max if op is Max else min)(x, y)
    need_numbers(what, x, y)
    dtype = common_dtype((x, y), what)
    if dtype.kind == "bool":
        raise TypeMismatch(
            f"{what}: bools have no order", hint="use | for the larger and & for the smaller"
        )
    left, right = unify(b, (x, y), dtype, what)
    return b.value(op(left, right, propagate_nan=unwrap(nan) is PropagateNan.ALL))


@builtin
def maximum(
    b: Builder, x: Operand, y: Operand, propagate_nan: PropagateNan = PropagateNan.NONE
) -> Operand:
    """The larger operand, elementwise; with PropagateNan.ALL a NaN wins, else it loses."""
    return _extremum(b, Max, x, y, propagate_nan, "maximum()")


@builtin
def minimum(
    b: Builder, x: Operand, y: Operand, propagate_nan: PropagateNan = PropagateNan.NONE
) -> Operand:
    """The smaller operand, elementwise; with PropagateNan.ALL a NaN wins, else it loses."""
    return _extremum(b, Min, x, y, propagate_nan, "minimum()")


@builtin
def clamp(
    b: Builder,
    x: Operand,
    min: Operand,
    max: Operand,
    propagate_nan: PropagateNan = PropagateNan.NONE,
) -> Operand:
    """Limits x to [min, max], elementwise; a NaN becomes min, or stays with PropagateNan.ALL."""
    low = _extremum(b, Max, x, min, propagate_nan, "clamp()")
    return _extremum(b, Min, low, max, propagate_nan, "clamp()")


# ---------------------------------------------------------------------- hints
@builtin
def assume(b: Builder, cond: object) -> None:
    """Says that a condition holds; has no effect on results."""
    del b, cond
