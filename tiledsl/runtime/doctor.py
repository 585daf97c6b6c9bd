"""A report on the machine: driver, GPU, NVRTC, disassembler, and a compile of a tiny kernel."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import replace

import torch

from tiledsl.codegen.environment import headers
from tiledsl.codegen.environment import template_root
from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import PointerParam
from tiledsl.dtypes import float32
from tiledsl.errors import TileError
from tiledsl.runtime import driver
from tiledsl.runtime import nvrtc
from tiledsl.runtime.disassembler import INSTALL_HINT
from tiledsl.runtime.disassembler import find_disassembler
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.store import Record
from tiledsl.runtime.store import Store
from tiledsl.runtime.store import default_folder
from tiledsl.target import HOPPER

PACKAGES = (
    "torch",
    "numpy",
    "ml_dtypes",
    "networkx",
    "jinja2",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
)
PROBE = KernelModule(
    name="tiledsl_probe",
    source='extern "C" __global__ void tiledsl_probe(float* x) { x[threadIdx.x] += 1.0f; }\n',
    headers=(),
    params=(PointerParam("x", "x", float32),),
    num_threads=32,
)


def report() -> str:
    """The report, a line per check: `ok`, `--` (missing but optional) or `FAIL`. Never raises."""
    lines = [
        f"tiledsl on Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    ]
    checks: list[tuple[str, Callable[[], str], bool]] = [
        ("packages", _packages, True),
        ("NVRTC", _nvrtc, True),
        ("headers", _headers, True),
        ("compile", _compile, True),
        ("cache", _cache, False),
        ("torch", _torch, False),
        ("driver", _driver, False),
        ("GPU", _gpus, False),
        ("launch", _launch, False),
        ("disassembler", _disassembler, False),
    ]
    for name, check, required in checks:
        lines += _line(name, check, required=required)
    return "\n".join(lines)


def _line(name: str, check: Callable[[], str], *, required: bool) -> list[str]:
    bad = "FAIL" if required else "--"
    try:
        return [f"{'ok':4} {name:12} {check()}"]
    except TileError as fault:
        text = fault.message.splitlines() or [""]
        return [f"{bad:4} {name:12} {text[0]}"] + (
            [f"{'':17} hint: {fault.hint}"] if fault.hint else []
        )
    except Exception as fault:
        return [f"{bad:4} {name:12} {type(fault).__name__}: {fault}"]


def _packages() -> str:
    found: list[str] = []
    missing: list[str] = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    return ", ".join(found) + (f"; not installed: {', '.join(missing)}" if missing else "")


def _nvrtc() -> str:
    return ".".join(map(str, nvrtc.nvrtc_version()))


def _compile() -> str:
    compiled = nvrtc.compile_module(PROBE)
    facts = f"{len(compiled.cubin)} bytes, {compiled.registers} registers"
    return f"{HOPPER.arch} kernel, {facts}, {compiled.seconds * 1e3:.0f} ms"


def _headers() -> str:
    """The device headers, compiled together."""
    found = headers()
    includes = "".join(f'#include "{name}"\n' for name, _ in found)
    nvrtc.compile_module(replace(PROBE, source=includes + PROBE.source, headers=found))
    return f"{len(found)} in {template_root()}, they compile"


def _cache() -> str:
    """The disk cache: whether it takes and gives back an entry, and what it holds."""
    folder = default_folder()
    if folder is None:
        raise TileError("switched off", hint="unset TILEDSL_CACHE_DIR, or name a folder in it")
    # A store of its own, so that what the check warns of is not held back later.
    probe, record = Store(folder), Record({"name": "doctor"}, {"x": b"x"})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kept = probe.put("probe", str(os.getpid()), record)
        back = probe.get("probe", str(os.getpid())) if kept else None
    path = probe.path("probe", str(os.getpid()))
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()
    if back != record:
        why = str(caught[0].message) if caught else f"{folder} does not keep files"
        raise TileError(why, hint="set TILEDSL_CACHE_DIR to a folder that can be written")
    sizes = [p.stat().st_size for p in probe.files()]
    bad = len(probe.verify())
    damaged = f", {bad} damaged: python -m tiledsl cache clear" if bad else ""
    return f"{folder}, {len(sizes)} entries, {sum(sizes) / 2**20:.1f} MiB{damaged}"


def _torch() -> str:
    cuda = torch.version.cuda
    if cuda is None:
        raise TileError(
            f"{torch.__version__} was built without CUDA; CPU tensors run in the interpreter",
            hint="install torch with CUDA from https://pytorch.org/get-started",
        )
    return f"{torch.__version__} for CUDA {cuda}, {torch.cuda.device_count()} devices"


def _launch() -> str:
    """A launch of the tiny kernel."""
    driver.require_target(driver.current_device())
    x = torch.zeros(32, device="cuda")
    launcher = Launcher(PROBE, nvrtc.compile_module(PROBE))
    start = time.perf_counter()
    launcher.launch({"x": x}, (1, 1, 1), x.get_device(), driver.current_stream())
    torch.cuda.synchronize()
    if float(x.sum()) != 32:
        raise TileError(
            f"the probe kernel gave a sum of {float(x.sum())}, not 32",
            hint="report this, with `nvidia-smi`",
        )
    return f"right values, {(time.perf_counter() - start) * 1e3:.1f} ms with loading"


def _driver() -> str:
    return "supports CUDA {}.{}".format(*driver.driver_version())


def _gpus() -> str:
    device = driver.current_device()
    major, minor = driver.compute_capability(device)
    name, sms = driver.device_name(device), driver.num_sms(device)
    text = f"device {device}: {name}, {major}.{minor}, {sms} SMs"
    driver.require_target(device)
    return text


def _disassembler() -> str:
    tool = find_disassembler()
    if tool is None:
        raise TileError("none found; only kernel.sass() needs one", hint=INSTALL_HINT)
    return str(tool)
