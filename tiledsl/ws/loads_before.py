"""Small loads behind a short loop, asked for in front of it.

The copies of a loop of few iterations all start before it, and its program ends soon after: what is
loaded behind the loop, a row of scales or decays, would be waited for as long as its copies were.
It comes with them instead, and takes a few registers meanwhile.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.types import TileType

MOST_ELEMENTS = 256
"""Elements of a load: as columns of an accumulator a thread holds a quarter of them."""
MOST_TOTAL = 512
"""Elements of all loads of a loop."""


def load_before(graph: TileGraph, loop: For) -> list[str]:
    """Moves loads that follow a loop in its region in front of it; a line for each.

    They pass nothing that writes to memory or waits for other threads.
    """
    if loop.parent is None or any(_orders(op) for op in loop.body.walk()):
        return []
    ops = loop.parent.ops
    behind = ops[ops.index(loop) + 1 :]
    notes: list[str] = []
    room = MOST_TOTAL
    for op in behind:
        if _orders(op) or op.regions:
            break
        size = _size(op)
        needed = _needed(loop, op, behind) if 0 < size <= min(MOST_ELEMENTS, room) else None
        if needed is None:
            continue
        for other in (*needed, op):
            graph.move_before(loop, other)
        room -= size
        at = op.loc.short if op.loc else "?"
        notes.append(
            f"{at}: {op.results[0].name or 'a tile'} loaded before the loop in front of it"
        )
    return notes


def _orders(op: Op) -> bool:
    """Whether loads must not pass an op."""
    return op.effect in (Effect.WRITE, Effect.SYNC)


def _size(op: Op) -> int:
    """Elements of what an op loads; 0 of other ops, and of loads that stay where they are."""
    if not isinstance(op, pointer.Load | memory.Load) or getattr(op, "volatile", False):
        return 0
    type_ = op.results[0].type
    return type_.num_elements if isinstance(type_, TileType) else 1


def _needed(loop: For, op: Op, behind: list[Op]) -> list[Op] | None:
    """What an op takes from behind the loop, in order; None where that is more than math."""
    needed: set[int] = set()
    todo: list[Value] = list(op.operands)
    while todo:
        made = todo.pop().defining_op
        if made is loop:
            return None
        if made is None or made.id in needed or made not in behind:
            continue
        if made.effect is not Effect.PURE or made.regions:
            return None
        needed.add(made.id)
        todo += made.operands
    return [other for other in behind if other.id in needed]
