"""Runs a MACHINE program without its data, with a clock for each thread.

What each thread does is known (check_trace): branches and trip counts follow from the launch alone,
never from the order in which threads run. Bulk copies and wgmma are agents of their own, mbarriers
have their real parities. Barriers only count, and no wait can miss its phase (checked). Hence one
order of execution decides for all of them whether the program ends, and the clocks decide for all
of them whether two accesses are ordered.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiledsl.ir.op import Op
from tiledsl.ws.check_machine import Machine
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_steps import HEAD
from tiledsl.ws.check_steps import STRAIGHT
from tiledsl.ws.check_steps import WAITING
from tiledsl.ws.check_steps import Call
from tiledsl.ws.check_steps import Row
from tiledsl.ws.check_trace import Tracer
from tiledsl.ws.check_trace import writers_first


class Track:
    """A thread, and what it has still to do.

    pending: where it waits, the call that it has to repeat.
    """

    __slots__ = ("pending", "rows", "thread")

    def __init__(self, thread: Thread, rows: list[Row]) -> None:
        self.thread = thread
        self.rows: Iterator[Row] = iter(rows)
        self.pending: Call | None = None


class Run(Machine):
    """Runs of a program. One in which all threads do what they did in another one is left out."""

    def __init__(self, code: Program, cluster_size: int) -> None:
        super().__init__(code, cluster_size)
        self._done: list[list[list[Row]]] = []
        self._watched: Thread | None = None
        roles = writers_first(code)
        self.teams.sort(key=lambda team: roles.index(team[0].role))

    def run(self, point: LaunchPoint, watched: Thread | None = None) -> None:
        """Runs every thread to its end. Raises Fault.

        watched: the one for which `head` is called; such a launch is always run.
        """
        self.start(point)
        self._watched = watched
        traces = Tracer(self, self.teams, watched).traces()
        if watched is None and traces in self._done:
            return
        self.reset()
        # Consumers first: a producer runs when nobody else can.
        live = [Track(t, rows) for team, rows in zip(self.teams, traces, strict=True) for t in team]
        live.sort(key=lambda x: (x.thread.loads, x.thread.index))
        while live:
            for track in live:
                t = track.thread
                if t.waits_on is None or not t.waits_on.blocks(t.waits_for):
                    break
            else:
                raise Fault("liveness", self.stuck([x.thread for x in live]), live[0].thread.where)
            if self._advance(track):
                live.remove(track)
                self.finish(t)
        self.check_end()
        self._done.append(traces)

    def _advance(self, track: Track) -> bool:
        """Lets a thread go on to where it waits or pauses; whether it comes to its end."""
        t = track.thread
        number = t.number
        if track.pending is not None and track.pending():
            return False
        track.pending = None
        for kind, what, op in track.rows:
            if kind == STRAIGHT:
                for call in what[number]:
                    call()
            elif kind == HEAD:
                if t is self._watched:
                    self.head(op, is_first=what)
            else:
                t.where = op
                if what[number]():
                    track.pending = what[number]
                    return False
                if kind != WAITING:
                    return False
        return True

    def close(self) -> None:
        super().close()
        self._done.clear()

    def head(self, loop: Op, *, is_first: bool) -> None:
        """Called before each iteration of a loop of the watched thread."""
