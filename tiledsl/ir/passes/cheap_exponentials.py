"""Finds exponentials and quotients that need not be computed in all generality.

exp of f32 takes eight instructions because its argument may be anything and its result has to be
right to 2 ulp. Two take fewer: those whose results are rounded to 16 bits in the end, and those of
what is at most 0, as x - max(x) is. A division takes as many, most of them for divisors beyond the
normal numbers; `1 + exp(-x)` is none of these.
"""

from __future__ import annotations

import math

from tiledsl.dtypes import float32
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import splat_source
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.analysis.deep import remembered
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.target import Target

_SHAPES = tile.Broadcast | tile.ExpandDims | tile.Splat
_KEEPING = _SHAPES | ew.Mul | ew.Div | ew.Select
"""Ops whose result is off by as many parts as their operands together."""
_ROUNDED_BITS = 16


@register_pass("cheap-exponentials", consumes=Level.TILE, produces=Level.TILE)
def cheap_exponentials(graph: TileGraph, target: Target) -> PassReport:
    """Marks f32 exponentials `fast` where only 16 bits are kept, else `nonpositive` where they are.

    Powers of two of what is at most 0 are `fast`: that flushes results below 2**-126, and no more.
    Also of what is at most 0 unless a factor is negative: `x * scale - max(x) * scale`.
    Quotients of which 16 bits are kept are `fast` where the divisor is at least 1.

    `ex2.approx.ftz` after a multiplication by log2(e) is off by 2 ulp and by 1e-7 of its argument's
    size, at most 1e-5 before the result is 0 or infinite: nothing next to the rounding to bf16 or
    f16, as long as results are multiplied, divided, and summed with what is not negative only.
    """
    del target
    with remembered():  # signs stay what they are where ops become fast
        changes = sum(_make_cheap(graph, op) for op in list(graph.walk()))
    return PassReport("cheap-exponentials", changes)


def _make_cheap(graph: TileGraph, op: Op) -> bool:
    """Marks an op; whether it could."""
    mark = _mark(graph, op)
    if mark:
        is_fast = mark == "fast"
        made = op.rebuild({}, fast=True) if is_fast else op.rebuild({}, nonpositive=True)
        graph.replace_op(op, made)
    return bool(mark)


def _mark(graph: TileGraph, op: Op) -> str:
    """The attribute that an op can have; empty where none."""
    if not isinstance(op, ew.Div | ew.Exp2 | ew.Exp) or op.fast or _dtype(op.result) != float32:
        return ""
    match op:
        case ew.Div():
            is_fast = _is_at_least_one(op.b) and _is_rounded(graph, op.result)
        case ew.Exp2():
            is_fast = is_at_most_zero(op.a, any_sign=True)
        case ew.Exp():
            is_fast = _is_rounded(graph, op.result)
            if not is_fast and not op.nonpositive and is_at_most_zero(op.a):
                return "nonpositive"
    return "fast" if is_fast else ""


def _dtype(value: Value) -> object:
    type_ = value.type
    return type_.dtype if isinstance(type_, ScalarType | TileType) else None


def _is_rounded(graph: TileGraph, value: Value) -> bool:
    """Whether a value only reaches casts to small floats, through ops that keep relative errors."""
    seen: set[Value] = set()
    todo = [value]
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        for use in graph.users(v):
            user = use.op
            match user:
                case ew.Cast(dtype=dtype) if dtype.is_float and dtype.bits <= _ROUNDED_BITS:
                    pass
                case ew.Cast(dtype=dtype) if dtype == float32:
                    todo.append(user.result)
                case Reduce(kind="sum" | "max" | "min") if not user.widened or set(
                    user.widened
                ) == {float32}:
                    todo += user.results
                case ew.Add() if _is_nonnegative(user.a) and _is_nonnegative(user.b):
                    todo.append(user.result)
                case _ if isinstance(user, _KEEPING):
                    todo.append(user.result)
                case _:
                    return False
    return True


@deep
def _is_nonnegative(value: Value) -> bool:
    """Whether all elements are surely not below 0, or NaN."""
    match op := _unshaped(value).defining_op:
        case ew.Constant():
            return op.value >= 0
        case ew.Exp() | ew.Exp2():
            return True
        case ew.Add() | ew.Mul():
            return _is_nonnegative(op.a) and _is_nonnegative(op.b)
        case _:
            return False


@deep
def _is_at_least_one(value: Value) -> bool:
    """Whether all elements are at least 1, or NaN."""
    match op := _unshaped(value).defining_op:
        case ew.Constant():
            return op.value >= 1
        case ew.Add():
            pairs = ((op.a, op.b), (op.b, op.a))
            return any(_is_at_least_one(x) and _is_nonnegative(y) for x, y in pairs)
        case _:
            return False


def is_at_most_zero(value: Value, *, any_sign: bool = False) -> bool:
    """Whether all elements are at most 0, or NaN: a difference to what is no smaller.

    any_sign: factors of unknown sign are taken not to be negative.
    """
    op = value.defining_op
    return isinstance(op, ew.Sub) and _is_bound(_unshaped(op.b), op.a, any_sign=any_sign)


def _unshaped(value: Value) -> Value:
    while isinstance(op := value.defining_op, _SHAPES):
        value = op.a
    return value


@deep
def _is_bound(bound: Value, value: Value, *, any_sign: bool) -> bool:
    """Whether a value without its repetitions is a maximum of which `value` is a part."""
    op: Op | None = bound.defining_op
    match op:
        case Reduce(kind="max"):
            return op.inputs[0] is value
        case ew.Max():
            found = [_unshaped(v) for v in op.operands]
            return any(v is value or _is_bound(v, value, any_sign=any_sign) for v in found)
        case ew.Select() if (lowest := _where_lowest(op)) is not None:
            return _is_bound(lowest, value, any_sign=any_sign)
        case ew.Mul() if isinstance(product := value.defining_op, ew.Mul):
            return any(
                _is_same_factor(c, d, any_sign=any_sign) and _is_bound(x, y, any_sign=any_sign)
                for x, c in ((op.a, op.b), (op.b, op.a))
                for y, d in ((product.a, product.b), (product.b, product.a))
            )
        case _:
            return False


def _is_same_factor(a: Value, b: Value, *, any_sign: bool) -> bool:
    """Whether two values are one scalar, and it is above 0 if its sign matters."""
    number = constant_value(a)
    if number is not None:
        return number == constant_value(b) and (any_sign or number > 0)
    return any_sign and isinstance(a.type, TileType) and splat_source(a) is splat_source(b) is not a


def _where_lowest(op: ew.Select) -> Value | None:
    """x of `where(x == -inf, y, x)`, which is no smaller than x."""
    test = op.condition.defining_op
    if not isinstance(test, ew.Compare) or test.predicate != "eq" or test.a is not op.b:
        return None
    return op.b if constant_value(test.b) == -math.inf else None
