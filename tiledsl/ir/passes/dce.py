"""Dead code elimination, loop-carried values and results of `if` included."""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.target import Target


@register_pass("dce", consumes=Level.ALL, produces=Level.ALL)
def dce(graph: TileGraph, target: Target) -> PassReport:
    """Removes what no side effect depends on.

    Live are the ops that write or synchronise, the ops around them, and what those need. A value
    carried by a loop is live when its final value is, or when its value in the body is used for
    something live. A loop without effects goes, but a `while` that reads memory stays: it may wait
    for another program.
    """
    del target
    live = _Liveness(graph)
    return PassReport("dce", _sweep(graph, graph.body, live))


class _Liveness:
    """Live values and ops, found backwards from the side effects."""

    def __init__(self, graph: TileGraph) -> None:
        self.values: set[Value] = set()
        self.ops: set[Op] = set()
        self.links: dict[Value, tuple[Value, ...]] = {}
        self.pending: list[Value] = []
        every = list(graph.walk())
        for op in every:
            for value, needs in links(op):
                self.links[value] = (*self.links.get(value, ()), *needs)
        for op in every:
            if _is_root(op):
                self.need_op(op)
        while self.pending:
            value = self.pending.pop()
            self.need(self.links.get(value, ()))
            if value.defining_op is not None:
                self.need_op(value.defining_op)
            elif isinstance(value.owner, Region) and value.owner.parent is not None:
                self.need_op(value.owner.parent)

    def need(self, values: Iterable[Value]) -> None:
        for value in values:
            if value not in self.values:
                self.values.add(value)
                self.pending.append(value)

    def need_op(self, op: Op) -> None:
        """Marks an op and those around it; values that `links` ties to a result wait for it."""
        while op not in self.ops:
            self.ops.add(op)
            self.need(always_needed(op))
            if op.parent is None or op.parent.parent is None:
                return
            op = op.parent.parent


def _is_root(op: Op) -> bool:
    if op.effect in (Effect.WRITE, Effect.SYNC):
        return True
    if op.effect is not Effect.CONTROL or op.is_terminator:
        return op.is_terminator and not isinstance(op, Yield)
    if isinstance(op, While):
        return any(o.effect is Effect.READ for r in op.regions for o in r.walk())
    return not op.regions


def links(op: Op) -> list[tuple[Value, tuple[Value, ...]]]:
    """For control flow: (value, the values it stands for) of results and region arguments."""
    match op:
        case For():
            rows = zip(op.results, op.carried, op.init, yielded(op.body), strict=True)
            return [(v, (init, after)) for result, arg, init, after in rows for v in (result, arg)]
        case If():
            rows = zip(op.results, yielded(op.then), yielded(op.orelse), strict=True)
            return [(result, (then, other)) for result, then, other in rows]
        case While():
            _, *passed = yielded(op.before)
            rows = zip(
                op.results,
                op.init,
                op.before.args,
                passed,
                op.body.args,
                yielded(op.body),
                strict=True,
            )
            return [
                (v, (init, after, following))
                for result, init, before, after, arg, following in rows
                for v in (result, before, arg)
            ]
        case _:
            return []


def always_needed(op: Op) -> tuple[Value, ...]:
    """Operands that a live op needs whatever becomes of its results."""
    match op:
        case For():
            bounds = (op.lower, op.upper, op.step, op.unmasked_from, op.unmasked_until)
            return tuple(v for v in bounds if v is not None)
        case If():
            return (op.condition,)
        case While():
            return yielded(op.before)[:1]
        case Yield():
            return ()
        case _:
            ends = [end for r in op.regions if (end := r.terminator) is not None]
            return (*op.operands, *(v for end in ends for v in end.operands))


def _sweep(graph: TileGraph, region: Region, live: _Liveness) -> int:
    changes = 0
    for op in reversed(list(region.ops)):
        if op.is_terminator:
            continue
        if op not in live.ops:
            graph.erase(op)
            changes += 1
            continue
        kept = _shrink(graph, op, live)
        changes += kept is not op
        for inner in kept.regions:
            changes += _sweep(graph, inner, live)
    return changes


def _shrink(graph: TileGraph, op: Op, live: _Liveness) -> Op:
    """Rebuilds control flow without values that are dead on every side; returns what is there."""
    if not isinstance(op, For | If | While):
        return op
    keep = [i for i in range(len(op.results)) if _is_live(op, i, live)]
    if len(keep) == len(op.results):
        return op
    dead = [i for i in range(len(op.results)) if i not in keep]
    for region in op.regions:
        shift = 1 if isinstance(op, While) and region is op.before else 0
        _shrink_yield(graph, region, dead, shift)
    kept: tuple[object, ...]
    match op:
        case For():
            _drop_args(op.body, dead, 1)
            name, kept = "init", op.init
        case While():
            _drop_args(op.before, dead, 0)
            _drop_args(op.body, dead, 0)
            name, kept = "init", op.init
        case If():
            name, kept = "result_types", op.result_types
    new = op.rebuild({}, op.regions, **{name: tuple(kept[i] for i in keep)})
    results = {op.results[i]: value for i, value in zip(keep, new.results, strict=True)}
    for old, value in results.items():
        value.name = old.name
        graph.set_type(value, old.type)
    graph.supersede(op, new, results)
    return new


def _is_live(op: For | If | While, i: int, live: _Liveness) -> bool:
    values = [op.results[i]]
    match op:
        case For():
            values.append(op.carried[i])
        case While():
            values += [op.before.args[i], op.body.args[i]]
        case If():
            pass
    return any(v in live.values for v in values)


def _shrink_yield(graph: TileGraph, region: Region, dead: list[int], shift: int) -> None:
    end = region.terminator
    if end is None:
        return
    values = tuple(v for i, v in enumerate(end.operands) if i - shift not in dead)
    graph.replace_op(end, end.rebuild({}, values=values))


def _drop_args(region: Region, dead: list[int], shift: int) -> None:
    for i in reversed(dead):
        region.remove_arg(i + shift)
