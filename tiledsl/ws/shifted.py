"""Accesses whose neighbours lie side by side in memory, at addresses aligned for an element only.

Such are the rows of a matrix whose width is odd. They are accessed in aligned pieces of 16 bytes,
and what a thread holds is shifted (templates/include/tiledsl/shifted.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.masks import only_falls
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Op
from tiledsl.ir.ops import pointer
from tiledsl.ir.types import TileType

PIECE_BYTES = 16
MOST_ALIGNED_BYTES = 4
"""Vectors of so many bytes, or fewer, are what alignment leaves where shifting pays."""


@dataclass(frozen=True)
class Shift:
    """How an access is shifted.

    width: elements of a vector. lanes: of a warp side by side, whose vectors follow each other in
    memory. falls: the mask only falls inside of a vector, or is equal there.
    """

    width: int
    lanes: int
    falls: bool


def shiftable_width(op: Op, dim: int, facts: AxisFacts) -> int:
    """Elements of a vector along a dimension that are accessed shifted; 1 where they are not."""
    if not isinstance(op, pointer.Load | pointer.Store) or getattr(op, "volatile", False):
        return 1
    type_ = op.pointer.type
    assert isinstance(type_, TileType)
    element = type_.dtype.element
    assert element is not None
    width = PIECE_BYTES // element.bytes
    info = facts.of(op.pointer)
    aligned = info.width(dim, width)
    if aligned * element.bytes > MOST_ALIGNED_BYTES or aligned == width:
        return 1
    return width if info.axes[dim].contiguity % width == 0 and not type_.shape[dim] % width else 1


def shift_of(op: Op, layout: Layout, facts: AxisFacts) -> Shift | None:
    """How an access in a layout is shifted; None where it is not."""
    found = _vector(layout)
    if found is None or not isinstance(op, pointer.Load | pointer.Store):
        return None
    dim, held, lanes = found
    width = shiftable_width(op, dim, facts)
    if width == 1 or held % width or layout.num_regs % width:
        return None
    lanes = lanes if held == width else 1
    run = facts.of(op.pointer).axes[dim].contiguity
    while lanes > 1 and run % (width * lanes):
        lanes //= 2
    if isinstance(op, pointer.Store) and lanes == 1:
        return None
    falls = op.mask is None or only_falls(op.mask, dim, width, facts)
    return Shift(width, lanes, falls)


def _vector(layout: Layout) -> tuple[int, int, int] | None:
    """Dimension and size of the vectors of a layout, and lanes side by side along it."""
    for dim, digits in enumerate(layout.dims):
        found = [d for d in digits if d.size > 1]
        if found and found[0].unit is Unit.REG and found[0].stride == 1:
            is_next = len(found) > 1 and found[1].unit is Unit.LANE and found[1].stride == 1
            lanes = found[1].size if is_next else 1
            return dim, found[0].size, lanes if lanes & (lanes - 1) == 0 else 1
    return None
