"""Simulates a specialised MACHINE program with its data: what the kernel would compute.

The roles run as in check_run, with the same clocks and obligations, but in an order drawn from a
seed. A slot that is read too early or overwritten too soon shows in the result as well as in the
clocks. Set-up and layout of shared memory are judged before the run (check_static).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from itertools import product
from typing import Any

from tiledsl.errors import LaunchError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.interp import bind
from tiledsl.ir.machine import GlobalMemory
from tiledsl.ir.ops import role
from tiledsl.ws.check_machine import RULES
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import cut_down
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_static import check_objects
from tiledsl.ws.simulation import Simulation


def simulate(
    graph: TileGraph,
    args: Mapping[str, Any],
    grid: tuple[int, ...],
    *,
    seed: int = 0,
    clusters: int = 2,
) -> None:
    """Runs a MACHINE graph; stores write into the arrays given.

    Args:
        graph: of a specialised kernel.
        args: by name, an array per tensor, a number per scalar.
        grid: the user's, one to three extents.
        seed: of the order in which threads, copies and wgmmas go on.
        clusters: of a persistent kernel, which share out the tiles.

    Raises:
        Fault: an obligation of the checker is violated in this run.
    """
    for run in simulations(graph, args, grid, seed=seed, clusters=clusters):
        run.run()


def simulations(
    graph: TileGraph,
    args: Mapping[str, Any],
    grid: tuple[int, ...],
    *,
    seed: int = 0,
    clusters: int = 2,
) -> Iterator[Simulation]:
    """The runs of `simulate`, one cluster after the other; each has to end before the next."""
    if not 1 <= len(grid) <= 3:
        raise LaunchError(f"grid must be one to three ints, got {grid}")
    x, y, z = (*grid, 1, 1)[:3]
    whole = (x, y, z)
    check_objects(graph)
    memory_ = GlobalMemory()
    values = bind(graph, args, memory_)
    code = cut_down(graph, RULES, whole=True)
    if code.unknown:
        raise Fault(
            "liveness", f"the simulator does not know op {code.unknown[0].opcode}", code.unknown[0]
        )
    size = int(graph.facts.get("cluster_size", 1))
    persistent = any(isinstance(s.op, role.NumTiles) for steps in code.code.values() for s in steps)
    drawn = 0
    if persistent:
        for first in range(clusters):
            point = LaunchPoint(0, whole, clusters, first, drawn)
            run = Simulation(code, point, size, values, memory_, (0, 0, 0), seed + first)
            yield run
            drawn = run.drawn
        return
    for number, (z, y, x) in enumerate(product(*map(range, reversed(whole)))):
        point = LaunchPoint(0, whole)
        yield Simulation(code, point, size, values, memory_, (x, y, z), seed + number)
