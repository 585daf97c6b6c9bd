"""Kernels with a single role: plan, layouts, lowering, text; fewer CTAs on an SM after spills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tiledsl.codegen.kernel import emit_kernel
from tiledsl.codegen.module import GridSpec
from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.compiled import dump
from tiledsl.errors import ResourceError
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.constants import trip_count
from tiledsl.ir.analysis.range_ends import OF_ARGUMENTS
from tiledsl.ir.analysis.stored import stored_arguments
from tiledsl.ir.extents import marked
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.mma import FOLLOWS_PRECISION
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.smem_ring import Ring
from tiledsl.ir.specs import TensorView
from tiledsl.ir.specs import factors_in
from tiledsl.lowering import device_graph
from tiledsl.runtime.nvrtc import moved_accumulators
from tiledsl.ws.analysis import Declined
from tiledsl.ws.copy_rings import FLIGHT_SLOTS
from tiledsl.ws.fuse import fuse_elementwise
from tiledsl.ws.likely_trips import FACT
from tiledsl.ws.likely_trips import Launched
from tiledsl.ws.likely_trips import likely_trips
from tiledsl.ws.live_registers import blocks_of_tiles
from tiledsl.ws.live_registers import live_registers
from tiledsl.ws.pair_maps import pair_maps
from tiledsl.ws.select import Ranking
from tiledsl.ws.single_graph import lower_single
from tiledsl.ws.single_layout import copied_loops
from tiledsl.ws.single_layout import copies_suffice
from tiledsl.ws.single_layout import single_layout
from tiledsl.ws.single_layout import space_of
from tiledsl.ws.single_plan import Limits
from tiledsl.ws.single_plan import SinglePlan
from tiledsl.ws.stay import obstacle_to_staying
from tiledsl.ws.turned_rows import turn_rows

MATRIX_RANK, GROUP_WARPS = 2, 4
SHORT_TRIPS = 8
"""Iterations of a loop in which a program mostly waits for its first copies."""


def pointer_form(given: Request, request: Request) -> tuple[Request, TileGraph, For] | None:
    """The program as it is given, where threads copy all that its loops load for the dots.

    None unless some view of `request` lies at a place that a length of another dimension gives, as
    `batch * T`, and one warpgroup computes: threads find such places once, the program's masks cost
    them less than bounds, and several CTAs on an SM hide more than one consumer does.
    """
    is_small = request.num_warps is not None and request.num_warps <= GROUP_WARPS
    if not (is_small and any(_is_packed(view) for view in request.views)):
        return None
    if any(isinstance(c, Auto) for c in request.constants.values()):
        return None
    given = replace(given, blocks=False)
    graph = device_graph(given, given.constants)
    asked = given.overrides.num_stages
    loop, _ = copies_suffice(graph, given.num_warps, given.target, asked)
    return None if loop is None else (given, graph, loop)


def _is_packed(view: TensorView) -> bool:
    """Whether a dimension's stride is a product with the extent of another one."""
    lengths = {name for size in view.shape if size is not None for name in factors_in(size)[1]}
    steps = {name for size in view.strides for name in factors_in(size)[1]}
    return len(view.shape) > MATRIX_RANK and bool(lengths & steps)


def single_kernels(request: Request, ranking: Ranking) -> Iterator[Kernel]:
    """The single-role kernel; while its registers spill, ones with fewer CTAs on an SM.

    Then one with more warps, where there are dots; the one before again where it is no better.
    """
    limits = Limits()
    made = single(request, ranking.graph, ranking.declined, limits)
    yield made
    while made.rejected and isinstance(made.plan, SinglePlan) and made.plan.min_blocks > 1:
        limits = limits.after(made.plan)
        made = single(request, ranking.graph, ranking.declined, limits)
        yield made
    if made.rejected and isinstance(made.plan, SinglePlan) and made.plan.num_stages >= FLIGHT_SLOTS:
        most = FLIGHT_SLOTS - 1
        made = single(request, ranking.graph, ranking.declined, limits, most_slots=most)
        yield made
    if made.rejected and isinstance(made.plan, SinglePlan) and made.plan.may_grow:
        yield from _grown(request, ranking, limits, made)


def _grown(request: Request, ranking: Ranking, limits: Limits, made: Kernel) -> Iterator[Kernel]:
    """A rejected kernel with twice the warps, its rings with fewer slots; then the best one of all.

    That is taken whatever ptxas says of it.
    """
    assert isinstance(made.plan, SinglePlan)
    warps = 2 * made.plan.num_warps
    found = [made]
    try:
        limits = replace(limits, warps=warps)
        for most in (None, FLIGHT_SLOTS - 1):
            grown = single(request, ranking.graph, ranking.declined, limits, most_slots=most)
            assert isinstance(grown.plan, SinglePlan)
            has_fewer_slots = grown.plan.num_stages >= FLIGHT_SLOTS
            grown.plan = replace(grown.plan, may_grow=True)
            found.append(grown)
            yield grown
            if not has_fewer_slots:
                break
    except ResourceError as error:
        made.notes.append(f"{warps} warps: {error.message}")
    best = min(found, key=_fault)
    best.plan = replace(best.plan, may_grow=False, is_final=True)
    yield best


def _fault(made: Kernel) -> tuple[bool, int]:
    """What is wrong with a kernel, as far as it is compiled: moved accumulators, spilled bytes."""
    if made.compiled is None:
        return False, 0
    return bool(moved_accumulators(made.compiled.notes)), made.compiled.spill_bytes


def no_room(
    request: Request, ranking: Ranking, failures: list[str], error: ResourceError
) -> ResourceError:
    """The error of a kernel that fits in no way, with the constexprs that its extents are.

    Notes say why it has no roles.
    """
    try:
        constants = marked(ranking.graph.constants)
        single(request, device_graph(request, constants), [])
    except ResourceError as named:
        error = named
    for declined in ranking.declined:
        error.note(f"in roles: {declined.reason}", declined.loc)
    for failure in failures:
        error.note(f"in roles: {failure}")
    return error


def single(
    request: Request,
    graph: TileGraph,
    declined: list[Declined],
    limits: Limits | None = None,
    *,
    most_slots: int | None = None,
) -> Kernel:
    """The single-role kernel. limits: what has turned out to spill. most_slots: of rings."""
    limits = limits or Limits()
    try:
        return _single(request, graph, declined, limits, most_slots)
    except ResourceError:
        if not limits.roomy:
            raise
        # Fewer warps exchange their tiles through less shared memory.
        return _single(request, graph, declined, replace(limits, roomy=False), most_slots)


def _waits_for_copies(graph: TileGraph) -> bool:
    """Whether programs spend their time with copies: those of loops of few iterations.

    Loads through registers need more of them than their tiles take, and in long loops what is
    computed on the way to a product goes faster with more.
    """
    loops = copied_loops(graph)
    trips = [trip_count(loop) or likely_trips(graph, loop) for loop in loops]
    return bool(loops) and all(0 < n <= SHORT_TRIPS for n in trips)


def _single(
    request: Request,
    graph: TileGraph,
    declined: list[Declined],
    limits: Limits,
    most_slots: int | None,
) -> Kernel:
    grid = request.launch.grid(graph.constants) if limits.blocks > 1 else ()
    graph.facts[FACT] = Launched(request.launch.args, request.launch.grid(graph.constants))
    out, role, notes, plan = single_layout(
        graph, request.num_warps, request.target, clusters=request.overrides.cluster != 1,
        asked=most_slots or request.overrides.num_stages, grid=grid,
        persistent=request.overrides.persistent, limits=limits,
    )  # fmt: skip
    few = bool(grid) and prod(grid) * plan.num_ctas <= request.target.num_sms
    is_sparse = few and bool(graph.find(Dot))
    plan = replace(plan, min_blocks=min(plan.min_blocks, limits.blocks), is_sparse=is_sparse)
    fuse_elementwise(out, role.body, axis_facts(role.body, out.facts.get("divisors", {})))
    pair_maps(out, role.body)
    rings = sum(ring.depth * ring.type_.bytes for ring in out.find(Ring))
    room = space_of(request.target, plan.min_blocks, role) - rings
    if plan.stays and (note := turn_rows(out, role, room)):
        notes = [*notes, note]
    if request.overrides.persistent and not plan.stays:
        why = obstacle_to_staying(graph)
        notes = [*notes, f"CTAs do not stay for the next program: {why}"]
    dump(request, out, "31_fused")
    live = live_registers(role.body) if _waits_for_copies(out) else 0
    smem = lower_single(out, plan, request.target)
    if live:
        grid = request.launch.grid(graph.constants)
        blocks = blocks_of_tiles(plan.num_warps, live, smem.end_bytes, grid, request.target)
        plan = plan.crowded(min(blocks, limits.blocks))
    dump(request, out, "32_machine")
    out.facts = {
        "views": out.facts.get("views", ()),
        **{name: out.facts[name] for name in OF_ARGUMENTS if name in out.facts},
        "num_threads": plan.num_threads,
        "smem_bytes": smem.end_bytes,
        "cluster_size": plan.num_ctas,
        "grid": GridSpec("persistent", -1, 1, plan.num_ctas, plan.min_blocks)
        if plan.stays
        else GridSpec("plain", -1, plan.num_ctas, plan.num_ctas),
        "arg_names": tuple(a.name for a in graph.args),
        "min_blocks": plan.min_blocks,
        "pdl": plan.pdl,
        "build": request.build,
    }
    module = emit_kernel(out, request.target)
    made = Kernel(module, dict(graph.constants), plan, smem, None, None, declined, notes)
    made.stored = stored_arguments(graph)
    made.follows_precision = bool(graph.facts.get(FOLLOWS_PRECISION))
    return made
