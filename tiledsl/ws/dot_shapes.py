"""Which way a product lies on the tensor core, and what its sides are padded to."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dtypes import DType
from tiledsl.errors import ResourceError
from tiledsl.errors import SourceLoc
from tiledsl.ir.extents import named_extents
from tiledsl.ir.extents import smaller
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.layout import mma_operand_8bit
from tiledsl.ir.ops import mma
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType


@dataclass(frozen=True)
class DotShape:
    """How a product [M, N] is cut into instructions.

    swapped: N is the side that is cut into 64-row instructions. split: 0 when the warpgroups share
    these rows, 1 when they share the other side. M, N: the extents, padded to whole instructions.
    """

    swapped: bool
    split: int
    M: int
    N: int

    def layout(self, num_warpgroups: int) -> Layout:
        """Of the accumulator."""
        if self.swapped:
            made = mma_accumulator(self.N, self.M, num_warpgroups, split=self.split)
            return made.transpose((1, 0))
        return mma_accumulator(self.M, self.N, num_warpgroups, split=self.split)

    def registers(self, num_warpgroups: int) -> int:
        """Accumulators of a thread."""
        return self.M * self.N // (128 * num_warpgroups)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _legal_cols(n: int, dtype: DType | None, parts: int) -> int:
    """The instruction's N for `parts` warpgroups that share n columns; 0 when there is none."""
    each = _up(-(-n // parts), 8)
    if dtype is not None and dtype.is_int and each > 32:
        each = _up(each, 16)
    return each * parts if each <= 256 else 0


def dot_shape(
    M: int, N: int, num_warpgroups: int, dtype: DType | None = None, loc: SourceLoc | None = None
) -> DotShape:
    """The cut that computes the fewest elements beyond the product's own.

    Raises:
        ResourceError: no instruction is wide enough.
    """
    found: list[tuple[int, int, DotShape]] = []
    for swapped, (rows, cols) in ((False, (M, N)), (True, (N, M))):
        for split in (0, 1) if num_warpgroups > 1 else (0,):
            high = _up(rows, 64 * (num_warpgroups if split == 0 else 1))
            wide = _legal_cols(cols, dtype, num_warpgroups if split == 1 else 1)
            if not wide:
                continue
            shape = DotShape(swapped, split, *((wide, high) if swapped else (high, wide)))
            found.append((high * wide, len(found), shape))
    if not found:
        raise ResourceError(
            f"dot(): a result of {named_extents((M, N))} does not fit the tensor core over "
            f"{num_warpgroups} warpgroups: one side may have at most 256 elements a warpgroup",
            loc,
            smaller([(M, N)]),
        )
    return min(found)[2]


def shape_of_dot(op: mma.Dot, num_warpgroups: int) -> DotShape:
    """The cut of a dot of two matrices."""
    acc, a = op.acc.type, op.a.type
    assert isinstance(acc, TileType)
    assert isinstance(a, TileType)
    M, N = acc.shape
    return dot_shape(M, N, num_warpgroups, a.dtype, op.loc)


def register_operand_layout(op: mma.Issue, num_warpgroups: int) -> Layout:
    """The layout of a left operand in registers: that of an accumulator of its shape.

    8-bit elements that no mma.spread moved lie as the instruction reads them.
    """
    assert isinstance(op.a.type, TileType)
    M, K = op.a.type.shape
    if op.a.type.dtype.bits == 8 and not isinstance(op.a.defining_op, mma.Spread):
        return mma_operand_8bit(M, K, num_warpgroups)
    return mma_accumulator(M, K, num_warpgroups, split=0)


def accumulator_layout(op: mma.Issue | mma.Dot, num_warpgroups: int) -> Layout:
    """The layout of a dot's accumulator over the warpgroups of one role instance."""
    if isinstance(op, mma.Dot):
        return shape_of_dot(op, num_warpgroups).layout(num_warpgroups)
    acc = op.acc.type
    assert isinstance(acc, TileType)
    M, N = acc.shape
    if op.swapped:
        return mma_accumulator(N, M, num_warpgroups, split=op.split).transpose((1, 0))
    paired = isinstance(op.b.type, SmemType) and op.b.type.paired
    return mma_accumulator(M, N, num_warpgroups, split=op.split, paired=paired)
