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

What is asked for and given is in compiled.py; lowering.py goes as far as the TILE graph, with roles
specialised.py to the text, without roles single.py. Here is which kernel is taken.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import replace

from tiledsl.codegen.module import Build
from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.errors import CodegenError
from tiledsl.errors import InternalError
from tiledsl.errors import ResourceError
from tiledsl.errors import ScheduleError
from tiledsl.errors import TileError
from tiledsl.ir.analysis.constants import trip_count
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.debug import Assert
from tiledsl.lowering import device_graph
from tiledsl.lowering import with_views
from tiledsl.runtime.cache import KERNELS
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.runtime.nvrtc import moved_accumulators
from tiledsl.single import no_room
from tiledsl.single import pointer_form
from tiledsl.single import single
from tiledsl.single import single_kernels
from tiledsl.specialised import copying_kernels
from tiledsl.specialised import flow_graph
from tiledsl.specialised import flow_kernels
from tiledsl.specialised import planned_kernels
from tiledsl.spills import fewest_spills
from tiledsl.spills import may_spill
from tiledsl.spills import spill_notes
from tiledsl.ws.analysis import Declined
from tiledsl.ws.plan import Plan
from tiledsl.ws.refusals import not_specialised
from tiledsl.ws.refusals import note_failure
from tiledsl.ws.select import Ranking
from tiledsl.ws.select import choose
from tiledsl.ws.single_plan import SinglePlan

SHORT_TRIPS = 4
"""Iterations of a loop that roles do not pay for, where threads can copy all that it loads."""


def modules(request: Request) -> Iterator[Kernel]:
    """Kernels for a request, best first; the last one is the single-role kernel.

    The consumer sets `rejected` on a kernel that it does not take before it asks for the next one.
    """
    start = time.perf_counter()
    given, request = request, with_views(request)
    ranking = choose(request, device_graph)
    failures: list[str] = list(ranking.graph.facts.get("block_notes", ()))
    specialised = bool(ranking.items)
    plain = pointer_form(given, request)
    sources = list(copying_kernels(given, ranking, failures))
    if not specialised or (ranking.flow_first and not request.overrides.structural):
        sources += _flows(request, ranking, plain)
    if specialised:
        sources += _planned(request, ranking, plain, failures)
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
    if plain is not None:
        request, ranking = plain[0], Ranking(plain[1], ranking.declined)
    try:
        for made in single_kernels(request, ranking):
            made.python_seconds = time.perf_counter() - start
            made.notes = failures + made.notes
            yield made
            start = time.perf_counter()
    except ResourceError as error:
        raise no_room(request, ranking, failures, error) from None


def _flows(
    request: Request, ranking: Ranking, plain: tuple[Request, TileGraph, For] | None
) -> list[Iterator[Kernel]]:
    """Kernels of a flow, unless threads are to copy what it loads."""
    if plain is not None and not request.overrides.structural:
        ranking.declined[:] = [_by_threads(plain[2])]
        return []
    return [flow_kernels(request, flow_graph(request, ranking), ranking.declined)]


def _planned(
    request: Request,
    ranking: Ranking,
    plain: tuple[Request, TileGraph, For] | None,
    failures: list[str],
) -> list[Iterator[Kernel]]:
    """Kernels of the ranked plans, unless threads are to copy what a short loop loads."""
    if plain is not None and _is_short(request, plain[2]):
        ranking.declined[:] = [_by_threads(plain[2])]
        return []
    return [planned_kernels(request, ranking, failures)]


def _by_threads(loop: For) -> Declined:
    return Declined("warp_specialize", "threads copy what the loop loads", loop.loc)


def _is_short(request: Request, loop: For) -> bool:
    """Whether threads copy what a loop of few iterations loads.

    A load role stays ahead of it by whole programs, but one consumer of a CTA on an SM waits for
    each of its products and stores; several CTAs that come and go do so beside each other.
    """
    trips = trip_count(loop)
    return trips is not None and trips <= SHORT_TRIPS and not request.overrides.structural


def check_honoured(request: Request, declined: list[Declined], failures: list[str]) -> None:
    """Refuses the single-role kernel where the user asked for something only roles can give."""
    if request.overrides.structural:
        raise not_specialised(request.overrides, declined, failures)


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
