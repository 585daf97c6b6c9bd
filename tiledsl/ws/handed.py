"""Numbers of a tile that take time to find: one role finds them, and hands them on.

A search in a table, a number from memory: all consumers would look for them between two tiles,
while no product runs, and the load role while the slots of its ring run out. A thread of its own
(`search_role`) does so some tiles ahead of both, and puts what it found into a channel for each;
where the load role needs more than a slot holds, it searches itself, and hands on. What follows
from these numbers in a few instructions is computed on both sides, as long as there is room.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.debug import Assert
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import FloorDiv
from tiledsl.ir.ops.elementwise import Mod
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.analysis import Analysis
from tiledsl.ws.dependence import program_axes
from tiledsl.ws.dependence import tainted_values
from tiledsl.ws.dependence import unknown_to_loads
from tiledsl.ws.plan import Plan
from tiledsl.ws.slot_vectors import loads_of
from tiledsl.ws.slot_vectors import slot_vectors

SLOTS = 4
DRAWN_SLOTS = 1
"""Of tiles that are drawn at run time: one that is drawn early waits for a CTA that may be late."""
MOST = 4
"""Numbers that one store of 16 bytes writes."""


@dataclass(frozen=True)
class Handed:
    """A channel. values: of the tile graph. loop: in front of which all of them are known."""

    aref: Value
    values: tuple[Value, ...]
    loop: For


@dataclass(frozen=True)
class Numbers:
    """The channels of a plan.

    apart: whether a role of its own finds the numbers, else the load role does. loads: what it then
    hands on to the load role, None where that asks for nothing. drawn: whether it draws the tiles
    at run time (`told_tiles`).
    """

    consumers: Handed
    loads: Handed | None = None
    apart: bool = False
    drawn: bool = False


def handed_numbers(
    graph: TileGraph,
    builder: Builder,
    analysis: Analysis,
    plan: Plan,
    notes: list[str],
    *,
    may_draw: bool = True,
) -> Numbers | None:
    """The channels of a plan whose tiles have such numbers; notes say what has to do without.

    may_draw: whether no other role walks over the tiles.
    """
    first = analysis.loops[0].loop
    alternates = plan.ping_pong or plan.cluster_size > 1
    if not plan.persistent or alternates or first.parent is not graph.body:
        return None
    asked = _asked_by_consumers(graph, analysis)
    values, why = _chosen(graph, analysis, asked)
    if why:
        notes.append(f"the consumers look for their tile themselves: {why}")
    if not values or why:
        return None
    placed = _asked_by_loads(graph, analysis)
    more, why = _chosen(graph, analysis, placed)
    drawn = may_draw and not why and _uneven(analysis)
    drawn = drawn and all(_suffice(*found) for found in ((asked, values), (placed, more)))
    consumers = Handed(_channel(builder, "found", values, drawn=drawn), values, first)
    if why:
        notes.append(f"the load role looks for its tile itself: {why}")
        return Numbers(consumers)
    loads = Handed(_channel(builder, "place", more, drawn=drawn), more, first) if more else None
    return Numbers(consumers, loads, apart=True, drawn=drawn)


def _channel(builder: Builder, name: str, values: tuple[Value, ...], *, drawn: bool) -> Value:
    """drawn: with room for one number more, which says whether there is a tile."""
    words = SmemType((MOST,), int32, 0, 0)
    payload = (words,) * -(-(len(values) + drawn) // MOST)
    return builder.value(aref.Create(payload, DRAWN_SLOTS if drawn else SLOTS), name)


def _uneven(analysis: Analysis) -> bool:
    """Whether programs may take different times."""
    bounds = [v for f in analysis.loops for v in (f.loop.lower, f.loop.upper)]
    return any(program_axes(v) for v in bounds)


def _suffice(asked: list[Value], values: tuple[Value, ...]) -> bool:
    """Whether a role needs nothing of a tile but some numbers."""
    work, seen = list(asked), set(values)
    while work:
        v = work.pop()
        op = v.defining_op
        if v in seen or op is None:
            continue
        if isinstance(op, ProgramId):
            return False
        seen.add(v)
        if _finds(op):
            work += op.operands
            work += [o for r in op.regions for inner in r.walk() for o in inner.operands]
    return bool(values)


def _asked_by_consumers(graph: TileGraph, analysis: Analysis) -> list[Value]:
    """What all but the loads ask for."""
    loads = {o.op.id for f in analysis.loops for o in f.loads}
    inside = {o.id for op in graph.walk() if _finds(op) for r in op.regions for o in r.walk()}
    users = [o for o in graph.walk() if o.id not in loads | inside and not _finds(o)]
    return [v for op in users for v in op.operands]


def _asked_by_loads(graph: TileGraph, analysis: Analysis) -> list[Value]:
    """What loads ask for, and the loops and branches around them."""
    ops = [o for f in analysis.loops for o in loads_of((*f.loads, *slot_vectors(f)))]
    around = {op: None for o in ops for op in graph.enclosing(o)}
    return [v for op in (*ops, *around) for v in op.operands]


def _chosen(
    graph: TileGraph, analysis: Analysis, asked: list[Value]
) -> tuple[tuple[Value, ...], str]:
    """What is handed on to a role that asks for some values, or why nothing is.

    Best all that takes a search or divisions, the place in the grid included, as little of what
    follows from it as there may be; with less room, what follows; with still less, less.
    """
    searches = (For, If, While)
    if not _slow_numbers(graph, asked, searches):
        return (), ""
    divided = (*searches, FloorDiv, Mod)
    placed = (*divided, ProgramId)
    why = ""
    for slow, late in ((placed, False), (placed, True), (divided, False), (searches, False)):
        values = _slow_numbers(graph, asked, slow, late=late)
        why = _obstacle(graph, analysis, values)
        if not why:
            return values, ""
    return (), why


def _obstacle(graph: TileGraph, analysis: Analysis, values: tuple[Value, ...]) -> str:
    """Why these numbers cannot be handed on; or nothing."""
    if graph.find(Assert):
        return "assertions ask for them in every role"
    if len(values) > MOST:
        return f"{len(values)} numbers, and a slot holds {MOST}"
    ops, first = graph.body.ops, analysis.loops[0].loop
    unknown = unknown_to_loads(graph, (o.op for f in analysis.loops for o in f.loads))
    for v in values:
        op = v.defining_op
        assert op is not None
        name = v.name or "a number"
        if not _fits(v):
            return f"{name} is {v.type}, and a slot holds i32"
        if v in unknown:
            return f"{name} follows from what the loop loads"
        if ops.index(op) > ops.index(first):
            return f"{name} is found behind the loop"
    return ""


def _slow_numbers(
    graph: TileGraph, asked: list[Value], slow: tuple[type[Op], ...], *, late: bool = False
) -> tuple[Value, ...]:
    """What of slow ops and reads the values asked for need, in program order.

    late: instead of these, what follows from them and is used for something else than scalars.
    """
    work = list(asked)
    known = {r for op in graph.body.ops if _is_slow(op, slow) for r in op.results}
    if late:
        known = tainted_values(graph, known)
    found: set[Value] = set()
    seen: set[Value] = set()
    while work:
        v = work.pop()
        op = v.defining_op
        if v in seen or op is None or not _finds(op):
            continue
        seen.add(v)
        if v in known and op.parent is graph.body and (_fits(v) or not late):
            found.add(v)
        else:
            work += op.operands
    return tuple(r for op in graph.body.ops for r in op.results if r in found)


def _finds(op: Op) -> bool:
    """Whether an op only makes scalars."""
    inside = [o for r in op.regions for o in r.walk()]
    return bool(op.results) and all(
        o.effect not in (Effect.WRITE, Effect.SYNC)
        and not any(isinstance(v.type, TileType) for v in (*o.operands, *o.results))
        for o in (op, *inside)
    )


def _is_slow(op: Op, slow: tuple[type[Op], ...]) -> bool:
    """Whether an op is a read or of these kinds; to divide by a constant is quick."""
    if isinstance(op, FloorDiv | Mod) and isinstance(op.b.defining_op, Constant):
        return False
    return _finds(op) and (isinstance(op, slow) or op.effect is Effect.READ)


def _fits(v: Value) -> bool:
    """Whether a slot can hold a number."""
    return isinstance(v.type, ScalarType) and v.type.dtype == int32


def put_numbers(b: Builder, handed: Handed, values: list[Value]) -> None:
    """The side of the role that finds the numbers."""
    zeros = [b.value(Constant(0, int32)) for _ in range(room(handed) - len(values))]
    put = aref.Put(handed.aref)
    b.add(put)
    with b.at(put.body):
        b.add(Yield((*values, *zeros)))


def take_numbers(b: Builder, handed: Handed) -> dict[Value, Value]:
    """The other side: what stands for the values of the tile graph.

    A role of one thread gives the slot back at once, consumers behind the loop: all lanes have what
    they read by then.
    """
    return dict(zip(handed.values, read_numbers(b, handed), strict=False))


def read_numbers(b: Builder, handed: Handed) -> tuple[Value, ...]:
    """All numbers of the next slot."""
    get = aref.Get(handed.aref)
    b.add(get)
    numbers: list[Value] = []
    for slot in get.results:
        slot.name = handed.aref.name
        read = ReadScalars(slot, count=MOST, signed=True)
        b.add(read)
        numbers += read.results
    for old, new in zip(handed.values, numbers, strict=False):
        new.name = old.name
    return tuple(numbers)


def room(handed: Handed) -> int:
    """Numbers that a slot of a channel holds."""
    return MOST * len(aref.aref_type(handed.aref).payload)
