"""Scalar arithmetic as C++ expressions.

Floats under 32 bits are computed in `float` and rounded once per op, unless the op cannot leave the
type (`_EXACT`) or its value only goes to where it is rounded anyway (a map's result, a store).
Scalar code uses the plain operators on 32- and 64-bit integers, the bodies of maps operators that
wrap.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from math import gcd

from tiledsl.codegen.contexts.control import known_sign
from tiledsl.codegen.contexts.pairs import is_of_pairs
from tiledsl.codegen.contexts.pairs import pair_math
from tiledsl.codegen.contexts.segments import bound_of_map
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
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.errors import CodegenError
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ops
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.elementwise_index import Around
from tiledsl.ir.ops.elementwise_index import CountBelow
from tiledsl.ir.ops.elementwise_index import Within
from tiledsl.ir.ops.elementwise_library import Function
from tiledsl.ir.ops.elementwise_steps import CountSteps
from tiledsl.ir.ops.pointer import Lanes
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.types import ScalarType
from tiledsl.ir.vectors import vectors_of

_EXACT = frozenset(
    f"elementwise.{name}" for name in ("min", "max", "neg", "abs", "select", "floor", "ceil", "mod")
)
_LOG2_E = 1.4426950408889634


MANY_PRODUCTS = 6
"""Products of indexes and strides: with 14 a kernel gained 5 %, with 1 or 2 some lost 1 to 2 %."""


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


@dataclass(frozen=True)
class SelectContext(Expression):
    """`condition ? a : b`."""

    condition: str
    a: str
    b: str


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


def _operator(op: Op, e: Emission, operator: str) -> OperatorContext:
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


def wide_coordinate(value: Value, e: Emission) -> str:
    """A widened coordinate in two parts, `(i64)at_1 + (i / 8 * 256)`; empty for anything else.

    What stands in front of a sum of both is then one address for all registers: a sum of 32 bits
    is widened for each of them.
    """
    parts = _wide_parts(value, e)
    return f"{parts[0]} + {parts[1].removeprefix('(i64)')}" if parts is not None else ""


def wide_product(value: Value, e: Emission) -> tuple[str, str] | None:
    """A product with one in two parts, `(i64)at_1 * s` and `(i64)(i / 8 * 256) * s`."""
    product = value.defining_op
    if not isinstance(product, ops.Mul) or len(e.users(value)) != 1:
        return None
    for one, by in ((product.a, product.b), (product.b, product.a)):
        parts = _wide_parts(one, e)
        if parts is not None:
            factor = e.atom(by)
            return f"{parts[0]} * {factor}", f"{parts[1]} * {factor}"
    return None


def _wide_parts(value: Value, e: Emission) -> tuple[str, str] | None:
    """What the thread and what the register gives to a widened coordinate; None for others."""
    cast = value.defining_op
    if not isinstance(cast, ops.Cast) or cast.a not in e.coordinates or cast.dtype != int64:
        return None
    at = e.coordinates[cast.a]
    return (f"(i64){at.thread}", f"(i64)({at.register()})") if " " not in at.thread else None


def call(op: Op, e: Emission, function: str, *, variant: str = "") -> CallContext:
    """A call with all operands."""
    arguments = ", ".join(e.text(v) for v in op.operands)
    return CallContext(rounding(op, e), True, function, arguments, variant)


def _is_inside(op: Op) -> bool:
    """Whether a loop over registers computes an op for each of them."""
    around = op.parent.parent if op.parent is not None else None
    return around is not None and around.vectorized


def _has_many_products(e: Emission) -> bool:
    """Whether products of indexes and strides are a part of a kernel's work.

    Fewer are left to NVVM, which puts some of them into uniform registers.
    """
    if e.has_many_products is None:
        products: list[ops.Mul] = e.graph.find(ops.Mul)
        wide = [op for op in products if not _is_inside(op) and _widened(op.a) and _widened(op.b)]
        e.has_many_products = len(wide) >= MANY_PRODUCTS
    return e.has_many_products


def _widened(value: Value) -> Value | None:
    """The int32 scalar that a product takes in 64 bits, where it is not a number.

    NVVM takes indexes that are not below 0 for unsigned, and multiplies these by signed strides in
    three instructions.
    """
    cast = value.defining_op
    if not isinstance(cast, ops.Cast) or cast.dtype != int64 or cast.a.type != ScalarType(int32):
        return None
    return None if isinstance(cast.a.defining_op, ops.Constant) else cast.a


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
        e.bind(op.result, pair_math(e, op, name))
        return None
    symbol = {"add": "+", "sub": "-", "mul": "*"}[name]
    a, b = op.operands
    if name == "mul" and e.place.is_plain and not _is_inside(op) and _has_many_products(e):
        narrow = [e.text(v) for v in map(_widened, (a, b)) if v is not None]
        if len(narrow) == 2:
            return OperatorContext("", True, narrow[0], narrow[1], "mul_wide", "wrap")
    if not _wraps(op):
        return _operator(op, e, symbol)
    return OperatorContext("", True, e.text(a), e.text(b), f"{name}_wrap", "wrap")


@emits("elementwise.div")
def div(op: ops.Div, e: Emission) -> Expression:
    """`div_full`: the correctly rounded form takes a branch and a call for each element."""
    if dtype_of(op.result).bits == 64:
        return call(op, e, "div_rn")
    if e.text(op.a) == literal(1.0, float32):  # an input of a map may stand for a constant
        name = "rcp_approx" if op.fast else "reciprocal"
        return CallContext(rounding(op, e), True, name, e.text(op.b))
    if op.fast:
        return call(op, e, "div_normal")
    return call(op, e, "div_full")


@emits("elementwise.floordiv", "elementwise.mod")
def integer_division(op: ops.Binary, e: Emission) -> Expression:
    """The plain operator where the divisor cannot be zero."""
    is_div = isinstance(op, ops.FloorDiv)
    if dtype_of(op.result).is_int and known_sign(op.b):
        return _operator(op, e, "/" if is_div else "%")
    name = "div_or_zero" if is_div else "mod_or_zero"
    explicit = f"<{memory_type(dtype_of(op.result))}>" if dtype_of(op.result).is_int else ""
    return call(op, e, name + explicit, variant="call")


@emits("elementwise.min", "elementwise.max")
def extremum(op: ops.Min | ops.Max, e: Emission) -> Expression:
    """`max_num` ignores NaN, `max_nan` keeps it."""
    keeps_nan = op.propagate_nan and dtype_of(op.result).is_float
    name = op.opcode.partition(".")[2]
    return call(
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
        return _operator(op, e, {"and": "&&", "or": "||", "xor": "!="}[name])
    return _operator(op, e, {"and": "&", "or": "|", "xor": "^"}[name])


@emits("elementwise.shl", "elementwise.shr")
def shift(op: ops.Binary, e: Emission) -> Expression:
    """The plain operator for a constant count below the width."""
    is_left = isinstance(op, ops.Shl)
    count = op.b.defining_op
    if isinstance(count, ops.Constant) and 0 <= count.value < dtype_of(op.result).bits:
        return _operator(op, e, "<<" if is_left else ">>")
    name = "shift_left" if is_left else "shift_right"
    return call(op, e, f"{name}<{memory_type(dtype_of(op.result))}>", variant="call")


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
    return call(op, e, f"{name}<{op.extent}>")


@emits("elementwise.count_steps")
def count_steps(op: CountSteps, e: Emission) -> CallContext:
    """`count_steps<IsOver>(x_1, 0.25f, 0.5f)`."""
    how = {"gt": "IsOver", "ge": "IsFrom", "lt": "IsBelow", "le": "IsUpTo"}[op.predicate]
    limits = ", ".join(literal(limit, float32) for limit in op.limits)
    return CallContext("", False, f"count_steps<{how}>", f"{e.text(op.a)}, {limits}")


@emits("elementwise.within")
def within(op: Within, e: Emission) -> CallContext:
    """`is_within(t_3, n)`; with `whole` before it where whole warps have a loop of their own."""
    made = call(op, e, "is_within")
    around = op.parent.parent if op.parent is not None else None
    splits = isinstance(around, Map) and bound_of_map(around) is op
    return replace(made, arguments=f"whole, {made.arguments}") if splits else made


@emits("elementwise.around")
def around(op: Around, e: Emission) -> CallContext:
    """`signed_place(t_2)`, or `around<8, 65536>(i, t_2)` in a loop over registers."""
    loop = op.parent.parent if op.parent is not None else None
    if not isinstance(loop, Map):
        return call(op, e, "signed_place")
    vectors = vectors_of(loop.layout) if loop.layout is not None else None
    assert vectors is not None
    made = call(op, e, f"around<{vectors.size}, {op.extent}>")
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


# ---------------------------------------------------------------------- conversions
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


@emits("elementwise.hint")
def hint(op: Hint, e: Emission) -> None:
    """The operand itself."""
    e.bind(op.result, e.text(op.a), atomic=e.atom(op.a) == e.text(op.a))


# ---------------------------------------------------------------------- unary
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
    return call(op, e, "tdsl::abs")


@emits("elementwise.exp", "elementwise.exp2")
def exponential(op: ops.Exp | ops.Exp2, e: Emission) -> Expression:
    """fast: one ex2.approx; e**a after a multiplication by log2(e)."""
    dtype = dtype_of(op.result)
    if isinstance(op, ops.Exp) and op.nonpositive and not op.fast and dtype == float32:
        return call(op, e, "exp_nonpositive")
    if not op.fast or dtype.bits == 64:
        return call(op, e, f"tdsl::{op.opcode.partition('.')[2]}")
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
    return call(op, e, f"tdsl::{op.opcode.partition('.')[2]}")


@emits("elementwise.tanh", "elementwise.erf")
def sigmoid(op: ops.Tanh | ops.Erf, e: Emission) -> Expression:
    """absolute: the function of another name, which takes the factor on the argument."""
    name = op.opcode.partition(".")[2]
    if not op.absolute:
        return call(op, e, f"tdsl::{name}")
    arguments = f"{e.text(op.a)}, {literal(op.scale, float32)}"
    return CallContext(rounding(op, e), True, f"{name}_absolute", arguments)


@emits("elementwise.fma")
def fma(op: ops.Fma, e: Emission) -> Expression:
    """One rounding."""
    return call(op, e, "tdsl::fma")


@emits("elementwise.function")
def library_function(op: Function, e: Emission) -> Expression:
    """The device function of the library's row."""
    return call(op, e, op.signature.device)
