"""The launch of one compiled kernel on one device from the facts that a guard has read."""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import Literal

from tiledsl.codegen.module import GridParam
from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import LaunchSlotParam
from tiledsl.codegen.module import Param
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.errors import LaunchError
from tiledsl.runtime import driver
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.params import Frame
from tiledsl.runtime.params import Grid
from tiledsl.runtime.params import PackText
from tiledsl.runtime.params import layout_of

MAX_GRIDS = 1024
WRONG_CONTEXT = frozenset({201, 400})
"""CUDA_ERROR_INVALID_CONTEXT and CUDA_ERROR_INVALID_HANDLE: nothing was launched."""

Normalize = Callable[[Any, Mapping[str, Any]], Grid]


class _FactText(PackText):
    """Reads facts from the parameters of the entry instead of the arguments."""

    def __init__(self, facts: tuple[str, ...]) -> None:
        super().__init__()
        self._facts = frozenset(facts)

    def read(self, arg: str, fact: Literal["value", "ptr", "shape", "strides"]) -> str:
        letter = {"value": "v", "ptr": "p", "shape": "s", "strides": "t"}[fact]
        name = f"{letter}_{arg}"
        if name in self._facts:
            return name
        # A pointer that is None has no facts: it is the null pointer.
        return "0" if fact == "ptr" else "None"

    def value(self, param: Param) -> str:
        if isinstance(param, ScalarParam) and (param.dtype.bits >= 32 or not param.dtype.is_float):
            return self.read(param.arg, "value")  # of the type that `struct` takes
        return super().value(param)


class _Frames(threading.local):
    """What a thread needs to launch: its parameter buffer, and configurations by grid.

    frame: (the buffer, where it starts, address of the pointers into it, all of it).
    facts: what the buffer holds, where packing it takes long.
    """

    frame: tuple[Any, int, int, Frame]
    configs: dict[Grid, Any]
    facts: tuple[Any, ...] | None


class Entry:
    """A program on a device, ready to launch.

    run: called as `run(token, grid, *facts)`; True when a number does not fit its parameter, and
    nothing was launched. Calls with equal tokens have equal extents and strides; None says nothing.
    source: its text.
    """

    def __init__(
        self,
        launcher: Launcher,
        device: int,
        facts: tuple[str, ...],
        constants: Mapping[str, Any],
        normalize: Normalize,
    ) -> None:
        self.launcher = launcher
        self.device = device
        self.constants = constants
        self.normalize = normalize
        self.loaded = launcher.load(device)
        self.grids: dict[Any, tuple[Grid, Grid] | None] = {}
        self._facts = facts
        self._frames = _Frames()
        self.source, names = self._text(facts)
        exec(self.source, names)
        self.run: Callable[..., bool | None] = names["run"]

    # ------------------------------------------------------------------ called by the text
    def grid_of(self, found: Any) -> tuple[Grid, Grid] | None:
        """(the user's grid, the launched grid) for what a grid function gave; None when empty."""
        user = self.normalize(found, self.constants)
        made = None if 0 in user else self.launcher.grid(self.loaded, user)
        both = None if made is None else (user, made)
        if len(self.grids) >= MAX_GRIDS:
            self.grids.clear()
        with contextlib.suppress(TypeError):  # a list
            self.grids[found] = both
        return both

    def meta(self, grid: Callable[[Mapping[str, Any]], Any], facts: tuple[Any, ...]) -> Any:
        """The grid, from a function that reads more than the constants."""
        values = {f[2:]: v for f, v in zip(self._facts, facts, strict=True) if f[0] == "v"}
        try:
            return grid({**values, **self.constants})
        except KeyError as fault:
            raise LaunchError(
                f"the grid function reads {fault}, which is no constant or number of the call"
            ) from fault

    def frame(self) -> tuple[Any, int, int, Frame]:
        """The parameter buffer of this thread."""
        made = self.launcher.packer.frame()
        self._frames.frame = (made.buffer, made.base, made.address, made)
        self._frames.configs, self._frames.facts = {}, None
        return self._frames.frame

    def recover(self, status: Any, grid: Grid, frame: Frame) -> None:
        """Launches again in the device's own context, or raises LaunchError."""
        if int(status) not in WRONG_CONTEXT:
            raise self.launcher.failed(status, grid)
        self.elsewhere(grid, frame)

    def elsewhere(self, grid: Grid, frame: Frame) -> None:
        """Launches while another device is current."""
        stream = driver.raw_stream()(self.device)
        self.launcher.submit(self.loaded, grid, frame, stream)

    def config(self, grid: Grid) -> list[Any]:
        """This thread's configuration of a launch that may start early, and its stream."""
        made = self._frames.configs[grid] = [self.launcher.config(grid), None]
        return made

    # ------------------------------------------------------------------ the text
    def _text(self, facts: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        module, text = self.launcher.module, _FactText(facts)
        values = [text.value(param) for param in module.params]
        names: dict[str, Any] = text.names
        names |= {
            "pack_into": struct.Struct(layout_of(module.params)[2]).pack_into,
            "entry": self,
            "grids": self.grids,
            "constants": self.constants,
            "frames": self._frames,
            "faults": (struct.error, OverflowError),
        }
        module = self.launcher.module
        listed = "".join(f", {f}" for f in facts)
        needs_grid = _has(module, GridParam)
        packed = "".join(f", {v}" for v in values)
        source = f"""\
def run(token, grid{listed}):
    if grid.__class__ is not tuple and callable(grid):
        try:
            grid = grid(constants)
        except KeyError:
            grid = entry.meta(grid, ({listed[2:]}{"," if facts else ""}))
    try:
        both = grids[grid]
    except (KeyError, TypeError):
        both = entry.grid_of(grid)
    if both is None:
        return
    {"grid, " if needs_grid or _has(module, TensorMapParam) else "_, "}launched = both
    try:
        buffer, base, address, frame = frames.frame
    except AttributeError:
        buffer, base, address, frame = entry.frame()
{_pack_text(module, facts, packed)}
{self._submit_text(names)}"""
        return source, names

    def _submit_text(self, names: dict[str, Any]) -> str:
        module, device, cuda = self.launcher.module, self.device, driver.bindings()
        names |= {
            "launch": cuda.cuLaunchKernelEx if module.pdl else cuda.cuLaunchKernel,
            "function": self.loaded.function,
            "device_of": driver.raw_device(),
            "stream_of": driver.raw_stream(),
            "stream_type": cuda.CUstream,
        }
        call = f"""\
    x, y, z = launched
    status = launch(function, x, y, z, {module.num_threads}, 1, 1, {module.smem_bytes},
                    stream_of({device}), address, 0)[0]"""
        if module.pdl:
            call = f"""\
    config = frames.configs.get(launched) or entry.config(launched)
    stream = stream_of({device})
    if config[1] != stream:
        config[0].hStream, config[1] = stream_type(stream), stream
    status = launch(config[0], function, address, 0)[0]"""
        return f"""\
    if device_of() != {device}:
        return entry.elsewhere(launched, frame)
{call}
    if status:
        entry.recover(status, launched, frame)
"""


def _has(module: KernelModule, kind: type[Param]) -> bool:
    return any(isinstance(p, kind) for p in module.params)


def _pack_text(module: KernelModule, facts: tuple[str, ...], packed: str) -> str:
    """Fills the buffer; with tensor maps only when it does not hold these facts already."""
    pack = f"pack_into(buffer, base{packed})"
    if not _has(module, TensorMapParam) or _has(module, LaunchSlotParam):
        return f"""\
    try:
        {pack}
    except faults:
        return True"""
    # Extents and strides are part of the token; a call without one, or a fact that is none of
    # theirs, is compared by value.
    kept = "".join(f", {f}" for f in facts if f[0] not in "st")
    return f"""\
    facts = (token, grid{kept})
    if token is None or frames.facts != facts:
        frames.facts = None
        try:
            {pack}
        except faults:
            return True
        frames.facts = facts"""
