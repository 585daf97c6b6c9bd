"""`x // y * y + x % y` is x: what an index is cut into and put together again.

A copy of heads that lie side by side takes `i // head_size * stride + i % head_size`, where the
stride is the size. Put together, the index is contiguous and takes no division.
"""

from __future__ import annotations

from tiledsl.ir.analysis.axis_values import Divisors
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import splat_source
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.target import Target


@register_pass("join-quotients", consumes=Level.TILE, produces=Level.TILE)
def join_quotients(graph: TileGraph, target: Target) -> PassReport:
    """Joins a quotient times its divisor and a remainder that are terms of one sum.

    The divisor is a number or an argument that is over 0: a division by 0 gives 0 here.
    """
    del target
    changes = 0
    sums: list[ew.Add] = graph.find(ew.Add)
    for op in reversed(sums):
        if op.parent is not None and _is_int(op.result) and not _is_term(graph, op):
            changes += _join(graph, op)
    return PassReport("join-quotients", changes)


def _is_term(graph: TileGraph, op: ew.Add) -> bool:
    """Whether a sum is only part of a larger one."""
    users = [u.op for u in graph.users(op.result)]
    return bool(users) and all(isinstance(u, ew.Add) for u in users)


def _join(graph: TileGraph, op: ew.Add) -> bool:
    terms = _terms(op.result)
    for n, rest in enumerate(terms):
        mod = _bare(rest)
        if not isinstance(mod, ew.Mod) or not _is_over_zero(graph, mod.b):
            continue
        for m, product in enumerate(terms):
            mul = _bare(product)
            if isinstance(mul, ew.Mul) and _is_quotient(mul, mod.a, mod.b):
                _replace(graph, op, [t for i, t in enumerate(terms) if i not in (n, m)], mod.a)
                return True
    return False


MOST_TERMS = 256
"""Of a sum that is looked at."""


def _terms(value: Value) -> list[Value]:
    """What a sum adds up, or the sum where it has too many terms."""
    terms: list[Value] = []
    todo = [value]
    while todo:
        op = (last := todo.pop()).defining_op
        if not isinstance(op, ew.Add):
            terms.append(last)
        elif len(todo) + len(terms) < MOST_TERMS:
            todo += (op.b, op.a)
        else:
            return [value]
    return terms


def _bare(value: Value) -> Op | None:
    """What makes a term, which may be widened."""
    op = value.defining_op
    while isinstance(op, ew.Cast) and _is_int(op.a) and _bits(op.a) <= _bits(op.result):
        op = op.a.defining_op
    return op


def _is_quotient(op: ew.Mul, x: Value, y: Value) -> bool:
    """Whether a product is `x // y * y`."""
    for quotient, factor in ((op.a, op.b), (op.b, op.a)):
        made = _bare(quotient)
        if isinstance(made, ew.FloorDiv) and _same(factor, y) and _same(made.a, x):
            return _same(made.b, y)
    return False


def _same(a: Value, b: Value) -> bool:
    """Whether two values are one, widened or made a tile."""
    if _source(a) is _source(b):
        return True
    known = (constant_value(a), constant_value(b))
    return known[0] is not None and known[0] == known[1]


def _source(value: Value) -> Value:
    while True:
        op = value.defining_op
        is_wider = isinstance(op, ew.Cast) and _is_int(op.a) and _bits(op.a) <= _bits(value)
        inner = op.a if isinstance(op, ew.Cast) and is_wider else splat_source(value)
        if inner is value:
            return value
        value = inner


def _is_over_zero(graph: TileGraph, value: Value) -> bool:
    number = constant_value(value)
    if number is not None:
        return number > 0
    source = splat_source(value) or value
    divisors = graph.facts.get("divisors", {})
    numbers = divisors.numbers if isinstance(divisors, Divisors) else {}
    return source in graph.args and numbers.get(source.name, (1, False))[1]


def _replace(graph: TileGraph, op: ew.Add, terms: list[Value], x: Value) -> None:
    type_ = op.result.type
    assert isinstance(type_, ScalarType | TileType)
    total: Value | None = None
    for term in [*terms, x]:
        made = term
        if made.type != type_:
            cast = ew.Cast(made, type_.dtype, loc=op.loc)
            graph.insert_before(op, cast)
            made = cast.result
        if total is not None:
            add = ew.Add(total, made, loc=op.loc)
            graph.insert_before(op, add)
            made = add.result
        total = made
    assert total is not None
    total.name = op.result.name
    graph.replace_uses(op.result, total)
    graph.erase(op)


def _is_int(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, ScalarType | TileType) and type_.dtype.kind == "int"


def _bits(value: Value) -> int:
    type_ = value.type
    assert isinstance(type_, ScalarType | TileType)
    return type_.dtype.bits
