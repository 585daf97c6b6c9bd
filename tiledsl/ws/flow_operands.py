"""Operands of the dots of flow loops: slots of rings, tiles read from them, rows cleared there."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops.barrier import AsyncFence
from tiledsl.ir.ops.barrier import NamedSync
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Max
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.ops.smem import Clear
from tiledsl.ir.ops.smem import Read
from tiledsl.ir.ops.smem import Stage
from tiledsl.ir.ops.smem import View
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.types import SmemType
from tiledsl.ws.bounded import Bound
from tiledsl.ws.consumer import ConsumerBuilder
from tiledsl.ws.flow import Flow
from tiledsl.ws.flow import FlowLoop
from tiledsl.ws.plan import Plan
from tiledsl.ws.stores import StoreGeometry
from tiledsl.ws.turns import STORE_BARRIER
from tiledsl.ws.turns import operand_barrier

Env = dict[Value, Value]


@dataclass
class Iteration:
    """One iteration in flight: its values, and the slots that it borrowed.

    slots: by loaded tile; got: their channels. staged: computed operands in shared memory, by key.
    cleared: loads whose last rows are zero by now. spread: left operands whose bytes have moved.
    """

    values: Env
    got: set[int] = field(default_factory=set[int])
    slots: Env = field(default_factory=dict[Value, Value])
    staged: dict[int, Value] = field(default_factory=dict[int, Value])
    cleared: set[int] = field(default_factory=set[int])
    spread: Env = field(default_factory=dict[Value, Value])


class FlowOperands(ConsumerBuilder):
    """The part of the consumer that knows where operands are.

    arefs: per loop id, the aref of each of its load groups. part: the iteration that a step is of.
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
        super().__init__(builder, plan, {}, mapping, stores)
        self.flow = flow
        self.arefs = arefs
        self.covered = {b.select.id for f in flow.loops for d in f.dots for b in d.bounds}
        self.part: Iteration | None = None
        self.read_loads: set[int] = set()
        self.fixed: dict[int, Value] = {}

    def write_fixed(self) -> None:
        """Operands that are one number, before the first tile.

        Written in each tile, where the warpgroups would have to meet, they cost up to a tenth.
        """
        for item in [d.fixed for f in self.flow.loops for d in f.dots if d.fixed is not None]:
            number = self.b.value(Constant(item.value, item.smem.dtype))
            tile = self.b.value(Splat(number, item.smem.shape), item.name)
            self.fixed[item.key] = self.b.value(Stage(tile, item.smem, item.key), item.name)

    def get_slots(self, flow: FlowLoop, loads: set[int], part: Iteration) -> None:
        """Waits for the channels of some loads, unless the iteration has their slots already."""
        for index, group in enumerate(flow.groups):
            if index not in part.got and any(o.op.id in loads for o in group):
                get = aref.Get(self.arefs[flow.loop.id][index])
                self.b.add(get)
                for item, r in zip(group, get.results, strict=True):
                    r.name = item.name
                    part.slots[item.op.result] = r
                part.got.add(index)

    def read_slot(self, flow: FlowLoop, load: Op, part: Iteration) -> None:
        """A loaded tile in registers, for tile math."""
        self.get_slots(flow, {load.id}, part)
        value = load.results[0]
        self.read_loads.add(load.id)
        self.map[value] = self.b.value(Read(part.slots[value]), value.name)

    def smem_operand(self, v: Value) -> Value | None:
        """A loaded operand in shared memory, through transposes and cleared rows; else None."""
        op = v.defining_op
        if isinstance(op, Transpose):
            source = self.smem_operand(op.a)
            return None if source is None else self.b.value(View(source, op.order))
        if isinstance(op, Select) and op.id in self.covered:
            return self.smem_operand(op.a)
        if not isinstance(op, Load):
            return None
        assert self.part is not None
        return self.part.slots[v] if v in self.part.slots else self.get(v)

    def clear(self, bound: Bound, part: Iteration) -> None:
        """Zeros behind the bound in a slot, before anyone multiplies it; most tiles have none."""
        if bound.load.id in part.cleared:
            return
        part.cleared.add(bound.load.id)
        b, slot = self.b, part.slots[bound.load.result]
        limit = self.const(0)
        for p in bound.limit.products:
            term = self.const(p.number)
            for v in p.scalars:
                term = b.value(Mul(term, self.as_i32(self.get(v))))
            limit = b.value(Add(limit, term))
        assert isinstance(slot.type, SmemType)
        branch = If(b.value(Compare("lt", limit, self.const(slot.type.shape[bound.dim]))))
        b.add(branch)
        with b.at(branch.then):
            first = b.value(Max(limit, self.const(0)), "first")
            b.add(Clear(slot, first, bound.dim))
            b.add(AsyncFence())
            if not bound.only_last:
                # Nobody waits for others, who may have to wait for this one elsewhere. Each clears
                # for itself: what the others write over it is the same.
                b.add(NamedSync(b.value(WarpgroupIndex()), base=STORE_BARRIER, num_threads=128))
            else:
                # A barrier whose id is in a register costs ptxas registers.
                threads = 128 * self.plan.num_consumers
                b.add(NamedSync(base=operand_barrier(self.plan), num_threads=threads))
            b.add(Yield(()))
        with b.at(branch.orelse):
            b.add(Yield(()))
