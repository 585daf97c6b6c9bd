"""Boxes of tensors without known ends that are no whole lines of shared memory.

A tile lies in shared memory in lines of 128 bytes. One that is wider and no multiple of them is
loaded in whole lines: of 96 bf16 along a row two lines, 128. What lies beyond the extents of a
tensor is filled with zeros and not read, but a row that no mask ends has no extent: the last one of
a tensor would be read beyond its end. Such rows are cut into pieces as wide as the tile, the
innermost extent of a tensor with one more dimension, which counts the pieces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tiledsl.dtypes import DType
from tiledsl.ir.analysis.affine import Product
from tiledsl.ir.analysis.affine import Sum
from tiledsl.ir.op import Value
from tiledsl.ir.specs import TMA_ALIGN_BYTES
from tiledsl.ir.specs import TMA_MAX_RANK
from tiledsl.ir.types import SmemType
from tiledsl.ws.boxes import Box
from tiledsl.ws.boxes import Side
from tiledsl.ws.dot_operands import ATOM_BYTES

Divides = Callable[[Value], int]
"""A number that divides a scalar."""


def within_rows(box: Box, shape: tuple[int, ...], dtype: DType, divides: Divides) -> Box | str:
    """The box of a load such that lines of it read nothing beyond the tile, or why there is none.

    shape: of the tile.
    """
    inner = next((d for d, s in enumerate(box.sides) if s.stride == 1), None)
    if inner is None or len(shape) < 2:
        return box
    side, width = box.sides[inner], shape[inner]
    row = SmemType((1, width), dtype, major=1)
    if side.bound is not None or row.copied_bytes == width * dtype.bytes:
        return box
    pieces = () if side.start.number == 0 else (Side(width, side.start, per=width),)
    problem = ""
    if not _is_multiple(side.start, width, divides):
        problem = f"is not known to begin at a multiple of its {width} elements"
    elif width * dtype.bytes % TMA_ALIGN_BYTES:
        problem = f"is no multiple of {TMA_ALIGN_BYTES} bytes wide"
    elif len(box.all_sides) + len(pieces) > TMA_MAX_RANK:
        problem = f"is one of a tensor with {len(box.all_sides)} dimensions"
    if problem:
        return (
            f"rows without a mask are loaded in tiles of {width * dtype.bytes} bytes, no multiple "
            f"of {ATOM_BYTES}, and the tile {problem}: mask the load by the length of rows"
        )
    piece = Side(1, Sum(), width)
    sides = (*box.sides[:inner], piece, *box.sides[inner + 1 :])
    return replace(box, outer=(*box.outer, *pieces), sides=sides)


def quotient(total: Sum, per: int) -> tuple[Sum, Sum]:
    """A multiple of `per` as a sum of what is divided already, and one that is to be."""
    whole = [replace(p, number=p.number // per) for p in total.products if p.number % per == 0]
    return Sum.of(whole), Sum.of(p for p in total.products if p.number % per)


def _is_multiple(total: Sum, of: int, divides: Divides) -> bool:
    def known(p: Product) -> int:
        return p.number * prod(map(divides, p.scalars))

    return all(known(p) % of == 0 for p in total.products)
