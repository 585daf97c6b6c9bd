"""Loads of several iterations at once, where one iteration loads only little.

A loop that carries the loads of one iteration has few bytes on their way when these are small: it
takes as many iterations together as make up for it, their loads at the top of the body, where each
address is the one before and a step. What is left of the iterations stands behind the loop, all of
its loads in front, too.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import trip_count
from tiledsl.ir.analysis.range_ends import ends_below
from tiledsl.ir.analysis.range_ends import may_pass
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.graph import mapped
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.increments import increment_of
from tiledsl.ws.range_starts import start_of_last

MOST_ITERATIONS = 8
SMALL_BYTES, MOST_BYTES = 8, 64
"""Bytes of a thread in one iteration with which several load together; and in these at most."""
MOST_OPS, MOST_REPEATED = 64, 256
"""Of a body that is repeated, and of all its repetitions."""
MOST_STEP = 4096
"""With this, what lies two groups ahead of an index up to an argument or extent does not wrap
(integers close to 2**31 have 64 bits)."""

Loads = Callable[
    [Builder, dict[Value, Value], Value | None, list[Value | None]], list[pointer.Load]
]
"""Makes the loads of an iteration: builder, what stands for values, whether it exists (None: it
does), and the pointers where they are known."""


def iterations_at_once(loop: For, load_bytes: int) -> int:
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
    if load_bytes > SMALL_BYTES:
        return 1
    count = min(MOST_ITERATIONS, MOST_BYTES // load_bytes, MOST_REPEATED // len(ops))
    count = max(1, count if trips is None else min(count, trips))
    return count if step == 1 or not may_pass(loop, count) else 1


def group_iterations(
    graph: TileGraph, old: For, found: list[pointer.Load], loads: Loads, count: int
) -> None:
    """Puts a loop over groups of iterations in the place of a loop, and the rest behind it.

    found: its loads.
    """
    parent = old.parent
    assert parent is not None
    b = Builder(graph, parent, parent.ops.index(old), old.loc)
    group = _Group(old, found, loads, [increment_of(b, old, load.pointer) for load in found])
    assert isinstance(old.step.type, ScalarType)
    is_far = may_pass(old, count) or ends_below(old, count)
    last = start_of_last(b, old, count - 1) if is_far else _at(b, old, old.upper, 1 - count)
    stride = b.value(ew.Mul(old.step, b.value(ew.Constant(count, old.step.type.dtype))))
    new = For(old.lower, last, stride, (*old.init, old.lower), -1, body=Region(), loc=old.loc)
    iv = new.body.add_arg(old.iv.type, old.iv.name)
    names = [*(a.name for a in old.carried), old.iv.name]
    carried = [new.body.add_arg(v.type, n) for v, n in zip(new.init, names, strict=True)]
    b.add(new)
    inside = Builder(graph, new.body, None, old.loc)
    state = group.run(inside, iv, tuple(carried[:-1]), count)
    inside.add(Yield((*state, _at(inside, old, iv, count))))
    *state, at = new.results
    trips = trip_count(old)
    left = count - 1 if trips is None else trips % count
    rest = group.rest(b, at, tuple(state), left) if left else state
    for a, r, result in zip(old.carried, old.results, rest, strict=True):
        result.name = a.name
        graph.replace_uses(r, result)
    graph.erase(old)


@dataclass(frozen=True)
class _Group:
    """Iterations side by side. increments: of the pointers of its loads, None where unknown."""

    loop: For
    found: list[pointer.Load]
    loads: Loads
    increments: list[Value | None]

    def rest(
        self, b: Builder, start: Value, state: tuple[Value, ...], count: int
    ) -> tuple[Value, ...]:
        """Up to `count` iterations, where one is left; the carried values after them."""
        is_left = b.value(ew.Compare("lt", start, self.loop.upper))
        return where(
            b, self.loop, is_left, lambda: self.run(b, start, state, count, may_end=True), state
        )

    def run(
        self,
        b: Builder,
        start: Value,
        state: tuple[Value, ...],
        count: int,
        *,
        may_end: bool = False,
    ) -> tuple[Value, ...]:
        """The loads of `count` iterations, then the work of each; the carried values after it.

        may_end: whether some of them lie beyond the end, but for the first.
        """
        made: list[list[pointer.Load]] = []
        exists: list[Value | None] = []
        places: list[Value] = []
        for n in range(count):
            at = _at(b, self.loop, start, n)
            may_miss = may_end and n > 0
            inside = self.is_inside(b, start, at, n) if may_miss else None
            # Behind the loop NVVM would make all sums of steps before the loop, and keep them.
            pointers = self.pointers(b, made[-1] if made and not may_end else None)
            made.append(self.loads(b, {self.loop.iv: at}, inside, pointers))
            exists.append(inside)
            places.append(at)
        for at, inside, loaded in zip(places, exists, made, strict=True):
            state = self.iteration(b, at, inside, state, loaded)
        return state

    def is_inside(self, b: Builder, start: Value, at: Value, n: int) -> Value:
        """Whether the iteration `at`, the n-th from `start`, exists."""
        if not may_pass(self.loop, n):
            return b.value(ew.Compare("lt", at, self.loop.upper))
        return b.value(ew.Compare("lt", start, start_of_last(b, self.loop, n)))

    def pointers(self, b: Builder, before: list[pointer.Load] | None) -> list[Value | None]:
        """Those of an iteration's loads, from those of the iteration before."""
        out: list[Value | None] = []
        for n, step in enumerate(self.increments):
            if before is None or step is None:
                out.append(None)
                continue
            at = before[n].pointer
            type_ = at.type
            moved = b.value(tile.Splat(step, type_.shape)) if isinstance(type_, TileType) else step
            out.append(b.value(pointer.Add(at, moved)))
        return out

    def iteration(
        self,
        b: Builder,
        at: Value,
        inside: Value | None,
        state: tuple[Value, ...],
        loaded: list[pointer.Load],
    ) -> tuple[Value, ...]:
        """The work of one iteration, where it exists; the carried values after it."""
        values = {f.result: load.result for f, load in zip(self.found, loaded, strict=True)}
        mapping = {self.loop.iv: at, **dict(zip(self.loop.carried, state, strict=True)), **values}
        if inside is None:
            return self.body(b, mapping)
        return where(b, self.loop, inside, lambda: self.body(b, mapping), state)

    def body(self, b: Builder, mapping: dict[Value, Value]) -> tuple[Value, ...]:
        end = self.loop.body.terminator
        assert isinstance(end, Yield)
        loads = {load.id for load in self.found}
        kept = [op for op in self.loop.body.ops if op is not end and op.id not in loads]
        made = [b.add(clone_op(op, mapping)) for op in kept]
        results = mapped(end.values, mapping)
        drop_unused(b.graph, made, results)
        return results


def drop_unused(graph: TileGraph, ops: Sequence[Op], kept: Sequence[Value]) -> None:
    """Erases the pure ops that nothing reads, as indexes of loads that stand elsewhere.

    They would have layouts, and others would be converted to these. kept: values that will be read.
    """
    for op in reversed(list(ops)):
        is_pure = op.effect is Effect.PURE and not op.is_terminator and bool(op.results)
        if is_pure and not any(graph.has_uses(v) or v in kept for v in op.results):
            graph.erase(op)


def where(
    b: Builder,
    loop: For,
    condition: Value,
    work: Callable[[], Sequence[Value]],
    other: Callable[[], Sequence[Value]] | Sequence[Value],
) -> tuple[Value, ...]:
    """The carried values of a loop after some work, or else after other work, or as they are."""
    branch = If(condition, result_types=tuple(v.type for v in loop.carried), loc=loop.loc)
    b.add(branch)
    with b.at(branch.then):
        b.add(Yield(tuple(work())))
    with b.at(branch.orelse):
        b.add(Yield(tuple(other() if callable(other) else other)))
    for r, a in zip(branch.results, loop.carried, strict=True):
        r.name = a.name
    return tuple(branch.results)


def _at(b: Builder, old: For, iv: Value, n: int) -> Value:
    """The induction variable `n` iterations on."""
    if n == 0:
        return iv
    assert isinstance(iv.type, ScalarType)
    return b.value(ew.Add(iv, b.value(ew.Mul(old.step, b.value(ew.Constant(n, iv.type.dtype))))))
