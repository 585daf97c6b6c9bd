"""The graph of a single-role kernel: the program as one role, and its machine ops."""

from __future__ import annotations

from tiledsl.ir.analysis.range_ends import OF_ARGUMENTS
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import cluster
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role_programs import SendProgram
from tiledsl.ir.passes.fold_sums import fold_sums
from tiledsl.target import Target
from tiledsl.ws.async_exchange import exchange_on_mbarriers
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.expand_dots import expand_dots
from tiledsl.ws.first_loads import start_early
from tiledsl.ws.likely_trips import FACT
from tiledsl.ws.load_ahead_of_dots import sink_loads
from tiledsl.ws.memory_order import order_lanes
from tiledsl.ws.memory_order import order_memory
from tiledsl.ws.memory_order import order_scalars
from tiledsl.ws.ring_places import ALIGN_BYTES
from tiledsl.ws.ring_places import ring_groups
from tiledsl.ws.scratch import assign_scratch
from tiledsl.ws.scratch import requested_bytes
from tiledsl.ws.single_dots import DotLowering
from tiledsl.ws.single_plan import SinglePlan
from tiledsl.ws.stay import add_programs
from tiledsl.ws.stay import message_on_mbarrier
from tiledsl.ws.stay import staying_loop
from tiledsl.ws.unbatch_dots import unbatch_dots


def build_single(graph: TileGraph, plan: SinglePlan) -> TileGraph:
    """The program as one role."""
    facts = {
        name: graph.facts[name] for name in (*OF_ARGUMENTS, "views", FACT) if name in graph.facts
    }
    out = TileGraph(
        graph.name, Level.WARP_SPECIALIZED, constants=dict(graph.constants), facts=facts
    )
    mapping: dict[Value, Value] = {a: out.body.add_arg(a.type, a.name) for a in graph.args}
    role = Role(
        name="main",
        first_warpgroup=0,
        num_warpgroups=max(1, plan.num_warps // 4),
        num_ctas=plan.num_ctas,
    )
    builder = Builder(out)
    builder.add(role)
    if plan.stays:
        add_programs(out, role.body, graph.body.ops, mapping, plan.num_ctas)
    else:
        with builder.at(role.body):
            for op in graph.body.ops:
                if not isinstance(op, Yield):
                    builder.add(clone_op(op, mapping))
    order_lanes(out)
    order_scalars(out, staying_loop(role.body))
    order_memory(out)
    expand_dots(out)
    unbatch_dots(out)
    fold_sums(out)
    return out


class Lowering:
    """Lowers dots and layout conversions of a single-role graph through shared memory."""

    def __init__(self, graph: TileGraph, plan: SinglePlan, target: Target) -> None:
        self.graph = graph
        self.plan = plan
        self.target = target
        self.smem = SmemPlan()
        self.top = Builder(graph, graph.body, 0)

    def run(self) -> SmemPlan:
        rings = self.place_rings()
        for role in self.graph.find(Role):
            DotLowering(self.graph, role, self.smem, self.top, self.target, rings).run()
            sink_loads(self.graph, role.body)
            message_on_mbarrier(self.graph, role, self.smem, self.top)
            if role.num_ctas > 1:
                exchange_on_mbarriers(self.graph, role, self.smem, self.top)
            assign_scratch(self.graph, role, self.smem, self.top, rings=rings)
            if role.num_ctas > 1:
                self.start_cluster(role)
            if self.plan.pdl and role.body.ops:
                plan = self.plan
                shape = (self.target.num_sms, plan.min_blocks)
                kinds = {"stays": plan.stays, "has_short_rows": plan.has_short_rows}
                kinds |= {"has_full_rows": plan.has_full_rows, "is_sparse": plan.is_sparse}
                start_early(self.graph, role.body, *shape, **kinds)
        self.smem.check(self.target)
        self.graph.level = Level.MACHINE
        return self.smem

    def place_rings(self) -> tuple[int, int]:
        """Gives rings their shared memory, and zeros where these are not copied.

        Returns where the part of it begins and ends that others may use outside of the loops.
        """
        zeroed = False
        start = -(-self.smem.end_bytes // ALIGN_BYTES) * ALIGN_BYTES
        for n, group in enumerate(ring_groups(self.graph)):
            at = None if n == 0 else start
            for ring in group:
                num_bytes = ring.depth * ring.type_.bytes
                place = self.smem.take(
                    f"ring of {ring.result.name.removesuffix('_ring')}",
                    num_bytes,
                    detail=f"{'' if n == 0 else 'shared with another loop; '}{ring.describe()}",
                    hint="fewer num_stages",
                    shapes=(ring.type_.shape,),
                    at=at,
                )
                at = at if at is None else place + num_bytes
                made = smem.Buffer(ring.type_, ring.depth, place, loc=ring.loc)
                self.graph.replace_op(ring, made)
                if ring.is_zeroed:
                    zeroed = True
                    for role in self.graph.find(Role):
                        self.graph.insert(role.body, 0, smem.Zero(made.result, num_bytes))
        if zeroed:
            for role in self.graph.find(Role):
                after = next(op for op in role.body.ops if not isinstance(op, smem.Zero))
                self.graph.insert_before(after, barrier.CtaSync())
        return start, start if zeroed else max(start, self.smem.end_bytes)

    def start_cluster(self, role: Role) -> None:
        """All CTAs run before one writes to another, which it does where threads first exchange."""
        ops = role.body.ops
        first = next((op for op in ops if _exchanges(op)), None)
        if first is not None:
            self.graph.insert_before(ops[0], cluster.Arrive())
            self.graph.insert_before(first, cluster.Wait())


def _exchanges(op: Op) -> bool:
    """Whether an op, or one inside it, writes to the shared memory of other threads."""
    inner = [op, *(o for region in op.regions for o in region.walk())]
    return any(isinstance(o, SendProgram) or requested_bytes(o) for o in inner)


def lower_single(graph: TileGraph, plan: SinglePlan, target: Target) -> SmemPlan:
    """Runs the pass in place; returns the shared-memory table."""
    return Lowering(graph, plan, target).run()
