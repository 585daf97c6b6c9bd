"""What the compiler is asked for, and what it gives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from inspect import Signature
from pathlib import Path
from typing import Any

from tiledsl.codegen.module import Build
from tiledsl.codegen.module import KernelModule
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.printer import print_graph
from tiledsl.ir.specs import Spec
from tiledsl.ir.specs import TensorView
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.target import HOPPER
from tiledsl.target import Target
from tiledsl.ws.analysis import Analysis
from tiledsl.ws.analysis import Declined
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.check import Certificate
from tiledsl.ws.check import check
from tiledsl.ws.cost import Cost
from tiledsl.ws.launch import Launch
from tiledsl.ws.overrides import Overrides
from tiledsl.ws.plan import Plan
from tiledsl.ws.single_plan import SinglePlan


@dataclass
class Kernel:
    """A compiled kernel with everything a report needs.

    constants: all constexprs with the values chosen.  plan: of the roles.  smem: the buffer table.
    notes: what was decided on the way, in order.  declined: what was not specialised and why.
    machine: the MACHINE graph that was emitted, of a specialised kernel.  stored: arguments that
    the program stores to.  is_edited: the text is no longer what was emitted.  asserts: the graph
    that says what extents have to be, where the kernel asserts something. signature: of the Python
    function, where it was compiled from one.  follows_precision: torch's setting for float32
    products decides the code.
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
    asserts: TileGraph | None = None
    signature: Signature | None = None
    follows_precision: bool = False

    @functools.cached_property
    def certificate(self) -> Certificate | None:
        """The proof of a specialised kernel, made when it is first asked for."""
        return None if self.machine is None or self.is_edited else check(self.machine)


@dataclass(frozen=True)
class Request:
    """One specialisation.

    copies: a load role copies the operands that no tensor map loads. blocks: accesses through
    pointers become accesses to blocks of tensors where they can.
    """

    fn: Callable[..., object]
    specs: Mapping[str, Spec]
    constants: Mapping[str, object]
    launch: Launch
    overrides: Overrides = field(default_factory=Overrides)
    fast_math: bool = False
    target: Target = HOPPER
    dump: Path | None = None
    nvrtc_options: tuple[str, ...] = ()
    views: tuple[TensorView, ...] = ()
    build: Build = field(default_factory=Build)
    f32_precision: str = ""
    copies: bool = False
    blocks: bool = True

    @property
    def num_warps(self) -> int | None:
        """What is asked of a single role."""
        return self.overrides.num_warps


def dump(request: Request, graph: TileGraph, name: str) -> None:
    """Writes a graph to the request's dump folder."""
    if request.dump is not None:
        request.dump.mkdir(parents=True, exist_ok=True)
        (request.dump / f"{name}.tir").write_text(print_graph(graph))
