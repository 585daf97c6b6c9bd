"""From a Python function to the optimised TILE graph.

What pointers turn out to point to becomes further arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tiledsl.compiled import Request
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.analysis.grid_factors import grid_factors
from tiledsl.ir.analysis.preconditions import host_asserts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops.debug import Assert
from tiledsl.ir.ops.mma import follow_precision
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.specs import AutoInt
from tiledsl.ir.specs import PointerSpec
from tiledsl.ws.autos import probe_constants
from tiledsl.ws.blocks import Blocks
from tiledsl.ws.blocks import block_accesses
from tiledsl.ws.blocks import described
from tiledsl.ws.user_barriers import drop_user_barriers

FAST_PASSES = ("fast-math", "canonicalize", "cse", "fold-scales")


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
        graph.facts["grid_factors"] = grid_factors(graph)
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
