"""Seeded faults in MACHINE graphs: each kind is a predicate for ops and an edit that breaks one."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Any

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Op
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.pointer_copy import CopyLanes
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import Setup


@dataclass(frozen=True)
class Mutation:
    """name; where: whether an op is a site, given its graph; edit: breaks the program there."""

    name: str
    where: Callable[[TileGraph, Op], bool]
    edit: Callable[[TileGraph, Op], None]


def walk(graph: TileGraph) -> Iterator[Op]:
    return graph.body.walk()


def sites(graph: TileGraph, mutation: Mutation) -> list[int]:
    """Numbers of the ops, in program order, at which a mutation applies."""
    return [i for i, op in enumerate(walk(graph)) if mutation.where(graph, op)]


def apply(graph: TileGraph, mutation: Mutation, site: int) -> Op:
    """Breaks a graph in place."""
    op = list(walk(graph))[site]
    mutation.edit(graph, op)
    return op


# ---------------------------------------------------------------------- edits
def drop(_: TileGraph, op: Op) -> None:
    op.parent.ops.remove(op)


def double(_: TileGraph, op: Op) -> None:
    ops = op.parent.ops
    copy = clone_op(op, {}) if op.regions else op.rebuild({})
    copy.parent = op.parent
    ops.insert(ops.index(op), copy)


def put(**changes: Any) -> Callable[[TileGraph, Op], None]:
    """Sets fields, to values or to functions of the old value."""

    def edit(_: TileGraph, op: Op) -> None:
        for name, value in changes.items():
            setattr(op, name, value(getattr(op, name)) if callable(value) else value)

    return edit


def before_last(cls: type[Op] | UnionType) -> Callable[[TileGraph, Op], None]:
    """Moves an op in front of the last op of a class that precedes it in its block."""

    def edit(_: TileGraph, op: Op) -> None:
        ops = op.parent.ops
        at = ops.index(op)
        target = next(i for i in reversed(range(at)) if isinstance(ops[i], cls))
        ops.remove(op)
        ops.insert(target, op)

    return edit


def swap_with_next(cls: type[Op]) -> Callable[[TileGraph, Op], None]:
    def edit(_: TileGraph, op: Op) -> None:
        ops = op.parent.ops
        at = ops.index(op)
        other = next(i for i in range(at + 1, len(ops)) if isinstance(ops[i], cls))
        ops[at], ops[other] = ops[other], ops[at]

    return edit


def insert_after(op: Op, *made: Op) -> None:
    ops = op.parent.ops
    for i, new in enumerate(made):
        new.parent = op.parent
        ops.insert(ops.index(op) + 1 + i, new)


def move_cursor_into_loop(_: TileGraph, op: Op) -> None:
    """The count starts again with every tile."""
    loop = next(o for o in op.parent.ops if o.is_loop)
    body = loop.regions[0]
    op.parent.ops.remove(op)
    op.parent = body
    body.ops.insert(0, op)


def shallow(graph: TileGraph, op: Op) -> None:
    """Rings of one slot."""
    del op
    for o in walk(graph):
        if isinstance(o, barrier.MbarrierArray | barrier.CursorCreate) and o.depth > 1:
            o.depth = 1


def one_trip_more(_: TileGraph, op: Op) -> None:
    step = op.step
    new = Add(op.upper, step)
    new.parent = op.parent
    op.parent.ops.insert(op.parent.ops.index(op), new)
    op.upper = new.result


def other_ring(graph: TileGraph, op: Op) -> None:
    """Another mbarrier array of the same depth."""
    arrays = [o for o in graph.body.ops if isinstance(o, barrier.MbarrierArray)]
    at = [o.result for o in arrays].index(op.barriers)
    op.barriers = arrays[(at + 1) % len(arrays)].result


def over_ring(graph: TileGraph, op: Op) -> None:
    """The buffer lies where the first ring is."""
    first = next(o for o in graph.body.ops if isinstance(o, smem.Buffer))
    op.offset_bytes = first.offset_bytes + 1024


def raw_accumulators(graph: TileGraph, op: Op) -> None:
    """Results are taken before the wait that gives them."""
    pairs = dict(zip(op.results, op.accs, strict=True))
    for o in walk(graph):
        for i, v in enumerate(o.operands):
            if v in pairs:
                o.set_operand(i, pairs[v])


def to_cta_sync(_: TileGraph, op: Op) -> None:
    new = barrier.CtaSync()
    new.parent = op.parent
    op.parent.ops[op.parent.ops.index(op)] = new


def constant_of(name: str, value: int) -> Callable[[TileGraph, Op], None]:
    """Replaces a scalar operand by a constant."""

    def edit(_: TileGraph, op: Op) -> None:
        new = Constant(value, getattr(op, name).type.dtype)
        new.parent = op.parent
        op.parent.ops.insert(op.parent.ops.index(op), new)
        setattr(op, name, new.result)

    return edit


# ---------------------------------------------------------------------- sites
def role_of(op: Op) -> Role | None:
    region = op.parent
    while region is not None and region.parent is not None:
        if isinstance(region.parent, Role):
            return region.parent
        region = region.parent.parent
    return None


def is_a(*classes: type[Op]) -> Callable[[TileGraph, Op], bool]:
    return lambda _, op: isinstance(op, classes)


def where(cls: type[Op], test: Callable[[Any], bool]) -> Callable[[TileGraph, Op], bool]:
    return lambda _, op: isinstance(op, cls) and test(op)


def full(v: Any) -> bool:
    return v.name.endswith("_full")


def empty(v: Any) -> bool:
    return v.name.endswith("_empty")


def in_producer(op: Op) -> bool:
    role = role_of(op)
    return role is not None and (role.single_thread or role.copies)


def before(cls: type[Op] | UnionType, op: Op, *, within: int = 99) -> bool:
    """Whether an op of a class precedes one in its block."""
    ops = op.parent.ops
    at = ops.index(op)
    return any(isinstance(o, cls) for o in ops[max(0, at - within) : at])


def after(cls: type[Op], op: Op, *, within: int = 99) -> bool:
    ops = op.parent.ops
    at = ops.index(op)
    return any(isinstance(o, cls) for o in ops[at + 1 : at + 1 + within])


def is_order(op: Any) -> bool:
    return op.num_threads == 256


def is_ring_cursor(graph: TileGraph, op: Op) -> bool:
    """A cursor of a ring in a role that has a loop over tiles beside it."""
    if not isinstance(op, barrier.CursorCreate) or not any(o.is_loop for o in op.parent.ops):
        return False
    used = [o for o in walk(graph) if op.result in o.operands and not isinstance(o, smem.Slot)]
    return any(hasattr(o, "barriers") for o in used) and all(
        o.parent is not op.parent for o in used
    )


def has_results_after(graph: TileGraph, op: Op) -> bool:
    return isinstance(op, mma.Wait) and any(
        v in op.results and not isinstance(o, mma.Wait | mma.Issue) and not o.is_terminator
        for o in walk(graph)
        for v in o.operands
    )


def is_loads_loop(_: TileGraph, op: Op) -> bool:
    return (
        isinstance(op, For)
        and in_producer(op)
        and any(isinstance(o, tma.Load) for o in op.body.ops)
    )


def arrays(graph: TileGraph) -> int:
    return sum(isinstance(o, barrier.MbarrierArray) for o in graph.body.ops)


def setup_op(cls: type[Op]) -> Callable[[TileGraph, Op], bool]:
    return lambda _, op: (
        isinstance(op, cls) and op.parent is not None and isinstance(op.parent.parent, Setup)
    )


def is_last(graph: TileGraph, op: Op) -> bool:
    return isinstance(op, barrier.ClusterSync) and graph.body.ops[-1] is op


def is_drain(op: Op) -> bool:
    """An arrive in an `if` that follows a loop of wgmmas."""
    around = op.parent.parent
    if not isinstance(around, If):
        return False
    return before(mma.Wait, around, within=12) and not after(mma.Issue, around)


M, B, T = mma, barrier, tma
WRITES = smem.Write | smem.Clear
MUTATIONS = [
    # mbarriers
    Mutation("drop a release", where(B.Arrive, lambda o: empty(o.barriers)), drop),
    Mutation("release twice", where(B.Arrive, lambda o: empty(o.barriers)), double),
    Mutation("release before the wait for the wgmma", where(B.Arrive, lambda o: before(M.Wait, o)), before_last(M.Wait)),
    Mutation("drop a release of the drain", where(B.Arrive, is_drain), drop),
    Mutation("arrive at another mbarrier", where(B.Arrive, lambda o: True), other_ring),
    Mutation("drop the wait for a full slot", where(B.MbarrierWait, lambda o: full(o.barriers)), drop),
    Mutation("drop the wait for an empty slot", where(B.MbarrierWait, lambda o: empty(o.barriers)), drop),
    Mutation("other parity for a full slot", where(B.MbarrierWait, lambda o: full(o.barriers)), put(invert=True)),
    Mutation("other parity for an empty slot", where(B.MbarrierWait, lambda o: empty(o.barriers)), put(invert=False)),
    Mutation("wait for another mbarrier", is_a(B.MbarrierWait), other_ring),
    Mutation("drop an expect_tx", is_a(B.ExpectTx), drop),
    Mutation("expect_tx twice", is_a(B.ExpectTx), double),
    Mutation("expect too few bytes", is_a(B.ExpectTx), put(num_bytes=lambda n: n - 128)),
    Mutation("expect too many bytes", is_a(B.ExpectTx), put(num_bytes=lambda n: n + 128)),
    Mutation("expect at another mbarrier", is_a(B.ExpectTx), other_ring),
    Mutation("arrival count too small", setup_op(B.MbarrierInit), put(arrivals=lambda n: n - 1)),
    Mutation("arrival count too large", setup_op(B.MbarrierInit), put(arrivals=lambda n: n + 1)),
    Mutation("drop an initialisation", setup_op(B.MbarrierInit), drop),
    Mutation("drop the fence of the initialisation", setup_op(B.InitFence), drop),
    Mutation("drop the barrier after the set-up", lambda g, o: isinstance(o, B.CtaSync) and o.parent is g.body, drop),
    # cursors
    Mutation("a cursor stays in a put", where(B.CursorNext, in_producer), drop),
    Mutation("a cursor stays in a consumer", where(B.CursorNext, lambda o: not in_producer(o)), drop),
    Mutation("a cursor moves twice", is_a(B.CursorNext), double),
    Mutation("the count starts again with each tile", is_ring_cursor, move_cursor_into_loop),
    Mutation("the depth of a cursor is wrong", is_ring_cursor, put(depth=lambda n: n + 1)),
    Mutation("drop a skip", is_a(B.CursorSkip), drop),
    Mutation("fewer slots than wgmmas in flight", lambda g, o: isinstance(o, Setup) and deep(g), shallow),
    # copies
    Mutation("drop a load", is_a(T.Load), drop),
    Mutation("load twice", is_a(T.Load), double),
    Mutation("a load behind its slot", is_a(T.Load), put(offset_bytes=lambda n: n + 1 << 14)),
    Mutation("a load tells another mbarrier", is_a(T.Load), other_ring),
    Mutation("drop a copy of threads", is_a(CopyLanes), drop),
    Mutation("copy twice", is_a(CopyLanes), double),
    Mutation("drop the arrival of copies", is_a(B.ArriveCopies), drop),
    Mutation("an arrival of copies twice", is_a(B.ArriveCopies), double),
    Mutation("copies tell another mbarrier", is_a(B.ArriveCopies), other_ring),
    Mutation("the arrival comes before the copies", is_a(B.ArriveCopies), before_last(CopyLanes)),
    Mutation("the proxy fence comes before the wait", where(B.AsyncFence, lambda o: before(B.MbarrierWait, o, within=1)), before_last(B.MbarrierWait)),
    Mutation("one trip more in the producer", is_loads_loop, one_trip_more),
    Mutation("the expect comes before the wait", where(B.MbarrierWait, lambda o: after(B.ExpectTx, o, within=1)), swap_with_next(B.ExpectTx)),
    # wgmma
    Mutation("one wgmma group more in flight", is_a(M.Wait), put(pending=lambda n: n + 1)),
    Mutation("results before their wait", has_results_after, raw_accumulators),
    Mutation("drop the fence of a wgmma", is_a(M.Fence), drop),
    Mutation("drop a commit", is_a(M.Commit), drop),
    # staging and fences
    Mutation("drop the proxy fence", is_a(B.AsyncFence), drop),
    Mutation("drop the barrier before a bulk store", where(B.NamedSync, lambda o: before(B.AsyncFence, o, within=1)), drop),
    Mutation("drop the barrier after the wait for a slab", where(B.NamedSync, lambda o: before(T.StoreWait, o, within=1)), drop),
    Mutation("drop the wait for a slab", where(T.StoreWait, lambda o: after(T.Store, o)), drop),
    Mutation("one bulk store more in flight", where(T.StoreWait, lambda o: after(T.Store, o)), put(pending=lambda n: n + 1)),
    Mutation("leave before the last bulk store", where(T.StoreWait, lambda o: not after(T.Store, o)), drop),
    Mutation("the fence comes before the write", where(B.AsyncFence, lambda o: before(WRITES, o)), before_last(WRITES)),
    Mutation("warpgroups share a slab", where(smem.Slot, lambda o: o.group is not None), put(group=None)),
    Mutation("staging over a ring", where(smem.Buffer, lambda o: o.result.name == "stage"), over_ring),
    Mutation("mbarriers over each other", lambda g, o: isinstance(o, B.MbarrierArray), put(offset_bytes=lambda n: n - 8)),
    # named barriers
    Mutation("a named barrier expects more", is_a(B.NamedSync), put(num_threads=lambda n: n + 128)),
    Mutation("a named barrier of another id", is_a(B.NamedSync), put(base=lambda n: n + 1)),
    Mutation("named barrier 0", where(B.NamedSync, lambda o: not is_order(o)), put(base=0)),
    Mutation("drop a named arrive", is_a(B.NamedArrive), drop),
    Mutation("drop the order of warpgroups", where(B.NamedSync, is_order), drop),
    # clusters
    Mutation("release this CTA only", where(B.Arrive, lambda o: o.cluster_size > 1), put(cluster_size=1)),
    Mutation("a CTA leaves early", is_last, drop),
    Mutation("set-up of this CTA only", lambda g, o: isinstance(o, B.ClusterSync) and not is_last(g, o), to_cta_sync),
    Mutation("multicast to one CTA", where(T.Load, lambda o: o.mask is not None), constant_of("mask", 1)),
    Mutation("the same part twice", where(T.Load, lambda o: o.part is not None), put(part_bytes=0)),
    Mutation("partial sums of another size", setup_op(B.ExpectAll), put(num_bytes=lambda n: n // 2)),
]  # fmt: skip


def deep(graph: TileGraph) -> bool:
    """Whether two groups of wgmmas are in flight at once."""
    return any(isinstance(o, mma.Wait) and o.pending for o in walk(graph))
