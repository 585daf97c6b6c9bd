"""Tile sizes left to the compiler (`tl.auto`) in kernels with flow loops.

Each combination is lowered and scheduled; the cheapest for the launch wins. The cost of a program
is its trips times the clocks of the schedule, plus what its start and end cost.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from itertools import product

from tiledsl.ir.analysis.evaluate import HostValues
from tiledsl.ir.analysis.evaluate import Unknown
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.ops.control import For
from tiledsl.target import Target
from tiledsl.ws.flow import analyze_flow
from tiledsl.ws.flow_plan import REGISTERS
from tiledsl.ws.flow_plan import consumers_of
from tiledsl.ws.flow_plan import ring_depth
from tiledsl.ws.launch import Launch
from tiledsl.ws.loop_schedule import schedule_loop
from tiledsl.ws.operands import operand_load
from tiledsl.ws.overrides import Overrides
from tiledsl.ws.partition import constant_step

ROWS = (128, 192, 64)
COLUMNS = (128, 112, 96, 64)
"""Widest first; those between the first that fits and the narrowest are not tried."""
WIDE = (256, 192, 128, 64)
"""Of products that no other dot of the loop reads."""
DEPTHS = (128, 64)
"""Of K alone."""
EDGE_CLOCKS = 3000.0
"""Clocks of a program outside of its loops: first loads, first product, the store."""
TRIP_CLOCKS = 300.0
"""Clocks of an iteration that do not shrink with the tile: barriers, wgmma latency, shuffles."""
UNKNOWN_TRIPS = 16.0
SHALLOW = {2: 1.5, 3: 1.12}
"""By how much longer products of loaded blocks of K take with so few slots. RMSNorm beside one,
8192 x 8192 x 4096, 128 x 256, in groups of 16: two slots of 128 884 us, four of 64 839. That is a
factor of 1.05; two have more, since `TRIP_CLOCKS` counts against short blocks what is hidden. Three
are not measured: more than for plans, as 192 x 256 by three warpgroups spills.
"""
MIN_DEPTH = 2
"""Slots of a ring without which nothing is loaded under a product."""

LowerValues = Callable[[Mapping[str, object]], TileGraph]


def choose_flow_tiles(
    autos: Mapping[str, Auto],
    dims: Mapping[str, tuple[str, ...]],
    fixed: Mapping[str, object],
    launch: Launch,
    target: Target,
    overrides: Overrides,
    lower: LowerValues,
) -> TileGraph | None:
    """The graph with the cheapest values of the auto constexprs; None where no combination fits.

    dims: which dimensions of the dots (M, N, K) each one is. fixed: all other constexprs.
    """
    names = [name for name in autos if name in dims or autos[name].choices]
    if len(names) != len(autos):
        return None
    options = [autos[name].choices or sizes_of(dims[name]) for name in names]
    chooses_K = any(dims.get(name) == ("K",) for name in names)
    best: tuple[float, TileGraph] | None = None
    fitting: set[tuple[object, ...]] = set()
    for values in product(*options):
        others = tuple(v for v in values if v not in COLUMNS[1:-1])
        if len(others) < len(values) and others in fitting:
            continue
        graph = lower({**fixed, **dict(zip(names, values, strict=True))})
        cost = launch_clocks(graph, launch, target, overrides, chooses_K=chooses_K)
        if cost is None:
            continue
        fitting |= {tuple(v for j, v in enumerate(values) if j != i) for i in range(len(values))}
        if best is None or cost < best[0]:
            best = cost, graph
    return best[1] if best is not None else None


def sizes_of(dims: tuple[str, ...]) -> tuple[int, ...]:
    """What to try for a constexpr that is these dimensions of the dots."""
    if "M" in dims:
        return ROWS
    if dims == ("N",):
        return WIDE
    return DEPTHS if dims == ("K",) else COLUMNS


def launch_clocks(
    graph: TileGraph,
    launch: Launch,
    target: Target,
    overrides: Overrides,
    *,
    chooses_K: bool = False,
) -> float | None:
    """Clocks of a launch, None where the tiles do not fit registers or rings of two slots.

    chooses_K: whether deeper rings may be had for shorter blocks of K.
    """
    flow = analyze_flow(graph)
    if flow.declined or not flow.loops:
        return None
    consumers = consumers_of(flow, overrides)
    if isinstance(consumers, str):
        return None
    depth = ring_depth(flow, consumers, target)
    if depth < MIN_DEPTH:
        return None
    grid = launch.grid(graph.constants)
    programs = grid[0] * grid[1] * grid[2]
    ends = ((0, 0, 0), tuple(max(0, n - 1) for n in grid))
    each: list[float] = [EDGE_CLOCKS, EDGE_CLOCKS]
    loaded = all(operand_load(v) for f in flow.loops for d in f.dots for v in (d.dot.a, d.dot.b))
    late = SHALLOW.get(depth, 1.0) if chooses_K and loaded else 1.0
    for f in flow.loops:
        schedule, _ = schedule_loop(f, consumers, REGISTERS[consumers][2])
        if schedule.registers > REGISTERS[consumers][2]:
            return None
        for i, program in enumerate(ends):
            trips = _trips(graph, f.loop, launch, (program[0], program[1], program[2]))
            each[i] += (schedule.clocks + TRIP_CLOCKS) * trips * late
    waves = programs / target.num_sms
    longest = max(each)
    return max(waves * sum(each) / 2 + longest / 2, longest)


def _trips(graph: TileGraph, loop: For, launch: Launch, program: tuple[int, int, int]) -> float:
    """Trips of a loop in one program."""
    args = {a: launch.args.get(a.name) for a in graph.args}
    values = HostValues(args, launch.grid(graph.constants), program)
    try:
        span = int(values.get(loop.upper)) - int(values.get(loop.lower))
    except (Unknown, KeyError, AttributeError, TypeError):
        return UNKNOWN_TRIPS
    return float(max(0, -(-span // constant_step(loop))))
