"""The consumer role of a kernel with flow loops: follows the schedule of each loop step by step.

A rotated loop (some dots one iteration behind) becomes: the first iteration's own part; a loop
whose body holds the late part of iteration i-1 and the own part of iteration i; the last late part.
What the late part reads of its own iteration is carried from one body to the next.
"""

from __future__ import annotations

from tiledsl.dtypes import float32
from tiledsl.dtypes import int1
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.layout import mma_operand_8bit
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.barrier import WarpSync
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import And
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Max
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.program import OwnRow
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.ops.smem import Stage
from tiledsl.ir.ops.smem import View
from tiledsl.ir.ops.tile import ConvertLayout
from tiledsl.ir.ops.tile import Reshape
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.ops.tile import Undef
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.analysis import operand_load
from tiledsl.ws.flow import Flow
from tiledsl.ws.flow import FlowLoop
from tiledsl.ws.flow_operands import FlowOperands
from tiledsl.ws.flow_operands import Iteration
from tiledsl.ws.known_zeros import drop_zeros
from tiledsl.ws.loop_schedule import LoopSchedule
from tiledsl.ws.loop_schedule import Step
from tiledsl.ws.paired import regrouped
from tiledsl.ws.partition import Channel
from tiledsl.ws.partition import constant_step
from tiledsl.ws.plan import Plan
from tiledsl.ws.row_reductions import combining
from tiledsl.ws.stage_ahead import loop_before_store
from tiledsl.ws.stores import StoreGeometry


class FlowConsumerBuilder(FlowOperands):
    """Clones the program; flow loops follow their schedules.

    arefs: per loop id, the aref of each of its load groups. outer: per load id, the aref of a load
    made before the loop.
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
        tiles: Value | None = None,
    ) -> None:
        super().__init__(builder, plan, flow, arefs, mapping, stores)
        self.tiles = tiles
        self.schedules = schedules
        self.last_loop: For | None = None
        self.fast_math = False
        self.outer = outer
        self.by_loop = {f.loop.id: f for f in flow.loops}
        self.load_ids = {o.op.id for f in flow.loops for g in f.groups for o in g}
        self.math = frozenset(i for f in flow.loops for i in f.math)
        rounded = [d.rounded for f in flow.loops for d in f.dots if d.rounded is not None]
        self.rounded = frozenset(r.cast for r in rounded)
        self.regrouped = frozenset(i for r in rounded for i in r.sums)

    # ------------------------------------------------------------------ program level
    def build_flow(self, graph: TileGraph) -> None:
        """The whole role body."""
        ops = [o for o in graph.body.ops if not isinstance(o, Yield)]
        self.fast_math = bool(graph.facts.get("fast_math"))
        if self.plan.turns:
            self.prime_order()
        self.last_loop = loop_before_store(graph, self.flow, self.schedules, self.stores, self.plan)
        self.stage_ahead = self.last_loop is not None
        loop, body = self.tile_loop()
        with self.b.at(body):
            self.guard_range()
            self.write_fixed()
            self.clone_into(ops)
            if loop is not None and isinstance(ops[-1], Store) and ops[-1].id in self.stores:
                # The last statement is one lane's.
                self.b.add(WarpSync())
        self.end_tiles(loop, body)

    def clone(self, op: Op) -> None:
        if op.id in self.outer:
            get = aref.Get(self.outer[op.id])
            self.b.add(get)
            get.results[0].name = op.results[0].name
            self.map[op.results[0]] = get.results[0]
            return
        if isinstance(op, Transpose) and op.id not in self.math and self._is_operand(op.result):
            return
        if op.id in self.covered:
            return
        if isinstance(op, Select) and op.masks and not self.masked:
            self.map[op.result] = self.get(op.a)
            return
        if isinstance(op, OwnRow):
            self.map[op.result] = self.own_row(op)
            return
        if isinstance(op, For) and op.id in self.by_loop:
            self.flow_loop(self.by_loop[op.id])
            self.release_outer(op, late=None)
            return
        if op.id in self.rounded and isinstance(op, Cast):
            self.round_operand(op)
            return
        if op.id in self.regrouped and isinstance(op, Reshape) and (shape := regrouped(op)):
            self.map[op.result] = self.b.value(Reshape(self.get(op.a), shape), op.result.name)
            return
        if isinstance(op, Reduce) and (how := self.combining(op)):
            self.b.add(clone_op(op, self.map, **how))
            return
        super().clone(op)

    def combining(self, op: Reduce) -> dict[str, int]:
        """How a thread combines its part of a row; empty for a balanced tree."""
        around = op.parent.parent if op.parent is not None else None
        in_loop = around is not None and around.id in self.by_loop
        return combining(op, self.plan, in_loop=in_loop, fast_math=self.fast_math)

    def round_operand(self, op: Cast) -> None:
        """A left operand of 8-bit elements from paired columns: its registers are renamed first."""
        value = self.get(op.a)
        assert isinstance(value.type, TileType)
        M, K = value.type.shape
        layout = mma_operand_8bit(M, K, self.plan.num_consumers)
        moved = self.b.value(ConvertLayout(value, layout), value.name)
        self.map[op.result] = self.b.value(Cast(moved, op.dtype), op.result.name)

    def own_row(self, op: OwnRow) -> Value:
        """First or last row of this warpgroup's part of a tile."""
        parts = self.plan.num_consumers
        if op.rows % parts:
            return self.const(op.rows - 1 if op.last else 0)
        count = op.rows // parts
        first = self.b.value(Mul(self.b.value(WarpgroupIndex()), self.const(count)))
        return self.b.value(Add(first, self.const(count - 1))) if op.last else first

    def _is_operand(self, v: Value) -> bool:
        found = operand_load(v)
        return found is not None and (found[0].id in self.load_ids or found[0].id in self.outer)

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

    # ------------------------------------------------------------------ one loop
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

    masked = True
    follows = False
    """Whether another iteration follows for sure on the one that steps belong to."""
    waits_for_turn = False
    """Whether the dot that is issued next is the first one of a turn."""

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

    # ------------------------------------------------------------------ steps
    def run(
        self,
        flow: FlowLoop,
        steps: tuple[Step, ...],
        now: Iteration | None,
        before: Iteration | None,
    ) -> None:
        """Emits steps; late ones work on the values of the iteration before.

        In turns, a warpgroup issues all dots of a steady iteration before the next one does.
        """
        saved = self.map
        pinned: Value | None = None
        issues = [s for s in steps if s.kind == "issue"]
        waits = [s for s in steps if s.kind == "wait"]
        turns = self.plan.turns and now is not None and before is not None
        for step in steps:
            part = before if step.late else now
            assert part is not None
            self.map, self.part = part.values, part
            if step.kind == "wait":
                # A third warpgroup keeps the tensor core busy by itself; there pins only cost.
                few = self.plan.num_consumers <= 2
                if step.late and now is not None and pinned is not None and few:
                    self.b.add(mma.Pin(pinned))
                if now is None and step is waits[-1]:
                    self.free_slabs(flow.loop)
                pinned = None
            with self.b.located(step.op.loc if step.op is not None else flow.loop.loc):
                self.waits_for_turn = turns and step is issues[0]
                self.follows = step.late and now is not None
                self.step(flow, step, part)
                if turns and step is issues[-1]:
                    self.leave_order()
            if pinned is None and isinstance(step.op, Reduce) and not step.late:
                pinned = _row_statistic(self.map[step.op.results[0]])
            if step.late and now is not None:
                for c, y in zip(flow.loop.carried, flow.yields, strict=True):
                    if y in part.values and y not in now.values:
                        now.values[c] = part.values[y]
        self.map, self.part = saved, None

    def free_slabs(self, loop: For) -> None:
        """Waits for the staging of the store that follows a loop, ahead of it."""
        if loop is self.last_loop:
            self.b.add(tma.StageFree())

    def step(self, flow: FlowLoop, step: Step, part: Iteration) -> None:
        if step.kind == "issue":
            assert isinstance(step.op, mma.Dot)
            self.issue_dot(flow, step.op, part)
        elif step.kind == "stage":
            for item in next(d for d in flow.dots if d.dot is step.op).staged:
                stage = Stage(self.get(item.source), item.smem, item.key)
                part.staged[item.key] = self.b.value(stage, item.source.name)
        elif step.kind == "wait":
            assert isinstance(step.op, mma.Dot)
            wait = mma.Wait((self.map[step.op.result],), pending=step.pending)
            self.b.add(wait)
            wait.results[0].name = step.op.result.name
            self.map[step.op.result] = wait.results[0]
        elif step.kind == "release":
            # Lanes read a slot each for itself: the first one must not give it back alone.
            read = any(o.op.id in self.read_loads for o in flow.groups[step.group])
            self.b.add(aref.Consumed(self.arefs[flow.loop.id][step.group], converge=read))
            part.got.discard(step.group)
        elif step.op is not None and step.op.id in self.load_ids:
            self.read_slot(flow, step.op, part)
        else:
            assert step.op is not None
            self.clone(step.op)

    def issue_dot(self, flow: FlowLoop, dot: mma.Dot, part: Iteration) -> None:
        """Gets the slots that the dot reads first, then starts it."""
        found = next(d for d in flow.dots if d.dot is dot)
        self.get_slots(flow, {o.op.id for o in found.loads}, part)
        sides = [self.smem_operand(v) for v in (dot.a, dot.b)]
        for bound in found.bounds:
            if (self.masked or not bound.select.masks) and not (bound.only_last and self.follows):
                self.clear(bound, part)
        for item in found.staged:
            at = part.staged[item.key]
            sides[item.side] = self.b.value(View(at)) if item.is_transposed else at
        if found.fixed is not None:
            sides[1] = self.b.value(View(self.fixed[found.fixed.key]))
        a, b = sides[0] if sides[0] is not None else self.get(dot.a), sides[1]
        assert b is not None
        if found.zero_acc:
            type_ = dot.acc.type
            assert isinstance(type_, TileType)
            acc = self.b.value(Undef(type_.shape, type_.dtype), dot.result.name)
            keep = self.b.value(Constant(0, int1))
        else:
            acc, keep = self.get(dot.acc), None
        if isinstance(a.type, TileType) and a.type.dtype.bits == 8 and found.rounded is None:
            if a not in part.spread:
                part.spread[a] = self.b.value(mma.Spread(a), a.name)
            a = part.spread[a]
        if self.waits_for_turn:
            self.enter_order()
        self.b.add(mma.Fence())
        issue = mma.Issue(a, b, acc, keep, split=self.plan.split, swapped=False)
        self.b.add(issue)
        issue.result.name = dot.result.name
        self.b.add(mma.Commit())
        self.map[dot.result] = issue.result


def _row_statistic(v: Value) -> Value | None:
    """A reduced f32 tile, None for anything else."""
    return v if isinstance(v.type, TileType) and v.type.dtype == float32 else None


def build_flow_consumer(
    graph: TileGraph,
    builder: Builder,
    plan: Plan,
    flow: Flow,
    schedules: dict[int, LoopSchedule],
    arefs: dict[int, tuple[Value, ...]],
    outer: dict[int, Value],
    mapping: dict[Value, Value],
    stores: dict[int, StoreGeometry],
    tiles: Value | None = None,
) -> Role:
    """The consumer role, appended at the builder's insertion point."""
    role = Role(
        name="consumer",
        first_warpgroup=1,
        num_warpgroups=plan.num_consumers,
        registers=plan.consumer_registers,
        grow=True,
    )
    builder.add(role)
    with builder.at(role.body):
        maker = FlowConsumerBuilder(
            builder, plan, flow, schedules, arefs, outer, mapping, stores, tiles
        )
        maker.build_flow(graph)
    if graph.facts.get("fast_math"):
        drop_zeros(builder.graph, role.body)
    return role


def make_flow_channels(
    builder: Builder, flow: Flow, plan: Plan
) -> tuple[dict[int, Channel], dict[int, tuple[Value, ...]], dict[int, Value]]:
    """Arefs: one per load group (siblings share), one per outer load.

    Returns channels by a key of their own (for the producer), arefs per loop, arefs per outer load.
    """
    from tiledsl.ws.partition import make_aref

    channels: dict[int, Channel] = {}
    outer: dict[int, Value] = {}
    for item in flow.outer:
        outer[item.op.id] = make_aref(builder, (item,), plan.outer_stages)
        channels[item.op.id] = Channel((item,), outer[item.op.id], (False,))
    shared: dict[tuple[object, ...], Value] = {}
    arefs: dict[int, tuple[Value, ...]] = {}
    for f in flow.loops:
        made: list[Value] = []
        for group in f.groups:
            key = flow.channel_key(group)
            if key not in shared:
                shared[key] = make_aref(builder, group, plan.num_stages)
            channels[group[0].op.id] = Channel(group, shared[key], (False,) * len(group))
            made.append(shared[key])
        arefs[f.loop.id] = tuple(made)
    return channels, arefs, outer
