"""Lowers staged stores: from registers to slabs in shared memory, from there by bulk copies."""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.dtypes import int32
from tiledsl.errors import InternalError
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.memory import picked
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.types import ArefType
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.epilogue_channel import StreamedTiles
from tiledsl.ws.epilogue_chunks import ChunkedValue
from tiledsl.ws.partition import narrowed
from tiledsl.ws.plan import Plan
from tiledsl.ws.stores import StoreGeometry
from tiledsl.ws.stores import lies_as_planned
from tiledsl.ws.stores import unstaged
from tiledsl.ws.turns import STORE_BARRIER


class StoreLowering:
    """The part of the lowering that stores take.

    stage: the slabs. store_maps, part_maps: tensor maps of outputs, whole boxes and parts of one.
    written: tensors that the kernel stores to. streamed: tiles that come through a channel.
    """

    def __init__(self, graph: TileGraph, plan: Plan, geometry: StoreGeometry | None) -> None:
        self.graph = graph
        self.plan = plan
        self.geometry = geometry
        self.cursors: dict[tuple[Value, int, str], Value] = {}
        self.stage: Value | None = None
        self.store_maps: dict[Value, Value] = {}
        self.written: set[Value] = set()
        self.part_maps: dict[Value, tuple[Value, ...]] = {}
        self.streamed: StreamedTiles | None = None

    # ------------------------------------------------------------------ small helpers
    def cursor(self, role: Role, ring: Value, kind: str) -> Value:
        """The role's cursor of a ring, made at the role's start.

        'move', and 'release' where releases lag behind.
        """
        if kind == "release" and self.plan.mma_depth == 1:
            kind = "move"
        key = (ring, role.id, kind)
        if key not in self.cursors:
            depth = ring.type.depth if isinstance(ring.type, ArefType) else self.plan.store_buffers
            op = barrier.CursorCreate(depth)
            self.graph.insert(role.body, 0, op)
            suffix = {"move": "at", "release": "done", "store": "at"}[kind]
            op.result.name = f"{ring.name}_{suffix}"
            self.cursors[key] = op.result
        return self.cursors[key]

    def at(self, op: Op) -> Builder:
        """A builder that inserts before `op`."""
        region = op.parent
        if region is None:
            raise InternalError("op is in no region", op.loc)
        return Builder(self.graph, region, region.ops.index(op), op.loc)

    def i32(self, b: Builder, v: Value) -> Value:
        return narrowed(b, v)

    def plus(self, b: Builder, v: Value, number: int) -> Value:
        return v if number == 0 else b.value(Add(v, b.value(Constant(number, int32))))

    # ------------------------------------------------------------------ stores
    def lower_stage_free(self, op: tma.StageFree) -> None:
        """No store of this warpgroup reads its slabs any more."""
        self.wait_for_slabs(self.at(op), 0)
        self.graph.erase(op)

    def wait_for_slabs(self, b: Builder, pending: int, group: Value | None = None) -> Value:
        """All stores but the last `pending` have read theirs; returns the warpgroup's index."""
        if group is None:
            group = b.value(WarpgroupIndex(), "warpgroup")
        b.add(tma.StoreWait(pending))
        b.add(barrier.NamedSync(group, base=STORE_BARRIER, num_threads=128))
        return group

    def lower_store(self, role: Role, op: tma.StoreTile) -> None:
        """Chunk by chunk: the slab is free, write it, make it visible to the copy engine, copy.

        Where the slabs were waited for ahead, all chunks take each step together.
        """
        g, plan = self.geometry, self.plan
        assert g is not None
        assert self.stage is not None
        # Cursors first: they are made at the start of the role, which may be this region.
        cursor = self.cursor(role, self.stage, "store") if plan.store_buffers > 1 else None
        tiles = self.streamed
        if tiles is not None:
            tiles.cursor = self.cursor(role, tiles.aref, "move")
        b = self.at(op)
        group = b.value(WarpgroupIndex(), "warpgroup")
        type_ = op.value.type
        assert isinstance(type_, TileType)
        if type_.layout is not None and not lies_as_planned(type_.layout, g):
            raise unstaged(self.graph, op, type_.layout)
        own = plan.warpgroups_per_tile > 1
        made = ChunkedValue(self.graph, op, g, self.written, tiles, own=own, in_place=plan.in_place)
        every = range(g.num_chunks) if op.chunk < 0 else (op.chunk,)
        if made.rolls and op.chunk < 0 and not op.ahead:
            self.store_rolled(b, op, made, group, cursor)
            every = range(0)
        for chunks in (every,) if op.ahead else [(chunk,) for chunk in every]:
            self.store_chunks(b, op, made, group, cursor, chunks)
        self.graph.erase(op)
        made.finish()

    def store_chunks(
        self,
        b: Builder,
        op: tma.StoreTile,
        made: ChunkedValue,
        group: Value,
        cursor: Value | None,
        chunks: Iterable[int],
    ) -> None:
        """Chunks that are written and copied together."""
        g, plan = self.geometry, self.plan
        assert g is not None
        assert self.stage is not None
        slabs: list[tuple[int, Value]] = []
        for chunk in chunks:
            value = made.value(b, chunk)
            if not op.ahead:
                self.wait_for_slabs(b, plan.store_buffers - 1, group)
            slot = b.value(smem.Slot(self.stage, cursor, group, plan.store_buffers), "slab")
            per_warpgroup = plan.warpgroups_per_tile > 1
            b.add(smem.Write(slot, value, g.start(chunk), per_warpgroup=per_warpgroup))
            slabs.append((chunk, slot))
            if cursor is not None and op.ahead:
                b.add(barrier.CursorNext(cursor))
        b.add(barrier.AsyncFence())
        b.add(barrier.NamedSync(group, base=STORE_BARRIER, num_threads=128))
        for chunk, slot in slabs:
            self.copy_out(b, op, group, chunk, slot)
            if cursor is not None and not op.ahead:
                b.add(barrier.CursorNext(cursor))

    def store_rolled(
        self, b: Builder, op: tma.StoreTile, made: ChunkedValue, group: Value, cursor: Value | None
    ) -> None:
        """A loop over the chunks; small blocks are loaded before the store of the chunk before."""
        g, plan = self.geometry, self.plan
        assert g is not None
        assert self.stage is not None
        none, end, step = (b.value(Constant(n, int32)) for n in (0, g.part[g.major], g.width))
        ahead = made.loaded_ahead(b, None)
        init = (made.acc, *ahead.values())
        body = Region()
        column = body.add_arg(ScalarType(int32), "column")
        acc, *blocks = [body.add_arg(v.type, v.name) for v in init]
        loop = For(none, end, step, init, unroll=-1, body=body, loc=op.loc)
        b.add(loop)
        with b.at(body):
            value = made.rolled(b, column, acc, dict(zip(ahead, blocks, strict=True)))
            following = made.loaded_ahead(b, b.value(Add(column, step))) if ahead else {}
            self.wait_for_slabs(b, plan.store_buffers - 1, group)
            slot = b.value(smem.Slot(self.stage, cursor, group, plan.store_buffers), "slab")
            whole = plan.warpgroups_per_tile > 1
            b.add(smem.Write(slot, value, g.start(0), per_warpgroup=whole))
            b.add(barrier.AsyncFence())
            b.add(barrier.NamedSync(group, base=STORE_BARRIER, num_threads=128))
            self.copy_out(b, op, group, 0, slot, column)
            if cursor is not None:
                b.add(barrier.CursorNext(cursor))
            # Registers move last, and pinned: anywhere else ptxas spills some of them.
            b.add(Yield((made.shifted(b), *following.values())))

    def copy_out(
        self,
        b: Builder,
        op: tma.StoreTile,
        group: Value,
        chunk: int,
        slot: Value,
        column: Value | None = None,
    ) -> None:
        """The bulk copy of a chunk from its slab; in a loop over chunks it begins at `column`."""
        g = self.geometry
        assert g is not None
        t = tensor_type(op.tensor, "store")
        kept = [d for d in range(t.rank) if d not in op.squeeze]
        dims = (t.inner_dim, *(d for d in reversed(range(t.rank)) if d != t.inner_dim))
        start = g.start(chunk)
        coords: list[Value] = []
        for d in dims:
            assert d is not None
            at = self.i32(b, op.offsets[d])
            if d in kept:
                at = self.plus(b, at, start[kept.index(d)])
                if column is not None and kept.index(d) == g.major:
                    at = b.value(Add(at, column))
                if kept.index(d) == g.split:
                    part = b.value(Constant(g.part[g.split], int32))
                    at = b.value(Add(at, b.value(Mul(group, part))))
            coords.append(at)
        rows, parts = self.lines_left(b, op, coords[1] if len(coords) > 1 else None)
        target = self.store_maps[tensors_of(op.tensor)[0]]
        eight, one = parts or (None, None)
        item = picked(op.tensor)
        b.add(tma.Store(target, slot, tuple(coords), op.guard, rows, eight, one, item))

    def lines_left(
        self, b: Builder, op: tma.StoreTile, at: Value | None
    ) -> tuple[Value | None, tuple[Value, ...]]:
        """How many lines of a box lie before the store's end, and the maps for a part of it."""
        if op.end is None:
            return None, ()
        assert at is not None
        maps = self.part_maps[tensors_of(op.tensor)[0]]
        return b.value(Sub(self.i32(b, op.end), at), "lines"), maps
