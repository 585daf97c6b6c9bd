"""A driver that records launches: CPU tensors count as tensors of CUDA device 0."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from types import SimpleNamespace
from typing import Any

from tiledsl.runtime import driver
from tiledsl.runtime import launcher as launcher_module
from tiledsl.runtime import params as params_module
from tiledsl.runtime import signature as signature_module
from tiledsl.runtime.driver import Function
from tiledsl.runtime.signature import Device

CALL = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)
CONFIG = struct.Struct("<7I4xQQI4x")
ATTRIBUTE = struct.Struct("<I4xi60x")
NAMES: dict[int, str] = {}
"""Of all kernels that were ever loaded: a program outlives a test."""


@dataclass(frozen=True)
class Launched:
    """One launch as the driver saw it."""

    name: str
    grid: tuple[int, ...]
    threads: int
    smem_bytes: int
    stream: int
    address: int
    early: bool = False
    function: int = 0

    def value(self, at: int, ctype: Any = ctypes.c_uint64) -> int:
        """Parameter `at`, as long as the buffer has not been packed again."""
        pointers = (ctypes.c_void_p * (at + 1)).from_address(self.address)
        return ctype.from_address(pointers[at]).value


@dataclass
class FakeDriver:
    """launches: so far.  statuses: what the next launches return.  device: the current one.

    inside: called during a launch.
    """

    launches: list[Launched] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    device: int = 0
    stream: int = 7
    loads: int = 0
    inside: Callable[[Launched], object] = lambda launched: None

    def launch(self, config, function, params, extra):
        """What cuLaunchKernelEx gets: addresses."""
        assert extra is None
        *grid, threads, ty, tz, smem, stream, attributes, count = CONFIG.unpack_from(
            (ctypes.c_char * CONFIG.size).from_address(config)
        )
        assert (ty, tz) == (1, 1)
        status = self.statuses.pop(0) if self.statuses else 0
        if not status:
            found = (ctypes.c_char * (ATTRIBUTE.size * count)).from_address(attributes or config)
            early = any(what == 6 and on for what, on in ATTRIBUTE.iter_unpack(found))
            name, grid = NAMES[function], tuple(grid)
            launched = Launched(name, grid, threads, smem, stream, params, early, function)
            self.inside(launched)
            self.launches.append(launched)
        return status

    def load(self, cubin, name, device, *, smem_bytes=0):
        self.loads += 1
        number = len(NAMES) + 1
        NAMES[number] = name
        return Function(device, 1, None, number)


def install(monkeypatch, *, one_device: bool = False) -> FakeDriver:
    """Replaces the driver for a test."""
    fake = FakeDriver()
    bindings = SimpleNamespace(CUresult=int, cuGetErrorString=lambda status: (0, b"fault"))
    launch = CALL(fake.launch)
    monkeypatch.setattr(driver, "bindings", lambda: bindings)
    monkeypatch.setattr(driver, "launch_call", lambda: launch)
    monkeypatch.setattr(driver, "has_one_device", lambda: one_device)
    monkeypatch.setattr(driver, "raw_device", lambda: lambda: fake.device)
    monkeypatch.setattr(driver, "raw_stream", lambda: lambda _: fake.stream)
    monkeypatch.setattr(driver, "current_stream", lambda _=None: fake.stream)
    monkeypatch.setattr(driver, "current_context", lambda: 1)
    monkeypatch.setattr(driver, "require_target", lambda *_: None)
    monkeypatch.setattr(driver, "num_sms", lambda _: 132)
    monkeypatch.setattr(driver, "max_active_clusters", lambda *_: 66)
    monkeypatch.setattr(driver, "gather_clusters", lambda *_, **__: None)
    monkeypatch.setattr(driver, "load", fake.load)
    monkeypatch.setattr(signature_module, "device_of", lambda _: Device("cuda", 0))
    monkeypatch.setattr(params_module, "encoder", lambda _: lambda *_key: b"m" * 128)
    assert launcher_module.driver is driver
    return fake
