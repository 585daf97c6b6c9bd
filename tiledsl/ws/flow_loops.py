"""Flow loops as their schedules say: each dot in its own iteration, or late ones in the next.

A rotated loop (some dots one iteration behind) becomes: the first iteration's own part; a loop
whose body holds the late part of iteration i-1 and the own part of iteration i; the last late part.
What the late part reads of its own iteration is carried from one body to the next. Where masks hold
for a part of the range only, there are loops with and without them.
"""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import And
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Max
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.types import ScalarType
from tiledsl.ws.flow import Flow
from tiledsl.ws.flow import FlowLoop
from tiledsl.ws.flow_operands import Iteration
from tiledsl.ws.flow_steps import FlowSteps
from tiledsl.ws.loop_schedule import LoopSchedule
from tiledsl.ws.partition import constant_step
from tiledsl.ws.plan import Plan
from tiledsl.ws.stores import StoreGeometry


class FlowLoops(FlowSteps):
    """The part of the consumer that builds loops. schedules: by loop id.

    outer: per load id, the aref of a load made before the loop.
    """

    def __init__(
        self,
        builder: Builder,
        plan: Plan,
        flow: Flow,
        schedules: dict[int, LoopSchedule],
        arefs: dict[int, tuple[Value, ...]],
        outer: dict[int, Value],
        mapping: dict[Value, Value],
        stores: dict[int, StoreGeometry],
    ) -> None:
        super().__init__(builder, plan, flow, arefs, mapping, stores)
        self.schedules = schedules
        self.outer = outer
        self.by_loop = {f.loop.id: f for f in flow.loops}

    def release_outer(self, loop: For, late: set[int] | None) -> None:
        """Gives back loads made before the loop once no later flow loop reads them.

        late: dots that still follow for the last iteration (before they are issued), or None after
        the loop.
        """
        flows = list(self.by_loop)
        later = flows[flows.index(loop.id) + 1 :]
        for item in self.flow.outer:
            users = [
                f.loop.id
                for f in self.flow.loops
                if any(o.op is item.op for d in f.dots for o in d.loads)
            ]
            if loop.id not in users or any(u in later for u in users):
                continue
            readers = {
                d.dot.id
                for d in self.by_loop[loop.id].dots
                if any(o.op is item.op for o in d.loads)
            }
            early = bool(self.late_of(loop)) and not readers & self.late_of(loop)
            if early == (late is not None):
                # In a loop without trips no wgmma has brought the lanes of a warp together.
                self.b.add(aref.Consumed(self.outer[item.op.id], converge=True))

    def late_of(self, loop: For) -> set[int]:
        """Dots of a loop that run one iteration behind."""
        flow, schedule = self.by_loop[loop.id], self.schedules[loop.id]
        return {d.dot.id for d, n in zip(flow.dots, schedule.distance, strict=True) if n}

    def flow_loop(self, flow: FlowLoop) -> None:
        schedule = self.schedules[flow.loop.id]
        lower, upper = self.get(flow.loop.lower), self.get(flow.loop.upper)
        if schedule.is_rotated:
            self.rotated(flow, schedule, lower, upper)
        else:
            self.plain(flow, schedule, lower, upper)

    def plain(self, flow: FlowLoop, schedule: LoopSchedule, lower: Value, upper: Value) -> None:
        """Every dot in its own iteration."""
        b, loop = self.b, flow.loop
        init = tuple(self.get(v) for v in loop.init)
        body = Region()
        iv = body.add_arg(loop.iv.type, loop.iv.name)
        carried = [body.add_arg(v.type, a.name) for v, a in zip(init, loop.carried, strict=True)]
        new = For(lower, upper, self.get(loop.step), init, body=body)
        new.loc = loop.loc
        b.add(new)
        with b.at(body), b.located(loop.loc):
            now = Iteration(dict(self.map))
            now.values[loop.iv] = iv
            now.values.update(zip(loop.carried, carried, strict=True))
            self.run(flow, schedule.steps, now, None)
            b.add(Yield(tuple(now.values.get(v, v) for v in flow.yields)))
        self._results(loop, list(new.results))

    def rotated(self, flow: FlowLoop, schedule: LoopSchedule, lower: Value, upper: Value) -> None:
        """Late dots run under the tile math of the next iteration; zero trips skip everything."""
        b, loop = self.b, flow.loop
        early, state = self.split(flow, schedule)
        init = [self.get(v) for v in loop.init]
        some = b.value(Compare("lt", lower, upper), "some")
        branch = If(some, result_types=tuple(v.type for v in init))
        b.add(branch)
        with b.at(branch.orelse):
            self.release_outer(loop, late=self.late_of(loop))
            self.free_slabs(loop)
            b.add(Yield(tuple(init)))
        with b.at(branch.then), b.located(loop.loc):
            start = self.first(flow, schedule, lower, init, early, state)
            after = self.steady(flow, schedule, lower, upper, start, early, state)
            self.release_outer(loop, late=self.late_of(loop))
            last = Iteration(dict(self.map))
            end = self.aligned(loop, lower, upper)
            last.values[loop.iv] = b.value(Sub(end, self.like(end, constant_step(loop))))
            last.values.update(zip(state, after[len(early) :], strict=True))
            self.run(flow, schedule.last, None, last)
            out: list[Value] = []
            for j, y in enumerate(flow.yields):
                out.append(after[early.index(j)] if j in early else last.values[y])
            b.add(Yield(tuple(out)))
        self._results(loop, list(branch.results))

    def first(
        self,
        flow: FlowLoop,
        schedule: LoopSchedule,
        lower: Value,
        init: list[Value],
        early: list[int],
        state: list[Value],
    ) -> list[Value]:
        """The own part of the first iteration, also without masks where it may need none."""
        b, loop = self.b, flow.loop

        def part(masked: bool) -> list[Value]:
            own = Iteration(dict(self.map))
            own.values[loop.iv] = lower
            own.values.update(zip(loop.carried, init, strict=True))
            self.masked = masked
            self.run(flow, schedule.first, own, None)
            self.masked = True
            return self.state_of(flow, own, early, state)

        tests: list[Value] = []
        if loop.unmasked_from is not None:
            tests.append(b.value(Compare("ge", lower, self.get(loop.unmasked_from))))
        if loop.unmasked_until is not None:
            tests.append(b.value(Compare("lt", lower, self.get(loop.unmasked_until))))
        if not tests:
            return part(masked=True)
        free = tests[0] if len(tests) == 1 else b.value(And(*tests))
        regions = [Region(), Region()]
        made: list[list[Value]] = []
        for region, masked in zip(regions, (False, True), strict=True):
            with b.at(region):
                made.append(part(masked))
                b.add(Yield(tuple(made[-1])))
        branch = If(
            free,
            then=regions[0],
            orelse=regions[1],
            result_types=tuple(v.type for v in made[0]),
            names=tuple(v.name for v in made[0]),
        )
        b.add(branch)
        return list(branch.results)

    def steady(
        self,
        flow: FlowLoop,
        schedule: LoopSchedule,
        lower: Value,
        upper: Value,
        state: list[Value],
        early: list[int],
        names: list[Value],
    ) -> list[Value]:
        """The loops over the second and later iterations; returns the state after them."""
        b, loop = self.b, flow.loop
        at = b.value(Add(lower, self.like(lower, constant_step(loop))))
        for stop, masked in self.ranges(loop, lower, upper):
            end = upper if stop is None else stop
            state = self.segment(flow, schedule, (at, end, masked), state, early, names)
            if stop is not None:
                at = b.value(Max(at, self.aligned(loop, lower, end)))
        return state

    def ranges(self, loop: For, lower: Value, upper: Value) -> list[tuple[Value | None, bool]]:
        """(end, masked) of the parts of a loop in order; the last one ends with the loop."""
        out: list[tuple[Value | None, bool]] = []
        if loop.unmasked_from is not None:
            out.append((self.b.value(Min(self.get(loop.unmasked_from), upper)), True))
        if loop.unmasked_until is not None:
            out.append((self.b.value(Min(self.get(loop.unmasked_until), upper)), False))
            out.append((None, True))
        else:
            out.append((None, loop.unmasked_from is None))
        del lower
        return out

    def aligned(self, loop: For, lower: Value, end: Value) -> Value:
        """The first value of the loop variable that is at least `end`."""
        b, step = self.b, constant_step(loop)
        span = b.value(Mul(self.trip_count(lower, end, step), self.const(step)))
        assert isinstance(lower.type, ScalarType)
        if lower.type != span.type:
            span = b.value(Cast(span, lower.type.dtype))
        return b.value(Add(lower, span))

    def segment(
        self,
        flow: FlowLoop,
        schedule: LoopSchedule,
        bounds: tuple[Value, Value, bool],
        start: list[Value],
        early: list[int],
        state: list[Value],
    ) -> list[Value]:
        """One loop of the steady state, with or without the masks."""
        b, loop = self.b, flow.loop
        names = [loop.carried[j].name for j in early] + [v.name for v in state]
        body = Region()
        iv = body.add_arg(loop.iv.type, loop.iv.name)
        args = [body.add_arg(v.type, n) for v, n in zip(start, names, strict=True)]
        new = For(bounds[0], bounds[1], self.get(loop.step), tuple(start), body=body)
        new.loc = loop.loc
        b.add(new)
        with b.at(body):
            now = Iteration(dict(self.map))
            before = Iteration(dict(self.map))
            now.values[loop.iv] = iv
            for j, arg in zip(early, args[: len(early)], strict=True):
                now.values[loop.carried[j]] = arg
            # Made again rather than carried: it takes no register.
            before.values[loop.iv] = b.value(Sub(iv, self.like(iv, constant_step(loop))))
            before.values.update(zip(state, args[len(early) :], strict=True))
            self.masked = bounds[2]
            self.run(flow, schedule.steps, now, before)
            self.masked = True
            b.add(Yield(tuple(self.state_of(flow, now, early, state))))
        for r, n in zip(new.results, names, strict=True):
            r.name = n
        return list(new.results)

    def split(self, flow: FlowLoop, schedule: LoopSchedule) -> tuple[list[int], list[Value]]:
        """Carried values that the own part defines (by index); what the late part reads of it."""
        loop = flow.loop
        dots = {d.dot.id: d for d in flow.dots}
        late_dots = {d.dot.id for d, n in zip(flow.dots, schedule.distance, strict=True) if n}
        late_ids = {s.op.id for s in schedule.last if s.op is not None} | late_dots
        made = {r: op for op in loop.body.ops for r in op.results}
        early = [
            j for j, y in enumerate(flow.yields) if y not in made or made[y].id not in late_ids
        ]
        state: list[Value] = []
        for op in loop.body.ops:
            if op.id not in late_ids:
                continue
            for v in dots[op.id].inputs if op.id in dots else op.operands:
                if v in state:
                    continue
                own = v in made and made[v].id not in late_ids
                if own or v in loop.carried:
                    state.append(v)
        return early, state

    def state_of(
        self, flow: FlowLoop, now: Iteration, early: list[int], state: list[Value]
    ) -> list[Value]:
        return [now.values.get(flow.yields[j], flow.yields[j]) for j in early] + [
            now.values[v] for v in state
        ]

    def _results(self, loop: For, values: list[Value]) -> None:
        for old, new in zip(loop.results, values, strict=True):
            new.name = old.name
            self.map[old] = new
