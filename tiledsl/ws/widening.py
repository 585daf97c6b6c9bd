"""Casts that are made again where they are used.

A narrow tile that was loaded takes half or a quarter of the registers of its wide form; widening
an element is one
instruction or none. So every use gets a cast of its own, which joins the use's loop, and
reductions widen as they read.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.types import TileType

_WIDE = {"float": "f32", "int": "i32", "uint": "i32"}


def widen_at_use(graph: TileGraph, region: Region) -> None:
    """Runs on a role before layouts are assigned."""
    for op in list(region.walk()):
        if not isinstance(op, Cast) or not _is_cheap(op):
            continue
        for use in graph.users(op.result):
            if isinstance(use.op, Reduce):
                _absorb(graph, use.op)
        for use in graph.users(op.result)[1:]:
            copy = op.rebuild({})
            graph.insert_after(op, copy)
            graph.set_operand(use.op, use.index, copy.result)
        if not graph.has_uses(op.result):
            graph.erase(op)


def _is_cheap(op: Cast) -> bool:
    """Whether a tile that lies in memory's form anyway is widened to 32 bits without loss."""
    source = op.a.type
    if not isinstance(source, TileType) or source.dtype.bits not in (8, 16):
        return False
    maker = op.a.defining_op
    if maker is not None and maker.opcode.startswith(("elementwise.", "tile.")):
        return False
    return _WIDE.get(source.dtype.kind) == op.dtype.name


def _absorb(graph: TileGraph, op: Op) -> None:
    """Makes a reduction of widened tiles one of the narrow tiles, where all its inputs are."""
    assert isinstance(op, Reduce)
    casts = [v.defining_op for v in op.inputs]
    cheap = [c for c in casts if isinstance(c, Cast) and _is_cheap(c)]
    if op.widened or not cheap:
        return
    inputs = tuple(
        c.a if isinstance(c, Cast) and _is_cheap(c) else v
        for c, v in zip(casts, op.inputs, strict=True)
    )
    new = op.rebuild({}, op.regions, inputs=inputs, widened=op.dtypes)
    for old, value in zip(op.results, new.results, strict=True):
        value.type = old.type
    graph.supersede(op, new, dict(zip(op.results, new.results, strict=True)))
