"""Runs a MACHINE program without its data: roles as coroutines over real mbarrier parities, bulk
copies and wgmma as agents of their own, and a vector clock for each thread.

Branches and trip counts follow from the launch alone, never from the order in which threads run.
Barriers only count, and no wait can miss its phase (checked). Hence one order of execution decides
for all of them whether the program ends, and the clocks decide for all of them whether two accesses
are ordered.
"""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Iterator
from typing import Any

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import program
from tiledsl.ir.ops import role
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType
from tiledsl.ws.check_program import END
from tiledsl.ws.check_program import FOR
from tiledsl.ws.check_program import HANDLED
from tiledsl.ws.check_program import IF
from tiledsl.ws.check_program import SCALAR
from tiledsl.ws.check_program import USE
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import Step
from tiledsl.ws.check_program import scalar
from tiledsl.ws.check_state import NAMED_BARRIERS
from tiledsl.ws.check_state import WARPS
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Cta
from tiledsl.ws.check_state import Cursor
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import NamedBarrier
from tiledsl.ws.check_state import Read
from tiledsl.ws.check_state import SlotState
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_state import Writer
from tiledsl.ws.check_state import join

Steps = Generator[bool, None, tuple[Any, ...]]
"""Yields True where the thread did something, False where it still waits."""

RULES: dict[type[Op], tuple[str, ...]] = {
    barrier.CursorCreate: (),
    barrier.CursorNext: (),
    barrier.CursorSkip: ("count",),
    barrier.MbarrierWait: (),
    barrier.ExpectTx: (),
    barrier.Arrive: (),
    barrier.NamedSync: ("index",),
    barrier.NamedArrive: ("index",),
    barrier.AsyncFence: (),
    smem.Slot: ("group",),
    smem.View: (),
    smem.Write: (),
    smem.WriteScalar: ("value",),
    smem.ReadScalar: (),
    tma.Load: ("mask", "part"),
    tma.Store: (),
    tma.StoreWait: (),
    mma.Issue: (),
    mma.Fence: (),
    mma.Commit: (),
    mma.Wait: (),
    mma.Pin: (),
    mma.ClusterReduce: ("index", "rank"),
    role.WarpgroupIndex: (),
    role.ClusterRank: (),
    role.FirstTile: (),
    role.TileStep: (),
    role.NumTiles: (),
    role.DrawTile: (),
    role.NextTile: ("drawn", "count"),
    program.ProgramId: (),
    program.NumPrograms: (),
    program.TileToProgram: ("tile",),
    memory.Shape: (),
    memory.Stride: (),
}
"""Ops that the checker executes, with the scalar operands that it needs of each."""


class Slot:
    """A slot as a value: its state, and the use of the ring that the cursor stood for (-1: none)."""

    __slots__ = ("at", "buffer", "order", "state", "type", "use")

    def __init__(self, buffer: Value, at: int, state: SlotState, use: int, type_: SmemType) -> None:
        self.buffer = buffer
        self.at = at
        self.order: tuple[int, ...] = ()
        self.state = state
        self.use = use
        self.type = type_


class Run:
    """One run of a program at one launch point."""

    restless = False
    """Whether threads may be interrupted after every op, not only where they wait."""

    def __init__(self, code: Program, point: LaunchPoint, cluster_size: int) -> None:
        self.code = code
        self.point = point
        self.cluster_size = cluster_size
        self.ctas = [Cta(rank) for rank in range(cluster_size)]
        self.threads: list[Thread] = []
        self.drawn = point.drawn
        self.watched: Thread | None = None
        self._make_threads()
        self.width = 0
        self._make_state()
        self.handlers = {cls: getattr(self, "do_" + _snake(cls)) for cls in RULES}

    # ------------------------------------------------------------------ set-up
    def _make_threads(self) -> None:
        for cta in self.ctas:
            for r in self.code.roles:
                count = 1 if r.single_thread else r.num_warpgroups
                for g in range(count):
                    self.threads.append(Thread(len(self.threads), r, cta, g))

    def _make_state(self) -> None:
        objects = self.code.graph.body.ops
        arrays = [o for o in objects if isinstance(o, barrier.MbarrierArray)]
        buffers = [o for o in objects if isinstance(o, smem.Buffer)]
        named = sorted(self.code.named)
        per_cta = sum(a.depth for a in arrays) + len(named)
        first = len(self.threads)
        self.width = first + per_cta * len(self.ctas)
        at = first
        for cta in self.ctas:
            for a in arrays:
                name = a.result.name
                cta.barriers[a.result] = [
                    Barrier(f"{name}[{i}]", at + i, self.width) for i in range(a.depth)
                ]
                at += a.depth
            for i in named:
                cta.named[i] = NamedBarrier(i, at, self.width)
                at += 1
            for b in buffers:
                name = b.result.name
                cta.buffers[b.result] = [SlotState(f"{name}[{i}]") for i in range(b.slots)]
        for t in self.threads:
            t.clock = [0] * self.width
            t.clock[t.index] = 1
            t.env = dict.fromkeys(self.code.graph.args, self.point.extent)
        self._set_up(objects)

    def _set_up(self, objects: list[Op]) -> None:
        for op in objects:
            if not isinstance(op, role.Setup):
                continue
            for inner in op.body.ops:
                for cta in self.ctas:
                    self._initialise(cta, inner)

    def _initialise(self, cta: Cta, op: Op) -> None:
        if isinstance(op, barrier.MbarrierInit):
            for b in cta.barriers[op.barriers]:
                b.expected = op.arrivals
        elif isinstance(op, barrier.ExpectAll):
            for b in cta.barriers[op.barriers]:
                b.arrive([0] * self.width, 1, op, tx=op.num_bytes)

    # ------------------------------------------------------------------ scheduling
    def order(self) -> list[Thread]:
        """Consumers first: a producer runs when nobody else can."""
        return sorted(self.threads, key=lambda t: t.single)

    def run(self) -> None:
        """Runs every thread to its end. Raises Fault."""
        live = [(t, self.region(t, t.role.body, ())) for t in self.order()]
        while live:
            for item in live:
                thread, steps = item
                before = thread.steps
                try:
                    moved = next(steps) or thread.steps != before
                except StopIteration:
                    live.remove(item)
                    self.finish(thread)
                    break
                if moved:
                    break
            else:
                raise Fault("liveness", self._stuck([t for t, _ in live]), live[0][0].where)
        self.check_end()

    def _stuck(self, threads: list[Thread]) -> str:
        waits: list[str] = []
        for t in threads:
            op = t.where
            loc = f" at {op.loc.short}" if op is not None and op.loc else ""
            what = op.operands[0].name if op is not None and op.operands else ""
            waits.append(f"{t.name} (CTA {t.cta.rank}) waits for {what or 'a barrier'}{loc}")
        return "no thread can go on: " + "; ".join(waits)

    def finish(self, t: Thread) -> None:
        """What may not be left over when a thread ends."""
        if t.groups or t.open:
            raise Fault("ordering", f"{t.name} ends with wgmmas in flight", t.where)
        if t.stores:
            raise Fault("staging", f"{t.name} ends while its bulk stores may read shared memory", t.where)

    def check_end(self) -> None:
        for cta in self.ctas:
            for slots in cta.barriers.values():
                for b in slots:
                    self._check_balance(b)
        for t in self.threads:
            for cursor in t.env.values():
                if t.single and isinstance(cursor, Cursor):
                    self._check_released(t, cursor)

    def _check_released(self, t: Thread, cursor: Cursor) -> None:
        """Every slot that was filled by copies has been given back."""
        if not any(b.receives for r in cursor.rings for b in t.cta.barriers[r]):
            return
        used = {r.name: sum(b.phases for b in t.cta.barriers[r]) for r in cursor.rings}
        if len(set(used.values())) > 1:
            counts = ", ".join(f"{name} {n}" for name, n in sorted(used.items()))
            raise Fault("balance", f"puts and releases differ: {counts} phases")

    def _check_balance(self, b: Barrier) -> None:
        if b.tx or b.pending:
            message = f"{b.name} ends in the middle of a phase: {b.pending} of {b.expected} arrivals, {b.tx} bytes open"
            raise Fault("balance", message)
        if b.receives and b.seen < b.phases:
            raise Fault("balance", f"nobody waits for copies that {b.name} tells of")

    # ------------------------------------------------------------------ control flow
    def region(self, t: Thread, region: Region, args: tuple[Any, ...]) -> Steps:
        env, handlers = t.env, self.handlers
        env.update(zip(region.args, args, strict=False))
        for step in self.code.code.get(region, ()):
            kind, op = step.kind, step.op
            if kind == HANDLED:
                t.where = op
                t.steps += 1
                waiting = handlers[type(op)](t, op)
                if waiting is not None:
                    yield from waiting
                elif self.restless:
                    yield True
            elif kind == SCALAR:
                self.compute(t, step)
            elif kind == END:
                return tuple([env.get(v) for v in step.operands])
            elif kind == FOR:
                yield from self._for(t, op)
            elif kind == IF:
                yield from self._if(t, op)
            elif kind == USE:
                self.use(t, step)
            else:
                yield from self._while(t, op)
        return ()

    def _for(self, t: Thread, op: Any) -> Steps:
        env = t.env
        carried = tuple(env.get(v) for v in op.init)
        step = env[op.step]
        if step == 0:
            raise Fault("liveness", "a loop with step 0 does not end", op)
        for number, i in enumerate(range(env[op.lower], env[op.upper], step)):
            if self.watched is t:
                self.head(t, op, number)
            carried = yield from self.region(t, op.body, (i, *carried))
        env.update(zip(op.results, carried, strict=True))
        return ()

    def _if(self, t: Thread, op: Any) -> Steps:
        values = yield from self.region(t, op.then if t.env[op.condition] else op.orelse, ())
        t.env.update(zip(op.results, values, strict=False))
        return ()

    def _while(self, t: Thread, op: Any) -> Steps:
        carried = tuple(t.env.get(v) for v in op.init)
        number = 0
        while True:
            go, *rest = yield from self.region(t, op.before, carried)
            carried = tuple(rest)
            if not go:
                break
            if self.watched is t:
                self.head(t, op, number)
            number += 1
            carried = yield from self.region(t, op.body, carried)
        t.env.update(zip(op.results, carried, strict=True))
        return ()

    def head(self, t: Thread, op: Op, number: int) -> None:
        """Called before each iteration of a loop of the watched thread."""

    def compute(self, t: Thread, step: Step) -> None:
        """A scalar that decides something."""
        result = step.result
        if result is None:
            return
        env = t.env
        if step.fast is not None:
            env[result] = step.fast(step.op, *[env[v] for v in step.operands])
        elif step.op.effect is Effect.READ:
            env[result] = self.point.extent
        else:
            env[result] = scalar(step.op, [env[v] for v in step.operands])

    def use(self, t: Thread, step: Step) -> None:
        """An op that reads a tile, which must not be in flight."""
        for v in step.operands:
            self.check_taken(t, v, step.op)
        self.compute(t, step)

    def check_taken(self, t: Thread, v: Value, op: Op) -> None:
        """Results of wgmmas are read as the results of a wait."""
        if v in self.code.flight and isinstance(t.env.get(v), int):
            raise Fault("ordering", f"{v.name} is read without a wait for its wgmma", op)

    def check_settled(self, t: Thread, v: Value, op: Op) -> None:
        if v in self.code.flight:
            group = t.env.get(v)
            if isinstance(group, int) and group >= t.committed - len(t.groups):
                raise Fault("ordering", f"{v.name} is read while its wgmma may be in flight", op)

    # ------------------------------------------------------------------ mbarriers
    def do_cursor_create(self, t: Thread, op: barrier.CursorCreate) -> None:
        t.env[op.result] = Cursor(op.depth)

    def do_cursor_next(self, t: Thread, op: barrier.CursorNext) -> Iterator[bool] | None:
        t.env[op.cursor].n += 1
        return iter((True,)) if t.single else None

    def do_cursor_skip(self, t: Thread, op: barrier.CursorSkip) -> None:
        count = t.env[op.count]
        if count < 0:
            raise Fault("balance", f"a cursor is moved by {count} slots", op)
        t.env[op.cursor].n += count

    def place(self, t: Thread, op: Any) -> tuple[Barrier, int]:
        """The mbarrier at a cursor, and the phase that the cursor stands for."""
        slots, cursor = t.cta.barriers[op.barriers], t.env[op.cursor]
        if cursor.depth != len(slots):
            message = f"a cursor of depth {cursor.depth} walks over {len(slots)} mbarriers"
            raise Fault("balance", message, op)
        cursor.rings.add(op.barriers)
        use, at = divmod(cursor.n, cursor.depth)
        return slots[at], use

    def do_mbarrier_wait(self, t: Thread, op: barrier.MbarrierWait) -> Iterator[bool] | None:
        b, use = self.place(t, op)
        phase = use - 1 if op.invert else use
        if t.clock[b.index] < phase:
            message = f"{b.name}: the wait for phase {phase} may come while phase {phase - 2} is current"
            raise Fault("ordering", message, op)
        if self.passed(b, phase, op):
            self.acquire(t, b, phase)
            return None
        return self._wait(t, b, phase, op)

    def passed(self, b: Barrier, phase: int, op: Op) -> bool:
        """The hardware's rule: the parity of the current phase is not the one waited for."""
        if phase >= 0 and b.phases > phase + 1:
            raise Fault("ordering", f"{b.name} is two phases ahead of a wait", op)
        return (b.phases & 1) != (phase & 1)

    def _wait(self, t: Thread, b: Barrier, phase: int, op: Op) -> Iterator[bool]:
        while not self.passed(b, phase, op):
            yield False
        self.acquire(t, b, phase)

    def acquire(self, t: Thread, b: Barrier, phase: int) -> None:
        if phase < 0:
            return
        t.clock = join(t.clock, b.done)
        b.waits.append((t.index, t.time, phase))
        b.seen = max(b.seen, phase + 1)

    def signal(self, t: Thread, b: Barrier, use: int, op: Op) -> None:
        """What an arrival or a copy needs: the phase before its own is known to be over."""
        if t.clock[b.index] < use:
            message = f"{b.name}: an arrival for phase {use} may fall into phase {use - 1}"
            raise Fault("ordering", message, op)
        if b.phases != use:
            raise Fault("ordering", f"{b.name} is in phase {b.phases}, an arrival is for phase {use}", op)

    def do_expect_tx(self, t: Thread, op: barrier.ExpectTx) -> None:
        b, use = self.place(t, op)
        self.signal(t, b, use, op)
        b.arrive(t.clock, 1, op, tx=op.num_bytes)
        t.tick()

    def do_arrive(self, t: Thread, op: barrier.Arrive) -> None:
        _, use = self.place(t, op)
        cursor = t.env[op.cursor]
        if op.cluster_size > self.cluster_size:
            raise Fault("cluster", "an arrival goes to a CTA that the cluster does not have", op)
        targets = self.ctas[: op.cluster_size] if op.cluster_size > 1 else [t.cta]
        for cta in targets:
            b = cta.barriers[op.barriers][cursor.n % cursor.depth]
            self.signal(t, b, use, op)
            b.arrive(t.clock, 1 if t.single else WARPS, op)
        t.tick()

    # ------------------------------------------------------------------ named barriers
    def named(self, t: Thread, op: Any) -> NamedBarrier:
        at = op.base + (t.env[op.index] if op.index is not None else 0)
        if t.single or not 0 < at < NAMED_BARRIERS or at not in t.cta.named:
            raise Fault("named barriers", f"named barrier {at} cannot be used by {t.name}", op)
        return t.cta.named[at]

    def do_named_arrive(self, t: Thread, op: barrier.NamedArrive) -> None:
        self.named(t, op).arrive(t, op.num_threads, op)
        t.tick()

    def do_named_sync(self, t: Thread, op: barrier.NamedSync) -> Iterator[bool] | None:
        nb = self.named(t, op)
        mine = nb.arrive(t, op.num_threads, op)
        t.tick()
        if nb.generation > mine:
            self._synced(t, nb)
            return None
        return self._named_wait(t, nb, mine)

    def _named_wait(self, t: Thread, nb: NamedBarrier, mine: int) -> Iterator[bool]:
        while nb.generation <= mine:
            yield False
        self._synced(t, nb)

    def _synced(self, t: Thread, nb: NamedBarrier) -> None:
        t.clock = join(t.clock, nb.done)
        for r in t.leader_done:
            r.end = t.time
        t.leader_done.clear()
        for w in t.written:
            w.published = w.fenced
        t.written = [w for w in t.written if not w.published]

    def do_async_fence(self, t: Thread, op: barrier.AsyncFence) -> None:
        del op
        for w in t.written:
            w.fenced = True

    # ------------------------------------------------------------------ shared memory
    def do_slot(self, t: Thread, op: smem.Slot) -> None:
        cursor: Cursor | None = t.env[op.cursor] if op.cursor is not None else None
        at, use = 0, -1
        if cursor is not None:
            use, at = divmod(cursor.n, cursor.depth)
        if op.group is not None:
            at += t.env[op.group] * op.group_slots
        slots = t.cta.buffers[op.buffer]
        if at >= len(slots):
            raise Fault("staging", f"slot {at} of {op.buffer.name}, which has {len(slots)}", op)
        type_ = op.result.type
        assert isinstance(type_, SmemType)
        t.env[op.result] = Slot(op.buffer, at, slots[at], use, type_)

    def do_view(self, t: Thread, op: smem.View) -> None:
        t.env[op.result] = t.env.get(op.a)

    def write(self, t: Thread, slot: Slot, op: Op) -> None:
        """A write by the threads of the warpgroup."""
        slot.state.check_write(t.clock, op)
        writer = Writer(op, t.index, t.time)
        slot.state.writer, slot.state.reads = writer, []
        t.written.append(writer)

    def do_write(self, t: Thread, op: smem.Write) -> None:
        self.check_taken(t, op.value, op)
        self.write(t, t.env[op.smem], op)

    def do_write_scalar(self, t: Thread, op: smem.WriteScalar) -> None:
        slot: Slot = t.env[op.smem]
        self.write(t, slot, op)
        slot.state.data = t.env[op.value]

    def do_read_scalar(self, t: Thread, op: smem.ReadScalar) -> None:
        slot: Slot = t.env[op.smem]
        slot.state.check_read(t.clock, slot.use, op)
        slot.state.reads.append(Read(t.index, t.time))
        t.env[op.result] = slot.state.data

    def do_load(self, t: Thread, op: tma.Load) -> None:
        _, use = self.place(t, op)
        slot: Slot = t.env[op.smem]
        cursor: Cursor = t.env[op.cursor]
        size = box_bytes(op)
        part = t.env[op.part] if op.part is not None else 0
        mask = t.env[op.mask] if op.mask is not None else 1 << t.cta.rank
        if mask >> self.cluster_size or not mask:
            raise Fault("cluster", f"multicast mask {mask:b} in a cluster of {self.cluster_size}", op)
        start = op.offset_bytes + part * op.part_bytes
        if start + size > slot.type.bytes:
            raise Fault("ordering", f"the box ends {start + size - slot.type.bytes} bytes behind its slot", op)
        for cta in self.ctas:
            if mask >> cta.rank & 1:
                target = cta.barriers[op.barriers][cursor.n % cursor.depth]
                state = cta.buffers[slot.buffer][slot.at]
                self.land(t, op, state, target, use, (start, start + size))

    def land(
        self, t: Thread, op: tma.Load, state: SlotState, b: Barrier, use: int, span: tuple[int, int]
    ) -> None:
        """A copy: ordered after what its thread knows, over for those who know the phase."""
        self.signal(t, b, use, op)
        w = state.writer
        if w is None or (w.barrier, w.use) != (b.index, use):
            state.check_write(t.clock, op)
            w = state.writer = Writer(op, t.index, t.time, b.index, use)
            state.reads = []
        if any(lo < span[1] and span[0] < hi for lo, hi in w.ranges):
            raise Fault("ordering", f"two copies write the same bytes of {state.name}", op)
        w.ranges.append(span)
        self.deliver(t, op, state, b, span[1] - span[0])

    def deliver(self, t: Thread, op: tma.Load, state: SlotState, b: Barrier, num_bytes: int) -> None:
        """The copy's bytes arrive: here at once, which no barrier can tell from later."""
        del state
        b.receive(t.clock, num_bytes, op)

    # ------------------------------------------------------------------ wgmma
    def do_fence(self, t: Thread, op: mma.Fence) -> None:
        del op
        t.fenced = True

    def do_issue(self, t: Thread, op: mma.Issue) -> None:
        if not t.fenced:
            raise Fault("fences", "a wgmma starts without a fence of its registers", op)
        for v in (op.a, op.b):
            slot = t.env.get(v)
            if isinstance(slot, Slot):
                self.read_by_engine(t, slot, op)
                read = Read(t.index)
                slot.state.reads.append(read)
                t.open.append(read)
            else:
                self.check_taken(t, v, op)
        t.env[op.result] = t.committed

    def read_by_engine(self, t: Thread, slot: Slot, op: Op) -> None:
        """A read through the async proxy."""
        slot.state.check_read(t.clock, slot.use, op)
        w = slot.state.writer
        if w is not None and w.barrier < 0 and not (w.fenced and w.published):
            what = "barrier" if w.fenced else "proxy fence"
            raise Fault("fences", f"no {what} between the writes to {slot.state.name} and the copy engine", op)

    def do_commit(self, t: Thread, op: mma.Commit) -> None:
        del op
        t.groups.append(t.open)
        t.open = []
        t.committed += 1
        t.fenced = False

    def do_wait(self, t: Thread, op: mma.Wait) -> None:
        while len(t.groups) > op.pending:
            for r in t.groups.popleft():
                r.end = t.time
        for a, r in zip(op.accs, op.results, strict=True):
            self.check_settled(t, a, op)
            t.env[r] = None

    def do_pin(self, t: Thread, op: mma.Pin) -> None:
        self.check_taken(t, op.value, op)

    def do_cluster_reduce(self, t: Thread, op: mma.ClusterReduce) -> Iterator[bool] | None:
        self.check_taken(t, op.acc, op)
        if t.reduced:
            raise Fault("cluster", "the buffer of partial sums is used a second time, nothing frees it", op)
        t.reduced = True
        group, rank = t.env[op.index], t.env[op.rank]
        owner = group % op.cluster_size
        b = self.ctas[owner].barriers[op.barriers][group // op.cluster_size]
        t.env[op.results[1]] = rank == owner
        t.env[op.results[0]] = None
        if rank != owner:
            layout = op.acc.type.layout  # type: ignore[union-attr]
            b.receive(t.clock, layout.num_regs * 128 * 4, op)
            t.tick()
            return None
        return self._wait(t, b, 0, op)

    # ------------------------------------------------------------------ bulk stores
    def do_store(self, t: Thread, op: tma.Store) -> None:
        slot: Slot = t.env[op.smem]
        self.read_by_engine(t, slot, op)
        read = Read(t.index)
        slot.state.reads.append(read)
        t.stores.append(read)

    def do_store_wait(self, t: Thread, op: tma.StoreWait) -> None:
        while len(t.stores) > op.pending:
            t.leader_done.append(t.stores.popleft())

    # ------------------------------------------------------------------ the program's place
    def do_warpgroup_index(self, t: Thread, op: Op) -> None:
        t.env[op.result] = t.warpgroup

    def do_cluster_rank(self, t: Thread, op: Op) -> None:
        t.env[op.result] = t.cta.rank

    def do_first_tile(self, t: Thread, op: Op) -> None:
        t.env[op.result] = self.point.first

    def do_tile_step(self, t: Thread, op: Op) -> None:
        t.env[op.result] = self.point.clusters

    def do_num_tiles(self, t: Thread, op: role.NumTiles) -> None:
        total = 1
        for axis, extent in enumerate(self.point.grid):
            total *= -(-extent // op.cluster_size) if axis == op.cluster_axis else extent
        t.env[op.result] = total

    def do_draw_tile(self, t: Thread, op: role.DrawTile) -> None:
        t.env[op.result] = self.drawn
        self.drawn += 1

    def do_next_tile(self, t: Thread, op: role.NextTile) -> None:
        t.env[op.result] = t.env[op.drawn] + self.point.clusters

    def do_program_id(self, t: Thread, op: program.ProgramId) -> None:
        t.env[op.result] = 0

    def do_num_programs(self, t: Thread, op: program.NumPrograms) -> None:
        t.env[op.result] = self.point.grid[op.axis]

    def do_tile_to_program(self, t: Thread, op: program.TileToProgram) -> None:
        left = t.env[op.tile]
        for axis, (extent, r) in enumerate(zip(self.point.grid, op.results, strict=True)):
            here = -(-extent // op.cluster_size) if axis == op.cluster_axis else extent
            at, left = (left % here, left // here) if here else (0, 0)
            t.env[r] = at * op.cluster_size + t.cta.rank if axis == op.cluster_axis else at

    def do_shape(self, t: Thread, op: memory.Shape) -> None:
        t.env[op.result] = self.point.extent

    def do_stride(self, t: Thread, op: memory.Stride) -> None:
        t.env[op.result] = self.point.extent


def box_bytes(op: tma.Load) -> int:
    """Bytes of one copy of a load's tensor map."""
    made = op.map.defining_op
    assert isinstance(made, tma.TensorMap)
    type_ = made.tensor.type
    assert isinstance(type_, TensorType)
    total = type_.dtype.bytes
    for n in made.box:
        total *= n
    return total


def _snake(cls: type[Op]) -> str:
    name = cls.__name__
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))
