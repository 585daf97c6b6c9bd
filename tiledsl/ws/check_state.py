"""Synchronisation state of a simulated CTA: barriers, slots, and vector clocks.

By the clocks an access is known to come after another in every interleaving. A clock has one
component for each thread of the simulation (how far its work is known), one for each mbarrier and
one for each named barrier (how many of its phases are known to be complete).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from tiledsl.errors import SourceLoc
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.role import Role

Clock = list[int]
WARPS = 4
WARPGROUP_THREADS = 128
NAMED_BARRIERS = 16


class Fault(Exception):
    """A violated obligation: which one, what happened, and at which op."""

    def __init__(self, obligation: str, message: str, op: Op | None = None) -> None:
        super().__init__(message)
        self.obligation = obligation
        self.message = message
        self.op = op

    @property
    def loc(self) -> SourceLoc | None:
        return self.op.loc if self.op is not None else None

    def __str__(self) -> str:
        where = f" at {self.loc.short}" if self.loc else ""
        what = f" ({self.op.opcode})" if self.op is not None else ""
        return f"{self.obligation}: {self.message}{what}{where}"


def join(a: Clock, b: Clock) -> Clock:
    """The least clock that knows what either knows."""
    return [x if x > y else y for x, y in zip(a, b, strict=True)]


class Read:
    """One read of a slot; `end` is the thread's time at which it is over, -1 before.

    of_warps: each warp of the thread knows of its own part only, until a barrier among them.
    """

    __slots__ = ("end", "of_warps", "thread")

    def __init__(self, thread: int, end: int = -1, *, of_warps: bool = False) -> None:
        self.thread = thread
        self.end = end
        self.of_warps = of_warps


class Writer:
    """Who filled a slot last.

    barrier, use: of an asynchronous write, the mbarrier and its phase that tell of its end.
    fenced, published: of a write by threads, whether the proxy fence and a barrier followed.
    fence_time: of the thread at the fence. ranges: bytes of the copies that make it up.
    """

    __slots__ = (
        "barrier", "fence_time", "fenced", "op", "published", "ranges", "thread", "time", "use",
    )  # fmt: skip

    def __init__(self, op: Op, thread: int, time: int, barrier: int = -1, use: int = -1) -> None:
        self.op = op
        self.thread = thread
        self.time = time
        self.barrier = barrier
        self.use = use
        self.fenced = False
        self.published = False
        self.fence_time = -1
        self.ranges: list[tuple[int, int]] = []

    def is_visible(self, thread: Thread) -> bool:
        """Whether a barrier after the fence tells a thread, all of its warps, of the write."""
        if thread.index == self.thread:
            return self.published
        return self.fenced and thread.clock[self.thread] >= self.fence_time

    def known(self, clock: Clock) -> bool:
        """Whether a thread with this clock knows that the write is over."""
        if self.barrier >= 0:
            return clock[self.barrier] > self.use
        return clock[self.thread] >= self.time


class SlotState:
    """One slot of a buffer of one CTA. data: its contents, where they are simulated.

    tile: at which the thread was that wrote scalars.
    parts: who has written a part of the present tenant, where warpgroups share the writing; then
    `before` holds the parts and the reads of the tenant before. cleared: who has written zeros over
    a copy.
    """

    __slots__ = (
        "before", "buffer", "cleared", "data", "number", "parts", "reads", "tile", "writer",
    )  # fmt: skip

    def __init__(self, buffer: Value, number: int) -> None:
        self.buffer = buffer
        self.number = number
        self.writer: Writer | None = None
        self.reads: list[Read] = []
        self.parts: dict[int, Writer] = {}
        self.cleared: dict[int, Writer] = {}
        self.before: tuple[list[Writer], list[Read]] = ([], [])
        self.data: Any = None
        self.tile = 0

    @property
    def name(self) -> str:
        return f"{self.buffer.name}[{self.number}]"

    def check_write(self, clock: Clock, op: Op) -> None:
        """A write has to come after the last write and after every read of it."""
        writers = [self.writer] if self.writer is not None else []
        if self.cleared:
            writers += self.cleared.values()
        self._check_after(clock, op, writers, self.reads, -1)

    def write_part(self, clock: Clock, writer: Writer) -> None:
        """A warpgroup's share of a tenant; its second share begins the next tenant."""
        if not self.parts or writer.thread in self.parts:
            self.before = list(self.parts.values()), self.reads
            self.parts, self.reads = {}, []
        elif self.reads:
            what = "is written by a warpgroup while others read it already"
            raise Fault("ordering", f"{self.name} {what}", writer.op)
        self._check_after(clock, writer.op, *self.before, writer.thread)
        self.parts[writer.thread] = self.writer = writer

    def _check_after(
        self, clock: Clock, op: Op, writers: list[Writer], reads: list[Read], thread: int
    ) -> None:
        for r in reads:
            # What another warpgroup tells of its read, it tells at a barrier of all its warps.
            if r.end < 0 or clock[r.thread] < r.end or (r.of_warps and r.thread == thread):
                raise Fault("ordering", f"{self.name} is written while it may still be read", op)
        for w in writers:
            if not w.known(clock):
                raise Fault("ordering", f"{self.name} is written while it may still be written", op)

    def check_read(self, clock: Clock, use: int, op: Op) -> None:
        """A read has to come after the write of its own tenant."""
        if self.parts and not all(w.known(clock) for w in self.parts.values()):
            raise Fault("ordering", f"{self.name} is read without waiting for all writes", op)
        self.check_tenant(clock, use, op)

    def check_tenant(self, clock: Clock, use: int, op: Op) -> None:
        """The slot holds the use that a thread takes it for."""
        w = self.writer
        if w is None:
            raise Fault("ordering", f"{self.name} is read before anything is written to it", op)
        if not w.known(clock):
            raise Fault("ordering", f"{self.name} is read without waiting for the write", op)
        if use >= 0 and w.use >= 0 and w.use != use:
            raise Fault("ordering", f"{self.name} holds use {w.use}, use {use} is read", op)


class Barrier:
    """One mbarrier. phases: how many are complete; waits: (thread, time, phase) of waits passed.

    receives, used: whether a copy, a thread after the set-up has told it anything. source: the
    clock that `clock` was joined with last. zero: a clock that knows nothing, never written to.
    """

    __slots__ = (
        "array", "clock", "done", "expected", "index", "number", "pending", "phases", "receives",
        "seen", "source", "tx", "used", "waits", "zero",
    )  # fmt: skip

    def __init__(self, array: Value, number: int, index: int, zero: Clock) -> None:
        self.array = array
        self.number = number
        self.index = index
        self.expected = 0
        self.pending = 0
        self.tx = 0
        self.phases = 0
        self.zero = self.clock = self.done = zero
        self.source: Clock = zero
        self.waits: list[tuple[int, int, int]] = []
        self.seen = 0
        self.receives = False
        self.used = False

    @property
    def name(self) -> str:
        return f"{self.array.name}[{self.number}]"

    def blocks(self, phase: int) -> bool:
        """Whether a wait for a phase goes on, and cannot tell anything new."""
        return self.phases <= phase + 1 and (self.phases & 1) == (phase & 1)

    def learn(self, clock: Clock, own: int) -> None:
        """Those who wait for this phase will know what a clock knows; `own`: its thread, or -1.

        The clock of a thread is another object once it has learnt of others. Until then only its
        own component grows.
        """
        if self.clock is self.zero:
            self.clock = clock[:]
        elif clock is self.source and own >= 0:
            self.clock[own] = clock[own]
        else:
            self.clock = join(self.clock, clock)
        self.source = clock

    def arrive(self, clock: Clock, count: int, op: Op, *, tx: int = 0, own: int = -1) -> None:
        """Arrivals, with bytes to come."""
        self.pending += count
        self.tx += tx
        if self.pending > self.expected:
            got = f"{self.pending} arrivals in one phase, {self.expected} are expected"
            raise Fault("balance", f"{self.name} gets {got}", op)
        self.learn(clock, own)
        if self.pending == self.expected and self.tx == 0:
            self._complete(op)

    def receive(self, clock: Clock, num_bytes: int, op: Op, *, own: int = -1) -> None:
        """Bytes of an asynchronous copy."""
        self.tx -= num_bytes
        self.receives = True
        self.learn(clock, own)
        if self.pending == self.expected and self.tx == 0:
            self._complete(op)

    def _complete(self, op: Op) -> None:
        if not self.expected:
            return
        for thread, time, phase in self.waits:
            if phase < self.phases and self.clock[thread] < time:
                message = f"{self.name} may complete twice before a wait for its phase has passed"
                raise Fault("ordering", message, op)
        self.waits = [w for w in self.waits if w[2] >= self.phases]
        self.phases += 1
        self.clock[self.index] = self.phases
        self.done = self.clock
        self.clock = self.zero
        self.pending = 0


class NamedBarrier:
    """One of the sixteen hardware barriers of a CTA."""

    __slots__ = ("clock", "count", "done", "generation", "id", "index", "threads", "zero")

    def __init__(self, id_: int, index: int, zero: Clock) -> None:
        self.id = id_
        self.index = index
        self.zero = self.clock = self.done = zero
        self.count = 0
        self.threads = 0
        self.generation = 0

    def blocks(self, generation: int) -> bool:
        """Whether a wait for the end of a generation goes on."""
        return self.generation <= generation

    def arrive(self, thread: Thread, num_threads: int, op: Op) -> int:
        """One warpgroup arrives; returns the generation that it takes part in."""
        if (
            thread.clock[self.index] < self.generation
            or thread.generations.get(self.id) == self.generation
        ):
            message = (
                f"named barrier {self.id}: an arrival may fall into the generation before its own"
            )
            raise Fault("named barriers", message, op)
        if self.count and self.threads != num_threads:
            what = f"participants disagree, {self.threads} and {num_threads} threads"
            raise Fault("named barriers", f"named barrier {self.id}: {what}", op)
        thread.generations[self.id] = self.generation
        mine = self.generation
        self.threads = num_threads
        self.count += WARPGROUP_THREADS
        first = self.clock is self.zero
        self.clock = thread.clock[:] if first else join(self.clock, thread.clock)
        if self.count > num_threads:
            message = (
                f"named barrier {self.id}: {self.count} threads arrive, {num_threads} are expected"
            )
            raise Fault("named barriers", message, op)
        if self.count == num_threads:
            self.generation += 1
            self.clock[self.index] = self.generation
            self.done, self.clock, self.count = self.clock, self.zero, 0
        return mine


class Cursor:
    """A position in a ring: `n` slots passed, that is slot `at` in its use number `use`.

    rings: the mbarrier arrays that the thread of a single-thread role used it with.
    """

    __slots__ = ("at", "depth", "n", "rings", "use")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.n = self.use = self.at = 0
        self.rings: set[Value] = set()

    def move(self, count: int) -> None:
        """Passes some slots."""
        self.n += count
        self.use, self.at = divmod(self.n, self.depth)


class Thread:
    """One warpgroup of a role (or its single thread), with what it has in flight."""

    def __init__(self, index: int, role: Role, cta: Cta, warpgroup: int) -> None:
        self.index = index
        alone = role.single_thread or role.num_warpgroups == 1
        self.name = role.name if alone else f"{role.name} {warpgroup}"
        self.cta = cta
        self.warpgroup = warpgroup
        self.single = role.single_thread
        self.clock: Clock = []
        self.env: dict[Value, Any] = {}
        self.where: Op | None = None
        # What it waits for, if it does: a barrier, and its phase or generation.
        self.waits_on: Barrier | NamedBarrier | None = None
        self.waits_for = 0
        self.steps = 0
        self.tile = 0
        self.generations: dict[int, int] = {}
        # wgmma: groups committed and not waited for, and the open one.
        self.groups: deque[list[Read]] = deque()
        self.open: list[Read] = []
        self.committed = 0
        self.fenced = False
        # Bulk stores in flight; those that only the leader knows to have been read.
        self.stores: deque[Read] = deque()
        self.leader_done: list[Read] = []
        self.written: list[Writer] = []
        # Reads of wgmmas that each warp has waited for, with no barrier since.
        self.waited: list[Read] = []
        self.reduced = False
        self.role = role

    @property
    def time(self) -> int:
        return self.clock[self.index]

    def tick(self) -> None:
        """Later work is not covered by what was released before."""
        self.clock[self.index] += 1


@dataclass(eq=False)
class Cta:
    """State of one CTA of the cluster."""

    rank: int
    barriers: dict[Value, list[Barrier]] = field(default_factory=dict[Value, list[Barrier]])
    buffers: dict[Value, list[SlotState]] = field(default_factory=dict[Value, list[SlotState]])
    named: dict[int, NamedBarrier] = field(default_factory=dict[int, NamedBarrier])
