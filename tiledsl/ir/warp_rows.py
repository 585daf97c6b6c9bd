"""Accumulators as rows of vectors, exchanged between the lanes of a warp alone.

A lane of an accumulator holds two neighbours of a row; stored as they lie, eight rows get 16 bytes
each of 16-bit elements, half a sector of memory, or a sector each of 32-bit elements, a quarter of
a line. Each warp has 16 rows of every 64, so that it can pass them through shared memory of its own
without a barrier: then 8 lanes (4, or 2, of narrow tiles) hold 16 bytes each of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.layout import Digit
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit

ELEMENT_BYTES = (2, 4)
VECTOR_BYTES = 16
LANES = (8, 4, 2)
"""Lanes of a row, the best number first."""
WARP_BYTES = 2048
"""Shared memory of a warp: 16 rows of 128 bytes."""
_ROWS = (Digit(8, Unit.LANE, 4), Digit(2, Unit.REG, 2), Digit(4, Unit.WARP, 1))
_COLS = (Digit(2, Unit.REG, 1), Digit(4, Unit.LANE, 1))


@dataclass(frozen=True)
class WarpRows:
    """How an accumulator becomes rows. lanes: of a row. block_words: of 64 rows, in registers."""

    layout: Layout
    lanes: int
    block_words: int


def warp_rows(acc: Layout, element_bytes: int) -> WarpRows | None:
    """Rows of vectors for an accumulator of 2 or 4 bytes an element; None of other layouts."""
    if element_bytes not in ELEMENT_BYTES:
        return None
    if acc.rank != 2 or acc.dims[0][:3] != _ROWS or acc.dims[1][:2] != _COLS:
        return None
    more = acc.dims[1][2:]
    if not more or more[0].unit is not Unit.REG or more[0].stride != 4:
        return None
    vector = VECTOR_BYTES // element_bytes
    vectors = 8 * more[0].size // vector
    lanes = next((n for n in LANES if vectors % n == 0), 0)
    if not lanes:
        return None
    steps = lanes // 2
    rows = (
        Digit(32 // lanes, Unit.LANE, lanes), Digit(steps, Unit.REG, vector),
        Digit(4, Unit.WARP, 1), *acc.dims[0][3:],
    )  # fmt: skip
    cols = (
        Digit(vector, Unit.REG, 1), Digit(lanes, Unit.LANE, 1),
        Digit(vectors // lanes, Unit.REG, vector * steps), *more[1:],
    )  # fmt: skip
    dims = tuple(tuple(d for d in digits if d.size > 1) for digits in (rows, cols))
    return WarpRows(Layout(dims, acc.num_regs, acc.num_warps, "rows"), lanes, 2 * vectors)


def rows_of_move(source: Layout, target: Layout, element_bytes: int) -> WarpRows | None:
    """The move that a conversion is; None where it is another."""
    made = warp_rows(source, element_bytes)
    return made if made is not None and made.layout.same_places(target) else None
