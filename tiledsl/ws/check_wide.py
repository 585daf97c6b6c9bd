"""Launches for loops that the proof's other launches run for a few trips only.

Bounds that are products, differences or the like of several extents and arguments need values of
their own: the first of some candidates that gives a loop enough trips is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiledsl.ir.ops import barrier
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ws.check_bounds import Bounds
from tiledsl.ws.check_bounds import bounds_of
from tiledsl.ws.check_points import ENOUGH_TRIPS
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program

SIZES = tuple(1 << n for n in range(2, 13))
"""Extents to try."""
COARSE = SIZES[::-5]
"""Some of them: a loop that has few trips in all of these has in the others."""


def wide_point(code: Program, loop: For, seen: int, cluster_size: int) -> LaunchPoint | None:
    """A launch in which a loop runs so often that its state has to repeat; None when none does.

    seen: trips in the launches so far; one that gives no more of them is not worth running.
    """
    arrays = [o for o in code.graph.body.ops if isinstance(o, barrier.MbarrierArray)]
    wanted = max((o.depth for o in arrays), default=1) + 2 * ENOUGH_TRIPS
    best, most = None, max(seen, ENOUGH_TRIPS - 1)
    bounds = next(b for b in bounds_of(code) if b.loop is loop)
    if not any(bounds.trips(p) > most for p in _candidates(code, bounds, cluster_size, COARSE)):
        return None
    for point in _candidates(code, bounds, cluster_size, SIZES):
        trips = bounds.trips(point)
        if trips > most:
            best, most = point, trips
        if most >= wanted:
            break
    return best


def _candidates(
    code: Program, bounds: Bounds, cluster_size: int, sizes: tuple[int, ...]
) -> Iterator[LaunchPoint]:
    """One extent that bounds the loop unlike the others, or all alike, from small to large."""
    steps = (s.op for steps in code.code.values() for s in steps)
    axes = [o.cluster_axis for o in steps if isinstance(o, TileToProgram)]
    turns = max((r.instances for r in code.roles), default=1)
    grid = [1, turns, 1]
    if (axis := max(axes, default=-1)) >= 0:
        grid[axis] *= cluster_size
    for size in sizes:
        for others in (1, 0, size):
            for symbol in bounds.symbols if others != size else [-1]:
                yield LaunchPoint(others, (grid[0], grid[1], grid[2]), other=(symbol, size))
