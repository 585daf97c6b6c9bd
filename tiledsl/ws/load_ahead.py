"""Loads of a loop's next iteration before the work of this one.

In a single role nothing else hides the time of a load. Where the addresses of the loads of a loop
follow from its induction variable, the loop carries what was loaded (ws/ahead_loops.py), or the
loads of several iterations stand in front of their work (ws/load_groups.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tiledsl.dtypes import int1
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import program
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.ahead_loops import PEELED_BYTES
from tiledsl.ws.ahead_loops import AheadLoop
from tiledsl.ws.ahead_loops import may_repeat
from tiledsl.ws.counted import count_scalars
from tiledsl.ws.load_groups import group_iterations
from tiledsl.ws.load_groups import iterations_at_once
from tiledsl.ws.row_loops import reduces
from tiledsl.ws.slices import slice_of_iteration

AHEAD_BYTES = 64
"""Bytes of a thread that may be on their way for the next iteration: 16 registers."""


@dataclass(frozen=True)
class Candidate:
    """A load and the ops of the body that its addresses, mask and filling take, in order."""

    load: pointer.Load
    slice: tuple[Op, ...]


def load_ahead(
    graph: TileGraph, region: Region, num_threads: int, *, fetches: bool = False
) -> list[str]:
    """Rewrites the innermost loops under `region`; a line for each, with the reason where not.

    fetches: whether tiles come through shared memory where a loop reduces (ws/fetch_loop.py), so
    that only scalars are loaded ahead there.
    """
    notes: list[str] = []
    if graph.find(mma.Dot):
        return notes
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        loads = [op for op in loop.body.ops if isinstance(op, pointer.Load) and _is_tile(op)]
        if not loads:
            continue
        where = loop.loc.short if loop.loc else "?"
        count_scalars(graph, loop)
        found = candidates(loop)
        if fetches and reduces(loop):
            found = [c for c in found if not _is_tile(c.load)]
            if found and not obstacle_to_order(loop, found):
                carry_ahead(graph, loop, found)
            continue
        why = _obstacle(loop, found, num_threads)
        if why:
            notes.append(f"{where}: no loads ahead of their iteration: {why}")
            continue
        num_bytes = _bytes_of_thread(found, num_threads)
        count = iterations_at_once(loop, num_bytes)
        if count > 1:
            loads = functools.partial(_loads, found)
            group_iterations(graph, loop, [c.load for c in found], loads, count)
            what = f"loads of {count} iterations at once before the work of these"
            notes.append(f"{where}: {what}")
            continue
        repeats, ahead = may_repeat(loop), _ahead(graph, loop, found)
        if not repeats or (num_bytes > PEELED_BYTES and _runs_on(loop)):
            ahead.mask()
        elif num_bytes <= PEELED_BYTES:
            ahead.peel()
        else:
            ahead.branch()
        notes.append(f"{where}: loads of the next iteration before the work of each")
    return notes


def _runs_on(loop: For) -> bool:
    """Whether a loop reduces what it loads and carries tiles, such as running maxima.

    With a path of its own for one iteration alone, that of cross entropy took longer.
    """
    return reduces(loop) and any(isinstance(v.type, TileType) for v in loop.init)


def _is_tile(load: pointer.Load) -> bool:
    return isinstance(load.pointer.type, TileType)


def candidates(loop: For) -> list[Candidate]:
    """The loads whose operands follow from the induction variable and from outside."""
    out: list[Candidate] = []
    for op in loop.body.ops:
        if isinstance(op, pointer.Load) and not op.volatile:
            found = slice_of_iteration(loop, op.operands, tiles=True)
            if found is not None:
                out.append(Candidate(op, found))
    return out


def _obstacle(loop: For, found: list[Candidate], num_threads: int) -> str:
    """Why the loads of a loop stay where they are; empty where they can move."""
    if not any(_is_tile(c.load) for c in found):
        return "addresses depend on what the loop computes"
    bits = sum(
        c.load.result.type.num_elements * c.load.result.type.dtype.bits
        for c in found
        if isinstance(c.load.result.type, TileType)
    )
    if bits > 8 * AHEAD_BYTES * num_threads:
        return f"{bits // (8 * num_threads)} bytes a thread, {AHEAD_BYTES} are the most"
    return obstacle_to_order(loop, found)


def _bytes_of_thread(found: list[Candidate], num_threads: int) -> int:
    """What the loads of an iteration take of a thread, no less than one register each."""
    total = 0
    for c in found:
        type_ = c.load.result.type
        assert isinstance(type_, ScalarType | TileType)
        count = type_.num_elements if isinstance(type_, TileType) else 1
        total += max(4, -(-count // num_threads) * max(1, type_.dtype.bits // 8))
    return total


def _ahead(graph: TileGraph, loop: For, found: list[Candidate]) -> AheadLoop:
    return AheadLoop(graph, loop, [c.load for c in found], functools.partial(_loads, found))


def obstacle_to_order(loop: For, found: list[Candidate]) -> str:
    """Why the loads of a loop may not come before what an iteration does."""
    if not counts_up(loop.step):
        return "the step may be negative"
    read = {pointer.origin_of(c.load.pointer) for c in found}
    for op in loop.body.walk():
        if op.effect is Effect.SYNC:
            return "the loop has a barrier"
        if op.effect is Effect.WRITE:
            written = pointer.origin_of(op.pointer) if isinstance(op, pointer.Store) else ""
            if not written or not all(read) or written in read:
                return "the loop may write what it loads"
    return ""


@deep
def counts_up(step: Value) -> bool:
    """Whether the step of a loop is known to be positive."""
    op = step.defining_op
    if isinstance(op, ew.Constant):
        return op.value > 0
    if isinstance(op, ew.Mul):
        return counts_up(op.a) and counts_up(op.b)
    return isinstance(op, program.NumPrograms)


def carry_ahead(graph: TileGraph, loop: For, found: list[Candidate]) -> None:
    """Puts a loop that carries what was loaded in the place of `loop`."""
    _ahead(graph, loop, found).mask()


def _loads(
    found: list[Candidate],
    b: Builder,
    mapping: dict[Value, Value],
    inside: Value | None,
    pointers: list[Value | None],
) -> list[pointer.Load]:
    """The loads of one iteration, with what they need.

    inside: whether that iteration exists; None where it does. pointers: those that are known.
    """
    done: set[int] = set()
    out: list[pointer.Load] = []
    for n, c in enumerate(found):
        for op in c.slice:
            if op.id not in done:
                done.add(op.id)
                b.add(clone_op(op, mapping))
        load = c.load
        mask = None if load.mask is None else mapping.get(load.mask, load.mask)
        if inside is not None:
            exists = _as(b, inside, load)
            mask = exists if mask is None else b.value(ew.And(mask, exists))
        known = pointers[n] if pointers else None
        made = pointer.Load(
            mapping.get(load.pointer, load.pointer) if known is None else known,
            mask,
            None if load.other is None else mapping.get(load.other, load.other),
            hint=load.hint,
            loc=load.loc,
            names=(load.result.name,),
        )
        b.add(made)
        out.append(made)
    return out


def _as(b: Builder, condition: Value, load: pointer.Load) -> Value:
    """A scalar condition for every element of a load."""
    type_ = load.pointer.type
    assert condition.type == ScalarType(int1)
    return b.value(tile.Splat(condition, type_.shape)) if isinstance(type_, TileType) else condition
