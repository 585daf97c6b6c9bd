"""The load role: puts instead of loads, and nothing that depends on loaded data."""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.control import steering_scalars
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import SmemType
from tiledsl.ws.channels import Channel
from tiledsl.ws.channels import last_load
from tiledsl.ws.dependence import unknown_to_loads
from tiledsl.ws.handed import Handed
from tiledsl.ws.handed import Numbers
from tiledsl.ws.handed import put_numbers
from tiledsl.ws.handed import take_numbers
from tiledsl.ws.operands import OperandLoad
from tiledsl.ws.partition import RoleBuilder
from tiledsl.ws.partition import constant_step
from tiledsl.ws.plan import Plan
from tiledsl.ws.slot_vectors import is_vector
from tiledsl.ws.slot_vectors import loads_of
from tiledsl.ws.slot_vectors import most_in_front
from tiledsl.ws.told_tiles import told_tiles


class ProducerBuilder(RoleBuilder):
    """The load role: puts instead of loads, nothing that depends on loaded data."""

    def __init__(
        self,
        builder: Builder,
        plan: Plan,
        channels: dict[int, Channel],
        mapping: dict[Value, Value],
        tainted: set[Value],
        tiles: Value | None = None,
    ) -> None:
        super().__init__(builder, plan, channels, mapping, tiles)
        self.tainted = tainted
        self.loads: dict[int, Channel] = {o.op.id: c for c in channels.values() for o in c.loads}
        self.others = {op.id for c in channels.values() for op in loads_of(c.loads)}
        self.last = {last_load(c).id for c in channels.values()}
        self.bounds: dict[int, tuple[Value, Value]] = {}
        self.puts: Handed | None = None
        self.taken: dict[Value, Value] = {}

    def clone(self, op: Op) -> None:
        if self.puts is not None and op is self.puts.loop:
            put_numbers(self.b, self.puts, [self.get(v) for v in self.puts.values])
        channel = self.loads.get(op.id)
        if channel is not None:
            if op.id in self.last:
                self.put(channel)
            return
        if (
            op.effect is Effect.WRITE
            or op.id in self.others
            or any(v in self.tainted for v in self.needs(op))
        ):
            return
        super().clone(op)
        self.map.update((r, self.taken[r]) for r in op.results if r in self.taken)

    def needs(self, op: Op) -> tuple[Value, ...]:
        """What has to be known for anything of an op: of a loop or branch, how often it runs.

        What else a loop carries and what a branch yields is left out where it is not known. There
        is nothing for this role in a branch whose condition is not: `unknown_place` refuses it.
        """
        if isinstance(op, For | If):
            return steering_scalars(op)
        return () if isinstance(op, Yield) else op.operands

    def take(self, handed: Handed) -> None:
        """Numbers of the tile that the role of the search has found."""
        self.taken = take_numbers(self.b, handed)
        self.b.add(aref.Consumed(handed.aref))

    def put(self, channel: Channel) -> None:
        """One put with every load of the channel."""
        b = self.b
        places = [
            () if item.is_copied else self.box_offsets(item.block, item.smem)
            for item in channel.loads
        ]
        op = aref.Put(
            channel.aref,
            multicast=channel.multicast,
            cluster_size=self.plan.cluster_size if any(channel.multicast) else 1,
            hints=channel.hints,
        )
        b.add(op)
        with b.at(op.body):
            tiles: list[Value] = []
            for item, offsets in zip(channel.loads, places, strict=True):
                old = item.op
                if isinstance(old, pointer.Load):
                    tiles.append(self.copy(op.body, old, item))
                    continue
                load = Load(
                    self.get(old.tensor),
                    offsets,
                    block_shape=boxed_shape(old, item.smem),
                    squeeze=old.squeeze,
                    loc=old.loc,
                )
                tiles.append(b.value(load, item.name))
            b.add(Yield(tuple(tiles)))

    def copy(self, body: Region, old: pointer.Load, item: OperandLoad) -> Value:
        """Copies by the threads of the role in the place of a load, and the tile that they fill."""
        slot = body.add_arg(item.smem, item.name)
        mask = self.get(old.mask) if old.mask is not None else None
        self.b.add(Copy(slot, self.get(old.pointer), mask, loc=old.loc))
        return slot

    def box_offsets(self, load: Load, smem: SmemType) -> tuple[Value, ...]:
        """Where the block that is copied starts: a vector's where copies may."""
        offsets = [self.get(o) for o in load.offsets]
        if is_vector(smem) and most_in_front(load):
            dim = tensor_type(load.tensor, "load").inner_dim
            assert dim is not None
            offsets[dim] = self.b.value(Sub(offsets[dim], self.in_front(load)))
        return tuple(offsets)

    def clone_for(self, op: For) -> None:
        keep = [i for i, v in enumerate(op.carried) if v not in self.tainted]
        channel = self.channels.get(op.id)
        body = Region()
        for i, arg in enumerate(op.body.args):
            if i == 0 or i - 1 in keep:
                self.map[arg] = body.add_arg(arg.type, arg.name)
        lower, upper = self.get(op.lower), self.get(op.upper)
        if channel is not None and self.plan.split_k > 1:
            lower, upper = self.loop_bounds(op, constant_step(op))
        init = tuple(self.get(op.init[i]) for i in keep)
        # A search that is unrolled pushes the loops of the consumers out of the instruction cache.
        unroll = -1 if channel is None else 1
        new = For(lower, upper, self.get(op.step), init, unroll=unroll, body=body, loc=op.loc)
        self.b.add(new)
        self.map.update({op.results[i]: r for i, r in zip(keep, new.results, strict=True)})
        with self.b.at(body):
            self.clone_into([o for o in op.body.ops if not isinstance(o, Yield)])
            end = op.body.terminator
            assert isinstance(end, Yield)
            self.b.add(Yield(tuple(self.get(end.values[i]) for i in keep)))

    def clone_if(self, op: If) -> None:
        keep = [i for i, v in enumerate(op.results) if v not in self.tainted]
        new = If(
            self.get(op.condition), result_types=tuple(op.result_types[i] for i in keep), loc=op.loc
        )
        self.b.add(new)
        self.map.update({op.results[i]: r for i, r in zip(keep, new.results, strict=True)})
        for old, region in ((op.then, new.then), (op.orelse, new.orelse)):
            with self.b.at(region):
                self.clone_into([o for o in old.ops if not isinstance(o, Yield)])
                values = yielded(old)
                self.b.add(Yield(tuple(self.get(values[i]) for i in keep)))


def boxed_shape(load: Load, smem: SmemType) -> tuple[int, ...]:
    """The block that is copied: a vector fills whole lines of its slot."""
    if not is_vector(smem):
        return load.block_shape
    return tuple(1 if d in load.squeeze else smem.shape[0] for d in range(len(load.block_shape)))


def build_producer(
    graph: TileGraph,
    builder: Builder,
    plan: Plan,
    channels: dict[int, Channel],
    mapping: dict[Value, Value],
    tiles: Value | None = None,
    numbers: Numbers | None = None,
) -> Role:
    """The load role, appended at the builder's insertion point."""
    role = Role(
        name="producer",
        first_warpgroup=0,
        num_warpgroups=1,
        registers=plan.producer_registers,
        single_thread=not plan.copies,
        copies=plan.copies,
    )
    builder.add(role)
    tainted = unknown_to_loads(graph, (o for c in channels.values() for o in loads_of(c.loads)))
    with builder.at(role.body):
        maker = ProducerBuilder(builder, plan, channels, mapping, tainted, tiles)
        ops = [o for o in graph.body.ops if not isinstance(o, Yield)]
        if numbers is not None and numbers.drawn and numbers.loads is not None:
            told = told_tiles(builder, numbers.loads)
            maker.taken = told.taken
            with builder.at(told.body):
                maker.clone_into(ops)
            told.end(builder)
            return role
        loop, body = maker.tile_loop()
        with builder.at(body):
            if numbers is not None and numbers.loads is not None:
                maker.take(numbers.loads)
            elif numbers is not None and not numbers.apart:
                maker.puts = numbers.consumers
            maker.clone_into(ops)
        maker.end_tiles(loop, body)
    return role
