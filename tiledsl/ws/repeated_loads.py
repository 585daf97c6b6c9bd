"""Loads of tiles whose elements repeat in runs along a dimension, as those of packed weights do.

`b_ptr + offs_k[:, None] // 8 * stride + offs_n[None, :]` has eight equal addresses below each
other. Where a loop with dots loads such a tile, one of each run is loaded, by index math on fewer
elements, and the tile is made of what is loaded: fewer copies, less shared memory, and a thread
that holds a whole run reads one element.
"""

from __future__ import annotations

from math import gcd

from tiledsl.dtypes import int32
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.passes.fold_sums import is_zero
from tiledsl.ir.types import TileType
from tiledsl.ws.free import is_elementwise


def load_once(graph: TileGraph, region: Region) -> list[str]:
    """Rewrites the loads of innermost loops with dots under `region`; a line for each."""
    notes: list[str] = []
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        inner = list(loop.body.walk())
        if any(isinstance(op, For | While) for op in inner):
            continue
        if not any(isinstance(op, mma.Dot) for op in inner):
            continue
        loads = [op for op in loop.body.ops if isinstance(op, pointer.Load)]
        for load in loads:
            facts = axis_facts(region, graph.facts.get("divisors", {}))
            notes += _load_once(graph, load, facts)
    return notes


def _load_once(graph: TileGraph, load: pointer.Load, facts: AxisFacts) -> list[str]:
    type_ = load.result.type
    if not isinstance(type_, TileType) or type_.rank not in (1, 2) or load.volatile:
        return []
    if load.other is not None and not is_zero(load.other):
        return []
    run, dim = max((_run(load, d, type_, facts), d) for d in range(type_.rank))
    if run < 2:
        return []
    if not all(_is_index(v, dim) for v in (load.pointer, load.mask) if v is not None):
        return []
    fewer = _Fewer(graph, type_.shape[dim] // run, run)
    at = fewer.of(load.pointer, dim)
    mask = fewer.of(load.mask, dim) if load.mask is not None else None
    assert load.parent is not None
    b = Builder(graph, load.parent, load.parent.ops.index(load), load.loc)
    made = pointer.Load(at, mask, hint=load.hint, loc=load.loc)
    part = b.value(made, load.result.name)
    shape = (*type_.shape[:dim], type_.shape[dim] // run, run, *type_.shape[dim + 1 :])
    spread = b.value(tile.Broadcast(b.value(tile.ExpandDims(part, dim + 1)), shape))
    graph.replace_uses(load.result, b.value(tile.Reshape(spread, type_.shape), load.result.name))
    graph.erase(load)
    where = load.loc.short if load.loc else "?"
    return [f"{where}: {load.result.name or 'a tile'} repeats {run} times, each is loaded once"]


def _run(load: pointer.Load, dim: int, type_: TileType, facts: AxisFacts) -> int:
    """How many neighbours along a dimension are the same element, in whole runs; 1 for none."""
    extent = type_.shape[dim]
    out = gcd(facts.of(load.pointer).axes[dim].constancy, extent)
    if load.mask is not None:
        out = gcd(out, facts.of(load.mask).axes[dim].constancy)
    # What is equal everywhere is a broadcast, which loads nothing twice.
    return out if 1 < out < extent else 1


def _sources(op: Op, dim: int) -> list[tuple[Value, int]] | None:
    """The tiles that an index tile is made of, and where each has a dimension; None if of others.

    What has extent 1 there stays as it is.
    """
    match op:
        case tile.Arange() | tile.Splat():
            return []
        case tile.Broadcast():
            source = op.a.type
            assert isinstance(source, TileType)
            return [(op.a, dim)] if source.shape[dim] > 1 else []
        case tile.ExpandDims():
            return [(op.a, dim - (op.axis < dim))]
        case tile.Transpose():
            return [(op.a, op.order[dim])]
        case _ if is_elementwise(op) and not op.regions and len(op.results) == 1:
            return [(v, dim) for v in op.operands if isinstance(v.type, TileType)]
        case _:
            return None


@deep
def _is_index(value: Value, dim: int) -> bool:
    """Whether a tile is made of coordinates and scalars by ops that can be made anew."""
    op = value.defining_op
    sources = _sources(op, dim) if op is not None else None
    return sources is not None and all(_is_index(v, d) for v, d in sources)


class _Fewer:
    """Index tiles with the first element of each run alone. extent: how many runs there are."""

    def __init__(self, graph: TileGraph, extent: int, run: int) -> None:
        self.graph = graph
        self.extent = extent
        self.run = run
        self.known: dict[tuple[Value, int], Value] = {}

    def of(self, value: Value, dim: int) -> Value:
        """The tile with fewer elements, behind the one that it is made of."""
        key = (value, dim)
        if key not in self.known:
            op = value.defining_op
            assert op is not None
            self.known[key] = self._made(op, dim)
        return self.known[key]

    @deep
    def _made(self, op: Op, dim: int) -> Value:
        assert op.parent is not None
        type_ = op.results[0].type
        assert isinstance(type_, TileType)
        mapping = {v: self.of(v, d) for v, d in _sources(op, dim) or []}
        shape = (*type_.shape[:dim], self.extent, *type_.shape[dim + 1 :])
        b = Builder(self.graph, op.parent, op.parent.ops.index(op) + 1, op.loc)
        if isinstance(op, tile.Arange):
            first = b.value(tile.Arange(0, self.extent))
            apart, start = (
                b.value(tile.Splat(b.value(ew.Constant(n, int32)), shape))
                for n in (self.run, op.start)
            )
            return b.value(ew.Add(b.value(ew.Mul(first, apart)), start))
        if isinstance(op, Hint):
            return mapping[op.a]  # What it says of runs holds for all elements.
        if isinstance(op, tile.Splat | tile.Broadcast):
            return b.value(type(op)(mapping.get(op.a, op.a), shape))
        return b.value(op.rebuild(mapping))
