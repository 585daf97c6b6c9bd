"""Plans for kernels with flow loops: warpgroups, schedules, rings, registers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from dataclasses import replace

from tiledsl.ir.analysis.evaluate import HostValues
from tiledsl.ir.analysis.evaluate import Unknown
from tiledsl.ir.extents import extents
from tiledsl.ir.extents import named_extents
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.dependence import program_axes
from tiledsl.ws.flow import Flow
from tiledsl.ws.growth import growth
from tiledsl.ws.launch import Extents
from tiledsl.ws.launch import Grid
from tiledsl.ws.launch import Launch
from tiledsl.ws.loop_schedule import LoopSchedule
from tiledsl.ws.loop_schedule import dot_clocks
from tiledsl.ws.loop_schedule import math_clocks
from tiledsl.ws.loop_schedule import schedule_loop
from tiledsl.ws.partition import constant_step
from tiledsl.ws.plan import Overrides
from tiledsl.ws.plan import Plan
from tiledsl.ws.stores import store_geometry

L2_SHARE_BYTES = 32 << 20
REGISTERS = {1: (0, 0, 216), 2: (32, 232, 208), 3: (32, 160, 140)}
"""Per number of consumers: setmaxnreg of producer and consumers, registers that tiles may take."""
PAIR_REGISTERS = (24, 232, 176)
"""The same for one consumer where two CTAs share an SM."""
PAIR_ROWS = 128
"""Rows of a tile of which one consumer has two chains of wgmmas."""
GROUP_ROWS = 2048
"""Of programs that are visited together, as in plans of products."""
PAIR_WAVES = 4
"""Tiles for each CTA from which on the last, partly idle round of them costs less than is won."""


@dataclass(frozen=True)
class FlowPlan:
    """The plan of a kernel and the schedule of each of its flow loops, by loop id."""

    plan: Plan
    schedules: dict[int, LoopSchedule]
    notes: tuple[str, ...]

    @property
    def registers(self) -> int:
        """The most that the tiles of a rotated loop take; 0 when no loop is rotated."""
        return max((s.registers for s in self.schedules.values() if s.is_rotated), default=0)


def plan_flow(
    graph: TileGraph,
    flow: Flow,
    overrides: Overrides,
    launch: Launch,
    target: Target,
    *,
    registers: int = 1 << 10,
) -> FlowPlan | str:
    """A plan for the kernel, or the reason why none fits.

    registers: that tiles may take per thread, where less than the warpgroups have.
    """
    refused = _refused(overrides)
    if refused:
        return refused
    consumers = consumers_of(flow, overrides)
    if isinstance(consumers, str):
        return consumers
    if _may_pair(graph, flow, overrides, launch, target):
        made = _plan(graph, flow, overrides, launch, target, 1, registers, ctas_per_sm=2)
        if isinstance(made, FlowPlan) and all(s.is_rotated for s in made.schedules.values()):
            return made
    return _plan(graph, flow, overrides, launch, target, consumers, registers)


def _may_pair(
    graph: TileGraph, flow: Flow, overrides: Overrides, launch: Launch, target: Target
) -> bool:
    """Whether two CTAs of one consumer each may do better than one of two.

    The consumer has all rows of a tile, so that four chains of wgmmas and of what follows from
    their results interleave on an SM instead of two. That pays where loops wait for the CUDA cores,
    and not the tensor core: attention at head dim 64 gains 5 to 10 %.
    """
    if overrides.structural or overrides.ping_pong is False or overrides.persistent is False:
        return False
    grid = launch.grid(graph.constants)
    if math.prod(grid) < 2 * PAIR_WAVES * target.num_sms:
        return False
    for f in flow.loops:
        shapes = [d.dot.acc.type for d in f.dots]
        if any(not isinstance(t, TileType) or t.shape[0] != PAIR_ROWS for t in shapes):
            return False
        if len(f.dots) < 2 or any(d.staged or d.fixed for d in f.dots):
            return False
        if math_clocks(f, 1) < WAITS_FOR_MATH * sum(dot_clocks(d.dot) for d in f.dots):
            return False
    return True


def _plan(
    graph: TileGraph,
    flow: Flow,
    overrides: Overrides,
    launch: Launch,
    target: Target,
    consumers: int,
    registers: int,
    *,
    ctas_per_sm: int = 1,
) -> FlowPlan | str:
    """The plan with so many consumers."""
    producer, consumer, limit = PAIR_REGISTERS if ctas_per_sm > 1 else REGISTERS[consumers]
    base = Plan(
        num_consumers=consumers,
        mma_depth=1,
        persistent=overrides.persistent if overrides.persistent is not None else True,
        producer_registers=producer,
        consumer_registers=consumer,
        raster_group=0,
        ctas_per_sm=ctas_per_sm,
    )
    slots = _slots(flow, base, overrides, target)
    if isinstance(slots, str):
        return slots
    notes: list[str] = [*flow.notes]
    schedules: dict[int, LoopSchedule] = {}
    for f in flow.loops:
        best, lines = schedule_loop(f, consumers, min(limit, registers))
        schedules[f.loop.id] = best
        at = f.loop.loc.short if f.loop.loc else "loop"
        notes.append(f"schedule of the loop at {at}, {best.clocks:.0f} clocks an iteration:")
        notes += [f"  {line}" for line in best.table.splitlines()]
        notes += [f"  tried {line}" for line in lines]
    turns = _turns(flow, schedules, consumers, overrides)
    if isinstance(turns, str):
        return turns
    longest, axis, group = tile_order(graph, flow, launch)
    if overrides.raster_group is not None:
        if group:
            group = overrides.raster_group
        else:
            notes.append("raster_group is ignored: the programs go in the order of the grid")
    plan = replace(
        base,
        turns=turns,
        skips_ones=ctas_per_sm == 1 and _skips_ones(flow, schedules, consumers),
        num_stages=slots.depth,
        outer_stages=slots.outer,
        store_buffers=slots.store_buffers,
        longest_first=longest if base.persistent else -1,
        dynamic=base.persistent,
        uneven=bool(bound_axes(flow)),
        group_axis=axis,
        raster_group=group,
    )
    return FlowPlan(plan, schedules, tuple(notes))


def _refused(overrides: Overrides) -> str:
    """Why launch options do not go with a loop that is no plain accumulation, or ""."""
    o = overrides
    asked = {
        "cluster": o.cluster not in (None, 1),
        "split_k": o.split_k not in (None, 1),
        "swap_operands": o.swap_operands,
        "mma_depth": o.mma_depth not in (None, 1),
        "prefetch": o.prefetch not in (None, 0),
    }
    names = [name for name, is_asked in asked.items() if is_asked]
    return f"a loop that is no plain accumulation takes no {', '.join(names)}" if names else ""


def _turns(
    flow: Flow, schedules: dict[int, LoopSchedule], consumers: int, overrides: Overrides
) -> bool | str:
    """Whether warpgroups issue in turns; the reason when that is asked for and cannot be.

    With three of them it is worth 5 to 8 % (head dim 64); two are kept apart as well by a pinned
    row statistic, and lose 1 % by it.
    """
    if overrides.ping_pong is False:
        return False
    reason = ""
    if consumers < 2:
        reason = "there is one consumer warpgroup"
    elif not any(s.is_rotated for s in schedules.values()):
        reason = "no loop has a dot that runs one iteration behind"
    elif any(d.staged for f in flow.loops for d in f.dots):
        reason = "the warpgroups write operands of dots together"
    if overrides.ping_pong:
        return f"ping_pong: {reason}" if reason else True
    return not reason and consumers > 2


WAITS_FOR_MATH = 1.6
"""A loop waits for the CUDA cores where their clocks are so many times those of its dots.

Attention at head dim 128: 1.3 in bf16, which waits for the tensor core, 2.0 to 2.9 in fp8."""
VOTED_REGISTERS = 64
"""Registers of a sum from which on a vote pays."""


def _skips_ones(flow: Flow, schedules: dict[int, LoopSchedule], consumers: int) -> bool:
    """Whether warps vote before they rescale sums.

    A vote takes as long as some 32 products. fp8 attention at head dim 128 gains 4 to 8 % by it;
    where the tensor core sets the pace (bf16, head dim 128) it costs 1 to 4 %, and with sums of 32
    registers (head dim 64) up to 3 %. Where two CTAs share an SM it costs 0.5 to 4 %.
    """
    for f in flow.loops:
        dots = sum(dot_clocks(d.dot) for d in f.dots)
        if math_clocks(f, consumers) < WAITS_FOR_MATH * dots:
            return False
    carried = [d.dot.acc.type for f in flow.loops for d in f.dots if not d.zero_acc]
    elements = [t.num_elements for t in carried if isinstance(t, TileType)]
    return min(elements, default=0) >= VOTED_REGISTERS * 128 * consumers


def consumers_of(flow: Flow, overrides: Overrides) -> int | str:
    """Consumer warpgroups, or why the dots do not split over any."""
    rows: list[int] = []
    for f in flow.loops:
        for d in f.dots:
            acc = d.dot.acc.type
            assert isinstance(acc, TileType)
            rows.append(acc.shape[0])
            if acc.shape[1] % 8 or acc.shape[1] > 256:
                return (
                    f"a dot has {named_extents(acc.shape)} results, the instruction takes columns "
                    "that are a multiple of 8, up to 256; take another tile"
                )
    M = math.gcd(*rows)
    if M % 64:
        return f"the dots have {sorted(set(rows))} rows, a warpgroup takes 64; use multiples of 64"
    consumers = overrides.num_consumers or max(n for n in REGISTERS if M % (64 * n) == 0)
    if consumers not in REGISTERS or M % (64 * consumers):
        legal = " or ".join(str(n) for n in REGISTERS if M % (64 * n) == 0)
        return f"{M} rows do not split over {consumers} warpgroups of 64 rows; they do over {legal}"
    return consumers


RESERVED_BYTES = 1024
"""For mbarriers, and what lies between aligned buffers."""


@dataclass(frozen=True)
class _Slots:
    """Slots of the loops' channels, of channels before the loops, and staging buffers."""

    depth: int
    outer: int
    store_buffers: int


def _slots(flow: Flow, base: Plan, overrides: Overrides, target: Target) -> _Slots | str:
    """What fits in shared memory, or why nothing does."""
    staging = _staging_bytes(flow, base)
    outer = sum(o.smem.bytes for o in flow.outer)
    groups = {
        flow.channel_key(g): sum(o.smem.bytes for o in g) for f in flow.loops for g in f.groups
    }
    slot = max(1, sum(groups.values()))
    staged = {s.key: s.smem.bytes for f in flow.loops for d in f.dots for s in d.staged}
    staged |= {d.fixed.key: d.fixed.smem.bytes for f in flow.loops for d in f.dots if d.fixed}
    fixed = outer + sum(staged.values())
    most = target.smem_of(base.ctas_per_sm) - RESERVED_BYTES * base.ctas_per_sm
    room = most - fixed
    buffers = 2 if (room - staging * 2) // slot >= 2 else 1
    depth = min((room - staging * buffers) // slot, 4)
    used = fixed + staging * buffers + depth * slot
    twice = outer and base.persistent and used + outer <= most
    depth = overrides.depth(depth, depth)
    if depth < 1:
        blocks = {o.name: o.smem for f in flow.loops for g in f.groups for o in g}
        held = ", ".join(f"{n} {extents(s.shape)} {s.dtype}" for n, s in blocks.items())
        return (
            f"one slot of {slot} bytes ({held}) beside {fixed + staging} bytes does not fit in "
            f"{target.smem_bytes} bytes of shared memory; take a smaller tile"
        )
    return _Slots(depth, 2 if twice else 1, buffers)


def ring_depth(flow: Flow, consumers: int, target: Target) -> int:
    """Slots of the loops' channels that fit in shared memory; 0 where nothing does."""
    found = _slots(flow, Plan(num_consumers=consumers), Overrides(), target)
    return 0 if isinstance(found, str) else found.depth


def tile_order(graph: TileGraph, flow: Flow, launch: Launch) -> tuple[int, int, int]:
    """(axis visited from its end, grouped axis, programs of a group).

    Programs whose trip count grows along axis 0 start with the longest; axes 1 and 2 are then
    visited in groups whose loop loads fit about half of L2, so that the programs of a group share
    them. Equal programs that share one operand along axis 0 and another along axis 1, as those of
    a product do, are visited in groups of about `GROUP_ROWS` rows.
    """
    grid = launch.grid(graph.constants)
    axes = bound_axes(flow)
    longest = 0 if 0 in axes and 1 not in axes and _grows(graph, flow, launch, grid) else -1
    loads = [o.block for f in flow.loops for g in f.groups for o in g]
    loaded = {t for o in loads for t in tensors_of(o.tensor)}
    num_bytes = 0
    for tensor in loaded:
        given = launch.args.get(tensor.name)
        if isinstance(given, Extents):
            num_bytes += given.elements * tensor_type(tensor, "load").dtype.bytes
    shared = all(0 not in o.axes for f in flow.loops for g in f.groups for o in g)
    if longest < 0:
        return longest, 0, 0 if axes else _product_group(flow)
    if not shared or not num_bytes:
        return longest, 0, 0
    per_program = num_bytes / max(1, grid[1] * grid[2])
    group = max(1, min(grid[1] * grid[2], int(L2_SHARE_BYTES / max(1.0, per_program))))
    return longest, 2, group


def _product_group(flow: Flow) -> int:
    """Programs of a group along axis 0, 0 where their loops do not load as those of products."""
    rows: list[int] = []
    across = False
    for f in flow.loops:
        step = constant_step(f.loop)
        for o in (o for g in f.groups for o in g):
            if o.axes == frozenset({0}):
                rows.append(max(1, math.prod(o.smem.shape) // step))
            across |= o.axes == frozenset({1})
    return max(1, GROUP_ROWS // max(rows)) if rows and across else 0


def _grows(graph: TileGraph, flow: Flow, launch: Launch, grid: Grid) -> bool:
    """Whether the first loop of the last program along axis 0 is longer than that of the first."""
    args = {a: launch.args.get(a.name) for a in graph.args}
    loop = flow.loops[0].loop
    spans: list[int] = []
    for program in ((0, 0, 0), (max(0, grid[0] - 1), 0, 0)):
        values = HostValues(args, grid, program)
        try:
            spans.append(int(values.get(loop.upper)) - int(values.get(loop.lower)))
        except (Unknown, KeyError, AttributeError, TypeError):
            return growth(loop.upper, 0) == 1 and growth(loop.lower, 0) in (0, -1)
    return spans[1] > spans[0]


def _staging_bytes(flow: Flow, plan: Plan) -> int:
    """Bytes of one staging chunk over all consumers, for the first store that is staged."""
    for store in flow.stores:
        value = store.value.type
        if isinstance(value, TileType) and value.rank == 2:
            found = store_geometry(store, plan)
            if not isinstance(found, str):
                return found.buffer_bytes * plan.num_consumers
    return 0


def bound_axes(flow: Flow) -> frozenset[int]:
    """Grid axes that the trip counts depend on."""
    out: frozenset[int] = frozenset()
    for f in flow.loops:
        out |= program_axes(f.loop.lower) | program_axes(f.loop.upper)
    return out
