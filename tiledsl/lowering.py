"""From a Python function to the optimised TILE graph.

What pointers turn out to point to becomes further arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tiledsl.compiled import Request
from tiledsl.errors import TileError
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.analysis.grid_factors import Shares
from tiledsl.ir.analysis.grid_factors import shares_of
from tiledsl.ir.analysis.preconditions import host_asserts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.markers import Auto
from tiledsl.ir.ops.debug import Assert
from tiledsl.ir.ops.mma import follow_precision
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.specs import AutoInt
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import Spec
from tiledsl.ws.autos import Picked
from tiledsl.ws.autos import constants_read
from tiledsl.ws.autos import probe_constants
from tiledsl.ws.blocks import Blocks
from tiledsl.ws.blocks import block_accesses
from tiledsl.ws.user_barriers import drop_user_barriers
from tiledsl.ws.view_extents import described

FAST_PASSES = ("fast-math", "canonicalize", "cse", "fold-scales")

SIZES = (16, 32, 64, 128, 256, 512)
"""Values by which a `tl.auto` without choices is looked at."""

TILE_PASSES = (
    "canonicalize", "squeeze", "unfold-gathers", "cse", "licm",
    "fold-sums", "canonicalize", "join-quotients", "narrow-selects", "count-steps",
    "uniform-steps", "unmask",
    "no-wrap", "cse", "dce", "cheap-exponentials", "sums-with-one", "late-scales", "dce",
)  # fmt: skip


def tile_graph(request: Request, constants: Mapping[str, object]) -> TileGraph:
    """The optimised TILE graph for a set of constexpr values."""
    made = {v.name for v in request.views}
    specs = {n: s for n, s in request.specs.items() if n not in made}
    graph = lower_function(request.fn, specs, constants)
    if any(isinstance(v, AutoInt) for v in constants.values()):
        graph.facts["picked"] = look_at_picked(request, graph, specs, constants)
    follow_precision(graph, request.f32_precision)
    passes = (*FAST_PASSES, *TILE_PASSES) if request.fast_math else TILE_PASSES
    run_passes(graph, passes, request.target, dump=request.dump)
    return graph


def look_at_picked(
    request: Request, graph: TileGraph, specs: Mapping[str, Spec], constants: Mapping[str, object]
) -> Picked:
    """What the work of a program has to do with its `tl.auto` constexprs.

    The kernel is lowered with other values of each one: whatever way a number follows from it, by
    arithmetic, comparisons, branches or look-ups, it is another one then. graph: of `constants`, as
    the frontend leaves it.
    """
    launch, mine = request.launch, shares_of(graph)
    read = set[str]() if launch.fixed_grid else constants_read(launch.grid, constants)
    sharing: list[str] = []
    alone: list[str] = []
    for name, auto in request.constants.items():
        if not isinstance(auto, Auto) or name in read:
            continue
        is_alone, is_used = True, False
        for value in auto.choices or SIZES:
            other = _shares_with(request, specs, {**constants, name: value})
            if other is None or other == mine:
                continue
            if launch.fixed_grid and other.factors != mine.factors:
                sharing.append(name)
                break
            is_used |= other.accesses != mine.accesses
            is_alone &= other.constants == mine.constants
            if not (is_alone or launch.fixed_grid):
                break
        if is_used and is_alone and name not in sharing:
            alone.append(name)
    return Picked(tuple(sharing), tuple(alone), mine.suits_any)


def _shares_with(
    request: Request, specs: Mapping[str, Spec], constants: Mapping[str, object]
) -> Shares | None:
    """How programs share out the work with these constants; None where there is no such kernel."""
    try:
        return shares_of(lower_function(request.fn, specs, constants))
    except TileError:
        return None


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
    made = block_accesses(graph, copies=request.copies) if request.blocks else Blocks()
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
