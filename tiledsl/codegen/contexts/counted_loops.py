"""Counted loops; those that may count past the end of their integers leave before they do."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace

from tiledsl.codegen.contexts import role
from tiledsl.codegen.contexts.control import CopiesContext
from tiledsl.codegen.contexts.control import copies
from tiledsl.codegen.contexts.control import start_carried
from tiledsl.codegen.cpp import literal
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import enters
from tiledsl.codegen.registry import yields_to
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import int_limits
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.analysis.range_ends import dtype_of
from tiledsl.ir.analysis.range_ends import may_pass
from tiledsl.ir.analysis.range_ends import span_of
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import control as ops
from tiledsl.ir.ops.elementwise import Binary
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.role import Role


@dataclass(frozen=True)
class ForContext:
    """A counted loop. pragma: an unroll pragma or "".

    variant "far": a loop that may count past the end of its integers leaves before it does.
    enters: whether there is an iteration; last: the name and the value of where the last one
    starts or after it; leave: whether this is the last iteration.
    """

    pragma: str
    type: str
    iv: str
    lower: str
    condition: str
    increment: str
    body: str
    enters: str = ""
    last: str = ""
    bound: str = ""
    leave: str = ""
    variant: str = ""


@enters("control.for")
def enter_for(op: ops.For, e: Emission) -> None:
    """Carried variables take their initial values before the loop."""
    start_carried(op.carried, op.init, e)
    e.bind(op.iv, e.names.fresh(op.iv.name or "i"))


@emits("control.for")
def for_(op: ops.For, e: Emission, body: str) -> ForContext:
    """`for (int k_1 = 0; k_1 < n_1; k_1 += 64) {`."""
    iv = e.text(op.iv)
    loop = ForContext(
        _pragma(op.unroll),
        e.value_type(op.iv),
        iv,
        e.text(op.lower),
        _condition(iv, e.atom(op.upper), op.step, known_sign(op.step), e),
        _increment(op, e),
        body,
    )
    if not may_pass(op) or (constant_value(op.step) is not None and _is_shared(op)):
        return loop
    last = e.names.fresh("last")
    return replace(
        loop,
        enters=_condition(e.atom(op.lower), e.atom(op.upper), op.step, _sign(op.step), e),
        last=last,
        bound=_start_of_last(op, e),
        leave=f"!({_condition(iv, last, op.step, _sign(op.step), e)})",
        variant="far",
    )


def _is_shared(op: ops.For) -> bool:
    """Whether several roles run a loop, over places in tensors.

    Those with a constant step compare as ever: ptxas makes masked loops of packed attention 2 %
    longer otherwise. An end that is loaded has to keep a step away from 2**31 there.
    """
    at: Op | None = op
    while at is not None and not isinstance(at, Role):
        at = at.parent.parent if at.parent else None
    around = at.parent if at is not None else None
    return around is not None and sum(isinstance(o, Role) for o in around.ops) > 1


def _start_of_last(op: ops.For, e: Emission) -> str:
    """`upper - step`, held to the loop's integers; the last iteration starts there or behind."""
    upper, step, sign = e.atom(op.upper), e.atom(op.step), _sign(op.step)
    least, most = (f"({literal(n, dtype_of(op.iv))})" for n in int_limits(dtype_of(op.iv)))
    up = f"{upper} < {least} + {step} ? {least} : {upper} - {step}"
    down = f"{upper} > {most} + {step} ? {most} : {upper} - {step}"
    if sign > 0:
        return up
    if sign < 0:
        return down
    return f"{step} > 0 ? ({up}) : ({down})"


def _pragma(unroll: int) -> str:
    if unroll < 0:
        return "#pragma unroll 1"
    if unroll == 1:
        return ""
    return "#pragma unroll" if unroll == 0 else f"#pragma unroll {unroll}"


def _sign(step: Value) -> int:
    """As `known_sign`, by the numbers that a step may be."""
    span = span_of(step)
    return (span.low > 0) - (span.high < 0)


def _condition(at: str, end: str, step: Value, sign: int, e: Emission) -> str:
    """Whether a place lies before an end, in the direction of a step."""
    if sign:
        return f"{at} {'<' if sign > 0 else '>'} {end}"
    by = e.atom(step)
    return f"{by} > 0 ? {at} < {end} : {by} < 0 && {at} > {end}"


def _increment(op: ops.For, e: Emission) -> str:
    iv, step = e.text(op.iv), op.step.defining_op
    if isinstance(step, Constant) and step.value == 1:
        return f"++{iv}"
    return f"{iv} += {e.text(op.step)}"


@deep
def known_sign(value: Value) -> int:
    """1 or -1 for a value known to be positive or negative, else 0."""
    match value.defining_op:
        case Constant(value=number):
            return (number > 0) - (number < 0)
        case Cast(a=a):
            return known_sign(a)
        case Binary(opcode="elementwise.mul", a=a, b=b):
            return known_sign(a) * known_sign(b)
        case op:
            return 1 if role.is_positive(op) else 0


@yields_to("control.for")
def yield_for(op: ops.Yield, e: Emission) -> CopiesContext | None:
    """The next carried values."""
    loop = op.parent.parent if op.parent else None
    assert isinstance(loop, ops.For)
    return copies(e, loop.carried, op.values)
