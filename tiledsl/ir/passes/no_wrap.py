"""Marks indexes that count up without wrapping: a scalar plus an arange, with room for it.

Comparing such an index with something is a question of how many of its elements come first, which
one number answers for all of them (`ws/index_masks.py`).
"""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import TileType
from tiledsl.target import Target

LARGEST = 2**31 - 1
VIEWS = (tile.Broadcast, tile.ExpandDims, tile.Transpose, Hint)


@register_pass("no-wrap", consumes=Level.TILE, produces=Level.TILE)
def no_wrap(graph: TileGraph, target: Target) -> PassReport:
    """Sets `no_wrap` on sums of a scalar and an arange that stay inside of int32.

    The scalar is a constant, or the variable of a loop whose step is no shorter than the arange:
    the loop itself computes the next value. Constants may be added to it.
    """
    del target
    changes = 0
    for op in graph.find(ew.Add):
        type_ = op.result.type
        if op.no_wrap or not isinstance(type_, TileType) or type_.dtype != int32:
            continue
        found = index_parts(op)
        if found is not None and found[1].end - 1 <= room_above(found[0]):
            graph.replace_op(op, op.rebuild({}, no_wrap=True))
            changes += 1
    return PassReport("no-wrap", changes)


def index_parts(op: ew.Add) -> tuple[Value, tile.Arange] | None:
    """The scalar and the arange that a tile is the sum of; the arange begins at 0."""
    a, b = _seen_through(op.a), _seen_through(op.b)
    for x, y in ((a, b), (b, a)):
        if isinstance(x, tile.Splat) and isinstance(y, tile.Arange) and y.start == 0:
            return x.a, y
    return None


def _seen_through(value: Value) -> object:
    """What makes a tile's elements, behind ops that only move them."""
    op = value.defining_op
    while isinstance(op, VIEWS):
        op = op.a.defining_op
    return op


@deep
def room_above(value: Value) -> int:
    """What may be added to a scalar at least before it wraps."""
    op = value.defining_op
    match op:
        case ew.Constant():
            return LARGEST - int(op.value)
        case Hint():
            return room_above(op.a)
        case ew.Min():
            return max(room_above(op.a), room_above(op.b))
        case ew.Add():
            for x, y in ((op.a, op.b), (op.b, op.a)):
                number = y.defining_op
                if isinstance(number, ew.Constant) and number.value >= 0:
                    return max(0, room_above(x) - int(number.value))
            return 0
        case _:
            return _room_in_loop(value)


def _room_in_loop(value: Value) -> int:
    loop = value.owner.parent if isinstance(value.owner, Region) else None
    if not isinstance(loop, For) or value is not loop.iv:
        return 0
    step = loop.step.defining_op
    return max(0, int(step.value)) if isinstance(step, ew.Constant) else 0
