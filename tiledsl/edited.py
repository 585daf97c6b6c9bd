"""A kernel whose CUDA text comes from a file; everything else is as the compiler decided."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiledsl.call import GridLike
from tiledsl.call import grid_of
from tiledsl.compiled import Kernel
from tiledsl.compiler import compile_kernel
from tiledsl.errors import LaunchError
from tiledsl.inspection import ANY_GRID
from tiledsl.inspection import remark_on
from tiledsl.report import render_report
from tiledsl.runtime import driver
from tiledsl.runtime.cache import KERNELS
from tiledsl.runtime.disassembler import sass
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.launching import launching
from tiledsl.runtime.nvrtc import ptx_of
from tiledsl.target import HOPPER


class EditedKernel:
    """`edited[grid](...)` launches the text of a file with the arguments of a kernel."""

    def __init__(self, kernel: Any, path: Path) -> None:
        self.kernel = kernel
        self.path = path
        self._launchers: dict[Any, tuple[Launcher, dict[str, Any]]] = {}

    def __repr__(self) -> str:
        return f"<{self.kernel!r} with the text of {self.path}>"

    def __getitem__(self, grid: GridLike) -> Callable[..., None]:
        return functools.partial(self._launch, grid)

    def compile(self, *args: Any, grid: GridLike | None = None, **kwargs: Any) -> Kernel:
        """The compiled text with the decisions of the kernel; meta or CPU tensors serve."""
        return self._compiled(args, kwargs, grid)

    def cuda(self, *args: Any, **kwargs: Any) -> str:
        """The text of the file."""
        del args, kwargs
        return self.path.read_text()

    def ptx(self, *args: Any, grid: GridLike | None = None, **kwargs: Any) -> str:
        """The PTX of the text."""
        return ptx_of(self._compiled(args, kwargs, grid).module)

    def sass(self, *args: Any, grid: GridLike | None = None, **kwargs: Any) -> str:
        """The disassembly of the text. Raises TileError where no disassembler is installed."""
        compiled = self._compiled(args, kwargs, grid).compiled
        assert compiled is not None
        return sass(compiled.cubin)

    def report(self, *args: Any, grid: GridLike | None = None, **kwargs: Any) -> str:
        """What the compiler decided; registers and spills are those of the edited text."""
        return render_report(self._compiled(args, kwargs, grid), remark_on(grid))

    def _compiled(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: GridLike | None
    ) -> Kernel:
        call, request = self.kernel.request_for(args, kwargs, ANY_GRID if grid is None else grid)
        made = compile_kernel(request)
        module = replace(made.module, source=self.path.read_text())
        compiled = KERNELS.get(module, HOPPER, options=call.nvrtc_options)
        notes = [*made.notes, f"the text is that of {self.path}; no proof holds for it"]
        return replace(made, module=module, compiled=compiled, notes=notes, is_edited=True)

    def _launch(self, grid: GridLike, *args: Any, **kwargs: Any) -> None:
        k = self.kernel
        with launching(k.fn):
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
                grid_of(grid, constants, call.runtime),
                device.index,
                driver.current_stream(device.index),
            )
