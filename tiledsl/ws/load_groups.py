"""Loads of several iterations at once, where one iteration loads only little.

A loop that carries the loads of one iteration has few bytes on their way when these are small: it
takes as many iterations together as make up for it. The loads of the next group stand at the top of
the body; of its iterations, those beyond the end are left out.
"""

from __future__ import annotations

from collections.abc import Callable

from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import trip_count
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.graph import mapped
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.types import ScalarType

MOST_ITERATIONS = 4
MOST_OPS = 64
"""Of a body that is repeated."""
MOST_STEP = 4096
"""With this, what lies two groups ahead of an index does not wrap (integers close to 2**31 have
64 bits)."""

Loads = Callable[[Builder, dict[Value, Value], Value], list[Value]]
"""Makes the loads of an iteration: builder, what stands for values, whether it exists."""


def iterations_at_once(loop: For, load_bytes: int, most_bytes: int) -> int:
    """How many iterations of a loop load together; load_bytes: of a thread, in one of them."""
    step = constant_value(loop.step)
    ops = list(loop.body.walk())
    has_regions = any(op.regions for op in ops)
    if step is None or not 0 < step <= MOST_STEP or has_regions or len(ops) > MOST_OPS:
        return 1
    if loop.unroll > 1 or loop.unmasked_from is not None or loop.unmasked_until is not None:
        return 1
    trips = trip_count(loop)
    if trips is None and step != 1:
        return 1  # a loop over blocks of a row may end after the first
    count = min(MOST_ITERATIONS, most_bytes // max(4, load_bytes))
    return max(1, count if trips is None else min(count, trips))


def group_iterations(
    graph: TileGraph, old: For, loaded: list[Value], loads: Loads, count: int
) -> None:
    """Puts a loop over groups of iterations in the place of a loop.

    loaded: results of its loads.
    """
    parent = old.parent
    assert parent is not None
    before = Builder(graph, parent, parent.ops.index(old), old.loc)
    init = [*old.init]
    for n in range(count):
        init += _set(before, old, old.lower, n, loads)
    assert isinstance(old.step.type, ScalarType)
    factor = before.value(ew.Constant(count, old.step.type.dtype))
    stride = before.value(ew.Mul(old.step, factor))
    new = For(old.lower, old.upper, stride, tuple(init), -1, body=Region(), loc=old.loc)
    iv = new.body.add_arg(old.iv.type, old.iv.name)
    names = [a.name for a in old.carried] + [v.name for v in loaded] * count
    carried = [new.body.add_arg(v.type, n) for v, n in zip(init, names, strict=True)]
    before.add(new)
    b = Builder(graph, new.body, None, old.loc)
    ahead: list[Value] = []
    for n in range(count):
        ahead += _set(b, old, iv, count + n, loads)
    state, rest = tuple(carried[: len(old.carried)]), carried[len(old.carried) :]
    for n in range(count):
        mine = rest[n * len(loaded) : (n + 1) * len(loaded)]
        values = dict(zip(loaded, mine, strict=True))
        state = _iteration(b, old, _at(b, old, iv, n), state, values, n)
    b.add(Yield((*state, *ahead)))
    for a, r in zip(old.results, new.results, strict=False):
        r.name = a.name
        graph.replace_uses(a, r)
    graph.erase(old)


def _at(b: Builder, old: For, iv: Value, n: int) -> Value:
    """The induction variable `n` iterations on."""
    if n == 0:
        return iv
    assert isinstance(iv.type, ScalarType)
    return b.value(ew.Add(iv, b.value(ew.Mul(old.step, b.value(ew.Constant(n, iv.type.dtype))))))


def _set(b: Builder, old: For, start: Value, n: int, loads: Loads) -> list[Value]:
    at = _at(b, old, start, n)
    return loads(b, {old.iv: at}, b.value(ew.Compare("lt", at, old.upper)))


def _iteration(
    b: Builder,
    old: For,
    at: Value,
    state: tuple[Value, ...],
    loaded: dict[Value, Value],
    n: int,
) -> tuple[Value, ...]:
    """One iteration of a group, the first of which exists; the carried values after it."""
    mapping = {old.iv: at, **dict(zip(old.carried, state, strict=True)), **loaded}
    if n == 0:
        return _body(b, old, mapping, set(loaded))
    branch = If(b.value(ew.Compare("lt", at, old.upper)), result_types=tuple(v.type for v in state))
    b.add(branch)
    with b.at(branch.then):
        b.add(Yield(_body(b, old, mapping, set(loaded))))
    with b.at(branch.orelse):
        b.add(Yield(state))
    for r, a in zip(branch.results, old.carried, strict=True):
        r.name = a.name
    return tuple(branch.results)


def _body(
    b: Builder, old: For, mapping: dict[Value, Value], loaded: set[Value]
) -> tuple[Value, ...]:
    end = old.body.terminator
    assert isinstance(end, Yield)
    for op in old.body.ops:
        if op is not end and not (op.results and op.results[0] in loaded):
            b.add(clone_op(op, mapping))
    return mapped(end.values, mapping)
