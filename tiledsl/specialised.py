"""Kernels with roles: plans, cheapest first, from a TILE graph to text."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from tiledsl.codegen.kernel import emit_kernel
from tiledsl.codegen.module import GridSpec
from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.compiled import dump
from tiledsl.errors import CodegenError
from tiledsl.errors import ResourceError
from tiledsl.errors import ScheduleError
from tiledsl.ir.analysis.range_ends import OF_ARGUMENTS
from tiledsl.ir.analysis.stored import stored_arguments
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.op import Level
from tiledsl.ir.op import Value
from tiledsl.ir.ops.mma import FOLLOWS_PRECISION
from tiledsl.ir.ops.role import Role
from tiledsl.ir.passes.manager import run_passes
from tiledsl.lowering import device_graph
from tiledsl.lowering import with_views
from tiledsl.ws.accesses import fuse_accesses
from tiledsl.ws.analysis import Declined
from tiledsl.ws.analysis import analyze
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.bulk import cut_stores
from tiledsl.ws.channels import make_channels
from tiledsl.ws.channels import make_tile_aref
from tiledsl.ws.consumer import build_consumer
from tiledsl.ws.epilogue_channel import build_loader
from tiledsl.ws.epilogue_channel import epilogue_channel
from tiledsl.ws.fitting import fitted
from tiledsl.ws.flow import Flow
from tiledsl.ws.flow import analyze_flow
from tiledsl.ws.flow_channels import make_flow_channels
from tiledsl.ws.flow_consumer import build_flow_consumer
from tiledsl.ws.flow_plan import FlowPlan
from tiledsl.ws.flow_plan import plan_flow
from tiledsl.ws.flow_tiles import choose_flow_tiles
from tiledsl.ws.handed import handed_numbers
from tiledsl.ws.kept import keep_indexes
from tiledsl.ws.kept import lay_out_copies
from tiledsl.ws.layouts import assign_layouts
from tiledsl.ws.lower_aref import lower_aref
from tiledsl.ws.overrides import Overrides
from tiledsl.ws.plan import Plan
from tiledsl.ws.plan import revised
from tiledsl.ws.pointer_operands import pointer_operand
from tiledsl.ws.prefetch import settle_prefetch
from tiledsl.ws.producer import build_producer
from tiledsl.ws.refusals import BY_OPTIONS
from tiledsl.ws.refusals import note_failure
from tiledsl.ws.refusals import other_slots
from tiledsl.ws.rescale import fuse_consumer
from tiledsl.ws.search_role import build_search
from tiledsl.ws.select import Choice
from tiledsl.ws.select import Ranking
from tiledsl.ws.select import choose
from tiledsl.ws.single_layout import copies_suffice
from tiledsl.ws.stores import StoreGeometry
from tiledsl.ws.stores import stored_geometry

MAX_ATTEMPTS = 4


LOADED_BY_CONSUMERS = "the consumers would load an operand of the dot through pointers themselves"
MAX_REGISTERS = 1 << 10
"""Specialised plans tried before the single-role kernel when NVRTC reports spills or
serialisation.
"""


def copying_kernels(
    request: Request, ranking: Ranking, failures: list[str]
) -> Iterator[Iterator[Kernel]]:
    """Kernels whose load role copies what no tensor map loads, if that is why there are no others.

    ranking: of the request without copies.
    """
    if not ranking.graph.facts["pointers"] or request.overrides.warp_specialize is False:
        return
    request = with_views(replace(request, copies=True))
    try:
        found = choose(request, device_graph)
    except ScheduleError as error:
        note_failure(failures, error)
        return
    failures.extend(str(d) for d in found.declined)
    if found.items:
        yield planned_kernels(request, found, failures)


def planned_kernels(request: Request, ranking: Ranking, failures: list[str]) -> Iterator[Kernel]:
    """Specialised kernels of plain accumulations, by cost; a rejected one limits the registers."""
    limit = MAX_REGISTERS
    for _ in range(MAX_ATTEMPTS):
        choice = ranking.take(limit)
        if choice is None:
            break
        try:
            made = fitted(functools.partial(specialize, request, choice), choice.plan)
        except (ScheduleError, ResourceError, CodegenError) as error:
            note_failure(failures, error)
            continue
        yield made
        if made.rejected:
            few = fewer_registers(choice.registers, made)
            # Without the channel of its epilogue the same plan may do.
            limit = choice.registers - 1 if choice.plan.epilogue_slots else few


def fewer_registers(registers: int, made: Kernel) -> int:
    """What the next plan may take after a rejected one: less by half of what spilled."""
    spilled = made.compiled.spill_bytes // 4 if made.compiled is not None else 0
    return min(registers * 15 // 16, registers - min(spilled // 2, registers // 2))


def flow_graph(request: Request, ranking: Ranking) -> TileGraph:
    """The TILE graph for a kernel with flow loops, with the best values of its `tl.auto`s."""
    autos = {k: v for k, v in request.constants.items() if isinstance(v, Auto)}
    graph = ranking.graph.clone() if ranking.flow_first else ranking.graph
    if not autos or request.overrides.warp_specialize is False:
        return graph
    found = choose_flow_tiles(
        autos, ranking.auto_dims, request.constants, request.launch, request.target,
        request.overrides,
        lambda values: device_graph(request, values),
    )  # fmt: skip
    return found or graph


def flow_kernels(request: Request, graph: TileGraph, declined: list[Declined]) -> Iterator[Kernel]:
    """Specialised kernels of a program whose loops are no plain accumulations.

    One that is rejected is followed by one whose loops keep less in registers.
    """
    if request.overrides.warp_specialize is False:
        return
    asked, why = request.overrides, list[str]()
    if not asked.structural:
        loop, why = copies_suffice(graph, request.num_warps, request.target, asked.num_stages)
        if loop is not None:
            declined[:] = [
                Declined("warp_specialize", "threads copy what the loop loads", loop.loc)
            ]
            return
        load = pointer_operand(graph)
        if load is not None:
            declined[:] = [Declined("warp_specialize", LOADED_BY_CONSUMERS, load.loc)]
            return
    run_passes(graph, ("defer-sums", "cse", "dce"), request.target)
    cut_stores(graph)
    flow = analyze_flow(graph)
    if flow.declined or not flow.loops:
        declined[:] = flow.declined or declined  # of the more general form
        return
    made = plan_flow(graph, flow, request.overrides, request.launch, request.target)
    if isinstance(made, str):
        free = not asked.structural or plan_flow(
            graph, flow, Overrides(), request.launch, request.target
        )
        what = BY_OPTIONS if isinstance(free, FlowPlan) else "warp_specialize"
        declined[:] = [Declined(what, made, flow.loops[0].loop.loc)]
        return
    declined.clear()

    made = replace(made, notes=(*why, *made.notes))
    yield fitted(functools.partial(specialize_flow, request, graph, flow, made), made.plan)
    while made.registers:
        made = plan_flow(
            graph, flow, request.overrides, request.launch, request.target,
            registers=made.registers - 1,
        )  # fmt: skip
        if isinstance(made, str):  # an option that only the schedule with more registers could take
            declined[:] = [Declined(BY_OPTIONS, made, flow.loops[0].loop.loc)]
            return
        yield fitted(functools.partial(specialize_flow, request, graph, flow, made), made.plan)


def specialize(request: Request, choice: Choice, plan: Plan) -> Kernel:
    """The warp-specialised kernel of one plan: that of a choice, or one that takes less."""
    graph = choice.graph
    run_passes(graph, ("defer-sums", "cse", "dce"), request.target)
    cut_stores(graph)
    analysis = analyze(graph)
    stores, notes = stored_geometry(analysis.stores, plan)
    if plan.deferred and not stores:
        raise ScheduleError(f"{plan.describe()}: only a staged store can be deferred")
    if request.overrides.raster_group is not None and not plan.persistent:
        notes.append("raster_group is ignored: each program is a CTA, or a cluster, of its own")
    out, builder, mapping = role_graph(graph)
    channels = make_channels(builder, analysis, plan)
    channel = epilogue_channel(graph, builder, plan, channels, stores)
    numbers = None
    if not plan.copies:
        numbers = handed_numbers(graph, builder, analysis, plan, notes, may_draw=channel is None)
    if numbers is not None and numbers.drawn:
        plan = replace(plan, dynamic=True)
    build_producer(graph, builder, plan, channels, mapping, numbers=numbers)
    if channel is not None:
        build_loader(graph, builder, plan, channels, channel, mapping)
    if numbers is not None and numbers.apart:
        build_search(graph, builder, plan, mapping, numbers)
    build_consumer(graph, builder, plan, channels, mapping, stores, channel, numbers)
    made = lower_roles(request, out, plan, stores, notes)
    made.cost, made.analysis = choice.cost, analysis
    made.stored = stored_arguments(graph)
    made.follows_precision = bool(graph.facts.get(FOLLOWS_PRECISION))
    return made


def specialize_flow(
    request: Request, graph: TileGraph, flow: Flow, flow_plan: FlowPlan, plan: Plan
) -> Kernel:
    """The warp-specialised kernel of a program with flow loops.

    plan: that of the flow plan, or one that takes less.
    """
    stores, notes = stored_geometry(flow.stores, plan)
    out, builder, mapping = role_graph(graph)
    channels, arefs, outer = make_flow_channels(builder, flow, plan)
    tiles = make_tile_aref(builder) if plan.dynamic else None
    build_producer(graph, builder, plan, channels, mapping, tiles)
    build_flow_consumer(
        graph, builder, plan, flow, flow_plan.schedules, arefs, outer, mapping, stores, tiles
    )
    made = lower_roles(request, out, plan, stores, [*flow_plan.notes, *notes])
    made.stored = stored_arguments(graph)
    made.follows_precision = bool(graph.facts.get(FOLLOWS_PRECISION))
    return made


def role_graph(graph: TileGraph) -> tuple[TileGraph, Builder, dict[Value, Value]]:
    """An empty role graph with the arguments of a tile graph."""
    facts = {name: graph.facts[name] for name in (*OF_ARGUMENTS, "views") if name in graph.facts}
    out = TileGraph(
        graph.name, Level.WARP_SPECIALIZED, constants=dict(graph.constants), facts=facts
    )
    mapping: dict[Value, Value] = {a: out.body.add_arg(a.type, a.name) for a in graph.args}
    return out, Builder(out), mapping


def with_real_slots(request: Request, plan: Plan, smem: SmemPlan, notes: list[str]) -> Plan:
    """The plan with the slots that its rings have, and a note where that is not what was asked."""
    if smem.cut_slots:
        held = " and ".join(map(str, smem.cut_slots))
        why = "exchanges between threads take the room"
        notes.append(f"rings of {held} slots instead of {plan.num_stages}: {why}")
        plan = revised(plan, num_stages=smem.cut_slots[0])
    notes += other_slots(request.overrides, plan.num_stages)
    return plan


def lower_roles(
    request: Request,
    out: TileGraph,
    plan: Plan,
    stores: dict[int, StoreGeometry],
    notes: list[str],
) -> Kernel:
    """From a role graph to a kernel: clean, lay out, fuse, lower, emit."""
    target = request.target
    run_passes(out, ("dce", "cse", "dce"), target, check=0)
    dump(request, out, "20_partition")
    roles: list[Role] = out.find(Role)
    if len(roles) < 2:
        raise ScheduleError("no loop runs here, so that there is nothing to copy for a role")
    consumer = next(r for r in roles if not (r.single_thread or r.copies))
    keep_indexes(out, consumer)
    notes += assign_layouts(out, consumer.body, consumer.num_warps)
    fuse_accesses(out, consumer.body, out.facts.get("divisors", {}))
    notes += lay_out_copies(out, [r for r in roles if r.copies])
    notes += fuse_consumer(out, consumer.body, plan)
    dump(request, out, "21_fused")
    plan = settle_prefetch(out, plan, request.overrides.prefetch, notes)
    smem = lower_aref(out, plan, next(iter(stores.values()), None), target)
    dump(request, out, "22_machine")
    plan = with_real_slots(request, plan, smem, notes)
    if smem.end_bytes > target.smem_of(plan.ctas_per_sm):
        what = f"{plan.ctas_per_sm} CTAs an SM have no room for {smem.end_bytes} bytes each"
        raise ResourceError(what)
    if plan.persistent:
        axis = plan.cluster_axis if plan.cluster_size > 1 else -1
        grid = GridSpec("persistent", axis, plan.cluster_size, 1, plan.ctas_per_sm)
    else:
        grid = GridSpec("plain", -1, plan.cluster_size, plan.split_k)
    out.facts = {
        "views": out.facts.get("views", ()),
        **{name: out.facts[name] for name in OF_ARGUMENTS if name in out.facts},
        "num_threads": plan.num_threads,
        "smem_bytes": smem.end_bytes,
        "cluster_size": plan.cluster_size,
        "grid": grid,
        "arg_names": tuple(a.name for a in out.args),
        "min_blocks": plan.ctas_per_sm,
        "pdl": plan.pdl,
        "build": request.build,
    }
    module = emit_kernel(out, target)
    made = Kernel(module, dict(out.constants), plan, smem, notes=notes)
    made.machine = out
    return made
