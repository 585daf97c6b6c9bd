"""Loads of the program after this one, fetched into shared memory while this one computes.

In a loop over programs (ws/stay.py) each thread copies what it will read itself, with `cp.async` to
places of its own: it waits for nobody, and registers are free meanwhile. What all programs load
from the same place is fetched once, behind what the first program loads, which need not wait for it
before it reads it. One place serves all programs, since a thread reads it before it starts the next
copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

from tiledsl.dtypes import uint8
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.graph import clone_region
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.pointer_copy import COPY_BYTES
from tiledsl.ir.ops.pointer_copy import CopyCommit
from tiledsl.ir.ops.pointer_copy import FetchLanes
from tiledsl.ir.ops.pointer_copy import fetched_bytes
from tiledsl.ir.ops.role_programs import SURE_CTAS
from tiledsl.ir.ops.smem_ring import Ring
from tiledsl.ir.types import SmemType
from tiledsl.ws.scratch import requested_bytes
from tiledsl.ws.slices import scalar_slice
from tiledsl.ws.stay import draw_following
from tiledsl.ws.stay import programs_of
from tiledsl.ws.stay import send_after
from tiledsl.ws.stay import staying_loop

HINTS = ("", "ca", "cg")
"""Cache operators under which a load may come through a copy."""


@dataclass(frozen=True)
class Fetch:
    """A load of a loop's body with the ops of the body that its addresses take.

    again: whether they change from program to program.
    """

    load: pointer.LoadLanes
    slice: tuple[Op, ...]
    again: bool
    num_bytes: int

    @property
    def is_filled(self) -> bool:
        """Whether fillings are fetched too, so that no mask is asked for when it is read."""
        return not self.again and not self.load.shifted

    @property
    def ring_name(self) -> str:
        """The name of its place: of the tile, or else of the argument that is loaded."""
        return f"{self.load.result.name or origin(self.load) or 'tile'}_ring"


@dataclass
class Found:
    """fetches: in the order of the body. notes: a line for each load that stays as it is."""

    fetches: list[Fetch] = field(default_factory=list[Fetch])
    notes: list[str] = field(default_factory=list[str])


def fetch_ahead(
    graph: TileGraph, region: Region, num_threads: int, room: int, num_ctas: int
) -> tuple[bool, list[str]]:
    """Rewrites the loop over programs under `region`.

    room: bytes of shared memory of a CTA for what its threads fetch.
    Returns whether something is fetched ahead that changes from program to program, and notes.
    """
    loop = staying_loop(region)
    if loop is None:
        return False, []
    meeting = next((op for op in loop.body.ops if requested_bytes(op)), None)
    if meeting is None:
        return False, ["no CTA stays for the next program: its warps do not wait for each other"]
    found = _find(loop, num_threads, room)
    if not any(f.again for f in found.fetches):
        return False, found.notes
    send_after(graph, loop, meeting, num_ctas)
    _rewrite(graph, loop, found.fetches, num_threads)
    if num_ctas > SURE_CTAS:
        draw_following(graph, loop, num_ctas)
    return True, found.notes


def _find(loop: While, num_threads: int, room: int) -> Found:
    """What fits, first what changes from program to program."""
    out = Found()
    candidates: list[Fetch] = []
    for load in [op for op in loop.body.ops if isinstance(op, pointer.LoadLanes)]:
        made = _candidate(loop, load, num_threads)
        if isinstance(made, Fetch):
            candidates.append(made)
        else:
            out.notes.append(f"{place_of(load)}: not fetched ahead: {made}")
    for c in sorted(candidates, key=lambda c: not c.again):
        if c.num_bytes > room:
            out.notes.append(
                f"{place_of(c.load)}: not fetched ahead: {c.num_bytes} bytes, {room} are left"
            )
            continue
        room -= c.num_bytes
        out.fetches.append(c)
    order = {op.id: i for i, op in enumerate(loop.body.ops)}
    out.fetches.sort(key=lambda c: order[c.load.id])
    return out


def place_of(op: Op) -> str:
    """Where an op stands in the source."""
    return op.loc.short if op.loc else "?"


def obstacle_to_fetching(load: pointer.LoadLanes) -> str:
    """Why a load cannot come through copies; empty where it can."""
    if load.hint not in HINTS:
        return "it asks for a cache operator"
    width = load.width * load.dtype.bytes
    return "" if width in COPY_BYTES else f"{width} bytes at once"


def _candidate(loop: While, load: pointer.LoadLanes, num_threads: int) -> Fetch | str:
    """How a load is fetched, or why it is not."""
    if problem := obstacle_to_fetching(load):
        return problem
    found = _slice(loop, load)
    if found is None:
        return "its addresses depend on what the program computes"
    ops, again = found
    if _may_be_written(loop, load, everywhere=not again):
        return "the program may write it"
    return Fetch(load, ops, again, fetched_bytes(load, num_threads))


def _slice(loop: While, load: pointer.LoadLanes) -> tuple[tuple[Op, ...], bool] | None:
    """The scalar ops of the body that a load takes, and whether they depend on the program."""
    ops = scalar_slice(loop.body, load.inputs)
    if ops is None:
        return None
    now = loop.body.args[0]
    return ops, any(now in values for values in (load.inputs, *(op.operands for op in ops)))


def _may_be_written(loop: While, load: pointer.LoadLanes, *, everywhere: bool) -> bool:
    """Whether the program may write, before the load or everywhere, what the load reads."""
    read = origin(load)
    for op in loop.body.ops:
        if op is load and not everywhere:
            return False
        if op.effect is Effect.WRITE:
            written = origin(op)
            if not read or not written or read == written:
                return True
    return False


def origin(op: Op) -> str:
    """The argument that a load or a store goes to; empty where that is not known."""
    if isinstance(op, pointer.Load | pointer.Store):
        return pointer.origin_of(op.pointer) or ""
    if not isinstance(op, pointer.LoadLanes | pointer.StoreLanes):
        return ""
    end = op.regions[0].terminator
    assert end is not None
    value = end.operands[0]
    while (made := value.defining_op) is not None and made.operands:
        if not pointer.is_pointer(made.operands[0]):
            return ""
        value = made.operands[0]
    if value.owner is not op.regions[0] or value.index >= len(op.inputs):
        return ""
    return pointer.origin_of(op.inputs[value.index]) or ""


def _rewrite(graph: TileGraph, loop: While, fetches: list[Fetch], num_threads: int) -> None:
    """The first program's fetches before the loop, the next one's after the last of its loads.

    What is read behind these is waited for where it is read first. Each fetch is a group of copies;
    a wait leaves so many of the latest ones under way as follow in all programs at least.
    """
    assert loop.parent is not None
    before = Builder(graph, loop.parent, loop.parent.ops.index(loop), fetches[0].load.loc)
    now, following = loop.body.args
    count = programs_of(loop)
    exists = before.value(ew.Compare("lt", loop.init[0], count))
    last = [f for f in fetches if f.again][-1].load
    start = loop.body.ops.index(last) + 1
    late = [f for f in fetches if loop.body.ops.index(f.load) >= start]
    fetches = [f for f in fetches if f not in late] + late
    slots: list[Value] = []
    done: dict[Value, Value] = {now: loop.init[0]}
    for f in fetches:
        type_ = SmemType((f.num_bytes,), uint8, 0, 0)
        slots.append(before.value(Ring(type_, 1, loc=f.load.loc), f.ring_name))
        add_copies(before, f, slots[-1], exists, done, num_threads)
    after = Builder(graph, loop.body, start, last.loc)
    inside = after.value(ew.Compare("lt", following, count))
    ahead: dict[Value, Value] = {now: following}
    for f, slot in zip(fetches, slots, strict=True):
        if f.again:
            add_copies(after, f, slot, inside, ahead, num_threads)
    for _ in late:  # so that the same numbers of groups follow in each program
        after.add(CopyCommit())
    waits = {fetches[0].load.id: len(late)}
    if late:
        waits[late[0].load.id] = len(late) + sum(f.again for f in fetches)
    for f, slot in zip(fetches, slots, strict=True):
        mapping: dict[Value, Value] = {}
        regions = tuple(clone_region(r, mapping) for r in f.load.regions)
        new = f.load.rebuild(
            mapping,
            regions,
            slot=slot,
            waits=f.load.id in waits,
            pending=waits.get(f.load.id, 0),
            num_threads=num_threads,
            filled_slot=f.is_filled,
        )
        new.result.type = f.load.result.type
        graph.replace_op(f.load, new)


def add_copies(
    b: Builder,
    fetch: Fetch,
    slot: Value,
    when: Value,
    mapping: dict[Value, Value],
    num_threads: int,
) -> None:
    """Adds the copies of a load; mapping: other values, extended by those that addresses take."""
    for op in fetch.slice:
        if op.results[0] not in mapping:
            b.add(clone_op(op, mapping))
    load, inner = fetch.load, dict(mapping)
    body = clone_region(load.body, inner)
    changed = ("hint", "waits", "pending", "num_threads", "filled_slot", "segment")
    kept = {k: v for k, v in load.attributes.items() if k not in changed}
    inputs = tuple(mapping.get(v, v) for v in load.inputs)
    b.add(
        FetchLanes(
            inputs=inputs, slot=slot, when=when, num_threads=num_threads, body=body, loc=load.loc,
            filled_slot=fetch.is_filled,
            **kept,
        )
    )  # fmt: skip
