"""Gathers that take each element of a short vector for a block of neighbours.

A scale for every `block` columns is `gather(scales, (n % block + arange(0, N)) // block)`: as the
index counts up in blocks, few elements are taken, each by columns side by side. They are loaded one
by one and chosen by comparing the column with where a block ends, so that nothing is exchanged, and
one element alone is what all columns share. What is computed of it alone stays as small as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tiledsl.dtypes import int32
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import splat_source
from tiledsl.ir.analysis.remainders import remainders
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.tile_moves import Gather
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.passes.no_wrap import index_parts
from tiledsl.ir.types import TileType
from tiledsl.target import Target

MOST_BLOCKS = 4
"""Blocks that the elements of an index may lie in; for more, all are exchanged."""


@dataclass(frozen=True)
class Blocks:
    """An index `(start + 0, 1, ...) // size`, less the block of `start`.

    remainder: `start % size` where the graph has it. most: blocks that it may count up to.
    """

    start: Value
    size: int
    remainder: Value | None
    most: int


@register_pass("unfold-gathers", consumes=Level.TILE, produces=Level.TILE)
def unfold_gathers(graph: TileGraph, target: Target) -> PassReport:
    """Replaces such gathers of loaded vectors by loads of their elements and selects.

    The sizes of the blocks are facts of the graph: with other tiles, more of them may be cut.
    """
    del target
    changes = 0
    gathers = graph.find(Gather)
    facts = axis_facts(graph.body, graph.facts.get("divisors", {})) if gathers else None
    for op in gathers:
        load = op.a.defining_op
        is_vector = isinstance(op.a.type, TileType) and op.a.type.rank == 1
        found = blocks_of(op.index, facts) if facts is not None and is_vector else None
        if isinstance(load, Load) and found is not None and found.most <= MOST_BLOCKS:
            _unfold(graph, op, load, found)
            sizes: set[int] = {*graph.facts.get("blocks", ()), found.size}
            graph.facts["blocks"] = tuple(sorted(sizes))
            changes += 1
    return PassReport("unfold-gathers", changes)


def blocks_of(index: Value, facts: AxisFacts) -> Blocks | None:
    """An index tile as one that counts up in blocks from 0; None for every other one."""
    op, less = index.defining_op, None
    if isinstance(op, ew.Sub):
        op, less = op.a.defining_op, splat_source(op.b)
    if not isinstance(op, ew.FloorDiv) or not isinstance(op.result.type, TileType):
        return None
    size, total = constant_value(op.b), op.a.defining_op
    parts = index_parts(total) if isinstance(total, ew.Add) else None
    if not isinstance(size, int) or size < 1 or parts is None or op.result.type.dtype != int32:
        return None
    start, columns = parts
    if not facts.of(start).positive or not _is_first(start, size, less):
        return None
    of_start = _remainder_of(start, size)
    inside = remainders(start, size, facts)[-1]
    return Blocks(start, size, of_start, -(-(columns.end + inside) // size))


def _is_first(start: Value, size: int, less: Value | None) -> bool:
    """Whether the block of `start`, less a number, is number 0."""
    if less is None:
        return _remainder_of(start, size) is not None
    op = less.defining_op
    return isinstance(op, ew.FloorDiv) and op.a is start and constant_value(op.b) == size


def _remainder_of(value: Value, size: int) -> Value | None:
    """A value that is the remainder of a division by `size`."""
    op = value.defining_op
    return value if isinstance(op, ew.Mod) and constant_value(op.b) == size else None


def _unfold(graph: TileGraph, op: Gather, load: Load, found: Blocks) -> None:
    assert op.parent is not None
    assert isinstance(op.a.type, TileType)
    assert isinstance(op.result.type, TileType)
    shape, name = op.result.type.shape, op.result.name
    parts = _elements(graph, load, min(found.most, op.a.type.shape[0]))
    b = Builder(graph, op.parent, op.parent.ops.index(op), op.loc)
    wide = [b.value(tile.Broadcast(x, shape), name) for x in parts]
    taken = wide[-1]
    if len(wide) > 1:
        size = b.value(ew.Constant(found.size, int32))
        inside = found.remainder or b.value(ew.Mod(found.start, size))
        end = b.value(ew.Sub(size, inside))
        columns = b.value(tile.Arange(0, shape[0]))
        for i, x in reversed([*enumerate(wide[:-1])]):
            limit = end
            if i:
                limit = b.value(ew.Add(end, b.value(ew.Constant(i * found.size, int32))))
            before = b.value(ew.Compare("lt", columns, b.value(tile.Splat(limit, shape))))
            taken = b.value(ew.Select(before, x, taken), name)
    graph.replace_uses(op.result, taken)
    graph.erase(op)
    if len(wide) == 1:
        for user in [*_computed(graph, taken)]:
            _narrow(graph, user)


def _elements(graph: TileGraph, load: Load, count: int) -> list[Value]:
    """The first elements of a loaded vector, loaded where it is: a store may follow."""
    assert load.parent is not None
    b = Builder(graph, load.parent, load.parent.ops.index(load), load.loc)
    return [_element(b, load, i) for i in range(count)]


def _element(b: Builder, load: Load, index: int) -> Value:
    """One element of a loaded vector, as a tile of one."""
    t = tensor_type(load.tensor, "load")
    (dim,) = [d for d in range(t.rank) if d not in load.squeeze]
    offsets = list(load.offsets)
    if index:
        at = offsets[dim]
        offsets[dim] = b.value(
            ew.Add(at, b.value(ew.Constant(index, ew.element_dtype(at, "load"))))
        )
    one = load.rebuild(
        {},
        offsets=tuple(offsets),
        block_shape=tuple(1 for _ in load.block_shape),
    )
    one.loc = load.loc
    return b.value(one, load.result.name)


# ---------------------------------------------------------------------- what one element is for
def _computed(graph: TileGraph, value: Value) -> Iterator[Op]:
    """Binary ops that read a tile behind views of it."""
    for use in graph.users(value):
        if isinstance(use.op, tile.ExpandDims | tile.Broadcast):
            yield from _computed(graph, use.op.result)
        elif isinstance(use.op, ew.Binary):
            yield use.op


def _narrow(graph: TileGraph, op: Op) -> None:
    """Computes an op on tiles that are spread out before it spreads out its result."""
    type_ = op.result.type
    if not isinstance(type_, TileType) or op.parent is None:
        return
    b = Builder(graph, op.parent, op.parent.ops.index(op), op.loc)
    narrow = [_unspread(b, v) for v in op.operands]
    shapes = [v.type.shape for v in narrow if isinstance(v.type, TileType)]
    shape = tuple(max(extents) for extents in zip(*shapes, strict=True))
    if shape == type_.shape:
        return
    sides = [
        v
        if isinstance(v.type, TileType) and v.type.shape == shape
        else b.value(tile.Broadcast(v, shape))
        for v in narrow
    ]
    small = b.value(op.rebuild(dict(zip(op.operands, sides, strict=True))), op.result.name)
    graph.replace_op(op, tile.Broadcast(small, type_.shape, loc=op.loc))


def _unspread(b: Builder, value: Value) -> Value:
    """A tile with extent 1 where all of its elements are the same."""
    op = value.defining_op
    if isinstance(op, tile.Broadcast):
        return _unspread(b, op.a)
    if isinstance(op, tile.ExpandDims):
        inner = _unspread(b, op.a)
        return value if inner is op.a else b.value(tile.ExpandDims(inner, op.axis))
    return value
