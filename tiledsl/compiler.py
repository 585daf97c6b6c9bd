"""The pipeline on one page.

Python function -> tile graph -> plan -> role graph -> machine graph -> CUDA text -> cubin.

lower_function      AST to TILE graph, constexprs bound
canonicalize ...    before analysis, so that offsets and bounds are in their simplest form
analyze, Planner    what can be specialised; plans priced for this launch
partition           one clone of the program per role, joined by arefs (WARP_SPECIALIZED)
dce                 after partition: each role keeps only what its own effects need
assign_layouts      before fusion: a fused loop runs over the registers of one layout
fuse_elementwise    before lowering: stores must see the final tiles
lower_aref          arefs to mbarriers, staged stores to bulk copies (MACHINE)
emit_kernel         one statement per op
NVRTC               a plan that spills or is serialised gives way to the next one
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiledsl.codegen.kernel import emit_kernel
from tiledsl.codegen.module import Build
from tiledsl.codegen.module import GridSpec
from tiledsl.codegen.module import KernelModule
from tiledsl.errors import CodegenError
from tiledsl.errors import InternalError
from tiledsl.errors import ResourceError
from tiledsl.errors import ScheduleError
from tiledsl.errors import TileError
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.analysis.preconditions import host_asserts
from tiledsl.ir.analysis.stored import stored_arguments
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.op import Level
from tiledsl.ir.op import Value
from tiledsl.ir.ops.debug import Assert
from tiledsl.ir.ops.mma import follow_precision
from tiledsl.ir.ops.role import Role
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.printer import print_graph
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import Spec
from tiledsl.ir.specs import TensorView
from tiledsl.runtime.cache import KERNELS
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.runtime.nvrtc import moved_accumulators
from tiledsl.single import no_room
from tiledsl.single import single
from tiledsl.single import single_kernels
from tiledsl.spills import fewest_spills
from tiledsl.spills import may_spill
from tiledsl.spills import spill_notes
from tiledsl.target import HOPPER
from tiledsl.target import Target
from tiledsl.ws.accesses import fuse_accesses
from tiledsl.ws.analysis import Analysis
from tiledsl.ws.analysis import Declined
from tiledsl.ws.analysis import analyze
from tiledsl.ws.blocks import block_accesses
from tiledsl.ws.blocks import described
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.bulk import cut_stores
from tiledsl.ws.check import Certificate
from tiledsl.ws.check import check
from tiledsl.ws.consumer import build_consumer
from tiledsl.ws.cost import Cost
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
from tiledsl.ws.kept import lay_out_copies
from tiledsl.ws.layouts import assign_layouts
from tiledsl.ws.lower_aref import lower_aref
from tiledsl.ws.overrides import Overrides
from tiledsl.ws.partition import build_producer
from tiledsl.ws.partition import make_channels
from tiledsl.ws.partition import make_tile_aref
from tiledsl.ws.plan import Plan
from tiledsl.ws.prefetch import settle_prefetch
from tiledsl.ws.refusals import BY_OPTIONS
from tiledsl.ws.refusals import fewer_slots
from tiledsl.ws.refusals import not_specialised
from tiledsl.ws.refusals import note_failure
from tiledsl.ws.rescale import fuse_consumer
from tiledsl.ws.select import Choice
from tiledsl.ws.select import Launch
from tiledsl.ws.select import Ranking
from tiledsl.ws.select import choose
from tiledsl.ws.select import probe_constants
from tiledsl.ws.single_layout import copies_suffice
from tiledsl.ws.single_role import SinglePlan
from tiledsl.ws.stores import StoreGeometry
from tiledsl.ws.stores import stored_geometry
from tiledsl.ws.user_barriers import drop_user_barriers

FAST_PASSES = ("fast-math", "canonicalize", "cse", "fold-scales")
TILE_PASSES = (
    "canonicalize", "squeeze", "unfold-gathers", "cse", "licm",
    "fold-sums", "canonicalize", "narrow-selects", "uniform-steps", "unmask", "no-wrap", "cse",
    "dce", "cheap-exponentials",
)  # fmt: skip
MAX_ATTEMPTS = 4
MAX_REGISTERS = 1 << 10
"""Specialised plans tried before the single-role kernel when NVRTC reports spills or
serialisation.
"""


@dataclass
class Kernel:
    """A compiled kernel with everything a report needs.

    constants: all constexprs with the values chosen.  plan: of the roles.  smem: the buffer table.
    notes: what was decided on the way, in order.  declined: what was not specialised and why.
    machine: the MACHINE graph that was emitted, of a specialised kernel.  stored: arguments that
    the program stores to.  is_edited: the text is no longer what was emitted.
    """

    module: KernelModule
    constants: dict[str, Any]
    plan: Plan | SinglePlan
    smem: SmemPlan
    cost: Cost | None = None
    analysis: Analysis | None = None
    declined: list[Declined] = field(default_factory=list[Declined])
    notes: list[str] = field(default_factory=list[str])
    python_seconds: float = 0.0
    compiled: CompiledKernel | None = None
    rejected: str = ""
    machine: TileGraph | None = None
    stored: tuple[str, ...] = ()
    is_edited: bool = False

    @functools.cached_property
    def certificate(self) -> Certificate | None:
        """The proof of a specialised kernel, made when it is first asked for."""
        return None if self.machine is None or self.is_edited else check(self.machine)


@dataclass(frozen=True)
class Request:
    """One specialisation. copies: a load role copies the operands that no tensor map loads."""

    fn: Callable[..., object]
    specs: Mapping[str, Spec]
    constants: Mapping[str, object]
    launch: Launch
    overrides: Overrides = field(default_factory=Overrides)
    num_warps: int | None = None
    fast_math: bool = False
    target: Target = HOPPER
    dump: Path | None = None
    nvrtc_options: tuple[str, ...] = ()
    views: tuple[TensorView, ...] = ()
    build: Build = field(default_factory=Build)
    f32_precision: str = ""
    copies: bool = False


def tile_graph(request: Request, constants: Mapping[str, object]) -> TileGraph:
    """The optimised TILE graph for a set of constexpr values."""
    made = {v.name for v in request.views}
    specs = {n: s for n, s in request.specs.items() if n not in made}
    graph = lower_function(request.fn, specs, constants)
    follow_precision(graph, request.f32_precision)
    passes = (*FAST_PASSES, *TILE_PASSES) if request.fast_math else TILE_PASSES
    run_passes(graph, passes, request.target, dump=request.dump)
    return graph


def device_graph(request: Request, constants: Mapping[str, object]) -> TileGraph:
    """The TILE graph of a kernel for the GPU; only a debug build has assertions.

    Those that the host can check are checked before the launch.
    """
    graph = tile_graph(request, constants)
    asserts: list[Assert] = host_asserts(graph) if request.build.debug else graph.find(Assert)
    for op in asserts:
        graph.erase(op)
    if asserts:
        run_passes(graph, ("dce",), request.target)
    made = block_accesses(graph, copies=request.copies)
    if made.views:
        run_passes(graph, TILE_PASSES, request.target)
    graph.facts["views"] = tuple(made.views)
    graph.facts["copies"] = request.copies
    graph.facts["pointers"] = bool(made.pointers)
    graph.facts["block_notes"] = [*made.notes, *drop_user_barriers(graph)]
    return graph


def with_views(request: Request) -> Request:
    """The request with the tensors that its pointers turn out to be as further arguments.

    A kernel that has no dot has none.
    """
    pointers = any(isinstance(s, PointerSpec) for s in request.specs.values())
    if not (pointers or request.copies):
        return request
    graph = device_graph(request, probe_constants(request.constants))
    specs, args = described(graph.facts["views"], request.specs, request.launch.args)
    launch = replace(request.launch, args=args)
    return replace(request, specs=specs, launch=launch, views=graph.facts["views"])


def modules(request: Request) -> Iterator[Kernel]:
    """Kernels for a request, best first; the last one is the single-role kernel.

    The consumer sets `rejected` on a kernel that it does not take before it asks for the next one.
    """
    start = time.perf_counter()
    given, request = request, with_views(request)
    ranking = choose(request, device_graph)
    failures: list[str] = list(ranking.graph.facts.get("block_notes", ()))
    specialised = bool(ranking.items)
    sources = list(copying_kernels(given, ranking, failures))
    if not specialised or (ranking.flow_first and not request.overrides.structural):
        sources.append(flow_kernels(request, flow_graph(request, ranking), ranking.declined))
    if specialised:
        sources.append(planned_kernels(request, ranking, failures))
    for source in sources:
        try:
            for made in source:
                made.python_seconds = time.perf_counter() - start
                made.notes = failures + made.notes
                yield made
                if made.rejected:
                    failures.append(made.rejected)
                start = time.perf_counter()
        except (ScheduleError, ResourceError, CodegenError) as error:
            note_failure(failures, error)
    check_honoured(request, ranking.declined, failures)
    try:
        for made in single_kernels(request, ranking):
            made.python_seconds = time.perf_counter() - start
            made.notes = failures + made.notes
            yield made
            start = time.perf_counter()
    except ResourceError as error:
        raise no_room(request, ranking, failures, error) from None


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


def check_honoured(request: Request, declined: list[Declined], failures: list[str]) -> None:
    """Refuses the single-role kernel where the user asked for something only roles can give."""
    if request.overrides.structural:
        raise not_specialised(request.overrides, declined, failures)


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
    asked = request.overrides.num_stages
    if asked is not None and asked > plan.num_stages:
        notes.append(fewer_slots(asked, plan.num_stages))
    if request.overrides.raster_group is not None and not plan.persistent:
        notes.append("raster_group is ignored: each program is a CTA, or a cluster, of its own")
    out, builder, mapping = role_graph(graph)
    channels = make_channels(builder, analysis, plan)
    channel = epilogue_channel(graph, builder, plan, channels, stores)
    handed = None if plan.copies else handed_numbers(graph, builder, analysis, plan, notes)
    build_producer(graph, builder, plan, channels, mapping, handed=handed)
    if channel is not None:
        build_loader(graph, builder, plan, channels, channel, mapping)
    build_consumer(graph, builder, plan, channels, mapping, stores, channel, handed)
    made = lower_roles(request, out, plan, stores, notes)
    made.cost, made.analysis = choice.cost, analysis
    made.stored = stored_arguments(graph)
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
    return made


def role_graph(graph: TileGraph) -> tuple[TileGraph, Builder, dict[Value, Value]]:
    """An empty role graph with the arguments of a tile graph."""
    facts = {name: graph.facts[name] for name in ("divisors", "views") if name in graph.facts}
    out = TileGraph(
        graph.name, Level.WARP_SPECIALIZED, constants=dict(graph.constants), facts=facts
    )
    mapping: dict[Value, Value] = {a: out.body.add_arg(a.type, a.name) for a in graph.args}
    return out, Builder(out), mapping


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
    notes += assign_layouts(out, consumer.body, consumer.num_warps)
    fuse_accesses(out, consumer.body, out.facts.get("divisors", {}))
    notes += lay_out_copies(out, [r for r in roles if r.copies])
    notes += fuse_consumer(out, consumer.body, plan)
    dump(request, out, "21_fused")
    plan = settle_prefetch(out, plan, request.overrides.prefetch, notes)
    smem = lower_aref(out, plan, next(iter(stores.values()), None), target)
    dump(request, out, "22_machine")
    if plan.persistent:
        axis = plan.cluster_axis if plan.cluster_size > 1 else -1
        grid = GridSpec("persistent", axis, plan.cluster_size, 1, plan.ctas_per_sm)
    else:
        grid = GridSpec("plain", -1, plan.cluster_size, plan.split_k)
    out.facts = {
        "views": out.facts.get("views", ()),
        "num_threads": plan.num_threads,
        "smem_bytes": smem.end_bytes,
        "cluster_size": plan.cluster_size,
        "grid": grid,
        "arg_names": tuple(a.name for a in out.args),
        "min_blocks": 1,
        "pdl": plan.pdl,
        "build": request.build,
    }
    module = emit_kernel(out, target)
    made = Kernel(module, dict(out.constants), plan, smem, notes=notes)
    made.machine = out
    return made


def compile_kernel(request: Request) -> Kernel:
    """The first kernel of a request that NVRTC compiles without spills or serialisation.

    A specialised plan that fails leaves a line in the report; the single-role kernel is taken as it
    is. Where that does not fit, the first specialised one that merely spills is taken.
    Raises: TileError from any step.
    """
    if request.build != Build():
        return rebuild(request)
    spilled: Kernel | None = None
    try:
        for made in modules(request):
            made.rejected = rejection(request, made)
            if not made.rejected:
                best = made if spilled is None else fewest_spills(spilled, made)
                best.notes += spill_notes(request, best)
                return warned(best)
            if spilled is None and may_spill(made) and not isinstance(made.plan, SinglePlan):
                spilled = made
    except ResourceError as error:
        if spilled is None:
            raise
        spilled.notes.append(f"registers spill, and in a single role: {error.message}")
        return spilled
    raise InternalError("no kernel could be compiled")


def warned(made: Kernel) -> Kernel:
    """The kernel; with a warning where none was left of which ptxas does not say this."""
    if made.compiled is not None and moved_accumulators(made.compiled.notes):
        text = (
            f"{made.module.name}: ptxas moves accumulators while a wgmma is in flight (C7517), and "
            "no other plan is left; sums may be wrong, take another tile or num_warps"
        )
        made.notes.append(text)
        warnings.warn(f"tiledsl: {text}", stacklevel=2)
    return made


def rebuild(request: Request) -> Kernel:
    """The plan that the plain build takes, in the build that is asked for.

    Assertions are checked in a single role.
    """
    plain = compile_kernel(replace(request, build=Build()))
    checked = checking(request, plain.constants) if request.build.debug else None
    last: Kernel | None = checked
    for made in modules(request) if checked is None else ():
        last = made
        if made.plan == plain.plan and made.constants == plain.constants:
            break
        made.rejected = f"plan given up ({made.plan.describe()}): the plain build does not take it"
    if last is None:
        raise InternalError("no kernel could be compiled")
    last.rejected = ""
    last.compiled = KERNELS.get(last.module, request.target, options=request.nvrtc_options)
    return last


def checking(request: Request, constants: Mapping[str, object]) -> Kernel | None:
    """The debug build of a kernel with assertions; None when it has none."""
    request = with_views(request)
    graph = device_graph(request, constants)
    asserts: list[Assert] = graph.find(Assert)
    if not asserts:
        return None
    reason = "a debug build checks assertions in a single role"
    declined = [Declined("warp_specialize", reason, asserts[0].loc)]
    check_honoured(request, declined, [])
    return single(request, graph, declined)


def rejection(request: Request, made: Kernel) -> str:
    """Compiles a kernel; why the next one has to be tried, empty when it is good.

    Raises: TileError for a single-role kernel that NVRTC refuses.
    """
    given_up = f"plan given up ({made.plan.describe()})"
    try:
        compiled = KERNELS.start(made.module, request.target, options=request.nvrtc_options)
        certificate = made.certificate  # beside NVRTC, which holds no lock of Python's
        if certificate is not None and not certificate.proved:
            return f"{given_up}: not proved, {certificate.failure}"
        made.compiled = compiled.result()
    except TileError as error:
        if isinstance(made.plan, SinglePlan):
            raise
        return f"{given_up}: {error.message}"
    in_place = isinstance(made.plan, Plan) and made.plan.in_place
    problem = faults(made.compiled, forced=request.overrides.structural and not in_place)
    if not problem and in_place and made.compiled.notes:
        problem = f"accumulators are read under a wgmma: {made.compiled.notes[0]}"
    is_last = isinstance(made.plan, SinglePlan) and made.plan.is_last(
        made.compiled.spill_bytes, are_moved=bool(moved_accumulators(made.compiled.notes))
    )
    return f"{given_up}: {problem}" if problem and not is_last else ""


def faults(compiled: CompiledKernel, *, forced: bool) -> str:
    """Why a compiled kernel may not run as a specialised one; empty when it may.

    forced: the user asked for this structure, so that spills are only reported.
    """
    if compiled.serialized:
        return f"NVRTC serialised the wgmmas: {compiled.serialized[0]}"
    if note := moved_accumulators(compiled.notes):
        return f"accumulators are moved under a wgmma: {note}"
    if compiled.spill_bytes and not forced:
        return f"{compiled.spill_bytes} bytes of registers spill"
    return ""


def dump(request: Request, graph: TileGraph, name: str) -> None:
    """Writes a graph to the request's dump folder."""
    if request.dump is not None:
        request.dump.mkdir(parents=True, exist_ok=True)
        (request.dump / f"{name}.tir").write_text(print_graph(graph))
