"""emit_kernel: a graph at MACHINE level to a KernelModule."""

from __future__ import annotations

from tiledsl.codegen.cpp import indent
from tiledsl.codegen.cpp import wrap
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emit import Walker
from tiledsl.codegen.environment import headers
from tiledsl.codegen.environment import render
from tiledsl.codegen.module import LAUNCH_SLOTS
from tiledsl.codegen.module import GridSpec
from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.names import kernel_name
from tiledsl.codegen.params import declarations
from tiledsl.codegen.places import place_declarations
from tiledsl.codegen.watch import watch_end
from tiledsl.codegen.watch import watch_of
from tiledsl.codegen.watch import watch_start
from tiledsl.errors import CodegenError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.target import HOPPER
from tiledsl.target import Target

__all__ = ["emit_kernel"]


def emit_kernel(graph: TileGraph, target: Target = HOPPER) -> KernelModule:
    """The CUDA C++ of a kernel.

    Args:
        graph: at MACHINE level. Its facts hold `num_threads`, `smem_bytes` (dynamic shared memory),
        `cluster_size`, `grid` (GridSpec), `arg_names` (user names of the arguments in order) and
        optionally `min_blocks`, `pdl` and `build` (Build).
        target: the architecture.

    Raises:
        CodegenError: the graph is at another level, or an op has no CUDA form; at the op's
        location.
    """
    if graph.level is not Level.MACHINE:
        raise CodegenError(f"kernel {graph.name} is at level {graph.level.name}, expected MACHINE")
    emission = Emission(graph, target)
    watch = watch_of(graph, target) if emission.build.debug else None
    emission.watch = watch
    body = Walker(emission).region(graph.body)
    smem_bytes = watch.end_bytes if watch else int(graph.facts.get("smem_bytes", 0))
    params = emission.params.ordered()
    name = kernel_name(graph.name)
    source = render(
        "kernel.cu.j2",
        name=name,
        summary=_summary(graph, smem_bytes, emission.cluster_size),
        prelude=_tile_counters(emission)
        + emission.functions.prelude()
        + emission.accesses.prelude()
        + emission.inline.prelude(),
        num_threads=emission.num_threads,
        min_blocks=int(graph.facts.get("min_blocks", 1)),
        cluster_size=emission.cluster_size,
        params=declarations(params),
        smem_bytes=smem_bytes,
        body=indent(
            "".join(f"{line}\n" for line in place_declarations(emission.place, is_role=False))
            + watch_start(emission)
            + body
            + watch_end(emission)
        ),
    )
    return KernelModule(
        name=name,
        source=wrap(source),
        headers=headers(debug=emission.build.debug),
        params=params,
        num_threads=emission.num_threads,
        smem_bytes=smem_bytes,
        cluster_size=emission.cluster_size,
        grid=graph.facts.get("grid", GridSpec()),
        pdl=bool(graph.facts.get("pdl", False)),
        is_debug=emission.build.debug,
        sites=tuple(watch.sites) if watch else (),
    )


def _tile_counters(e: Emission) -> str:
    """The counters that launches draw tiles from, all zero between launches."""
    if not e.params.has_launch_slot:
        return ""
    return f"__device__ int tile_counters[{LAUNCH_SLOTS}];\n"


def _summary(graph: TileGraph, smem_bytes: int, cluster_size: int) -> str:
    parts = [f"{graph.facts['num_threads']} threads"]
    parts += [f"{smem_bytes} bytes of shared memory"] if smem_bytes else []
    parts += [f"clusters of {cluster_size}"] if cluster_size > 1 else []
    return ", ".join(parts)
