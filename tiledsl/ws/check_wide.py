"""Launches for loops that the proof's other launches run for a few trips only.

Bounds that are products, differences or the like of several extents and arguments need values of
their own: the first of some candidates that gives a loop enough trips is taken.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ws.check_points import ENOUGH_TRIPS
from tiledsl.ws.check_program import FAST
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program

SIZES = tuple(1 << n for n in range(2, 13))
"""Extents to try."""


def wide_point(code: Program, loop: For, seen: int, cluster_size: int) -> LaunchPoint | None:
    """A launch in which a loop runs so often that its state has to repeat; None when none does.

    seen: trips in the launches so far; one that gives no more of them is not worth running.
    """
    arrays = [o for o in code.graph.body.ops if isinstance(o, barrier.MbarrierArray)]
    wanted = max((o.depth for o in arrays), default=1) + 2 * ENOUGH_TRIPS
    best, most = None, max(seen, ENOUGH_TRIPS - 1)
    for point in _candidates(code, cluster_size):
        trips = trips_in(code, loop, point)
        if trips > most:
            best, most = point, trips
        if most >= wanted:
            break
    return best


def _candidates(code: Program, cluster_size: int) -> Iterator[LaunchPoint]:
    """Extents alike, or one unlike the others, from small to large."""
    axes = [o.cluster_axis for o in code.graph.walk() if isinstance(o, TileToProgram)]
    turns = max((r.instances for r in code.roles), default=1)
    grid = [1, turns, 1]
    if (axis := max(axes, default=-1)) >= 0:
        grid[axis] *= cluster_size
    for size in SIZES:
        for others in (size, 0, 1):
            for symbol in (-1, *code.symbols.values()):
                yield LaunchPoint(others, (grid[0], grid[1], grid[2]), other=(symbol, size))


def trips_in(code: Program, loop: For, point: LaunchPoint) -> int:
    """Trips of a loop in the first iteration of the loops around it, in the first tile."""
    memo: dict[Value, int] = {}
    low, high, by = (_value(code, v, point, memo) for v in (loop.lower, loop.upper, loop.step))
    return max(0, -(-(high - low) // by)) if by > 0 else 0


def _value(code: Program, v: Value, point: LaunchPoint, memo: dict[Value, int]) -> int:
    op = v.defining_op
    if op is None:
        outside = isinstance(v.owner, Region) and v.owner.parent is None
        return point.extent_of(code.symbols.get((v, -1), -1)) if outside else 0
    if isinstance(op, Shape):
        return point.extent_of(code.symbols.get((op.tensor, op.dim), -1))
    if isinstance(op, NumPrograms):
        return point.grid[op.axis]
    if op.effect is Effect.READ:
        return point.extent
    if v not in memo:
        memo[v] = 0
        known = FAST.get(op.opcode)
        if known is not None:
            operands = [_value(code, o, point, memo) for o in op.operands]
            try:
                memo[v] = int(known(op, *operands))
            except ZeroDivisionError:
                memo[v] = 0
    return memo[v]
