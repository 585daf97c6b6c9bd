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
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any
from typing import cast

from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.errors import ScheduleError
from tiledsl.ir.builder import Builder
from tiledsl.ir.extents import tile_shapes
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
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.pointer_copy import CopyLanes
from tiledsl.ir.ops.role import ClusterRank
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import Setup
from tiledsl.ir.types import ArefType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.epilogue_channel import streamed_tiles
from tiledsl.ws.load_boxes import box_coords
from tiledsl.ws.lower_store import StoreLowering
from tiledsl.ws.plan import Plan
from tiledsl.ws.prefetch import Stream
from tiledsl.ws.prefetch import first_programs
from tiledsl.ws.prefetch import stream_of
from tiledsl.ws.scratch import assign_scratch
from tiledsl.ws.scratch import refuse_cooperation
from tiledsl.ws.scratch import scratch_bytes
from tiledsl.ws.slot_vectors import LINE_BYTES
from tiledsl.ws.steering import mark_steering
from tiledsl.ws.stores import StoreGeometry
from tiledsl.ws.turns import operand_barrier

COPY_THREADS = 128
"""Of a load role that copies."""
BARRIER_BYTES = 1024
"""Room for mbarriers and alignment."""
PART_ROWS = (8, 1)
"""Lines of the boxes by which a store ends within its box."""


@dataclass
class Ring:
    """Machine objects of one aref. copied: entries of its slots that threads copy."""

    type: ArefType
    buffers: tuple[Value, ...]
    full: Value
    empty: Value
    multicast: tuple[bool, ...]
    cluster_size: int
    arrivals: int
    maps: dict[int, Value]
    hints: tuple[str, ...] = ()
    copied: frozenset[int] = frozenset()

    @property
    def full_arrivals(self) -> int:
        """One for all bulk copies of a slot, and one of each thread that copies."""
        bulk = len(self.copied) < len(self.buffers)
        return int(bulk) + (COPY_THREADS if self.copied else 0)

    @property
    def bulk_bytes(self) -> int:
        """Bytes of a slot that bulk copies bring."""
        return sum(p.bytes for i, p in enumerate(self.type.payload) if i not in self.copied)


class Lowering(StoreLowering):
    """One run of the pass over one graph."""

    def __init__(
        self, graph: TileGraph, plan: Plan, geometry: StoreGeometry | None, target: Target
    ) -> None:
        super().__init__(graph, plan, geometry)
        self.target = target
        self.smem = SmemPlan()
        self.rings: dict[Value, Ring] = {}
        self.b = Builder(graph, graph.body, 0)
        self.reduce: Value | None = None
        self.reduce_full: Value | None = None
        self.reduce_bytes = 0
        self.operands: dict[int, Value] = {}
        self.maps: list[Value] = []

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

    def fit_rings(self) -> None:
        """Rings with as many slots as there is room for, and how many those of operands have."""
        planned = [op.depth for op in self.graph.find(aref.Create)]
        self.shrink_rings()
        slots = [op.depth for op in self.graph.find(aref.Create)]
        if slots != planned:
            pairs = zip(slots, planned, strict=True)
            held = {n for n, before in pairs if before == self.plan.num_stages}
            self.smem.cut_slots = tuple(sorted(held, reverse=True))

    def shrink_rings(self) -> None:
        """Takes slots from the rings until there is room for what ops need for themselves.

        Plans are made before layouts are known, and so without these bytes.
        """
        roles = [r for r in self.graph.find(Role) if not (r.single_thread or r.copies)]
        scratch = sum(scratch_bytes(r) for r in roles)
        if not scratch:
            return
        g, plan = self.geometry, self.plan
        staging = g.buffer_bytes * plan.store_buffers * plan.num_consumers if g is not None else 0
        room = self.target.smem_of(plan.ctas_per_sm) - scratch - staging - BARRIER_BYTES
        leasts = [max(2, plan.mma_depth), max(1, plan.mma_depth)]  # one slot: no overlap
        while leasts:
            rings: list[aref.Create] = self.graph.find(aref.Create)
            types = [cast("ArefType", r.result.type) for r in rings]
            if sum(t.slot_bytes * t.depth for t in types) <= room:
                return
            deep = [(t.depth, -i) for i, t in enumerate(types) if t.depth > leasts[0]]
            if not deep:
                del leasts[0]
                continue
            ring = rings[-max(deep)[1]]
            self.graph.replace_op(ring, ring.rebuild({}, depth=ring.depth - 1))

    def make_buffers(self, op: aref.Create, put: aref.Put) -> None:
        end = put.body.terminator
        assert isinstance(end, Yield)
        buffers: list[Value] = []
        type_ = op.result.type
        assert isinstance(type_, ArefType)
        for payload, loaded in zip(type_.payload, end.values, strict=False):
            is_tile = isinstance(loaded.type, TileType | SmemType)
            name = loaded.name if is_tile else op.result.name
            name = name or "ring"
            extents = "x".join(map(str, payload.shape))
            at = self.smem.take(
                f"{name} ring",
                payload.bytes * type_.depth,
                align=1024 if payload.swizzle_bytes else LINE_BYTES,
                detail=f"{type_.depth} slots of {extents} {payload.dtype}"
                + (", rows in pairs" if payload.paired else ""),
                hint="fewer num_stages",
                shapes=(payload.shape,),
            )
            buffers.append(
                self.b.value(smem.Buffer(payload, type_.depth, at, loc=op.loc), f"{name}_ring")
            )
        multicast = put.multicast or (False,) * len(buffers)
        size = put.cluster_size if any(multicast) else 1
        none = buffers[0]
        self.rings[op.result] = Ring(
            type_,
            tuple(buffers),
            none,
            none,
            multicast,
            size,
            self.readers(op) * size,
            {},
            put.hints,
            frozenset(i for i, v in enumerate(end.values) if v in put.body.args),
        )

    def readers(self, op: aref.Create) -> int:
        """Warps of this CTA that give a slot back, or the one thread that reads it."""
        gets = [g for g in self.graph.find(aref.Get) if g.aref is op.result]
        roles = [r for g in gets for r in self.graph.enclosing(g) if isinstance(r, Role)]
        if roles and all(r.single_thread for r in roles):
            return len({r.id for r in roles})
        return 4 * (1 if self.plan.ping_pong else self.plan.num_consumers)

    def make_stage(self) -> None:
        """Staging slabs: `store_buffers` chunks for each consumer warpgroup."""
        g, plan = self.geometry, self.plan
        if g is None:
            return
        stores = self.graph.find(tma.StoreTile)
        dtype = tensor_type(stores[0].tensor, "store").dtype
        total = g.buffer_bytes * plan.store_buffers * plan.num_consumers
        at = self.smem.take(
            "store staging",
            total,
            detail=f"{plan.num_consumers} warpgroups x {plan.store_buffers} chunks "
            f"of {g.rows}x{g.width} {dtype}",
            shapes=tile_shapes(*(s.value for s in stores)),
        )
        type_ = SmemType(g.chunk_shape, dtype, g.major)
        self.stage = self.b.value(
            smem.Buffer(type_, plan.store_buffers * plan.num_consumers, at), "stage"
        )

    def make_operands(self) -> None:
        """Buffers for operands that the consumers compute."""
        for op in self.graph.find(smem.Stage):
            if op.key in self.operands:
                continue
            name = op.value.name or "operand"
            extents = "x".join(map(str, op.type_.shape))
            at = self.smem.take(
                f"{name} operand",
                op.type_.bytes,
                detail=f"{extents} {op.type_.dtype}, computed",
                shapes=(op.type_.shape,),
            )
            buffer = smem.Buffer(op.type_, 1, at, loc=op.loc)
            self.operands[op.key] = self.b.value(buffer, f"{name}_operand")

    def make_reduce_buffer(self) -> None:
        """Where split-K partial sums of the other CTAs of the cluster arrive."""
        ops = self.graph.find(mma.ClusterReduce)
        if not ops:
            return
        layout = ops[0].acc.type.layout
        owned = -(-self.plan.num_consumers // self.plan.split_k)
        part = (self.plan.split_k - 1) * layout.num_regs * 128 * 4
        at = self.smem.take(
            "split-K partials",
            owned * part,
            detail="fp32, from the other CTAs of the cluster",
            hint="split_k=1",
            shapes=(ops[0].acc.type.shape,),
        )
        flat = SmemType((owned * part // 4,), ops[0].acc.type.dtype, 0, 0)
        self.reduce = self.b.value(smem.Buffer(flat, 1, at), "partials")
        at = self.smem.take("split-K barriers", 8 * owned, align=8)
        self.reduce_full = self.b.value(barrier.MbarrierArray(owned, 1, at), "partials_full")
        self.reduce_bytes = part

    def make_pins(self) -> None:
        """Where pinned values would be stored."""
        pins = self.graph.find(mma.Pin)
        reads = [op for op in self.graph.find(smem.Read) if not op.by_wgmma]
        if not pins and not reads and self.streamed is None:
            return
        at = self.smem.take("pins", 16, align=16)
        scratch = self.b.value(smem.Buffer(SmemType((4,), float32, 0, 0), 1, at), "pins")
        if self.streamed is not None:
            self.streamed.scratch = scratch
        for op in pins:
            self.graph.replace_op(op, mma.Pin(op.value, scratch, loc=op.loc))
        for op in reads:
            type_ = op.result.type
            new = smem.Read(
                op.smem, scratch, op.first, op.shape, op.part, loc=op.loc, names=(op.result.name,)
            )
            self.graph.replace_op(op, new)
            new.result.type = type_

    def make_barriers(self, op: aref.Create) -> tuple[Ring, Value, Value]:
        ring = self.rings[op.result]
        depth = ring.type.depth
        at = self.smem.take(
            f"{op.result.name} barriers",
            16 * depth,
            align=8,
            detail=f"full and empty, {depth} each",
        )
        name = op.result.name
        full = barrier.MbarrierArray(depth, ring.full_arrivals, at)
        ring.full = self.b.value(full, f"{name}_full")
        ring.empty = self.b.value(
            barrier.MbarrierArray(depth, ring.arrivals, at + 8 * depth), f"{name}_empty"
        )
        return ring, ring.full, ring.empty

    def make_load_maps(self, put: aref.Put, ring: Ring) -> None:
        loads = [o for o in put.body.ops if isinstance(o, Load)]
        if not loads:
            return
        bulk = [(i, p) for i, p in enumerate(ring.type.payload) if i not in ring.copied]
        for load, (i, payload) in zip(loads, bulk, strict=True):
            split = ring.cluster_size if ring.multicast[i] else 1
            ring.maps[i] = self.tensor_map(
                load.tensor, load.squeeze, payload, payload.box_rows // split
            )

    def tensor_map(
        self, tensor: Value, squeeze: tuple[int, ...], payload: SmemType, rows: int
    ) -> Value:
        t = tensor_type(tensor, "tensor map")
        assert t.inner_dim is not None
        tensors = tensors_of(tensor)
        dims = (t.inner_dim, *(d for d in reversed(range(t.rank)) if d != t.inner_dim))
        box = tuple(
            payload.box_elems if d == t.inner_dim else (1 if d in squeeze else rows) for d in dims
        )
        if payload.paired:
            at = next(i for i, d in enumerate(dims) if d != t.inner_dim and d not in squeeze)
            dims = (*dims[: at + 1], *dims[at:])
            box = (*box[:at], 2, rows // 4, *box[at + 1 :])
        op = tma.TensorMap(
            tensors[0], tensors[1:], dims, box, payload.swizzle_bytes, self.plan.l2_promotion_bytes
        )
        value = self.b.value(op, f"{tensors[0].name}_map")
        if len(tensors) == 1:
            self.maps.append(value)
        return value

    def make_store_map(self, op: tma.StoreTile) -> None:
        g = self.geometry
        assert g is not None
        payload = SmemType(g.chunk_shape, tensor_type(op.tensor, "store").dtype, g.major)
        key = tensors_of(op.tensor)[0]
        if key not in self.store_maps:
            self.store_maps[key] = self.tensor_map(op.tensor, op.squeeze, payload, g.rows)
        if op.end is not None and key not in self.part_maps:
            maps = (self.tensor_map(op.tensor, op.squeeze, payload, n) for n in PART_ROWS)
            self.part_maps[key] = tuple(maps)

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
