"""The single-role kernel: every warp runs the whole program. Always possible; the fallback and the
ablation baseline.

Dot operands go from registers to shared memory, the CTA synchronises, and the tensor core runs to
completion before anything else happens. Layout conversions take the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.layouts import dot_orientation
from tiledsl.ws.scratch import assign_scratch


@dataclass(frozen=True)
class SinglePlan:
    """Decisions about a single-role kernel."""

    num_warps: int = 4

    @property
    def num_threads(self) -> int:
        return 32 * self.num_warps

    def describe(self) -> str:
        return f"single role, {self.num_warps} warps"


def plan_single(graph: TileGraph, num_warps: int | None) -> SinglePlan:
    """Warps of the CTA: whole warpgroups for dots, two of them when each gets 64 rows or more."""
    dots: list[mma.Dot] = graph.find(mma.Dot)
    if not dots:
        return SinglePlan(num_warps or 4)
    for groups in (2, 1):
        if num_warps is not None and groups != max(1, num_warps // 4) and groups > 1:
            continue
        try:
            for d in dots:
                acc = d.acc.type
                assert isinstance(acc, TileType)
                dot_orientation(*acc.shape, groups, d.loc)
        except Exception:
            if groups == 1:
                raise
            continue
        if groups == 1 or all(min(_rows(d)) >= 64 for d in dots):
            return SinglePlan(4 * groups)
    return SinglePlan(4)


def _rows(dot: mma.Dot) -> tuple[int, ...]:
    acc = dot.acc.type
    assert isinstance(acc, TileType)
    return acc.shape


def build_single(graph: TileGraph, plan: SinglePlan) -> TileGraph:
    """The program as one role."""
    out = TileGraph(graph.name, Level.WARP_SPECIALIZED, constants=dict(graph.constants))
    mapping: dict[Value, Value] = {a: out.body.add_arg(a.type, a.name) for a in graph.args}
    role = Role(name="main", first_warpgroup=0, num_warpgroups=max(1, plan.num_warps // 4))
    builder = Builder(out)
    builder.add(role)
    with builder.at(role.body):
        for op in graph.body.ops:
            if not isinstance(op, Yield):
                builder.add(clone_op(op, mapping))
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
        for op in list(self.graph.walk()):
            if isinstance(op, mma.Dot):
                self.lower_dot(op)
        for role in self.graph.find(Role):
            assign_scratch(self.graph, role, self.smem, self.top)
        self.smem.check(self.target)
        self.graph.level = Level.MACHINE
        return self.smem

    def buffer(self, type_: SmemType, name: str, op: Op) -> Value:
        at = self.smem.take(
            f"{name} staging",
            type_.bytes,
            detail=f"{'x'.join(map(str, type_.shape))} {type_.dtype}",
            hint="smaller tile extents in this dot",
        )
        return self.top.value(smem.Buffer(type_, 1, at, loc=op.loc), f"{name}_stage")

    def at(self, op: Op) -> Builder:
        region = op.parent
        assert region is not None
        return Builder(self.graph, region, region.ops.index(op), op.loc)

    def stage(self, b: Builder, value: Value, major: int, name: str, op: Op) -> Value:
        type_ = value.type
        assert isinstance(type_, TileType)
        buffer = self.buffer(SmemType(type_.shape, type_.dtype, major), name, op)
        b.add(smem.Write(buffer, value, (0,) * type_.rank))
        return buffer

    def lower_dot(self, op: mma.Dot) -> None:
        b = self.at(op)
        acc = op.acc.type
        assert isinstance(acc, TileType)
        swapped, split = dot_orientation(*acc.shape, self.plan.num_warps // 4, op.loc)
        x = self.stage(b, op.a, 1, op.a.name or "a", op)
        y = self.stage(b, op.b, 0, op.b.name or "b", op)
        b.add(barrier.AsyncFence())
        b.add(barrier.CtaSync())
        b.add(mma.Fence())
        issue = mma.Issue(x, y, op.acc, split=split, swapped=swapped, names=(op.result.name,))
        b.add(issue)
        b.add(mma.Commit())
        wait = mma.Wait((issue.result,), pending=0, names=(op.result.name,))
        b.add(wait)
        b.add(barrier.CtaSync())
        for old, new in ((op.result, issue.result), (op.result, wait.results[0])):
            new.type = old.type
        self.graph.replace_uses(op.result, wait.results[0])
        self.graph.erase(op)


def lower_single(graph: TileGraph, plan: SinglePlan, target: Target) -> SmemPlan:
    """Runs the pass in place; returns the shared-memory table."""
    return Lowering(graph, plan, target).run()
