"""Partition: one clone of the program per role, joined by arefs.

The load role keeps control flow, address arithmetic and the loads, which become puts; the consumer
role keeps the rest, and its loads become gets. Dead code is removed afterwards, so each role keeps
only its own loop-carried values. Here is what roles have in common: the loop over tiles, clones.

Ref: Tawa (arXiv 2510.14719), task-aware partitioning by backward slices from side effects.
"""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import FloorDiv
from tiledsl.ir.ops.elementwise import Max
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.ops.elementwise import Mod
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ir.ops.role import ClusterRank
from tiledsl.ir.ops.role import DrawTile
from tiledsl.ir.ops.role import FirstTile
from tiledsl.ir.ops.role import NextTile
from tiledsl.ir.ops.role import NumTiles
from tiledsl.ir.ops.role import TileStep
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ir.specs import TensorView
from tiledsl.ir.types import ScalarType
from tiledsl.ws.channels import TILE_FIELDS
from tiledsl.ws.channels import Channel
from tiledsl.ws.plan import Plan
from tiledsl.ws.slot_vectors import start_elems
from tiledsl.ws.slot_vectors import start_of

FAR = (1 << 31) - (1 << 16)
"""Beyond every extent that a tensor map takes, with room for the offsets of boxes."""


def narrowed(b: Builder, v: Value) -> Value:
    """A coordinate or span as i32; one outside of its range stays outside of every tensor."""
    assert isinstance(v.type, ScalarType)
    dtype = v.type.dtype
    if dtype == int32:
        return v
    if dtype.bits > 32 or (dtype.kind == "uint" and dtype.bits == 32):
        least = 0 if dtype.name.startswith("u") else -FAR
        v = b.value(Max(v, b.value(Constant(least, dtype))))
        v = b.value(Min(v, b.value(Constant(FAR, dtype))))
    return b.value(Cast(v, int32))


class RoleBuilder:
    """Clones ops of a tile graph into one role of the specialised graph.

    tiles: the aref that carries tiles where they are drawn at run time.
    """

    def __init__(
        self,
        builder: Builder,
        plan: Plan,
        channels: dict[int, Channel],
        mapping: dict[Value, Value],
        tiles: Value | None = None,
    ) -> None:
        self.b = builder
        self.plan = plan
        self.channels = channels
        self.map = dict(mapping)
        self.programs: tuple[Value, ...] | None = None
        self.place: tuple[Value, ...] = ()
        self.tiles = tiles

    # ------------------------------------------------------------------ small helpers
    def const(self, value: int) -> Value:
        return self.b.value(Constant(value, int32))

    def get(self, value: Value) -> Value:
        """The clone of a value of the tile graph."""
        return self.map[value]

    def as_i32(self, value: Value) -> Value:
        return narrowed(self.b, value)

    def trip_count(self, lower: Value, upper: Value, step: int) -> Value:
        """max(0, ceil((upper - lower) / step)) as i32; the bounds are values of this role."""
        span = self.as_i32(self.b.value(Sub(upper, lower)))
        if step > 1:
            span = self.b.value(
                FloorDiv(self.b.value(Add(span, self.const(step - 1))), self.const(step))
            )
        return self.b.value(Max(span, self.const(0)), "trips")

    def like(self, value: Value, number: int) -> Value:
        """A constant of a scalar value's dtype."""
        assert isinstance(value.type, ScalarType)
        return self.b.value(Constant(number, value.type.dtype))

    def loop_bounds(self, loop: For, step: int) -> tuple[Value, Value]:
        """The loop's bounds in this role: this CTA's share when the cluster splits it."""
        lower, upper = self.get(loop.lower), self.get(loop.upper)
        if self.plan.split_k == 1:
            return lower, upper
        b, s = self.b, self.plan.split_k
        trips = self.trip_count(lower, upper, step)
        rank = b.value(ClusterRank())
        begin = b.value(FloorDiv(b.value(Mul(trips, rank)), self.const(s)))
        end = b.value(
            FloorDiv(b.value(Mul(trips, b.value(Add(rank, self.const(1))))), self.const(s))
        )
        scale = self.const(step)

        def at(n: Value, name: str) -> Value:
            offset = b.value(Mul(n, scale))
            assert isinstance(lower.type, ScalarType)
            if lower.type.dtype != int32:
                offset = b.value(Cast(offset, lower.type.dtype))
            return b.value(Add(lower, offset), name)

        return at(begin, "k_begin"), at(end, "k_end")

    def in_front(self, load: Load) -> Value:
        """Elements in front of a vector in its box."""
        start = self.get(start_of(load))
        return self.b.value(Mod(start, self.like(start, start_elems(load))), "in_front")

    # ------------------------------------------------------------------ tile loop
    def tile_loop(self, init: tuple[Value, ...] = ()) -> tuple[For | While | None, Region]:
        """The persistent loop over tiles of this role; None and its region when not persistent."""
        plan, b = self.plan, self.b
        size = plan.cluster_size
        if not plan.persistent:
            return None, b.region
        first = b.value(FirstTile(cluster_size=size), "first_tile")
        step = b.value(TileStep(cluster_size=size), "tile_step")
        axis = plan.cluster_axis if plan.split_k == 1 else -1
        count = b.value(
            NumTiles(cluster_axis=axis, cluster_size=size if axis >= 0 else 1), "num_tiles"
        )
        if plan.ping_pong and self.is_consumer:
            index = b.value(WarpgroupIndex(), "warpgroup")
            first = b.value(Add(first, b.value(Mul(index, step))), "first_tile")
            step = b.value(Mul(step, self.const(plan.num_consumers)), "tile_step")
        if plan.dynamic:
            return self.drawn_tiles(first, count)
        body = Region()
        tile = body.add_arg(ScalarType(int32), "tile")
        for v in init:
            body.add_arg(v.type, v.name)
        loop = For(first, count, step, init, body=body)
        b.add(loop)
        with b.at(body):
            self.use_programs(self.locate(tile, axis))
        return loop, body

    def locate(self, tile: Value, axis: int) -> tuple[Value, ...]:
        """The place of a tile in the grid."""
        plan, b = self.plan, self.b
        to_program = TileToProgram(
            tile,
            group=plan.raster_group,
            group_axis=plan.group_axis,
            cluster_axis=axis,
            cluster_size=plan.cluster_size if axis >= 0 else 1,
        )
        b.add(to_program)
        for axis_, v in enumerate(to_program.results):
            v.name = f"pid_{axis_}"
        return to_program.results

    def use_programs(self, place: tuple[Value, ...]) -> None:
        """The program ids of the tile at a place.

        A place beyond the grid, of which a cluster may have one, has no results. Masks keep its
        loads within their tensors; where a tensor has an end that the kernel does not check, they
        are those of the last program.
        """
        plan, b = self.plan, self.b
        self.place = place
        ids = list(place)
        axis = plan.cluster_axis
        if plan.cluster_size > 1 and plan.split_k == 1 and axis >= 0 and self.has_open_ends():
            last = b.value(Sub(b.value(NumPrograms(axis)), self.const(1)))
            ids[axis] = b.value(Min(ids[axis], last), "pid_inside")
        if plan.longest_first >= 0:
            end = b.value(NumPrograms(plan.longest_first))
            last = b.value(Sub(end, self.const(1)))
            ids[plan.longest_first] = b.value(Sub(last, ids[plan.longest_first]), "pid_reversed")
        self.programs = (ids[0], ids[1], ids[2])

    def has_open_ends(self) -> bool:
        """Whether a tensor that a pointer points to has an end that the kernel does not check."""
        views: tuple[TensorView, ...] = self.b.graph.facts.get("views", ())
        return any(None in view.shape for view in views)

    def drawn_tiles(self, first: Value, count: Value) -> tuple[While, Region]:
        """The loop over tiles that the load role draws from the launch's counter and hands on.

        The load role draws the next tile when it starts one, so that the number is there in time;
        where programs take different times, after the loads of a tile: it is ahead of the others by
        the slots of the rings, and what is drawn early waits for a CTA that may be late. It puts a
        tile past the last one for the other roles to stop at. It alone works out which program a
        tile is: the others would divide between two tiles.
        """
        b, tiles, plan = self.b, self.tiles, self.plan
        assert tiles is not None
        before, body = Region(), Region()
        init = (self.const(0),) * len(TILE_FIELDS) if self.is_consumer else (first,)
        loop = While(init, before=before, body=body)
        fields = [before.add_arg(v.type, n) for v, n in zip(init, TILE_FIELDS, strict=False)]
        with b.at(before):
            if self.is_consumer:
                get = aref.Get(tiles)
                b.add(get)
                get.results[0].name = "tile_id"
                read = ReadScalars(get.results[0], count=len(fields))
                b.add(read)
                fields = list(read.results)
            b.add(Yield((b.value(Compare("lt", fields[0], count)), *fields)))
        fields = [body.add_arg(v.type, n) for v, n in zip(init, TILE_FIELDS, strict=False)]
        b.add(loop)
        with b.at(body):
            if self.is_consumer:
                # After the test of the loop: the read has finished in every lane.
                b.add(aref.Consumed(tiles))
                self.use_programs(tuple(fields[1:]))
                self.tile_fields = fields
            else:
                place = self.locate(fields[0], -1)
                self.put_tile(fields[0], place)
                self.use_programs(place)
                self.tile_count = count
                self.drawn = None if plan.uneven else b.value(DrawTile(), "drawn")
        return loop, body

    def put_tile(self, tile: Value, place: tuple[Value, ...]) -> None:
        """Hands a tile to the other roles."""
        assert self.tiles is not None
        put = aref.Put(self.tiles)
        self.b.add(put)
        with self.b.at(put.body):
            self.b.add(Yield((tile, *place)))

    def end_tiles(self, loop: For | While | None, body: Region) -> None:
        """Ends the body of the loop over tiles."""
        if loop is None:
            return
        with self.b.at(body):
            if isinstance(loop, For):
                self.b.add(Yield(()))
                return
            if self.is_consumer:
                self.b.add(Yield(tuple(self.tile_fields)))
            else:
                drawn = self.drawn or self.b.value(DrawTile(), "drawn")
                self.b.add(Yield((self.b.value(NextTile(drawn, self.tile_count), "next_tile"),)))
        # The tile past the last one is put, read and given back like all others.
        if self.is_consumer:
            assert self.tiles is not None
            self.b.add(aref.Consumed(self.tiles))
        else:
            self.put_tile(loop.results[0], (self.const(0),) * 3)

    is_consumer = False

    # ------------------------------------------------------------------ cloning
    def clone_into(self, ops: list[Op]) -> None:
        """Clones ops at the insertion point."""
        for op in ops:
            with self.b.located(op.loc):
                self.clone(op)

    def clone(self, op: Op) -> None:
        """Clones one op; roles override what they treat differently."""
        if isinstance(op, ProgramId) and self.programs is not None:
            self.map[op.result] = self.programs[op.axis]
            return
        if isinstance(op, For):
            self.clone_for(op)
            return
        if isinstance(op, If):
            self.clone_if(op)
            return
        if isinstance(op, Yield):
            self.b.add(Yield(tuple(self.get(v) for v in op.values), loc=op.loc))
            return
        self.b.add(clone_op(op, self.map))

    def clone_for(self, op: For) -> None:
        body = Region()
        for arg in op.body.args:
            self.map[arg] = body.add_arg(arg.type, arg.name)
        new = For(
            self.get(op.lower),
            self.get(op.upper),
            self.get(op.step),
            tuple(self.get(v) for v in op.init),
            body=body,
            names=tuple(r.name for r in op.results),
            loc=op.loc,
        )
        self.b.add(new)
        self.map.update(zip(op.results, new.results, strict=True))
        with self.b.at(body):
            self.clone_into(op.body.ops)

    def clone_if(self, op: If) -> None:
        new = If(
            self.get(op.condition),
            result_types=op.result_types,
            loc=op.loc,
            names=tuple(r.name for r in op.results),
        )
        self.b.add(new)
        self.map.update(zip(op.results, new.results, strict=True))
        for old, region in ((op.then, new.then), (op.orelse, new.orelse)):
            with self.b.at(region):
                self.clone_into(old.ops)


def constant_step(loop: For) -> int:
    """The loop's step, a positive constant by analysis."""
    op = loop.step.defining_op
    assert isinstance(op, Constant)
    return int(op.value)
