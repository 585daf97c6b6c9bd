"""Loads of a loop's later iterations, fetched into shared memory while this one computes.

Warps that meet in each iteration all wait for its loads at the same time. Each thread copies what
it will read itself, with `cp.async` to places of its own: it waits for nobody, no registers are
held, and as many iterations are on their way as the SM needs bytes. A thread reads the slot of an
iteration and then starts the copies of a later one to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.dtypes import uint8
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_region
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.pointer_copy import fetched_bytes
from tiledsl.ir.ops.smem_ring import Ring
from tiledsl.ir.ops.smem_ring import RingSlot
from tiledsl.ir.types import SmemType
from tiledsl.ws.copy_loop import wide
from tiledsl.ws.fetch_ahead import Fetch
from tiledsl.ws.fetch_ahead import add_copies
from tiledsl.ws.fetch_ahead import obstacle_to_fetching
from tiledsl.ws.fetch_ahead import origin
from tiledsl.ws.fetch_ahead import place_of
from tiledsl.ws.load_ahead import counts_up
from tiledsl.ws.row_loops import reduces
from tiledsl.ws.scratch import requested_bytes
from tiledsl.ws.slices import slice_of_iteration

FLIGHT_BYTES = 65536
"""Bytes on their way to an SM that hide the time of a load."""
MOST_SLOTS = 4
"""Iterations on their way at most."""


@dataclass(frozen=True)
class Space:
    """What a CTA has for its slots.

    num_threads, room_bytes: of the CTA. num_blocks: CTAs on an SM. asked: iterations that the user
    wants on their way, 0 for as many as the SM needs bytes. num_ctas: that share a program.
    """

    num_threads: int
    room_bytes: int
    num_blocks: int = 1
    asked: int = 0
    num_ctas: int = 1

    def depth(self, slot_bytes: int) -> int:
        """Slots of so many bytes; 0 where none fits."""
        most = min(MOST_SLOTS, -(-FLIGHT_BYTES // (slot_bytes * self.num_blocks)))
        return max(0, min(self.asked or most, self.room_bytes // slot_bytes))


@dataclass
class Fetched:
    """is_complete: all tiles come through shared memory that loops load whose warps meet.

    depth: slots of the deepest ring.
    """

    is_complete: bool = True
    depth: int = 0
    notes: list[str] = field(default_factory=list[str])


def fetch_loops(graph: TileGraph, region: Region, space: Space) -> Fetched:
    """Rewrites the loops under `region` whose warps meet in each iteration."""
    out = Fetched()
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        loads = [op for op in loop.body.ops if isinstance(op, pointer.LoadLanes)]
        if not loads or not reduces(loop):
            continue
        if not any(requested_bytes(op) for op in loop.body.ops):
            out.is_complete = False
            continue
        where = place_of(loop)
        found = _fetches(loop, loads, space.num_threads)
        if isinstance(found, str):
            out.notes.append(f"{where}: not fetched ahead: {found}")
            out.is_complete = False
            continue
        slot_bytes = sum(f.num_bytes for f in found)
        depth = space.depth(slot_bytes)
        if not depth:
            room = f"{slot_bytes} bytes an iteration, {space.room_bytes} are left"
            out.notes.append(f"{where}: not fetched ahead: {room}")
            out.is_complete = False
            continue
        stores = any(op.effect is Effect.WRITE for op in loop.body.walk())
        if not stores and space.num_blocks == 1 and 2 * slot_bytes > space.room_bytes:
            # Plain loads do without the way through shared memory (0.99 for 0.90 of Triton).
            room = f"{slot_bytes} bytes an iteration fit once, and one CTA is on an SM"
            out.notes.append(f"{where}: not fetched ahead: {room}")
            out.is_complete = False
            continue
        space = replace(space, room_bytes=space.room_bytes - depth * slot_bytes)
        made = _Rewrite(graph, loop, found, depth, space.num_threads).run()
        if space.num_ctas > 1:
            _keep_scalars_early(graph, made)
        what = "iterations ahead" if depth > 1 else "iteration ahead"
        line = f"{where}: fetched {depth} {what} through cp.async, {slot_bytes} bytes each"
        if depth < space.asked:
            line += f"; num_stages={space.asked}: no more fit"
        out.notes.append(line)
        out.depth = max(out.depth, depth)
    return out


def _fetches(loop: For, loads: list[pointer.LoadLanes], num_threads: int) -> list[Fetch] | str:
    """How the loads of a loop are fetched, or why one of them is not."""
    if not counts_up(loop.step):
        return "the step may be negative"
    read = {origin(load) for load in loads}
    for op in loop.body.walk():
        if isinstance(op, pointer.Barrier) and not op.warp:
            return "the loop has a barrier"
        if op.effect is Effect.WRITE:
            written = origin(op)
            if not written or not all(read) or written in read:
                return "the loop may write what it loads"
    out: list[Fetch] = []
    for load in loads:
        ops = slice_of_iteration(loop, load.inputs, tiles=False)
        if ops is None:
            return f"{place_of(load)}: its addresses depend on what the loop computes"
        if problem := obstacle_to_fetching(load):
            return f"{place_of(load)}: {problem}"
        out.append(Fetch(load, ops, again=True, num_bytes=fetched_bytes(load, num_threads)))
    return out


def _keep_scalars_early(graph: TileGraph, loop: For) -> None:
    """Scalars of the next iteration are loaded before the copies of later ones start.

    Behind these they wait as long as they do, and all CTAs of the cluster for the last one. ptxas
    moves them there, but not past a barrier of the warp. Gradients of norms, to a copy: 32768
    columns of bf16 0.89 and 0.94 without, 0.94 and 1.00 with it; one CTA alone 0.95 to 0.98, 0.01
    more than with it.
    """
    body = loop.body
    reads = (op for op in body.ops if isinstance(op, pointer.LoadLanes) and op.slot is not None)
    first = body.ops.index(next(reads))
    if any(isinstance(op, pointer.Load) for op in body.ops[:first]):
        Builder(graph, body, first, loop.loc).add(pointer.Barrier(warp=True, loc=loop.loc))


class _Rewrite:
    """The rewrite of one loop. depth: slots, and iterations between a copy and its use."""

    def __init__(
        self, graph: TileGraph, loop: For, fetches: list[Fetch], depth: int, num_threads: int
    ) -> None:
        self.graph = graph
        self.old = loop
        self.fetches = fetches
        self.depth = depth
        self.num_threads = num_threads
        self.rings: list[Value] = []

    def run(self) -> For:
        """The loop in the place of the old one."""
        old = self.old
        assert old.parent is not None
        b = Builder(self.graph, old.parent, old.parent.ops.index(old), old.loc)
        for f in self.fetches:
            type_ = SmemType((f.num_bytes,), uint8, 0, 0)
            ring = Ring(type_, self.depth, loc=f.load.loc)
            self.rings.append(b.value(ring, f.ring_name))
        step, iv = wide(b, old.step), old.lower
        distance: Value | None = None
        room = b.value(ew.Sub(wide(b, old.upper), wide(b, old.lower)))
        for n in range(self.depth):
            index = b.value(ew.Constant(n, int32))
            far = distance if distance is not None else b.value(ew.Constant(0, int64))
            exists = b.value(ew.Compare("gt", room, far))
            self.fetch(b, iv, index, exists)
            iv = b.value(ew.Add(iv, old.step))
            distance = step if distance is None else b.value(ew.Add(distance, step))
        assert distance is not None
        end = b.value(ew.Sub(wide(b, old.upper), distance))
        loop = self.carrying_slot(b) if self.depth > 1 else old
        inside = Builder(self.graph, loop.body, 0, old.loc)
        slot = loop.carried[-1] if self.depth > 1 else inside.value(ew.Constant(0, int32))
        self.read(loop, slot)
        last = self.fetches[-1].load
        after = Builder(self.graph, loop.body, self.after_reads(loop), last.loc)
        exists = after.value(ew.Compare("lt", wide(after, loop.iv), end))
        following = loop.iv
        for _ in range(self.depth):
            following = after.value(ew.Add(following, loop.step))
        self.fetch(after, following, slot, exists, old_iv=loop.iv)
        return loop

    def fetch(
        self, b: Builder, iv: Value, index: Value, exists: Value, old_iv: Value | None = None
    ) -> None:
        """Copies of the iteration of `iv` to slot `index`, where there is one."""
        mapping = {old_iv or self.old.iv: iv}
        for f, ring in zip(self.fetches, self.rings, strict=True):
            add_copies(b, f, self.slot(b, ring, index), exists, mapping, self.num_threads)

    def slot(self, b: Builder, ring: Value, index: Value) -> Value:
        return b.value(RingSlot(ring, index), "slot") if self.depth > 1 else ring

    def carrying_slot(self, b: Builder) -> For:
        """A loop in the place of the old one that also carries the slot of its iteration."""
        old = self.old
        init = (*old.init, b.value(ew.Constant(0, int32)))
        new = For(
            old.lower, old.upper, old.step, init, old.unroll,
            old.unmasked_from, old.unmasked_until, body=Region(), loc=old.loc,
        )  # fmt: skip
        iv = new.body.add_arg(old.iv.type, old.iv.name)
        names = [*(a.name for a in old.carried), "slot"]
        carried = [new.body.add_arg(v.type, n) for v, n in zip(init, names, strict=True)]
        b.add(new)
        for op in list(old.body.ops):
            self.graph.move_to(op, new.body)
        for a, fresh in zip((old.iv, *old.carried), (iv, *carried), strict=False):
            self.graph.replace_uses(a, fresh)
        for a, r in zip(old.results, new.results, strict=False):
            r.name = a.name
            self.graph.replace_uses(a, r)
        end = new.body.terminator
        assert isinstance(end, Yield)
        last = Builder(self.graph, new.body, len(new.body.ops) - 1, old.loc)
        one, zero = (last.value(ew.Constant(n, int32)) for n in (1, 0))
        after = last.value(ew.Add(carried[-1], one))
        limit = last.value(ew.Constant(self.depth, int32))
        turned = last.value(ew.Select(last.value(ew.Compare("lt", after, limit)), after, zero))
        self.graph.replace_op(end, Yield((*end.values, turned), loc=end.loc))
        self.graph.erase(old)
        return new

    def read(self, loop: For, slot: Value) -> None:
        """Reads slots where tiles were loaded; the first one waits for its iteration's copies."""
        pending = (self.depth - 1) * len(self.fetches)
        for i, (f, ring) in enumerate(zip(self.fetches, self.rings, strict=True)):
            before = Builder(self.graph, loop.body, loop.body.ops.index(f.load), f.load.loc)
            mapping: dict[Value, Value] = {}
            regions = tuple(clone_region(r, mapping) for r in f.load.regions)
            new = f.load.rebuild(
                mapping, regions, slot=self.slot(before, ring, slot), waits=i == 0,
                pending=pending, num_threads=self.num_threads,
            )  # fmt: skip
            new.result.type = f.load.result.type
            self.graph.replace_op(f.load, new)
            self.fetches[i] = replace(f, load=new)

    def after_reads(self, loop: For) -> int:
        """The position after the last read of a slot."""
        return loop.body.ops.index(self.fetches[-1].load) + 1
