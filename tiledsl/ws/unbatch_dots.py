"""Dots with batch dimensions, a dot for each matrix."""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.tile_moves import Stack
from tiledsl.ir.ops.tile_moves import Unstack
from tiledsl.ir.types import TileType


def unbatch_dots(graph: TileGraph) -> None:
    """Replaces dots with batch dimensions by one dot for each matrix."""
    changed = True
    while changed:
        changed = False
        for op in graph.find(mma.Dot):
            if isinstance(op.acc.type, TileType) and op.acc.type.rank > 2:
                _unbatch(graph, op)
                changed = True


def _unbatch(graph: TileGraph, op: mma.Dot) -> None:
    assert op.parent is not None
    b = Builder(graph, op.parent, op.parent.ops.index(op), op.loc)
    parts: list[tuple[Value, ...]] = []
    for value in (op.a, op.b, op.acc):
        cut = Unstack(value)
        b.add(cut)
        parts.append(cut.results)
    products = [
        b.value(mma.Dot(x, y, acc, op.precision, op.promote), op.result.name)
        for x, y, acc in zip(*parts, strict=True)
    ]
    whole = b.value(Stack(tuple(products)), op.result.name)
    graph.replace_uses(op.result, whole)
    graph.erase(op)
