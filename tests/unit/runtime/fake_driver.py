"""A driver that records launches: CPU tensors count as tensors of CUDA device 0."""

from __future__ import annotations

import ctypes
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


@dataclass(frozen=True)
class Launched:
    """One launch as the driver saw it."""

    name: str
    grid: tuple[int, ...]
    threads: int
    smem_bytes: int
    stream: int
    address: int

    def value(self, at: int, ctype: Any = ctypes.c_uint64) -> int:
        """Parameter `at`, as long as the buffer has not been packed again."""
        pointers = (ctypes.c_void_p * (at + 1)).from_address(self.address)
        return ctype.from_address(pointers[at]).value


@dataclass
class FakeDriver:
    """launches: so far.  statuses: what the next launches return.  device: the current one."""

    launches: list[Launched] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    device: int = 0
    stream: int = 7
    loads: int = 0

    def launch(self, function, x, y, z, tx, ty, tz, smem, stream, address, extra):
        assert (ty, tz, extra) == (1, 1, 0)
        status = self.statuses.pop(0) if self.statuses else 0
        if not status:
            self.launches.append(Launched(function, (x, y, z), tx, smem, stream, address))
        return (status,)

    def launch_ex(self, config, function, address, extra):
        self.launches.append(
            Launched(function, config.grid, config.threads, config.smem, config.hStream, address)
        )
        return (0,)

    def load(self, cubin, name, device, *, smem_bytes=0):
        self.loads += 1
        return Function(device, 1, None, name)


def install(monkeypatch) -> FakeDriver:
    """Replaces the driver for a test."""
    fake = FakeDriver()
    bindings = SimpleNamespace(
        cuLaunchKernel=fake.launch,
        cuLaunchKernelEx=fake.launch_ex,
        CUstream=int,
        cuGetErrorString=lambda status: (0, b"fault"),
    )

    def config(grid, threads, smem, attributes):
        return SimpleNamespace(grid=grid, threads=threads, smem=smem, hStream=0)

    monkeypatch.setattr(driver, "bindings", lambda: bindings)
    monkeypatch.setattr(driver, "raw_device", lambda: lambda: fake.device)
    monkeypatch.setattr(driver, "raw_stream", lambda: lambda _: fake.stream)
    monkeypatch.setattr(driver, "current_stream", lambda _=None: fake.stream)
    monkeypatch.setattr(driver, "current_context", lambda: 1)
    monkeypatch.setattr(driver, "require_target", lambda *_: None)
    monkeypatch.setattr(driver, "num_sms", lambda _: 132)
    monkeypatch.setattr(driver, "max_active_clusters", lambda *_: 66)
    monkeypatch.setattr(driver, "launch_config", config)
    monkeypatch.setattr(driver, "pdl_attribute", lambda: None)
    monkeypatch.setattr(driver, "load", fake.load)
    monkeypatch.setattr(signature_module, "device_of", lambda _: Device("cuda", 0))
    monkeypatch.setattr(params_module, "encoder", lambda _: lambda *_key: b"m" * 128)
    assert launcher_module.driver is driver
    return fake
