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

from tiledsl.ir.analysis.constants import trip_count
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import Stride
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ir.ops.role import NumTiles
from tiledsl.ws.check_bounds import Bounds
from tiledsl.ws.check_bounds import bounds_of
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import loaded_factors
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
ONCE, TWICE = LaunchPoint(FAR, (0, 0, 0)), LaunchPoint(2 * FAR, (0, 0, 0))
"""Launches whose trips tell how loops grow."""
LEAST_GROWTH = 8
"""Trips that they differ by where a loop grows: what is left of an extent varies by one or two."""
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

    along, across = _axes_of_tiles(code)

    def tiles(trips: int, number: int) -> LaunchPoint:
        return LaunchPoint(step * trips, _row(across, number * turns, axis, cluster_size))

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
    twice = LaunchPoint(step * 2, _row(along, 3, axis, cluster_size), step=step, units=units)
    empty = (0 if any(_ops(code, NumTiles)) else 1, 1, 1)  # without tiles, one without programs
    few = [LaunchPoint(step, empty), tiles(0, 3)]
    if turns > 1 or not _is_even(code, twice):
        few.append(twice)  # else its tiles are the first ones of the row with two trips
    few += [tiles(n, 2) for n in range(3, told_apart + 1)]
    few += [
        tiles(3 * (not value), 2)._replace(other=(symbol, step * value))
        for symbol in range(len(code.symbols) if len(code.symbols) > 1 else 0)
        for value in (0, 3)
    ]
    if code.uneven:
        grid = _row(along, depth // 2 + 2, axis, cluster_size, (across, 2 * turns))
        few.append(_uneven(code, LaunchPoint(step * (depth + 2), grid, wobble=1)))
    if any(b.is_of_program for b in bounds_of(code)):
        few += [p._replace(program=at) for p in few]
    many = [deep, *(tiles(n, scale * (-(-depth // n) + ENOUGH_TRIPS - 1)) for n in (1, 2))]
    few, many = ([p._replace(step=step, units=units) for p in ps] for ps in (few, many))
    if code.reads:
        early = _early_launches(code, [*few, *many])
        few, many = few + early[: len(few)], many + early[len(few) :]
    return Points(_different_launches(code, few), many)


def _early_launches(code: Program, points: list[LaunchPoint]) -> list[LaunchPoint]:
    """The same launches with smaller numbers loaded, if a loop is entered in those alone."""
    loops = _different(bounds_of(code))
    left = [b for b in loops if not any(b.trips(p, p.program) for p in points)]
    for parts in (2, max(loaded_factors(code).values()) + 1):
        early = [_early(p, parts) for p in points]
        if any(b.trips(p, p.program) for b in left for p in early):
            return early
    return []


def _early(point: LaunchPoint, parts: int) -> LaunchPoint:
    """A launch whose first loaded scalar is a part of the extents, the first of 2 half of them.

    A range that begins there has as many trips as one of the extents had.
    """
    symbol, value = point.other
    return point._replace(
        extent=point.extent * parts, other=(symbol, value * parts), loaded=point.extent
    )


def _where(code: Program, point: LaunchPoint, trips: int) -> tuple[int, int, int]:
    """How far along the axes a tile has to lie for all the trips that the loops may have.

    Along those that bound loops, else along axis 0. Of a window that tiles far away leave, nearer.
    """
    loops = _different([b for b in bounds_of(code) if b.axes])
    axes = {axis for b in loops for axis in b.axes} or {0}

    def place(at: int) -> tuple[LaunchPoint, tuple[int, int, int]]:
        """In the middle of a grid, as tiles may be counted from its end."""
        x, y, z = at * (0 in axes), at * (1 in axes), at * (2 in axes)
        return point._replace(grid=(2 * x or 1, 2 * y or 1, 2 * z or 1)), (x, y, z)

    def trips_at(made: tuple[LaunchPoint, tuple[int, int, int]]) -> list[int]:
        return [min(trips, b.trips(*made)) for b in loops]

    at, far = trips, trips_at(place(ALL_FAR[0]))
    made = place(at)
    for _ in range(MAX_DOUBLINGS):
        made = place(at)
        if all(n >= m for n, m in zip(trips_at(made), far, strict=True)):
            break
        at *= 2
    if sum(trips_at(made)) < trips * len(loops):
        made = max([made, *map(place, range(1, trips))], key=lambda x: sum(trips_at(x)))
    return made[1]


def _axes_of_tiles(code: Program) -> tuple[int, int]:
    """An axis along which tiles may differ in their trips, and one along which they do not.

    0 and 1 where the loops allow it.
    """
    bounding = {axis for b in bounds_of(code) for axis in b.axes}
    along = min(bounding, default=0)
    across = [axis for axis in (1, 2, 0) if axis != along]
    return along, min(across, key=lambda axis: axis in bounding)


def _is_even(code: Program, point: LaunchPoint) -> bool:
    """Whether the first tiles along one axis have the same trips as those along the other one."""
    loops = _different([b for b in bounds_of(code) if b.axes])
    along, across = _axes_of_tiles(code)
    number = point.grid[along]
    sizes = list(point.grid)
    sizes[along], sizes[across] = sizes[across], sizes[along]
    other = point._replace(grid=(sizes[0], sizes[1], sizes[2]))
    tiles = [(point, _at(along, i)) for i in range(number)]
    tiles += [(other, _at(across, i)) for i in range(number)]
    return all(len({b.trips(*tile) for tile in tiles}) == 1 for b in loops)


def _different_launches(code: Program, points: list[LaunchPoint]) -> list[LaunchPoint]:
    """Without those that give all scalars the values of another one."""
    extents = code.reads or not code.symbols or any(_ops(code, Stride))  # also their default

    def key(point: LaunchPoint) -> tuple[object, ...]:
        values = [point.extent_of(number) for number in code.symbols.values()]
        others = (point.grid, point.program, point.wobble, point.loaded)
        return (*values, point.extent if extents else 0, *others)

    found: dict[tuple[object, ...], LaunchPoint] = {}
    for p in points:
        found.setdefault(key(p), p)
    return list(found.values())


def _uneven(code: Program, point: LaunchPoint) -> LaunchPoint:
    """The launch whose tiles differ most in their trips: as given, or with one extent at 0."""
    loops = _different([b for b in bounds_of(code) if b.axes])
    zeroed = [point._replace(other=(symbol, 0)) for symbol in code.symbols.values()]
    along, across = _axes_of_tiles(code)
    tiles = [_at(along, x) for x in range(point.grid[along])]
    tiles.append(_at(across, point.grid[across] - 1))

    def trips(candidate: LaunchPoint) -> int:
        return max(len({b.trips(candidate, ids) for ids in tiles}) for b in loops)

    return max([point, *zeroed], key=trips) if loops else point


def more_points(code: Program, cluster_size: int) -> Iterator[LaunchPoint]:
    """Launches for branches that the others have not taken.

    Odd extents, tiles along both axes; one extent or argument that is odd among even ones, or 0
    among small ones; an argument below 0; programs that are not the first.
    """
    step, units = units_of_trips(code)
    axis = max((o.cluster_axis for o in _ops(code, TileToProgram)), default=-1)
    turns = max((r.instances for r in code.roles), default=1)
    for trips in range(5):
        for extent in (step * trips + 1, step * (trips + 1) - 1, step * trips):
            for x, y in ((turns, 2), (3, turns)):
                grid = _grid(x, y, axis, cluster_size)
                yield LaunchPoint(extent, grid, step=step, units=units)
    grid = _grid(3, turns, axis, cluster_size)
    launch = LaunchPoint(step * 3, grid, step=step, units=units)
    moves = any(b.is_of_program for b in bounds_of(code))
    for value in (1, step // 2 + 1, step - 1, step // 4 + 1):
        for symbol in code.symbols.values():
            yield launch._replace(other=(symbol, value))
            if moves:
                yield launch._replace(other=(symbol, value), program=(2, 1, 0))
    for (_, dim), symbol in code.symbols.items():
        yield launch._replace(extent=1, other=(symbol, 0))
        if dim < 0:
            yield launch._replace(other=(symbol, -2 * step))
    for x in range(1, 4 if moves else 1):
        yield launch._replace(extent=step * 12 + 1, program=(x, 1, 0))


def _grid(x: int, y: int, axis: int, cluster_size: int, z: int = 1) -> tuple[int, int, int]:
    """A grid of x by y by z cluster tiles."""
    sizes = [x, y, z]
    if axis >= 0:
        sizes[axis] *= cluster_size
    return sizes[0], sizes[1], sizes[2]


def _row(
    along: int, number: int, axis: int, cluster_size: int, other: tuple[int, int] = (0, 1)
) -> tuple[int, int, int]:
    """A grid of a number of cluster tiles along one axis; other: a second axis, and its number."""
    sizes = [1, 1, 1]
    sizes[other[0]] = other[1]
    sizes[along] = number
    return _grid(sizes[0], sizes[1], axis, cluster_size, sizes[2])


def _at(axis: int, place: int) -> tuple[int, int, int]:
    """The ids of the program at a place along an axis."""
    return place * (axis == 0), place * (axis == 1), place * (axis == 2)


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
    loops = [(_unit(b), b) for b in _different(bounds_of(code))]
    step = max((unit for unit, _ in loops), default=0) or 1
    units: dict[int, int] = {}
    for unit, b in loops:
        for number in b.symbols if b.is_of_launch else _symbols_of(code, b.loop):
            units[number] = max(unit, units.get(number, 1))
    return step, {number: unit for number, unit in units.items() if unit != step}


def _different(loops: list[Bounds]) -> list[Bounds]:
    """One of all loops with the same bounds: those of different roles."""
    return list({b.key: b for b in loops}.values())


def _symbols_of(code: Program, loop: For) -> list[int]:
    """Numbers of what the bounds of a loop depend on, also by what it carries, or loads."""
    bounds = needed_scalars([loop.lower, loop.upper])
    return [
        number
        for (value, dim), number in code.symbols.items()
        if any(v is value if dim < 0 else _is_extent(v, value, dim) for v in bounds)
    ]


def _is_extent(v: Value, tensor: Value, dim: int) -> bool:
    op = v.defining_op
    return isinstance(op, Shape) and op.tensor is tensor and op.dim == dim


def _unit(bounds: Bounds) -> int:
    """The unit of one loop: its step, unless its bounds are quotients or the like."""
    growth = 0
    for program in (NEAR, ALL_FAR) if bounds.axes else (NEAR,):
        at = [bounds.at(point, program) for point in (ONCE, TWICE)]
        trips = [(high - low) // by if by else 0 for low, high, by in at]
        growth = growth if growth > 0 else trips[1] - trips[0]
    return round(FAR / growth) if growth >= LEAST_GROWTH else abs(bounds.at(ONCE)[2])


def _peeled(code: Program) -> int:
    """How many iterations of loops stand before them, each under a condition of its own."""
    return sum(any(isinstance(o, mma.Issue) for o in i.then.ops) for i in _ops(code, If))


class PointRun(Run):
    """Runs that note the state at the heads of the loops of one thread.

    repeating: loops of which it was seen to repeat in this launch; it is noted no more. count:
    launches so far.
    """

    def __init__(self, code: Program, cluster_size: int) -> None:
        super().__init__(code, cluster_size)
        self.last = [t for t in self.threads if t.cta.rank == 0][-1]
        self.entries: Entries = {}
        self.repeating: set[Op] = set()
        self._growth: dict[Op, list[State]] = {}
        self.count = 0

    def launch(self, point: LaunchPoint) -> None:
        """Runs a launch. Raises Fault."""
        self.run(point)
        self.count += 1

    def watch(self, point: LaunchPoint) -> Entries:
        """The same; returns the states at the heads of the loops of the last thread."""
        self.entries = {}
        self.repeating.clear()
        self.run(point, self.last)
        self.count += 1
        return self.entries

    def head(self, loop: Op, *, is_first: bool) -> None:
        if loop in self.repeating:
            return
        entries = self.entries.setdefault(loop, [])
        if is_first:
            entries.append([])
            self._growth[loop] = []
        states, growth = entries[-1], self._growth[loop]
        states.append(self.snapshot())
        if len(states) > 1:
            growth.append(_grown(*states[-2:]))
            if any(growth[-p:] == growth[-2 * p : -p] for p in range(1, MAX_PERIOD + 1)):
                self.entries[loop] = [states]  # what it does from here on is known
                self.repeating.add(loop)

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
            stand += (len(t.copying), len(t.arriving))
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
        growth = [_grown(a, b) for a, b in pairwise(states)]
        yield op, len(states), first_repeat(growth)


def _grown(before: State, state: State) -> State:
    return before[0], [y - x for x, y in zip(before[1], state[1], strict=True)]


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
        elif trips == trip_count(op):
            out.append(f"{name}: {trips} trips always, and all were followed")
        elif trips < ENOUGH_TRIPS:
            out.append(f"{name}: at most {trips} trips, whatever the extents and arguments tried")
        else:
            return Fault("liveness", f"{name}: its state does not repeat in {trips} trips", op)
    return out
