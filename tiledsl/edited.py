"""A kernel whose CUDA text comes from a file; everything else is as the compiler decided."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiledsl.call import GridLike
from tiledsl.call import normalize_grid
from tiledsl.compiler import compile_kernel
from tiledsl.errors import LaunchError
from tiledsl.runtime import driver
from tiledsl.runtime.cache import KERNELS
from tiledsl.runtime.launcher import Launcher
from tiledsl.target import HOPPER


class EditedKernel:
    """`edited[grid](...)` launches the text of a file with the arguments of a kernel."""

    def __init__(self, kernel: Any, path: Path) -> None:
        self.kernel = kernel
        self.path = path
        self._launchers: dict[Any, tuple[Launcher, dict[str, Any]]] = {}

    def __getitem__(self, grid: GridLike) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def _launch(self, grid: GridLike, *args: Any, **kwargs: Any) -> None:
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
            compiled = KERNELS.get(module, HOPPER, options=call.nvrtc_options)
            self._launchers[key] = Launcher(module, compiled), made.constants
        launcher, constants = self._launchers[key]
        launcher.launch(
            call.runtime,
            normalize_grid(grid, constants, call.runtime),
            device.index,
            driver.current_stream(device.index),
        )
