"""Forms of scalar expressions, and when one is rounded to its type.

Floats under 32 bits are computed in `float` and rounded once per op, unless the op cannot leave the
type (`_EXACT`) or its value only goes to where it is rounded anyway (a map's result, a store).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.contexts.wide_products import wide_coordinate
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.dtypes import DType
from tiledsl.errors import CodegenError
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.types import ScalarType

_EXACT = frozenset(
    f"elementwise.{name}" for name in ("min", "max", "neg", "abs", "select", "floor", "ceil", "mod")
)


@dataclass(frozen=True)
class OperatorContext(Expression):
    """`a operator b`, or `operator a`; operands fit next to an operator."""

    a: str
    b: str = ""
    operator: str = ""
    variant: str = ""


@dataclass(frozen=True)
class CallContext(Expression):
    """A call: its arguments are whole expressions."""

    function: str
    arguments: str
    variant: str = ""


def dtype_of(value: Value) -> DType:
    """The dtype of a scalar.

    Raises:
        CodegenError: it is a tile, which only maps may compute with.
    """
    if not isinstance(value.type, ScalarType):
        raise CodegenError(f"elementwise op on {value.type} outside a tile.map")
    return value.type.dtype


def rounding(op: Op, e: Emission) -> str:
    """The form that narrows an expression to the result's dtype; empty when it has it already."""
    dtype = dtype_of(op.results[0])
    if dtype.is_int and dtype.bits < 32:
        return f"({memory_type(dtype)})({{}})"
    if not dtype.is_float or dtype.bits >= 32 or op.opcode in _EXACT or _is_rounded_later(op, e):
        return ""
    return f"round_to<{memory_type(dtype)}>({{}})"


def _is_rounded_later(op: Op, e: Emission) -> bool:
    """Whether every use is the yield of a map, which rounds."""
    users = e.users(op.results[0])
    return bool(users) and all(
        u.is_terminator
        and u.parent is not None
        and u.parent.parent is not None
        and u.parent.parent.opcode == "tile.map"
        for u in users
    )


def operator_of(op: Op, e: Emission, operator: str) -> OperatorContext:
    """Both operands and an operator between them."""
    a, b = op.operands
    if operator in ("+", "-"):
        second = (wide_coordinate(b, e) if operator == "+" else "") or e.factor(b)
        return OperatorContext(rounding(op, e), False, e.factor(a), second, operator)
    return OperatorContext(
        rounding(op, e),
        False,
        e.atom(a),
        e.atom(b),
        operator,
        is_product=operator in ("*", "/", "%"),
    )


def call_of(op: Op, e: Emission, function: str, *, variant: str = "") -> CallContext:
    """A call with all operands."""
    arguments = ", ".join(e.text(v) for v in op.operands)
    return CallContext(rounding(op, e), True, function, arguments, variant)
