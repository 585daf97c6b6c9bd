"""Launch points of a proof, and the proof that larger trip counts repeat what they show.

At the head of each loop the synchronisation state is noted relative to the loop's own progress.
Execution is a function of that state for as long as the loop goes on. So once two heads in a row
are equal, all later ones are, and leaving the loop later is like leaving it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ws.check_bounds import Bounds
from tiledsl.ws.check_bounds import bounds_of
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import needed_scalars
from tiledsl.ws.check_run import Run
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import Thread

T = TypeVar("T", bound=Op)
State = tuple[list[int], list[int]]
MAX_PERIOD = 4
FAR = 1 << 20
"""An extent that is larger than any step of a loop."""
NEAR, ALL_FAR = (0, 0, 0), (8 * FAR, 8 * FAR, 8 * FAR)
"""Ids of the first program, and of one behind every extent."""
MAX_DOUBLINGS = 6
ENOUGH_TRIPS = 4
"""Trips from which on a loop has to show that its state repeats."""


@dataclass(frozen=True)
class Points:
    """Launches to run, and those in which loops have to show that their state repeats."""

    few: list[LaunchPoint]
    many: list[LaunchPoint]


def launch_points(code: Program, cluster_size: int, scale: int) -> Points:
    """Extents that give the loops every number of trips that some branch tells apart, and many.

    few: no tile, no trip, small numbers of trips, one extent unlike the others, trips that differ
    from tile to tile. many: one and two trips on so many tiles that every ring comes round, and
    many trips on a tile or two, the CTA in the middle of axis 0; `scale` times as many as mostly
    do.
    """
    step, units = units_of_trips(code)
    arrays = [o for o in code.graph.body.ops if isinstance(o, barrier.MbarrierArray)]
    depth = max((o.depth for o in arrays), default=1)
    turns = max((r.instances for r in code.roles), default=1)
    told_apart = _peeled(code) + max((o.pending for o in _ops(code, mma.Wait)), default=0) + 1
    axis = max((o.cluster_axis for o in _ops(code, TileToProgram)), default=-1)

    def tiles(trips: int, number: int) -> LaunchPoint:
        return LaunchPoint(step * trips, _grid(1, number * turns, axis, cluster_size))

    trips = (depth + told_apart + ENOUGH_TRIPS) * scale
    many_trips = LaunchPoint(step * trips + 1, (1, 1, 1), step=step, units=units)
    x, y, z = at = _where(code, many_trips, trips)
    sizes = (2 * x or 1, 2 * y or 1, 2 * z or 1)
    first, total = x + sizes[0] * (y + sizes[1] * z), sizes[0] * sizes[1] * sizes[2]
    clusters = max(1, (total - first) // turns)
    deep = LaunchPoint(
        step * trips + 1,
        _grid(*sizes[:2], axis, cluster_size, sizes[2]),
        clusters=clusters,
        first=first,
        drawn=total - clusters - 1,
        program=at,
    )
    few = [
        LaunchPoint(step, (0, 1, 1)),
        tiles(0, 3),
        LaunchPoint(step * 2, _grid(3, 1, axis, cluster_size)),
    ]
    few += [tiles(n, 2) for n in range(3, told_apart + 1)]
    few += [
        replace(tiles(3 * (not value), 2), other=(symbol, step * value))
        for symbol in range(len(code.symbols) if len(code.symbols) > 1 else 0)
        for value in (0, 3)
    ]
    if code.uneven:
        grid = _grid(depth // 2 + 2, 2 * turns, axis, cluster_size)
        few.append(_uneven(code, LaunchPoint(step * (depth + 2), grid, wobble=1)))
    if any(isinstance(o, ProgramId) for b in bounds_of(code) for o in b.owners):
        few += [replace(p, program=at) for p in few]
    many = [deep, *(tiles(n, scale * (-(-depth // n) + ENOUGH_TRIPS - 1)) for n in (1, 2))]
    return Points(*([replace(p, step=step, units=units) for p in ps] for ps in (few, many)))


def _where(code: Program, point: LaunchPoint, trips: int) -> tuple[int, int, int]:
    """How far along the axes a tile has to lie for all the trips that the loops may have.

    Along those that bound loops, else along axis 0.
    """
    loops = [b for b in bounds_of(code) if b.axes]
    axes = {axis for b in loops for axis in b.axes} or {0}
    at, made = trips, NEAR
    for _ in range(MAX_DOUBLINGS):
        made = (at * (0 in axes), at * (1 in axes), at * (2 in axes))
        if all(b.trips(point, made) >= min(trips, b.trips(point, ALL_FAR)) for b in loops):
            break
        at *= 2
    return made


def _uneven(code: Program, point: LaunchPoint) -> LaunchPoint:
    """The launch whose tiles differ most in their trips: as given, or with one extent at 0."""
    loops = [b for b in bounds_of(code) if b.axes]
    zeroed = [replace(point, other=(symbol, 0)) for symbol in code.symbols.values()]
    tiles = [*((x, 0, 0) for x in range(point.grid[0])), (0, point.grid[1] - 1, 0)]

    def trips(candidate: LaunchPoint) -> int:
        return max(len({b.trips(candidate, ids) for ids in tiles}) for b in loops)

    return max([point, *zeroed], key=trips) if loops else point


def more_points(code: Program, cluster_size: int) -> Iterator[LaunchPoint]:
    """Launches for branches that the others have not taken: odd extents, tiles along both axes."""
    step, units = units_of_trips(code)
    axis = max((o.cluster_axis for o in _ops(code, TileToProgram)), default=-1)
    turns = max((r.instances for r in code.roles), default=1)
    for trips in range(5):
        for extent in (step * trips + 1, step * (trips + 1) - 1, step * trips):
            for x, y in ((turns, 2), (3, turns)):
                grid = _grid(x, y, axis, cluster_size)
                yield LaunchPoint(extent, grid, step=step, units=units)


def _grid(x: int, y: int, axis: int, cluster_size: int, z: int = 1) -> tuple[int, int, int]:
    """A grid of x by y by z cluster tiles."""
    sizes = [x, y, z]
    if axis >= 0:
        sizes[axis] *= cluster_size
    return sizes[0], sizes[1], sizes[2]


def _ops(code: Program, cls: type[T]) -> Iterator[T]:
    return (s.op for steps in code.code.values() for s in steps if isinstance(s.op, cls))


def units_of_trips(code: Program) -> tuple[int, dict[int, int]]:
    """By how much extents have to grow for one more trip of the loops that grow with them.

    The largest of all, and by number of symbol those that are smaller. Nests do not run for as many
    trips in each loop as the shortest step would give them.
    """
    if code.units is None:
        code.units = _units(code)
    return code.units


def _units(code: Program) -> tuple[int, dict[int, int]]:
    loops = [(_unit(b), b.loop) for b in bounds_of(code)]
    step = max((unit for unit, _ in loops), default=0) or 1
    units: dict[int, int] = {}
    for unit, loop in loops:
        bounds = needed_scalars([loop.lower, loop.upper])
        for (value, dim), number in code.symbols.items():
            if any(v is value if dim < 0 else _is_extent(v, value, dim) for v in bounds):
                units[number] = max(unit, units.get(number, 1))
    return step, {number: unit for number, unit in units.items() if unit != step}


def _is_extent(v: Value, tensor: Value, dim: int) -> bool:
    op = v.defining_op
    return isinstance(op, Shape) and op.tensor is tensor and op.dim == dim


def _unit(bounds: Bounds) -> int:
    """The unit of one loop: its step, unless its bounds are quotients or the like."""
    growth = 0
    for program in (NEAR, ALL_FAR) if bounds.axes else (NEAR,):
        at = [bounds.at(LaunchPoint(e, (0, 0, 0)), program) for e in (FAR, 2 * FAR)]
        trips = [(high - low) // by if by else 0 for low, high, by in at]
        growth = growth if growth > 0 else trips[1] - trips[0]
    return round(FAR / growth) if growth > 0 else abs(bounds.at(LaunchPoint(FAR, NEAR))[2])


def _peeled(code: Program) -> int:
    """How many iterations of loops stand before them, each under a condition of its own."""
    return sum(any(isinstance(o, mma.Issue) for o in i.then.ops) for i in _ops(code, If))


class PointRun(Run):
    """A run that notes the state at the heads of the loops of one thread (watch)."""

    def __init__(
        self, code: Program, point: LaunchPoint, cluster_size: int, *, watch: bool = False
    ) -> None:
        super().__init__(code, point, cluster_size)
        self.entries: dict[Op, list[list[State]]] = {}
        if watch:
            own = [t for t in self.threads if t.cta.rank == 0]
            self.watched = own[-1]
            # Components of a clock that stand for one array of mbarriers lie side by side.
            self.spans = {
                cta.rank: [(s[0].index, s[-1].index + 1) for s in cta.barriers.values()]
                for cta in self.ctas
            }

    def head(self, t: Thread, op: Op, number: int) -> None:
        entries = self.entries.setdefault(op, [])
        if number == 0:
            entries.append([])
        entries[-1].append(self.snapshot())

    def snapshot(self) -> State:
        """Where threads stand and what they have in flight; and what only grows.

        That is cursors, phases of mbarriers, and what each thread knows of them.
        """
        stand: list[int] = []
        grown: list[int] = []
        for t in self.threads:
            stand += [t.where.id if t.where is not None else 0, len(t.groups), len(t.stores)]
            env, clock = t.env, t.clock
            grown += [env[v].n if v in env else 0 for v in self.code.cursors[t.role]]
            grown += [sum(clock[a:b]) for a, b in self.spans[t.cta.rank]]
        for cta in self.ctas:
            for slots in cta.barriers.values():
                pending = tx = phases = 0
                for m in slots:
                    pending += m.pending
                    tx += m.tx
                    phases += m.phases
                stand += [pending, tx]
                grown.append(phases)
            for states in cta.buffers.values():
                reads = parts = 0
                for x in states:
                    parts += len(x.parts)
                    for r in x.reads:
                        reads += r.end < 0 or r.of_warps
                stand += [reads, parts]
        return stand, grown

    def steady(self) -> list[tuple[Op, int, int]]:
        """Per loop, the trips seen and the one from which on each trip repeats the one before.

        Then all stand alike, and all that grows grows alike. -1 where there is none.
        """
        out: list[tuple[Op, int, int]] = []
        for op, entries in self.entries.items():
            states = max(entries, key=len)
            growth = [
                (a[0], [y - x for x, y in zip(a[1], b[1], strict=True)])
                for a, b in pairwise(states)
            ]
            out.append((op, len(states), first_repeat(growth)))
        return out


def first_repeat(items: list[State]) -> int:
    """Where a cycle of at most MAX_PERIOD items is followed by the same cycle, -1 where nowhere."""
    for at in range(len(items)):
        for period in range(1, MAX_PERIOD + 1):
            cycle, following = items[at : at + period], items[at + period : at + 2 * period]
            if len(following) == period and cycle == following:
                return at
    return -1


def trips_seen(runs: list[PointRun]) -> dict[Op, tuple[int, int]]:
    """Per loop, the most trips of any run and the one from which on its state repeats, or -1."""
    best: dict[Op, tuple[int, int]] = {}
    for run in runs:
        for op, trips, first in run.steady():
            old_trips, old_first = best.get(op, (0, -1))
            best[op] = (max(trips, old_trips), max(first, old_first))
    return best


def place(op: Op) -> str:
    """A loop, for people."""
    return f"{op.opcode} at {op.loc.short}" if op.loc else f"{op.opcode} over tiles"


def steady_lines(runs: list[PointRun]) -> list[str] | Fault:
    """What to report of the loops of several runs, or what is wrong with one that changes."""
    out: list[str] = []
    for op, (trips, first) in trips_seen(runs).items():
        name = place(op)
        if first >= 0:
            out.append(f"{name}: from trip {first + 1} on each trip repeats the one before")
        elif trips < ENOUGH_TRIPS:
            out.append(f"{name}: at most {trips} trips, whatever the extents and arguments tried")
        else:
            return Fault("liveness", f"{name}: its state does not repeat in {trips} trips", op)
    return out
