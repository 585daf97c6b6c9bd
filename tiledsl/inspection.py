"""What a kernel can be asked without a launch, and the ways from a call into the compiler.

The compiler is imported by the functions that need it: a process that finds its programs on disk
never loads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING
from typing import Any

from tiledsl.call import IGNORED
from tiledsl.call import Call
from tiledsl.call import GridLike
from tiledsl.call import grid_of
from tiledsl.call import normalize_grid
from tiledsl.call import probe
from tiledsl.errors import LaunchError
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import TensorSpec
from tiledsl.runtime.closure import Closure
from tiledsl.runtime.launching import launching
from tiledsl.runtime.programs import Program
from tiledsl.runtime.signature import Device
from tiledsl.runtime.signature import Signature
from tiledsl.runtime.signature import f32_precision
from tiledsl.target import HOPPER

if TYPE_CHECKING:
    from tiledsl.compiled import Kernel
    from tiledsl.compiled import Request
    from tiledsl.edited import EditedKernel
    from tiledsl.ir.graph import TileGraph

ANY_GRID = (32, 32, 1)
WITHOUT_ROLES = {
    "num_stages": "which has no ring",
    "persistent": "which runs a CTA (or cluster) for each program",
    "raster_group": "which keeps the order of the grid",
}
"""Hints that a kernel with a single role does not follow, and why."""


def request_of(
    fn: Callable[..., object],
    call: Call,
    sig: Signature,
    grid: GridLike,
    constants: Mapping[str, Any],
    dump: Path | None = None,
) -> Request:
    """The compile request of a call."""
    from tiledsl.compiled import Request
    from tiledsl.ws.launch import Extents
    from tiledsl.ws.launch import Launch

    specs = dict(zip(sig.names, sig.specs, strict=True))
    args = {
        n: Extents(tuple(call.runtime[n].shape), tuple(call.runtime[n].stride()))
        if isinstance(s, TensorSpec)
        else call.runtime[n]
        for n, s in specs.items()
    }
    fixed = not callable(grid) and grid is not ANY_GRID
    launch = Launch(args, lambda meta: normalize_grid(grid, meta, call.runtime), fixed)
    return Request(
        fn,
        specs,
        constants,
        launch,
        call.overrides,
        call.fast_math,
        HOPPER,
        dump,
        call.nvrtc_options,
        build=call.build,
        f32_precision=f32_precision(),
    )


def ignored_options(
    kernel: Kernel, given: Mapping[str, Any], fn: Callable[..., object]
) -> list[str]:
    """Notes on hints that were not followed, with the reason.

    Options that only roles can give are no hints: the compiler refuses them.
    """
    from tiledsl.ws.single_plan import SinglePlan

    code = fn.__code__ if isinstance(fn, FunctionType) else None
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    options = {k: v for k, v in given.items() if k not in names}
    notes = [
        f"{name}={value!r} is ignored: an option of other compilers, decided here by the compiler"
        for name, value in options.items()
        if name in IGNORED
    ]
    if isinstance(kernel.plan, SinglePlan):
        followed = {"num_stages": kernel.plan.num_stages > 0, "persistent": kernel.plan.stays}
        notes += [
            f"{name}={options[name]!r} is ignored: the kernel has a single role, {reason}"
            for name, reason in WITHOUT_ROLES.items()
            if options.get(name) and not followed.get(name)
        ]
    asked, warps = options.get("num_warps"), kernel.module.num_threads // 32
    if asked and asked != warps:
        why = "as many as hold its tiles; dots take whole warpgroups"
        if not isinstance(kernel.plan, SinglePlan):
            why = "those of its roles"
        notes.append(f"num_warps={asked!r} is not followed: the kernel has {warps} warps, {why}")
    return notes


def remark_on(grid: GridLike | None) -> str:
    """What a report says first where it was asked for without a grid."""
    if grid is not None:
        return ""
    programs = " x ".join(map(str, ANY_GRID[:2]))
    return f"no grid was given (grid=...): a plan for {programs} programs, whatever their tile"


def program_of_kernel(kernel: Kernel, call: Call) -> Program:
    """What a launch needs of a compiled kernel."""
    from tiledsl.ir.markers import Auto
    from tiledsl.report import render_report

    assert kernel.compiled is not None
    autos = [k for k, v in call.constants.items() if isinstance(v, Auto)]
    chosen = {k: int(kernel.constants[k]) for k in autos}
    proof = "" if kernel.certificate is None else "\n".join(kernel.certificate.render())
    report = render_report(kernel)
    module, compiled, stored = kernel.module, kernel.compiled, kernel.stored
    return Program(
        module,
        compiled,
        chosen,
        report,
        certificate=proof,
        stored=stored,
        follows_precision=kernel.follows_precision,
    )


def compile_program(request: Request, call: Call) -> Program:
    """Compiles a request. Raises TileError from any step.

    Floats are no part of the key of a program: it is planned as if each were 1.
    """
    from tiledsl.compiler import compile_kernel

    floats = {
        n: 1.0 for n, s in request.specs.items() if isinstance(s, ScalarSpec) and s.dtype.is_float
    }
    launch = replace(request.launch, args={**request.launch.args, **floats})
    return program_of_kernel(compile_kernel(replace(request, launch=launch)), call)


class Inspected:
    """The part of a kernel that shows what was compiled."""

    fn: Callable[..., object]
    _pointers: frozenset[str]
    _signature_of_fn: inspect.Signature

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        raise NotImplementedError

    def _signature(self, call: Call) -> tuple[Signature, Device | None]:
        raise NotImplementedError

    def closure(self) -> Closure:
        raise NotImplementedError

    def _request(
        self,
        call: Call,
        sig: Signature,
        grid: GridLike,
        constants: Mapping[str, Any],
        dump: Path | None = None,
    ) -> Request:
        return request_of(self.fn, call, sig, grid, constants, dump)

    def _interpret(self, call: Call, sig: Signature, grid: GridLike) -> None:
        """Runs on CPU tensors through the interpreter."""
        from tiledsl.ir.analysis.stored import stored_arguments
        from tiledsl.ir.interp import interpret
        from tiledsl.ir.markers import Auto
        from tiledsl.ir.ops.mma import Dot
        from tiledsl.ir.types import ScalarType
        from tiledsl.lowering import tile_graph
        from tiledsl.runtime.interop import check_outputs
        from tiledsl.runtime.interop import check_scalar
        from tiledsl.runtime.interop import numpy_view
        from tiledsl.runtime.interop import storage_view
        from tiledsl.ws.autos import check_grid
        from tiledsl.ws.autos import probe_constants
        from tiledsl.ws.refusals import never_honoured

        autos = {k for k, v in call.constants.items() if isinstance(v, Auto)}
        if autos:
            request = self._request(call, sig, grid, call.constants)
            graph = tile_graph(request, probe_constants(request.constants))
            check_grid(graph, autos, fixed_grid=request.launch.fixed_grid)
        constants = {k: probe(k, v) for k, v in call.constants.items()}
        request = self._request(call, sig, grid, constants)
        graph = tile_graph(request, constants)
        fault = never_honoured(call.overrides, has_dot=bool(graph.find(Dot)))
        if fault is not None:
            raise fault
        check_outputs(call.runtime, stored_arguments(graph), self._pointers)
        types: dict[str, Any] = {a.name: a.type for a in graph.args}
        arrays: dict[str, Any] = {}
        for name, spec in zip(sig.names, sig.specs, strict=True):
            value = call.runtime[name]
            match spec:
                case TensorSpec():
                    whole = value.tensor() if spec.block_shape else value
                    arrays[name] = numpy_view(whole, name)
                case PointerSpec():
                    arrays[name] = storage_view(value, name)
                case _:
                    if isinstance(types.get(name), ScalarType):
                        check_scalar(name, value, types[name].dtype)
                    arrays[name] = value
        interpret(graph, arrays, grid_of(grid, constants, call.runtime))

    def _check_asserts(
        self, call: Call, sig: Signature, grid: GridLike, chosen: Mapping[str, Any]
    ) -> TileGraph:
        """Checks what the kernel asserts of the extents and strides of its arguments.

        chosen: values of the constexprs that the compiler picked. Returns the graph that says so.
        Raises LaunchError.
        """
        from tiledsl.ir.analysis.preconditions import check_asserts
        from tiledsl.lowering import tile_graph

        constants = {k: probe(k, v) for k, v in {**call.constants, **chosen}.items()}
        request = self._request(call, sig, grid, constants)
        graph = tile_graph(request, constants)
        check_asserts(graph, request.launch.args)
        return graph

    def request_for(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike
    ) -> tuple[Call, Request]:
        """A call taken apart, and its compile request."""
        with launching(self.fn):
            call = self._bind(args, kwargs)
            sig, _ = self._signature(call)
            return call, self._request(call, sig, grid, call.constants)

    def compile(
        self,
        *args: Any,
        grid: GridLike | None = None,
        dump: str | Path | None = None,
        **kwargs: Any,
    ) -> Kernel:
        """Compiles for these arguments without launching; meta or CPU tensors serve.

        grid: the grid of the launch that plans are chosen for; by default large.
        dump: folder that gets the graph after each pass.
        """
        from tiledsl.compiler import compile_kernel

        with launching(self.fn):
            call = self._bind(args, kwargs)
            sig, _ = self._signature(call)
            chosen: GridLike = grid if grid is not None else ANY_GRID
            if not callable(chosen):
                grid_of(chosen, {})  # before anything is compiled
            request = self._request(call, sig, chosen, call.constants, Path(dump) if dump else None)
            made = compile_kernel(request)
            grid_of(chosen, made.constants, call.runtime)
            made.signature = self._signature_of_fn
            if self.closure().has_assert:
                made.asserts = self._check_asserts(call, sig, chosen, made.constants)
            return made

    def cuda(self, *args: Any, **kwargs: Any) -> str:
        """The CUDA C++ text of the kernel for these arguments (see `compile`)."""
        return self.compile(*args, **kwargs).module.source

    def ptx(self, *args: Any, **kwargs: Any) -> str:
        """The PTX of the kernel for these arguments (see `compile`)."""
        from tiledsl.runtime.nvrtc import ptx_of

        return ptx_of(self.compile(*args, **kwargs).module)

    def sass(self, *args: Any, **kwargs: Any) -> str:
        """The disassembly of the kernel for these arguments.

        Raises TileError where no disassembler is installed.
        """
        from tiledsl.runtime.disassembler import sass

        compiled = self.compile(*args, **kwargs).compiled
        assert compiled is not None
        return sass(compiled.cubin)

    def report(self, *args: Any, **kwargs: Any) -> str:
        """What the compiler decided for these arguments, and why (see `compile`)."""
        from tiledsl.report import render_report

        kernel = self.compile(*args, **kwargs)
        kernel.notes += ignored_options(kernel, kwargs, self.fn)
        return render_report(kernel, remark_on(kwargs.get("grid")))

    def with_cuda(self, path: str | Path) -> EditedKernel:
        """A launcher that takes the CUDA text from a file (an edited `kernel.cuda(...)`).

        Raises:
            LaunchError: there is no such file.
        """
        from tiledsl.edited import EditedKernel

        if not Path(path).is_file():
            raise LaunchError(
                f"with_cuda(): there is no file {path}",
                hint="write kernel.cuda(...) to a file and edit it",
            )
        return EditedKernel(self, Path(path))
