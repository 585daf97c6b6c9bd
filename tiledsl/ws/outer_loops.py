"""Loops around a dot loop, in which a program goes from tile to tile, for tiles of other sizes.

How many tiles there are along a dimension is seen by looking at the kernel with another tile: where
that changes how far a loop runs, the loop runs over tiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tiledsl.ir.analysis.evaluate import HostValues
from tiledsl.ir.analysis.evaluate import Unknown
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ws.launch import Grid

MOST_TILES = 1 << 12
"""Of those along a dimension that are told apart; more of them are taken for any number."""


def loops_around(loop: For) -> list[For]:
    """The loops that a loop stands in, innermost first."""
    out: list[For] = []
    region = loop.parent
    while region is not None and region.parent is not None:
        if isinstance(region.parent, For):
            out.append(region.parent)
        region = region.parent.parent
    return out


@dataclass(frozen=True)
class Extent:
    """A dimension that is cut in tiles: its rows, in tiles of `probe` rows as the kernel has them.

    loops: which of the loops around the dot loop run over these tiles.
    """

    rows: int
    probe: int
    loops: frozenset[int]

    def scale(self, tile: int) -> float:
        """Tiles of another size for each tile of the kernel."""
        return -(-self.rows // tile) / -(-self.rows // self.probe)


def extent_of(ratio: float, small: int, large: int) -> int:
    """Rows that are `ratio` times as many small tiles as large ones; the fewest."""
    for count in range(1, MOST_TILES):
        tiles = round(ratio * count)
        if abs(tiles - ratio * count) < 1e-6 and -(-small * tiles // large) == count:
            return small * tiles
    return MOST_TILES * large


class OuterLoops:
    """The loops around a dot loop that run over tiles of dimensions M or N (0 or 1).

    around: all loops around it. args: of the graph that has them, as the host sees them.
    """

    def __init__(self, around: list[For], args: Mapping[Value, Any]) -> None:
        self.around = around
        self.args = args
        self.extents: dict[int, Extent] = {}

    def look(self, dim: int, tiles: tuple[int, int], other: OuterLoops, grid: Grid) -> None:
        """Compares with the loops of a graph for another tile, which correspond to ours.

        tiles: extents of `dim`, ours and its.
        """
        pairs = list(zip(self.spans(grid), other.spans(grid), strict=True))
        changed = {
            i: its_span / span for i, (span, its_span) in enumerate(pairs) if span and its_span
        }
        changed = {i: ratio for i, ratio in changed.items() if ratio != 1.0}
        if changed:
            ratio = next(iter(changed.values()))
            rows = extent_of(max(ratio, 1 / ratio), min(tiles), max(tiles))
            self.extents[dim] = Extent(rows, tiles[0], frozenset(changed))

    def spans(self, grid: Grid) -> list[int]:
        """How far each loop runs in the first program; 0 where the host cannot tell."""
        values = HostValues(self.args, grid, (0, 0, 0))
        return [_number(values, loop.upper) - _number(values, loop.lower) for loop in self.around]

    def trips(self, tile: tuple[int, int, int], grid: Grid) -> int:
        """How often the first program runs the dot loop with a tile."""
        values = HostValues(self.args, grid, (0, 0, 0))
        count = 1
        for at, (loop, span) in enumerate(zip(self.around, self.spans(grid), strict=True)):
            whole = float(span)
            for dim, extent in self.extents.items():
                whole *= extent.scale(tile[dim]) if at in extent.loops else 1.0
            step = _number(values, loop.step)
            count *= max(1, math.ceil(whole / step)) if step > 0 else 1
        return count


def _number(values: HostValues, value: Value) -> int:
    try:
        return int(values.get(value))
    except (Unknown, KeyError):
        return 0
