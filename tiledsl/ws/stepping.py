"""A simulation that stops and answers: breakpoints, and what slots and barriers hold.

    kernel = attention.compile(q, k, v, o, scale, grid=grid)
    run = tiledsl.simulator.step(kernel, {"q": q, "k": k, "v": v, "o": o, "scale": scale}, grid)
    run.until(role="consumer", line=31)
    print(run.slot("k", 2))

Nothing that is asked changes the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import TypeVar

import numpy as np

from tiledsl.errors import LaunchError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import SlotState
from tiledsl.ws.check_state import Thread
from tiledsl.ws.simulate import simulations
from tiledsl.ws.simulation import Simulation

T = TypeVar("T", SlotState, Barrier)


@dataclass(frozen=True)
class Stop:
    """Where a thread of a role has just executed an op. line: of the source, 0 where unknown."""

    role: str
    cta: int
    op: str
    line: int
    place: str

    def __str__(self) -> str:
        return f"{self.role} (CTA {self.cta}): {self.op} at {self.place}"


@dataclass(frozen=True)
class SlotView:
    """What is in a slot.

    written_by: the op that filled it, "" before any. use: of the ring, -1 where none is known.
    under_way: bytes of a copy have still to come. readers: who may still read it. data: a copy.
    """

    name: str
    written_by: str
    use: int
    under_way: bool
    readers: tuple[str, ...]
    data: np.ndarray

    def __str__(self) -> str:
        if not self.written_by:
            return f"{self.name}: nothing was written to it yet"
        state = "on its way" if self.under_way else "there"
        which = f"use {self.use}, " if self.use >= 0 else ""
        by = ", ".join(self.readers) or "nobody"
        shape = "x".join(map(str, self.data.shape))
        return (
            f"{self.name}: {which}{shape} by {self.written_by}, {state}; read by {by} at this time"
        )


@dataclass(frozen=True)
class BarrierView:
    """An mbarrier: completed phases, and of the present one arrivals and bytes to come."""

    name: str
    phases: int
    arrived: int
    expected: int
    bytes_open: int

    def __str__(self) -> str:
        return (
            f"{self.name}: phase {self.phases} (parity {self.phases & 1}), "
            f"{self.arrived} of {self.expected} arrivals, {self.bytes_open} bytes to come"
        )


class Stepping:
    """A simulation of one launch, cluster after cluster; arguments as for `simulate`."""

    def __init__(
        self,
        graph: TileGraph,
        args: Mapping[str, Any],
        grid: tuple[int, ...],
        *,
        seed: int = 0,
        clusters: int = 2,
    ) -> None:
        self._runs = simulations(graph, args, grid, seed=seed, clusters=clusters)
        self._turns = self._all()
        self.run: Simulation | None = None

    def _all(self) -> Iterator[Thread]:
        for run in self._runs:
            self.run = run
            yield from run.turns()

    def until(self, *, role: str = "", line: int = 0, op: str = "", count: int = 1) -> Stop | None:
        """Goes on until ops have been executed that fit; None at the end of the launch.

        Args:
            role: name of the role, or of one warpgroup of it ("consumer 1").
            line: of the kernel's source file.
            op: opcode or its beginning, such as "tma.load".
            count: of how many such ops the last one is.

        Raises:
            Fault: an obligation is violated on the way.
        """
        for thread in self._turns:
            stop = _stop_of(thread)
            fits = stop.op.startswith(op) and line in (0, stop.line)
            count -= fits and role in ("", stop.role, thread.role.name)
            if not count:
                return stop
        return None

    def threads(self) -> list[Stop]:
        """Where each thread stands: the op that it executed last, or waits at."""
        return [_stop_of(t) for t in self._run().threads]

    def slot(self, channel: str, number: int, *, cta: int = 0) -> SlotView:
        """What is in a slot of a channel (by the name of its values) or of another buffer.

        Raises:
            LaunchError: there is no such slot.
        """
        run = self._run()
        state = _at(run.ctas[cta].buffers, (f"{channel}_ring", channel), number)
        names = {t.index: t.name for t in run.threads}
        writer = state.writer
        data = np.array(state.data)
        if writer is None:
            return SlotView(state.name, "", -1, under_way=False, readers=(), data=data)
        by = writer.barrier
        return SlotView(
            state.name,
            _place(writer.op),
            writer.use,
            under_way=by is not None and by.phases <= writer.use,
            readers=tuple(dict.fromkeys(names[r.thread] for r in state.reads if not r.end)),
            data=data,
        )

    def barrier(self, name: str, number: int, *, cta: int = 0) -> BarrierView:
        """The state of an mbarrier, such as ("k_full", 2).

        Raises:
            LaunchError: there is no such mbarrier.
        """
        b = _at(self._run().ctas[cta].barriers, (name,), number)
        return BarrierView(b.name, b.phases, b.pending, b.expected, b.tx)

    def _run(self) -> Simulation:
        if self.run is None:
            raise LaunchError("the simulation has not started: call until() first")
        return self.run


def _at(found: Mapping[Value, list[T]], names: tuple[str, ...], number: int) -> T:
    for value, items in found.items():
        if value.name in names:
            if number < len(items):
                return items[number]
            raise LaunchError(f"{value.name} has {len(items)} slots, got {number}")
    known = ", ".join(sorted({v.name.removesuffix("_ring") for v in found}))
    raise LaunchError(f"nothing is called {names[-1]!r}; there are {known}")


def _stop_of(thread: Thread) -> Stop:
    op = thread.where
    if op is None:
        return Stop(thread.name, thread.cta.rank, "", 0, "its start")
    return Stop(thread.name, thread.cta.rank, op.opcode, op.loc.line if op.loc else 0, _place(op))


def _place(op: Op) -> str:
    return op.loc.short if op.loc is not None else op.opcode
