"""Threads of a MACHINE program as coroutines that may be interrupted after every op.

For runs with data, in which control flow follows from what is computed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from tiledsl.ws.check_machine import Machine
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_steps import ASKS
from tiledsl.ws.check_steps import BRANCH
from tiledsl.ws.check_steps import LOOP
from tiledsl.ws.check_steps import ROWS
from tiledsl.ws.check_steps import SCALARS
from tiledsl.ws.check_steps import STRAIGHT
from tiledsl.ws.check_steps import WORDS
from tiledsl.ws.check_steps import Block
from tiledsl.ws.check_steps import Endless
from tiledsl.ws.check_steps import Loop
from tiledsl.ws.check_steps import Row

Steps = Generator[bool, None, None]
"""Yields True where the thread did something, False where it still waits."""


class Coroutines(Machine):
    """A machine whose threads compute with data as they go."""

    whole = True

    def steps(self, t: Thread) -> Steps:
        """All that a thread does."""
        return self._block(t, self.block([t]))

    def _block(self, t: Thread, block: Block) -> Steps:
        for kind, item in block.items:
            if kind == ROWS:
                for row in item:
                    yield from self._row(t, row)
            elif kind == SCALARS:
                for compute in item:
                    compute()
            elif kind == ASKS:
                yield from self._row(t, item.of(integers(item.scalars(t.env))))
            elif kind == WORDS:
                op, asking = item
                yield from self._row(t, asking.of((None,) * op.count))
            elif kind == BRANCH:
                inner, moves = item.then if t.env[item.op.condition] else item.orelse
                yield from self._block(t, inner)
                moves.apply(t.env)
            elif kind == LOOP:
                yield from self._loop(t, item)
            else:
                yield from self._endless(t, item)

    def _row(self, t: Thread, row: Row) -> Steps:
        kind, what, op = row
        if kind == STRAIGHT:
            for call in what[0]:
                call()
            return
        t.where = op
        t.steps += 1
        while what[0]():
            yield False
        yield True

    def _loop(self, t: Thread, loop: Loop) -> Steps:
        env, op = t.env, loop.op
        if env[op.step] == 0:
            raise Fault("liveness", "a loop with step 0 does not end", op)
        trips = range(*(int(env[v]) for v in (op.lower, op.upper, op.step)))
        loop.enter.apply(env)
        for i in trips:
            env[op.body.args[0]] = i
            yield from self._block(t, loop.body)
            loop.again.apply(env)
        (loop.done if trips else loop.skipped).apply(env)

    def _endless(self, t: Thread, loop: Endless) -> Steps:
        env = t.env
        loop.enter.apply(env)
        while True:
            yield from self._block(t, loop.before)
            if not env[loop.condition]:
                break
            loop.inside.apply(env)
            yield from self._block(t, loop.body)
            loop.again.apply(env)
        loop.done.apply(env)


def integers(scalars: tuple[Any, ...]) -> tuple[int | None, ...]:
    """Scalars as ops take them."""
    return tuple([None if x is None else int(x) for x in scalars])
