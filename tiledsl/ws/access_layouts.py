"""Layouts of tiles that are loaded and stored through pointers: neighbours in memory side by side.

The order of the dimensions follows the contiguity of the pointers, the vectors of a thread their
alignment; both come from the axis analysis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import atomic
from tiledsl.ir.ops import pointer
from tiledsl.ir.types import TileType

VECTOR_BYTES = 16
Access = pointer.Load | pointer.Store | atomic.Rmw | atomic.Cas


def access_of(op: Op) -> Access | None:
    """The op, when it accesses a tile of pointers."""
    if isinstance(op, Access) and isinstance(op.pointer.type, TileType):
        return op
    return None


def anchor(op: Access) -> Value:
    """The tile whose layout an access has: what it loads or stores."""
    return op.result if isinstance(op, pointer.Load) else op.value


@dataclass(frozen=True)
class Shape:
    """How an access wants its tile: dimensions from fastest to slowest, elements of a vector."""

    order: tuple[int, ...]
    vector: int


def wanted_shape(op: Access, facts: AxisFacts) -> Shape:
    """The best order and vector for one access."""
    type_ = op.pointer.type
    assert isinstance(type_, TileType)
    info = facts.of(op.pointer)
    dims = list(reversed(range(type_.rank)))
    # The dimension with the longest runs is the fastest; of equal ones the last.
    dims.sort(key=lambda d: -min(info.axes[d].contiguity, type_.shape[d]))
    element = type_.dtype.element
    assert element is not None
    if not dims:
        return Shape((), 1)
    vector = info.width(dims[0], max(1, VECTOR_BYTES // element.bytes))
    return Shape(tuple(dims), vector)


def group_shape(ops: Iterable[Op], facts: AxisFacts, group: set[Value]) -> Shape | None:
    """The order and vector for a group of tiles: of the access with the longest vectors."""
    best: Shape | None = None
    for op in ops:
        access = access_of(op)
        if access is None or not touches(access, group):
            continue
        found = wanted_shape(access, facts)
        if best is None or found.vector > best.vector:
            best = found
    return best


def touches(op: Access, group: set[Value]) -> bool:
    """Whether an access reads or writes a tile of a group."""
    return anchor(op) in group or any(r in group for r in op.results)


def vector_dim(layout: Layout) -> tuple[int, int] | None:
    """(dimension, elements) of the neighbours that a thread holds in consecutive registers."""
    for dim, digits in enumerate(layout.dims):
        first = next((d for d in digits if d.size > 1), None)
        if first is not None and first.unit is Unit.REG and first.stride == 1:
            return dim, first.size
    return None


def access_width(op: Access, layout: Layout, facts: AxisFacts) -> tuple[int, bool]:
    """(elements accessed at once, whether the mask is equal in all of them)."""
    found = vector_dim(layout)
    type_ = op.pointer.type
    assert isinstance(type_, TileType)
    element = type_.dtype.element
    assert element is not None
    if found is None:
        return 1, True
    dim, held = found
    width = facts.of(op.pointer).width(dim, VECTOR_BYTES // element.bytes)
    while width > 1 and (held % width or type_.shape[dim] % width or layout.num_regs % width):
        width //= 2
    if width * element.bytes < 4:
        return 1, True
    mask = op.mask if not isinstance(op, atomic.Cas) else None
    whole = mask is None or facts.of(mask).axes[dim].constancy % width == 0
    return width, whole
