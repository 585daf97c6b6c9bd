"""Launches of the examples, recorded, and repeated in the emulation on the same bytes.

What `kernel[grid](...)` is called with is kept with the program that ran. On CUDA tensors that is the
program of the device, on CPU tensors the interpreter ran and the program is the one that a launch on the
device would take.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import numpy as np
import torch

from tests.emulation.matmuls import compiled
from tiledsl import emulate
from tiledsl.call import normalize_grid
from tiledsl.codegen.module import KernelModule
from tiledsl.jit import JitFunction
from tiledsl.runtime.interop import numpy_view

Fill = Callable[[str, torch.Tensor], torch.Tensor | None]
"""New contents of an argument, or None for what it holds."""


@dataclass
class Copies:
    """Copies of tensors with their strides and their place in a storage; the same one for the same tensor."""

    device: str
    made: dict[tuple[Any, ...], torch.Tensor] = field(default_factory=dict)

    def of(self, value: Any) -> Any:
        """A copy of a tensor, or of each of a list; other values as they are."""
        if isinstance(value, list | tuple):
            return [self.of(v) for v in value]
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach()
        key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if key not in self.made:
            offset, dtype = value.storage_offset(), value.dtype
            flat = torch.empty(0, dtype=dtype, device=value.device).set_(value.untyped_storage())
            flat = flat.to(self.device, copy=True)
            self.made[key] = flat.as_strided(value.shape, value.stride(), offset)
        return self.made[key]


@dataclass
class Launch:
    """A call of a kernel, with copies of its arguments as they were before it."""

    kernel: JitFunction
    grid: Any
    args: tuple[Any, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__

    def program(self) -> tuple[KernelModule, tuple[int, ...]]:
        """The text that runs, and the grid of the call."""
        call = self.kernel._bind(self.args, self.options)
        sig, device = self.kernel._signature(call)
        if device is not None and device.type == "cuda":
            found = self.kernel._program(call, sig, self.grid)
            module, constants = found.module, {**call.constants, **found.chosen}
        else:
            made = compiled(self.kernel, self.args, self.grid, **self.options)
            module, constants = made.module, made.constants
        return module, normalize_grid(self.grid, constants, call.runtime)


@contextlib.contextmanager
def recording(launches: list[Launch]) -> Iterator[None]:
    """Adds the launches within to a list."""
    real = JitFunction.__getitem__

    def item(kernel: JitFunction, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            copies = Copies(device_of(args))
            launches.append(Launch(kernel, grid, tuple(map(copies.of, args)), options))
            real(kernel, grid)(*args, **options)

        return launch

    with patched(JitFunction, "__getitem__", item):
        yield


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute with another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def both(
    launch: Launch, fill: Fill, *, seeds: tuple[int, ...] = (1,)
) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Arguments after the launch as it runs, and after each emulation of it: (name, wanted, got)."""
    device = device_of(launch.args)
    copies = Copies(device)
    args = tuple(map(copies.of, launch.args))
    names = list(launch.kernel.description.names)
    for name, value in tensors_of(names, args):
        new = fill(name, value)
        if new is not None:
            value.copy_(new)
    before = [Copies("cpu") for _ in seeds]
    given = [tuple(map(b.of, args)) for b in before]
    module, grid = launch.program()
    launch.kernel[launch.grid](*args, **launch.options)
    if device != "cpu":
        torch.cuda.synchronize()
    after = tuple(map(Copies("cpu").of, args))
    for seed, values in zip(seeds, given, strict=True):
        call = launch.kernel._bind(values, launch.options)
        runtime = {n: as_numpy(v) for n, v in call.runtime.items()}
        emulate.run(module, runtime, grid, seed=seed)
        pairs = zip(tensors_of(names, after), tensors_of(names, values), strict=True)
        for (name, want), (_, value) in pairs:
            yield name, numpy_view(want, name), numpy_view(value, name)


def device_of(args: Sequence[Any]) -> str:
    """The device of the first tensor."""
    return next(str(t.device) for _, t in tensors_of([""] * len(args), args))


def tensors_of(names: Sequence[str], args: Sequence[Any]) -> list[tuple[str, torch.Tensor]]:
    """Tensors and those in lists, by the name of their argument."""
    out: list[tuple[str, torch.Tensor]] = []
    for name, value in zip(names, args, strict=False):
        items = value if isinstance(value, list | tuple) else [value]
        out += [(name, v) for v in items if isinstance(v, torch.Tensor)]
    return out


def as_numpy(value: Any) -> Any:
    """An argument as the emulation takes it."""
    if isinstance(value, list | tuple):
        return [as_numpy(v) for v in value]
    return numpy_view(value) if isinstance(value, torch.Tensor) else value


def differences(want: np.ndarray, got: np.ndarray) -> int:
    """Elements that are not the same number; zeros of either sign are, and NaNs."""
    if want.dtype.kind in "iub":
        return int((want != got).sum())
    a, b = want.astype(np.float64), got.astype(np.float64)
    return int(((a != b) & ~(np.isnan(a) & np.isnan(b))).sum())


def distance(want: np.ndarray, got: np.ndarray) -> float:
    """The largest difference over the largest value; inf where NaNs or infinities lie elsewhere."""
    a, b = want.astype(np.float64).ravel(), got.astype(np.float64).ravel()
    finite = np.isfinite(a)
    if (
        not np.array_equal(a[~finite], b[~finite], equal_nan=True)
        or not np.isfinite(b[finite]).all()
    ):
        return float("inf")
    worst = np.abs(a - b)[finite].max(initial=0.0)
    return float(worst / max(np.abs(a)[finite].max(initial=0.0), 1e-30)) if worst else 0.0
