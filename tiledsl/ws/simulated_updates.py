"""Atomic updates in a simulation: of what several warpgroups hold, one makes it."""

from __future__ import annotations

from typing import Any

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.interp import finish
from tiledsl.ir.machine import Machine
from tiledsl.ir.ops.atomic import Cas
from tiledsl.ir.ops.atomic import Rmw
from tiledsl.ir.ops.atomic import Update
from tiledsl.ws.check_state import Thread
from tiledsl.ws.simulated_slots import is_shared_out
from tiledsl.ws.simulated_slots import own_part

Key = tuple[int, int, int, int]


class Updates:
    """Those of one cluster's run.

    times: how often a thread has come to an update. made: by CTA, role, op and time, what the first
    warpgroup there got; the others of its role take it from there. Warpgroups that have tiles of
    their own (`instances`) make theirs. Where nobody asks for the old elements of a tile that is
    shared out, each updates those that it holds.
    """

    def __init__(self, graph: TileGraph) -> None:
        self.graph = graph
        self.times: dict[tuple[Thread, int], int] = {}
        self.made: dict[Key, Any] = {}

    def make(self, t: Thread, op: Rmw | Cas | Update, machine: Machine, values: list[Any]) -> Any:
        """The old elements; the update is made, or was by another warpgroup."""
        if t.role.num_warpgroups == 1 or t.role.instances > 1:
            return op.execute(machine, *values)
        if (
            isinstance(op, Update)
            and is_shared_out(op.result)
            and not self.graph.has_uses(op.result)
        ):
            own = own_part(op.result.type, t.warpgroup)  # type: ignore[arg-type]
            return op.update(machine, tuple(values), own)
        time = self.times[t, op.id] = self.times.get((t, op.id), 0) + 1
        key = (t.cta.rank, t.role.id, op.id, time)
        if key not in self.made:
            found: Any = op.execute(machine, *values)
            self.made[key] = finish(found) if isinstance(op, Update) else found
        return self.made[key]
