"""A launch with everything fixed: its call is a check of addresses and one driver call."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from tiledsl.codegen.module import ShapeParam
from tiledsl.codegen.module import StrideParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.errors import LaunchError
from tiledsl.runtime import driver
from tiledsl.runtime.entry import WRONG_CONTEXT
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.params import Grid
from tiledsl.runtime.signature import has_pointer


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
    def of(launcher: Launcher, device: int, args: Mapping[str, Any], user_grid: Grid) -> Handle:
        """A handle for arguments of a device. Raises LaunchError."""
        loaded = launcher.load(device)
        grid = None if 0 in user_grid else launcher.grid(loaded, user_grid)
        if launcher.module.is_debug:
            submit = launcher.bind(args, user_grid, device)
            return _made(lambda _: submit(driver.raw_stream()(device)), args, grid)
        run = _nothing if grid is None else _launch(launcher, device, args, user_grid, grid)
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


def _launch(
    launcher: Launcher, device: int, args: Mapping[str, Any], user_grid: Grid, grid: Grid
) -> Callable[[Any], None]:
    """The generated function of a handle."""
    loaded, module, packer = launcher.load(device), launcher.module, launcher.packer
    frame = packer.frame()
    packer.pack(frame, args, user_grid)
    tensors = {n: v for n, v in args.items() if has_pointer(v)}

    def moved() -> LaunchError:
        found = [n for n, v in tensors.items() if facts[n] != _facts(v)]
        return LaunchError(
            f"handle of kernel {module.name}: argument {', '.join(found)} has other memory or "
            "extents than when it was bound",
            hint="bind again after a tensor was resized, transposed in place or freed",
        )

    def refused(status: Any) -> None:
        if int(status) not in WRONG_CONTEXT:
            raise launcher.failed(status, grid)
        elsewhere()

    def elsewhere() -> None:
        launcher.submit(loaded, grid, frame, driver.raw_stream()(device))

    facts = {n: _facts(v) for n, v in tensors.items()}
    strided = {
        p.arg for p in module.params if isinstance(p, ShapeParam | StrideParam | TensorMapParam)
    }
    names: dict[str, Any] = {
        "moved": moved,
        "refused": refused,
        "elsewhere": elsewhere,
        "renew": lambda: packer.renew(frame),
        "device_of": driver.raw_device(),
        "stream_of": driver.raw_stream(),
        "function": loaded.function,
        "frame": frame,
        "launch": driver.bindings().cuLaunchKernel,
    }
    checks: list[str] = []
    for at, (name, value) in enumerate(tensors.items()):
        names[f"ptr_{at}"], names[f"numel_{at}"] = value.data_ptr, getattr(value, "numel", None)
        names[f"value_{at}"], names[f"stride_{at}"] = value, getattr(value, "stride", None)
        names[f"facts_{at}"] = facts[name]
        checks.append(f"ptr_{at}() != {facts[name][0]}")
        if name in strided and names[f"stride_{at}"] is not None:
            checks.append(f"value_{at}.shape != facts_{at}[2]")
            checks.append(f"stride_{at}() != facts_{at}[3]")
        elif names[f"numel_{at}"] is not None:
            checks.append(f"numel_{at}() != {facts[name][1]}")
    renew = "    renew()\n" if packer.has_slots else ""
    submit = f"""\
    status = launch(function, {grid[0]}, {grid[1]}, {grid[2]}, {module.num_threads}, 1, 1,
                    {module.smem_bytes}, stream_of({device}), {frame.address}, 0)[0]
"""
    if module.pdl:
        names |= {"config": launcher.config(grid), "streams": {}, "seen": [None]}
        names |= {"launch": driver.bindings().cuLaunchKernelEx}
        names |= {"stream_type": driver.bindings().CUstream}
        submit = f"""\
    stream = stream_of({device})
    if seen[0] != stream:
        config.hStream = stream_type(stream)
        seen[0] = stream
    status = launch(config, function, {frame.address}, 0)[0]
"""
    source = f"""\
def call(self):
    if {" or ".join(checks) or "False"}:
        raise moved()
{renew}    if device_of() != {device}:
        return elsewhere()
{submit}    if status:
        refused(status)
"""
    exec(source, names)
    return names["call"]


def _facts(value: Any) -> tuple[Any, ...]:
    """Address, number of elements, extents, strides."""
    numel, stride = getattr(value, "numel", None), getattr(value, "stride", None)
    shape = getattr(value, "shape", None)
    return value.data_ptr(), int(numel()) if numel else 0, shape, stride() if stride else None
