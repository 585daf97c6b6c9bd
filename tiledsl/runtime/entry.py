"""The launch of one compiled kernel on one device from the facts that a guard has read."""

from __future__ import annotations

import struct
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import Literal
from typing import cast

import numpy as np

from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import LaunchSlotParam
from tiledsl.codegen.module import Param
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.runtime import driver
from tiledsl.runtime.frame import HEAD
from tiledsl.runtime.frame import NULL
from tiledsl.runtime.frame import Frame
from tiledsl.runtime.frame import head_offset
from tiledsl.runtime.guard_text import ARGUMENTS
from tiledsl.runtime.guard_text import ASKED
from tiledsl.runtime.guard_text import ASKS
from tiledsl.runtime.guard_text import PACKED
from tiledsl.runtime.guard_text import PREFIX
from tiledsl.runtime.guard_text import REFUSED
from tiledsl.runtime.guard_text import fact_name
from tiledsl.runtime.guard_text import split_fact
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.launching import launching
from tiledsl.runtime.launching import located
from tiledsl.runtime.params import Grid
from tiledsl.runtime.params import PackText
from tiledsl.runtime.params import layout_of

MAX_GRIDS = 1024
WRONG_CONTEXT = frozenset({201, 400})
"""CUDA_ERROR_INVALID_CONTEXT and CUDA_ERROR_INVALID_HANDLE: nothing was launched."""
FAULTS = (struct.error, OverflowError, AttributeError, TypeError, RuntimeError)
"""Of numbers that do not fit, and of what has no address."""

Normalize = Callable[[Any, Mapping[str, Any]], Grid]


class _FactText(PackText):
    """Reads facts from the parameters of the entry instead of the arguments."""

    grid = "tdsl_grid"

    def __init__(self, facts: tuple[str, ...]) -> None:
        super().__init__()
        self._facts = frozenset(facts)

    def read(self, arg: str, fact: Literal["value", "ptr", "shape", "strides"]) -> str:
        letters = {"value": "v", "ptr": "p", "shape": "s", "strides": "t"}
        name = fact_name(letters[fact], arg)
        if name in self._facts:
            return name
        # A pointer that is None has no facts: it is the null pointer.
        return "0" if fact == "ptr" else "None"

    def value(self, param: Param) -> str:
        if isinstance(param, ScalarParam) and (param.dtype.bits >= 32 or not param.dtype.is_float):
            return self.read(param.arg, "value")  # of the type that `struct` takes
        return super().value(param)

    def _name(self, stem: str, value: object) -> str:
        return super()._name(f"{PREFIX}{stem}", value)


Pooled = list[Any]
"""A frame in the pool: what a launch reads of it, the frame, and the facts that it holds."""


class Entry:
    """A program on a device, ready to launch.

    run: called as `run(token, grid, *facts)`; where nothing was launched, True when a number does
    not fit its parameter, and `ASKS` when the grid reads other arguments than numbers.
    Calls with equal tokens have equal extents and strides; None says nothing.
    source: its text.  body: that of the function, to be part of others.  names: what it uses.
    lows: arguments whose addresses lie in the buffer; in the text `tdsl_lows` are their low bytes.
    reads_once: whether a launch uses each address once.  fn: the kernel, for errors.
    """

    def __init__(
        self,
        launcher: Launcher,
        device: int,
        facts: tuple[str, ...],
        constants: Mapping[str, Any],
        normalize: Normalize,
        fn: Callable[..., object],
    ) -> None:
        self.launcher = launcher
        self.device = device
        self.constants = constants
        self.normalize = normalize
        self.fn = fn
        self.loaded = launcher.load(device)
        self.grids: dict[Any, tuple[Grid, bytes] | None] = {}
        self.frames: list[Pooled] = []
        self._facts = facts
        self.body, self.names = self._text(facts)
        names = dict(self.names)
        listed = "".join(f", {f}" for f in facts)
        self.source = f"def run(tdsl_token, tdsl_grid{listed}):\n{self.body}"
        numbers = [f for f in facts if split_fact(f)[0] == "v"]
        listed = "{" + ", ".join(f"{split_fact(f)[1]!r}: {f}" for f in numbers) + "}"
        text = self.source.replace(REFUSED, "True").replace(PACKED, "pass")
        exec(text.replace(ARGUMENTS, listed), names)
        self.run: Callable[..., bool | str | None] = names["run"]

    # ------------------------------------------------------------------ called by the text
    def grid_of(self, found: Any) -> tuple[Grid, bytes] | None:
        """The user's grid and the start of its configuration; None for an empty one."""
        setup = self.launcher.packer.setup
        with launching(self.fn):
            user = self.normalize(found, self.constants)
            made = None if 0 in user else (user, setup.head(self.launcher.grid(self.loaded, user)))
        if _is_fixed(found):
            if len(self.grids) >= MAX_GRIDS:
                self.grids.clear()
            self.grids[found] = made
        return made

    def meta(self, grid: Callable[[Mapping[str, Any]], Any], values: Mapping[str, Any]) -> Any:
        """The grid, from a function that reads more than the constants; None if more than these."""
        try:
            return grid({**values, **self.constants})
        except (KeyError, TypeError):
            return None  # the slow way says what is wrong

    def frame(self) -> Pooled:
        """A new frame: a launch takes one out of the pool and puts it back."""
        made = self.launcher.packer.frame()
        # Addresses are the first words of the buffer.
        lows = made.view.cast("B")[: 8 * len(self.lows) : 8]
        return [made.view, made.config, made.params, made, None, lows]

    def recover(self, status: int, frame: Frame) -> None:
        """Launches again in the device's own context, or raises LaunchError."""
        if status not in WRONG_CONTEXT:
            raise located(self.launcher.failed(status, frame.grid), self.fn)
        self.elsewhere(frame)

    def elsewhere(self, frame: Frame) -> None:
        """Launches while another device is current."""
        stream = driver.raw_stream()(self.device)
        with launching(self.fn):
            self.launcher.submit(self.loaded, frame, frame.grid, stream)

    # ------------------------------------------------------------------ the text
    def _text(self, facts: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
        module, text = self.launcher.module, _FactText(facts)
        _, size, layout, order = layout_of(module.params)
        values = [text.value(module.params[at]) for at in order]
        self.lows = tuple(p.arg for p in module.params if isinstance(p, PointerParam))
        self.reads_once = not _has(module, TensorMapParam)
        start = head_offset(size)
        names: dict[str, Any] = text.names
        found: dict[str, Any] = {
            "callable": callable,
            "tuple": tuple,
            "repr": repr,
            "asks": ASKS,
            "pack_head": struct.Struct(f"@{HEAD}").pack_into,
            "pack_params": struct.Struct(layout).pack_into,
            "pack_all": struct.Struct(f"{layout}{start - size}x{HEAD}").pack_into,
            "entry": self,
            "grids": self.grids,
            "constants": self.constants,
            "take": self.frames.pop,
            "give": self.frames.append,
            "faults": FAULTS,
            "call": driver.launch_call(),
            "function": self.loaded.function,
            "device_of": driver.raw_device(),
            "stream_of": driver.raw_stream(),
            "NULL": NULL,
        }
        names |= {PREFIX + name: value for name, value in found.items()}
        head = f"tdsl_head, tdsl_stream_of({self.device})"
        is_current = f"tdsl_device_of() == {self.device}"
        if driver.has_one_device():
            is_current = "True"
        body = f"""\
    {ASKED} = tdsl_grid
    if tdsl_grid.__class__ is not tdsl_tuple and tdsl_callable(tdsl_grid):
        try:
            tdsl_grid = tdsl_grid(tdsl_constants)
        except KeyError:
            tdsl_grid = tdsl_entry.meta(tdsl_grid, {ARGUMENTS})
            if tdsl_grid is None:
                return {ASKS}
        except TypeError:
            return {REFUSED}
    try:
        tdsl_found = tdsl_grids[tdsl_grid]
    except (KeyError, TypeError):
        tdsl_found = tdsl_entry.grid_of(tdsl_grid)
    if tdsl_found is None:
        return
    tdsl_grid, tdsl_head = tdsl_found
    try:
        tdsl_pooled = tdsl_take()
    except IndexError:
        tdsl_pooled = tdsl_entry.frame()
    tdsl_view, tdsl_config, tdsl_params, tdsl_frame, tdsl_held, tdsl_lows = tdsl_pooled
{_pack_text(module, facts, values, head, start)}
    if {is_current}:
        tdsl_status = tdsl_call(tdsl_config, tdsl_function, tdsl_params, tdsl_NULL)
        if tdsl_status:
            tdsl_entry.recover(tdsl_status, tdsl_frame)
    else:
        tdsl_entry.elsewhere(tdsl_frame)
    tdsl_give(tdsl_pooled)
"""
        return body, names


def _is_fixed(grid: Any) -> bool:
    """Whether a grid stays what it is: lists and tensors may change and be the same object."""
    items = cast("tuple[object, ...]", grid if isinstance(grid, tuple) else (grid,))
    return all(isinstance(n, int | np.integer) for n in items)


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
        tdsl_pack_all(tdsl_view, 0, {packed}{head})
    except tdsl_faults:
        return {REFUSED}
    {PACKED}"""
    # Extents and strides are part of the token; a call without one, or a fact that is none of
    # theirs, is compared by value; the zeros of a float are equal, and two values.
    floats = {
        fact_name("v", p.arg)
        for p in module.params
        if isinstance(p, ScalarParam) and p.dtype.is_float
    }
    told = [f"{f} or tdsl_repr({f})" if f in floats else f for f in facts]
    kept = "".join(f", {f}" for f in told if split_fact(f)[0] not in "st")
    return f"""\
    tdsl_facts = (tdsl_token, tdsl_grid{kept})
    if tdsl_token is None or tdsl_held != tdsl_facts:
        tdsl_pooled[4] = None
        try:
            tdsl_pack_params(tdsl_view, 0, {packed})
        except tdsl_faults:
            return {REFUSED}
        {PACKED}
        tdsl_pooled[4] = tdsl_facts
    tdsl_pack_head(tdsl_view, {start}, {head})"""
