"""The launch of one compiled kernel on one device from the facts that a guard has read."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import Literal

from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import LaunchSlotParam
from tiledsl.codegen.module import Param
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.errors import LaunchError
from tiledsl.runtime import driver
from tiledsl.runtime.frame import HEAD
from tiledsl.runtime.frame import NULL
from tiledsl.runtime.frame import Frame
from tiledsl.runtime.frame import head_offset
from tiledsl.runtime.launcher import Launcher
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


Pooled = list[Any]
"""A frame in the pool: what a launch reads of it, the frame, and the facts that it holds."""


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
        self.grids: dict[Any, tuple[Grid, int, int, int] | None] = {}
        self.frames: list[Pooled] = []
        self._facts = facts
        self.source, names = self._text(facts)
        exec(self.source, names)
        self.run: Callable[..., bool | None] = names["run"]

    # ------------------------------------------------------------------ called by the text
    def grid_of(self, found: Any) -> tuple[Grid, int, int, int] | None:
        """The user's grid and the launched one for what a grid function gave; None when empty."""
        user = self.normalize(found, self.constants)
        made = None if 0 in user else (user, *self.launcher.grid(self.loaded, user))
        if len(self.grids) >= MAX_GRIDS:
            self.grids.clear()
        with contextlib.suppress(TypeError):  # a list
            self.grids[found] = made
        return made

    def meta(self, grid: Callable[[Mapping[str, Any]], Any], facts: tuple[Any, ...]) -> Any:
        """The grid, from a function that reads more than the constants."""
        values = {f[2:]: v for f, v in zip(self._facts, facts, strict=True) if f[0] == "v"}
        try:
            return grid({**values, **self.constants})
        except KeyError as fault:
            raise LaunchError(
                f"the grid function reads {fault}, which is no constant or number of the call"
            ) from fault

    def frame(self) -> Pooled:
        """A new frame: a launch takes one out of the pool and puts it back."""
        made = self.launcher.packer.frame()
        return [made.view, made.config, made.params, made, None]

    def recover(self, status: int, frame: Frame) -> None:
        """Launches again in the device's own context, or raises LaunchError."""
        if status not in WRONG_CONTEXT:
            raise self.launcher.failed(status, frame.grid)
        self.elsewhere(frame)

    def elsewhere(self, frame: Frame) -> None:
        """Launches while another device is current."""
        stream = driver.raw_stream()(self.device)
        self.launcher.submit(self.loaded, frame, frame.grid, stream)

    # ------------------------------------------------------------------ the text
    def _text(self, facts: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        module, text = self.launcher.module, _FactText(facts)
        values = [text.value(param) for param in module.params]
        _, size, layout = layout_of(module.params)
        start = head_offset(size)
        names: dict[str, Any] = text.names
        names |= {
            "pack_head": struct.Struct(f"<{HEAD}").pack_into,
            "pack_params": struct.Struct(layout).pack_into,
            "pack_all": struct.Struct(f"{layout}{start - size}x{HEAD}").pack_into,
            "entry": self,
            "grids": self.grids,
            "constants": self.constants,
            "take": self.frames.pop,
            "give": self.frames.append,
            "faults": (struct.error, OverflowError),
            "launch": driver.launch_call(),
            "function": self.loaded.function,
            "device_of": driver.raw_device(),
            "stream_of": driver.raw_stream(),
            "NULL": NULL,
        }
        listed = "".join(f", {f}" for f in facts)
        head = self.launcher.packer.setup.head_text("x, y, z", f"stream_of({self.device})")
        source = f"""\
def run(token, grid{listed}):
    if grid.__class__ is not tuple and callable(grid):
        try:
            grid = grid(constants)
        except KeyError:
            grid = entry.meta(grid, ({listed[2:]}{"," if facts else ""}))
    try:
        found = grids[grid]
    except (KeyError, TypeError):
        found = entry.grid_of(grid)
    if found is None:
        return
    grid, x, y, z = found
    try:
        pooled = take()
    except IndexError:
        pooled = entry.frame()
    view, config, params, frame, held = pooled
{_pack_text(module, facts, values, head, start)}
    if device_of() != {self.device}:
        entry.elsewhere(frame)
    elif status := launch(config, function, params, NULL):
        entry.recover(status, frame)
    give(pooled)
"""
        return source, names


def _has(module: KernelModule, kind: type[Param]) -> bool:
    return any(isinstance(p, kind) for p in module.params)


def _pack_text(
    module: KernelModule, facts: tuple[str, ...], values: list[str], head: str, start: int
) -> str:
    """Fills the frame; the parameters with tensor maps only when it does not hold these already."""
    packed = "".join(f"{v}, " for v in values)
    if not _has(module, TensorMapParam) or _has(module, LaunchSlotParam):
        return f"""\
    try:
        pack_all(view, 0, {packed}{head})
    except faults:
        return True"""
    # Extents and strides are part of the token; a call without one, or a fact that is none of
    # theirs, is compared by value.
    kept = "".join(f", {f}" for f in facts if f[0] not in "st")
    return f"""\
    facts = (token, grid{kept})
    if token is None or held != facts:
        pooled[4] = None
        try:
            pack_params(view, 0, {packed})
        except faults:
            return True
        pooled[4] = facts
    pack_head(view, {start}, {head})"""
