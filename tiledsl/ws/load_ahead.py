"""Loads of a loop's next iteration before the work of this one.

In a single role nothing else hides the time of a load. Where the addresses of the loads of a loop
follow from its induction variable, the loop carries what was loaded: the loads stand at the top of
the body, one iteration ahead, and those of the first iteration before the loop. A load beyond the
end is masked off.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tiledsl.dtypes import int1
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
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.counted import count_scalars
from tiledsl.ws.load_groups import group_iterations
from tiledsl.ws.load_groups import iterations_at_once
from tiledsl.ws.row_loops import reduces
from tiledsl.ws.slices import slice_of_iteration

AHEAD_BYTES = 64
"""Bytes of a thread that may be on their way for the next iteration: 16 registers."""
GROUP_BYTES = 16
"""Bytes of a thread for which several iterations load together."""


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
        count = iterations_at_once(loop, _bytes_of_thread(found, num_threads), GROUP_BYTES)
        if count > 1:
            loads = functools.partial(_loads_of, found)
            group_iterations(graph, loop, [c.load.result for c in found], loads, count)
            what = f"loads of the next {count} iterations before the work of as many"
            notes.append(f"{where}: {what}")
            continue
        carry_ahead(graph, loop, found)
        notes.append(f"{where}: loads of the next iteration before the work of each")
    return notes


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


def _loads_of(
    found: list[Candidate], b: Builder, mapping: dict[Value, Value], inside: Value
) -> list[Value]:
    return _loads(b, found, mapping, inside)


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


def counts_up(step: Value) -> bool:
    """Whether the step of a loop is known to be positive."""
    op = step.defining_op
    if isinstance(op, ew.Constant):
        return op.value > 0
    if isinstance(op, ew.Mul):
        return counts_up(op.a) and counts_up(op.b)
    return isinstance(op, program.NumPrograms)


def carry_ahead(graph: TileGraph, old: For, found: list[Candidate]) -> None:
    """Puts a loop that carries what was loaded in the place of `old`."""
    parent = old.parent
    assert parent is not None
    before = Builder(graph, parent, parent.ops.index(old), old.loc)
    first = before.value(ew.Compare("lt", old.lower, old.upper))
    init = [*old.init, *_loads(before, found, {old.iv: old.lower}, first)]
    new = For(
        old.lower, old.upper, old.step, tuple(init), old.unroll,
        old.unmasked_from, old.unmasked_until, body=Region(),
    )  # fmt: skip
    new.loc = old.loc
    iv = new.body.add_arg(old.iv.type, old.iv.name)
    names = [a.name for a in old.carried] + [c.load.result.name for c in found]
    carried = [new.body.add_arg(v.type, n) for v, n in zip(init, names, strict=True)]
    graph.insert_before(old, new)
    for op in list(old.body.ops):
        graph.move_to(op, new.body)
    for a, fresh in zip((old.iv, *old.carried), (iv, *carried), strict=False):
        graph.replace_uses(a, fresh)
    top = Builder(graph, new.body, 0, old.loc)
    following = top.value(ew.Add(iv, old.step))
    inside = top.value(ew.Compare("lt", following, old.upper))
    ahead = _loads(top, found, {iv: following}, inside)
    for c, value in zip(found, carried[len(old.carried) :], strict=True):
        graph.replace_uses(c.load.result, value)
        graph.erase(c.load)
    for op in reversed([op for op in new.body.ops if any(op in c.slice for c in found)]):
        if not any(graph.has_uses(v) for v in op.results):
            graph.erase(op)
    end = new.body.terminator
    assert isinstance(end, Yield)
    graph.replace_op(end, Yield((*end.values, *ahead), loc=end.loc))
    for a, r in zip(old.results, new.results, strict=False):
        r.name = a.name
        graph.replace_uses(a, r)
    graph.erase(old)


def _loads(
    b: Builder, found: list[Candidate], mapping: dict[Value, Value], inside: Value
) -> list[Value]:
    """The loads of one iteration, with what they need, where that iteration exists."""
    done: set[int] = set()
    out: list[Value] = []
    for c in found:
        for op in c.slice:
            if op.id not in done:
                done.add(op.id)
                b.add(clone_op(op, mapping))
        load = c.load
        mask = _as(b, inside, load)
        if load.mask is not None:
            mask = b.value(ew.And(mapping.get(load.mask, load.mask), mask))
        made = pointer.Load(
            mapping.get(load.pointer, load.pointer),
            mask,
            None if load.other is None else mapping.get(load.other, load.other),
            hint=load.hint,
            loc=load.loc,
        )
        out.append(b.value(made, load.result.name))
    return out


def _as(b: Builder, condition: Value, load: pointer.Load) -> Value:
    """A scalar condition for every element of a load."""
    type_ = load.pointer.type
    assert condition.type == ScalarType(int1)
    return b.value(tile.Splat(condition, type_.shape)) if isinstance(type_, TileType) else condition
