"""The steps of a program in the form in which threads execute them, made once for all launches.

What an op is about - mbarriers, cursors, slots - is looked up here, not at every step, for all
threads of a role together: its crew. Those of them that do the same are a team: control flow is
followed once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ws.check_scalars import Env
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import Thread

STRAIGHT, WAITING, PAUSING, HEAD = range(4)
"""Kinds of rows: ops that are done at once; an op at which the thread may wait; one behind which
others get their turn; the head of a loop."""
SCALARS, ROWS, ASKS, WORDS, BRANCH, LOOP, WHILE, REPEAT = range(8)
"""Kinds of items: scalars to compute; rows; a row that depends on scalars; words that are read;
control flow; items that are followed once for scalars of the same values."""
WAITS = (barrier.MbarrierWait, barrier.NamedSync, mma.ClusterReduce)
"""Ops at which a thread may have to wait. A single-thread role pauses where its cursor moves."""
MALFORMED = (KeyError, IndexError, TypeError, AttributeError, ValueError, NotImplementedError)
"""What a program that is no program raises."""
Call = Callable[[], Any]
Link = Callable[..., Call | None]
Row = tuple[int, Any, Any]
"""A kind, what each thread of the crew calls, and the op. STRAIGHT: a list of calls each."""
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
    """A region as a crew runs it.

    given: for a role, the scalars that follow from the launch. walked: the items, some of them
    together. pure: whether its rows follow from scalars alone. loops: whether there are any in it.
    rows: all there is to it, where it is nothing but rows.
    """

    __slots__ = ("given", "items", "loops", "pure", "region", "rows", "walked")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.given: list[Call] = []
        self.items: list[Item] = []
        self.walked = self.items
        self.pure = True
        self.loops = False
        self.rows: list[Row] | None = None


def row_of(
    run: Any, crew: list[Thread], op: Any, link: Link, kind: int, scalars: Sequence[Any] = ()
) -> Row:
    """The row of an op, for scalars that the crew has in common."""
    calls: list[Any] = []
    for t in crew:
        try:
            call = link(run, t, op, *scalars)
        except (Fault, *MALFORMED) as error:
            call = _failure(error)
        if kind == STRAIGHT:
            calls.append([] if call is None else [call])
        else:
            calls.append(call or _nothing)
    return kind, calls, op


class Maker:
    """Makes the rows of an op from its scalars.

    indexes, ranks: numbers of those that are the index of the warpgroup, the rank of the CTA.
    """

    def __init__(
        self,
        run: Any,
        crew: list[Thread],
        op: Any,
        link: Link,
        kind: int,
        indexes: list[int],
        ranks: list[int],
    ) -> None:
        self.op = op
        self._run = run
        self._crew = crew
        self._link = link
        self._kind = kind
        self._indexes = indexes
        self._ranks = ranks

    def row(self, scalars: Sequence[Any]) -> Row:
        """The row for scalars that the crew has in common, but for those of a thread's place."""
        own = self._link_own if self._indexes or self._ranks else self._link
        return row_of(self._run, self._crew, self.op, own, self._kind, scalars)

    def _link_own(self, run: Any, t: Thread, op: Any, *scalars: Any) -> Call | None:
        own = list(scalars)
        for i in self._indexes:
            own[i] = t.warpgroup
        for i in self._ranks:
            own[i] = t.cta.rank
        return self._link(run, t, op, *own)


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


def _nothing() -> None:
    """An op at which a thread stops without doing anything."""


def failing(error: Exception, threads: int) -> Row:
    """A row of so many threads that raises an error when it is reached."""
    return STRAIGHT, [[_failure(error)] for _ in range(threads)], None


def _failure(error: Exception) -> Call:
    def fail() -> None:
        raise error

    return fail
