"""Steps of an iteration of a flow loop: dots that start and are waited for, tile math, slots."""

from __future__ import annotations

from tiledsl.dtypes import float32
from tiledsl.dtypes import int1
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.smem import Stage
from tiledsl.ir.ops.smem import View
from tiledsl.ir.ops.tile import Undef
from tiledsl.ir.types import TileType
from tiledsl.ws.flow import Flow
from tiledsl.ws.flow import FlowLoop
from tiledsl.ws.flow_operands import FlowOperands
from tiledsl.ws.flow_operands import Iteration
from tiledsl.ws.loop_schedule import Step
from tiledsl.ws.plan import Plan
from tiledsl.ws.stores import StoreGeometry


class FlowSteps(FlowOperands):
    """The part of the consumer that emits the steps of a schedule.

    last_loop: the loop before the only staged store of the program, or None.
    """

    def __init__(
        self,
        builder: Builder,
        plan: Plan,
        flow: Flow,
        arefs: dict[int, tuple[Value, ...]],
        mapping: dict[Value, Value],
        stores: dict[int, StoreGeometry],
    ) -> None:
        super().__init__(builder, plan, flow, arefs, mapping, stores)
        self.last_loop: For | None = None
        self.load_ids = {o.op.id for f in flow.loops for g in f.groups for o in g}

    masked = True
    follows = False
    """Whether another iteration follows for sure on the one that steps belong to."""
    waits_for_turn = False
    """Whether the dot that is issued next is the first one of a turn."""

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
