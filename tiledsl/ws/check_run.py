"""Runs a MACHINE program without its data, with a vector clock for each thread.

Roles are coroutines over real mbarrier parities; bulk copies and wgmma are agents of their own.
Branches and trip counts follow from the launch alone, never from the order in which threads run.
Barriers only count, and no wait can miss its phase (checked). Hence one order of execution decides
for all of them whether the program ends, and the clocks decide for all of them whether two accesses
are ordered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Generator
from typing import Any

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import program
from tiledsl.ir.ops import role
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ws.check_memory import MemoryRules
from tiledsl.ws.check_program import END
from tiledsl.ws.check_program import FOR
from tiledsl.ws.check_program import HANDLED
from tiledsl.ws.check_program import IF
from tiledsl.ws.check_program import USE
from tiledsl.ws.check_program import WHILE
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import Step
from tiledsl.ws.check_scalars import scalar
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Cta
from tiledsl.ws.check_state import Cursor
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import NamedBarrier
from tiledsl.ws.check_state import SlotState
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_steps import BOUND
from tiledsl.ws.check_steps import WAITING
from tiledsl.ws.check_steps import Loop
from tiledsl.ws.check_steps import Table

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
    barrier.WarpSync: (),
    smem.Slot: ("group",),
    smem.View: (),
    smem.Write: (),
    smem.Read: (),
    smem.Clear: ("first",),
    smem.WriteScalars: ("values",),
    smem.ReadScalars: (),
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
    program.OwnRow: (),
    program.TileToProgram: ("tile",),
    memory.Pick: (),
    memory.Shape: (),
    memory.Stride: (),
}
"""Ops that the checker executes, with the scalar operands that it needs of each."""


def _snake(cls: type[Op]) -> str:
    name = cls.__name__
    return "".join("_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name))


HANDLERS = {cls: "do_" + _snake(cls) for cls in RULES}
"""Method of a run by op."""


@functools.cache
def handlers_of(cls: type[Run]) -> dict[type[Op], Callable[[Run, Thread, Any], Any]]:
    """The handlers of a kind of run, by op."""
    return {op: getattr(cls, name) for op, name in HANDLERS.items()}


class Run(MemoryRules):
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
        self.reached: set[Region] = set()
        self.forced: dict[Op, bool] = {}
        self.box_sizes = code.box_sizes
        self.loaded = loaded_scalars(code, point.extent)
        self._make_threads()
        self.width = 0
        self._make_state()
        table = self._table()
        self.rows, self.straight = table.rows, table.straight

    # ------------------------------------------------------------------ set-up
    def _table(self) -> Table:
        kind = type(self)
        if kind not in self.code.tables:
            made = Table(self.code, handlers_of(kind), restless=self.restless)
            self.code.tables[kind] = made
        return self.code.tables[kind]

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
        at, zero = first, [0] * self.width
        for cta in self.ctas:
            for a in arrays:
                array = a.result
                cta.barriers[array] = [Barrier(array, i, at + i, zero) for i in range(a.depth)]
                at += a.depth
            for i in named:
                cta.named[i] = NamedBarrier(i, at, zero)
                at += 1
            for b in buffers:
                cta.buffers[b.result] = [SlotState(b.result, i) for i in range(b.slots)]
        symbols, point = self.code.symbols, self.point
        known = {a: point.extent_of(symbols.get((a, -1), -1)) for a in self.code.graph.args}
        known |= self.code.constants
        for t in self.threads:
            t.clock = zero[:]
            t.clock[t.index] = 1
            t.env = known.copy()
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
                waits_on = thread.waits_on
                if waits_on is not None and waits_on.blocks(thread.waits_for):
                    continue
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
            raise Fault(
                "staging", f"{t.name} ends while its bulk stores may read shared memory", t.where
            )

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
        if (b.tx or b.pending) and (b.used or b.receives):
            open_ = f"{b.pending} of {b.expected} arrivals, {b.tx} bytes open"
            raise Fault("balance", f"{b.name} ends in the middle of a phase: {open_}")
        if b.receives and b.seen < b.phases:
            raise Fault("balance", f"nobody waits for copies that {b.name} tells of")

    # ------------------------------------------------------------------ control flow
    def region(self, t: Thread, region: Region, args: tuple[Any, ...]) -> Steps:  # noqa: C901 - a branch a kind
        env = t.env
        self.reached.add(region)
        if args:
            env.update(zip(region.args, args, strict=False))
        for kind, call, item in self.rows.get(region, ()):
            if kind == HANDLED:
                call(self, t, item)
            elif kind == WAITING:
                t.where = item
                t.steps += 1
                waiting = call(self, t, item)
                if waiting is not None:
                    yield from waiting
                elif self.restless:
                    yield True
            elif kind == BOUND:
                call(env)
            elif kind == IF:
                taken = item.then if self.forced.get(item, env[item.condition]) else item.orelse
                if taken in self.straight:
                    values = self.straight_region(t, taken)
                else:
                    values = yield from self.region(t, taken, ())
                env.update(zip(call, values, strict=False))
            elif kind == FOR:
                yield from self._for(t, item)
            elif kind == END:
                return tuple([env.get(v) for v in item])
            elif kind == WHILE:
                yield from self._while(t, item)
            else:
                self.do_step(t, kind, item)
        return ()

    def straight_region(self, t: Thread, region: Region) -> tuple[Any, ...]:
        """A region without arguments in which no thread waits."""
        env = t.env
        self.reached.add(region)
        for kind, call, item in self.rows.get(region, ()):
            if kind == HANDLED:
                call(self, t, item)
            elif kind == BOUND:
                call(env)
            elif kind == IF:
                taken = item.then if self.forced.get(item, env[item.condition]) else item.orelse
                values = self.straight_region(t, taken)
                env.update(zip(call, values, strict=False))
            elif kind == END:
                return tuple([env.get(v) for v in item])
            else:
                self.do_step(t, kind, item)
        return ()

    def do_step(self, t: Thread, kind: int, step: Step) -> None:
        """A scalar, or a use of tiles."""
        if kind == USE:
            self.use(t, step)
        else:
            self.compute(t, step)

    def _for(self, t: Thread, loop: Loop) -> Steps:
        env, op, body = t.env, loop.op, loop.op.body
        number, args = body.args[0], loop.args
        carried = tuple([env.get(v) for v in loop.init])
        step = env[op.step]
        if step == 0:
            raise Fault("liveness", "a loop with step 0 does not end", op)
        for trip, i in enumerate(range(env[op.lower], env[op.upper], step)):
            if self.watched is t:
                self.head(t, op, trip)
            env[number] = i
            env.update(zip(args, carried, strict=True))
            carried = yield from self.region(t, body, ())
        env.update(zip(loop.results, carried, strict=True))
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
            env[result] = step.fast(*[env[v] for v in step.operands])
        elif step.op.effect is Effect.READ:
            env[result] = self.loaded[step.op] * (1 + t.tile % 3 * self.point.wobble)
        else:
            env[result] = scalar(step.op, [env[v] for v in step.operands])

    def use(self, t: Thread, step: Step) -> None:
        """An op that reads a tile, which must not be in flight."""
        for v in step.operands:
            self.check_taken(t, v, step.op)
        self.compute(t, step)


def loaded_scalars(code: Program, extent: int) -> dict[Op, int]:
    """Values of the scalars that a program loads, the same for the clones of one load.

    They grow faster and faster in the order of the source: the end of a range that is loaded after
    its begin lies behind it, and of two ranges the later one is longer.
    """
    ops = code.reads
    if not ops:
        return {}

    def place(op: Op) -> tuple[int, int]:
        return (op.loc.line, op.loc.col) if op.loc is not None else (0, 0)

    places = sorted({place(o) for o in ops})
    order = {o: places.index(place(o)) for o in ops}
    return {o: extent * (1 + i * (i + 1) // 2) for o, i in order.items()}
