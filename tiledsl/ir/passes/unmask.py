"""Finds the iterations of a loop in which a mask cannot matter.

A select whose condition compares an affine function of the loop variable with something fixed is
always true for a range of iterations. The loop gets the bounds of that range; the select is marked.
Nothing else changes: who schedules the loop may run a copy without the mask over the range.

Where the select masks the result of a dot, the range is that of the rows which the executing warps
hold (`program.own_row`): warpgroups that share a tile by rows need different iterations masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from tiledsl.dtypes import int32
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import program
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.target import Target


@dataclass(frozen=True)
class Affine:
    """slope * iv + row_slope * row + sum of scalars + something in [low, high].

    terms: (scalar that the loop does not change, factor).
    row: index along the first dimension of the masked tile, of extent `rows`.
    """

    slope: int = 0
    terms: tuple[tuple[Value | RowEnd, int], ...] = ()
    low: int = 0
    high: int = 0
    row_slope: int = 0
    rows: int = 0

    @property
    def is_number(self) -> bool:
        """Whether it is one constant."""
        varies = self.slope or self.terms or self.row_slope
        return not varies and self.low == self.high

    def plus(self, other: Affine, sign: int) -> Affine:
        """self + sign * other."""
        ends = (other.low, other.high) if sign > 0 else (-other.high, -other.low)
        return Affine(
            self.slope + sign * other.slope,
            self.terms + tuple((v, sign * f) for v, f in other.terms),
            self.low + ends[0],
            self.high + ends[1],
            self.row_slope + sign * other.row_slope,
            max(self.rows, other.rows),
        )

    def times(self, factor: int) -> Affine:
        """factor * self."""
        low, high = sorted((self.low * factor, self.high * factor))
        terms = tuple((v, f * factor) for v, f in self.terms)
        row_slope = self.row_slope * factor
        return Affine(self.slope * factor, terms, low, high, row_slope, self.rows)

    def least(self, *, own: bool) -> Affine:
        """The least value without the part of the loop variable: over the own rows, or all."""
        low, terms = self.low, self.terms
        if self.row_slope:
            end = RowEnd(self.rows, last=self.row_slope < 0)
            if own:
                terms = (*terms, (end, self.row_slope))
            else:
                low += self.row_slope * end.among_all
        return Affine(0, terms, low, low)


@dataclass(frozen=True)
class RowEnd:
    """The first or last of the rows that the executing warps hold of a tile."""

    rows: int
    last: bool

    @property
    def among_all(self) -> int:
        """The same where they hold all."""
        return self.rows - 1 if self.last else 0


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
            known = _holds(op.condition, loop, _Rows(0, own=_masks_a_dot(op)))
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
    total: dict[Value | RowEnd, int] = {}
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
    """sum of the terms + low + extra, at most as far as int32 goes."""
    rest = form.low + extra
    ends = [(v, f) for v, f in form.terms if isinstance(v, RowEnd)]
    terms = [(v, f) for v, f in form.terms if not isinstance(v, RowEnd)]
    if not terms:
        out = b.value(ew.Constant(rest, int32))
    else:
        out = b.value(ew.Cast(terms[0][0], int32)) if _is_wide(terms[0][0]) else terms[0][0]
        out = _times(b, out, terms[0][1])
        for value, factor in terms[1:]:
            term = b.value(ew.Cast(value, int32)) if _is_wide(value) else value
            out = b.value(ew.Add(out, _times(b, term, factor)))
        room = abs(rest) + sum(abs(f) * v.rows for v, f in ends)
        if not all(f > 0 and isinstance(v.defining_op, Shape) for v, f in terms):
            low, high = (b.value(ew.Constant(x, int32)) for x in (room - 2**31, 2**31 - 1 - room))
            out = b.value(ew.Min(b.value(ew.Max(out, low)), high))
        if rest:
            out = b.value(ew.Add(b.value(ew.Constant(rest, int32)), out))
    for value, factor in ends:
        end = b.value(program.OwnRow(value.rows, value.last))
        out = b.value(ew.Add(out, _times(b, end, factor)))
    return out


def _is_wide(value: Value) -> bool:
    return value.type != ScalarType(int32)


def _times(b: Builder, value: Value, factor: int) -> Value:
    return value if factor == 1 else b.value(ew.Mul(value, b.value(ew.Constant(factor, int32))))


@dataclass(frozen=True)
class _Rows:
    """Which dimension of a value is the first one of the masked tile (None for none of them).

    own: whether the tile lies over warpgroups by these rows.
    """

    dim: int | None
    own: bool

    def through(self, op: Op) -> _Rows:
        """The same for the operand of a shape op."""
        dim = self.dim
        if isinstance(op, tile.ExpandDims) and dim is not None:
            dim = None if op.axis == dim else dim - (op.axis < dim)
        elif not isinstance(op, tile.Broadcast | tile.ExpandDims):
            dim = None
        return _Rows(dim, self.own)


def _masks_a_dot(select: ew.Select) -> bool:
    """Whether the masked values come from a dot through element-by-element ops only."""
    if not isinstance(select.result.type, TileType) or select.result.type.rank != 2:
        return False
    todo, seen = [select.a], set[int]()
    while todo:
        op = todo.pop().defining_op
        if isinstance(op, mma.Dot):
            return True
        if op is None or op.id in seen or not type(op).__module__.endswith(".elementwise"):
            continue
        seen.add(op.id)
        todo += op.operands
    return False


@deep
def _holds(condition: Value, loop: For, rows: _Rows) -> Range | None:  # noqa: C901 - a case per op
    """The iterations in which every element of a condition is true for sure."""
    op = condition.defining_op
    if isinstance(op, tile.Broadcast | tile.ExpandDims | tile.Splat):
        return _holds(op.a, loop, rows.through(op))
    if isinstance(op, ew.And):
        return _both(_holds(op.a, loop, rows), _holds(op.b, loop, rows))
    if isinstance(op, ew.Or):
        return _holds(op.a, loop, rows) or _holds(op.b, loop, rows)
    if not isinstance(op, ew.Compare) or not ew.element_dtype(op.a, "compare").is_int:
        return None
    a, b = _affine(op.a, loop, rows), _affine(op.b, loop, rows)
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
    least = gap.least(own=rows.own)
    if gap.slope == -1:
        return Range(stops=(least,))
    if gap.slope == 1:
        return Range(starts=(least.times(-1),))
    return None


def _both(a: Range | None, b: Range | None) -> Range | None:
    """Where both hold."""
    if a is None or b is None:
        return None
    return Range(a.starts + b.starts, a.stops + b.stops)


@deep
def _affine(value: Value, loop: For, rows: _Rows) -> Affine | None:  # noqa: C901 - a case per op
    """A value as an affine function of the loop variable, or None."""
    if value is loop.iv:
        return Affine(slope=1)
    op = value.defining_op
    if isinstance(value.type, ScalarType) and _is_outside(value, loop):
        if isinstance(op, ew.Constant):
            return Affine(0, (), int(op.value), int(op.value))
        return Affine(0, ((value, 1),))
    match op:
        case tile.Splat() | tile.Broadcast() | tile.ExpandDims() | tile.Reshape() | Hint():
            return _affine(op.a, loop, rows.through(op))
        case tile.Arange() if rows.dim == 0 and op.end - op.start > 1:
            return Affine(0, (), op.start, op.start, 1, op.end - op.start)
        case tile.Arange():
            return Affine(0, (), op.start, op.end - 1)
        case ew.Constant():
            return Affine(0, (), int(op.value), int(op.value))
        case ew.Add() | ew.Sub():
            a, b = _affine(op.a, loop, rows), _affine(op.b, loop, rows)
            if a is None or b is None:
                return None
            return a.plus(b, 1 if isinstance(op, ew.Add) else -1)
        case ew.Mul():
            a, b = _affine(op.a, loop, rows), _affine(op.b, loop, rows)
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
