"""mbarriers, cursors, named barriers and fences."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import emits
from tiledsl.codegen.watch import number
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier as ops
from tiledsl.ir.types import HandleType


@dataclass(frozen=True)
class ArrayContext:
    """`name = smem_base + offset_bytes`: mbarriers of 8 bytes each."""

    name: str
    offset_bytes: int
    depth: int
    arrivals: int


@dataclass(frozen=True)
class InitContext:
    """All mbarriers of an array."""

    barriers: str
    depth: int
    arrivals: int
    variant: str


@dataclass(frozen=True)
class DependencyContext:
    """The call by which the next kernel may start, or nothing."""

    launch: str


@dataclass(frozen=True)
class ExpectAllContext:
    """All mbarriers of an array, and what is announced at each."""

    barriers: str
    depth: int
    num_bytes: int


@dataclass(frozen=True)
class CursorContext:
    """A cursor variable, and by how much it moves."""

    name: str
    depth: int
    count: str = ""


@dataclass(frozen=True)
class WaitContext:
    """Address and parity of one mbarrier; of a debug build also the count and the site."""

    barrier: str
    parity: str
    count: str = ""
    site: str = ""
    variant: str = ""


@dataclass(frozen=True)
class ArriveContext:
    """Address of one mbarrier, and what is announced to whom."""

    barrier: str
    num_bytes: int = 0
    cluster_size: int = 1
    variant: str = ""


@dataclass(frozen=True)
class NamedContext:
    """A named barrier's id and thread count; of a debug build the site of a wait."""

    barrier: str
    num_threads: int
    site: str = ""
    variant: str = ""


@dataclass(frozen=True)
class NoContext:
    """A statement without operands."""


def mbarrier_address(e: Emission, barriers: Value, cursor: Value) -> str:
    """Address of the mbarrier at a cursor's slot."""
    return f"{e.text(barriers)} + 8 * {e.text(cursor)}.slot"


@emits("barrier.array")
def array(op: ops.MbarrierArray, e: Emission) -> ArrayContext:
    """`const u32 full_1 = smem_base + 98304;`."""
    return ArrayContext(e.name(op.result, "barriers"), op.offset_bytes, op.depth, op.arrivals)


@emits("barrier.init")
def init(op: ops.MbarrierInit, e: Emission) -> InitContext:
    """One statement, or a loop over the array."""
    depth = getattr(op.barriers.type, "depth", 1)
    return InitContext(e.text(op.barriers), depth, op.arrivals, "one" if depth == 1 else "")


@emits("barrier.cursor")
def cursor(op: ops.CursorCreate, e: Emission) -> CursorContext:
    """`Cursor<4> c_1;`."""
    return CursorContext(e.name(op.result, "cursor"), op.depth)


@emits("barrier.next")
def cursor_next(op: ops.CursorNext, e: Emission) -> CursorContext:
    """`c_1.next();`."""
    return CursorContext(e.text(op.cursor), 0)


@emits("barrier.skip")
def cursor_skip(op: ops.CursorSkip, e: Emission) -> CursorContext:
    """`c_1.skip(n);`."""
    return CursorContext(e.text(op.cursor), 0, e.text(op.count))


@emits("barrier.wait")
def wait(op: ops.MbarrierWait, e: Emission) -> WaitContext:
    """`mbarrier_wait(full_1 + 8 * c_1.slot, c_1.parity);`."""
    parity = f"{e.text(op.cursor)}.parity" + (" ^ 1" if op.invert else "")
    address = mbarrier_address(e, op.barriers, op.cursor)
    if e.watch is None:
        return WaitContext(address, parity)
    site = number(op, e, op.barriers.name)
    return WaitContext(address, parity, f"{e.text(op.cursor)}.count", site, "watched")


@emits("barrier.expect_tx")
def expect_tx(op: ops.ExpectTx, e: Emission) -> ArriveContext:
    """`mbarrier_expect_tx(full_1 + 8 * c_1.slot, 40960);`."""
    variant = by_leader(e)
    return ArriveContext(mbarrier_address(e, op.barriers, op.cursor), op.num_bytes, variant=variant)


def by_leader(e: Emission) -> str:
    """The variant of what one thread of a role does: of many threads, one of the first warp."""
    if e.place.is_single:
        return ""
    e.use("warp")
    return "leader"


@emits("barrier.arrive_copies")
def arrive_copies(op: ops.ArriveCopies, e: Emission) -> ArriveContext:
    """`mbarrier_arrive_cp_async(full_1 + 8 * c_1.slot);`."""
    return ArriveContext(mbarrier_address(e, op.barriers, op.cursor))


@emits("barrier.arrive")
def arrive(op: ops.Arrive, e: Emission) -> ArriveContext:
    """One lane of each warp tells this CTA, or lane i tells CTA i."""
    variant = "cluster" if op.cluster_size > 1 else ""
    if op.converge:
        variant = "converged_cluster" if variant else "converged"
    if op.single_thread:
        variant = "one"
    else:
        e.use("lane")
    barrier = mbarrier_address(e, op.barriers, op.cursor)
    return ArriveContext(barrier, cluster_size=op.cluster_size, variant=variant)


@emits("barrier.named_sync", "barrier.named_arrive")
def named(op: ops.NamedSync | ops.NamedArrive, e: Emission) -> NamedContext:
    """`named_barrier_sync(1 + g_1, 128);`."""
    barrier = str(op.base) if op.index is None else f"{op.base} + {e.atom(op.index)}"
    if e.watch is None:
        return NamedContext(barrier, op.num_threads)
    site = number(op, e, "_named") if isinstance(op, ops.NamedSync) else ""
    return NamedContext(barrier, op.num_threads, site, "watched")


@emits(
    "barrier.init_fence",
    "barrier.cta",
    "barrier.cluster",
    "barrier.warp",
    "barrier.async_fence",
)
def plain(op: object, e: Emission) -> NoContext:
    """A call without arguments."""
    del op, e
    return NoContext()


@emits("barrier.grid_dependency")
def grid_dependency(op: ops.GridDependency, e: Emission) -> DependencyContext:
    """`grid_launch_dependents(); grid_dependency_wait();`."""
    del e
    return DependencyContext("" if op.waits_only else _launch(op.last))


@emits("barrier.launch_dependents")
def launch_dependents(op: ops.LaunchDependents, e: Emission) -> DependencyContext:
    """`grid_launch_dependents_by_last<1056>();`."""
    del e
    return DependencyContext(_launch(op.last))


def _launch(last: int) -> str:
    name = "grid_launch_dependents"
    return f"{name}_by_last<{last}>" if last else name


@emits("barrier.expect_all")
def expect_all(op: ops.ExpectAll, e: Emission) -> ExpectAllContext:
    """A loop over the array."""
    type_ = op.barriers.type
    assert isinstance(type_, HandleType)
    return ExpectAllContext(e.text(op.barriers), type_.depth, op.num_bytes)
