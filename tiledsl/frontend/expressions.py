"""Constants, names, operators, comparisons, tuples and conditional expressions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any
from typing import cast

from tiledsl.dtypes import DType
from tiledsl.dtypes import int1
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.branches import not_a_condition
from tiledsl.frontend.branches import pointer_condition
from tiledsl.frontend.conditional import Sides
from tiledsl.frontend.dispatch import evaluate
from tiledsl.frontend.dispatch import evaluate_all
from tiledsl.frontend.dispatch import expression
from tiledsl.frontend.dispatch import fold
from tiledsl.frontend.dispatch import not_supported
from tiledsl.frontend.scope import Frame
from tiledsl.ir import operators
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_number
from tiledsl.ir.operands import is_sequence
from tiledsl.ir.ops.elementwise_functions import where
from tiledsl.ir.pointer_values import pointer_dtype
from tiledsl.ir.pointer_values import truth
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType

# Python's own meaning, on compile-time values of any class.
_BINARY: dict[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", lambda x, y: x + y),
    ast.Sub: ("-", lambda x, y: x - y),
    ast.Mult: ("*", lambda x, y: x * y),
    ast.Div: ("/", lambda x, y: x / y),
    ast.FloorDiv: ("//", lambda x, y: x // y),
    ast.Mod: ("%", lambda x, y: x % y),
    ast.Pow: ("**", lambda x, y: x**y),
    ast.MatMult: ("@", lambda x, y: x @ y),
    ast.BitAnd: ("&", lambda x, y: x & y),
    ast.BitOr: ("|", lambda x, y: x | y),
    ast.BitXor: ("^", lambda x, y: x ^ y),
    ast.LShift: ("<<", lambda x, y: x << y),
    ast.RShift: (">>", lambda x, y: x >> y),
}
_UNARY: dict[type[ast.unaryop], tuple[str, Callable[[Any], Any]]] = {
    ast.USub: ("-", lambda x: -x),
    ast.UAdd: ("+", lambda x: +x),
    ast.Invert: ("~", lambda x: not x if isinstance(x, bool) else ~x),
    ast.Not: ("not", lambda x: not x),
}
_COMPARE: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], bool]]] = {
    ast.Eq: ("==", lambda x, y: x == y),
    ast.NotEq: ("!=", lambda x, y: x != y),
    ast.Lt: ("<", lambda x, y: x < y),
    ast.LtE: ("<=", lambda x, y: x <= y),
    ast.Gt: (">", lambda x, y: x > y),
    ast.GtE: (">=", lambda x, y: x >= y),
}
_CONVERSIONS: dict[int, Callable[[object], object]] = {
    ord("s"): str,
    ord("r"): repr,
    ord("a"): ascii,
}


@expression(ast.Constant)
def lower_constant(frame: Frame, node: ast.Constant) -> object:
    """A literal stays a Python object."""
    del frame
    if isinstance(node.value, complex | bytes):
        raise SyntaxNotSupported(
            f"{type(node.value).__name__} constants are not part of the language"
        )
    return node.value


@expression(ast.Name)
def lower_name(frame: Frame, node: ast.Name) -> object:
    """A local variable, or something captured from outside."""
    return frame.read(node.id)


@expression(ast.Tuple)
def lower_tuple(frame: Frame, node: ast.Tuple) -> tuple[object, ...]:
    """A tuple, known at compile time, of values or objects."""
    return evaluate_all(frame, node.elts)


@expression(ast.List)
def lower_list(frame: Frame, node: ast.List) -> list[object]:
    """A list is a tuple that keeps its brackets: it cannot be changed."""
    return list(evaluate_all(frame, node.elts))


@expression(ast.JoinedStr)
def lower_f_string(frame: Frame, node: ast.JoinedStr) -> str:
    """A string for messages; a run-time value in it shows as its type."""
    return "".join(str(evaluate(frame, part)) for part in node.values)


@expression(ast.FormattedValue)
def lower_formatted(frame: Frame, node: ast.FormattedValue) -> str:
    """One `{x}` of an f-string."""
    value = evaluate(frame, node.value)
    if isinstance(value, Value):
        return f"<{value.type}>"
    convert = _CONVERSIONS.get(node.conversion)
    text = value if convert is None else convert(value)
    spec = evaluate(frame, node.format_spec) if node.format_spec else ""
    return fold(format, text, spec)


# ---------------------------------------------------------------------- operators
@expression(ast.BinOp)
def lower_binary(frame: Frame, node: ast.BinOp) -> object:
    """Python's meaning on compile-time values, an elementwise op otherwise."""
    return apply_binary(
        frame, node, node.op, evaluate(frame, node.left), evaluate(frame, node.right)
    )


def apply_binary(
    frame: Frame, node: ast.AST, op: ast.operator, left: object, right: object
) -> object:
    """`left op right`, at the place of `node`."""
    symbol, python = _BINARY[type(op)]
    if not isinstance(left, Value) and not isinstance(right, Value):
        return fold(python, left, right)
    return operators.binary(frame.mark(node), symbol, cast("Operand", left), cast("Operand", right))


@expression(ast.UnaryOp)
def lower_unary(frame: Frame, node: ast.UnaryOp) -> object:
    """`-x`, `+x`, `~x`, `not x`."""
    value = evaluate(frame, node.operand)
    if isinstance(node.op, ast.Not):
        value = truth(value)
        _need_no_tensor(value, "not")
    symbol, python = _UNARY[type(node.op)]
    return (
        operators.unary(frame.mark(node), symbol, value)
        if isinstance(value, Value)
        else fold(python, value)
    )


@expression(ast.BoolOp)
def lower_bool_op(frame: Frame, node: ast.BoolOp) -> object:
    """`and`, `or`: compile-time operands short-circuit and drop out, values combine elementwise."""
    is_and = isinstance(node.op, ast.And)
    combined: Value | None = None
    last: object = is_and
    for operand in node.values:
        last = evaluate(frame, operand)
        decides = truth(last)
        _need_no_tensor(decides, "and" if is_and else "or")
        if not isinstance(decides, Value):
            if bool(decides) != is_and:
                return last
        elif combined is None:
            combined = operators.as_bool(frame.mark(node), decides, "and" if is_and else "or")
        else:
            combined = operators.logical(
                frame.mark(node), "and" if is_and else "or", combined, decides
            )
    return last if combined is None else combined


def _need_no_tensor(value: object, word: str) -> None:
    if isinstance(value, Value) and isinstance(value.type, TensorType):
        raise not_a_condition(value, word)


@expression(ast.Compare)
def lower_compare(frame: Frame, node: ast.Compare) -> object:
    """One comparison, or a chain, which is the `and` of its pairs."""
    left = evaluate(frame, node.left)
    combined: Value | None = None
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = evaluate(frame, comparator)
        result = _compare(frame, node, op, left, right)
        if not isinstance(result, Value):
            if not result:
                return False
        elif combined is None:
            combined = result
        else:
            combined = operators.logical(frame.mark(node), "and", combined, result)
        left = right
    return True if combined is None else combined


def _compare(frame: Frame, node: ast.Compare, op: ast.cmpop, left: object, right: object) -> object:
    if isinstance(op, ast.Is | ast.IsNot):
        return _is_same(left, right) == isinstance(op, ast.Is)
    if isinstance(op, ast.In | ast.NotIn):
        return _contains(left, right) == isinstance(op, ast.In)
    symbol, python = _COMPARE[type(op)]
    values = [isinstance(x, Value) for x in (left, right)]
    if not any(values):
        return fold(python, left, right)
    other = right if values[0] else left
    if symbol in ("==", "!=") and not isinstance(other, Value) and not is_number(other):
        return symbol == "!="  # a run-time value equals no string, dtype or None
    return operators.compare(
        frame.mark(node), symbol, cast("Operand", left), cast("Operand", right)
    )


def _is_same(left: object, right: object) -> bool:
    if left is right:
        return True
    plain = (bool, int, float, str, DType)
    return isinstance(left, plain) and type(left) is type(right) and left == right


def _contains(item: object, container: object) -> bool:
    if not isinstance(item, Value):
        if is_sequence(container):
            return item in container
        if isinstance(container, str) and isinstance(item, str):
            return item in container
    raise TypeMismatch(
        f"`in` needs compile-time operands, got {describe(item)} in {describe(container)}"
    )


@expression(ast.IfExp)
def lower_conditional(frame: Frame, node: ast.IfExp) -> object:
    """`a if condition else b`: one side when the condition is known.

    Otherwise a select, or, where a side reads or writes memory, a branch: only one side runs.
    """
    condition = truth(evaluate(frame, node.test))
    if not isinstance(condition, Value):
        return evaluate(frame, node.body if condition else node.orelse)
    if not isinstance(condition.type, ScalarType):
        raise not_a_condition(condition, "if ... else")
    if pointer_dtype(condition) is not None:
        raise pointer_condition(condition, "if ... else").at(frame.loc(node.test))
    sides = Sides(frame, node)
    if sides.are_pure:
        sides.release()
        return _select(frame, node, condition, *sides.values)
    return sides.choose(as_value(frame.mark(node), condition, int1))


def _select(frame: Frame, node: ast.IfExp, condition: Value, x: object, y: object) -> object:
    if is_sequence(x) and is_sequence(y) and len(x) == len(y):
        pairs = zip(x, y, strict=True)
        return tuple(_select(frame, node, condition, a, b) for a, b in pairs)
    if x is y:
        return x
    for value in (x, y):
        if not isinstance(value, Value) and not is_number(value):
            raise TypeMismatch(
                "both sides of `if ... else` must be values when its condition is one, "
                f"got {describe(value)}"
            )
    return where.fn(frame.mark(node), condition, cast("Operand", x), cast("Operand", y))


@expression(ast.Starred)
def lower_starred(frame: Frame, node: ast.Starred) -> object:
    """Stars stand in tuples and calls, which handle them."""
    raise not_supported(node)
