"""What each thread does in a launch, found out before any of them runs.

Branches and trip counts are functions of the launch. What a thread reads of another one's, such as
the tile that was drawn for it, is taken to be what the other one writes to the slot of the same
count. That is no assumption of the proof: the run checks that each finds what it has gone by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.role import Role
from tiledsl.ws.check_data import is_taken
from tiledsl.ws.check_machine import Machine
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import role_of
from tiledsl.ws.check_repeats import Repeat
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_steps import ASKS
from tiledsl.ws.check_steps import BRANCH
from tiledsl.ws.check_steps import LOOP
from tiledsl.ws.check_steps import MALFORMED
from tiledsl.ws.check_steps import NOTHING
from tiledsl.ws.check_steps import REPEAT
from tiledsl.ws.check_steps import ROWS
from tiledsl.ws.check_steps import SCALARS
from tiledsl.ws.check_steps import WHILE
from tiledsl.ws.check_steps import WORDS
from tiledsl.ws.check_steps import Asking
from tiledsl.ws.check_steps import Block
from tiledsl.ws.check_steps import Branch
from tiledsl.ws.check_steps import Endless
from tiledsl.ws.check_steps import Loop
from tiledsl.ws.check_steps import Row
from tiledsl.ws.check_steps import failing

MAX_ROWS = 1 << 17
"""Rows of a thread that is taken not to end."""
Words = tuple[Any, ...]
Written = dict[int, tuple[Words, int]]
"""Words by the running count of the slot, and the tile at which they were written."""


class Tracer:
    """Follows the control flow of the teams of a launch.

    teams: in such an order that words are written before they are read. watched: the one whose
    loops are noted.
    """

    def __init__(
        self, machine: Machine, teams: list[list[Thread]], watched: Thread | None = None
    ) -> None:
        self._machine = machine
        self._teams = teams
        self._watched = watched
        self._watches = False
        self._reached = machine.reached
        self._chosen_ops = machine.code.chosen
        self._times: dict[Op, int] = {}
        self._written: dict[tuple[int, Value], Written] = {}
        self._follow: dict[int, Callable[[Thread, Any, list[Row]], None]] = {
            ASKS: self._ask,
            BRANCH: self._branch,
            LOOP: self._loop,
            REPEAT: self._repeat,
            WHILE: self._endless,
        }

    def traces(self) -> list[list[Row]]:
        """The rows of each team."""
        return [self._trace(team) for team in self._teams]

    def _trace(self, team: list[Thread]) -> list[Row]:
        """Computed by the first one of the crew, in the place of the first one of the team."""
        out: list[Row] = []
        crew = self._machine.crews[team[0]]
        lead = crew[0]
        lead.place, lead.tile = (team[0].cta.rank, team[0].warpgroup), 0
        lead.env.clear()
        lead.env.update(self._machine.given)
        self._times.clear()
        self._watches = self._watched in team
        try:
            block = self._machine.block(team)
            for compute in block.given:
                compute()
            self._walk(lead, block, out)
        except (Fault, *MALFORMED) as error:
            out.append(failing(error, len(crew)))
        return out

    def _walk(self, t: Thread, block: Block, out: list[Row]) -> None:
        self._reached.add(block.region)
        for kind, item in block.walked:
            if kind == ROWS:
                out += item
            elif kind == SCALARS:
                for compute in item:
                    compute()
            elif kind == WORDS:
                out.append(self._words(t, *item))
            else:
                self._follow[kind](t, item, out)

    def _ask(self, t: Thread, asking: Asking, out: list[Row]) -> None:
        env, op = t.env, asking.op
        out.append(asking.row(env))
        if type(op) is smem.WriteScalars and op.smem in env:
            self._written_at(t, op)[env[op.smem]] = asking.scalars(env), t.tile

    def _repeat(self, t: Thread, repeat: Repeat, out: list[Row]) -> None:
        """The same rows for scalars of the same values."""
        env, at = t.env, len(out)
        if self._machine.forced:
            self._walk(t, repeat.block, out)
            return
        key = (self._watches, *[env.get(v) for v in repeat.inputs])
        if key in repeat.known:
            rows, given = repeat.known[key]
            out += rows
            env.update(given)
        else:
            self._walk(t, repeat.block, out)
            repeat.known[key] = out[at:], {v: env[v] for v in repeat.outputs if v in env}

    def _branch(self, t: Thread, branch: Branch, out: list[Row]) -> None:
        op = branch.op
        taken = self._machine.forced.get(op)
        if taken is None:
            taken = self._chosen(t, op) if op in self._chosen_ops else t.env[op.condition]
        inner, moves = branch.then if taken else branch.orelse
        if inner.rows is not None:
            self._reached.add(inner.region)
            out += inner.rows
        else:
            self._walk(t, inner, out)
        if moves is not NOTHING:
            moves.apply(t.env)
            out += moves.rows

    def _chosen(self, t: Thread, op: Op) -> bool:
        """Whether a branch is taken that follows from data."""
        time = self._times[op] = self._times.get(op, -1) + 1
        return is_taken(self._machine.way, t, self._chosen_ops[op], time)

    def _loop(self, t: Thread, loop: Loop, out: list[Row]) -> None:
        env, op, body = t.env, loop.op, loop.body
        step = env[op.step]
        if step == 0:
            raise Fault("liveness", "a loop with step 0 does not end", op)
        trips = range(env[op.lower], env[op.upper], step)
        if not trips:
            loop.skipped.apply(env)
            out += loop.skipped.rows
            return
        loop.enter.apply(env)
        out += loop.enter.rows
        number, again, watched = op.body.args[0], loop.again, self._watches
        rows = None if watched or again.targets else body.rows
        if rows is not None:
            self._reached.add(body.region)
            check_length(len(trips) * len(rows), op)
            out += (rows + again.rows) * len(trips)
        for i in trips if rows is None else ():
            if watched:
                out.append(loop.first if i == trips[0] else loop.later)
            env[number] = i
            self._walk(t, body, out)
            if again is not NOTHING:
                again.apply(env)
                out += again.rows
            check_length(len(out), op)
        loop.done.apply(env)
        out += loop.done.rows

    def _endless(self, t: Thread, loop: Endless, out: list[Row]) -> None:
        env, number = t.env, 0
        loop.enter.apply(env)
        while True:
            self._walk(t, loop.before, out)
            if not env[loop.condition]:
                break
            if self._watches:
                out.append(loop.later if number else loop.first)
            number += 1
            loop.inside.apply(env)
            self._walk(t, loop.body, out)
            loop.again.apply(env)
            check_length(max(len(out), number), loop.op)
        loop.done.apply(env)

    # ------------------------------------------------------------------ words
    def _written_at(self, t: Thread, op: Any) -> Written:
        """What was written to the buffer of an op."""
        return self._written.setdefault((t.place[0], t.slot(op.smem).buffer), {})

    def _words(self, t: Thread, op: smem.ReadScalars, asking: Asking) -> Row:
        """The row of an op that reads words, which become known."""
        written = self._written_at(t, op)
        found = written.get(t.env[op.smem]) if written else ((None,) * op.count, 0)
        if found is None:
            what = f"{t.slot(op.smem).buffer.name} is read before anything is written to it"
            raise Fault("ordering", what, op)
        words, t.tile = found  # what is loaded now depends on the tile of the writer
        t.env.update(zip(op.results, words, strict=True))
        return asking.of(words)


def check_length(rows: int, op: Op) -> None:
    """A thread that goes on for ever has no trace. Raises Fault."""
    if rows > MAX_ROWS:
        raise Fault("liveness", "a loop does not end", op)


def writers_first(code: Program) -> list[Role]:
    """Roles, such that words are written by earlier ones than those that read them."""
    writes: dict[Role, set[Value]] = {r: set() for r in code.roles}
    reads: dict[Role, set[Value]] = {r: set() for r in code.roles}
    for region, steps in code.code.items():
        for op in [s.op for s in steps if isinstance(s.op, smem.WriteScalars | smem.ReadScalars)]:
            made = op.smem.defining_op
            if isinstance(made, smem.Slot):
                found = writes if isinstance(op, smem.WriteScalars) else reads
                found[role_of(region)].add(made.buffer)
    left, out = list(code.roles), list[Role]()
    while left:
        free = [r for r in left if not any(reads[r] & writes[o] for o in left if o is not r)]
        out.append((free or left)[0])
        left.remove(out[-1])
    return out
