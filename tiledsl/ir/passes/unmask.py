"""Finds the iterations of a loop in which a mask cannot matter.

A select whose condition compares an affine function of the loop variable with something fixed is
always true for a range of iterations. The loop gets the bounds of that range; the select is marked.
Nothing else changes: who schedules the loop may run a copy without the mask over the range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import ScalarType
from tiledsl.target import Target


@dataclass(frozen=True)
class Affine:
    """slope * iv + sum of scalars + something in [low, high].

    terms: (value, factor) of scalars that the loop does not change.
    """

    slope: int = 0
    terms: tuple[tuple[Value, int], ...] = ()
    low: int = 0
    high: int = 0

    @property
    def is_number(self) -> bool:
        """Whether it is one constant."""
        return not self.slope and not self.terms and self.low == self.high

    def plus(self, other: Affine, sign: int) -> Affine:
        """self + sign * other."""
        ends = (other.low, other.high) if sign > 0 else (-other.high, -other.low)
        terms = self.terms + tuple((v, sign * f) for v, f in other.terms)
        return Affine(
            self.slope + sign * other.slope, terms, self.low + ends[0], self.high + ends[1]
        )

    def times(self, factor: int) -> Affine:
        """factor * self."""
        ends = sorted((self.low * factor, self.high * factor))
        terms = tuple((v, f * factor) for v, f in self.terms)
        return Affine(self.slope * factor, terms, ends[0], ends[1])


@dataclass(frozen=True)
class Range:
    """Iterations in which a condition holds for sure: iv >= every start and iv <= every stop."""

    starts: tuple[Affine, ...] = ()
    stops: tuple[Affine, ...] = ()


@register_pass("unmask", consumes=Level.TILE, produces=Level.TILE)
def unmask(graph: TileGraph, target: Target) -> PassReport:
    """Marks selects and gives their loops `unmasked_from` and `unmasked_until`."""
    del target
    changes = 0
    for loop in graph.find(For):
        changes += _unmask_loop(graph, loop)
    return PassReport("unmask", changes)


def _unmask_loop(graph: TileGraph, loop: For) -> int:
    step = loop.step.defining_op
    if not isinstance(step, ew.Constant) or step.value <= 0 or loop.iv.type != ScalarType(int32):
        return 0
    if loop.unmasked_from is not None or loop.unmasked_until is not None:
        return 0
    found: list[tuple[ew.Select, Range]] = []
    for op in loop.body.ops:
        if isinstance(op, ew.Select) and not op.masks:
            known = _holds(op.condition, loop)
            if known is not None and (known.starts or known.stops):
                found.append((op, known))
    if not found or _is_empty([known for _, known in found]):
        return 0
    parent = loop.parent
    assert parent is not None
    b = Builder(graph, parent, parent.ops.index(loop), loop.loc)
    starts = [_scalar(b, form, 0) for _, known in found for form in known.starts]
    stops = [_scalar(b, form, 1) for _, known in found for form in known.stops]
    start = reduce(lambda x, y: b.value(ew.Max(x, y)), starts) if starts else None
    until = reduce(lambda x, y: b.value(ew.Min(x, y)), stops) if stops else None
    for select, _ in found:
        graph.replace_op(select, select.rebuild({}, masks=True))
    new = For(
        loop.lower, loop.upper, loop.step, loop.init, loop.unroll, start, until, body=Region()
    )
    new.loc = loop.loc
    _move_body(graph, loop, new)
    return len(found)


def _is_empty(ranges: list[Range]) -> bool:
    """Whether no iteration lies in all ranges: one begins a known distance behind another's end."""
    starts = [form for known in ranges for form in known.starts]
    stops = [form for known in ranges for form in known.stops]
    return any(a.low > b.low and _same_terms(a, b) for a in starts for b in stops)


def _same_terms(a: Affine, b: Affine) -> bool:
    total: dict[Value, int] = {}
    for value, factor in (*a.terms, *((v, -f) for v, f in b.terms)):
        total[value] = total.get(value, 0) + factor
    return not any(total.values())


def _move_body(graph: TileGraph, old: For, new: For) -> None:
    """Puts `new` in the place of `old` with the same body."""
    mapping = {a: new.body.add_arg(a.type, a.name) for a in old.body.args}
    graph.insert_before(old, new)
    for op in list(old.body.ops):
        graph.move_to(op, new.body)
    for a, fresh in mapping.items():
        graph.replace_uses(a, fresh)
    for a, r in zip(old.results, new.results, strict=True):
        r.name = a.name
        graph.replace_uses(a, r)
    graph.erase(old)


def _scalar(b: Builder, form: Affine, extra: int) -> Value:
    """sum of the terms + low + extra."""
    out = b.value(ew.Constant(form.low + extra, int32))
    for value, factor in form.terms:
        term = value
        if value.type != ScalarType(int32):
            term = b.value(ew.Cast(value, int32))
        if factor != 1:
            term = b.value(ew.Mul(term, b.value(ew.Constant(factor, int32))))
        out = b.value(ew.Add(out, term))
    return out


def _holds(condition: Value, loop: For) -> Range | None:  # noqa: C901 - a case per op
    """The iterations in which every element of a condition is true for sure."""
    op = condition.defining_op
    if isinstance(op, tile.Broadcast | tile.ExpandDims | tile.Splat):
        return _holds(op.a, loop)
    if isinstance(op, ew.And):
        return _both(_holds(op.a, loop), _holds(op.b, loop))
    if not isinstance(op, ew.Compare) or not ew.element_dtype(op.a, "compare").is_int:
        return None
    a, b = _affine(op.a, loop), _affine(op.b, loop)
    if a is None or b is None:
        return None
    match op.predicate:
        case "ge":
            gap = a.plus(b, -1)
        case "gt":
            gap = a.plus(b, -1).plus(Affine(0, (), 1, 1), -1)
        case "le":
            gap = b.plus(a, -1)
        case "lt":
            gap = b.plus(a, -1).plus(Affine(0, (), 1, 1), -1)
        case _:
            return None
    # The condition holds where slope * iv + terms + low >= 0.
    if gap.slope == -1:
        return Range(stops=(Affine(0, gap.terms, gap.low, gap.low),))
    if gap.slope == 1:
        return Range(starts=(Affine(0, gap.terms, gap.low, gap.low).times(-1),))
    return None


def _both(a: Range | None, b: Range | None) -> Range | None:
    """Where both hold."""
    if a is None or b is None:
        return None
    return Range(a.starts + b.starts, a.stops + b.stops)


def _affine(value: Value, loop: For) -> Affine | None:  # noqa: C901 - a case per op
    """A value as an affine function of the loop variable, or None."""
    if value is loop.iv:
        return Affine(slope=1)
    op = value.defining_op
    if isinstance(value.type, ScalarType) and _is_outside(value, loop):
        if isinstance(op, ew.Constant):
            return Affine(0, (), int(op.value), int(op.value))
        return Affine(0, ((value, 1),))
    match op:
        case tile.Splat() | tile.Broadcast() | tile.ExpandDims() | tile.Reshape():
            return _affine(op.a, loop)
        case tile.Arange():
            return Affine(0, (), op.start, op.end - 1)
        case ew.Constant():
            return Affine(0, (), int(op.value), int(op.value))
        case ew.Add() | ew.Sub():
            a, b = _affine(op.a, loop), _affine(op.b, loop)
            if a is None or b is None:
                return None
            return a.plus(b, 1 if isinstance(op, ew.Add) else -1)
        case ew.Mul():
            a, b = _affine(op.a, loop), _affine(op.b, loop)
            for x, y in ((a, b), (b, a)):
                if x is not None and y is not None and x.is_number:
                    return y.times(x.low)
            return None
        case _:
            return None


def _is_outside(value: Value, loop: For) -> bool:
    """Whether a value is defined before the loop."""
    owner = value.owner
    region = owner.parent if not isinstance(owner, Region) else owner
    while region is not None:
        if region is loop.body:
            return False
        parent = region.parent
        region = parent.parent if parent is not None else None
    return True
