"""What the checker executes of a MACHINE graph.

Synchronisation, accesses to shared memory, control flow, and the scalars that those depend on. Tile
math is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from types import MappingProxyType
from typing import Any
from typing import NamedTuple
from typing import cast

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.barrier import CursorCreate
from tiledsl.ir.ops.barrier import NamedArrive
from tiledsl.ir.ops.barrier import NamedSync
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.control import steering_scalars
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.check_data import NO_DATA
from tiledsl.ws.check_data import follows_from_data
from tiledsl.ws.check_data import quiet_loops
from tiledsl.ws.check_data import refuse_data


class LaunchPoint(NamedTuple):
    """One launch that stands for its trip counts.

    extent: value of every tensor extent, integer argument and loaded scalar. grid: of the user.
    clusters: in the launched grid. first: index of the simulated one.
    drawn: tiles that others have drawn from the counter before. other: (number, value) of the one
    extent that is different. wobble: 1 where loaded scalars differ from tile to tile.
    program: ids of the simulated one where CTAs do not walk over tiles.
    step: by how much `extent` grows for one more trip of the loops with the longest steps. units:
    that by number of extent, for those that bound loops of shorter steps only. loaded: as `extent`
    for loaded scalars alone, where it is not -1.
    """

    extent: int
    grid: tuple[int, int, int]
    clusters: int = 1
    first: int = 0
    drawn: int = 0
    other: tuple[int, int] = (-1, 0)
    wobble: int = 0
    program: tuple[int, int, int] = (0, 0, 0)
    step: int = 1
    units: Mapping[int, int] = MappingProxyType({})
    loaded: int = -1

    def extent_of(self, symbol: int) -> int:
        """The extent or argument with a number (`Program.symbols`)."""
        extent = self.other[1] if symbol == self.other[0] else self.extent
        unit = self.units.get(symbol, self.step)
        return extent if unit == self.step else extent * unit // self.step

    def loaded_of(self, factor: int) -> int:
        """The loaded scalar with a factor (`loaded_factors`)."""
        return (self.extent if self.loaded < 0 else self.loaded) * factor


class Step:
    """One op to execute. kind: how; result: of a scalar without a rule that decides something."""

    __slots__ = ("kind", "op", "result")

    def __init__(self, op: Op, kind: int, result: Value | None = None) -> None:
        self.op = op
        self.kind = kind
        self.result = result


HANDLED, SCALAR, USE, END, CONTROL = range(5)
"""Kinds of steps: an op with a rule; a scalar; a use of tiles; a terminator; control flow."""
KINDS: dict[type[Op], int] = {For: CONTROL, If: CONTROL, While: CONTROL, Yield: END}


@dataclass
class Program:
    """A graph, cut down to what synchronises.

    code: per region, the steps that matter in order. flight: values that may be results of wgmmas
    in flight. named: ids of named barriers in use. symbols: numbers of the extents (tensor,
    dimension) and of the arguments (value, -1) that decide something. uneven: trips depend on the
    tile. unknown: ops that the checker cannot judge.
    reads: loads of scalars that decide something. cursors: of each role. constants: values of the
    constants, which are no steps. chosen: branches that follow from data, with their numbers.
    units: as units_of_trips found them. tables: see check_bounds.
    """

    graph: TileGraph
    roles: list[Role]
    code: dict[Region, list[Step]]
    flight: set[Value]
    needed: set[Value]
    named: set[int]
    symbols: dict[tuple[Value, int], int]
    uneven: bool
    unknown: list[Op] = field(default_factory=list[Op])
    reads: list[Op] = field(default_factory=list[Op])
    cursors: dict[Role, list[Value]] = field(default_factory=dict[Role, list[Value]])
    constants: dict[Value, Any] = field(default_factory=dict[Value, Any])
    chosen: Mapping[Op, int] = field(default_factory=dict[Op, int])
    units: tuple[int, dict[int, int]] | None = None
    tables: dict[Any, Any] = field(default_factory=dict[Any, Any])


def flight_values(ops: list[Op]) -> set[Value]:
    """Values that may stand for wgmmas in flight, carried through control flow."""
    flight: set[Value] = set()
    found = [o for o in ops if type(o) in (mma.Issue, For, If)]
    before = -1
    while before != len(flight):
        before = len(flight)
        for op in found:
            _spread(op, flight)
    return flight


def _spread(op: Op, flight: set[Value]) -> None:
    match op:
        case mma.Issue():
            flight.update(op.results)
        case For():
            pairs = [*zip(op.init, op.carried, strict=True), *zip(op.init, op.results, strict=True)]
            pairs += _yielded(op.body, op.carried) + _yielded(op.body, op.results)
            flight.update(b for a, b in pairs if a in flight)
        case If():
            pairs = _yielded(op.then, op.results) + _yielded(op.orelse, op.results)
            flight.update(b for a, b in pairs if a in flight)
        case _:
            pass


def _yielded(region: Region, targets: tuple[Value, ...]) -> list[tuple[Value, Value]]:
    end = region.terminator
    return list(zip(end.values, targets, strict=False)) if isinstance(end, Yield) else []


def needed_scalars(roots: list[Value]) -> set[Value]:
    """Backward slice of scalars from `roots`, through carried values and branches."""
    needed: set[Value] = set()
    work = list(roots)
    while work:
        v = work.pop()
        if v in needed or isinstance(v.type, TileType):
            continue
        needed.add(v)
        owner = v.owner
        work += _argument_sources(owner, v) if isinstance(owner, Region) else _sources(owner, v)
    return needed


def _argument_sources(region: Region, v: Value) -> list[Value]:
    """What the argument of a loop's region takes its values from."""
    parent = region.parent
    if isinstance(parent, While):
        return _while_sources(parent, v)
    if not isinstance(parent, For):
        return []
    if v.index == 0:
        return [parent.lower, parent.step]
    carried = [a for a, b in _yielded(parent.body, parent.carried) if b is v]
    return [parent.init[v.index - 1], *carried]


def _sources(op: Op, v: Value) -> list[Value]:
    """What a result takes its value from."""
    match op:
        case If():
            ends = _yielded(op.then, op.results) + _yielded(op.orelse, op.results)
            return [op.condition, *(a for a, b in ends if b is v)]
        case For():
            return [op.init[v.index], *(a for a, b in _yielded(op.body, op.results) if b is v)]
        case While():
            end = op.before.terminator
            assert isinstance(end, Yield)
            return [end.values[v.index + 1]]
        case _:
            return list(op.operands)


def drawn_axis(v: Value) -> int:
    """The axis of a program id that came through the channel of drawn tiles, -1 for others.

    What may be negative are other numbers of a tile.
    """
    sources = drawn_sources(v)
    read = sources[0].defining_op if len(sources) == 1 else None
    is_place = isinstance(read, ReadScalars) and read.count > 1 and not read.signed
    return sources[0].index - 1 if is_place else -1


def drawn_sources(v: Value) -> list[Value]:
    """What an argument of a `while` takes its values from."""
    loop = v.owner.parent if isinstance(v.owner, Region) else None
    return _while_sources(loop, v) if isinstance(loop, While) else []


def _while_sources(loop: While, v: Value) -> list[Value]:
    ends = (loop.before.terminator, loop.body.terminator)
    assert isinstance(ends[0], Yield)
    assert isinstance(ends[1], Yield)
    if v in loop.body.args:
        return [ends[0].values[v.index + 1]]
    return [loop.init[v.index], ends[1].values[v.index]]


def role_of(region: Region) -> Role:
    """The role that a region belongs to."""
    while not isinstance(region.parent, Role):
        assert region.parent is not None
        assert region.parent.parent is not None
        region = region.parent.parent
    return region.parent


def never_runs(region: Region, reached: set[Region]) -> bool:  # noqa: C901 - a line per case
    """Whether a part of the program that was not reached cannot be, in any launch.

    What is around it, loops and no branches, was run, and whether it is entered follows from
    constants alone: those of the condition, and the bounds of the loops that the condition counts.
    """
    op = region.parent
    if op is None or op.parent not in reached:
        return False
    around = op.parent
    while around is not None and around.parent is not None:
        if isinstance(around.parent, If):
            return False
        around = around.parent.parent
    match op:
        case If():
            work: list[Value] = [op.condition]
        case For():
            work = [op.lower, op.upper, op.step]
        case _:
            return False
    seen: set[Value] = set()
    while work:
        found = needed_scalars(work) - seen
        seen |= found
        work = []
        for v in found:
            owner = v.owner
            if isinstance(owner, Region):
                if not isinstance(owner.parent, For):
                    return False
                work.append(owner.parent.upper)
            elif not owner.operands and not isinstance(owner, Constant):
                return False
    return True


def cut_down(
    graph: TileGraph, rules: Mapping[type[Op], tuple[str, ...]], *, whole: bool = False
) -> Program:
    """The program that the checker runs.

    rules: per op that it knows, the scalar operands that it needs. whole: keep everything, for a
    simulation with data.
    """
    roles: list[Role] = [o for o in graph.body.ops if isinstance(o, Role)]
    by_role = {r: _control_walk(r.body) for r in roles}
    ops = [o for found in by_role.values() for o in found]
    flight = flight_values(ops)
    needed = needed_scalars(_roots(ops, rules))
    quiet = set[Op]() if whole else quiet_loops(ops, needed, rules, flight)
    if quiet:
        ops = [o for o in ops if o not in quiet]
        needed = needed_scalars(_roots(ops, rules))
    data = NO_DATA if whole else follows_from_data(graph, ops, needed, rules, flight)
    if data.values:
        ops = [o for o in ops if o not in data.left_out]
        needed = needed_scalars(_roots([o for o in ops if o not in data.chosen], rules))
        refuse_data(needed, data.values)
    made = Program(
        graph=graph,
        roles=roles,
        code={},
        flight=flight,
        needed=needed,
        named=named_barriers(ops, roles),
        symbols=number_symbols(graph, ops, needed),
        uneven=has_uneven_tiles(ops),
        cursors={
            r: [o.result for o in found if type(o) is CursorCreate] for r, found in by_role.items()
        },
    )
    made.chosen = {op: number for number, op in enumerate(data.chosen)}
    for op in ops:
        cls = type(op)
        kind = HANDLED if cls in rules else KINDS.get(cls, SCALAR)
        if kind == SCALAR:
            _add_scalar(made, op, whole=whole)
        else:
            _add(made, Step(op, kind))
    return made


def _add_scalar(made: Program, op: Op, *, whole: bool) -> None:
    """An op without a rule, if anything depends on it."""
    decides = not made.needed.isdisjoint(op.results)
    if type(op) is Constant and not whole:
        if decides:
            made.constants[op.result] = op.value
        return
    if op.effect is Effect.SYNC:
        made.unknown.append(op)
    uses = not made.flight.isdisjoint(op.operands)
    if whole or decides or uses:
        result = op.results[0] if decides and len(op.results) == 1 else None
        _add(made, Step(op, USE if uses else SCALAR, result))


def _add(made: Program, step: Step) -> None:
    op = step.op
    assert op.parent is not None
    made.code.setdefault(op.parent, []).append(step)
    if op.effect is Effect.READ and type(op) is not ReadScalars:
        made.reads.append(op)


def has_uneven_tiles(ops: list[Op]) -> bool:
    """Whether bounds of a loop depend on the tile or on loaded data."""
    bounds = [v for o in ops if type(o) is For for v in (o.lower, o.upper)]
    owners = [v.owner for v in needed_scalars(bounds)]
    return any(
        isinstance(o, Op) and (isinstance(o, TileToProgram) or o.effect is Effect.READ)
        for o in owners
    )


def number_symbols(
    graph: TileGraph, ops: list[Op], needed: set[Value]
) -> dict[tuple[Value, int], int]:
    """Numbers for what a launch may choose."""
    keys: dict[tuple[Value, int], None] = {
        (a, -1): None for a in graph.args if a in needed and isinstance(a.type, ScalarType)
    }
    for op in ops:
        if type(op) is Shape and op.result in needed:
            keys[tensors_of(op.tensor)[0], op.dim] = None
    return {key: i for i, key in enumerate(keys)}


def named_barriers(ops: list[Op], roles: list[Role]) -> set[int]:
    """Ids of the named barriers that the roles use."""
    groups = max((r.num_warpgroups for r in roles), default=1)
    found: set[int] = set()
    for op in ops:
        if type(op) in (NamedSync, NamedArrive):
            op = cast("NamedSync", op)
            found |= {op.base + i for i in (range(groups) if op.index is not None else (0,))}
    return found


def _control_walk(region: Region) -> list[Op]:
    """Ops of a region and of the control flow in it; what tile ops hold runs in lanes."""
    out: list[Op] = []
    for op in region.ops:
        out.append(op)
        if op.regions and type(op) in KINDS:
            for r in op.regions:
                out += _control_walk(r)
    return out


def _roots(ops: list[Op], rules: Mapping[type[Op], tuple[str, ...]]) -> list[Value]:
    """The scalars that ops need by themselves."""
    out: list[Value] = []
    for op in ops:
        names = rules.get(type(op))
        if names is not None:
            out += [v for v in asked_of(op, names) if v is not None] if names else ()
        elif type(op) in KINDS:
            out += steering_scalars(op)
    return out


def asked_of(op: Op, names: tuple[str, ...]) -> list[Value | None]:
    """The scalar operands of an op by the names of its fields, None for those that are absent."""
    found: list[Value | None] = []
    for name in names:
        value = getattr(op, name)
        found += value if isinstance(value, tuple) else (value,)
    return found


def loaded_factors(code: Program) -> dict[Op, int]:
    """By which the extent is multiplied for the scalars that a program loads, made once.

    The same for the clones of one load. They grow faster and faster in the order of the source: the
    end of a range that is loaded after its begin lies behind it, and of two ranges the later one is
    longer.
    """
    if "loaded" not in code.tables:
        places = sorted({_place(o) for o in code.reads})
        order = {o: places.index(_place(o)) for o in code.reads}
        code.tables["loaded"] = {o: 1 + i * (i + 1) // 2 for o, i in order.items()}
    return code.tables["loaded"]


def _place(op: Op) -> tuple[int, int]:
    return (op.loc.line, op.loc.col) if op.loc is not None else (0, 0)
