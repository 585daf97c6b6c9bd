"""Stores through pointers of tiles that lie as accumulators: rows of vectors, whole sectors.

The lanes of a warp exchange its rows (ir/warp_rows.py), and addresses are made for the new places.
Where rows are stored by an index, the index moves along: it is small.
"""

from __future__ import annotations

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.types import TileType
from tiledsl.ir.warp_rows import warp_rows
from tiledsl.ws.access_layouts import access_cost
from tiledsl.ws.free import VIEWS
from tiledsl.ws.free import FreeTiles
from tiledsl.ws.free import is_index
from tiledsl.ws.links import links

EXCHANGE_SECTORS = {2: 1.0, 4: 0.75}
"""What an element of so many bytes costs that moves within its warp: less than
`access_layouts.CONVERT_SECTORS`, for which all warps of a CTA meet.
"""


def row_layout(op: pointer.Store, facts: AxisFacts) -> Layout | None:
    """The layout of vectors in which a store costs less, exchange included, if there is one."""
    type_ = op.value.type
    assert isinstance(type_, TileType)
    made = warp_rows(type_.layout, type_.dtype.bytes) if type_.layout else None
    if type_.layout is None or made is None:
        return None
    exchange = EXCHANGE_SECTORS[type_.dtype.bytes] * type_.layout.num_regs
    now, then = access_cost(op, type_.layout, facts), access_cost(op, made.layout, facts)
    return made.layout if now > then + exchange else None


def can_move(op: pointer.Store, free: FreeTiles) -> bool:
    """Whether addresses and mask are made of scalars, coordinates, and rows or columns.

    free: what needs no registers.
    """
    work = [v for v in (op.pointer, op.mask) if v is not None]
    seen: set[Value] = set()
    while work:
        value = work.pop()
        if value in seen or not isinstance(value.type, TileType) or free(value):
            continue
        seen.add(value)
        made = value.defining_op
        if made is not None and (isinstance(made, VIEWS) or is_index(made)):
            work += made.operands
        elif sum(n > 1 for n in value.type.shape) > 1:
            return False
    return True


def move_store(graph: TileGraph, op: pointer.Store, want: Layout) -> None:
    """Gives a store another layout, with what its addresses and mask are made of."""
    moved: dict[tuple[Value, Layout], Value] = {}

    def held(value: Value, layout: Layout) -> Value:
        """A value of registers at other places."""
        assert isinstance(value.type, TileType)
        have = value.type.layout
        if have is not None and have.same_places(layout):
            return value
        convert = tile.ConvertLayout(value, layout, loc=op.loc, names=(value.name,))
        graph.insert_before(op, convert)
        return convert.result

    def at(value: Value, layout: Layout) -> Value:
        if not isinstance(value.type, TileType):
            return value
        key = (value, layout)
        if key not in moved:
            made = value.defining_op
            is_math = made is not None and (isinstance(made, VIEWS) or is_index(made))
            moved[key] = (
                again(made, layout) if made is not None and is_math else held(value, layout)
            )
        return moved[key]

    @deep
    def again(made: Op, layout: Layout) -> Value:
        """Index math once more."""
        ups = {link.operand: link.up for link in links(made) if link.up is not None}
        values: dict[Value, Value] = {}
        for operand in made.operands:
            inner = ups[operand](layout) if operand in ups else layout
            assert inner is not None
            values[operand] = at(operand, inner)
        copy = clone_op(made, values)
        graph.insert_before(op, copy)
        for result in copy.results:
            assert isinstance(result.type, TileType)
            graph.set_type(result, result.type.with_layout(layout))
        return copy.results[0]

    for index, operand in enumerate(op.operands):
        graph.set_operand(
            op, index, held(operand, want) if operand is op.value else at(operand, want)
        )
