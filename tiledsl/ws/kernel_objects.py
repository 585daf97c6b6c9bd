"""What a specialised kernel has as a whole: rings and other buffers, mbarriers, tensor maps.

Buffers are placed in shared memory one after the other; rings are given as many slots as are left
room for. mbarriers expect an arrival for all bulk copies of a slot and one of each thread that
copies, or one of each warp that reads it, of every CTA that a multicast load of this CTA writes to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from tiledsl.dtypes import float32
from tiledsl.ir.builder import Builder
from tiledsl.ir.extents import tile_shapes
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import ArefType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.lower_store import StoreLowering
from tiledsl.ws.plan import Plan
from tiledsl.ws.scratch import scratch_bytes
from tiledsl.ws.slot_vectors import LINE_BYTES
from tiledsl.ws.stores import StoreGeometry

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
        own = (p for i, p in enumerate(self.type.payload) if i not in self.copied)
        return sum(p.copied_bytes for p in own)


class KernelObjects(StoreLowering):
    """Makes the objects of one kernel.

    rings: by aref. operands: buffers of computed operands, by key. reduce, reduce_full: where
    partial sums arrive, and the mbarriers that tell of it. maps: tensor maps fetched at the start.
    """

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
        reads = [op for op in self.graph.find(smem.Read) if not (op.by_wgmma or op.awaited)]
        ends = self.graph.find(smem.Arrived)
        if not (pins or reads or ends) and self.streamed is None:
            return
        at = self.smem.take("pins", 16, align=16)
        scratch = self.b.value(smem.Buffer(SmemType((4,), float32, 0, 0), 1, at), "pins")
        if self.streamed is not None:
            self.streamed.scratch = scratch
        for op in pins:
            self.graph.replace_op(op, mma.Pin(op.value, scratch, loc=op.loc))
        for op in ends:
            self.graph.replace_op(op, smem.Arrived(op.values, scratch, loc=op.loc))
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
            lines = (payload.copied_elems, payload.box_rows // split)
            ring.maps[i] = self.tensor_map(load.tensor, load.squeeze, payload, lines)

    def tensor_map(
        self, tensor: Value, squeeze: tuple[int, ...], payload: SmemType, lines: tuple[int, int]
    ) -> Value:
        """The map of boxes of so many elements of so many rows. payload: where they lie."""
        width, rows = lines
        t = tensor_type(tensor, "tensor map")
        assert t.inner_dim is not None
        tensors = tensors_of(tensor)
        dims = (t.inner_dim, *(d for d in reversed(range(t.rank)) if d != t.inner_dim))
        box = tuple(width if d == t.inner_dim else (1 if d in squeeze else rows) for d in dims)
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
            lines = (payload.box_elems, g.rows)
            self.store_maps[key] = self.tensor_map(op.tensor, op.squeeze, payload, lines)
        if op.end is not None and key not in self.part_maps:
            parts = ((payload.box_elems, n) for n in PART_ROWS)
            maps = (self.tensor_map(op.tensor, op.squeeze, payload, p) for p in parts)
            self.part_maps[key] = tuple(maps)
