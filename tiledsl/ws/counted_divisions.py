"""Quotients and remainders of a loop variable, counted along instead of divided anew.

`rs, c = i // steps, i % steps` of a loop that counts up by one: the remainder counts too, and where
it would reach the divisor it begins at 0 again and the quotient moves by one. The dividend of
`(32 * k + first) // n` moves by 32 an iteration: quotient and remainder of 32 by n are added, and
what the remainder then has too much is carried over. A division takes some 50 instructions, one
after the other, for which the copies of an iteration would wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.types import ScalarType
from tiledsl.ws.split_addresses import is_ahead

Division = ew.FloorDiv | ew.Mod


@dataclass(frozen=True)
class _Dividend:
    """`scale * loop variable + number + terms`; terms: numbers times what no iteration changes."""

    scale: int
    number: int
    terms: tuple[tuple[int, Value], ...] = ()

    def plus(self, other: _Dividend) -> _Dividend:
        return _Dividend(
            self.scale + other.scale, self.number + other.number, (*self.terms, *other.terms)
        )

    def times(self, factor: int) -> _Dividend:
        terms = tuple((factor * n, v) for n, v in self.terms)
        return _Dividend(factor * self.scale, factor * self.number, terms)


@dataclass(frozen=True)
class _Counter:
    """What a dividend is divided by, in which ops. step: how far it moves in an iteration."""

    dividend: _Dividend
    divisor: Value
    ops: tuple[Division, ...]
    step: int


def count_divisions(graph: TileGraph, region: Region) -> int:
    """Rewrites the loops under `region` that copy or load ahead; returns how many are counted."""
    count = 0
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        if any(isinstance(op, For) for op in loop.body.walk()):
            continue
        if not any(isinstance(o, Copy) or is_ahead(graph, o) for o in loop.body.walk()):
            continue
        found = _counters(loop, axis_facts(region, graph.facts.get("divisors", {})))
        if found:
            _rewrite(graph, loop, found)
            count += len(found)
    return count


def _counters(loop: For, facts: AxisFacts) -> list[_Counter]:
    """Divisions of numbers that are never below 0, by what the loop does not change."""
    step = constant_value(loop.step)
    if not isinstance(step, int) or step <= 0:
        return []
    made = (v for op in loop.body.walk() for v in op.results)
    inside = frozenset((*made, *loop.body.args))
    found: dict[tuple[_Dividend, Value], list[Division]] = {}
    for op in loop.body.ops:
        if not isinstance(op, Division) or op.result.type != loop.iv.type:
            continue
        is_number = constant_value(op.b) is not None  # a few instructions, none of them slow
        if op.b in inside or is_number or not facts.of(op.a).positive:
            continue
        dividend = _dividend(loop, op.a, inside)
        if dividend is not None and dividend.scale > 0:
            found.setdefault((dividend, op.b), []).append(op)
    return [_Counter(d, by, tuple(ops), d.scale * step) for (d, by), ops in found.items()]


@deep
def _dividend(loop: For, value: Value, inside: frozenset[Value]) -> _Dividend | None:
    """A value as a sum; None where it is none."""
    if value is loop.iv:
        return _Dividend(1, 0)
    number = constant_value(value)
    if isinstance(number, int) and not isinstance(number, bool):
        return _Dividend(0, number)
    if value not in inside:
        return _Dividend(0, 0, ((1, value),)) if value.type == loop.iv.type else None
    op = value.defining_op
    if not isinstance(op, ew.Add | ew.Mul):
        return None
    a, b = (_dividend(loop, v, inside) for v in (op.a, op.b))
    if a is None or b is None:
        return None
    if isinstance(op, ew.Add):
        return a.plus(b)
    for x, y in ((a, b), (b, a)):
        if not x.scale and not x.terms:
            return y.times(x.number)
    return None


def _rewrite(graph: TileGraph, old: For, counters: list[_Counter]) -> None:
    assert old.parent is not None
    b = Builder(graph, old.parent, old.parent.ops.index(old), old.loc)
    starts: list[Value] = []
    limits: list[_Limit] = []
    for c in counters:
        first = _first(b, old, c.dividend)
        starts += [b.value(ew.FloorDiv(first, c.divisor)), b.value(ew.Mod(first, c.divisor))]
        limits.append(_limit(b, c.divisor, c.step))
    end = old.body.terminator
    assert isinstance(end, Yield)
    new = For(
        old.lower, old.upper, old.step, (*old.init, *starts), old.unroll,
        old.unmasked_from, old.unmasked_until, body=Region(), loc=old.loc,
    )  # fmt: skip
    args = [new.body.add_arg(a.type, a.name) for a in old.body.args]
    counted = [
        new.body.add_arg(v.type, name) for v, name in zip(starts, _names(counters), strict=True)
    ]
    b.add(new)
    for op in list(old.body.ops):
        graph.move_to(op, new.body)
    for a, fresh in zip(old.body.args, args, strict=True):
        graph.replace_uses(a, fresh)
    for c, at in zip(counters, range(0, len(counted), 2), strict=True):
        for op in c.ops:
            graph.replace_uses(op.result, counted[at + isinstance(op, ew.Mod)])
            graph.erase(op)
    inner = Builder(graph, new.body, new.body.ops.index(end), old.loc)
    nexts = [
        v
        for limit, at in zip(limits, range(0, len(counted), 2), strict=True)
        for v in _next(inner, counted[at], counted[at + 1], limit)
    ]
    graph.replace_op(end, Yield((*end.values, *nexts), loc=end.loc))
    for a, fresh in zip(old.results, new.results, strict=False):
        fresh.name = a.name
        graph.replace_uses(a, fresh)
    graph.erase(old)


def _first(b: Builder, loop: For, dividend: _Dividend) -> Value:
    """The dividend of the first iteration."""
    parts = [(dividend.scale, loop.lower), *dividend.terms]
    out: Value | None = None
    for factor, value in parts:
        term = value if factor == 1 else b.value(ew.Mul(value, _constant(b, factor, value)))
        out = term if out is None else b.value(ew.Add(out, term))
    assert out is not None
    if dividend.number:
        out = b.value(ew.Add(out, _constant(b, dividend.number, out)))
    return out


@dataclass(frozen=True)
class _Limit:
    """rest: where a remainder begins anew. move: by how much the quotient then moves.

    quotients, rests: what an iteration adds to both besides, None where that is 0 and 1.
    """

    rest: Value
    move: Value
    quotients: Value | None = None
    rests: Value | None = None


def _next(b: Builder, quotient: Value, rest: Value, limit: _Limit) -> tuple[Value, Value]:
    """Quotient and remainder of the iteration after one."""
    if limit.quotients is None or limit.rests is None:
        following = b.value(ew.Add(rest, _constant(b, 1, rest)))
        is_full = b.value(ew.Compare("eq", following, limit.rest))
        moved = b.value(ew.Select(is_full, b.value(ew.Add(quotient, limit.move)), quotient))
        return moved, b.value(ew.Select(is_full, _constant(b, 0, rest), following))
    following = b.value(ew.Add(rest, limit.rests))
    is_full = b.value(ew.Compare("ge", following, limit.rest))
    moved = b.value(ew.Add(quotient, limit.quotients))
    carried = b.value(ew.Add(moved, limit.move))
    left = b.value(ew.Sub(following, limit.rest))
    return b.value(ew.Select(is_full, carried, moved)), b.value(ew.Select(is_full, left, following))


def _names(counters: list[_Counter]) -> list[str]:
    return [
        next((op.result.name for op in c.ops if isinstance(op, ew.Mod) == is_rest), "")
        for c in counters
        for is_rest in (False, True)
    ]


def _limit(b: Builder, divisor: Value, step: int) -> _Limit:
    """What an iteration adds, and where that is carried over.

    Divisors below 0 count downwards; a quotient and a remainder by 0 stay 0.
    """
    zero, one = (_constant(b, n, divisor) for n in (0, 1))
    is_zero = b.value(ew.Compare("eq", divisor, zero))
    limit = b.value(ew.Select(is_zero, one, b.value(ew.Abs(divisor))))
    is_below = b.value(ew.Compare("lt", divisor, zero))
    down = b.value(ew.Select(is_below, _constant(b, -1, divisor), one))
    move = b.value(ew.Select(is_zero, zero, down))
    if step == 1:
        return _Limit(limit, move)
    whole = _constant(b, step, divisor)
    quotients = b.value(ew.Mul(b.value(ew.FloorDiv(whole, limit)), move))
    return _Limit(limit, move, quotients, b.value(ew.Mod(whole, limit)))


def _constant(b: Builder, number: int, like: Value) -> Value:
    assert isinstance(like.type, ScalarType)
    return b.value(ew.Constant(number, like.type.dtype))
