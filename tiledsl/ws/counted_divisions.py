"""Quotients and remainders of a loop variable, counted along instead of divided anew.

`rs, c = i // steps, i % steps` of a loop that counts up by one: the remainder counts too, and where
it would reach the divisor it begins at 0 again and the quotient moves by one. A division takes some
50 instructions, one after the other, for which the copies of an iteration would wait.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.types import ScalarType

Division = ew.FloorDiv | ew.Mod


@dataclass(frozen=True)
class _Counter:
    """What `loop variable + ahead` is divided by, in which ops."""

    ahead: int
    divisor: Value
    ops: tuple[Division, ...]


def count_divisions(graph: TileGraph, region: Region) -> int:
    """Rewrites the loops with copies under `region`; returns how many pairs are counted."""
    count = 0
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        if any(isinstance(op, For) for op in loop.body.walk()):
            continue
        found = _counters(loop) if any(isinstance(op, Copy) for op in loop.body.walk()) else []
        if found:
            _rewrite(graph, loop, found)
            count += len(found)
    return count


def _counters(loop: For) -> list[_Counter]:
    """Divisions of a loop that begins at a number that is not below 0 and counts up by one."""
    lower = constant_value(loop.lower)
    if not isinstance(lower, int) or lower < 0 or constant_value(loop.step) != 1:
        return []
    inside = {v for op in loop.body.walk() for v in op.results} | set(loop.body.args)
    found: dict[tuple[int, Value], list[Division]] = {}
    for op in loop.body.ops:
        if not isinstance(op, Division) or not isinstance(op.result.type, ScalarType):
            continue
        ahead = _ahead(loop, op.a)
        is_number = constant_value(op.b) is not None  # a few instructions, none of them slow
        if ahead is not None and op.b not in inside and not is_number:
            found.setdefault((ahead, op.b), []).append(op)
    return [_Counter(ahead, by, tuple(ops)) for (ahead, by), ops in found.items()]


def _ahead(loop: For, value: Value) -> int | None:
    """How far a value is ahead of the loop variable; None where it is no such sum."""
    if value is loop.iv:
        return 0
    op = value.defining_op
    if not isinstance(op, ew.Add):
        return None
    sides = [_number(v) for v in (op.a, op.b) if v is not loop.iv]
    if len(sides) != 1 or sides[0] is None or sides[0] < 0:
        return None
    return sides[0]


def _number(value: Value) -> int | None:
    """A constant, or a product of two."""
    op = value.defining_op
    if isinstance(op, ew.Mul):
        a, b = _number(op.a), _number(op.b)
        return None if a is None or b is None else a * b
    found = constant_value(value)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _rewrite(graph: TileGraph, old: For, counters: list[_Counter]) -> None:
    assert old.parent is not None
    b = Builder(graph, old.parent, old.parent.ops.index(old), old.loc)
    starts: list[Value] = []
    limits: list[tuple[Value, Value]] = []
    for c in counters:
        first = old.lower
        if c.ahead:
            first = b.value(ew.Add(first, _constant(b, c.ahead, old.iv)))
        starts += [b.value(ew.FloorDiv(first, c.divisor)), b.value(ew.Mod(first, c.divisor))]
        limits.append(_limit(b, c.divisor))
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
        for (limit, move), at in zip(limits, range(0, len(counted), 2), strict=True)
        for v in _next(inner, counted[at], counted[at + 1], limit, move)
    ]
    graph.replace_op(end, Yield((*end.values, *nexts), loc=end.loc))
    for a, fresh in zip(old.results, new.results, strict=False):
        fresh.name = a.name
        graph.replace_uses(a, fresh)
    graph.erase(old)


def _next(
    b: Builder, quotient: Value, rest: Value, limit: Value, move: Value
) -> tuple[Value, Value]:
    """Quotient and remainder of the iteration after one."""
    following = b.value(ew.Add(rest, _constant(b, 1, rest)))
    is_full = b.value(ew.Compare("eq", following, limit))
    moved = b.value(ew.Select(is_full, b.value(ew.Add(quotient, move)), quotient))
    return moved, b.value(ew.Select(is_full, _constant(b, 0, rest), following))


def _names(counters: list[_Counter]) -> list[str]:
    return [
        next((op.result.name for op in c.ops if isinstance(op, ew.Mod) == is_rest), "")
        for c in counters
        for is_rest in (False, True)
    ]


def _limit(b: Builder, divisor: Value) -> tuple[Value, Value]:
    """Where a remainder begins anew, and by how much the quotient then moves.

    Divisors below 0 count downwards; a quotient and a remainder by 0 stay 0.
    """
    zero, one = (_constant(b, n, divisor) for n in (0, 1))
    is_zero = b.value(ew.Compare("eq", divisor, zero))
    limit = b.value(ew.Select(is_zero, one, b.value(ew.Abs(divisor))))
    is_below = b.value(ew.Compare("lt", divisor, zero))
    down = b.value(ew.Select(is_below, _constant(b, -1, divisor), one))
    return limit, b.value(ew.Select(is_zero, zero, down))


def _constant(b: Builder, number: int, like: Value) -> Value:
    assert isinstance(like.type, ScalarType)
    return b.value(ew.Constant(number, like.type.dtype))
