"""The consumer role of a kernel with flow loops: the program around them, and ops in them."""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.layout import mma_operand_8bit
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops.barrier import WarpSync
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.program import OwnRow
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.ops.tile import ConvertLayout
from tiledsl.ir.ops.tile import Reshape
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import TileType
from tiledsl.ws.flow import Flow
from tiledsl.ws.flow_loops import FlowLoops
from tiledsl.ws.known_zeros import drop_zeros
from tiledsl.ws.loop_schedule import LoopSchedule
from tiledsl.ws.operands import operand_load
from tiledsl.ws.paired import regrouped
from tiledsl.ws.plan import Plan
from tiledsl.ws.row_reductions import combining
from tiledsl.ws.stage_ahead import loop_before_store
from tiledsl.ws.stores import StoreGeometry


class FlowConsumerBuilder(FlowLoops):
    """Clones the program; flow loops follow their schedules.

    arefs: per loop id, the aref of each of its load groups. outer: per load id, the aref of a load
    made before the loop. tiles: the aref that drawn tiles come through, if any.
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
        super().__init__(builder, plan, flow, schedules, arefs, outer, mapping, stores)
        self.tiles = tiles
        self.fast_math = False
        self.math = frozenset(i for f in flow.loops for i in f.math)
        rounded = [d.rounded for f in flow.loops for d in f.dots if d.rounded is not None]
        self.rounded = frozenset(r.cast for r in rounded)
        self.regrouped = frozenset(i for r in rounded for i in r.sums)

    def build_flow(self, graph: TileGraph) -> None:
        """The whole role body."""
        ops = [o for o in graph.body.ops if not isinstance(o, Yield)]
        self.fast_math = bool(graph.facts.get("fast_math"))
        self.write_fixed()
        if self.plan.turns:
            self.prime_order()
        self.last_loop = loop_before_store(graph, self.flow, self.schedules, self.stores, self.plan)
        self.stage_ahead = self.last_loop is not None
        loop, body = self.tile_loop()
        with self.b.at(body):
            self.guard_range()
            self.clone_into(ops)
            if loop is not None and self._ends_apart(ops[-1]):
                self.b.add(WarpSync())
        self.end_tiles(loop, body)

    def _ends_apart(self, last: Op) -> bool:
        """Whether the last statement of a tile is one lane's, or one of some programs only."""
        return isinstance(last, If) or (isinstance(last, Store) and last.id in self.stores)

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
