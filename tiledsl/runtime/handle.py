"""A launch with everything fixed: its call is a check of addresses and one driver call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from tiledsl.codegen.module import ShapeParam
from tiledsl.codegen.module import StrideParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.errors import LaunchError
from tiledsl.runtime import driver
from tiledsl.runtime.entry import WRONG_CONTEXT
from tiledsl.runtime.frame import NULL
from tiledsl.runtime.frame import Frame
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.launching import launching
from tiledsl.runtime.launching import located
from tiledsl.runtime.params import Grid
from tiledsl.runtime.signature import has_pointer

MAX_STREAMS = 64


class Handle:
    """A bound launch: `handle()` launches on torch's current stream of the device.

    args: the bound arguments, kept alive.  grid: as launched; None when there is nothing to do.
    Raises LaunchError when a tensor's memory or extents changed after it was bound.
    """

    args: Mapping[str, Any]
    grid: Grid | None

    def __call__(self) -> None:
        """Launches."""
        raise NotImplementedError

    @staticmethod
    def of(
        launcher: Launcher,
        device: int,
        args: Mapping[str, Any],
        user_grid: Grid,
        fn: Callable[..., object],
    ) -> Handle:
        """A handle for arguments of a device; fn: the kernel, for errors. Raises LaunchError."""
        loaded = launcher.load(device)
        grid = None if 0 in user_grid else launcher.grid(loaded, user_grid)
        if launcher.module.is_debug:
            submit = launcher.bind(args, user_grid, device)
            return _made(lambda _: submit(driver.raw_stream()(device)), args, grid)
        run = _nothing
        if grid is not None:
            run = _Bound(launcher, device, args, user_grid, grid, fn).call()
        return _made(run, args, grid)


def interpreted_handle(run: Callable[[], None]) -> Handle:
    """A handle that runs the interpreter."""
    return _made(lambda _: run(), {}, None)


def _made(run: Callable[[Any], None], args: Mapping[str, Any], grid: Grid | None) -> Handle:
    # A class of its own, so that a call of the handle is one call of Python.
    made: Handle = type("Handle", (Handle,), {"__call__": run})()
    made.args, made.grid = dict(args), grid
    return made


def _nothing(_: Any) -> None:
    """The launch of an empty grid."""


class _Bound:
    """A bound launch: what its generated function calls, and its text."""

    def __init__(
        self,
        launcher: Launcher,
        device: int,
        args: Mapping[str, Any],
        user_grid: Grid,
        grid: Grid,
        fn: Callable[..., object],
    ) -> None:
        self.launcher, self.device, self.args = launcher, device, args
        self.user_grid, self.grid, self.fn = user_grid, grid, fn
        self.loaded = launcher.load(device)
        self.frame = self.packed()
        self.tensors = {n: v for n, v in args.items() if has_pointer(v)}
        self.facts = {n: _facts(v) for n, v in self.tensors.items()}
        self.configs: dict[int, Any] = {}
        self._frames: list[Frame] = []

    def packed(self) -> Frame:
        """A frame with the arguments."""
        packer = self.launcher.packer
        frame = packer.frame()
        packer.pack(frame, self.args, self.user_grid)
        return frame

    def moved(self) -> LaunchError:
        """The error for tensors that are not what they were."""
        found = [n for n, v in self.tensors.items() if self.facts[n] != _facts(v)]
        error = LaunchError(
            f"handle of kernel {self.launcher.module.name}: argument {', '.join(found)} has other "
            "memory or extents than when it was bound",
            hint="bind again after a tensor was resized, transposed in place or freed",
        )
        return located(error, self.fn)

    def config(self, stream: int) -> Any:
        """The configuration for a stream, which no other thread changes."""
        if len(self.configs) >= MAX_STREAMS:
            self.configs.clear()  # frames stay: another thread may be launching with one
        made = self.launcher.packer.frame()
        made.aim(self.grid, stream)
        self._frames.append(made)
        self.configs[stream] = made.config
        return made.config

    def refused(self, status: int) -> None:
        """Launches again in the device's own context, or raises LaunchError."""
        if status not in WRONG_CONTEXT:
            raise located(self.launcher.failed(status, self.grid), self.fn)
        self.elsewhere()

    def elsewhere(self) -> None:
        """Launches while another device is current."""
        stream = driver.raw_stream()(self.device)
        with launching(self.fn):
            self.launcher.submit(self.loaded, self.packed(), self.grid, stream)

    def call(self) -> Callable[[Any], None]:
        """The generated function."""
        packer, device = self.launcher.packer, self.device
        names: dict[str, Any] = {
            "moved": self.moved,
            "refused": self.refused,
            "elsewhere": self.elsewhere,
            "renew": lambda: packer.renew(self.frame),
            "lock": threading.Lock(),
            "device_of": driver.raw_device(),
            "stream_of": driver.raw_stream(),
            "function": self.loaded.function,
            "launch": driver.launch_call(),
            "params": self.frame.params,
            "configs": self.configs,
            "config": self.config,
            "NULL": NULL,
        }
        checks = self._checks(names)
        elsewhere = "False" if driver.has_one_device() else f"device_of() != {device}"
        submit = "status = launch(found, function, params, NULL)"
        if packer.has_slots:
            submit = f"with lock:\n        renew()\n        {submit}"
        source = f"""\
def call(self):
    if {" or ".join(checks) or "False"}:
        raise moved()
    if {elsewhere}:
        return elsewhere()
    try:
        found = configs[stream := stream_of({device})]
    except KeyError:
        found = config(stream)
    {submit}
    if status:
        refused(status)
"""
        exec(source, names)
        return names["call"]

    def _checks(self, names: dict[str, Any]) -> list[str]:
        """Expressions that are true where a tensor is not what it was."""
        params = self.launcher.module.params
        strided = {
            p.arg for p in params if isinstance(p, ShapeParam | StrideParam | TensorMapParam)
        }
        checks: list[str] = []
        for at, (name, value) in enumerate(self.tensors.items()):
            facts = self.facts[name]
            names[f"ptr_{at}"], names[f"numel_{at}"] = value.data_ptr, getattr(value, "numel", None)
            names[f"value_{at}"], names[f"stride_{at}"] = value, getattr(value, "stride", None)
            names[f"facts_{at}"] = facts
            checks.append(f"ptr_{at}() != {facts[0]}")
            if name in strided and names[f"stride_{at}"] is not None:
                checks.append(f"value_{at}.shape != facts_{at}[2]")
                checks.append(f"stride_{at}() != facts_{at}[3]")
            elif names[f"numel_{at}"] is not None:
                checks.append(f"numel_{at}() != {facts[1]}")
        return checks


def _facts(value: Any) -> tuple[Any, ...]:
    """Address, number of elements, extents, strides."""
    numel, stride = getattr(value, "numel", None), getattr(value, "stride", None)
    shape = getattr(value, "shape", None)
    return value.data_ptr(), int(numel()) if numel else 0, shape, stride() if stride else None
