"""Accesses whose neighbours lie side by side in memory, at addresses aligned for an element only.

Such are the rows of a matrix whose width is odd. They are accessed in aligned pieces of 16 bytes,
and what a thread holds is shifted (templates/include/tiledsl/shifted.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.analysis.affine import NotAffine
from tiledsl.ir.analysis.affine import address_of
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.masks import only_falls
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import pointer
from tiledsl.ir.types import TileType
from tiledsl.ir.vectors import is_too_long
from tiledsl.ir.vectors import vectors_of

PIECE_BYTES = 16
MOST_ALIGNED_BYTES = 4
"""Vectors of so many bytes, or fewer, are what alignment leaves where shifting pays."""


@dataclass(frozen=True)
class Shift:
    """How an access is shifted.

    width: elements of a vector. lanes: of a warp side by side, whose vectors follow each other in
    memory. falls: the mask only falls inside of a vector, or is equal there. alike: all vectors of
    a warp are off an aligned address by as many bytes. chained: a warp's vectors follow each other.
    """

    width: int
    lanes: int
    falls: bool
    alike: bool
    chained: bool


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
    found = vectors_of(layout)
    if found is None or not isinstance(op, pointer.Load | pointer.Store):
        return None
    dim = found.dim
    width = shiftable_width(op, dim, facts)
    if width == 1 or is_too_long(layout, PIECE_BYTES // width):
        return None
    if found.size % width or layout.num_regs % width:
        return None
    lanes = found.lanes if found.size == width else 1
    run = facts.of(op.pointer).axes[dim].contiguity
    while lanes > 1 and run % (width * lanes):
        lanes //= 2
    if isinstance(op, pointer.Store) and lanes == 1:
        return None
    falls = op.mask is None or only_falls(op.mask, dim, width, facts)
    if run % layout.padded_shape[dim]:
        return Shift(width, lanes, falls, False, False)
    others = [d for d in range(layout.rank) if d != dim and _is_in_warp(layout, d)]
    chained = not others and found.chained and found.size == width
    return Shift(width, lanes, falls, _are_whole_pieces_apart(op.pointer, others), chained)


def _is_in_warp(layout: Layout, dim: int) -> bool:
    """Whether a warp holds more than one coordinate of a dimension."""
    return any(digit.size > 1 and digit.unit is not Unit.WARP for digit in layout.dims[dim])


def _are_whole_pieces_apart(pointer: Value, dims: list[int]) -> bool:
    """Whether runs whose coordinates differ along some dimensions are apart by whole pieces."""
    if not dims:
        return True
    type_ = pointer.type
    assert isinstance(type_, TileType)
    assert type_.dtype.element is not None
    try:
        products = address_of(pointer).offset.products
    except NotAffine:
        return False
    size = type_.dtype.element.bytes
    return all(
        p.dim not in dims or (p.modulus is None and p.number * size % PIECE_BYTES == 0)
        for p in products
    )
