"""Kernels written out by hand at MACHINE level: what the lowering makes, for tests of codegen."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager

from tiledsl import dtypes as dt
from tiledsl.codegen.module import GridSpec
from tiledsl.dtypes import DType
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import blocked
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.op import Level
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import program
from tiledsl.ir.ops import role
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.ops import tma
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType

I32 = ScalarType(dt.int32)
BODY = Callable[[Builder, Sequence[Value]], Sequence[Value]]


class Kernel:
    """A graph under construction with short spellings for scalar math."""

    def __init__(self, name: str, **facts: object) -> None:
        self.graph = TileGraph(name, Level.MACHINE)
        self.graph.facts.update(smem_bytes=0, cluster_size=1, grid=GridSpec(), arg_names=())
        self.graph.facts.update(facts)
        self.b = Builder(self.graph)

    def arg(self, name: str, type_: object) -> Value:
        self.graph.facts["arg_names"] = (*self.graph.facts["arg_names"], name)
        return self.graph.body.add_arg(type_, name)

    def c(self, value: int | float, dtype: DType = dt.int32) -> Value:
        return self.b.value(ew.Constant(value, dtype))

    def _v(self, x: Value | int) -> Value:
        return x if isinstance(x, Value) else self.c(x)

    def add(self, a: Value, b: Value | int, name: str = "") -> Value:
        return self.b.value(ew.Add(a, self._v(b)), name)

    def sub(self, a: Value, b: Value | int, name: str = "") -> Value:
        return self.b.value(ew.Sub(a, self._v(b)), name)

    def mul(self, a: Value, b: Value | int, name: str = "") -> Value:
        return self.b.value(ew.Mul(a, self._v(b)), name)

    def cmp(self, predicate: str, a: Value, b: Value | int, name: str = "") -> Value:
        return self.b.value(ew.Compare(predicate, a, self._v(b)), name)

    def cdiv(self, a: Value, n: int, name: str = "") -> Value:
        return self.b.value(ew.FloorDiv(self.add(a, n - 1), self.c(n)), name)

    def op(self, op: object) -> None:
        self.b.add(op)

    def tile(self, op: object, layout: Layout, name: str) -> Value:
        value = self.b.value(op, name)
        self.graph.set_type(value, value.type.with_layout(layout))
        return value

    def map(
        self,
        inputs: Sequence[Value],
        out: DType,
        layout: Layout,
        shape: Sequence[int],
        body: BODY,
        name: str,
        follows: Sequence[tuple[int | None, ...]] | None = None,
    ) -> Value:
        if follows is None:
            follows = tuple(
                tuple(range(v.type.rank)) if isinstance(v.type, TileType) else () for v in inputs
            )
        op = tile.Map(
            tuple(inputs),
            shape=tuple(shape),
            layout=layout,
            follows=tuple(follows),
            out_dtypes=(out,),
        )
        self.b.add(op)
        op.results[0].name = name
        args = [op.body.add_arg(ScalarType(v.type.dtype)) for v in inputs]
        args += [op.body.add_arg(I32) for _ in shape]
        with self.b.at(op.body):
            self.b.add(control.Yield(tuple(body(self.b, args))))
        return op.results[0]

    @contextmanager
    def inside(self, region: Region) -> Iterator[None]:
        with self.b.at(region):
            yield

    @contextmanager
    def loop(
        self,
        name: str,
        lower: Value | int,
        upper: Value | int,
        step: Value | int = 1,
        init: Sequence[Value] = (),
        names: Sequence[str] = (),
    ) -> Iterator[control.For]:
        """The body has to end in `yield_`."""
        op = control.For(self._v(lower), self._v(upper), self._v(step), tuple(init))
        self.b.add(op)
        op.body.add_arg(I32, name)
        for v, n in zip(init, names, strict=True):
            op.body.add_arg(v.type, n)
        with self.b.at(op.body):
            yield op

    def yield_(self, *values: Value) -> None:
        self.b.add(control.Yield(values))

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        op = control.If(condition)
        self.b.add(op)
        with self.b.at(op.then):
            yield
            self.b.add(control.Yield(()))
        with self.b.at(op.orelse):
            self.b.add(control.Yield(()))


def vector_add(
    n: int = 1024, dtype: DType = dt.bfloat16, *, tma_ok: bool = True, align: int = 16
) -> TileGraph:
    """out = x + y, one block of n elements a program."""
    k = Kernel("vector_add", num_threads=128)
    type_ = TensorType(1, dtype, 0, tma_ok, align)
    x, y, out = (k.arg(s, type_) for s in ("x", "y", "out"))
    off = k.mul(k.b.value(program.ProgramId(0)), n, "off")
    layout = blocked((n,), 4, vector=16 // dtype.bytes)
    a = k.tile(memory.Load(x, (off,), block_shape=(n,)), layout, "a")
    b = k.tile(memory.Load(y, (off,), block_shape=(n,)), layout, "b")
    total = k.map(
        (a, b), dtype, layout, (n,), lambda b_, v: [b_.value(ew.Add(v[0], v[1]))], "total"
    )
    k.op(memory.Store(out, (off,), total, block_shape=(n,)))
    return k.graph


def single_role_dot(M: int = 64, N: int = 64, K: int = 64) -> TileGraph:
    """C = A @ B for one tile, staged through shared memory by the warps that multiply."""
    bf16 = dt.bfloat16
    a_type, b_type = SmemType((M, K), bf16, 1), SmemType((K, N), bf16, 1)
    k = Kernel("single_role_dot", num_threads=128, smem_bytes=a_type.bytes + b_type.bytes)
    type_ = TensorType(2, bf16, 1, True, 16)
    a, b = k.arg("a", type_), k.arg("b", type_)
    out = k.arg("c", TensorType(2, dt.float32, 1, True, 16))
    zero = k.c(0)
    a_smem = k.b.value(smem.Buffer(a_type, 1, offset_bytes=0), "a_smem")
    b_smem = k.b.value(smem.Buffer(b_type, 1, offset_bytes=a_type.bytes), "b_smem")
    a_tile = k.tile(
        memory.Load(a, (zero, zero), block_shape=(M, K)), blocked((M, K), 4, vector=8), "a_tile"
    )
    k.op(smem.Write(a_smem, a_tile))
    b_tile = k.tile(
        memory.Load(b, (zero, zero), block_shape=(K, N)), blocked((K, N), 4, vector=8), "b_tile"
    )
    k.op(smem.Write(b_smem, b_tile))
    k.op(barrier.AsyncFence())
    k.op(barrier.CtaSync())
    layout = mma_accumulator(M, N)
    acc = k.tile(tile.Splat(k.c(0.0, dt.float32), (M, N)), layout, "acc")
    k.op(mma.Fence())
    acc = k.b.value(mma.Issue(a_smem, b_smem, acc))
    k.op(mma.Commit())
    wait = k.b.add(mma.Wait((acc,)))
    k.op(memory.Store(out, (zero, zero), wait.results[0], block_shape=(M, N)))
    return k.graph


class Gemm(Kernel):
    """C = A B^T, bf16, both operands K-major, persistent, warp-specialised: what both variants share."""

    def __init__(
        self,
        name: str,
        M: int,
        N: int,
        *,
        depth: int,
        cluster: int,
        groups: int,
        ping_pong: bool,
        group: int,
        epilogue_slots: int,
    ) -> None:
        bf16 = dt.bfloat16
        self.M, self.N, self.K, self.cluster = M, N, 64, cluster
        self.a_type, self.b_type = SmemType((M, 64), bf16, 1), SmemType((64, N), bf16, 0)
        self.rows = M if ping_pong else M // groups
        self.c_type = SmemType((self.rows, 64), bf16, 1)
        a_bytes, b_bytes = depth * self.a_type.bytes, depth * self.b_type.bytes
        c_bytes = groups * epilogue_slots * self.c_type.bytes
        bars = a_bytes + b_bytes + c_bytes
        grid = GridSpec("persistent", 0 if cluster > 1 else -1, cluster)
        super().__init__(
            name,
            num_threads=128 * (1 + groups),
            smem_bytes=bars + 16 * depth,
            cluster_size=cluster,
            grid=grid,
        )
        t = TensorType(2, bf16, 1, True, 16)
        a, b, c = self.arg("a", t), self.arg("b", t), self.arg("c", t)
        v = self.b.value
        self.a_map = v(tma.TensorMap(a, dims=(1, 0), box=(64, M)), "a_map")
        self.b_map = v(tma.TensorMap(b, dims=(1, 0), box=(64, N // cluster)), "b_map")
        self.c_map = v(tma.TensorMap(c, dims=(1, 0), box=(64, self.rows)), "c_map")
        self.a_ring = v(smem.Buffer(type_=self.a_type, slots=depth, offset_bytes=0), "a_ring")
        self.b_ring = v(smem.Buffer(type_=self.b_type, slots=depth, offset_bytes=a_bytes), "b_ring")
        self.c_ring = v(
            smem.Buffer(
                type_=self.c_type, slots=groups * epilogue_slots, offset_bytes=a_bytes + b_bytes
            ),
            "c_ring",
        )
        arrivals = (1 if ping_pong else groups) * 4 * cluster
        self.full = v(barrier.MbarrierArray(depth=depth, arrivals=1, offset_bytes=bars), "full")
        self.empty = v(
            barrier.MbarrierArray(depth=depth, arrivals=arrivals, offset_bytes=bars + 8 * depth),
            "empty",
        )
        setup = role.Setup()
        self.op(setup)
        with self.inside(setup.body):
            self.op(barrier.MbarrierInit(self.full, arrivals=1))
            self.op(barrier.MbarrierInit(self.empty, arrivals=arrivals))
            self.op(barrier.InitFence())
            for m in (self.a_map, self.b_map, self.c_map):
                self.op(tma.Prefetch(m))
        self.op(barrier.ClusterSync() if cluster > 1 else barrier.CtaSync())
        self.depth, self.groups, self.epilogue_slots = depth, groups, epilogue_slots
        axis = 0 if cluster > 1 else -1
        self.raster = {
            "group": group,
            "group_axis": 0,
            "cluster_axis": axis,
            "cluster_size": cluster,
        }
        self.tiles = v(role.NumTiles(axis, cluster), "tiles")
        extent = v(memory.Shape(a, 1))
        self.k_slots = self.cdiv(extent, 64, "k_slots")

    def tile_origin(self, t: Value) -> tuple[Value, Value]:
        op = self.b.add(program.TileToProgram(t, **self.raster))
        return self.mul(op.results[0], self.M, "m0"), self.mul(op.results[1], self.N, "n0")

    def producer(self, registers: int) -> None:
        r = role.Role("producer", 0, 1, registers, single_thread=True)
        self.op(r)
        with self.inside(r.body):
            v = self.b.value
            cur = v(barrier.CursorCreate(self.depth), "cursor")
            rank = v(role.ClusterRank(), "rank") if self.cluster > 1 else None
            first, step = v(role.FirstTile(self.cluster)), v(role.TileStep(self.cluster))
            with self.loop("t", first, self.tiles, step):
                m0, n0 = self.tile_origin(self.b.region.args[0])
                if rank is not None:
                    n0 = self.add(n0, self.mul(rank, self.N // self.cluster), "n0_part")
                with self.loop("kb", 0, self.k_slots):
                    kb = self.b.region.args[0]
                    self.op(barrier.MbarrierWait(self.empty, cur, invert=True))
                    self.op(barrier.ExpectTx(self.full, cur, self.a_type.bytes + self.b_type.bytes))
                    a = v(smem.Slot(self.a_ring, cur), "a")
                    b = v(smem.Slot(self.b_ring, cur), "b")
                    at = self.mul(kb, 64, "k0")
                    self.op(tma.Load(self.a_map, a, self.full, cur, (at, m0)))
                    mask = self.c((1 << self.cluster) - 1) if self.cluster > 1 else None
                    part_bytes = self.N // self.cluster * 128 if self.cluster > 1 else 0
                    self.op(
                        tma.Load(
                            self.b_map,
                            b,
                            self.full,
                            cur,
                            (at, n0),
                            mask=mask,
                            part=rank,
                            part_bytes=part_bytes,
                        )
                    )
                    self.op(barrier.CursorNext(cur))
                    self.yield_()
                self.yield_()

    def mma_slot(self, cur: Value, acc: Value, keep: Value | None) -> Value:
        v = self.b.value
        self.op(barrier.MbarrierWait(self.full, cur))
        a, b = v(smem.Slot(self.a_ring, cur), "a"), v(smem.Slot(self.b_ring, cur), "b")
        self.op(mma.Fence())
        acc = v(mma.Issue(a, b, acc, keep=keep), "acc")
        self.op(mma.Commit())
        self.op(barrier.CursorNext(cur))
        return acc

    def release(self, rel: Value) -> None:
        self.op(barrier.Arrive(self.empty, rel, self.cluster))
        self.op(barrier.CursorNext(rel))

    def put_chunk(
        self, packed: Value, column: int, m0: Value, n0: Value, me: Value, staging: Value
    ) -> None:
        v = self.b.value
        self.op(tma.StoreWait(self.epilogue_slots - 1))
        self.op(barrier.NamedSync(me, base=1, num_threads=128))
        out = v(smem.Slot(self.c_ring, staging, me, self.epilogue_slots), "out")
        self.op(smem.Write(out, packed, start=(0, column), per_warpgroup=True))
        self.op(barrier.AsyncFence())
        self.op(barrier.NamedSync(me, base=1, num_threads=128))
        self.op(tma.Store(self.c_map, out, (self.add(n0, column) if column else n0, m0)))
        self.op(barrier.CursorNext(staging))

    def columns(self) -> list[int]:
        return [min(i * 64, self.N - 64) for i in range(-(-self.N // 64))]

    def pack(self, acc: Value, layout: Layout) -> Value:
        def body(b: Builder, args: Sequence[Value]) -> Sequence[Value]:
            return [b.value(ew.Cast(args[0], dt.bfloat16))]

        return self.map((acc,), dt.bfloat16, layout, (self.M, self.N), body, "packed")

    def finish(self) -> TileGraph:
        if self.cluster > 1:
            self.op(barrier.ClusterSync())
        return self.graph


def ping_pong_gemm(M: int = 128, N: int = 192, depth: int = 4, cluster: int = 2) -> TileGraph:
    """The reference's PP192: every consumer warpgroup has its own tile, order barriers hand over the tensor core."""
    k = Gemm(
        "gemm_pp",
        M,
        N,
        depth=depth,
        cluster=cluster,
        groups=2,
        ping_pong=True,
        group=4,
        epilogue_slots=1,
    )
    k.producer(24)
    r = role.Role("consumer", 1, 2, 240, grow=True, instances=2)
    k.op(r)
    layout = mma_accumulator(M, N)
    v = k.b.value
    with k.inside(r.body):
        me = v(role.WarpgroupIndex(), "me")
        cur = v(barrier.CursorCreate(depth), "cursor")
        rel = v(barrier.CursorCreate(depth), "released")
        staging = v(barrier.CursorCreate(1), "staging")
        with k.when(k.cmp("eq", me, 1)):
            k.op(barrier.NamedArrive(base=3, num_threads=256))
        skip = k.mul(me, k.k_slots)
        k.op(barrier.CursorSkip(cur, skip))
        k.op(barrier.CursorSkip(rel, skip))
        step = v(role.TileStep(cluster), "step")
        first = k.add(v(role.FirstTile(cluster)), k.mul(me, step), "first")
        stride = k.mul(step, 2)
        with k.loop("t", first, k.tiles, stride):
            m0, n0 = k.tile_origin(k.b.region.args[0])
            k.op(barrier.NamedSync(me, base=3, num_threads=256))
            acc = k.tile(tile.Undef((M, N), dt.float32), layout, "acc")
            with k.loop("kb", 0, k.k_slots, init=(acc,), names=("acc",)) as main:
                kb, carried = main.body.args
                new = k.mma_slot(cur, carried, k.cmp("ne", kb, 0))
                k.op(mma.Wait((), pending=1))
                with k.when(k.cmp("ge", kb, 1)):
                    k.release(rel)
                k.yield_(new)
            other = v(ew.Xor(me, k.c(1)))
            k.op(barrier.NamedArrive(other, base=3, num_threads=256))
            done = k.b.add(mma.Wait((main.results[0],)))
            with k.when(k.cmp("gt", k.k_slots, 0)):
                k.release(rel)
            packed = k.pack(done.results[0], layout)
            for column in k.columns():
                k.put_chunk(packed, column, m0, n0, me, staging)
            k.op(barrier.CursorSkip(cur, k.k_slots))
            k.op(barrier.CursorSkip(rel, k.k_slots))
            k.yield_()
        k.op(tma.StoreWait(0))
    return k.finish()


def cooperative_gemm(M: int = 128, N: int = 256, depth: int = 4, cluster: int = 1) -> TileGraph:
    """The reference's CO256: two warpgroups share a tile; its packed result is stored under the next tile's slots."""
    k = Gemm(
        "gemm_co",
        M,
        N,
        depth=depth,
        cluster=cluster,
        groups=2,
        ping_pong=False,
        group=16,
        epilogue_slots=2,
    )
    k.producer(40)
    r = role.Role("consumer", 1, 2, 232, grow=True)
    k.op(r)
    layout = mma_accumulator(M, N, 2)
    v = k.b.value
    with k.inside(r.body):
        me = v(role.WarpgroupIndex(), "me")
        cur = v(barrier.CursorCreate(depth), "cursor")
        rel = v(barrier.CursorCreate(depth), "released")
        staging = v(barrier.CursorCreate(2), "staging")
        packed0 = k.tile(tile.Undef((M, N), dt.bfloat16), layout, "packed")
        first, step = v(role.FirstTile(cluster)), v(role.TileStep(cluster))
        init = (packed0, k.c(-1), k.c(0))
        with k.loop("t", first, k.tiles, step, init, ("packed", "last_m", "last_n")) as tiles:
            t, packed, last_m, last_n = tiles.body.args
            m0, n0 = k.tile_origin(t)
            m0 = k.add(m0, k.mul(me, k.rows), "m_part")
            pending = k.cmp("ge", last_m, 0, "pending")
            acc = k.tile(tile.Undef((M, N), dt.float32), layout, "acc")
            for chunk, column in enumerate(k.columns()):
                more = k.cmp("lt", k.c(chunk), k.k_slots)
                branch = control.If(more, result_types=(acc.type,))
                k.op(branch)
                with k.inside(branch.then):
                    keep = k.c(True, dt.int1) if chunk else k.c(False, dt.int1)
                    k.yield_(k.mma_slot(cur, acc, keep))
                with k.inside(branch.orelse):
                    k.yield_(acc)
                with k.when(pending):
                    k.put_chunk(packed, column, last_m, last_n, me, staging)
                acc = k.b.add(mma.Wait(branch.results)).results[0]
                with k.when(more):
                    k.release(rel)
            with k.loop("kb", len(k.columns()), k.k_slots, init=(acc,), names=("acc",)) as main:
                new = k.mma_slot(cur, main.body.args[1], None)
                new = k.b.add(mma.Wait((new,))).results[0]
                k.release(rel)
                k.yield_(new)
            done = k.b.add(mma.Wait(main.results)).results[0]
            k.yield_(k.pack(done, layout), m0, n0)
        packed, last_m, last_n = tiles.results
        with k.when(k.cmp("ge", last_m, 0)):
            for column in k.columns():
                k.put_chunk(packed, column, last_m, last_n, me, staging)
        k.op(tma.StoreWait(0))
    return k.finish()
