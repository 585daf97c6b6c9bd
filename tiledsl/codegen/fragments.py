"""Recognises wgmma accumulator layouts and says how a tile is divided among warpgroups."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.types import TileType

__all__ = ["Fragment", "fragment_of"]


@dataclass(frozen=True, slots=True)
class Fragment:
    """A tile that lies as accumulators of m64nN instructions.

    row_dim: the dimension that the instruction's 64 rows run along.
    rows, cols: extent of one warpgroup's part, along the instruction's rows and columns.
    row_groups, col_groups: how many warpgroups share the rows and the columns.
    paired: the columns lie as a right operand with paired rows puts them.
    """

    row_dim: int
    rows: int
    cols: int
    row_groups: int
    col_groups: int
    paired: bool = False

    @property
    def groups(self) -> int:
        return self.row_groups * self.col_groups


def fragment_of(type_: TileType, *, paired: bool = False) -> Fragment | None:
    """How a tile lies as accumulators, or None; extents are those of whole instructions.

    paired: of a product whose right operand has paired rows.
    """
    if type_.rank != 2 or type_.layout is None:
        return None
    return _match(type_.layout.padded_shape, type_.layout, paired)


@cache
def _match(shape: tuple[int, ...], layout: Layout, paired: bool) -> Fragment | None:
    groups, rest = divmod(layout.num_warps, 4)
    if rest or not groups:
        return None
    for row_dim in (0, 1):
        M, N = shape[row_dim], shape[1 - row_dim]
        for split in (0, 1) if groups > 1 else (0,):
            try:
                candidate = mma_accumulator(M, N, groups, split=split, paired=paired)
            except ValueError:
                continue
            if row_dim == 1:
                candidate = candidate.transpose((1, 0))
            if candidate.same_places(layout):
                row_groups, col_groups = (groups, 1) if split == 0 else (1, groups)
                return Fragment(
                    row_dim, M // row_groups, N // col_groups, row_groups, col_groups, paired
                )
    return None
