"""`tiledsl.jit`: the object behind a decorated kernel: launching, inspecting, overriding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import fields
from pathlib import Path
from typing import Any

from tiledsl.compiler import Kernel
from tiledsl.compiler import Request
from tiledsl.compiler import compile_kernel
from tiledsl.compiler import tile_graph
from tiledsl.errors import LaunchError
from tiledsl.frontend.specialize import signature_of
from tiledsl.ir.interp import interpret
from tiledsl.ir.markers import Auto
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import TensorSpec
from tiledsl.report import render_report
from tiledsl.runtime import driver
from tiledsl.runtime.cache import KERNELS
from tiledsl.runtime.interop import numpy_view
from tiledsl.runtime.interop import storage_view
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.nvrtc import ptx_of
from tiledsl.runtime.nvrtc import sass
from tiledsl.runtime.signature import Device
from tiledsl.runtime.signature import Signature
from tiledsl.runtime.signature import signature
from tiledsl.target import HOPPER
from tiledsl.ws.plan import Overrides
from tiledsl.ws.select import Extents
from tiledsl.ws.select import Launch

Grid = tuple[int, int, int]
GridLike = Callable[[Mapping[str, Any]], Sequence[int] | int] | Sequence[int] | int
OPTIONS = frozenset({f.name for f in fields(Overrides)} | {"num_warps", "fast_math"})
INT32_MAX = 2**31 - 1


@dataclass
class Prepared:
    """A compiled kernel with its launcher."""

    kernel: Kernel
    launcher: Launcher
    grid_constants: dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A call taken apart: run-time arguments, constexpr values, launch options."""

    runtime: dict[str, Any]
    constants: dict[str, Any]
    overrides: Overrides
    num_warps: int | None
    fast_math: bool = False


class JitFunction:
    """A kernel. `kernel[grid](*args, **options)` launches it; the other methods show what was
    compiled.

    fn: the plain Python function (so that other kernels can inline it).
    """

    def __init__(
        self, fn: Callable[..., object], do_not_specialize: Sequence[str | int] = ()
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.description = signature_of(fn)
        names = self.description.names
        self._plain = frozenset(names[p] if isinstance(p, int) else p for p in do_not_specialize)
        self._pointers = frozenset(
            p.name for p in self.description.parameters if p.annotation != "tensor"
        )
        self._params = inspect.signature(fn).parameters
        self._constexprs = {p.name for p in self.description.parameters if p.is_constexpr}
        self._prepared: dict[Any, Prepared] = {}
        self._edited: str | None = None

    # ------------------------------------------------------------------ launching
    def __getitem__(self, grid: GridLike) -> Callable[..., None]:
        """A launcher for a grid:

        an int, one to three ints, or a function of the constexprs that gives them.
        """
        return functools.partial(self._launch, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise LaunchError(
            f"{self.fn.__name__} is a kernel: launch it with a grid, {self.fn.__name__}[grid](...)"
        )

    def _launch(self, grid: GridLike, *args: Any, **kwargs: Any) -> None:
        call = self._bind(args, kwargs)
        sig, device = self._signature(call)
        self._check_extents(call, sig)
        if device is None or device.type == "cpu":
            self._interpret(call, sig, grid)
            return
        if device.type == "meta":
            raise LaunchError(
                "a launch needs tensors with data; meta tensors serve kernel.cuda() and kernel.report()"
            )
        prepared = self._prepare(call, sig, grid)
        user_grid = normalize_grid(grid, prepared.grid_constants)
        prepared.launcher.launch(
            call.runtime, user_grid, device.index, driver.current_stream(device.index)
        )

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        names = self._params
        options = {k: kwargs.pop(k) for k in list(kwargs) if k in OPTIONS and k not in names}
        try:
            bound = inspect.signature(self.fn).bind(*args, **kwargs)
        except TypeError as error:
            known = ", ".join(sorted(OPTIONS))
            raise LaunchError(
                f"{self.fn.__name__}: {error}", hint=f"launch options are {known}"
            ) from None
        bound.apply_defaults()
        runtime = {k: v for k, v in bound.arguments.items() if k not in self._constexprs}
        constants = {k: _plain(v) for k, v in bound.arguments.items() if k in self._constexprs}
        check_options(options)
        num_warps = options.pop("num_warps", None)
        fast_math = bool(options.pop("fast_math", False))
        return Call(runtime, constants, Overrides(**options), num_warps, fast_math)

    def _signature(self, call: Call) -> tuple[Signature, Device | None]:
        return signature(call.runtime, pointers=self._pointers, plain=self._plain)

    def _check_extents(self, call: Call, sig: Signature) -> None:
        for name, spec in zip(sig.names, sig.specs, strict=True):
            if (
                isinstance(spec, TensorSpec)
                and max(call.runtime[name].shape, default=0) > INT32_MAX
            ):
                raise LaunchError(
                    f"argument {name}: an extent of {max(call.runtime[name].shape)} exceeds {INT32_MAX}"
                )

    def _interpret(self, call: Call, sig: Signature, grid: GridLike) -> None:
        """Runs on CPU tensors through the interpreter."""
        constants = {k: _probe(k, v) for k, v in call.constants.items()}
        graph = tile_graph(self._request(call, sig, grid, constants), constants)
        arrays: dict[str, Any] = {}
        for name, spec in zip(sig.names, sig.specs, strict=True):
            value = call.runtime[name]
            match spec:
                case TensorSpec():
                    arrays[name] = numpy_view(value, name)
                case PointerSpec():
                    arrays[name] = storage_view(value, name)
                case _:
                    arrays[name] = value
        interpret(graph, arrays, normalize_grid(grid, constants))

    # ------------------------------------------------------------------ compiling
    def _request(
        self,
        call: Call,
        sig: Signature,
        grid: GridLike,
        constants: Mapping[str, Any],
        dump: Path | None = None,
    ) -> Request:
        specs = dict(zip(sig.names, sig.specs, strict=True))
        args = {
            n: Extents(tuple(call.runtime[n].shape), tuple(call.runtime[n].stride()))
            if isinstance(s, TensorSpec)
            else call.runtime[n]
            for n, s in specs.items()
        }
        launch = Launch(args, lambda meta: normalize_grid(grid, meta))
        return Request(
            self.fn, specs, constants, launch, call.overrides, call.num_warps, call.fast_math, HOPPER, dump
        )

    def _prepare(self, call: Call, sig: Signature, grid: GridLike) -> Prepared:
        key = self._key(call, sig, grid)
        found = self._prepared.get(key)
        if found is None:
            kernel = compile_kernel(self._request(call, sig, grid, call.constants))
            assert kernel.compiled is not None
            found = Prepared(kernel, _launcher(kernel), kernel.constants)
            self._prepared[key] = found
        return found

    def _key(self, call: Call, sig: Signature, grid: GridLike) -> Any:
        constants = tuple((k, v) for k, v in call.constants.items())
        options = (constants, call.overrides, call.num_warps, call.fast_math)
        if not any(isinstance(s, TensorSpec) for s in sig.specs) and not any(
            isinstance(v, Auto) for v in call.constants.values()
        ):
            return (sig, options)  # nothing is planned by shapes and values
        shapes = tuple(
            tuple(v.shape)
            if isinstance(s, TensorSpec)
            else (v if isinstance(s, ScalarSpec) else None)
            for v, s in zip(call.runtime.values(), sig.specs, strict=True)
        )
        probe = {k: _probe(k, v) for k, v in call.constants.items()}
        return (sig, shapes, options, normalize_grid(grid, probe))

    def compile(
        self,
        *args: Any,
        grid: GridLike | None = None,
        dump: str | Path | None = None,
        **kwargs: Any,
    ) -> Kernel:
        """Compiles for these arguments without launching (meta or CPU tensors serve; no GPU
        needed).

        grid: the grid of the launch that plans are chosen for; by default large.
        dump: folder that gets the graph after each pass.
        """
        call = self._bind(args, kwargs)
        sig, _ = self._signature(call)
        chosen: GridLike = grid if grid is not None else (32, 32, 1)
        request = self._request(call, sig, chosen, call.constants, Path(dump) if dump else None)
        return compile_kernel(request)

    def cuda(self, *args: Any, **kwargs: Any) -> str:
        """The CUDA C++ text of the kernel for these arguments (see `compile`)."""
        return self.compile(*args, **kwargs).module.source

    def ptx(self, *args: Any, **kwargs: Any) -> str:
        """The PTX of the kernel for these arguments (see `compile`)."""
        return ptx_of(self.compile(*args, **kwargs).module)

    def sass(self, *args: Any, **kwargs: Any) -> str:
        """The disassembly of the kernel for these arguments.

        Raises TileError where no disassembler is installed.
        """
        compiled = self.compile(*args, **kwargs).compiled
        assert compiled is not None
        return sass(compiled.cubin)

    def report(self, *args: Any, **kwargs: Any) -> str:
        """What the compiler decided for these arguments, and why (see `compile`)."""
        return render_report(self.compile(*args, **kwargs))

    def with_cuda(self, path: str | Path) -> EditedKernel:
        """A launcher that takes the CUDA text from a file (an edited `kernel.cuda(...)`)."""
        return EditedKernel(self, Path(path))


class EditedKernel:
    """A kernel whose CUDA text comes from a file; everything else is as the compiler decided."""

    def __init__(self, kernel: JitFunction, path: Path) -> None:
        self.kernel = kernel
        self.path = path
        self._launchers: dict[Any, tuple[Launcher, dict[str, Any]]] = {}

    def __getitem__(self, grid: GridLike) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: GridLike, *args: Any, **kwargs: Any) -> None:
        from dataclasses import replace

        k = self.kernel
        call = k._bind(args, kwargs)
        sig, device = k._signature(call)
        if device is None or device.type != "cuda":
            raise LaunchError("edited CUDA text runs on CUDA tensors only")
        text = self.path.read_text()
        key = (k._key(call, sig, grid), text)
        if key not in self._launchers:
            made = compile_kernel(k._request(call, sig, grid, call.constants))
            module = replace(made.module, source=text)
            self._launchers[key] = Launcher(module, KERNELS.get(module, HOPPER)), made.constants
        launcher, constants = self._launchers[key]
        launcher.launch(
            call.runtime,
            normalize_grid(grid, constants),
            device.index,
            driver.current_stream(device.index),
        )


def _launcher(kernel: Kernel) -> Launcher:
    assert kernel.compiled is not None
    return Launcher(kernel.module, kernel.compiled)


def _plain(value: Any) -> Any:
    return getattr(value, "value", value) if type(value).__name__ == "constexpr" else value


def _probe(name: str, value: Any) -> Any:
    """A value for an auto constexpr where no model picks one (the interpreter, cache keys)."""
    if not isinstance(value, Auto):
        return value
    if value.choices:
        return value.choices[0]
    return 64 if "K" in name.upper().replace("BLOCK", "") else 128


def normalize_grid(grid: GridLike, constants: Mapping[str, Any]) -> Grid:
    """The grid as three ints. Raises LaunchError for anything that is no grid."""
    found = grid(constants) if callable(grid) else grid
    dims = (found,) if isinstance(found, int) else tuple(found)
    if not 1 <= len(dims) <= 3 or not all(isinstance(n, int) for n in dims):
        raise LaunchError(f"grid must be one to three ints, got {found!r}")
    if any(n < 0 for n in dims):
        raise LaunchError(f"grid extents must not be negative, got {tuple(dims)}")
    x, y, z = (*dims, 1, 1)[:3]
    return int(x), int(y), int(z)


def check_options(options: Mapping[str, Any]) -> None:
    """Types of launch options. Raises LaunchError."""
    flags = {"fast_math", "ping_pong", "persistent", "warp_specialize", "swap_operands"}
    for name, value in options.items():
        if value is None:
            continue
        if name in flags:
            if not isinstance(value, bool):
                raise LaunchError(f"launch option {name} must be True or False, got {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise LaunchError(f"launch option {name} must be a positive int, got {value!r}")


def jit(
    fn: Callable[..., object] | None = None,
    *,
    do_not_specialize: Sequence[str | int] = (),
    **_: Any,
) -> Any:
    """Makes a kernel of a Python function; use as `@tiledsl.jit` or `@tiledsl.jit()`.

    do_not_specialize: parameters (names or positions) whose integer values are not looked at: by
    default the compiler may know that one is 1 or a multiple of 16.
    """
    if fn is None:
        return functools.partial(jit, do_not_specialize=do_not_specialize)
    return JitFunction(fn, do_not_specialize)
