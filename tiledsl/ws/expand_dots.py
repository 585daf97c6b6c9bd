"""Dots that the tensor core does not take, as sums of outer products in registers."""

from __future__ import annotations

from tiledsl.dtypes import float64
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.elementwise import Fma
from tiledsl.ir.ops.tile import Broadcast
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.ops.tile_moves import Unstack


def is_expanded(op: Op) -> bool:
    """Whether a dot is computed without the tensor core: f64."""
    return isinstance(op, mma.Dot) and tile_type(op.a, "dot").dtype == float64


def expand_dots(graph: TileGraph) -> None:
    """Replaces every such dot by a fused multiply-add of the accumulator per element of K."""
    for op in graph.find(mma.Dot):
        if is_expanded(op):
            _expand(graph, op)


def _expand(graph: TileGraph, op: mma.Dot) -> None:
    assert op.parent is not None
    b = Builder(graph, op.parent, op.parent.ops.index(op), op.loc)
    acc, rank = op.acc, tile_type(op.a, "dot").rank
    shape = tile_type(acc, "dot").shape
    columns = _slices(b, op.a, rank - 1)
    rows = _slices(b, op.b, rank - 2)
    for column, row in zip(columns, rows, strict=True):
        left = b.value(Broadcast(b.value(ExpandDims(column, rank - 1)), shape))
        right = b.value(Broadcast(b.value(ExpandDims(row, rank - 2)), shape))
        acc = b.value(Fma(left, right, acc), op.result.name)
    graph.replace_uses(op.result, acc)
    graph.erase(op)


def _slices(b: Builder, x: Value, axis: int) -> tuple[Value, ...]:
    """The tiles along an axis."""
    order = (axis, *(d for d in range(tile_type(x, "dot").rank) if d != axis))
    turned = b.value(Transpose(x, order)) if axis else x
    cut = b.add(Unstack(turned))
    return cut.results
