"""Neighbours that a thread holds in consecutive registers, and lanes that go on where it ends."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit


@dataclass(frozen=True)
class Vectors:
    """The vectors of a layout: along dimension `dim`, `size` elements each.

    lanes: a power of two of lanes side by side, each of which begins where the one before ends.
    chained: a warp's next vector begins where its last lane ends, for all registers.
    """

    dim: int
    size: int
    lanes: int
    chained: bool = False


def vectors_of(layout: Layout) -> Vectors | None:
    """The vectors of a layout; None where neighbours lie in different threads."""
    for dim, digits in enumerate(layout.dims):
        found = [d for d in digits if d.size > 1]
        if found and found[0].unit is Unit.REG and found[0].stride == 1:
            lanes, size = 1, found[0].size
            if len(found) > 1 and found[1].unit is Unit.LANE and found[1].stride == 1:
                lanes = found[1].size
            rest = found[2] if len(found) > 2 else found[0]
            chained = (
                lanes == 32
                and (rest.unit, rest.stride) == (Unit.REG, size)
                and rest.size * size == layout.num_regs
            )
            return Vectors(dim, size, lanes if lanes & (lanes - 1) == 0 else 1, chained)
    return None


MOST_SHIFTED_BYTES = 512
"""What a thread holds of a tile up to which accesses are shifted.

ptxas takes minutes for twice that.
"""


def is_too_long(layout: Layout, itemsize: int) -> bool:
    """Whether a thread holds more of a tile than is worth shifting."""
    return layout.num_regs * itemsize > MOST_SHIFTED_BYTES
