"""Lowers arefs and staged stores to the machine: WARP_SPECIALIZED -> MACHINE.

They become mbarriers, cursors, bulk copies and named barriers.
full barrier: one arrival plus the bytes of the slot; where threads copy, an arrival of each when
its copies have landed, after which readers put a proxy fence. empty barrier: one arrival per
consumer warp that reads the slot, of every CTA that a multicast load of this CTA writes to. slot =
n mod D and parity = (n / D) & 1 for the running count n, which cursors carry over all tiles.

Ref: PTX ISA, mbarrier, cp.async.bulk.tensor; Tawa (arXiv 2510.14719), lowering of arefs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from tiledsl.dtypes import int32
from tiledsl.errors import ScheduleError
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import picked
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.pointer_copy import CopyLanes
from tiledsl.ir.ops.role import ClusterRank
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import Setup
from tiledsl.target import Target
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.epilogue_channel import streamed_tiles
from tiledsl.ws.kernel_objects import KernelObjects
from tiledsl.ws.kernel_objects import Ring
from tiledsl.ws.load_boxes import box_coords
from tiledsl.ws.plan import Plan
from tiledsl.ws.prefetch import Stream
from tiledsl.ws.prefetch import first_programs
from tiledsl.ws.prefetch import stream_of
from tiledsl.ws.scratch import assign_scratch
from tiledsl.ws.scratch import refuse_cooperation
from tiledsl.ws.steering import mark_steering
from tiledsl.ws.stores import StoreGeometry
from tiledsl.ws.turns import operand_barrier


class Lowering(KernelObjects):
    """One run of the pass over one graph."""

    # ------------------------------------------------------------------ kernel level
    def run(self) -> SmemPlan:
        graph, plan = self.graph, self.plan
        self.fit_rings()
        stores = [*graph.find(tma.StoreTile), *graph.find(Store)]
        self.written |= {t for s in stores for t in tensors_of(s.tensor)}
        creates = graph.find(aref.Create)
        puts: dict[Value, aref.Put] = {p.aref: p for p in graph.find(aref.Put)}
        for op in creates:
            self.make_buffers(op, puts[op.result])
        self.make_stage()
        self.make_operands()
        self.make_reduce_buffer()
        self.streamed = streamed_tiles(graph, puts, self.rings)
        self.make_pins()
        arrays = [self.make_barriers(op) for op in creates]
        for op in creates:
            self.make_load_maps(puts[op.result], self.rings[op.result])
        for op in graph.find(tma.StoreTile):
            self.make_store_map(op)
        # After the barriers of the staging slabs and of the ping-pong order.
        named = operand_barrier(plan) + 1 + (plan.num_consumers if plan.epilogue_slots else 0)
        for role in graph.find(Role):
            if role.single_thread or role.copies:
                refuse_cooperation(role)
            else:
                assign_scratch(graph, role, self.smem, self.b, named)
        self.smem.check(self.target, creates[0].loc if creates else None)
        self.setup(arrays)
        for role in graph.find(Role):
            self.lower_role(role)
        left = next((o for o in graph.find(Load) if o.streamed), None)
        if left is not None:
            raise ScheduleError("a tile for the epilogue cannot be read in chunks", left.loc)
        for op in creates:
            graph.erase(op)
        if plan.cluster_size > 1:
            graph.append(graph.body, barrier.ClusterSync())
        graph.level = Level.MACHINE
        return self.smem

    def setup(self, arrays: list[tuple[Ring, Value, Value]]) -> None:
        b = self.b
        op = Setup()
        b.add(op)
        with b.at(op.body):
            for ring, full, empty in arrays:
                b.add(barrier.MbarrierInit(full, ring.full_arrivals))
                b.add(barrier.MbarrierInit(empty, ring.arrivals))
            if self.reduce_full is not None:
                b.add(barrier.MbarrierInit(self.reduce_full, 1))
                b.add(barrier.ExpectAll(self.reduce_full, self.reduce_bytes))
            b.add(barrier.InitFence())
            for m in self.maps:
                b.add(tma.Prefetch(m))
        b.add(barrier.ClusterSync() if self.plan.cluster_size > 1 else barrier.CtaSync())
        if self.plan.pdl:
            self.fetch_ahead()
            b.add(barrier.GridDependency())

    def fetch_ahead(self) -> None:
        """One thread asks for the first boxes of a stream while the kernel before ends."""
        put = stream_of(self.graph)
        if not self.plan.prefetch or put is None:
            return
        ring = self.rings[put.aref]

        def emit(b: Builder, i: int, load: Load, offsets: tuple[Value, ...]) -> None:
            payload = ring.type.payload[i]
            size = ring.cluster_size if ring.multicast[i] else 1
            rank = b.value(ClusterRank(), "rank") if size > 1 else None
            for box in range(payload.num_boxes):
                coords = box_coords(b, load, offsets, payload, box, rank, payload.box_rows // size)
                b.add(tma.PrefetchBox(ring.maps[i], coords))

        op = Setup()
        self.b.add(op)
        with self.b.at(op.body):
            first_programs(
                self.b,
                self.plan,
                lambda: Stream(put).emit(self.b, self.plan.prefetch, emit),
            )

    # ------------------------------------------------------------------ role level
    def lower_role(self, role: Role) -> None:
        mark_steering(self.graph, role)
        handlers: dict[type[Op], Callable[[Any], None]] = {
            aref.Put: partial(self.lower_put, role),
            aref.Get: partial(self.lower_get, role),
            aref.Consumed: partial(self.lower_consumed, role),
            aref.Skip: partial(self.lower_skip, role),
            tma.StageFree: self.lower_stage_free,
            tma.StoreTile: partial(self.lower_store, role),
            smem.Stage: self.lower_stage,
            mma.ClusterReduce: self.lower_reduce,
        }
        for op in list(role.body.walk()):
            if type(op) in handlers:
                handlers[type(op)](op)
        if any(isinstance(o, tma.Store) for o in role.body.walk()):
            self.graph.append(role.body, tma.StoreWait(0))

    def lower_reduce(self, op: mma.ClusterReduce) -> None:
        new = op.rebuild({}, buffer=self.reduce, barriers=self.reduce_full)
        for a, c in zip(op.results, new.results, strict=True):
            c.type = a.type
        self.graph.replace_op(op, new)

    def lower_put(self, role: Role, op: aref.Put) -> None:
        cursor = self.cursor(role, op.aref, "move")
        b, ring = self.at(op), self.rings[op.aref]
        b.add(barrier.MbarrierWait(ring.empty, cursor, invert=True))
        end = op.body.terminator
        assert isinstance(end, Yield)
        if not (op.body.args or any(isinstance(o, Load) for o in op.body.ops)):
            values = end.values
            for buffer, words in zip(ring.buffers, ring.type.payload, strict=True):
                slot = b.value(smem.Slot(buffer, cursor), "slot")
                b.add(smem.WriteScalars(slot, values[: words.shape[0]]))
                values = values[words.shape[0] :]
            b.add(barrier.Arrive(ring.full, cursor, single_thread=True))
            b.add(barrier.CursorNext(cursor))
            self.graph.erase(op)
            return
        loads = [o for o in op.body.ops if isinstance(o, Load)]
        if loads:
            b.add(barrier.ExpectTx(ring.full, cursor, ring.bulk_bytes))
        for i, load in zip(sorted({*range(len(ring.buffers))} - ring.copied), loads, strict=True):
            with b.located(load.loc):
                self.lower_load(b, ring, i, load, cursor)
        if ring.copied:
            self.lower_copies(b, ring, op, cursor)
            b = self.at(op)
            b.add(barrier.ArriveCopies(ring.full, cursor))
        b.add(barrier.CursorNext(cursor))
        self.graph.erase(op)

    def lower_copies(self, b: Builder, ring: Ring, op: aref.Put, cursor: Value) -> None:
        """What threads copy to a slot, in front of the put."""
        for i, tile in zip(sorted(ring.copied), op.body.args, strict=True):
            slot = b.value(smem.Slot(ring.buffers[i], cursor), tile.name)
            self.graph.replace_uses(tile, slot)
        for copy in [o for o in op.body.ops if isinstance(o, CopyLanes)]:
            self.graph.move_before(op, copy)

    def lower_load(self, b: Builder, ring: Ring, index: int, load: Load, cursor: Value) -> None:
        payload = ring.type.payload[index]
        slot = b.value(smem.Slot(ring.buffers[index], cursor), load.result.name)
        size = ring.cluster_size if ring.multicast[index] else 1
        rows = payload.box_rows // size
        rank = b.value(ClusterRank(), "rank") if size > 1 else None
        mask = b.value(Constant((1 << size) - 1, int32)) if size > 1 else None
        halves = (0, 1) if payload.paired else (0,)
        for box, half in product(range(payload.num_boxes), halves):
            coords = box_coords(b, load, load.offsets, payload, box, rank, rows, half)
            first = box * payload.box_rows + half * (payload.box_rows // 2)
            b.add(
                tma.Load(
                    ring.maps[index],
                    slot,
                    ring.full,
                    cursor,
                    coords,
                    mask,
                    rank,
                    picked(load.tensor),
                    offset_bytes=first * payload.swizzle_bytes,
                    part_bytes=rows * payload.swizzle_bytes if size > 1 else 0,
                    cache_hint=ring.hints[index] if ring.hints else "",
                )
            )

    def lower_get(self, role: Role, op: aref.Get) -> None:
        cursor = self.cursor(role, op.aref, "move")
        b, ring = self.at(op), self.rings[op.aref]
        b.add(barrier.MbarrierWait(ring.full, cursor))
        if ring.copied:
            b.add(barrier.AsyncFence())
        for buffer, old in zip(ring.buffers, op.results, strict=True):
            slot = b.value(smem.Slot(buffer, cursor), old.name)
            self.graph.replace_uses(old, slot)
        if self.plan.mma_depth > 1:
            b.add(barrier.CursorNext(cursor))
        self.graph.erase(op)

    def lower_consumed(self, role: Role, op: aref.Consumed) -> None:
        cursor = self.cursor(role, op.aref, "release")
        b, ring = self.at(op), self.rings[op.aref]
        b.add(
            barrier.Arrive(
                ring.empty,
                cursor,
                ring.cluster_size,
                single_thread=role.single_thread,
                converge=op.converge,
            )
        )
        b.add(barrier.CursorNext(cursor))
        self.graph.erase(op)

    def lower_skip(self, role: Role, op: aref.Skip) -> None:
        in_step = self.streamed is not None and op.aref is self.streamed.aref
        kinds = ("move",) if in_step else ("move", "release")
        cursors = {self.cursor(role, op.aref, kind) for kind in kinds}
        b = self.at(op)
        for cursor in sorted(cursors, key=lambda v: v.id):
            b.add(barrier.CursorSkip(cursor, op.count))
        self.graph.erase(op)

    def lower_stage(self, op: smem.Stage) -> None:
        """All wgmmas that read the buffer are over, write it, make it visible to the next ones."""
        b, threads = self.at(op), 128 * self.plan.num_consumers
        b.add(barrier.NamedSync(base=operand_barrier(self.plan), num_threads=threads))
        slot = b.value(smem.Slot(self.operands[op.key]), op.result.name)
        b.add(smem.Write(slot, op.value, (0, 0), is_shared=True))
        b.add(barrier.AsyncFence())
        b.add(barrier.NamedSync(base=operand_barrier(self.plan), num_threads=threads))
        self.graph.replace_uses(op.result, slot)
        self.graph.erase(op)


def lower_aref(
    graph: TileGraph, plan: Plan, geometry: StoreGeometry | None, target: Target
) -> SmemPlan:
    """Runs the pass in place; returns the shared-memory table."""
    return Lowering(graph, plan, geometry, target).run()
