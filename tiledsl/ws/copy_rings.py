"""Which loads of a loop come through rings in shared memory, by asynchronous copies of the threads.

In a single role nothing else hides the time of the loads that feed a dot. A tile of pointers whose
neighbours lie side by side is copied iterations ahead of its use; where it lies in shared memory as
the tensor core wants it, no register sees it. What an address takes may change with the loop, be
carried by it, or be loaded itself, but must not depend on what the loop computes from its tiles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.constants import trip_count
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.memory_base import Base
from tiledsl.ir.types import TileType
from tiledsl.ws.copies_in_place import copy_in_place
from tiledsl.ws.copy_loop import CopyLoop
from tiledsl.ws.copy_loop import RingLoad
from tiledsl.ws.copy_loop import dot_uses
from tiledsl.ws.copy_loop import writes_operands
from tiledsl.ws.dot_operands import is_promoted
from tiledsl.ws.dot_shapes import shape_of_dot
from tiledsl.ws.late_copies import late_copies_pay
from tiledsl.ws.likely_trips import likely_trips
from tiledsl.ws.load_ahead import counts_up
from tiledsl.ws.loads_before import load_before
from tiledsl.ws.ring_loads import RingLimits
from tiledsl.ws.ring_loads import TileLoad
from tiledsl.ws.ring_loads import needed_ops
from tiledsl.ws.ring_loads import ring_candidate
from tiledsl.ws.warp_dots import warp_dot

NOT_COPIED = "is not copied ahead of its iteration"
"""What notes say of a load, before the reason."""
LATE = "copies go to the slot that was just read, so that one less suffices"
FLIGHT_SLOTS = 4
"""Slots from which on a product stays in flight over the end of an iteration: it still reads one,
and of three that leaves too few for the copies."""


def copy_rings(graph: TileGraph, region: Region, limits: RingLimits) -> list[str]:
    """Rewrites the innermost loops with dots under `region`.

    Returns a line for each load, with the reason where it has no ring.
    """
    notes: list[str] = []
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        inner = list(loop.body.walk())
        if any(isinstance(op, For | While) for op in inner):
            continue
        loads = [op for op in inner if _is_tile_load(op)]
        if not loads or not any(isinstance(op, mma.Dot) for op in inner):
            continue
        if limits.depth < 2:
            notes.append(
                f"{_place(loop)}: what the loop loads {NOT_COPIED}: a ring needs two slots"
            )
            continue
        facts = axis_facts(region, graph.facts.get("divisors", {}))
        made, why = _decide(graph, loop, loads, facts, limits)
        notes += why
        if made is not None:
            notes += made.describe()
            if made.is_whole:
                notes += load_before(graph, loop)
            made.rewrite(graph)
        else:
            notes += _in_place(graph, loop, loads, facts, limits)
    return notes


def _in_place(
    graph: TileGraph, loop: For, loads: list[TileLoad], facts: AxisFacts, limits: RingLimits
) -> list[str]:
    """Loads of a loop without rings that stand under an if; a line for each that is copied there.

    In a loop with rings their groups would be taken for those of the rings.
    """
    found: list[RingLoad] = []
    for load in loads if not _loop_problem(loop) else ():
        if load.parent is loop.body or not load.parent:
            continue
        name = load.result.name or _source(graph, load)
        made = ring_candidate(graph, loop, load, facts, limits, is_ahead=False)
        if isinstance(made, RingLoad):
            found.append(replace(made, name=name))
    origins = {read_argument(graph, c.load.pointer) for c in found}
    return copy_in_place(graph, found) if found and not _order_problem(graph, loop, origins) else []


def _place(op: Op) -> str:
    return op.loc.short if op.loc else "?"


def _is_tile_load(op: Op) -> TypeGuard[TileLoad]:
    return isinstance(op, pointer.Load | memory.Load) and isinstance(op.result.type, TileType)


def _decide(
    graph: TileGraph, loop: For, loads: list[TileLoad], facts: AxisFacts, limits: RingLimits
) -> tuple[CopyLoop | None, list[str]]:
    """What is done with a loop, and why loads stay as they are."""
    problem = _loop_problem(loop)
    if problem:
        return None, [f"{_place(loop)}: what the loop loads {NOT_COPIED}: {problem}"]
    by_warps = warp_dot(graph, loop, limits.num_warps)
    limits = replace(limits, by_warps=by_warps)
    notes: list[str] = []
    found: list[RingLoad] = []
    through = [op for op in loads if isinstance(op, pointer.Load)]
    slices = [made for load in through if (made := needed_ops(loop, [load])) is not None]
    indexes = {op.id for ops, _ in slices for op in ops if isinstance(op, pointer.Load)}
    for load in loads:
        if load.id in indexes:
            continue
        name = load.result.name or _source(graph, load)
        made = ring_candidate(graph, loop, load, facts, limits)
        if isinstance(made, RingLoad):
            found.append(replace(made, name=name))
        else:
            name = name or "a tile"
            notes.append(f"{_place(load)}: {name} {NOT_COPIED}: {made}")
    if not found:
        return None, notes
    ops, state = needed_ops(loop, [c.load for c in found]) or ((), ())
    used = tuple(op for op in ops if isinstance(op, pointer.Load))
    origins = {read_argument(graph, op.pointer) for op in (*(c.load for c in found), *used)}
    problem = _order_problem(graph, loop, origins)
    if problem:
        return None, [*notes, f"{_place(loop)}: what the loop loads {NOT_COPIED}: {problem}"]
    if by_warps is not None and not any(c.is_direct for c in found):
        by_warps = None
    trips = trip_count(loop) or 0
    dot = _dot_in_flight(graph, loop, found, limits)
    likely = likely_trips(graph, loop) if dot is not None and not trips else 0
    # Copies that start at the end of an iteration have a slot for each of so few.
    is_short = 0 < likely <= max(2, limits.depth - 1)
    deep = limits.depth >= FLIGHT_SLOTS or 0 < trips <= limits.depth
    dot = dot if deep and not is_short else None
    direct = {c.load.result for c in found if c.is_direct}
    writes = writes_operands(loop, direct) if by_warps is None else []
    late = dot is None and (any(writes) or is_short or late_copies_pay(graph, found, limits))
    # A late copy goes to the slot that was just read, so that one slot less suffices.
    depth = max(2, limits.depth - 1) if late else limits.depth
    if is_short:
        depth = max(2, likely)
    is_whole = 0 < trips <= depth
    if is_whole:  # more slots than iterations would stay empty
        depth, late = trips, False
    why = "one for each iteration" if is_whole else LATE * late
    why = "one for each of its few likely iterations" if is_short else why
    notes += _fewer(loop, depth, limits, why)
    plan = CopyLoop(
        loop, tuple(found), ops, used, state, depth, dot, limits.groups,
        late=late, is_fenced=by_warps is not None or (late and any(writes[:1])), by_warps=by_warps,
        is_whole=is_whole,
    )  # fmt: skip
    return plan, notes


def _fewer(loop: For, depth: int, limits: RingLimits, why: str) -> list[str]:
    """What is said of rings with fewer slots than they may have."""
    if depth >= limits.depth:
        return []
    return [f"{_place(loop)}: {depth} slots instead of {limits.depth}: {why}"]


# ---------------------------------------------------------------------- the loop
def _loop_problem(loop: For) -> str:
    if not counts_up(loop.step):
        return "the step may be negative"
    if any(op.effect is Effect.SYNC for op in loop.body.walk()):
        return "the loop has a barrier"
    return ""


def _order_problem(graph: TileGraph, loop: For, origins: set[str | None]) -> str:
    """Loads must not pass a store that may write what they read."""
    for op in loop.body.walk():
        if op.effect is Effect.WRITE:
            written = written_argument(graph, op)
            if not written or not all(origins) or written in origins:
                return "the loop may write what it loads"
    return ""


def written_argument(graph: TileGraph, op: Op) -> str | None:
    """The argument that a store writes to; None or empty where that is not known."""
    if isinstance(op, memory.Store):
        return _argument(graph, op.tensor)
    return read_argument(graph, op.pointer) if isinstance(op, pointer.Store) else ""


def _source(graph: TileGraph, load: TileLoad) -> str:
    """The argument that a load reads, empty where that is not known."""
    if isinstance(load, memory.Load):
        return _argument(graph, load.tensor)
    return read_argument(graph, load.pointer) or ""


def read_argument(graph: TileGraph, at: Value) -> str | None:
    """As pointer.origin_of, for blocks of tensors too."""
    op = at.defining_op
    while op is not None and op.operands and pointer.is_pointer(op.operands[0]):
        op = op.operands[0].defining_op
    return _argument(graph, op.tensor) if isinstance(op, Base) else pointer.origin_of(at)


def _argument(graph: TileGraph, tensor: Value) -> str:
    """The argument behind a tensor, which may be the view of a pointer."""
    views = {view.name: view.pointer for view in graph.facts.get("views", ())}
    return views.get(tensor.name, tensor.name) if tensor.defining_op is None else ""


def _dot_in_flight(
    graph: TileGraph, loop: For, found: list[RingLoad], limits: RingLimits
) -> mma.Dot | None:
    """The one dot of a loop that adds to a carried value, where both sides are read from rings.

    Its result is a whole number of instructions.
    """
    dots = [op for op in loop.body.walk() if isinstance(op, mma.Dot)]
    if len(dots) != 1 or dots[0].parent is not loop.body:
        return None
    (dot,) = dots
    direct = [c.load for c in found if c.is_direct]
    sides = {side for load in direct for user, side, _ in dot_uses(graph, load) if user is dot}
    end = loop.body.terminator
    assert isinstance(end, Yield)
    if sides != {0, 1} or dot.acc not in loop.carried or is_promoted(dot):
        return None
    shape, acc = shape_of_dot(dot, limits.groups), dot.acc.type
    if not isinstance(acc, TileType) or acc.shape != (shape.M, shape.N):
        return None
    at = loop.carried.index(dot.acc)
    users = [u.op for u in (*graph.users(dot.acc), *graph.users(dot.result))]
    return dot if end.values[at] is dot.result and users == [dot, end] else None
