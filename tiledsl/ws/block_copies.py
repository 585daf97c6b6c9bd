"""Block loads of tensors as loads through pointers, which rings can copy."""

from __future__ import annotations

from functools import reduce
from math import prod

from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.memory_base import Base
from tiledsl.ir.passes.fold_sums import is_zero
from tiledsl.ir.specs import TMA_ALIGN_BYTES
from tiledsl.ir.specs import TensorView
from tiledsl.ir.specs import factors_in
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType


def as_pointers(graph: TileGraph, load: memory.Load, facts: AxisFacts) -> pointer.Load | None:
    """A load through pointers in front of a block load, which nothing uses yet.

    None where the block has a filling other than 0.
    """
    if load.part or (load.other is not None and not is_zero(load.other)):
        return None
    assert load.parent is not None
    made = _Pointers(graph, load, facts)
    return made.load()


class _Pointers:
    def __init__(self, graph: TileGraph, load: memory.Load, facts: AxisFacts) -> None:
        assert load.parent is not None
        self.op = load
        self.facts = facts
        self.type = memory.tensor_type(load.tensor, "load")
        result = load.result.type
        assert isinstance(result, TileType)
        self.shape = result.shape
        self.kept = [d for d in range(self.type.rank) if d not in load.squeeze]
        self.b = Builder(graph, load.parent, load.parent.ops.index(load), load.loc)
        views = {view.name: view for view in graph.facts.get("views", ())}
        self.view: TensorView | None = views.get(load.tensor.name)

    def load(self) -> pointer.Load:
        b, op = self.b, self.op
        address = b.value(Base(op.tensor))
        conditions: list[Value] = []
        for d in op.squeeze:
            address = b.value(pointer.Add(address, self.distance(d, self.wide(op.offsets[d]))))
            conditions += [self.spread(c) for c in self.inside(d, op.offsets[d])]
        pointers = self.spread(address)
        for d in self.kept:
            at = self.coordinates(d, self.wide(op.offsets[d]))
            pointers = b.value(pointer.Add(pointers, self.distance(d, at)))
            conditions += self.inside(d, self.coordinates(d, op.offsets[d]))
        mask = reduce(lambda x, y: b.value(ew.And(x, y)), conditions) if conditions else None
        return b.add(pointer.Load(pointers, mask, loc=op.loc, names=(op.result.name,)))

    def wide(self, value: Value) -> Value:
        """A scalar as int64."""
        assert isinstance(value.type, ScalarType)
        return value if value.type.dtype == int64 else self.b.value(ew.Cast(value, int64))

    def spread(self, value: Value) -> Value:
        """A scalar for every element."""
        return self.b.value(tile.Splat(value, self.shape))

    def coordinates(self, dim: int, offset: Value) -> Value:
        """The coordinates along a dimension of the tensor, for every element."""
        b, at = self.b, self.kept.index(dim)
        assert isinstance(offset.type, ScalarType)
        line = b.value(tile.Arange(0, self.shape[at]))
        if offset.type.dtype != int32:
            line = b.value(ew.Cast(line, offset.type.dtype))
        line = b.value(ew.Add(line, b.value(tile.Splat(offset, (self.shape[at],)))))
        for axis in range(len(self.shape)):
            if axis != at:
                line = b.value(tile.ExpandDims(line, axis))
        return b.value(tile.Broadcast(line, self.shape))

    def distance(self, dim: int, at: Value) -> Value:
        """Elements from coordinate 0 of a dimension to a coordinate, or to a tile of them."""
        if dim == self.type.inner_dim:
            return at
        stride = self.b.value(memory.Stride(self.op.tensor, dim))
        # Of a dimension of extent 1 the stride may be odd, and takes part in no address.
        pitch = TMA_ALIGN_BYTES if self.type.tma else self.type.pitch_bytes
        if pitch > self.type.dtype.bytes:
            stride = self.b.value(Hint(stride, divisibility=(pitch // self.type.dtype.bytes,)))
        if isinstance(at.type, TileType):
            stride = self.spread(stride)
        return self.b.value(ew.Mul(at, stride))

    def inside(self, dim: int, at: Value) -> list[Value]:
        """Conditions that a coordinate, or each of a tile of them, is one of the tensor's."""
        b, offset = self.b, self.op.offsets[dim]
        dtype = offset.type.dtype if isinstance(offset.type, ScalarType) else int32
        limits: list[tuple[str, Value]] = []
        if self.view is None or self.view.shape[dim] is not None:
            limits.append(("lt", self.extent(dim, dtype)))
        if not self.facts.of(offset).positive:
            limits.append(("ge", b.value(ew.Constant(0, dtype))))
        is_tile = isinstance(at.type, TileType)
        return [
            b.value(ew.Compare(name, at, self.spread(limit) if is_tile else limit))
            for name, limit in limits
        ]

    def extent(self, dim: int, dtype: DType) -> Value:
        """An extent, with what divides the arguments that it is a product of."""
        b = self.b
        out = b.value(memory.Shape(self.op.tensor, dim))
        item = self.view.shape[dim] if self.view is not None else None
        if item is not None:
            number, names = factors_in(item)
            every = number * prod(self.facts.divisors.get(name, 1) for name in names)
            if every > 1:
                out = b.value(Hint(out, divisibility=(every,)))
        return out if dtype == int32 else b.value(ew.Cast(out, dtype))
