"""Contiguity, divisibility and constancy of integer and pointer tiles, per dimension.

A tile is cut along a dimension into runs of `contiguity` elements that count up by one (pointers:
by one element), and into runs of `constancy` equal elements; the first element of each run of the
former kind is a multiple of `divisibility` (pointers: in bytes). From these follow the width of
vector accesses and whether a mask holds for a vector as a whole.
Ref: the axis analysis of pointer-based tile compilers; the rules are written out below.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import Any

from tiledsl.ir.analysis.constants import wrap
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import program
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.memory_base import Base
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

MOST = 1 << 30
MAX_ROUNDS = 8


@dataclass(frozen=True)
class Axis:
    """Facts along one dimension."""

    contiguity: int = 1
    divisibility: int = 1
    constancy: int = 1


@dataclass(frozen=True)
class AxisInfo:
    """Facts about a value.

    every: divides every element. unit: what one step of contiguity is worth (bytes of an element
    for pointers, else 1). value: the constant that every element is. positive: none is negative.
    """

    axes: tuple[Axis, ...] = ()
    every: int = 1
    unit: int = 1
    value: int | None = None
    positive: bool = False

    def at_runs(self, dim: int, run: int) -> int:
        """Divides the elements at multiples of `run` along a dimension."""
        axis = self.axes[dim]
        step = gcd(run, axis.contiguity)
        inside = gcd(axis.divisibility, step * self.unit)
        found = axis.divisibility if step == axis.contiguity else inside
        return max(found, self.every)

    def width(self, dim: int, limit: int) -> int:
        """Largest power of two of neighbours along a dimension that one access may take."""
        width = limit
        axis = self.axes[dim]
        while width > 1 and (
            axis.contiguity % width or self.at_runs(dim, width) % (width * self.unit)
        ):
            width //= 2
        return max(1, width)


class Divisors(dict[str, int]):
    """What divides arguments by name: addresses (bytes) and integers over 0.

    numbers: of integers whose sign is known, what divides them and whether they are over 0.
    """

    def __init__(
        self, divisors: Mapping[str, int], numbers: Mapping[str, tuple[int, bool]]
    ) -> None:
        super().__init__(divisors)
        self.numbers = dict(numbers)


def _power_of_two(n: int) -> int:
    """The largest power of two that divides n."""
    return min(n & -n, MOST) if n else MOST


def unknown(value: Value) -> AxisInfo:
    """Nothing but the rank."""
    type_ = value.type
    rank = type_.rank if isinstance(type_, TileType) else 0
    unit = 1
    if isinstance(type_, ScalarType | TileType):
        element = type_.dtype.element
        unit = element.bytes if element is not None else 1
        positive = type_.dtype.kind in ("uint", "bool", "ptr")
        return AxisInfo((Axis(),) * rank, 1, unit, None, positive)
    return AxisInfo((Axis(),) * rank, 1, unit)


class AxisFacts:
    """The analysis of a region, made with the first question; ask for values in or around it.

    trusting: takes the difference of two computed numbers that are not below 0, such as a tile's
    number less that of the first tile of its group, not to be below 0 either.
    """

    def __init__(
        self, divisors: Mapping[str, int], region: Region | None = None, *, trusting: bool = False
    ) -> None:
        self.trusting = trusting
        self.divisors = divisors
        self.numbers = divisors.numbers if isinstance(divisors, Divisors) else {}
        self.known: dict[Value, AxisInfo] = {}
        self.region = region

    def of(self, value: Value) -> AxisInfo:
        """Facts about an integer, bool or pointer value."""
        if self.region is not None:
            region, self.region = self.region, None
            self.analyze(region)
        if value not in self.known:
            self.known[value] = self._compute(value)
        return self.known[value]

    def analyze(self, region: Region) -> None:
        """Goes through a region in order; carried values by iteration from above."""
        for op in region.ops:
            match op:
                case For():
                    self._loop(op)
                case While():
                    self._while(op)
                case If():
                    self.analyze(op.then)
                    self.analyze(op.orelse)
                    for i, result in enumerate(op.results):
                        sides = (_yielded(op.then)[i], _yielded(op.orelse)[i])
                        self.known[result] = meet(*map(self.of, sides))
                case _:
                    for inner in op.regions:
                        self.analyze(inner)
                    for result in op.results:
                        self.known[result] = self._compute(result)

    def _loop(self, op: For) -> None:
        self.known[op.iv] = self._counted(op)
        self._settle(op.init, [op.carried], lambda: self._body(op.body))
        for result, arg in zip(op.results, op.carried, strict=True):
            self.known[result] = self.known[arg]

    def _argument(self, value: Value) -> AxisInfo:
        """What is said of an argument of the kernel; nothing of a value that a loop carries."""
        found = unknown(value)
        if not _is_given(value):
            return found
        every, positive = self.numbers.get(value.name, (1, False))
        every = max(every, _power_of_two(self.divisors.get(value.name, 1)))
        return AxisInfo(found.axes, every, found.unit, None, positive or found.positive)

    def may_be_negative(self, value: Value) -> bool:
        """Whether a scalar is made of an argument that is not over 0.

        Other divisors of indexes, such as sizes of groups, are taken to be positive.
        """
        seen: set[Value] = set()
        todo = [value]
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            op = v.defining_op
            if op is not None:
                todo += op.operands
            elif _is_given(v) and not self.numbers.get(v.name, (1, True))[1]:
                return True
        return False

    def _counted(self, op: For) -> AxisInfo:
        """The variable of a loop."""
        lower, upper, step = self.of(op.lower), self.of(op.upper), self.of(op.step)
        ends_at_zero = upper.value is not None and upper.value >= -1
        is_down = step.value is not None and step.value < 0
        positive = ends_at_zero if is_down else lower.positive and step.positive
        return AxisInfo((), gcd(lower.every, step.every), positive=positive)

    def _while(self, op: While) -> None:
        before, body = op.before.args, op.body.args

        def run() -> tuple[Value, ...]:
            self.analyze(op.before)
            for arg, value in zip(body, _yielded(op.before)[1:], strict=True):
                self.known[arg] = self.of(value)
            return self._body(op.body)

        self._settle(op.init, [before], run)
        for result, arg in zip(op.results, body, strict=True):
            self.known[result] = self.known[arg]

    def _body(self, region: Region) -> tuple[Value, ...]:
        self.analyze(region)
        return _yielded(region)

    def _settle(
        self,
        init: Sequence[Value],
        args: Sequence[Sequence[Value]],
        run: Callable[[], tuple[Value, ...]],
    ) -> None:
        """Assumes of carried values what holds at first, until an iteration keeps it."""
        (carried,) = args
        for arg, value in zip(carried, init, strict=True):
            self.known[arg] = self.of(value)
        for round_ in range(MAX_ROUNDS):
            changed = False
            for arg, value in zip(carried, run(), strict=True):
                old = self.known[arg]
                new = meet(old, self.of(value)) if round_ < MAX_ROUNDS - 2 else unknown(arg)
                changed |= new != old
                self.known[arg] = new
            if not changed:
                return

    def _compute(self, value: Value) -> AxisInfo:
        op = value.defining_op
        if op is None:
            loop = value.owner.parent if isinstance(value.owner, Region) else None
            if isinstance(loop, For) and value is loop.iv:
                return self._counted(loop)
            return self._argument(value)
        rule = _RULES.get(op.opcode)
        return rule(self, op) if rule is not None else unknown(value)


def _yielded(region: Region) -> tuple[Value, ...]:
    end = region.terminator
    return end.values if isinstance(end, Yield) else ()


def meet(a: AxisInfo, b: AxisInfo) -> AxisInfo:
    """What holds of both; also of a tile whose elements come from either."""
    axes: list[Axis] = []
    for dim, (x, y) in enumerate(zip(a.axes, b.axes, strict=True)):
        run = gcd(x.contiguity, y.contiguity)
        divisor = gcd(a.at_runs(dim, run), b.at_runs(dim, run))
        axes.append(Axis(run, divisor, gcd(x.constancy, y.constancy)))
    value = a.value if a.value == b.value else None
    return AxisInfo(tuple(axes), gcd(a.every, b.every), a.unit, value, a.positive and b.positive)


# ---------------------------------------------------------------------- rules
Rule = Callable[[AxisFacts, Any], AxisInfo]
_RULES: dict[str, Rule] = {}


def _rule(*classes: type[Op]) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update({cls.opcode: function for cls in classes})
        return function

    return register


def _uniform(rank_of: Value, every: int, value: int | None, *, positive: bool) -> AxisInfo:
    """The same number everywhere."""
    type_ = rank_of.type
    shape = type_.shape if isinstance(type_, TileType) else ()
    axes = tuple(Axis(1, every, n) for n in shape)
    return AxisInfo(axes, every, unknown(rank_of).unit, value, positive)


@_rule(ew.Constant)
def _constant(facts: AxisFacts, op: ew.Constant) -> AxisInfo:
    if not op.dtype.is_int:
        return unknown(op.result)
    value = wrap(int(op.value), op.dtype)
    return _uniform(op.result, _power_of_two(value), value, positive=value >= 0)


@_rule(program.ProgramId, program.NumPrograms, program.OwnRow)
def _program(facts: AxisFacts, op: Op) -> AxisInfo:
    return AxisInfo((), 1, positive=True)


@_rule(tile.Arange)
def _arange(facts: AxisFacts, op: tile.Arange) -> AxisInfo:
    count = op.end - op.start
    axis = Axis(count, _power_of_two(op.start), 1)
    every = _power_of_two(op.start) if count == 1 else 1
    return AxisInfo((axis,), every, positive=op.start >= 0)


@_rule(tile.Splat)
def _splat(facts: AxisFacts, op: tile.Splat) -> AxisInfo:
    a = facts.of(op.a)
    return _uniform(op.result, a.every, a.value, positive=a.positive)


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
        every = max(a.every, *map(_power_of_two, op.divisibility or (1,)))
        return AxisInfo((), every, a.unit, a.value, a.positive)
    axes: list[Axis] = []
    for dim, x in enumerate(a.axes):
        stated = [f[dim] if f else 1 for f in (op.contiguity, op.divisibility, op.constancy)]
        axes.append(
            Axis(
                max(x.contiguity, stated[0]),
                max(x.divisibility, _power_of_two(stated[1])),
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
    positive = _is_turned(op) or (is_trusted and not _is_given(op.b))
    return AxisInfo(tuple(axes), gcd(a.every, b.every), value=value, positive=positive)


def _is_given(value: Value) -> bool:
    """Whether a value is an argument of the kernel."""
    return isinstance(value.owner, Region) and value.owner.parent is None


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
        Axis(1, _capped(a.at_runs(d, 1) * b.at_runs(d, 1)), gcd(x.constancy, y.constancy))
        for d, (x, y) in enumerate(zip(a.axes, b.axes, strict=True))
    ]
    value = None if a.value is None or b.value is None else a.value * b.value
    every = _capped(a.every * b.every)
    return AxisInfo(tuple(axes), every, 1, value, a.positive and b.positive)


@_rule(ew.Shl)
def _shl(facts: AxisFacts, op: ew.Shl) -> AxisInfo:
    a, b = facts.of(op.a), facts.of(op.b)
    if b.value is None or not 0 <= b.value < 30:
        return unknown(op.result)
    axes = [Axis(1, _capped(a.at_runs(d, 1) << b.value), x.constancy) for d, x in enumerate(a.axes)]
    small = a.positive and b.value <= 16  # as a factor that leaves room
    return AxisInfo(tuple(axes), _capped(a.every << b.value), positive=small)


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


def _capped(n: int) -> int:
    return min(n, MOST) if n & (n - 1) == 0 else _power_of_two(n)


def axis_facts(region: Region, divisors: Mapping[str, int]) -> AxisFacts:
    """The analysis of a region. divisors: of arguments by name (addresses: bytes)."""
    return AxisFacts(divisors, region)
