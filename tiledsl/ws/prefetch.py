"""Boxes of a stream that are fetched into L2 before the kernel waits for the one before it.

A kernel bound by HBM leaves it idle between two launches: the one before drains, the next one fills
its ring. What no kernel before can have in L2, an operand that one program alone reads, is asked
for in that time. A prefetch gives no value to the program, and L2 is where all writes meet, so
that it needs no order with the kernel before; the loads themselves still wait.

The coordinates are those of the first iterations of the CTA's first tile, cloned from the load
role: loops around the loop of the stream are in their first iteration, which has to exist.

Ref: PTX ISA, cp.async.bulk.prefetch.tensor, griddepcontrol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tiledsl.dtypes import int32
from tiledsl.errors import ScheduleError
from tiledsl.ir.analysis.constants import int_limits
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import ScalarType
from tiledsl.ws.partition import constant_step
from tiledsl.ws.plan import Plan

STREAMED = "evict_first"

Emit = Callable[[Builder, int, Load, tuple[Value, ...]], None]
"""Adds the prefetches of load number i of a put, given the load and its offsets."""


def stream_of(graph: TileGraph) -> aref.Put | None:
    """The first put with an operand that one program alone reads."""
    puts: list[aref.Put] = graph.find(aref.Put)
    return next((p for p in puts if STREAMED in p.hints), None)


def settle_prefetch(graph: TileGraph, plan: Plan, asked: int | None, notes: list[str]) -> Plan:
    """The plan, without prefetches where a stream's coordinates are not known before the wait.

    asked: the launch option.

    Raises:
        ScheduleError: the launch option asks for prefetches that cannot be.
    """
    if not plan.prefetch:
        return plan
    put = stream_of(graph)
    reason = Stream(put).obstacle() if put is not None else "no loop has a stream"
    if not reason:
        return plan
    loc = put.loc if put is not None else None
    if asked:
        raise ScheduleError(f"prefetch={asked}: {reason}", loc)
    where = f"{loc.short}: " if loc else ""
    notes.append(f"{where}nothing is fetched before the kernel before has ended: {reason}")
    return replace(plan, prefetch=0)


class Stream:
    """The loads of a put that are streamed, and what their coordinates are made of.

    regions: around the put, outermost first, from the role's body on. loop: the innermost around
    it. slice: the ops behind coordinates and bounds.
    """

    def __init__(self, put: aref.Put) -> None:
        loads = [o for o in put.body.ops if isinstance(o, Load)]
        self.loads = [
            (i, o) for i, (o, h) in enumerate(zip(loads, put.hints, strict=True)) if h == STREAMED
        ]
        self.regions: list[Region] = []
        at = put.parent
        while at is not None:
            self.regions.insert(0, at)
            around = at.parent
            if around is None or isinstance(around, Role):
                break
            at = around.parent
        fors = [r.parent for r in self.regions if isinstance(r.parent, For)]
        self.loop = fors[-1] if fors else None
        self.slice: set[Op] = set()
        self.args: set[Value] = set()

    # ------------------------------------------------------------------ analysis
    def obstacle(self) -> str:
        """Why the coordinates cannot be had before the wait, or ""; finds the slice."""
        if self.loop is None:
            return "no loop is around the loads"
        for region in self.regions[1:]:
            if not isinstance(region.parent, For | If):
                assert region.parent is not None
                return f"the loads stand in {region.parent.opcode}"
        work = [v for _, load in self.loads for v in load.offsets]
        for region in self.regions[1:]:
            around = region.parent
            match around:
                case For():
                    work += [around.lower, around.upper, around.step]
                case If():
                    work.append(around.condition)
                case _:
                    pass
        return self._close(work)

    def _close(self, work: list[Value]) -> str:
        """Adds the ops behind values to the slice; the first that is no plain scalar is named."""
        while work:
            v = work.pop()
            op = v.defining_op
            if op is None:
                work += self._behind(v)
            elif op not in self.slice:
                plain = all(isinstance(r.type, ScalarType) for r in op.results)
                if op.effect is not Effect.PURE or op.regions or not plain:
                    where = f" at {op.loc.short}" if op.loc else ""
                    return f"a coordinate comes from {op.opcode}{where}"
                self.slice.add(op)
                work += [o for o in op.operands if isinstance(o.type, ScalarType)]
        return ""

    def _behind(self, v: Value) -> list[Value]:
        """What an argument of a region takes its values from in the iterations that are cloned."""
        if v in self.args:
            return []
        self.args.add(v)
        around = v.owner.parent if isinstance(v.owner, Region) else None
        if not isinstance(around, For):
            return []
        if v.index == 0:
            return [around.lower]
        if around is not self.loop:
            return [around.init[v.index - 1]]
        end = around.body.terminator
        assert isinstance(end, Yield)
        return [around.init[v.index - 1], end.values[v.index - 1]]

    # ------------------------------------------------------------------ rewrite
    def emit(self, b: Builder, count: int, emit: Emit) -> None:
        """Adds the prefetches of the first `count` iterations at the insertion point."""
        assert not self.obstacle()
        self._enter(b, 0, {}, count, emit)

    def _enter(
        self, b: Builder, depth: int, values: dict[Value, Value], count: int, emit: Emit
    ) -> None:
        """Clones what region number `depth` has of the slice and goes on inside it."""
        region = self.regions[depth]
        for op in region.ops:
            if op in self.slice:
                b.add(clone_op(op, values))
        if depth + 1 == len(self.regions):
            for i, load in self.loads:
                with b.located(load.loc):
                    emit(b, i, load, tuple(values.get(v, v) for v in load.offsets))
            return
        inner = self.regions[depth + 1]
        around = inner.parent

        def inside() -> None:
            self._enter(b, depth + 1, values, count, emit)

        if isinstance(around, If):
            condition = values.get(around.condition, around.condition)
            _guarded(b, condition, inside, holds=inner is around.then)
            return
        assert isinstance(around, For)
        if around is self.loop:
            self._turns(b, around, values, count, inside)
            return
        lower, upper = (values.get(v, v) for v in (around.lower, around.upper))
        values[around.iv] = lower
        values.update(
            (a, values.get(v, v)) for a, v in zip(around.carried, around.init, strict=True)
        )
        upwards = constant_step(around) > 0 if isinstance(_made(around.step), Constant) else True
        exists = b.value(Compare("lt" if upwards else "gt", lower, upper))
        _guarded(b, exists, inside)

    def _turns(
        self,
        b: Builder,
        loop: For,
        values: dict[Value, Value],
        count: int,
        inside: Callable[[], None],
    ) -> None:
        """The loop's first iterations, with those of its carried values that coordinates need."""
        kept = [a for a in loop.carried if a in self.args]
        lower, upper, step = (values.get(v, v) for v in (loop.lower, loop.upper, loop.step))
        span = count * constant_step(loop)
        init = tuple(values.get(v, v) for v in (loop.init[a.index - 1] for a in kept))
        body = Region()
        for a in (loop.iv, *kept):
            values[a] = body.add_arg(a.type, a.name)
        b.add(For(lower, _end(b, lower, upper, span), step, init, body=body, loc=loop.loc))
        with b.at(body):
            inside()
            end = loop.body.terminator
            assert isinstance(end, Yield)
            nexts = [end.values[a.index - 1] for a in kept]
            b.add(Yield(tuple(values.get(v, v) for v in nexts)))


def first_programs(b: Builder, plan: Plan, inside: Callable[[], None]) -> None:
    """Goes on in the programs of a grid that fetch ahead: those whose CTAs start first."""
    if not plan.prefetch_programs:
        inside()
        return
    index: Value | None = None
    stride: Value | None = None
    for axis in (n for n in range(3) if n not in plan.unit_axes):
        at, count = b.value(ProgramId(axis)), b.value(NumPrograms(axis))
        if index is None or stride is None:
            index, stride = at, count
        else:
            index = b.value(Add(index, b.value(Mul(at, stride))))
            stride = b.value(Mul(stride, count))
    assert index is not None, "an operand that is streamed has programs"
    limit = b.value(Constant(plan.prefetch_programs, int32))
    _guarded(b, b.value(Compare("lt", index, limit)), inside)


def _made(v: Value) -> Op | None:
    return v.defining_op


def _end(b: Builder, lower: Value, upper: Value, span: int) -> Value:
    """The smaller of `upper` and `lower + span`, without overflow."""
    assert isinstance(lower.type, ScalarType)
    dtype, made = lower.type.dtype, _made(lower)
    if isinstance(made, Constant):
        end = min(int(made.value) + span, int_limits(dtype)[1])
        return b.value(Min(upper, b.value(Constant(end, dtype))))
    left = b.value(Min(b.value(Sub(upper, lower)), b.value(Constant(span, dtype))))
    return b.value(Add(lower, left))


def _guarded(
    b: Builder, condition: Value, inside: Callable[[], None], *, holds: bool = True
) -> None:
    """Goes on where a condition holds, or where it does not."""
    made = If(condition)
    b.add(made)
    with b.at(made.then if holds else made.orelse):
        inside()
    for region in (made.then, made.orelse):
        with b.at(region):
            b.add(Yield(()))
