"""The steps of a program in the form in which threads execute them, made once for all launches.

What an op is about - mbarriers, cursors, slots - is looked up here, not at every step.
Warpgroups of a role that do the same are a team: control flow is followed once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple
from typing import cast

from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.mma import ClusterReduce
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ir.ops.role import ClusterRank
from tiledsl.ir.ops.role import NextTile
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ir.ops.smem import Slot
from tiledsl.ir.ops.smem import WriteScalars
from tiledsl.ws.check_program import CONTROL
from tiledsl.ws.check_program import END
from tiledsl.ws.check_program import HANDLED
from tiledsl.ws.check_program import USE
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import Step
from tiledsl.ws.check_program import asked_of
from tiledsl.ws.check_program import role_of
from tiledsl.ws.check_scalars import Env
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import Thread

STRAIGHT, WAITING, PAUSING, HEAD = range(4)
"""Kinds of rows: ops that are done at once; an op at which the thread may wait; one behind which
others get their turn; the head of a loop."""
SCALARS, ROWS, ASKS, WORDS, BRANCH, LOOP, WHILE = range(7)
"""Kinds of items: scalars to compute; rows; a row that depends on scalars; words that are read;
control flow."""
WAITS = (barrier.MbarrierWait, barrier.NamedSync, mma.ClusterReduce)
"""Ops at which a thread may have to wait. A single-thread role pauses where its cursor moves."""
COUNTED = (barrier.CursorCreate, barrier.CursorNext, barrier.CursorSkip, Slot)
"""Ops that move cursors, or stop one in a slot."""
GIVE_SCALARS = (WriteScalars, ClusterReduce, NextTile, TileToProgram)
"""Ops with a rule that hand scalars on."""
MALFORMED = (KeyError, IndexError, TypeError, AttributeError, ValueError, NotImplementedError)
"""What a program that is no program raises."""
Call = Callable[[], Any]
Link = Callable[..., Call | None]
NO_SCALARS: list[Value | None] = []
Row = tuple[int, Any, Any]
"""A kind, what each thread of the team calls, and the op. STRAIGHT: a list of calls each."""
Item = tuple[int, Any]
"""A kind, and what it is about."""


class Rule(NamedTuple):
    """What is to be done for an op.

    calc: gives the function that computes its scalars. link: that of all else, for the scalars of
    which `names` are the operands.
    """

    calc: Callable[[Any, Thread, Any], Call] | None
    link: Link | None
    names: tuple[str, ...]


class Block:
    """A region as a team runs it. rows: all there is to it, where it is nothing but rows."""

    __slots__ = ("items", "region", "rows")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.items: list[Item] = []
        self.rows: list[Row] | None = None


class Maker:
    """Makes the rows of an op from its scalars. indexes: those that are the warpgroup's index."""

    def __init__(self, run: Any, team: list[Thread], op: Any, link: Link, kind: int) -> None:
        self.op = op
        self.indexes: list[int] = []
        self._run = run
        self._team = team
        self._link = link
        self._kind = kind

    def row(self, scalars: Sequence[Any]) -> Row:
        """The row for scalars of the team."""
        calls: list[Any] = []
        for t in self._team:
            if self.indexes:
                scalars = [t.warpgroup if i in self.indexes else x for i, x in enumerate(scalars)]
            try:
                call = self._link(self._run, t, self.op, *scalars)
            except (Fault, *MALFORMED) as error:
                return failing(error, len(self._team))
            if self._kind == STRAIGHT:
                calls.append([] if call is None else [call])
            else:
                calls.append(call or _nothing)
        return self._kind, calls, self.op


class Asking:
    """A row of an op that depends on scalars: made once for all of the same values."""

    def __init__(self, maker: Maker, asked: list[Value | None]) -> None:
        self.op = maker.op
        self._maker = maker
        self._asked = asked
        self._made: dict[tuple[Any, ...], Row] = {}

    def row(self, env: Env) -> Row:
        """The row, for what a thread knows."""
        return self.of(self.scalars(env))

    def scalars(self, env: Env) -> tuple[Any, ...]:
        """What the op asks for."""
        return tuple([None if v is None else env[v] for v in self._asked])

    def of(self, scalars: tuple[Any, ...]) -> Row:
        """The row for scalars."""
        if scalars not in self._made:
            self._made[scalars] = self._maker.row(scalars)
        return self._made[scalars]


class Moves(NamedTuple):
    """What control flow hands on at once: scalars, and by rows results of wgmmas in flight."""

    sources: tuple[Value, ...]
    targets: tuple[Value, ...]
    rows: list[Row]

    def apply(self, env: Env) -> None:
        """Of scalars."""
        if self.targets:
            env.update(zip(self.targets, [env.get(v) for v in self.sources], strict=True))


NOTHING = Moves((), (), [])


class Branch(NamedTuple):
    """then, orelse: blocks, and what becomes the branch's results."""

    op: If
    then: tuple[Block, Moves]
    orelse: tuple[Block, Moves]


class Loop(NamedTuple):
    """enter, again: what the body gets at first and from itself; done, skipped: what comes out.

    first, later: rows that note that an iteration begins.
    """

    op: For
    body: Block
    enter: Moves
    again: Moves
    done: Moves
    skipped: Moves
    first: Row
    later: Row


class Endless(NamedTuple):
    """A `while`. condition: whether it goes on; enter, inside, again, done: what is handed on."""

    op: While
    before: Block
    body: Block
    condition: Value
    enter: Moves
    inside: Moves
    again: Moves
    done: Moves
    first: Row
    later: Row


def teams_of(code: Program, threads: list[Thread], *, whole: bool) -> list[list[Thread]]:
    """Threads whose control flow is the same: nothing in it depends on the warpgroup's index.

    whole: they work on data of their own, each for itself.
    """
    teams: dict[tuple[int, Role], list[Thread]] = {}
    for t in threads:
        teams.setdefault((t.cta.rank, t.role), []).append(t)
    own = set[Role]() if not whole else set(code.roles)
    own |= roles_by_index(code)
    return [
        team
        for (_, r), found in teams.items()
        for team in ([[t] for t in found] if r in own else [found])
    ]


def roles_by_index(code: Program) -> set[Role]:
    """Roles with a scalar that is computed from the index of the warpgroup."""
    indexes = {v for v in code.needed if isinstance(v.defining_op, WarpgroupIndex)}
    found = set[Role]()
    for region, steps in code.code.items():
        for op in [s.op for s in steps if s.kind != HANDLED or type(s.op) in GIVE_SCALARS]:
            if not indexes.isdisjoint(op.operands):
                found.add(role_of(region))
    return found


def decides(code: Program, op: ReadScalars) -> bool:
    """Whether control flow depends on words that are read."""
    return not code.needed.isdisjoint(op.results)


def counted_values(code: Program) -> set[Value]:
    """Buffers of words that decide, and the cursors by which their slots are told apart."""
    if "counted" not in code.tables:
        ops = [s.op for steps in code.code.values() for s in steps if s.kind == HANDLED]
        reads = [o for o in ops if isinstance(o, ReadScalars) and decides(code, o)]
        slots = [o.smem.defining_op for o in reads]
        buffers = {s.buffer for s in slots if isinstance(s, Slot)}
        found = [s for s in ops if isinstance(s, Slot) and s.buffer in buffers]
        code.tables["counted"] = buffers | {s.cursor for s in found if s.cursor is not None}
    return code.tables["counted"]


class Linker:
    """Makes the blocks of a team.

    rules: by op; other ops by `link_scalar` and `link_taken` of the run. whole: everything is
    computed with its data, and threads pause after every op.
    """

    def __init__(
        self, run: Any, team: list[Thread], rules: Mapping[type[Op], Rule], *, whole: bool
    ) -> None:
        self._run = run
        self._team = team
        self._lead = team[0]
        self._rules = rules
        self._whole = whole
        self._code: Program = run.code
        self._known: dict[Value | None, Any] = {None: None, **self._code.constants}
        self._indexes: set[Value | None] = set()
        self._counted: set[Value] = set() if whole else counted_values(self._code)

    def block(self, region: Region) -> Block:
        """A region and those within."""
        made = Block(region)
        writer = _Writer(made.items, hoists=not self._whole)
        for s in self._code.code.get(region, ()):
            if s.kind == HANDLED:
                self._add_handled(writer, s.op)
            elif s.kind == CONTROL:
                writer.add(self._control(s.op))
            elif s.kind != END:
                self._add_scalar(writer, s)
        if not made.items:
            made.rows = []
        elif len(made.items) == 1 and made.items[0][0] == ROWS:
            made.rows = made.items[0][1]
        return made

    # ------------------------------------------------------------------ ops
    def _add_handled(self, writer: _Writer, op: Any) -> None:
        rule = self._rules[type(op)]
        if rule.calc is not None:
            writer.compute(rule.calc(self._run, self._lead, op))
            if isinstance(op, ClusterRank):
                self._known[op.result] = self._lead.cta.rank
            elif isinstance(op, WarpgroupIndex):
                self._known[op.result] = self._lead.warpgroup
                if len(self._team) > 1:
                    self._indexes.add(op.result)
        if rule.link is None:
            return
        if type(op) in COUNTED and not self._counted.isdisjoint((*op.operands, *op.results)):
            writer.compute(_count(self._lead.env, op))
        asked = asked_of(op, rule.names) if rule.names else NO_SCALARS
        maker = Maker(self._run, self._team, op, rule.link, self._kind(op))
        maker.indexes = [i for i, v in enumerate(asked) if v in self._indexes]
        known = self._known
        if isinstance(op, ReadScalars) and (self._whole or decides(self._code, op)):
            writer.add((WORDS, (op, Asking(maker, []))))
        elif not asked or (not self._notes(op) and all(v in known for v in asked)):
            writer.row(maker.row([known[v] for v in asked]))
        else:
            writer.add((ASKS, Asking(maker, asked)), keeps_scalars=True)

    def _notes(self, op: Op) -> bool:
        """Whether an op writes words that decide."""
        made = op.smem.defining_op if isinstance(op, WriteScalars) else None
        return isinstance(made, Slot) and made.buffer in self._counted

    def _kind(self, op: Op) -> int:
        if self._whole or (self._lead.single and type(op) is barrier.CursorNext):
            return PAUSING
        return WAITING if type(op) in WAITS else STRAIGHT

    def _add_scalar(self, writer: _Writer, step: Step) -> None:
        run, op = self._run, step.op
        if step.kind == USE and run.in_flight(*op.operands):
            takes = [[run.link_taken(t, op, *op.operands)] for t in self._team]
            writer.row((STRAIGHT, takes, op))
        if (compute := run.link_scalar(self._lead, step)) is not None:
            writer.compute(compute)

    # ------------------------------------------------------------------ control flow
    def _control(self, op: Op) -> Item:
        match op:
            case If():
                return BRANCH, self._branch(op)
            case For():
                return LOOP, self._loop(op)
            case _:
                return WHILE, self._while(cast("While", op))

    def _branch(self, op: If) -> Branch:
        made = [
            (self.block(r), self._moves(self._yielded(r), op.results)) for r in (op.then, op.orelse)
        ]
        return Branch(op, made[0], made[1])

    def _loop(self, op: For) -> Loop:
        carried, yielded = tuple(op.carried), self._yielded(op.body)
        body = self.block(op.body)
        pairs = [(op.init, carried), (yielded, carried), (yielded, op.results)]
        pairs.append((op.init, op.results))
        enter, again, done, skipped = (self._moves(a, b, carried, op.results) for a, b in pairs)
        heads = (HEAD, True, op), (HEAD, False, op)
        return Loop(op, body, enter, again, done, skipped, *heads)

    def _while(self, op: While) -> Endless:
        before, body = self.block(op.before), self.block(op.body)
        condition, *given = self._yielded(op.before)
        values = tuple(given)
        return Endless(
            op,
            before,
            body,
            condition,
            self._moves(op.init, tuple(op.before.args)),
            self._moves(values, tuple(op.body.args)),
            self._moves(self._yielded(op.body), tuple(op.before.args)),
            self._moves(values, op.results),
            (HEAD, True, op),
            (HEAD, False, op),
        )

    def _yielded(self, region: Region) -> tuple[Value, ...]:
        steps = self._code.code.get(region, ())
        return steps[-1].op.operands if steps and steps[-1].kind == END else ()

    def _moves(
        self, sources: tuple[Value, ...], targets: tuple[Value, ...], *others: tuple[Value, ...]
    ) -> Moves:
        """What becomes of values; of tiles, those in flight. others: that stand for the targets."""
        if not targets and not sources:
            return NOTHING
        flight, needed = self._code.flight, self._code.needed
        pairs = list(zip(sources, targets, *others, strict=True))
        if self._whole:
            return Moves(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs), [])
        kept = [p for p in pairs if not needed.isdisjoint(p[1:])]
        tiles = [p for p in pairs if not flight.isdisjoint(p[1:])]
        rows: list[Row] = []
        if tiles:
            before, after = [p[0] for p in tiles], [p[1] for p in tiles]
            rows.append((STRAIGHT, [[_move(t.env, before, after)] for t in self._team], None))
        return Moves(tuple(p[0] for p in kept), tuple(p[1] for p in kept), rows)


def _count(env: Env, op: Any) -> Call:
    """Counts slots as cursors do: what a cursor, and a slot as a value, stands for."""

    def create() -> None:
        env[op.result] = 0

    def move() -> None:
        env[op.cursor] += env[op.count] if type(op) is barrier.CursorSkip else 1

    def stop() -> None:
        env[op.results[0]] = env[op.cursor] if op.cursor is not None else -1

    return stop if type(op) is Slot else create if type(op) is barrier.CursorCreate else move


def _nothing() -> None:
    """An op at which a thread stops without doing anything."""


def _move(env: Env, sources: list[Value], targets: list[Value]) -> Call:
    def move() -> None:
        env.update(zip(targets, [env.get(v) for v in sources], strict=True))

    return move


class _Writer:
    """Fills the items of a block.

    hoists: scalars are computed ahead of the rows that stand before them.
    """

    def __init__(self, items: list[Item], *, hoists: bool) -> None:
        self._items = items
        self._hoists = hoists
        self._scalars: list[Call] | None = None

    def add(self, item: Item, *, keeps_scalars: bool = False) -> None:
        """Any item; keeps_scalars: it gives none that those behind it may need."""
        self._items.append(item)
        if not keeps_scalars:
            self._scalars = None

    def compute(self, call: Call) -> None:
        """A scalar."""
        if self._scalars is None or not (self._hoists or self._items[-1][0] == SCALARS):
            self._scalars = []
            self._items.append((SCALARS, self._scalars))
        self._scalars.append(call)

    def row(self, row: Row) -> None:
        """A row that depends on no scalars. Those that are done at once are done in one go."""
        if not self._items or self._items[-1][0] != ROWS:
            self._items.append((ROWS, []))
        rows = cast("list[Row]", self._items[-1][1])
        if row[0] == STRAIGHT and rows and rows[-1][0] == STRAIGHT:
            for calls, more in zip(rows[-1][1], row[1], strict=True):
                calls.extend(more)
        elif row[0] != STRAIGHT or any(row[1]):
            rows.append(row)


def failing(error: Exception, threads: int) -> Row:
    """A row of so many threads that raises an error when it is reached."""

    def fail() -> None:
        raise error

    return STRAIGHT, [[fail] for _ in range(threads)], None
