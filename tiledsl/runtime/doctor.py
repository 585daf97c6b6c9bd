"""A report on the machine: driver, GPU, NVRTC, disassembler, and a compile of a tiny kernel."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable

from tiledsl.codegen.module import KernelModule
from tiledsl.codegen.module import PointerParam
from tiledsl.dtypes import float32
from tiledsl.errors import TileError
from tiledsl.runtime import driver
from tiledsl.runtime import nvrtc
from tiledsl.runtime.disassembler import INSTALL_HINT
from tiledsl.runtime.disassembler import find_disassembler
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
        ("compile", _compile, True),
        ("driver", _driver, False),
        ("GPU", _gpus, False),
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
