"""What values depend on: axes of the grid, and other values through loops and branches."""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.program import ProgramId


def program_axes(value: Value, cache: dict[Value, frozenset[int]] | None = None) -> frozenset[int]:
    """Grid axes that a value depends on, through operands, loop-carried values and control flow."""
    cache = {} if cache is None else cache
    if value in cache:
        return cache[value]
    cache[value] = _own_axes(value)
    todo = [(value, iter(_sources(value)))]
    while todo:
        at, sources = todo[-1]
        for source in sources:
            if source not in cache:
                cache[source] = _own_axes(source)
                todo.append((source, iter(_sources(source))))
                break
            cache[at] |= cache[source]
        else:
            todo.pop()
            if todo:
                cache[todo[-1][0]] |= cache[at]
    return cache[value]


def _own_axes(value: Value) -> frozenset[int]:
    owner = value.owner
    return frozenset({owner.axis}) if isinstance(owner, ProgramId) else frozenset()


def _sources(value: Value) -> list[Value]:
    """The values that a value depends on directly."""
    owner = value.owner
    if isinstance(owner, Region):
        parent = owner.parent
        sources: list[Value] = []
        if isinstance(parent, For):
            sources = [parent.lower, parent.step]
            if value.index > 0:
                sources += [parent.init[value.index - 1], yielded(parent.body)[value.index - 1]]
        elif parent is not None:
            sources = list(parent.operands)
        return sources
    return [*owner.operands, *(v for r in owner.regions for v in yielded(r))]


def plain_axes(values: Iterable[Value]) -> frozenset[int]:
    """Grid axes that values depend on with neither a loop's result nor a read in between."""
    work, seen = list(values), set[Value]()
    found: set[int] = set()
    while work:
        v = work.pop()
        op = v.defining_op
        if v in seen:
            continue
        seen.add(v)
        if op is None:
            loop = v.owner.parent if isinstance(v.owner, Region) else None
            if isinstance(loop, For) and v.index:
                work += [loop.init[v.index - 1], yielded(loop.body)[v.index - 1]]
            continue
        if isinstance(op, For | While) or op.effect is Effect.READ:
            continue
        if isinstance(op, ProgramId):
            found.add(op.axis)
        work += op.operands
        work += [y for r in op.regions for y in yielded(r)]
    return frozenset(found)


def unknown_to_loads(graph: TileGraph, loads: Iterable[Op]) -> set[Value]:
    """What a role cannot know that only loads.

    It follows from what `loads` bring to the consumers, from products, or from side effects, which
    happen in the consumers.
    """
    sources = [r for op in loads for r in op.results]
    sources += drawn_values(graph)
    sources += [op.result for op in graph.find(Dot)]
    return tainted_values(graph, sources)


def drawn_values(graph: TileGraph) -> list[Value]:
    """What side effects give: the old elements of atomic operations."""
    return [r for op in graph.walk() if op.effect is Effect.WRITE for r in op.results]


def _spread_while(op: While, bad: set[Value]) -> None:
    """From what a `while` carries to its arguments and results."""
    condition, *given = yielded(op.before)
    for i, (v, nxt) in enumerate(zip(given, yielded(op.body), strict=True)):
        if op.init[i] in bad or nxt in bad:
            bad.add(op.before.args[i])
        if v in bad or condition in bad:
            bad.update((op.body.args[i], op.results[i]))


def tainted_values(  # noqa: C901 - a case per kind of region
    graph: TileGraph, sources: Iterable[Value]
) -> set[Value]:
    """Values that depend on any of `sources`, through loops and branches too."""
    bad: set[Value] = set(sources)
    changed = True
    while changed:
        changed = False
        for op in graph.walk():
            before = len(bad)
            if isinstance(op, For):
                for arg, init, nxt, res in zip(
                    op.carried, op.init, yielded(op.body), op.results, strict=True
                ):
                    if init in bad or nxt in bad:
                        bad.update((arg, res))
                if any(v in bad for v in (op.lower, op.upper, op.step)):
                    bad.update(op.results)
                    bad.update(op.body.args)
            elif isinstance(op, If):
                for i, res in enumerate(op.results):
                    if (
                        op.condition in bad
                        or yielded(op.then)[i] in bad
                        or yielded(op.orelse)[i] in bad
                    ):
                        bad.add(res)
            elif isinstance(op, While):
                _spread_while(op, bad)
            elif any(v in bad for v in op.operands):
                bad.update(op.results)
            changed |= len(bad) != before
    return bad
