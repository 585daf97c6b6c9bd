"""Tiles that only the epilogue reads, loaded by a role of their own.

A thread of another warp of the load warpgroup copies them chunk by chunk through a ring of one or
two slots, while the consumers multiply. It waits for the epilogue and for nothing else, so that the
loads of the next tile's loop never wait behind it.

What a tile's slots take before its epilogue is loaded a while after they are free: that is when
another tile begins, and its first loads are all that the tensor core waits for.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.role import Pause
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.channels import Channel
from tiledsl.ws.dependence import unknown_to_loads
from tiledsl.ws.operands import smem_of_load
from tiledsl.ws.partition import constant_step
from tiledsl.ws.plan import Plan
from tiledsl.ws.producer import ProducerBuilder
from tiledsl.ws.slot_vectors import loads_of
from tiledsl.ws.stores import StoreGeometry
from tiledsl.ws.stores import is_turned

LOADER_WARP = 1
"""Of the load warpgroup, beside the thread that loads the operands."""


@dataclass(frozen=True)
class EpilogueChannel:
    """An aref whose slots hold a chunk of each tile, and the loads that it stands for."""

    aref: Value
    loads: tuple[Load, ...]
    geometry: StoreGeometry


def channel_loads(body: Region, stores: list[Store]) -> tuple[Load, ...]:
    """Blocks of 16-bit elements that lie as the stored tile does, at the top of a program."""
    if len(stores) != 1 or stores[0].parent is not body or is_turned(stores[0].value):
        return ()
    store = stores[0]
    target = tensor_type(store.tensor, "store")
    kept = [d for d in range(target.rank) if d not in store.squeeze]
    along_rows = len(kept) == 2 and target.inner_dim == kept[1]
    if not along_rows or target.dtype.bits != 16 or store.end is not None:
        return ()
    return tuple(op for op in body.ops if isinstance(op, Load) and _goes_with(op, store))


def _goes_with(load: Load, store: Store) -> bool:
    """Whether a block can come in the chunks of a stored tile."""
    found = smem_of_load(load)
    if isinstance(found, str) or found.major != 1 or found.dtype.bits != 16:
        return False
    shape = tuple(n for d, n in enumerate(store.block_shape) if d not in store.squeeze)
    written = set(tensors_of(store.tensor))
    return found.shape == shape and written.isdisjoint(tensors_of(load.tensor))


def epilogue_channel(
    graph: TileGraph,
    builder: Builder,
    plan: Plan,
    operands: dict[int, Channel],
    geometries: dict[int, StoreGeometry],
) -> EpilogueChannel | None:
    """The channel of a plan that has one."""
    stores: list[Store] = graph.find(Store)
    loads = channel_loads(graph.body, stores) if plan.epilogue_slots else ()
    geometry = geometries.get(stores[0].id) if stores else None
    if not loads or geometry is None:
        return None
    unknown = unknown_values(graph, operands, loads)
    if any(v in unknown for load in loads for v in load.operands):
        return None
    payload = tuple(_chunk(load, geometry) for load in loads)
    name = "_".join(name_of(load) for load in loads)
    with builder.located(loads[0].loc):
        value = builder.value(aref.Create(payload, plan.epilogue_slots), name)
    return EpilogueChannel(value, loads, geometry)


def name_of(load: Load) -> str:
    """What the slots of a tile are called."""
    return load.result.name or tensors_of(load.tensor)[0].name or "x"


def _chunk(load: Load, geometry: StoreGeometry) -> SmemType:
    """All rows of a tile, and the columns of a chunk."""
    found = smem_of_load(load)
    assert isinstance(found, SmemType)
    return SmemType((found.shape[0], geometry.width), found.dtype, 1)


def unknown_values(
    graph: TileGraph, operands: dict[int, Channel], loads: tuple[Load, ...]
) -> set[Value]:
    """What a role without the dots cannot know."""
    brought = (op for c in operands.values() for op in loads_of(c.loads))
    return unknown_to_loads(graph, (*brought, *loads))


class LoaderBuilder(ProducerBuilder):
    """The walk over tiles with nothing but the loads of the channel.

    loops: over dots, of each tile.
    """

    channel: EpilogueChannel
    loops: tuple[For, ...]

    def clone(self, op: Op) -> None:
        if op not in self.channel.loads:
            super().clone(op)

    def put_chunks(self) -> None:
        """A loop over the chunks of the tiles; the last one may overlap its neighbour."""
        b, g = self.b, self.channel.geometry
        pause = self.pause()
        body = Region()
        at = body.add_arg(ScalarType(int32), "column")
        # Not unrolled: the registers of the load warpgroup are few.
        ends = (self.const(0), self.const(g.part[1]), self.const(g.width))
        b.add(For(*ends, (), unroll=-1, body=body))
        with b.at(body):
            if pause is not None:
                self.wait_a_while(at, pause)
            last = g.start(g.num_chunks - 1)[1]
            overlaps = g.part[1] % g.width != 0
            self.put_chunk(b.value(Min(at, self.const(last)), "column") if overlaps else at)
            b.add(Yield(()))

    def pause(self) -> Value | None:
        """Clocks from one chunk to the next while the slots are filled ahead of the epilogue.

        They go by the loops of a tile, as far as this role knows how long these are.
        """
        each = self.plan.epilogue_pause
        loops = [loop for loop in self.loops if {loop.lower, loop.upper} <= self.map.keys()]
        if not each or not loops:
            return None
        trips = [
            self.trip_count(self.get(o.lower), self.get(o.upper), constant_step(o)) for o in loops
        ]
        return self.b.value(Mul(functools.reduce(self.sum_of, trips), self.const(each)), "pause")

    def sum_of(self, x: Value, y: Value) -> Value:
        """x + y."""
        return self.b.value(Add(x, y))

    def wait_a_while(self, column: Value, pause: Value) -> None:
        """Before the chunks that the slots take ahead of the epilogue."""
        b, g, slots = self.b, self.channel.geometry, self.plan.epilogue_slots
        if slots >= g.num_chunks:
            b.add(Pause(pause))
            return
        ahead = If(b.value(Compare("lt", column, self.const(slots * g.width))))
        b.add(ahead)
        with b.at(ahead.then):
            b.add(Pause(pause))
            b.add(Yield(()))
        with b.at(ahead.orelse):
            b.add(Yield(()))

    def put_chunk(self, first: Value) -> None:
        """One put with the columns from `first` on of every tile."""
        b, loads = self.b, self.channel.loads
        made = [self.chunk_of(load, first) for load in loads]
        put = aref.Put(self.channel.aref, multicast=(False,) * len(loads))
        b.add(put)
        with b.at(put.body):
            tiles = [b.value(x, name_of(o)) for x, o in zip(made, loads, strict=True)]
            b.add(Yield(tuple(tiles)))

    def chunk_of(self, load: Load, first: Value) -> Load:
        """The load of the columns from `first` on."""
        _, column = (d for d in range(len(load.block_shape)) if d not in load.squeeze)
        offsets, shape = [self.get(o) for o in load.offsets], list(load.block_shape)
        offsets[column] = self.shifted(offsets[column], first)
        shape[column] = self.channel.geometry.width
        return Load(
            self.get(load.tensor), tuple(offsets), block_shape=tuple(shape), squeeze=load.squeeze,
            loc=load.loc,
        )  # fmt: skip

    def shifted(self, at: Value, distance: Value) -> Value:
        """A coordinate and a distance."""
        assert isinstance(at.type, ScalarType)
        if at.type.dtype != int32:
            distance = self.b.value(Cast(distance, at.type.dtype))
        return self.b.value(Add(at, distance))


def build_loader(
    graph: TileGraph,
    builder: Builder,
    plan: Plan,
    operands: dict[int, Channel],
    channel: EpilogueChannel,
    mapping: dict[Value, Value],
) -> Role:
    """The role that loads for the epilogue, appended at the builder's insertion point."""
    role = Role(
        name="epilogue loads",
        first_warpgroup=0,
        num_warpgroups=1,
        single_thread=True,
        warp=LOADER_WARP,
    )
    builder.add(role)
    unknown = unknown_values(graph, operands, channel.loads)
    with builder.at(role.body):
        maker = LoaderBuilder(builder, plan, {}, mapping, unknown)
        maker.channel = channel
        loops = [c.loop.loop for c in operands.values() if c.loop is not None]
        maker.loops = tuple(loop for loop in loops if loop.parent is graph.body)
        loop, body = maker.tile_loop()
        with builder.at(body):
            maker.clone_into([o for o in graph.body.ops if not isinstance(o, Yield)])
            with builder.located(channel.loads[-1].loc):
                maker.put_chunks()
        maker.end_tiles(loop, body)
    return role


class Ring(Protocol):
    """What is read of the machine objects of an aref."""

    @property
    def buffers(self) -> tuple[Value, ...]: ...
    @property
    def full(self) -> Value: ...
    @property
    def empty(self) -> Value: ...


class StreamedTiles:
    """The consumers' side of the channel while stores are lowered, chunk by chunk.

    ring: machine objects of the aref. loads: as in the payload. scratch: see smem.read.
    """

    scratch: Value
    cursor: Value

    def __init__(self, aref_: Value, ring: Ring, loads: list[Load]) -> None:
        self.aref = aref_
        self.ring = ring
        self.index = {load.id: i for i, load in enumerate(loads)}
        self.slots: list[Value] = []
        self.first = 0

    def begin(self, b: Builder, first: int) -> None:
        """Waits for the chunk whose slot starts with column `first`."""
        b.add(barrier.MbarrierWait(self.ring.full, self.cursor))
        slots = [smem.Slot(buffer, self.cursor) for buffer in self.ring.buffers]
        self.slots = [b.value(slot, "chunk") for slot in slots]
        self.first = first

    def read(self, b: Builder, load: Load, first: int, count: int) -> Value:
        """Some columns of a tile, in the registers of the whole tile."""
        type_ = load.result.type
        assert isinstance(type_, TileType)
        part = (first, count, first - self.first)
        slot = self.slots[self.index[load.id]]
        read = smem.Read(slot, self.scratch, None, type_.shape, part, names=(load.result.name,))
        b.add(read)
        read.result.type = type_
        return read.result

    def end(self, b: Builder) -> None:
        """Gives the chunk back: all lanes have read it."""
        b.add(barrier.Arrive(self.ring.empty, self.cursor, converge=True))
        b.add(barrier.CursorNext(self.cursor))


def streamed_tiles(
    graph: TileGraph, puts: Mapping[Value, aref.Put], rings: Mapping[Value, Ring]
) -> StreamedTiles | None:
    """The ring of a role that loads for the epilogue, and the loads that it stands for."""
    loaders = {r.id for r in graph.find(Role) if r.warp == LOADER_WARP}
    for value, put in puts.items():
        if any(o.id in loaders for o in graph.enclosing(put)):
            return StreamedTiles(value, rings[value], [o for o in graph.find(Load) if o.streamed])
    return None
