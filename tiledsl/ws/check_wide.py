"""Launches for loops that the proof's other launches run for a few trips only.

Bounds that are products, differences or the like of several extents and arguments need values of
their own: the first of some candidates that gives a loop enough trips is taken. Loops that only
some tiles run need a launch that comes to such tiles.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ws.check_bounds import Bounds
from tiledsl.ws.check_bounds import among_all
from tiledsl.ws.check_bounds import bounds_of
from tiledsl.ws.check_points import ENOUGH_TRIPS
from tiledsl.ws.check_points import units_of_trips
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program

SIZES = tuple(1 << n for n in range(2, 13))
"""Extents to try."""
MOST_TILES = 64
"""Tiles along an axis among which to look for one that runs a loop."""
PROGRAMS = (4, 12)
"""How far along all axes the program lies."""
COARSE = SIZES[::-5]
"""Some of them: a loop that has few trips in all of these has in the others."""


def wide_point(code: Program, loop: For, seen: int, cluster_size: int) -> LaunchPoint | None:
    """A launch in which a loop runs so often that its state has to repeat; None when none does.

    seen: trips in the launches so far; one that gives no more of them is not worth running.
    """
    wanted = enough_trips(code)
    best, most = None, max(seen, ENOUGH_TRIPS - 1)
    bounds = next(b for b in bounds_of(code) if b.loop is loop)
    coarse = _candidates(code, bounds, cluster_size, COARSE)
    if not any(bounds.trips(p, p.program) > most for p in coarse):
        return None
    for point in _candidates(code, bounds, cluster_size, SIZES):
        trips = bounds.trips(point, point.program)
        if trips > most:
            best, most = point, trips
        if most >= wanted:
            break
    return best


def enough_trips(code: Program) -> int:
    """Trips in which a loop has to show that its state repeats, whatever the rings' depth."""
    arrays = [o for o in code.graph.body.ops if isinstance(o, barrier.MbarrierArray)]
    return max((o.depth for o in arrays), default=1) + 2 * ENOUGH_TRIPS


def varied_points(code: Program, loops: list[For], cluster_size: int) -> list[LaunchPoint]:
    """Launches of many trips for the loops which only some tiles run.

    One for all where CTAs walk over tiles, else one for each.
    """
    step, units = units_of_trips(code)
    least = _grid_of(code, cluster_size)
    far = LaunchPoint(step, (MOST_TILES, MOST_TILES, MOST_TILES), step=step, units=units)
    sizes = list(least)
    out: list[LaunchPoint] = []
    for loop in loops:
        kind, axis, place = _where_run(code, loop, far)
        if place <= 0:
            continue
        if kind == "tile":
            sizes[axis] = max(sizes[axis], (place + 1) * least[axis])
        else:
            grid = [n * (place + 1 if d == axis else 1) for d, n in enumerate(least)]
            program = (place * (axis == 0), place * (axis == 1), place * (axis == 2))
            out.append(far._replace(grid=(grid[0], grid[1], grid[2]), program=program))
    grid = sizes[0], sizes[1], sizes[2]
    if grid != least:
        out.append(far._replace(grid=grid))
    return [p._replace(extent=step * enough_trips(code) + 1) for p in out]


def _where_run(code: Program, loop: For, point: LaunchPoint) -> tuple[str, int, int]:
    """Along which axis of the grid a place decides whether a tile (or program) runs a loop.

    And the first place that does, -1 where none is found.
    """
    among = among_all(code)
    numbers = [among.formulas.number(branch.condition) for branch, _ in _branches(loop)]
    leaves = among.leaves()
    found = {leaves[i] for n in numbers for i in among.formulas.uses[n]}
    point = point._replace()  # scalars are kept by point, and there may be more of them now
    for kind, axis in sorted(x for x in found if x[0] in ("tile", "program")):
        for place in range(MOST_TILES):
            program = (place * (axis == 0), place * (axis == 1), place * (axis == 2))
            values = among.at(point, program)
            sides = [side for _, side in _branches(loop)]
            if all(bool(values[n]) == s for n, s in zip(numbers, sides, strict=True)):
                return kind, axis, place
    return "", 0, -1


def _branches(loop: Op) -> Iterator[tuple[If, bool]]:
    """The branches that a loop stands in, and on which side."""
    region: Region | None = loop.parent
    while region is not None and region.parent is not None:
        if isinstance(region.parent, If):
            yield region.parent, region is region.parent.then
        region = region.parent.parent


def _grid_of(code: Program, cluster_size: int) -> tuple[int, int, int]:
    """The smallest grid in which all consumers and CTAs of a cluster have a tile."""
    steps = (s.op for steps in code.code.values() for s in steps)
    axes = [o.cluster_axis for o in steps if isinstance(o, TileToProgram)]
    turns = max((r.instances for r in code.roles), default=1)
    grid = [1, turns, 1]
    if (axis := max(axes, default=-1)) >= 0:
        grid[axis] *= cluster_size
    return grid[0], grid[1], grid[2]


def _candidates(
    code: Program, bounds: Bounds, cluster_size: int, sizes: tuple[int, ...]
) -> Iterator[LaunchPoint]:
    """One extent that bounds the loop unlike the others, or all alike, from small to large.

    Where loaded scalars bound it, also with one half of that as the first of them; where the
    program does, also in others than the first.
    """
    grid = _grid_of(code, cluster_size)
    for size in sizes:
        for others in (1, 0, size):
            for symbol in bounds.symbols if others != size else [-1]:
                point = LaunchPoint(others, grid, other=(symbol, size))
                yield point
                if bounds.is_loaded:
                    yield point._replace(loaded=size // 2)
                if bounds.is_of_program:
                    yield from (point._replace(program=(x, x, x)) for x in PROGRAMS)
