"""CUDA text to cubin with NVRTC, and what ptxas said about it. Needs no GPU."""

from __future__ import annotations

import functools
import importlib
import re
import time
from dataclasses import dataclass
from types import ModuleType
from typing import Literal
from typing import SupportsInt
from typing import cast

from tiledsl.codegen.module import KernelModule
from tiledsl.errors import NvrtcError
from tiledsl.errors import SourceLoc
from tiledsl.runtime.disassembler import sass
from tiledsl.target import HOPPER
from tiledsl.target import Target

__all__ = [
    "CompiledKernel",
    "PtxasFacts",
    "compile_module",
    "nvrtc_version",
    "parse_ptxas",
    "ptx_of",
    "sass",
]

# --minimal leaves out textures and the device runtime, which no kernel uses: 8 ms of each compile.
FLAGS = ("--std=c++17", "-default-device", "--minimal")
# Without --no-cache a driver-side cache answers a repeated compile and its log is empty.
CUBIN_FLAGS = ("--ptxas-options=-v", "--no-cache")
OPTIONAL = ("--minimal", "--no-cache")
"""Flags that a version may not know, and is asked without then."""
INSTALL_HINT = "pip install 'cuda-bindings>=13,<14' 'nvidia-cuda-nvrtc>=13,<14'"
MAX_ERRORS = 20

_REGISTERS = re.compile(r"Used (\d+) registers")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_SERIALIZED = re.compile(r"\bC75(?:0[89]|1[0-5])\b")
_NOTE = re.compile(r"\bC751[79]\b")
_DIAGNOSTIC = re.compile(
    r"^(?P<file>[^\s(][^(]*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$",
    re.MULTILINE,
)
_PTXAS_ERROR = re.compile(
    r"^(?:ptxas .*?(?:error|fatal)\s*:|nvrtc: error:)\s*(?P<text>.*)$", re.MULTILINE
)
_INLINE_ASSEMBLY = re.compile(r"^TDSL_FN void (?P<name>inline_asm\w*)\(")
_SOURCE_COMMENT = re.compile(r"//\s*(?P<place>\S+\.py:\d+)")


@dataclass(frozen=True, slots=True)
class PtxasFacts:
    """What the ptxas log says.

    registers: most registers of any function in the log.
    spill_bytes: spill stores plus loads, summed.
    serialized: lines that say wgmma was serialised or setmaxnreg ignored (C7508..C7515).
    notes: lines that cost less (C7517, C7519: a wait was injected).
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    serialized: tuple[str, ...]
    notes: tuple[str, ...]


def moved_accumulators(notes: tuple[str, ...]) -> str:
    """The line by which ptxas says that it reads accumulators of wgmmas in flight; or nothing.

    It moves them to other registers in a loop and injects a wait for it (C7517), which was seen to
    stand before the last wgmma that it is for: such a kernel gave wrong sums on an H200.
    """
    return next((note for note in notes if "C7517" in note), "")


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A cubin and the facts of its compilation; see `PtxasFacts` for the fields after `log`.

    ptx: PTX text when it was asked for, else None (`ptx_of` makes it).
    seconds: wall time in NVRTC.
    """

    cubin: bytes
    log: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    serialized: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float
    ptx: str | None = None


def compile_module(
    module: KernelModule, target: Target = HOPPER, *, options: tuple[str, ...] = ()
) -> CompiledKernel:
    """Compiles a kernel to a cubin.

    Args:
        module: the kernel.
        target: gives the architecture.
        options: more NVRTC options, after ours.

    Raises:
        NvrtcError: NVRTC is not installed, or rejected the text.
    """
    start = time.perf_counter()
    binary, log = _run(
        module, (f"--gpu-architecture={target.arch}", *FLAGS, *CUBIN_FLAGS, *options), "CUBIN"
    )
    seconds = time.perf_counter() - start
    facts = parse_ptxas(log)
    return CompiledKernel(
        cubin=binary,
        log=log,
        registers=facts.registers,
        spill_bytes=facts.spill_bytes,
        stack_bytes=facts.stack_bytes,
        serialized=facts.serialized,
        notes=facts.notes,
        seconds=seconds,
    )


def ptx_of(module: KernelModule, target: Target = HOPPER, *, options: tuple[str, ...] = ()) -> str:
    """The PTX of a kernel; compiles it again, without ptxas.

    Raises:
        NvrtcError: as `compile_module`.
    """
    virtual = target.arch.replace("sm_", "compute_")
    binary, _ = _run(module, (f"--gpu-architecture={virtual}", *FLAGS, *options), "PTX")
    return binary.decode(errors="replace").rstrip("\0\n") + "\n"


def parse_ptxas(log: str) -> PtxasFacts:
    """Reads registers, spills, stack and the C75xx lines from a ptxas -v log."""
    memory = [tuple(map(int, found)) for found in _MEMORY.findall(log)]
    lines = log.splitlines()
    return PtxasFacts(
        registers=max(map(int, _REGISTERS.findall(log)), default=0),
        spill_bytes=sum(stores + loads for _, stores, loads in memory),
        stack_bytes=max((stack for stack, _, _ in memory), default=0),
        serialized=tuple(line.strip() for line in lines if _SERIALIZED.search(line)),
        notes=tuple(line.strip() for line in lines if _NOTE.search(line)),
    )


@functools.cache
def bindings() -> ModuleType:
    """The NVRTC bindings.

    Raises:
        NvrtcError: they or the library are missing; says what to install.
    """
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        result = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError, AttributeError) as fault:
        raise NvrtcError(f"NVRTC cannot be loaded: {fault}", hint=INSTALL_HINT) from fault
    if int(result[0]) != 0:
        raise NvrtcError(f"NVRTC cannot be used: {result[0]!s}", hint=INSTALL_HINT)
    return nvrtc


def nvrtc_version() -> tuple[int, int]:
    """(major, minor) of the loaded NVRTC.

    Raises:
        NvrtcError: NVRTC is missing.
    """
    _, major, minor = bindings().nvrtcVersion()
    return int(major), int(minor)


def _run(
    module: KernelModule, options: tuple[str, ...], kind: Literal["CUBIN", "PTX"]
) -> tuple[bytes, str]:
    """One NVRTC compilation: the output of a kind, and the log."""
    nvrtc = bindings()
    names = [name.encode() for name, _ in module.headers]
    texts = [text.encode() for _, text in module.headers]
    source, title = module.source.encode(), f"{module.name}.cu".encode()
    program = _ok(nvrtc.nvrtcCreateProgram(source, title, len(names), texts, names))
    try:
        status = _compile(nvrtc, program, options)
        log = _fetch(nvrtc, program, "ProgramLog").decode(errors="replace").strip("\0 \n")
        if int(status) != 0:
            raise _rejected(module, status.name, log)
        return _fetch(nvrtc, program, kind), log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _compile(nvrtc: ModuleType, program: object, options: tuple[str, ...]) -> _Status:
    status = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
    unknown = next((o for o in OPTIONAL if o in options), None)
    if status == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION and unknown is not None:
        return _compile(nvrtc, program, tuple(o for o in options if o != unknown))
    return status


def _fetch(nvrtc: ModuleType, program: object, kind: str) -> bytes:
    size = int(cast("SupportsInt", _ok(getattr(nvrtc, f"nvrtcGet{kind}Size")(program))))
    # At least two: NVRTC writes into the object, and bytes of length 0 and 1 are shared.
    out = bytes(max(2, size))
    _ok(getattr(nvrtc, f"nvrtcGet{kind}")(program, out))
    return out[:size]


class _Status(int):
    """The part of nvrtcResult that we use."""

    name: str


def _ok(result: tuple[_Status, object] | tuple[_Status]) -> object:
    if int(result[0]) != 0:
        raise NvrtcError(f"an NVRTC call failed: {result[0].name}")
    return result[1] if len(result) > 1 else None


def _rejected(module: KernelModule, status: str, log: str) -> NvrtcError:
    """The error for a log, each diagnostic at its Python line where the text names one."""
    found = [(m["file"], int(m["line"]), m["text"].strip()) for m in _DIAGNOSTIC.finditer(log)]
    if not found:
        first = _PTXAS_ERROR.search(log)
        error = NvrtcError(
            f"NVRTC rejected kernel {module.name}: {first['text'] if first else status}"
        )
        if first and (place := _assembly_place(module, first["text"])):
            error.note(place)
        return _with_log(error, log)
    file, line, text = found[0]
    error = NvrtcError(f"NVRTC rejected kernel {module.name}: {text}", _python_loc(file, line))
    if error.loc is None:
        error.note(_cuda_place(module, file, line))
    for file, line, text in found[1:MAX_ERRORS]:
        loc = _python_loc(file, line)
        error.note(text if loc else f"{text} ({_cuda_place(module, file, line)})", loc)
    return _with_log(error, log)


def _with_log(error: NvrtcError, log: str) -> NvrtcError:
    if log:
        error.note("full NVRTC log:\n" + log)
    return error


def _assembly_place(module: KernelModule, text: str) -> str | None:
    """Where the inline assembly is called of which ptxas says something, by the name it quotes."""
    quoted = re.search(r"'(?P<name>[^']+)'", text)
    if quoted is None:
        return None
    name = re.compile(rf"(?<!\w){re.escape(quoted['name'])}\b")
    function = ""
    for line, source in enumerate(module.source.splitlines(), 1):
        if made := _INLINE_ASSEMBLY.search(source):
            function = made["name"]
        elif function and source.startswith("}"):
            function = ""
        elif function and name.search(source):
            calls = enumerate(module.source.splitlines()[line:], line + 1)
            call = next((n for n, called in calls if f"{function}(" in called), line)
            return _cuda_place(module, f"{module.name}.cu", call)
    return None


def _python_loc(file: str, line: int) -> SourceLoc | None:
    if not file.endswith(".py"):
        return None
    text = SourceLoc(file, line).text
    return SourceLoc(file, line, len(text) - len(text.lstrip()), len(text) or None)


def _cuda_place(module: KernelModule, file: str, line: int) -> str:
    """`line 12 of gemm.cu: text`, with the Python line that the nearest comment above names."""
    texts = {f"{module.name}.cu": module.source, **dict(module.headers)}
    lines = texts.get(file, "").splitlines()
    if not 0 < line <= len(lines):
        return f"line {line} of {file}"
    place = f"line {line} of {file}: {lines[line - 1].strip()}"
    for text in reversed(lines[:line]):
        if comment := _SOURCE_COMMENT.search(text):
            return f"{place}, from {comment['place']}"
    return place
