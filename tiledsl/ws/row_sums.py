"""Sums (and extrema) of rows of loaded tiles that a dot loop makes beside its products."""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Max
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.reduce import Reduce


def row_sums(graph: TileGraph, loop: For) -> frozenset[int]:
    """Ids of the ops behind carried values that only add up rows of tiles, or find extrema.

    c += sum(f(x), 1), whole or in parts, where nothing else reads what lies in between.
    """
    found: set[int] = set()
    last = loop.body.terminator
    assert isinstance(last, Yield)
    for arg, end in zip(loop.carried, last.values, strict=True):
        update = end.defining_op
        if not isinstance(update, Add | Max | Min) or arg not in (update.a, update.b):
            continue
        total = (update.b if update.a is arg else update.a).defining_op
        if not isinstance(total, Reduce) or 0 in total.axes or total.parent is not loop.body:
            continue
        chain, work = {update.id}, [total]
        while work:
            op = work.pop()
            if op.parent is not loop.body or op.id in chain or isinstance(op, Load):
                continue
            chain.add(op.id)
            work += [made for v in op.operands if (made := v.defining_op) is not None]
        found |= chain
    inside = [op for op in loop.body.ops if op.id in found]
    pure = all(op.effect is Effect.PURE for op in inside)
    users = {u.op.id for op in inside for r in op.results for u in graph.users(r)}
    end = loop.body.terminator
    alone = users <= found | ({end.id} if end is not None else set())
    return frozenset(found) if pure and alone else frozenset()
