"""Launch points of a proof, and the proof that larger trip counts repeat what they show.

At the head of each loop the synchronisation state is noted relative to the loop's own progress.
Execution is a function of that state for as long as the loop goes on. So once two heads in a row
are equal, all later ones are, and leaving the loop later is like leaving it there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ws.check_bounds import Bounds
from tiledsl.ws.check_bounds import bounds_of
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import needed_scalars
from tiledsl.ws.check_run import Run
from tiledsl.ws.check_state import Clock
from tiledsl.ws.check_state import Fault

T = TypeVar("T", bound=Op)
State = tuple[list[int], list[int]]
Entries = dict[Op, list[list[State]]]
"""By loop, the states at its heads, each time that it was run."""
MAX_PERIOD = 8
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
        tiles(3 * (not value), 2)._replace(other=(symbol, step * value))
        for symbol in range(len(code.symbols) if len(code.symbols) > 1 else 0)
        for value in (0, 3)
    ]
    if code.uneven:
        grid = _grid(depth // 2 + 2, 2 * turns, axis, cluster_size)
        few.append(_uneven(code, LaunchPoint(step * (depth + 2), grid, wobble=1)))
    if any(b.is_of_program for b in bounds_of(code)):
        few += [p._replace(program=at) for p in few]
    many = [deep, *(tiles(n, scale * (-(-depth // n) + ENOUGH_TRIPS - 1)) for n in (1, 2))]
    return Points(*([p._replace(step=step, units=units) for p in ps] for ps in (few, many)))


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
    zeroed = [point._replace(other=(symbol, 0)) for symbol in code.symbols.values()]
    tiles = [*((x, 0, 0) for x in range(point.grid[0])), (0, point.grid[1] - 1, 0)]

    def trips(candidate: LaunchPoint) -> int:
        return max(len({b.trips(candidate, ids) for ids in tiles}) for b in loops)

    return max([point, *zeroed], key=trips) if loops else point


def more_points(code: Program, cluster_size: int) -> Iterator[LaunchPoint]:
    """Launches for branches that the others have not taken.

    Odd extents, tiles along both axes; at last one extent or argument that is odd among even ones.
    """
    step, units = units_of_trips(code)
    axis = max((o.cluster_axis for o in _ops(code, TileToProgram)), default=-1)
    turns = max((r.instances for r in code.roles), default=1)
    for trips in range(5):
        for extent in (step * trips + 1, step * (trips + 1) - 1, step * trips):
            for x, y in ((turns, 2), (3, turns)):
                grid = _grid(x, y, axis, cluster_size)
                yield LaunchPoint(extent, grid, step=step, units=units)
    for value in (1, step // 2 + 1, step - 1):
        for symbol in code.symbols.values():
            grid = _grid(3, turns, axis, cluster_size)
            yield LaunchPoint(step * 3, grid, other=(symbol, value), step=step, units=units)


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
    """Runs that note the state at the heads of the loops of one thread. count: launches so far."""

    def __init__(self, code: Program, cluster_size: int) -> None:
        super().__init__(code, cluster_size)
        self.last = [t for t in self.threads if t.cta.rank == 0][-1]
        self.entries: Entries = {}
        self.count = 0

    def launch(self, point: LaunchPoint) -> None:
        """Runs a launch. Raises Fault."""
        self.run(point)
        self.count += 1

    def watch(self, point: LaunchPoint) -> Entries:
        """The same; returns the states at the heads of the loops of the last thread."""
        self.entries = {}
        self.run(point, self.last)
        self.count += 1
        return self.entries

    def head(self, loop: Op, *, is_first: bool) -> None:
        entries = self.entries.setdefault(loop, [])
        if is_first:
            entries.append([])
        entries[-1].append(self.snapshot())

    def snapshot(self) -> State:
        """Where threads stand and what they have in flight; and what only grows.

        That is cursors, phases of mbarriers, and what each thread knows of them.
        """
        stand: list[int] = []
        grown: list[int] = []
        past: list[list[Clock]] = []
        for cta in self.ctas:
            past.append([])
            for slots in cta.barriers.values():
                pending = tx = phases = known = 0
                for m in slots:
                    pending += m.pending
                    tx += m.tx
                    phases += m.phases
                    known |= m.past
                stand += (pending, tx)
                grown.append(phases)
                past[-1].append(known)
            for states in cta.buffers.values():
                reads = parts = 0
                for x in states:
                    parts += len(x.parts)
                    over: set[int] = set()  # a thread's last read stands for those before
                    for r in x.reads:
                        if not r.end or (r.of_warps and r.thread not in over):
                            reads += 1
                            if r.end:
                                over.add(r.thread)
                stand += (reads, parts)
        for t in self.threads:
            stand += (t.where.id if t.where is not None else 0, len(t.groups), len(t.stores))
            clock, cursors = t.clock, t.cursors
            grown += [cursors[v].n for v in self.code.cursors[t.role] if v in cursors]
            grown += [(clock & known).bit_count() for known in past[t.cta.rank]]
        return stand, grown


def steady(noted: Entries) -> Iterator[tuple[Op, int, int]]:
    """Per loop, the trips seen and the one from which on each trip repeats the one before.

    Then all stand alike, and all that grows grows alike. -1 where there is none.
    """
    for op, entries in noted.items():
        states = max(entries, key=len)
        growth = [
            (a[0], [y - x for x, y in zip(a[1], b[1], strict=True)]) for a, b in pairwise(states)
        ]
        yield op, len(states), first_repeat(growth)


def first_repeat(items: list[State]) -> int:
    """Where a cycle of at most MAX_PERIOD items is followed by the same cycle, -1 where nowhere."""
    for at in range(len(items)):
        for period in range(1, MAX_PERIOD + 1):
            cycle, following = items[at : at + period], items[at + period : at + 2 * period]
            if len(following) == period and cycle == following:
                return at
    return -1


def trips_seen(runs: list[Entries]) -> dict[Op, tuple[int, int]]:
    """Per loop, the most trips of any run and the one from which on its state repeats, or -1."""
    best: dict[Op, tuple[int, int]] = {}
    for noted in runs:
        for op, trips, first in steady(noted):
            old_trips, old_first = best.get(op, (0, -1))
            best[op] = (max(trips, old_trips), max(first, old_first))
    return best


def place(op: Op) -> str:
    """A loop, for people."""
    return f"{op.opcode} at {op.loc.short}" if op.loc else f"{op.opcode} over tiles"


def steady_lines(runs: list[Entries]) -> list[str] | Fault:
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
