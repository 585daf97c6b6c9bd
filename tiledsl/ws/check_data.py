"""Branches of a MACHINE program that follow from its data, which the proof knows nothing of.

What decides them is computed from tiles, or is an old element of an atomic operation. A branch or
loop in which nothing synchronises is no part of the program that is run. Of other branches both
sides are taken: by all threads that come there, by none, and in turns. A loop whose trips follow
from data may not synchronise.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Container
from typing import NamedTuple

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.control import steering_scalars
from tiledsl.ir.types import TileType
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import Thread
from tiledsl.ws.dependence import tainted_values

NEVER, ALWAYS, IN_TURNS = range(3)
"""How the branches are taken that follow from data."""
CONTROL = (For, If, While)


class Data(NamedTuple):
    """What of a program follows from its data.

    values: scalars. left_out: ops, those in branches and loops that do not matter. chosen: branches
    of which both sides are run.
    """

    values: set[Value]
    left_out: set[Op]
    chosen: tuple[If, ...]


NO_DATA = Data(set(), set(), ())


def follows_from_data(
    graph: TileGraph,
    ops: list[Op],
    needed: Collection[Value],
    rules: Container[type[Op]],
    flight: set[Value],
) -> Data:
    """What of the ops of a program, in order, follows from data; needed: scalars that decide.

    Raises:
        Fault: a loop synchronises whose trips do.
    """
    sources = [v for v in needed if _is_made_from_data(v, rules)]
    if not sources:
        return NO_DATA
    values = tainted_values(graph, sources)
    left_out, chosen = set[Op](), list[If]()
    for op in ops:
        if op in left_out or not isinstance(op, CONTROL):
            continue
        if not any(v in values for v in steering_scalars(op)):
            continue
        inside = [o for r in op.regions for o in r.walk()]
        if _is_quiet(op, inside, rules, flight):
            left_out.update((op, *inside))
        elif isinstance(op, If):
            chosen.append(op)
        else:
            what = "how often a loop runs that synchronises follows from data"
            raise Fault("liveness", what, op)
    return Data(values, left_out, tuple(chosen))


def quiet_loops(
    ops: list[Op], needed: Collection[Value], rules: Container[type[Op]], flight: set[Value]
) -> set[Op]:
    """Loops, and what is in them, that neither synchronise nor make a scalar that is needed."""
    out = set[Op]()
    for op in ops:
        if op in out or not isinstance(op, For) or any(r in needed for r in op.results):
            continue
        inside = [o for r in op.regions for o in r.walk()]
        if _is_quiet(op, inside, rules, flight):
            out.update((op, *inside))
    return out


def _is_quiet(op: Op, inside: list[Op], rules: Container[type[Op]], flight: set[Value]) -> bool:
    """Whether nothing in a branch or loop matters to those who synchronise."""
    return not flight.intersection(op.results) and not any(
        type(o) in rules or o.effect is Effect.SYNC or flight.intersection(o.operands)
        for o in inside
    )


def _is_made_from_data(v: Value, rules: Container[type[Op]]) -> bool:
    """Whether a scalar comes from tiles, or is an old element of memory."""
    op = v.defining_op
    if op is None or type(op) in rules or isinstance(op, (*CONTROL, Yield)):
        return False
    return op.effect is Effect.WRITE or any(isinstance(o.type, TileType) for o in op.operands)


def refuse_data(needed: Collection[Value], values: set[Value]) -> None:
    """What synchronisation depends on otherwise may not follow from data. Raises Fault."""
    for v in needed if values else ():
        if v in values:
            what = f"how threads synchronise depends on {v.name or 'a number'}, made from data"
            raise Fault("liveness", what, v.defining_op)


def is_taken(way: int, t: Thread, number: int, time: int) -> bool:
    """Whether a thread takes a branch that follows from data.

    number: of the branch. time: how often the thread has come to it. Warpgroups and CTAs with tiles
    of their own differ.
    """
    if way != IN_TURNS:
        return way == ALWAYS
    rank, warpgroup = t.place
    return bool((number + time + rank + (warpgroup if t.role.instances > 1 else 0)) % 2)
