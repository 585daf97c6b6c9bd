"""The consumer role.

It gets slots, keeps P groups of wgmma in flight and drains them, takes turns in ping-pong order,
and runs the epilogue with its stores.
"""

from __future__ import annotations

from tiledsl.dtypes import int1
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import element_dtype
from tiledsl.ir.ops.memory import Pick
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem import View
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.ops.tile import Undef
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.ops.tma import StoreTile
from tiledsl.ir.types import SmemType
from tiledsl.ws.beside import apart
from tiledsl.ws.channels import Channel
from tiledsl.ws.consumer_loop import ConsumerLoop
from tiledsl.ws.deferred_loop import DeferredLoop
from tiledsl.ws.epilogue_channel import EpilogueChannel
from tiledsl.ws.handed import Numbers
from tiledsl.ws.handed import take_numbers
from tiledsl.ws.partial_loop import PartialLoop
from tiledsl.ws.partition import constant_step
from tiledsl.ws.plan import Plan
from tiledsl.ws.stores import StoreGeometry
from tiledsl.ws.told_tiles import ToldTiles
from tiledsl.ws.told_tiles import told_tiles
from tiledsl.ws.turns import epilogue_barrier


class ConsumerBuilder(ConsumerLoop):
    """Clones the program without its loads; dots become asynchronous.

    stores: geometry of the stores that go through staging, by op id.
    """

    is_consumer = True

    def __init__(
        self,
        builder: Builder,
        plan: Plan,
        channels: dict[int, Channel],
        mapping: dict[Value, Value],
        stores: dict[int, StoreGeometry],
    ) -> None:
        super().__init__(builder, plan, channels, mapping)
        self.stores = stores
        self.first_load = {c.loads[0].op.id: c for c in channels.values()}
        self.load_ids = {o.op.id for c in channels.values() for o in c.loads}
        self.in_range: Value | None = None
        self.pending: tuple[Value, ...] = ()
        self.stage_ahead = False
        self.numbers: Numbers | None = None
        self.taken: dict[Value, Value] = {}

    # ------------------------------------------------------------------ program level
    def build(self, graph: TileGraph) -> None:
        """The whole role body."""
        ops = [o for o in graph.body.ops if not isinstance(o, Yield)]
        loads = [o.op for c in self.channels.values() for o in c.loads]
        self.readers = {o.id: {u.op.id for u in graph.users(o.result)} for o in loads}
        self.always = apart(self, list(self.channels.values()))
        if self.plan.ping_pong:
            self.enter_ping_pong(graph)
        elif self.plan.turns:
            self.prime_order()
        if not self.plan.deferred:
            self.walk(ops)
            return
        (store,) = [o for o in ops if isinstance(o, Store)]
        value = tile_type(store.value, "store")
        undef = self.b.value(Undef(value.shape, value.dtype), "result")
        places = self.places(store)
        zeros = tuple(
            self.b.value(Constant(0, element_dtype(o, "store")), "store_at") for o in places
        )
        nothing = self.b.value(Constant(0, int1), "has_result")
        told = self.tell((undef, *zeros, nothing))
        if told is None:
            loop, body = self.tile_loop((undef, *zeros, nothing))
            assert loop is not None
        else:
            loop, body = told.loop, told.body
        with self.b.at(body):
            self.begin_tile()
            self.pending = tuple(body.args[1:]) if told is None else told.carried
            self.deferred_store = store
            self.clone_into([o for o in ops if o is not store])
            valid = self.in_range or self.b.value(Constant(1, int1))
            result = (self.get(store.value), *(self.get(o) for o in places), valid)
            if told is None:
                self.b.add(Yield(result))
        self.pending = loop.results if told is None else told.end(self.b, result)
        self.deferred_store = store
        self.store_pending(-1)

    def walk(self, ops: list[Op]) -> None:
        """The loop over tiles where each result is stored at once."""
        told = self.tell()
        loop, body = self.tile_loop() if told is None else (told.loop, told.body)
        with self.b.at(body):
            self.begin_tile()
            self.clone_into(ops)
        if told is None:
            self.end_tiles(loop, body)
        else:
            told.end(self.b)

    def tell(self, init: tuple[Value, ...] = ()) -> ToldTiles | None:
        """The loop over tiles that the role of the search draws, if it does."""
        if self.numbers is None or not self.numbers.drawn:
            return None
        told = told_tiles(self.b, self.numbers.consumers, init)
        self.taken = told.taken
        return told

    deferred_store: Store | None = None

    def places(self, store: Store) -> tuple[Value, ...]:
        """The scalars that say where a store goes: offsets, its end, which tensor of a list."""
        picked = store.tensor.defining_op
        end = () if store.end is None else (store.end,)
        return (*store.offsets, *end, *((picked.index,) if isinstance(picked, Pick) else ()))

    def store_pending(self, chunk: int) -> None:
        """Stores one chunk (or all) of the previous tile's result, if there is one."""
        assert self.deferred_store is not None
        with self.b.located(self.deferred_store.loc):
            self.when(self.pending[-1], lambda: self.store_part(chunk))

    def store_part(self, chunk: int) -> None:
        """Stores one chunk (or all) of the previous tile's result."""
        store = self.deferred_store
        assert store is not None
        value, *offsets, _ = self.pending
        picked = store.tensor.defining_op
        index = offsets.pop() if isinstance(picked, Pick) else None
        end = offsets.pop() if store.end is not None else None
        if isinstance(picked, Pick) and index is not None:
            target = self.b.value(Pick(index, tuple(map(self.get, picked.tensors))))
        else:
            target = self.get(store.tensor)
        self.b.add(
            StoreTile(
                target,
                tuple(offsets),
                value,
                end=end,
                block_shape=store.block_shape,
                squeeze=store.squeeze,
                chunk=chunk,
                end_dim=store.end_dim,
            )
        )

    def begin_tile(self) -> None:
        """What has to be known of a tile before anything of it."""
        self.guard_range()
        if self.numbers is not None and not self.numbers.drawn:
            self.taken = take_numbers(self.b, self.numbers.consumers)

    def guard_range(self) -> None:
        """With multicast, the last CTA of a cluster may be outside the grid and must not store."""
        plan = self.plan
        if plan.cluster_size > 1 and plan.split_k == 1:
            assert self.place
            bound = self.b.value(NumPrograms(plan.cluster_axis))
            at = self.place[plan.cluster_axis]
            self.in_range = self.b.value(Compare("lt", at, bound), "in_range")

    # ------------------------------------------------------------------ ping-pong
    def enter_ping_pong(self, graph: TileGraph) -> None:
        """Each warpgroup skips the slots of the tiles before its own."""
        b = self.b
        index = self.prime_order()
        for channel in self.channels.values():
            trips = self.trips_at_top(channel)
            b.add(aref.Skip(channel.aref, b.value(Mul(index, trips))))
        if self.epilogue is not None:
            self.give_first(index, epilogue_barrier(self.plan))
            chunks = self.const(self.epilogue.geometry.num_chunks)
            b.add(aref.Skip(self.epilogue.aref, b.value(Mul(index, chunks))))

    def trips_at_top(self, channel: Channel) -> Value:
        """Trip count of a loop, computed before the tile loop (it does not depend on the tile)."""
        saved = dict(self.map)
        loop = self.dot_loop_of(channel).loop
        for v in (loop.lower, loop.upper):
            self.clone_slice(v)
        lower, upper = self.get(loop.lower), self.get(loop.upper)
        trips = self.trip_count(lower, upper, constant_step(loop))
        self.map = saved
        return trips

    def clone_slice(self, value: Value) -> None:
        """Clones the pure ops that a value needs."""
        todo = [value]
        while todo:
            op = todo[-1].defining_op
            if todo[-1] in self.map or op is None:
                todo.pop()
                continue
            missing = [v for v in op.operands if v not in self.map and v.defining_op is not None]
            if not missing:
                self.clone(op)
                todo.pop()
            todo += reversed(missing)

    # ------------------------------------------------------------------ cloning
    def clone(self, op: Op) -> None:
        if op.id in self.first_load:
            self.get_channel(self.first_load[op.id])
        elif op.id in self.load_ids:
            return
        elif isinstance(op, Transpose) and isinstance(self.get(op.a).type, SmemType):
            self.map[op.result] = self.b.value(View(self.get(op.a), op.order))
        elif isinstance(op, mma.Dot):
            self.issue(op, self.keeps.get(op.id))
        elif isinstance(op, Store):
            self.store(op)
        elif self.epilogue is not None and op in self.epilogue.loads:
            self.b.add(clone_op(op, self.map, streamed=True))
        else:
            super().clone(op)
            self.map.update((r, self.taken[r]) for r in op.results if r in self.taken)

    def get_channel(self, channel: Channel) -> None:
        op = aref.Get(channel.aref)
        self.b.add(op)
        for item, r in zip(channel.loads, op.results, strict=True):
            r.name = item.name
            self.map[item.op.result] = r

    def issue(self, dot: mma.Dot, keep: Value | None) -> None:
        plan = self.plan
        new = mma.Issue(
            self.get(dot.a),
            self.get(dot.b),
            self.get(dot.acc),
            keep,
            split=plan.split,
            swapped=plan.swapped,
            loc=dot.loc,
            names=(dot.result.name,),
        )
        self.b.add(new)
        self.map[dot.result] = new.result

    def store(self, op: Store) -> None:
        """A store, in range only, through staging when it can be."""
        b = self.b
        guard = self.owner if self.owner is not None else self.in_range

        def emit() -> None:
            tensor, value = self.get(op.tensor), self.get(op.value)
            offsets = tuple(self.get(o) for o in op.offsets)
            end = None if op.end is None else self.get(op.end)
            if op.id in self.stores:
                # Staging is written in any case: an `if` around it would keep accumulators and
                # packed results alive side by side.
                only = self.in_range if self.owner is None else None
                block, squeeze, dim = op.block_shape, op.squeeze, op.end_dim
                b.add(
                    StoreTile(
                        tensor, offsets, value, only, end,
                        block_shape=block, squeeze=squeeze, end_dim=dim, ahead=self.stage_ahead,
                    )
                )  # fmt: skip
            else:
                b.add(Store(tensor, offsets, value, op.block_shape, op.squeeze, end, op.end_dim))

        if guard is None or (op.id in self.stores and self.owner is None):
            self.in_order(emit)
            return
        branch = If(guard)
        b.add(branch)
        with b.at(branch.then):
            emit()
            b.add(Yield(()))
        with b.at(branch.orelse):
            b.add(Yield(()))

    def clone_for(self, op: For) -> None:
        channel = self.channels.get(op.id)
        if channel is None:
            super().clone_for(op)
        elif self.dot_loop_of(channel).partial:
            PartialLoop(self, self.dot_loop_of(channel), channel).build()
        elif self.pending:
            DeferredLoop(self, channel).build()
        else:
            self.dot_loop(channel)
        numbers = self.numbers
        if numbers is not None and not numbers.drawn and op is numbers.consumers.loop:
            self.b.add(aref.Consumed(numbers.consumers.aref))


def build_consumer(
    graph: TileGraph,
    builder: Builder,
    plan: Plan,
    channels: dict[int, Channel],
    mapping: dict[Value, Value],
    stores: dict[int, StoreGeometry],
    epilogue: EpilogueChannel | None = None,
    numbers: Numbers | None = None,
) -> Role:
    """The consumer role, appended at the builder's insertion point."""
    role = Role(
        name="consumer",
        first_warpgroup=1,
        num_warpgroups=plan.num_consumers,
        registers=plan.consumer_registers,
        grow=True,
        instances=plan.num_consumers if plan.ping_pong else 1,
    )
    builder.add(role)
    with builder.at(role.body):
        maker = ConsumerBuilder(builder, plan, channels, mapping, stores)
        maker.epilogue = epilogue
        maker.numbers = numbers
        maker.build(graph)
    return role
