"""Synchronisation state of a simulated CTA: barriers, slots, and clocks.

By the clocks an access is known to come after another in every interleaving. A clock is a vector
clock in unary: the set of all times that are known to have come, a bit each. There is one for each
stretch of a thread's work from one release to the next, for each phase of an mbarrier and for each
generation of a named barrier. Who knows a time knows those of the same thread or barrier before it.
To learn what another one knows is an `or`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

from tiledsl.errors import SourceLoc
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.barrier import CursorCreate
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import SmemType

Clock = int
"""A set of times."""
Span = tuple[int, int]
"""Bytes of a slot, from and to."""
Does = Callable[[], None]
"""What a thread does at an op."""
MayWait = Callable[[], bool]
"""The same where it may have to wait: True if it does, and has to be called again."""
WARPS = 4
WARPGROUP_THREADS = 128
NAMED_BARRIERS = 16
NOWHERE = 1 << 30
"""No slot of any ring."""


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


class Times:
    """Hands out the times of a run."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last: Clock = 1

    def new(self) -> Clock:
        """A time that nobody knows."""
        self.last <<= 1
        return self.last


class Read:
    """One read of a slot; `end` is the thread's time at which it is over, 0 before.

    of_warps: each warp of the thread knows of its own part only, until a barrier among them.
    """

    __slots__ = ("end", "of_warps", "thread")

    def __init__(self, thread: int, end: Clock = 0, of_warps: bool = False) -> None:
        self.thread = thread
        self.end = end
        self.of_warps = of_warps


class Writer:
    """Who filled a slot last.

    end: the time at which it is over: of the thread, or of an asynchronous write that of the phase
    of the mbarrier that tells of it. use: of its ring, -1 where none is known.
    copied: by asynchronous copies of threads, which the async proxy sees after a fence.
    fenced, published: of a write by threads, whether the proxy fence and a barrier followed.
    fence_time: of the thread at the fence. ranges: bytes of the copies that make it up.
    """

    __slots__ = (
        "barrier", "copied", "end",
        "fence_time", "fenced", "op", "published", "ranges", "thread", "use",
    )  # fmt: skip

    def __init__(
        self,
        op: Op,
        thread: int,
        end: Clock,
        barrier: Barrier | None = None,
        use: int = -1,
        *ranges: Span,
    ) -> None:
        self.op = op
        self.thread = thread
        self.end = end
        self.barrier = barrier
        self.use = use
        self.fenced = False
        self.published = False
        self.fence_time: Clock = 0
        self.copied = False
        self.ranges = ranges

    def is_visible(self, thread: Thread) -> bool:
        """Whether a barrier after the fence tells a thread, all of its warps, of the write."""
        if thread.index == self.thread:
            return self.published
        return self.fenced and bool(thread.clock & self.fence_time)


class SlotState:
    """One slot of a buffer of one CTA. data: its contents, where they are simulated.

    parts: who has written a part of the present tenant, where warpgroups share the writing; then
    `before` holds the parts and the reads of the tenant before. cleared: who has written zeros over
    a copy.
    """

    __slots__ = ("before", "buffer", "cleared", "data", "number", "parts", "reads", "writer")

    def __init__(self, buffer: Value, number: int) -> None:
        self.buffer = buffer
        self.number = number
        self.writer: Writer | None = None
        self.reads: list[Read] = []
        self.parts: dict[int, Writer] = {}
        self.cleared: dict[int, Writer] = {}
        self.before: tuple[list[Writer], list[Read]] = ([], [])
        self.data: Any = None

    def reset(self) -> None:
        """Nothing was written to it yet."""
        if self.writer is not None or self.reads or self.cleared:
            self.__init__(self.buffer, self.number)

    @property
    def name(self) -> str:
        return f"{self.buffer.name}[{self.number}]"

    def is_filled(self, clock: Clock, use: int) -> bool:
        """Whether one with a clock may read it as a use of its ring, and bulk copies filled it."""
        w = self.writer
        if (
            w is None
            or w.barrier is None
            or w.copied
            or self.parts
            or self.cleared
            or not clock & w.end
        ):
            return False
        return w.use == use or use < 0

    def check_write(self, clock: Clock, op: Op) -> None:
        """A write has to come after the last write and after every read of it."""
        for r in self.reads:
            if not clock & r.end:
                raise self._too_soon("read", op)
        if self.writer is not None and not clock & self.writer.end:
            raise self._too_soon("written", op)
        for w in self.cleared.values():
            if not clock & w.end:
                raise self._too_soon("written", op)

    def write_part(self, clock: Clock, writer: Writer) -> None:
        """A warpgroup's share of a tenant; its second share begins the next tenant."""
        if not self.parts or writer.thread in self.parts:
            self.before = list(self.parts.values()), self.reads
            self.parts, self.reads = {}, []
        elif self.reads:
            what = "is written by a warpgroup while others read it already"
            raise Fault("ordering", f"{self.name} {what}", writer.op)
        writers, reads = self.before
        for r in reads:
            # What another warpgroup tells of its read, it tells at a barrier of all its warps.
            if not clock & r.end or (r.of_warps and r.thread == writer.thread):
                raise self._too_soon("read", writer.op)
        for w in writers:
            if not clock & w.end:
                raise self._too_soon("written", writer.op)
        self.parts[writer.thread] = self.writer = writer

    def _too_soon(self, what: str, op: Op) -> Fault:
        return Fault("ordering", f"{self.name} is written while it may still be {what}", op)

    def check_read(self, clock: Clock, use: int, op: Op) -> None:
        """A read has to come after the write of its own tenant."""
        if self.parts and not all(clock & w.end for w in self.parts.values()):
            raise Fault("ordering", f"{self.name} is read without waiting for all writes", op)
        self.check_tenant(clock, use, op)

    def check_tenant(self, clock: Clock, use: int, op: Op) -> None:
        """The slot holds the use that a thread takes it for."""
        w = self.writer
        if w is None:
            raise Fault("ordering", f"{self.name} is read before anything is written to it", op)
        if not clock & w.end:
            raise Fault("ordering", f"{self.name} is read without waiting for the write", op)
        if use >= 0 and w.use >= 0 and w.use != use:
            raise Fault("ordering", f"{self.name} holds use {w.use}, use {use} is read", op)


class Barrier:
    """One mbarrier. phases: how many are complete.

    receives, used: whether a copy, a thread after the set-up has told it anything. clock: what
    those know who have told it something in this phase; done: what the last phase told.
    end: the time at which this phase is over; ends: those of the phases before, past: all of them
    together, last, before: the last of them and the one before that, or 0.
    passed: times of the threads that waited in this phase.
    """

    __slots__ = (
        "array", "before", "clock", "done", "end", "ends", "expected", "last", "number", "passed",
        "past", "pending", "phases", "receives", "seen", "times", "tx", "used",
    )  # fmt: skip

    def __init__(self, array: Value, number: int, times: Times) -> None:
        self.array = array
        self.number = number
        self.times = times
        self.expected = 0
        self.reset()

    def reset(self) -> None:
        """Its first phase begins."""
        self.pending = 0
        self.tx = 0
        self.phases = 0
        self.clock: Clock = 0
        self.done: Clock = 0
        self.end = self.times.new()
        self.last: Clock = 0
        self.before: Clock = 0
        self.ends: list[Clock] = []
        self.past: Clock = 0
        self.passed: Clock = 0
        self.seen = 0
        self.receives = False
        self.used = False

    @property
    def name(self) -> str:
        return f"{self.array.name}[{self.number}]"

    def is_over(self, clock: Clock, phase: int) -> bool:
        """Whether one with a clock knows that a phase is complete."""
        return phase < 0 or (phase < self.phases and bool(clock & self.ends[phase]))

    def blocks(self, phase: int) -> bool:
        """Whether a wait for a phase goes on, and cannot tell anything new."""
        return self.phases <= phase + 1 and (self.phases & 1) == (phase & 1)

    def signal(self, clock: Clock, use: int, op: Op) -> None:
        """What an arrival or a copy needs: the phase before its own is known to be over."""
        self.used = True
        if self.phases == use and not self.last & ~clock:
            return
        if not self.is_over(clock, use - 1):
            message = f"{self.name}: an arrival for phase {use} may fall into phase {use - 1}"
            raise Fault("ordering", message, op)
        message = f"{self.name} is in phase {self.phases}, an arrival is for phase {use}"
        raise Fault("ordering", message, op)

    def arrive(self, clock: Clock, use: int, count: int, op: Op, tx: int = 0) -> None:
        """Arrivals for a phase, with bytes to come, of one who knows so much."""
        if self.phases != use or self.last & ~clock:
            self.signal(clock, use, op)
        self.used = True
        self.clock |= clock
        self.tx += tx
        pending = self.pending = self.pending + count
        if pending < self.expected:
            return
        if pending > self.expected:
            got = f"{pending} arrivals in one phase, {self.expected} are expected"
            raise Fault("balance", f"{self.name} gets {got}", op)
        if not self.tx:
            self._complete(op)

    def expect(self, num_bytes: int, op: Op) -> None:
        """The arrival of the set-up, with bytes to come."""
        self.pending += 1
        self.tx += num_bytes
        if self.pending > self.expected:
            got = f"{self.pending} arrivals in one phase, {self.expected} are expected"
            raise Fault("balance", f"{self.name} gets {got}", op)

    def receive(self, clock: Clock, num_bytes: int, op: Op) -> None:
        """Bytes of an asynchronous copy."""
        self.tx -= num_bytes
        self.receives = True
        self.clock |= clock
        if self.pending == self.expected and self.tx == 0:
            self._complete(op)

    def _complete(self, op: Op) -> None:
        if not self.expected:
            return
        if self.passed & ~self.clock:
            message = f"{self.name} may complete twice before a wait for its phase has passed"
            raise Fault("ordering", message, op)
        self.passed = 0
        self.phases += 1
        self.before, self.last = self.last, self.end
        self.ends.append(self.end)
        self.past |= self.end
        self.done = self.clock | self.past
        times = self.times
        self.end = times.last = times.last << 1
        self.clock = self.pending = 0


class NamedBarrier:
    """One of the sixteen hardware barriers of a CTA. last: when its last generation was over."""

    __slots__ = ("clock", "count", "done", "generation", "id", "last", "threads", "times")

    def __init__(self, id_: int, times: Times) -> None:
        self.id = id_
        self.times = times
        self.reset()

    def reset(self) -> None:
        """Its first generation begins."""
        self.clock: Clock = 0
        self.done: Clock = 0
        self.last: Clock = 0
        self.count = 0
        self.threads = 0
        self.generation = 0

    def blocks(self, generation: int) -> bool:
        """Whether a wait for the end of a generation goes on."""
        return self.generation <= generation

    def arrive(self, thread: Thread, num_threads: int, op: Op) -> int:
        """One warpgroup arrives; returns the generation that it takes part in."""
        mine = self.generation
        if self.last & ~thread.clock or thread.generations.get(self.id) == mine:
            message = (
                f"named barrier {self.id}: an arrival may fall into the generation before its own"
            )
            raise Fault("named barriers", message, op)
        if self.count and self.threads != num_threads:
            what = f"participants disagree, {self.threads} and {num_threads} threads"
            raise Fault("named barriers", f"named barrier {self.id}: {what}", op)
        thread.generations[self.id] = mine
        self.threads = num_threads
        self.count += WARPGROUP_THREADS
        self.clock |= thread.clock
        if self.count > num_threads:
            message = (
                f"named barrier {self.id}: {self.count} threads arrive, {num_threads} are expected"
            )
            raise Fault("named barriers", message, op)
        if self.count == num_threads:
            self.generation += 1
            self.last = self.times.new()
            self.done, self.clock, self.count = self.clock | self.last, 0, 0
        return mine


class Cursor:
    """A position in a ring: `n` slots passed, that is slot `at` in its use number `use`.

    rings: the mbarrier arrays that the thread of a single-thread role used it with.
    Before it is created it stands at no slot.
    """

    __slots__ = ("at", "depth", "n", "rings", "use")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.rings: set[Value] = set()
        self.reset()

    def reset(self) -> None:
        """Before it is created."""
        self.create()
        self.at = NOWHERE

    def create(self) -> None:
        """At the first slot."""
        self.n = self.use = self.at = 0
        self.rings.clear()

    def next(self) -> None:
        """Passes one slot."""
        self.n += 1
        at = self.at + 1
        if at == self.depth:
            at = 0
            self.use += 1
        self.at = at

    def move(self, count: int) -> None:
        """Passes some slots."""
        self.n += count
        self.use, self.at = divmod(self.n, self.depth)


class Slot:
    """A slot as a value: what its op gave last.

    state: None before. use: of the ring, that the cursor stood for, or -1.
    """

    __slots__ = ("buffer", "state", "type", "use")

    def __init__(self, buffer: Value, type_: SmemType) -> None:
        self.buffer = buffer
        self.type = type_
        self.reset()

    def reset(self) -> None:
        """Before its op."""
        self.state: Any = None  # of a SlotState; what reads it before its op fails
        self.use = -1


class Thread:
    """One warpgroup of a role (or its single thread), with what it has in flight.

    number: in its crew. place: rank and warpgroup of which its scalars are.
    clock: what it knows. now: the time at which what it does now is over, which it knows itself.
    env: scalars, and of results of wgmmas in flight their group. cursors, slots: by the values that
    stand for them. loads: whether it is of a load role.
    """

    def __init__(self, index: int, role: Role, cta: Cta, warpgroup: int, times: Times) -> None:
        self.index = index
        alone = role.single_thread or role.num_warpgroups == 1
        self.name = role.name if alone else f"{role.name} {warpgroup}"
        self.cta = cta
        self.warpgroup = warpgroup
        self.single = role.single_thread
        self.loads = role.single_thread or role.copies
        self.role = role
        self.number = 0
        self.place = cta.rank, warpgroup
        self.times = times
        self.env: dict[Value, Any] = {}
        self.cursors: dict[Value, Cursor] = {}
        self.slots: dict[Value, Slot] = {}
        self.reset()

    def reset(self) -> None:
        """Before its first op; `env` is left as it is."""
        self.clock = self.now = self.times.new()
        for held in (*self.cursors.values(), *self.slots.values()):
            held.reset()
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
        # Copies of which no mbarrier tells yet; what it knew at its last proxy fence.
        self.copying: list[Writer] = []
        self.fence_clock: Clock = 0
        # Reads of wgmmas that each warp has waited for, with no barrier since.
        self.waited: list[Read] = []
        # Reads by threads that `smem.arrived` waits for, by what they read.
        self.arriving: dict[Value, list[Read]] = {}
        self.reduced = False

    def tick(self) -> None:
        """Later work is not covered by what was released before."""
        times = self.times
        self.now = times.last = times.last << 1
        self.clock |= self.now

    def cursor(self, v: Value) -> Cursor:
        """The cursor that a value stands for."""
        if v not in self.cursors:
            op = v.defining_op
            if not isinstance(op, CursorCreate):
                raise KeyError(v)
            self.cursors[v] = Cursor(op.depth)
        return self.cursors[v]

    def slot(self, v: Value) -> Slot:
        """The slot that a value, or the one that it is a view of, stands for."""
        if v in self.slots:
            return self.slots[v]
        while isinstance(v.defining_op, smem.View):
            v = v.defining_op.a
        if v not in self.slots:
            op = v.defining_op
            if not isinstance(op, smem.Slot):
                raise KeyError(v)
            self.slots[v] = Slot(op.buffer, smem.smem_type(v, "slot"))
        return self.slots[v]


@dataclass(eq=False)
class Cta:
    """State of one CTA of the cluster."""

    rank: int
    barriers: dict[Value, list[Barrier]] = field(default_factory=dict[Value, list[Barrier]])
    buffers: dict[Value, list[SlotState]] = field(default_factory=dict[Value, list[SlotState]])
    named: dict[int, NamedBarrier] = field(default_factory=dict[int, NamedBarrier])
