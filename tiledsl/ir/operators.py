"""Python's operators on values: dtype rules, broadcasting, and the op each one makes."""

from __future__ import annotations

from tiledsl.dtypes import BY_NAME
from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import float64
from tiledsl.dtypes import int64
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TypeMismatch
from tiledsl.ir.addressing import pointer_arithmetic
from tiledsl.ir.broadcasting import unify
from tiledsl.ir.broadcasting import unify_pair
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import common_dtype
from tiledsl.ir.operands import element_type
from tiledsl.ir.operands import is_true
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import And
from tiledsl.ir.ops.elementwise import Binary
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Div
from tiledsl.ir.ops.elementwise import FloorDiv
from tiledsl.ir.ops.elementwise import Mod
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Neg
from tiledsl.ir.ops.elementwise import Not
from tiledsl.ir.ops.elementwise import Or
from tiledsl.ir.ops.elementwise import Shl
from tiledsl.ir.ops.elementwise import Shr
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.elementwise import Xor
from tiledsl.ir.pointer_values import need_numbers
from tiledsl.ir.pointer_values import pointer_dtype

_BINARY: dict[str, type[Binary]] = {
    "+": Add, "-": Sub, "*": Mul, "/": Div, "//": FloorDiv, "%": Mod,
    "&": And, "|": Or, "^": Xor, "<<": Shl, ">>": Shr,
}  # fmt: skip
# int1 counts as an unsigned integer of one bit.
_ON_BOOLS: dict[str, type[Binary]] = {"+": Xor, "-": Xor, "*": And}
_PREDICATES = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def binary(b: Builder, symbol: str, x: Operand, y: Operand) -> Value:
    """`x symbol y`, at least one of them a value."""
    if symbol == "**":
        raise SyntaxNotSupported(
            "** needs both operands at compile time", hint="write x * x, or tl.exp2(y * tl.log2(x))"
        )
    if symbol == "@":
        raise SyntaxNotSupported(
            "the operator @ is not part of the language", hint="use tl.dot(a, b, acc)"
        )
    if pointer_dtype(x) or pointer_dtype(y):
        return pointer_arithmetic(b, symbol, x, y)
    dtype = _operation_dtype(symbol, x, y)
    left, right = unify(b, (x, y), dtype, symbol)
    ops = _ON_BOOLS if dtype.kind == "bool" and symbol in _ON_BOOLS else _BINARY
    return b.value(ops[symbol](left, right))


def _operation_dtype(symbol: str, x: Operand, y: Operand) -> DType:
    dx, dy = element_type(x, symbol), element_type(y, symbol)
    dtype = common_dtype((x, y), symbol)
    match symbol:
        case "/":
            return float64 if dtype == float64 else float32
        case "//" | "%":
            return _quotient_dtype(symbol, x, y, dtype)
        case "&" | "|" | "^":
            _need_integers(symbol, dx, dy)
            return dtype
        case "<<" | ">>":
            _need_integers(symbol, dx, dy)
            return _shift_dtype(symbol, x, y, dtype)
        case _:
            return dtype


def _quotient_dtype(symbol: str, x: Operand, y: Operand, dtype: DType) -> DType:
    if dtype.is_float:
        if symbol == "//":
            raise TypeMismatch(
                f"//: expected integers, got {element_type(x, symbol)!r} "
                f"and {element_type(y, symbol)!r}",
                hint="use tl.floor(x / y)",
            )
        return float64 if dtype == float64 else float32
    if isinstance(x, Value) and isinstance(y, Value):
        kinds = {element_type(x, symbol).kind, element_type(y, symbol).kind}
        if kinds == {"int", "uint"}:
            raise TypeMismatch(
                f"{symbol}: signed and unsigned integers do not mix: "
                f"{element_type(x, symbol)!r} and {element_type(y, symbol)!r}",
                hint="cast one of them with .to()",
            )
    return BY_NAME["i32"] if dtype.kind == "bool" else dtype


def _shift_dtype(symbol: str, x: Operand, y: Operand, dtype: DType) -> DType:
    if dtype.kind == "bool":
        return BY_NAME["i32"]
    left = element_type(x, symbol)
    if isinstance(x, Value) and left.is_int:
        # The left operand says whether >> is arithmetic.
        return BY_NAME[f"{'i' if left.is_signed else 'u'}{dtype.bits}"]
    return dtype


def _need_integers(symbol: str, dx: DType, dy: DType) -> None:
    for dtype in (dx, dy):
        if dtype.is_float:
            raise TypeMismatch(f"{symbol}: expected integers or bools, got {dx!r} and {dy!r}")


def compare(b: Builder, symbol: str, x: Operand, y: Operand) -> Value:
    """`x symbol y` as int1, at least one of them a value."""
    if (pointer_dtype(x) is None) != (pointer_dtype(y) is None):
        need_numbers(symbol, x, y)
    if pointer_dtype(x) != pointer_dtype(y):
        x, y = (b.value(Cast(v, int64)) for v in (x, y) if isinstance(v, Value))
    left, right = unify_pair(b, x, y, symbol)
    return b.value(Compare(_PREDICATES[symbol], left, right))


def unary(b: Builder, symbol: str, x: Value) -> Value:
    """`-x`, `+x`, `~x` or `not x`."""
    dtype = element_type(x, symbol)
    if symbol == "not":
        return b.value(Not(is_true(b, x, "not")))
    if symbol == "+":
        return x
    if symbol == "~":
        if dtype.is_float:
            raise TypeMismatch(f"~: expected integers or bools, got {dtype!r}")
        return b.value(Not(x))
    if dtype.kind == "bool":
        raise TypeMismatch("-: a bool cannot be negated", hint="write ~x for its complement")
    return b.value(Neg(x))


def logical(b: Builder, symbol: str, x: Value, y: Value) -> Value:
    """`x and y`, `x or y` on bools, elementwise; both sides are computed."""
    op: type[Op] = And if symbol == "and" else Or
    left, right = unify(b, (is_true(b, x, symbol), is_true(b, y, symbol)), None, symbol)
    return b.value(op(left, right))


def as_bool(b: Builder, x: Value, symbol: str) -> Value:
    """A scalar or tile as bools, an operand of `and`, `or`."""
    return is_true(b, x, symbol)
