"""Vectors that come in the slots of a loop's operands: scales of blocks.

A loop whose products CUDA cores go on with loads small blocks beside its operands. Where a tensor
map can bring one, it is a box of the slot: the load role copies it as many iterations ahead as the
ring is deep, and the consumers neither compute addresses nor wait for memory between products.
Copies start at multiples of 16 bytes of a row (`bulk`); where a vector may not, its box starts
before it and the consumers skip what stands in front. Short ones that lie side by side in a row
share a box. Ref: DeepGEMM loads the scales of rows so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.bulk import BULK_BYTES
from tiledsl.ws.dependence import program_axes
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.operands import OperandLoad
from tiledsl.ws.operands import constant_value

BOX_ELEMS = 256
"""Elements of a box along a dimension, at most."""
LINE_BYTES = 128
"""Boxes start at multiples of so many bytes of shared memory."""


def address_ops(loop: For, load: Load) -> list[Op] | None:
    """Ops of the loop body that the place of a load needs, in order.

    None where they need more than the loop variable.
    """
    made = {r: op for op in loop.body.ops for r in op.results}
    wanted: set[int] = set()
    work = [v for v in load.operands if v is not load.tensor]
    while work:
        v = work.pop()
        if v in loop.carried:
            return None
        op = made.get(v)
        if op is None or op.id in wanted:
            continue
        if op.effect is not Effect.PURE or op.regions or isinstance(v.type, TileType):
            return None
        wanted.add(op.id)
        work += op.operands
    return [op for op in loop.body.ops if op.id in wanted]


def padded_extent(extent: int, num_bytes: int) -> int:
    """Elements of a vector's box in a slot: whole lines, zeros or neighbours behind its end."""
    line = LINE_BYTES // num_bytes
    return -(-extent // line) * line


def is_vector(smem: SmemType) -> bool:
    """Whether a tile of a slot is a vector: operands are swizzled."""
    return not smem.swizzle_bytes


def start_of(load: Load) -> Value:
    """Where a vector starts along the contiguous dimension."""
    t = tensor_type(load.tensor, "load")
    assert t.inner_dim is not None
    return load.offsets[t.inner_dim]


def start_elems(load: Load) -> int:
    """Elements between places where copies of a vector may start."""
    return BULK_BYTES // tensor_type(load.tensor, "load").dtype.bytes


def most_in_front(load: Load) -> int:
    """Elements that may stand in front of a vector in its box; 0 where none can."""
    every = start_elems(load)
    return every - 1 if AxisFacts({}).of(start_of(load)).every % every else 0


@dataclass(frozen=True)
class SlotVector(OperandLoad):
    """A box of vectors. op: the load of the first one. parts: all, and where they start in it."""

    parts: tuple[tuple[Load, int], ...] = ()

    @property
    def extent(self) -> int:
        """Elements up to the end of the last one."""
        return max(at + _extent(op) for op, at in self.parts)


def loads_of(items: Iterable[OperandLoad]) -> list[Load | pointer.Load]:
    """Every load that what comes in a slot takes the place of."""
    out: list[Load | pointer.Load] = []
    for item in items:
        out += [op for op, _ in item.parts] if isinstance(item, SlotVector) else [item.op]
    return out


@dataclass(frozen=True)
class VectorSize:
    """A vector of a slot, in the terms of the planner. extent: with the probe's constexprs.

    in_front: elements that may stand in front of it.
    """

    extent: int
    itemsize: int
    in_front: int

    def bytes_in(self, tile: tuple[int, int, int], probe: tuple[int, int]) -> int:
        """Bytes in a slot of another tile; an extent that is both of the probe's is the larger."""
        sides = [n for n, extent in zip(tile[:2], probe, strict=True) if extent == self.extent]
        extent = max(sides, default=self.extent) + self.in_front
        return padded_extent(extent, self.itemsize) * self.itemsize


def vector_sizes(found: DotLoop) -> tuple[VectorSize, ...]:
    """The vectors of a loop."""
    return tuple(
        VectorSize(item.extent, item.smem.dtype.bytes, most_in_front(item.block))
        for item in slot_vectors(found)
    )


def slot_vectors(found: DotLoop) -> tuple[SlotVector, ...]:
    """Loads that come with the slots of a loop's operands, in program order.

    Of a partial loop, or of one that makes operands by them.
    """
    own = {op.id for made in found.made.values() for op in made.vectors}
    operands = {o.op.id for o in found.loads}
    loads = [
        op
        for op in found.loop.body.ops
        if isinstance(op, Load)
        and op.id not in operands
        and (found.partial or op.id in own)
        and row_vector(found.loop, op, 16 if found.made else 32) is not None
    ]
    out: list[SlotVector] = []
    for parts in _side_by_side(loads):
        op = parts[0][0]
        smem = _smem_of(op, max(at + _extent(x) for x, at in parts))
        assert smem is not None
        axes = frozenset[int]().union(*(program_axes(o) for o in op.offsets))
        name = op.result.name or tensors_of(op.tensor)[0].name or "x"
        out.append(SlotVector(op, smem, axes, name, parts=parts))
    return tuple(out)


def row_vector(loop: For, load: Load, least_bits: int = 16) -> SmemType | None:
    """How a vector would lie in a slot of a loop's operands; None where it cannot come there."""
    t = tensor_type(load.tensor, "load")
    if t.inner_dim is None or not least_bits <= t.dtype.bits <= 32:
        return None
    return _smem_of(load, _extent(load)) if address_ops(loop, load) is not None else None


def _side_by_side(loads: list[Load]) -> list[tuple[tuple[Load, int], ...]]:
    """Loads and where they start in a box that they share, the first one of each box first."""
    rows: dict[object, list[tuple[int, Load]]] = {}
    for op in loads:
        inner = tensor_type(op.tensor, "load").inner_dim
        base, number = _distance(start_of(op))
        others = tuple(v for d, v in enumerate(op.offsets) if d != inner)
        rows.setdefault((op.tensor, op.squeeze, others, base), []).append((number, op))
    out: list[tuple[tuple[Load, int], ...]] = []
    for row in rows.values():
        left = sorted(row, key=lambda item: (item[0], item[1].id))
        while left:
            first, op = left[0]
            line = LINE_BYTES // tensor_type(op.tensor, "load").dtype.bytes
            room = max(line - most_in_front(op), _extent(op))
            here = [x for x in left if x[0] - first + _extent(x[1]) <= room]
            out.append(tuple((op, number - first) for number, op in here))
            left = [x for x in left if x not in here]
    return sorted(out, key=lambda parts: loads.index(parts[0][0]))


def _distance(start: Value) -> tuple[Value, int]:
    """A start as a value and a number that is added to it."""
    op = start.defining_op
    number = constant_value(op.b) if isinstance(op, Add) else None
    if isinstance(op, Add) and isinstance(number, int):
        return op.a, number
    return start, 0


def _extent(load: Load) -> int:
    """Elements of a vector."""
    t = tensor_type(load.tensor, "load")
    assert t.inner_dim is not None
    return int(load.block_shape[t.inner_dim])


def _smem_of(load: Load, extent: int) -> SmemType | None:
    """How vectors of an extent lie in a slot; None where no tensor map brings them."""
    t = tensor_type(load.tensor, "load")
    kept = [d for d in range(t.rank) if d not in load.squeeze]
    if not t.tma or kept != [t.inner_dim] or len(tensors_of(load.tensor)) > 1:
        return None
    if load.other is not None and constant_value(load.other) != 0:
        return None
    extent = padded_extent(extent + most_in_front(load), t.dtype.bytes)
    return SmemType((extent,), t.dtype, 0, 0) if extent <= BOX_ELEMS else None
