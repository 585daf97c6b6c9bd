"""How the tiles of a product lie that each warp computes by itself, with mma.sync.

All warps have all rows of the product and share out its columns, in blocks of 8 side by side.

Ref: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
"""

from __future__ import annotations

from tiledsl.ir.layout import Digit
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit

ROWS, COLS, STEP = 16, 8, 16
"""M, N and K of one instruction."""


def warp_accumulator(M: int, N: int, num_warps: int) -> Layout:
    """The sums [M, N]. Registers: block of 16 rows, block of 8 columns, instruction's own order."""
    blocks = _blocks(N, num_warps)
    rows = (Digit(8, Unit.LANE, 4), Digit(2, Unit.REG, 2), Digit(M // ROWS, Unit.REG, 4 * blocks))
    cols = (
        Digit(2, Unit.REG, 1),
        Digit(4, Unit.LANE, 1),
        Digit(blocks, Unit.REG, 4),
        Digit(num_warps, Unit.WARP, 1),
    )
    return Layout((rows, cols), M // ROWS * blocks * 4, num_warps, "mma")


def warp_operand(K: int, N: int, num_warps: int) -> Layout:
    """The right operand [K, N]. Registers: block of 8 columns, 16 of K, instruction's own order."""
    blocks = _blocks(N, num_warps)
    rows = (
        Digit(2, Unit.REG, 1),
        Digit(4, Unit.LANE, 1),
        Digit(2, Unit.REG, 2),
        Digit(K // STEP, Unit.REG, 4),
    )
    cols = (
        Digit(8, Unit.LANE, 4),
        Digit(blocks, Unit.REG, K // STEP * 4),
        Digit(num_warps, Unit.WARP, 1),
    )
    return Layout((rows, cols), K // STEP * 4 * blocks, num_warps, "mma")


def _blocks(N: int, num_warps: int) -> int:
    """Blocks of columns that a warp has."""
    if N % (COLS * num_warps):
        raise ValueError(f"{N} columns are no blocks of {COLS} for each of {num_warps} warps")
    return N // (COLS * num_warps)
