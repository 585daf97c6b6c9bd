"""Runs of a compiled kernel on the CPU, on the arguments of a launch: tensors, numbers, a grid.

    kernel = matmul.compile(a, b, c, grid=grid)
    simulate(kernel, {"a": a, "b": b, "c": c}, grid, seed=3)
    emulate(kernel, (a, b, c), grid, seed=3)

The first runs the program of a specialised kernel: what it shows is said in `tiledsl.ws.simulate`,
what it can be asked in `tiledsl.ws.stepping`. The second runs the CUDA text of any kernel (see
`tiledsl.emulate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from typing import Any
from typing import Protocol

import numpy as np

from tiledsl import emulate as text
from tiledsl.call import GridLike
from tiledsl.call import grid_of
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.compiled import Kernel
from tiledsl.errors import LaunchError
from tiledsl.frontend.signature import item_name
from tiledsl.ir.analysis.preconditions import check_asserts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.specs import TensorView
from tiledsl.ir.specs import product_in
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.runtime.descriptor import TensorDescriptor
from tiledsl.runtime.interop import StorageView
from tiledsl.runtime.interop import numpy_view
from tiledsl.runtime.interop import storage_view
from tiledsl.ws import simulate as machine
from tiledsl.ws.launch import Extents
from tiledsl.ws.stepping import Stepping
from tiledsl.ws.view_extents import piece_width

Arguments = Mapping[str, Any] | tuple[Any, ...] | list[Any]
"""By name, or in the order of the parameters."""


def simulate(
    kernel: Kernel, args: Arguments, grid: GridLike, *, seed: int = 0, clusters: int = 2
) -> None:
    """Runs a specialised kernel's program; stores write into the tensors given.

    Args:
        kernel: the result of `compile(...)`.
        args: by name, or a tuple in the order of the parameters; tensors on the CPU (or arrays),
            numbers. Constants, and parameters with a default, need not be given.
        grid: as at a launch.
        seed: of the order in which threads, copies and wgmmas go on.
        clusters: of a persistent kernel, which share out the tiles.

    Raises:
        LaunchError: the kernel has a single role, or an argument does not fit.
        Fault: an obligation of the checker is violated in this run.
    """
    graph = _machine_of(kernel)
    args = _by_name(kernel, args)
    _check_extents(kernel, args)
    extents = grid_of(grid, kernel.constants, args)
    machine.simulate(graph, bound_arguments(graph, args), extents, seed=seed, clusters=clusters)


def step(
    kernel: Kernel, args: Arguments, grid: GridLike, *, seed: int = 0, clusters: int = 2
) -> Stepping:
    """A simulation that stops and answers; arguments and errors as for `simulate`."""
    graph = _machine_of(kernel)
    args = _by_name(kernel, args)
    _check_extents(kernel, args)
    extents = grid_of(grid, kernel.constants, args)
    return Stepping(graph, bound_arguments(graph, args), extents, seed=seed, clusters=clusters)


def emulate(
    kernel: Kernel,
    args: Arguments,
    grid: GridLike,
    *,
    seed: int = 0,
    seconds: float = 120.0,
) -> None:
    """Runs a kernel's CUDA text, compiled by g++ for the CPU; stores write into the tensors given.

    Args:
        kernel: the result of `compile(...)`, with roles or without.
        args: as for `simulate`. Where the text relies on alignment or strides that `compile` was
            given, these have it too.
        grid: as at a launch.
        seed: of the order in which threads and asynchronous copies go on.
        seconds: of processor time, after which the run is given up.

    Raises:
        LaunchError: an argument is missing or does not fit.
        EmulationFault: a deadlock, a race with a copy, an access outside of a tensor, ...
        NotEmulated: there is no C++ compiler, or the text has no emulation.
    """
    module, runtime = checked(kernel).module, _by_name(kernel, args)
    _check_extents(kernel, runtime)
    extents = grid_of(grid, kernel.constants, runtime)
    arrays = _arrays(runtime)
    for param in module.params:
        if isinstance(param, PointerParam | TensorMapParam):
            given = arrays.get(param.arg)
            got, want = getattr(given, "dtype", None), param.dtype.numpy
            if got is not None and got != want:
                raise LaunchError(f"{param.arg}: expected {want}, got {got}")
    text.run(module, arrays, extents, seed=seed, seconds=seconds)


def _by_name(kernel: Kernel, args: Arguments) -> dict[str, Any]:
    """The arguments of a run by name, with the defaults of those that are left out.

    Raises:
        LaunchError: they are neither named nor in order, are too many, or hold no data.
    """
    signature = kernel.signature
    if isinstance(args, Mapping):
        given = dict(args)
    elif signature is not None and isinstance(args, list | tuple):  # type: ignore[reportUnnecessaryIsInstance]
        try:
            given = dict(signature.bind_partial(*args).arguments)
        except TypeError as error:
            raise LaunchError(f"{kernel.module.name}: {error}") from None
    else:
        raise LaunchError(
            f"args: expected a dictionary by name, or a tuple, got {type(args).__name__}",
            hint='give {"x": x, "y": y}, or (x, y) in the order of the parameters',
        )
    parameters: Mapping[str, Parameter] = {} if signature is None else signature.parameters
    for name, parameter in parameters.items():
        if parameter.default is not Parameter.empty and name not in kernel.constants:
            given.setdefault(name, parameter.default)
    for name, value in _apart(given).items():
        if _is_tensor(value) and value.device.type != "cpu":
            raise LaunchError(
                f"argument {name} is on {value.device}: simulations and the emulation run on "
                "tensors of the CPU, which hold data"
            )
    return given


def _check_extents(kernel: Kernel, args: Mapping[str, Any]) -> None:
    """What the kernel asserts of extents, as before a launch. Raises LaunchError."""
    if kernel.asserts is not None:
        check_asserts(kernel.asserts, {n: _extents(a) for n, a in _arrays(args).items()})


def _arrays(args: Mapping[str, Any]) -> dict[str, object]:
    """Arrays and numbers by name; lists of tensors are taken apart."""
    return {name: _array(value, name) for name, value in _apart(args).items()}


def _apart(args: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments with each tensor of a list by a name of its own."""
    out: dict[str, Any] = {}
    for name, value in args.items():
        if isinstance(value, list | tuple):
            items: list[Any] = list(value)  # type: ignore[arg-type]
            out |= {item_name(name, i): item for i, item in enumerate(items)}
        else:
            out[name] = value
    return out


def _extents(given: object) -> object:
    """Extents and strides in elements of an array; numbers as they are."""
    if not isinstance(given, np.ndarray):
        return given
    array: np.ndarray[Any, Any] = given  # type: ignore[reportUnknownVariableType]
    return Extents(array.shape, tuple(s // array.itemsize for s in array.strides))


def _array(value: object, name: str) -> object:
    tensor: Any = value.tensor() if isinstance(value, TensorDescriptor) else value
    return numpy_view(tensor, name) if _is_tensor(tensor) else value


def checked(kernel: object) -> Kernel:
    """The kernel. Raises LaunchError where it is something else."""
    if not isinstance(kernel, Kernel):
        got = type(kernel).__name__
        raise LaunchError(f"kernel: expected the result of kernel.compile(...), got {got}")
    return kernel


def _machine_of(kernel: object) -> TileGraph:
    kernel = checked(kernel)
    if kernel.machine is None:
        raise LaunchError(
            f"{kernel.module.name} has a single role: only specialised kernels are simulated",
            hint="kernel.report(...) says why; emulate() runs its text, the interpreter the kernel",
        )
    return kernel.machine


def bound_arguments(graph: TileGraph, args: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays and numbers by the names of the graph's arguments.

    Lists of tensors are taken apart; pointers become the memory behind them, and tensors that
    pointer accesses turned out to be are made of it.
    """
    given = _apart(args)
    views: tuple[TensorView, ...] = graph.facts.get("views", ())
    for view in views:
        if view.name not in given and view.pointer in given:
            given[view.name] = view_array(view, _memory(view.pointer, given), given)
    return {a.name: _argument(a, given) for a in graph.args if a.name in given}


def _argument(value: Value, args: Mapping[str, Any]) -> object:
    given = args[value.name]
    match value.type:
        case TensorType() if _is_tensor(given):
            return numpy_view(given, value.name)
        case ScalarType(dtype=dtype) if dtype.element is not None and _is_tensor(given):
            return storage_view(given, value.name)
        case _:
            return given


def _is_tensor(given: object) -> bool:
    """Whether it is a tensor of torch (arrays of numpy are taken as they are)."""
    return hasattr(given, "untyped_storage")


class Memory(Protocol):
    """Memory as a flat array, and the element of it that a pointer points to."""

    @property
    def flat(self) -> np.ndarray: ...

    @property
    def offset(self) -> int: ...


def _memory(name: str, args: Mapping[str, Any]) -> Memory:
    given = args[name]
    if isinstance(given, np.ndarray):
        return StorageView(np.ravel(args[name]), 0)
    return storage_view(given, name) if _is_tensor(given) else given


def view_array(view: TensorView, memory: Memory, numbers: Mapping[str, Any]) -> np.ndarray:
    """The tensor that pointer accesses turned out to be, on the argument's memory.

    Of extents that the kernel does not check, those of rows go as far as the memory does, and those
    within rows as far as the last one.
    """

    def number(item: int | str) -> int:
        return product_in(item, lambda name: int(numbers[name]))

    strides = tuple(number(s) for s in view.strides)
    room = memory.flat.size - memory.offset
    shape = [1 if n is None else max(0, number(n)) for n in view.shape]
    width = piece_width(view.shape, view.strides)  # of pieces, which come before their rows
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], -d if strides[d] == width else d))
    for dim in order:
        if view.shape[dim] is None:
            rest = sum((m - 1) * s for m, s in zip(shape, strides, strict=True))
            shape[dim] = max(1, (room - 1 - rest) // max(1, strides[dim]) + 1)
    size = memory.flat.itemsize
    steps = tuple(s * size for s in strides)
    return np.ndarray(
        tuple(shape), memory.flat.dtype, memory.flat.view(np.uint8), memory.offset * size, steps
    )
