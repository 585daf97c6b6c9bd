"""What is known of the result of an op, by the op: the rules of the axis analysis.

Ref: the axis analysis of pointer-based tile compilers; the rules are written out below.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import gcd
from typing import TYPE_CHECKING
from typing import Any

from tiledsl.ir.analysis.axis_values import Axis
from tiledsl.ir.analysis.axis_values import AxisInfo
from tiledsl.ir.analysis.axis_values import capped
from tiledsl.ir.analysis.axis_values import is_given
from tiledsl.ir.analysis.axis_values import meet
from tiledsl.ir.analysis.axis_values import power_of_two
from tiledsl.ir.analysis.axis_values import uniform
from tiledsl.ir.analysis.axis_values import unknown
from tiledsl.ir.analysis.constants import wrap
from tiledsl.ir.op import Op
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import program
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.memory_base import Base
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

if TYPE_CHECKING:
    from tiledsl.ir.analysis.axis_info import AxisFacts

Rule = Callable[["AxisFacts", Any], AxisInfo]
RULES: dict[str, Rule] = {}
"""By opcode."""


def _rule(*classes: type[Op]) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update({cls.opcode: function for cls in classes})
        return function

    return register


@_rule(ew.Constant)
def _constant(facts: AxisFacts, op: ew.Constant) -> AxisInfo:
    if not op.dtype.is_int:
        return unknown(op.result)
    value = wrap(int(op.value), op.dtype)
    return uniform(op.result, power_of_two(value), value, positive=value >= 0)


@_rule(program.ProgramId, program.NumPrograms, program.OwnRow)
def _program(facts: AxisFacts, op: Op) -> AxisInfo:
    return AxisInfo((), 1, positive=True)


@_rule(tile.Arange)
def _arange(facts: AxisFacts, op: tile.Arange) -> AxisInfo:
    count = op.end - op.start
    axis = Axis(count, power_of_two(op.start), 1)
    every = power_of_two(op.start) if count == 1 else 1
    return AxisInfo((axis,), every, positive=op.start >= 0)


@_rule(tile.Splat)
def _splat(facts: AxisFacts, op: tile.Splat) -> AxisInfo:
    a = facts.of(op.a)
    return uniform(op.result, a.every, a.value, positive=a.positive)


@_rule(tile.ExpandDims)
def _expand(facts: AxisFacts, op: tile.ExpandDims) -> AxisInfo:
    a = facts.of(op.a)
    axes = (*a.axes[: op.axis], Axis(1, a.every, 1), *a.axes[op.axis :])
    return AxisInfo(axes, a.every, a.unit, a.value, a.positive)


@_rule(tile.Broadcast)
def _broadcast(facts: AxisFacts, op: tile.Broadcast) -> AxisInfo:
    a, source = facts.of(op.a), op.a.type
    assert isinstance(source, TileType)
    axes = tuple(
        x if n == m else Axis(1, x.divisibility, m)
        for x, n, m in zip(a.axes, source.shape, op.shape, strict=True)
    )
    return AxisInfo(axes, a.every, a.unit, a.value, a.positive)


@_rule(tile.Transpose)
def _transpose(facts: AxisFacts, op: tile.Transpose) -> AxisInfo:
    a = facts.of(op.a)
    return AxisInfo(tuple(a.axes[i] for i in op.order), a.every, a.unit, a.value, a.positive)


@_rule(ew.Add, pointer.Add)
def _add(facts: AxisFacts, op: Any) -> AxisInfo:
    a, b = (facts.of(v) for v in op.operands)
    unit, scale = a.unit, a.unit if isinstance(op, pointer.Add) else 1
    axes: list[Axis] = []
    for dim, (x, y) in enumerate(zip(a.axes, b.axes, strict=True)):
        run = max(gcd(x.contiguity, y.constancy), gcd(x.constancy, y.contiguity))
        divisor = gcd(a.at_runs(dim, run), b.at_runs(dim, run) * scale)
        axes.append(Axis(run, divisor, gcd(x.constancy, y.constancy)))
    value = None if a.value is None or b.value is None else a.value + b.value * scale
    every = gcd(a.every, b.every * scale)
    return AxisInfo(tuple(axes), every, unit, value, a.positive and b.positive)


@_rule(Hint)
def _hint(facts: AxisFacts, op: Hint) -> AxisInfo:
    """Stated facts count beside those that were found; a scalar's number divides it."""
    a = facts.of(op.a)
    if not a.axes:
        every = max(a.every, *map(power_of_two, op.divisibility or (1,)))
        return AxisInfo((), every, a.unit, a.value, a.positive)
    axes: list[Axis] = []
    for dim, x in enumerate(a.axes):
        stated = [f[dim] if f else 1 for f in (op.contiguity, op.divisibility, op.constancy)]
        axes.append(
            Axis(
                max(x.contiguity, stated[0]),
                max(x.divisibility, power_of_two(stated[1])),
                max(x.constancy, stated[2]),
            )
        )
    return AxisInfo(tuple(axes), a.every, a.unit, a.value, a.positive)


@_rule(ew.Sub)
def _sub(facts: AxisFacts, op: ew.Sub) -> AxisInfo:
    a, b = facts.of(op.a), facts.of(op.b)
    axes: list[Axis] = []
    for dim, (x, y) in enumerate(zip(a.axes, b.axes, strict=True)):
        run = gcd(x.contiguity, y.constancy)
        divisor = gcd(a.at_runs(dim, run), b.at_runs(dim, run))
        axes.append(Axis(run, divisor, gcd(x.constancy, y.constancy)))
    value = None if a.value is None or b.value is None else a.value - b.value
    is_trusted = facts.trusting and a.positive and b.positive and b.value is None
    positive = _is_turned(op) or (is_trusted and not is_given(op.b))
    return AxisInfo(tuple(axes), gcd(a.every, b.every), value=value, positive=positive)


def _is_turned(op: ew.Sub) -> bool:
    """Whether a difference is the number of programs, less 1, less the program's own number."""
    last, own = op.a.defining_op, op.b.defining_op
    if not isinstance(own, program.ProgramId) or not isinstance(last, ew.Sub):
        return False
    count, one = last.a.defining_op, last.b.defining_op
    return (
        isinstance(count, program.NumPrograms)
        and count.axis == own.axis
        and isinstance(one, ew.Constant)
        and one.value in (0, 1)
    )


@_rule(ew.Mul)
def _mul(facts: AxisFacts, op: ew.Mul) -> AxisInfo:
    a, b = facts.of(op.a), facts.of(op.b)
    for one, other in ((a, b), (b, a)):
        if one.value == 1:
            return other
    axes = [
        Axis(1, capped(a.at_runs(d, 1) * b.at_runs(d, 1)), gcd(x.constancy, y.constancy))
        for d, (x, y) in enumerate(zip(a.axes, b.axes, strict=True))
    ]
    value = None if a.value is None or b.value is None else a.value * b.value
    every = capped(a.every * b.every)
    return AxisInfo(tuple(axes), every, 1, value, a.positive and b.positive)


@_rule(ew.Shl)
def _shl(facts: AxisFacts, op: ew.Shl) -> AxisInfo:
    a, b = facts.of(op.a), facts.of(op.b)
    if b.value is None or not 0 <= b.value < 30:
        return unknown(op.result)
    axes = [Axis(1, capped(a.at_runs(d, 1) << b.value), x.constancy) for d, x in enumerate(a.axes)]
    small = a.positive and b.value <= 16  # as a factor that leaves room
    return AxisInfo(tuple(axes), capped(a.every << b.value), positive=small)


@_rule(ew.FloorDiv, ew.Shr)
def _div(facts: AxisFacts, op: Any) -> AxisInfo:
    """Runs of equal quotients where the dividend counts up and the divisor is constant."""
    a, b = facts.of(op.a), facts.of(op.b)
    divisor = b.value if isinstance(op, ew.FloorDiv) else None
    if isinstance(op, ew.Shr) and b.value is not None and 0 <= b.value < 31:
        divisor = 1 << b.value
    if divisor == 1:
        return a
    if divisor is None or divisor <= 0 or not (a.positive or isinstance(op, ew.Shr)):
        found = _elementwise(facts, op)
        keeps = isinstance(op, ew.Shr) or (b.value is None and not facts.may_be_negative(op.b))
        return AxisInfo(found.axes, 1, found.unit, None, a.positive and keeps)
    axes: list[Axis] = []
    for dim, x in enumerate(a.axes):
        run = gcd(x.contiguity, divisor, a.axes[dim].divisibility)
        exact = _quotient(a.at_runs(dim, 1), divisor)
        axes.append(Axis(1, exact, max(x.constancy, run)))
    return AxisInfo(tuple(axes), _quotient(a.every, divisor), positive=a.positive)


def _quotient(divisor: int, by: int) -> int:
    return divisor // by if divisor % by == 0 else 1


@_rule(ew.Mod)
def _mod(facts: AxisFacts, op: ew.Mod) -> AxisInfo:
    """Runs go on up to where a multiple of the divisor may fall."""
    a, b = facts.of(op.a), facts.of(op.b)
    if not a.positive:
        return _elementwise(facts, op)
    axes: list[Axis] = []
    for dim, (x, y) in enumerate(zip(a.axes, b.axes, strict=True)):
        uniform = y.constancy
        run = gcd(x.contiguity, uniform, gcd(x.divisibility, b.at_runs(dim, 1)))
        divisor = gcd(a.at_runs(dim, run), b.at_runs(dim, 1))
        axes.append(Axis(run, divisor, gcd(x.constancy, uniform)))
    return AxisInfo(tuple(axes), gcd(a.every, b.every), positive=True)


@_rule(ew.Compare)
def _compare(facts: AxisFacts, op: ew.Compare) -> AxisInfo:
    """x < y is equal in runs of x that cannot hold a multiple of what divides y."""
    x, y = op.a.type, op.b.type
    assert isinstance(x, ScalarType | TileType)
    if x.dtype.is_float or x != y:
        return _elementwise(facts, op)
    a, b = facts.of(op.a), facts.of(op.b)
    strict, predicate = ("lt", "ge"), op.predicate
    axes: list[Axis] = []
    for dim, (p, q) in enumerate(zip(a.axes, b.axes, strict=True)):
        best = gcd(p.constancy, q.constancy)
        if predicate in strict:
            best = max(best, _crossing(a, b, dim))
        elif predicate in ("gt", "le"):
            best = max(best, _crossing(b, a, dim))
        axes.append(Axis(1, 1, best))
    return AxisInfo(tuple(axes), positive=True)


def _crossing(a: AxisInfo, b: AxisInfo, dim: int) -> int:
    """Length of the runs along which `a < b` does not change: a counts up, b is constant."""
    x, y = a.axes[dim], b.axes[dim]
    run = gcd(x.contiguity * a.unit, x.divisibility, b.at_runs(dim, 1)) // a.unit
    return gcd(max(run, 1), y.constancy)


@_rule(ew.Select)
def _select(facts: AxisFacts, op: ew.Select) -> AxisInfo:
    condition, found = facts.of(op.condition), meet(facts.of(op.a), facts.of(op.b))
    if not found.axes:
        return found
    axes: list[Axis] = []
    for dim, (c, x) in enumerate(zip(condition.axes, found.axes, strict=True)):
        run = gcd(x.contiguity, c.constancy)
        axes.append(Axis(run, found.at_runs(dim, run), gcd(x.constancy, c.constancy)))
    return AxisInfo(tuple(axes), found.every, found.unit, found.value, found.positive)


@_rule(ew.Cast, ew.Bitcast)
def _cast(facts: AxisFacts, op: Any) -> AxisInfo:
    source, result = op.a.type, op.result.type
    assert isinstance(source, ScalarType | TileType)
    assert isinstance(result, ScalarType | TileType)
    if source.dtype.is_float or result.dtype.is_float or result.dtype.kind == "bool":
        return _elementwise(facts, op)
    a, to = facts.of(op.a), unknown(op.result)
    if a.unit == to.unit and source.dtype.kind != "bool":
        is_wrapped = source.dtype.kind == "uint" and result.dtype.bits == source.dtype.bits
        narrows = result.dtype.bits < source.dtype.bits or is_wrapped
        kept = a.positive and not narrows
        return AxisInfo(a.axes, a.every, a.unit, a.value, kept or to.positive)
    axes = tuple(Axis(1, a.at_runs(d, 1), x.constancy) for d, x in enumerate(a.axes))
    return AxisInfo(axes, a.every, to.unit, None, to.positive or source.dtype.kind == "bool")


@_rule(ew.Min, ew.Max)
def _extremum(facts: AxisFacts, op: Any) -> AxisInfo:
    a, b = facts.of(op.a), facts.of(op.b)
    if isinstance(op.a.type, ScalarType | TileType) and op.a.type.dtype.is_float:
        return _elementwise(facts, op)
    axes = tuple(
        Axis(1, gcd(a.at_runs(d, 1), b.at_runs(d, 1)), gcd(x.constancy, y.constancy))
        for d, (x, y) in enumerate(zip(a.axes, b.axes, strict=True))
    )
    signs = (a.positive, b.positive)
    positive = any(signs) if isinstance(op, ew.Max) else all(signs)
    return AxisInfo(axes, gcd(a.every, b.every), positive=positive)


@_rule(ew.And, ew.Or, ew.Xor, ew.Not, ew.Neg, ew.Abs)
def _bits(facts: AxisFacts, op: Any) -> AxisInfo:
    found = _elementwise(facts, op)
    infos = [facts.of(v) for v in op.operands]
    every = reduce(gcd, (i.every for i in infos)) if not isinstance(op, ew.Not) else 1
    axes = tuple(Axis(1, max(every, 1), x.constancy) for x in found.axes)
    positive = found.positive or isinstance(op, ew.Abs)
    if isinstance(op, ew.And):
        positive |= any(i.positive for i in infos)
    return AxisInfo(axes, every, found.unit, None, positive)


@_rule(tile.ConvertLayout)
def _same(facts: AxisFacts, op: tile.ConvertLayout) -> AxisInfo:
    return facts.of(op.a)


@_rule(Base)
def _base(facts: AxisFacts, op: Base) -> AxisInfo:
    """The address of a tensor is as aligned as its type says."""
    del facts
    align = memory.tensor_type(op.tensor, "base").align_bytes
    return AxisInfo((), align, unknown(op.result).unit, None, positive=True)


@_rule(memory.Shape)
def _shape(facts: AxisFacts, op: memory.Shape) -> AxisInfo:
    del facts, op
    return AxisInfo((), 1, positive=True)


@_rule(pointer.Load)
def _load(facts: AxisFacts, op: pointer.Load) -> AxisInfo:
    """Equal addresses hold equal values."""
    found = _elementwise(facts, op)
    return unknown(op.result) if op.volatile else found


def _elementwise(facts: AxisFacts, op: Op) -> AxisInfo:
    """Nothing but: equal operands give equal results."""
    out = unknown(op.results[0])
    tiles = [v for v in op.operands if isinstance(v.type, TileType)]
    infos = [facts.of(v) for v in tiles]
    axes = tuple(
        Axis(1, 1, reduce(gcd, (i.axes[d].constancy for i in infos))) if infos else Axis()
        for d in range(len(out.axes))
    )
    return AxisInfo(axes, 1, out.unit, None, out.positive)
