"""Functions of one scalar, and of the library, as C++ expressions."""

from __future__ import annotations

from tiledsl.codegen.contexts.expressions import CallContext
from tiledsl.codegen.contexts.expressions import OperatorContext
from tiledsl.codegen.contexts.expressions import call_of
from tiledsl.codegen.contexts.expressions import dtype_of
from tiledsl.codegen.contexts.expressions import rounding
from tiledsl.codegen.cpp import literal
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.codegen.registry import emits
from tiledsl.dtypes import float32
from tiledsl.ir.ops import elementwise as ops
from tiledsl.ir.ops.elementwise_library import Function

_LOG2_E = 1.4426950408889634


@emits("elementwise.neg")
def neg(op: ops.Neg, e: Emission) -> Expression:
    """`-a`."""
    return OperatorContext(rounding(op, e), False, e.atom(op.a), operator="-")


@emits("elementwise.not")
def not_(op: ops.Not, e: Emission) -> Expression:
    """`!a` on bools, `~a` on integers."""
    is_bool = dtype_of(op.result).kind == "bool"
    return OperatorContext(rounding(op, e), True, e.atom(op.a), operator="!" if is_bool else "~")


@emits("elementwise.abs")
def abs_(op: ops.Abs, e: Emission) -> Expression:
    """An unsigned integer is its own."""
    if dtype_of(op.result).kind == "uint":
        return OperatorContext("", True, e.atom(op.a), variant="same")
    return call_of(op, e, "tdsl::abs")


@emits("elementwise.exp", "elementwise.exp2")
def exponential(op: ops.Exp | ops.Exp2, e: Emission) -> Expression:
    """fast: one ex2.approx; e**a after a multiplication by log2(e)."""
    dtype = dtype_of(op.result)
    if isinstance(op, ops.Exp) and op.nonpositive and not op.fast and dtype == float32:
        return call_of(op, e, "exp_nonpositive")
    if not op.fast or dtype.bits == 64:
        return call_of(op, e, f"tdsl::{op.opcode.partition('.')[2]}")
    wrap = rounding(op, e)
    if isinstance(op, ops.Exp2):
        return CallContext(wrap, True, "exp2_approx", e.text(op.a))
    return CallContext(wrap, True, "exp2_approx", f"{e.atom(op.a)} * {literal(_LOG2_E, float32)}")


@emits(
    *(
        f"elementwise.{name}"
        for name in ("log", "log2", "sqrt", "rsqrt", "sin", "cos", "floor", "ceil")
    )
)
def function(op: ops.Unary, e: Emission) -> Expression:
    """The device function of the op's name."""
    return call_of(op, e, f"tdsl::{op.opcode.partition('.')[2]}")


@emits("elementwise.tanh", "elementwise.erf")
def sigmoid(op: ops.Tanh | ops.Erf, e: Emission) -> Expression:
    """absolute: the function of another name, which takes the factor on the argument."""
    name = op.opcode.partition(".")[2]
    if not op.absolute:
        return call_of(op, e, f"tdsl::{name}")
    arguments = f"{e.text(op.a)}, {literal(op.scale, float32)}"
    return CallContext(rounding(op, e), True, f"{name}_absolute", arguments)


@emits("elementwise.fma")
def fma(op: ops.Fma, e: Emission) -> Expression:
    """One rounding."""
    return call_of(op, e, "tdsl::fma")


@emits("elementwise.function")
def library_function(op: Function, e: Emission) -> Expression:
    """The device function of the library's row."""
    return call_of(op, e, op.signature.device)
