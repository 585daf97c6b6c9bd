"""Scalar arithmetic, comparisons and choices as C++ expressions.

Scalar code uses the plain operators on 32- and 64-bit integers, the bodies of maps operators that
wrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from math import gcd

from tiledsl.codegen.contexts.counted_loops import known_sign
from tiledsl.codegen.contexts.expressions import CallContext
from tiledsl.codegen.contexts.expressions import OperatorContext
from tiledsl.codegen.contexts.expressions import call_of
from tiledsl.codegen.contexts.expressions import dtype_of
from tiledsl.codegen.contexts.expressions import operator_of
from tiledsl.codegen.contexts.expressions import rounding
from tiledsl.codegen.contexts.pairs import is_of_pairs
from tiledsl.codegen.contexts.pairs import pair_math
from tiledsl.codegen.contexts.segments import bound_of_map
from tiledsl.codegen.contexts.wide_products import has_many_products
from tiledsl.codegen.contexts.wide_products import is_inside
from tiledsl.codegen.contexts.wide_products import widened_index
from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.cpp import literal
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.cpp import scalar_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.codegen.registry import emits
from tiledsl.dtypes import float32
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ops
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.elementwise_index import Around
from tiledsl.ir.ops.elementwise_index import CountBelow
from tiledsl.ir.ops.elementwise_index import Within
from tiledsl.ir.ops.elementwise_steps import CountSteps
from tiledsl.ir.ops.pointer import Lanes
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.types import ScalarType
from tiledsl.ir.vectors import vectors_of

MAX_PAIR_CHARS = 120
"""Of math on pairs in one expression."""


@dataclass(frozen=True)
class SelectContext(Expression):
    """`condition ? a : b`."""

    condition: str
    a: str
    b: str


def _wraps(op: Op) -> bool:
    """Whether the plain operator would be undefined on overflow: wide signed integers in a map."""
    dtype = dtype_of(op.results[0])
    around = op.parent.parent if op.parent is not None else None
    if dtype.kind != "int" or dtype.bits < 32 or around is None:
        return False
    # Offsets of addresses are widened so that they never overflow.
    return around.vectorized and (dtype.bits == 32 or not isinstance(around, Lanes))


# ------------------------------------------------------------- constants and binary operators
@emits("elementwise.constant")
def constant(op: ops.Constant, e: Emission) -> None:
    """A literal at each use."""
    text = literal(op.value, op.dtype)
    e.bind(op.result, text, atomic=not text.startswith("-"))


@emits("elementwise.add", "elementwise.sub", "elementwise.mul")
def arithmetic(op: ops.Binary, e: Emission) -> Expression | None:
    """`a + b`."""
    name = op.opcode.partition(".")[2]
    if is_of_pairs(op):
        text = pair_math(e, op, name)
        if len(text) > MAX_PAIR_CHARS:
            variable = e.names.fresh("pair")
            e.before(f"const auto {variable} = {text};")
            text = variable
        e.bind(op.result, text)
        return None
    symbol = {"add": "+", "sub": "-", "mul": "*"}[name]
    a, b = op.operands
    if name == "mul" and e.place.is_plain and not is_inside(op) and has_many_products(e):
        narrow = [e.text(v) for v in map(widened_index, (a, b)) if v is not None]
        if len(narrow) == 2:
            return OperatorContext("", True, narrow[0], narrow[1], "mul_wide", "wrap")
    if not _wraps(op):
        return operator_of(op, e, symbol)
    return OperatorContext("", True, e.text(a), e.text(b), f"{name}_wrap", "wrap")


@emits("elementwise.div")
def div(op: ops.Div, e: Emission) -> Expression:
    """`div_full`: the correctly rounded form takes a branch and a call for each element."""
    if dtype_of(op.result).bits == 64:
        return call_of(op, e, "div_rn")
    if e.text(op.a) == literal(1.0, float32):  # an input of a map may stand for a constant
        name = "rcp_approx" if op.fast else "reciprocal"
        return CallContext(rounding(op, e), True, name, e.text(op.b))
    if op.fast:
        return call_of(op, e, "div_normal")
    return call_of(op, e, "div_full")


@emits("elementwise.floordiv", "elementwise.mod")
def integer_division(op: ops.Binary, e: Emission) -> Expression:
    """The plain operator where the divisor cannot be zero."""
    is_div = isinstance(op, ops.FloorDiv)
    if dtype_of(op.result).is_int and known_sign(op.b):
        return operator_of(op, e, "/" if is_div else "%")
    name = "div_or_zero" if is_div else "mod_or_zero"
    explicit = f"<{memory_type(dtype_of(op.result))}>" if dtype_of(op.result).is_int else ""
    return call_of(op, e, name + explicit, variant="call")


@emits("elementwise.min", "elementwise.max")
def extremum(op: ops.Min | ops.Max, e: Emission) -> Expression:
    """`max_num` ignores NaN, `max_nan` keeps it."""
    keeps_nan = op.propagate_nan and dtype_of(op.result).is_float
    name = op.opcode.partition(".")[2]
    return call_of(
        op, e, f"{name}_nan" if keeps_nan else f"{name}_num<{scalar_type(dtype_of(op.result))}>"
    )


@emits("elementwise.and", "elementwise.or", "elementwise.xor")
def bitwise(op: ops.Binary, e: Emission) -> Expression | None:
    """`a & b`; on bools `a && b` and `a != b`; `at & -16` without what a run has in it."""
    name = op.opcode.partition(".")[2]
    number = constant_value(op.b) if name == "and" and op.a in e.coordinates else None
    if isinstance(number, int) and number < 0 and (-number).bit_count() == 1:
        first = e.coordinates[op.a].first(-number)
        if first is not None:
            e.bind(op.result, f"({first})" if " " in first else first)
            return None
    if dtype_of(op.result).kind == "bool":
        return operator_of(op, e, {"and": "&&", "or": "||", "xor": "!="}[name])
    return operator_of(op, e, {"and": "&", "or": "|", "xor": "^"}[name])


@emits("elementwise.shl", "elementwise.shr")
def shift(op: ops.Binary, e: Emission) -> Expression:
    """The plain operator for a constant count below the width."""
    is_left = isinstance(op, ops.Shl)
    count = op.b.defining_op
    if isinstance(count, ops.Constant) and 0 <= count.value < dtype_of(op.result).bits:
        return operator_of(op, e, "<<" if is_left else ">>")
    name = "shift_left" if is_left else "shift_right"
    return call_of(op, e, f"{name}<{memory_type(dtype_of(op.result))}>", variant="call")


@emits("elementwise.compare")
def compare(op: ops.Compare, e: Emission) -> Expression:
    """`a < b`; of a coordinate and a count the thread's part goes to the side of the count.

    It is left out where all elements that a register may be lie on one side of a known limit.
    """
    symbol = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}[op.predicate]
    known = op.b.defining_op if op.predicate in ("lt", "ge") and op.a in e.coordinates else None
    if isinstance(known, ops.Constant) and e.coordinates[op.a].is_decided(int(known.value)):
        left = e.coordinates[op.a].register() or "0"
        return OperatorContext("", False, left, e.atom(op.b), symbol)
    multiple = None
    if op.a in e.coordinates and not isinstance(known, ops.Constant):
        multiple = _count_multiple(op.b)
    if multiple:
        at = e.coordinates[op.a]
        left = at.register(multiple) or "0"
        return OperatorContext("", False, left, f"{e.factor(op.b)} - {at.thread}", symbol)
    return OperatorContext("", False, e.atom(op.a), e.atom(op.b), symbol)


@deep
def _count_multiple(value: Value) -> int | None:
    """What divides a number that is surely not negative: a coordinate may be subtracted.

    0 of the number 0, None where it is not known.
    """
    match op := value.defining_op:
        case ops.Mul() if isinstance(flag := op.b.defining_op, ops.Cast):
            return _count_multiple(op.a) if dtype_of(flag.a).kind == "bool" else None
        case ops.Min() | ops.Max():
            counts = _count_multiple(op.a), _count_multiple(op.b)
            known = [n for n in counts if n is not None]
            return gcd(*known) if len(known) == len(counts) else None
        case CountBelow():
            return op.multiple
        case ops.Constant():
            return int(op.value) if op.value >= 0 else None
        case _:
            return None


@emits("elementwise.count_below")
def count_below(op: CountBelow, e: Emission) -> CallContext:
    """`count_below<128>(end_1, n_1)`, or `count_up_to` with the limit itself."""
    name = "count_up_to" if op.inclusive else "count_below"
    return call_of(op, e, f"{name}<{op.extent}>")


@emits("elementwise.count_steps")
def count_steps(op: CountSteps, e: Emission) -> CallContext:
    """`count_steps<IsOver>(x_1, 0.25f, 0.5f)`."""
    how = {"gt": "IsOver", "ge": "IsFrom", "lt": "IsBelow", "le": "IsUpTo"}[op.predicate]
    limits = ", ".join(literal(limit, float32) for limit in op.limits)
    return CallContext("", False, f"count_steps<{how}>", f"{e.text(op.a)}, {limits}")


@emits("elementwise.within")
def within(op: Within, e: Emission) -> CallContext:
    """`is_within(t_3, n)`; with `whole` before it where whole warps have a loop of their own."""
    made = call_of(op, e, "is_within")
    around = op.parent.parent if op.parent is not None else None
    splits = isinstance(around, Map) and bound_of_map(around) is op
    return replace(made, arguments=f"whole, {made.arguments}") if splits else made


@emits("elementwise.around")
def around(op: Around, e: Emission) -> CallContext:
    """`signed_place(t_2)`, or `around<8, 65536>(i, t_2)` in a loop over registers."""
    loop = op.parent.parent if op.parent is not None else None
    if not isinstance(loop, Map):
        return call_of(op, e, "signed_place")
    vectors = vectors_of(loop.layout) if loop.layout is not None else None
    assert vectors is not None
    made = call_of(op, e, f"around<{vectors.size}, {op.extent}>")
    return replace(made, arguments=f"i, {made.arguments}")


@emits("elementwise.select")
def select(op: ops.Select, e: Emission) -> Expression | None:
    """`c ? a : b`; of elements as they lie in memory, and constants, also `c ? a_raw : b_raw`."""
    condition, a, b = (e.atom(v) for v in op.operands[:3])
    if raw := _raw_choice(op, e):
        e.raw[op.result] = raw
        if len(e.users(op.result)) == 1 and not e.variables.is_mutable(
            op.result
        ):  # which takes the one or the other
            e.bind(op.result, f"{condition} ? {a} : {b}", atomic=False)
            return None
    return SelectContext("", False, condition, a, b)


def _raw_choice(op: ops.Select, e: Emission) -> str:
    """A choice between elements of packed tiles, or one and a scalar; empty for others."""
    dtype = dtype_of(op.result)
    if not is_packed(dtype) or (op.a not in e.raw and op.b not in e.raw):
        return ""
    if not all(e.is_stable(v) for v in op.operands):
        return ""
    texts: list[str] = []
    for value in (op.a, op.b):
        if value in e.raw:
            texts.append(e.raw[value])
        elif not _is_converted_once(value):
            return ""
        elif dtype.is_float:
            texts.append(f"from_float<{memory_type(dtype)}>({e.text(value)})")
        else:
            texts.append(f"({memory_type(dtype)}){e.atom(value)}")
    return f"({e.atom(op.condition)} ? {texts[0]} : {texts[1]})"


def _is_converted_once(value: Value) -> bool:
    """Whether a scalar is a constant, or the same in all iterations of a loop over registers."""
    loop = value.owner.parent if isinstance(value.owner, Region) else None
    if isinstance(loop, Map) and value.index < len(loop.inputs):
        return isinstance(loop.inputs[value.index].type, ScalarType)
    return constant_value(value) is not None


@emits("elementwise.hint")
def hint(op: Hint, e: Emission) -> None:
    """The operand itself."""
    e.bind(op.result, e.text(op.a), atomic=e.atom(op.a) == e.text(op.a))
