"""Casts and bitcasts of scalars as C++ expressions."""

from __future__ import annotations

from tiledsl.codegen.contexts.expressions import CallContext
from tiledsl.codegen.contexts.expressions import OperatorContext
from tiledsl.codegen.contexts.expressions import dtype_of
from tiledsl.codegen.contexts.expressions import rounding
from tiledsl.codegen.contexts.widened import is_small_whole
from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.cpp import literal
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.cpp import scalar_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.codegen.registry import emits
from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.ir.ops import elementwise as ops


@emits("elementwise.cast")
def cast(op: ops.Cast, e: Emission) -> Expression:
    """Between dtypes; small floats are floats that hold rounded values."""
    source, target = dtype_of(op.a), op.dtype
    if target.kind == "bool":
        return OperatorContext(
            "", False, e.atom(op.a), literal(0, _computed(source)), "!=", "compare"
        )
    if target.is_int:
        return _cast_to_int(op, e, source)
    narrows = not (source.is_float and _contains(target, source)) and source.kind != "bool"
    wrap = rounding(op, e) if narrows and not (source.is_int and is_small_whole(op.a)) else ""
    if scalar_type(source) == scalar_type(target):
        return OperatorContext(wrap, True, e.atom(op.a), variant="same")
    if source.is_int and source.bits < 32 and scalar_type(target) == "float":
        return CallContext(wrap, True, "small_to_float", e.text(op.a), "call")
    return OperatorContext(wrap, True, e.atom(op.a), operator=scalar_type(target))


def _cast_to_int(op: ops.Cast, e: Emission, source: DType) -> Expression:
    if source.is_float:
        return CallContext("", True, f"float_to_int<{memory_type(op.dtype)}>", e.text(op.a), "call")
    if source == op.dtype:
        return OperatorContext("", True, e.atom(op.a), variant="same")
    return OperatorContext("", True, e.atom(op.a), operator=memory_type(op.dtype))


def _computed(dtype: DType) -> DType:
    """The dtype of the variable that holds a scalar."""
    return float32 if dtype.is_float and dtype.bits < 32 else dtype


def _contains(wide: DType, narrow: DType) -> bool:
    """Whether every value of one float dtype is one of another."""
    if wide == narrow or wide.bits >= 32 > narrow.bits:
        return True
    return (wide.name == "f16" and narrow.is_fp8) or (wide.name == "bf16" and narrow.is_fp8)


@emits("elementwise.bitcast")
def bitcast(op: ops.Bitcast, e: Emission) -> Expression | None:
    """The bits as they lie in memory, read as another type."""
    source, target = dtype_of(op.a), op.dtype
    text = e.text(op.a)
    if raw := e.raw.get(op.a):
        text = raw
    elif is_packed(source) and source.is_float:
        text = f"from_float<{memory_type(source)}>({text})"
    elif is_packed(source):  # elements of packed tiles are read as i32
        text = f"({memory_type(source)}){e.atom(op.a)}"
    function = f"bits_as<{memory_type(target)}>"
    if not is_packed(target) or not target.is_float:
        return CallContext("", True, function, text)
    if e.is_stable(op.a):
        e.raw[op.result] = f"{function}({text})"
        if len(e.users(op.result)) == 1 and not e.variables.is_mutable(
            op.result
        ):  # which takes the bits or the number
            e.bind(op.result, f"to_float({function}({text}))")
            return None
    return CallContext("to_float({})", True, function, text)
