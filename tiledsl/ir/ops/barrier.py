"""mbarriers with their cursors, named barriers, CTA and cluster barriers, proxy fences."""

from __future__ import annotations

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.types import HandleType
from tiledsl.ir.types import Type

MACHINE = Level.MACHINE
LOWER = Level.WARP_SPECIALIZED | Level.MACHINE


class MbarrierArray(Op, opcode="barrier.array", levels=MACHINE, effect=Effect.SYNC):
    """`depth` mbarriers in shared memory at `offset_bytes`.

    arrivals: the count that completes one parity. Ref: PTX ISA, mbarrier.
    """

    depth: int = attribute()
    arrivals: int = attribute()
    offset_bytes: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (HandleType("mbarrier", self.depth),)


class MbarrierInit(Op, opcode="barrier.init", levels=MACHINE, effect=Effect.SYNC):
    """Initialises every mbarrier of an array with its arrival count (one thread)."""

    barriers: Value = operand()
    arrivals: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class InitFence(Op, opcode="barrier.init_fence", levels=MACHINE, effect=Effect.SYNC):
    """Makes mbarrier initialisation visible to the cluster and the async proxy.

    Ref: PTX ISA, fence.mbarrier_init.
    """

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class CursorCreate(Op, opcode="barrier.cursor", levels=MACHINE, effect=Effect.SYNC):
    """A role's position in a ring, from the running count n of slots.

    slot = n mod depth and parity = (n / depth) & 1.
    """

    depth: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (HandleType("cursor", self.depth),)


class CursorNext(Op, opcode="barrier.next", levels=MACHINE, effect=Effect.SYNC):
    """Moves a cursor on by one slot."""

    cursor: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class CursorSkip(Op, opcode="barrier.skip", levels=MACHINE, effect=Effect.SYNC):
    """Moves a cursor on by `count` slots (non-negative i32)."""

    cursor: Value = operand()
    count: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class MbarrierWait(Op, opcode="barrier.wait", levels=MACHINE, effect=Effect.SYNC):
    """Waits until the mbarrier at the cursor's slot completed the cursor's parity.

    invert: the other parity. Ref: PTX ISA, mbarrier.try_wait.parity.
    """

    barriers: Value = operand()
    cursor: Value = operand()
    invert: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class ExpectTx(Op, opcode="barrier.expect_tx", levels=MACHINE, effect=Effect.SYNC):
    """One thread of the role arrives at the cursor's mbarrier: `num_bytes` of copies will come."""

    barriers: Value = operand()
    cursor: Value = operand()
    num_bytes: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class ExpectAll(Op, opcode="barrier.expect_all", levels=MACHINE, effect=Effect.SYNC):
    """Arrives at every mbarrier of an array, announcing `num_bytes` at each (one thread, once)."""

    barriers: Value = operand()
    num_bytes: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class Arrive(Op, opcode="barrier.arrive", levels=MACHINE, effect=Effect.SYNC):
    """One lane of each executing warp arrives at the cursor's mbarrier.

    cluster_size: CTAs to tell (1: this CTA only; lane i < cluster_size tells CTA i).
    single_thread: the role is one thread, which arrives itself.
    converge: after all lanes of the warp have come here.
    """

    barriers: Value = operand()
    cursor: Value = operand()
    cluster_size: int = attribute(default=1)
    single_thread: bool = attribute(default=False)
    converge: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class ArriveCopies(Op, opcode="barrier.arrive_copies", levels=MACHINE, effect=Effect.SYNC):
    """Every thread of the role arrives at the cursor's mbarrier once its copies have landed.

    Those are all that it started before (`pointer.copy_lanes`); it does not wait for them.
    Ref: PTX ISA, cp.async.mbarrier.arrive.noinc.
    """

    barriers: Value = operand()
    cursor: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class NamedSync(Op, opcode="barrier.named_sync", levels=LOWER, effect=Effect.SYNC):
    """Waits at named barrier `base + index` until `num_threads` threads arrived or wait.

    Ref: PTX ISA, barrier.sync.
    """

    index: Value | None = operand(default=None)
    base: int = attribute(kw_only=True)
    num_threads: int = attribute(kw_only=True)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class NamedArrive(Op, opcode="barrier.named_arrive", levels=LOWER, effect=Effect.SYNC):
    """Arrives at named barrier `base + index` without waiting. Ref: PTX ISA, barrier.arrive."""

    index: Value | None = operand(default=None)
    base: int = attribute(kw_only=True)
    num_threads: int = attribute(kw_only=True)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class CtaSync(Op, opcode="barrier.cta", levels=LOWER, effect=Effect.SYNC):
    """All threads of the CTA wait for each other."""

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class ClusterSync(Op, opcode="barrier.cluster", levels=LOWER, effect=Effect.SYNC):
    """All threads of the cluster wait for each other. Ref: PTX ISA, barrier.cluster."""

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class WarpSync(Op, opcode="barrier.warp", levels=LOWER, effect=Effect.SYNC):
    """The lanes of each executing warp come together.

    At the end of a loop whose last statement one lane executes: where lanes arrive at its head one
    by one, ptxas keeps what the loop carries in registers of lanes, and copies every descriptor
    made of it to uniform ones. Ref: PTX ISA, bar.warp.sync.
    """

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class AsyncFence(Op, opcode="barrier.async_fence", levels=LOWER, effect=Effect.SYNC):
    """Orders this thread's generic writes to shared memory before later asynchronous reads.

    Ref: PTX ISA, fence.proxy.async.
    """

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class GridDependency(Op, opcode="barrier.grid_dependency", levels=MACHINE, effect=Effect.SYNC):
    """Waits until the kernel before has finished its memory; the next one may start its prologue.

    last: only so many CTAs, the last ones of the grid, say that the next kernel may start (0: all
    of them). Those before have ended when the last ones run, and saying it halves the rate at
    which CTAs start. waits_only: a `barrier.launch_dependents` says it later.

    No value of global memory is read or written before it; tma.prefetch_box may be. Ref: PTX ISA,
    griddepcontrol.
    """

    last: int = attribute(default=0, kw_only=True)
    waits_only: bool = attribute(default=False, kw_only=True)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class LaunchDependents(Op, opcode="barrier.launch_dependents", levels=MACHINE, effect=Effect.SYNC):
    """The next kernel may start when all CTAs, or the last ones of the grid, did this or ended.

    It says nothing about memory, but ptxas moves no loads across it. last: as of
    `barrier.grid_dependency`. Ref: PTX ISA, griddepcontrol.
    """

    last: int = attribute(default=0, kw_only=True)

    def infer_types(self) -> tuple[Type, ...]:
        return ()
