"""Layout assignment: every register tile of a role gets a layout, fixed ones first.

Accumulators fix theirs; it passes on to what is tied to them; what is left gets a coalesced layout.
Where two fixed layouts meet, a `tile.convert_layout` is inserted and reported.
"""

from __future__ import annotations

from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tile
from tiledsl.ir.ops import tile_moves
from tiledsl.ir.types import TileType
from tiledsl.ws.free import FreeTiles
from tiledsl.ws.layout_choices import offer_copies
from tiledsl.ws.layout_choices import offer_defaults
from tiledsl.ws.layout_choices import offer_fixed
from tiledsl.ws.layout_choices import offer_reads
from tiledsl.ws.layout_choices import size_of
from tiledsl.ws.layout_conversions import UNLIMITED
from tiledsl.ws.layout_conversions import Room
from tiledsl.ws.layout_conversions import convert_accesses
from tiledsl.ws.layout_conversions import convert_links
from tiledsl.ws.layout_conversions import convert_register_operands
from tiledsl.ws.layout_groups import Groups
from tiledsl.ws.layout_groups import is_tile
from tiledsl.ws.layout_groups import propagate
from tiledsl.ws.layout_groups import ties
from tiledsl.ws.links import links
from tiledsl.ws.own_indexes import join_alike
from tiledsl.ws.own_indexes import own_indexes
from tiledsl.ws.short_rows import short_rows
from tiledsl.ws.widening import widen_at_use


def assign_layouts(
    graph: TileGraph, region: Region, num_warps: int, room: Room = UNLIMITED
) -> list[str]:
    """Sets the layout of every register tile under `region`; a line per inserted conversion.

    room: for conversions that only make accesses better; a line too for each that has none.
    """
    widen_at_use(graph, region)
    copies = own_indexes(graph, region)
    _split_sources(graph, region)
    ops = list(region.walk())
    groups = Groups()
    free = FreeTiles()
    facts = axis_facts(region, graph.facts.get("divisors", {}))
    for op in ops:
        for a, b in ties(op, free):
            if is_tile(a) and is_tile(b):
                groups.tie(a, b)
    offer_fixed(ops, groups, num_warps)
    open_links = [link for op in ops for link in links(op)]
    offer_copies(ops, groups, facts, num_warps)
    propagate(open_links, groups)
    offer_reads(ops, groups, num_warps)
    propagate(open_links, groups)
    values = [
        v
        for op in ops
        for v in (*op.results, *(a for r in op.regions for a in r.args))
        if is_tile(v)
    ]
    # What is cut into tiles lies as these do.
    cut = {op.a for op in ops if isinstance(op, tile_moves.Unstack)}
    values.sort(key=lambda v: (v in cut, -size_of(v)))
    offer_defaults(
        ops, groups, values, facts, num_warps, open_links, short_rows(ops),
        may_exchange=room.num_ctas == 1,
    )  # fmt: skip
    for v in values:
        assert isinstance(v.type, TileType)
        graph.set_type(v, v.type.with_layout(groups.get(v)))
    join_alike(graph, copies)
    ops = list(region.walk())
    notes = convert_links(graph, ops) + convert_accesses(graph, ops, facts, num_warps, room)
    return notes + convert_register_operands(graph, ops, num_warps // 4)


def _split_sources(graph: TileGraph, region: Region) -> None:
    """One source per use: each use may want its own layout, and making one anew costs nothing.

    What a dot behind a loop starts from is made in front of it: from there on it takes registers.
    """
    for op in list(region.walk()):
        if not isinstance(op, tile.Arange | tile.Splat):
            continue
        uses = graph.users(op.result)
        for use in uses:
            starts = isinstance(use.op, mma.Dot) and use.op.acc is op.result
            starts = starts and _passes_loop(op, use.op)
            if use is uses[0] and not starts:
                continue
            copy = op.rebuild({})
            graph.insert_before(use.op, copy) if starts else graph.insert_after(op, copy)
            graph.set_operand(use.op, use.index, copy.results[0])
        if not graph.has_uses(op.result):
            graph.erase(op)


def _passes_loop(made: Op, user: Op) -> bool:
    """Whether a loop stands between two ops of one region."""
    if made.parent is not user.parent or made.parent is None:
        return False
    ops = made.parent.ops
    return any(op.is_loop for op in ops[ops.index(made) : ops.index(user)])
