"""Manifests: which programs a run used, written down, so that another run has them ahead of time.

An entry names the kernel by module and qualified name and holds everything that its program is
compiled from, but no data; the machine that compiles it needs no GPU.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Any

from tiledsl import hooks
from tiledsl.call import Call
from tiledsl.call import normalize_grid
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError
from tiledsl.inspection import compile_program
from tiledsl.interface import KernelInterface
from tiledsl.ir.specs import TensorSpec
from tiledsl.jit import JitFunction
from tiledsl.runtime.codec import decode
from tiledsl.runtime.codec import encode
from tiledsl.runtime.programs import PROGRAMS
from tiledsl.runtime.programs import Program
from tiledsl.runtime.programs import program_key
from tiledsl.runtime.signature import Signature
from tiledsl.runtime.signature import f32_precision
from tiledsl.runtime.store import store
from tiledsl.runtime.workers import cpus
from tiledsl.runtime.workers import forked
from tiledsl.target import HOPPER

FORMAT = 1
MAX_WORKERS = 16
WARMUP_SECONDS = 60.0
"""For which a forked process may work on an entry, on average, before this one does it itself."""


@dataclass
class Manifest:
    """Programs of a run, in the order of their first use; each is a JSON object."""

    entries: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def save(self, path: str | Path) -> None:
        """Writes the manifest in one step."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        fresh.write_text(json.dumps({"format": FORMAT, "programs": self.entries}, indent=1))
        fresh.replace(target)

    @staticmethod
    def load(path: str | Path) -> Manifest:
        """Reads a manifest. Raises LaunchError for a file that is none."""
        try:
            found = json.loads(Path(path).read_text())
            if found["format"] != FORMAT:
                raise LaunchError(f"manifest {path} has format {found['format']}, not {FORMAT}")
            return Manifest(list(found["programs"]))
        except (OSError, ValueError, KeyError, TypeError) as fault:
            raise LaunchError(f"manifest {path} cannot be read: {fault}") from fault


class Recording:
    """What has been recorded so far; use it as a context manager, or call `stop`."""

    def __init__(self, path: str | Path | None) -> None:
        self.path = path
        self.manifest = Manifest()
        hooks.STATE.recorders.append(self._add)
        atexit.register(self.stop)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> Manifest:
        """Ends the recording and writes the file."""
        if self._add in hooks.STATE.recorders:
            hooks.STATE.recorders.remove(self._add)
            atexit.unregister(self.stop)
            if self.path is not None:
                self.manifest.save(self.path)
        return self.manifest

    def _add(self, kernel: Any, event: hooks.Event) -> None:
        entry = entry_of(kernel, event)
        if entry not in self.manifest.entries:
            self.manifest.entries.append(entry)


def record(path: str | Path | None = None) -> Recording:
    """Notes every program that kernels use for the first time from now on.

    path: the file that gets the manifest when the recording stops, at the latest when Python ends.
    """
    return Recording(path)


def entry_of(kernel: JitFunction, event: hooks.Event) -> dict[str, Any]:
    """The entry of a program. Raises LaunchError for a constant that no file can hold."""
    call, sig = event.call, event.sig
    fn: Any = kernel.fn
    constants = {**call.constants, **event.program.chosen}
    args: dict[str, Any] = {}
    for name, spec in zip(sig.names, sig.specs, strict=True):
        value = call.runtime[name]
        tensor = isinstance(spec, TensorSpec)
        args[name] = [list(value.shape), list(value.stride())] if tensor else _number(value)
    try:
        return {
            "kernel": f"{fn.__module__}:{fn.__qualname__}",
            "file": inspect.getfile(fn),
            "call": event.text,
            "f32_precision": f32_precision(),
            "names": list(sig.names),
            "specs": encode(sig.specs),
            "args": args,
            "constants": {k: encode(v) for k, v in constants.items()},
            "chosen": {k: encode(v) for k, v in event.program.chosen.items()},
            "overrides": call.overrides.given,
            "num_warps": call.overrides.num_warps,
            "fast_math": call.fast_math,
            "fp_fusion": call.fp_fusion,
            "grid": list(normalize_grid(event.grid, constants, call.runtime)),
        }
    except TypeError as fault:
        raise LaunchError(
            f"kernel {kernel.description.name} cannot be recorded: {fault}"
        ) from fault


def _number(value: Any) -> Any:
    return encode(value) if isinstance(value, bool | int | float) else None


@dataclass(frozen=True)
class Outcome:
    """What became of an entry: "present", "compiled", or the error."""

    kernel: str
    state: str


def warmup(manifest: Manifest | str | Path, *, workers: int | None = None) -> list[Outcome]:
    """Compiles what a manifest lists into the disk cache; needs no GPU.

    Args:
        manifest: or its file.
        workers: compiles at a time; by default one per CPU, at most 16.

    Returns:
        What became of each entry, in order. An entry that fails does not stop the others.
    """
    found = manifest if isinstance(manifest, Manifest) else Manifest.load(manifest)
    count = workers or min(MAX_WORKERS, cpus())
    entries = found.entries
    answers: list[bytes | None] = [None] * len(entries)
    if store().is_writable():
        jobs = [functools.partial(_warmed, entry) for entry in entries]
        answers = forked(jobs, workers=count, seconds=WARMUP_SECONDS * len(entries))
    rest = [e for e, answer in zip(entries, answers, strict=True) if answer is None]
    with ThreadPoolExecutor(count) as pool:
        here = iter(list(pool.map(warm_entry, rest)))
    return [
        next(here) if a is None else Outcome(str(e.get("kernel", "?")), a.decode(errors="replace"))
        for e, a in zip(entries, answers, strict=True)
    ]


def _warmed(entry: dict[str, Any]) -> bytes:
    """What became of an entry that a forked process compiled."""
    return warm_entry(entry).state.encode()


def warm_entry(entry: dict[str, Any]) -> Outcome:
    """Compiles one entry unless the cache has it."""
    name = str(entry.get("kernel", "?"))
    try:
        kernel = kernel_of(entry)
        key = key_of(kernel, entry)
        if PROGRAMS.has(key):
            return Outcome(name, "present")
        program = program_for(kernel, entry)
        PROGRAMS.keep(key, program, {"name": kernel.description.name, "call": {}})
        return Outcome(name, "compiled")
    except TileError as fault:
        return Outcome(name, f"failed: {fault.message}")


def key_of(kernel: JitFunction, entry: dict[str, Any]) -> str:
    """The key of an entry's program, for the kernel's text as it is now."""
    return program_key(kernel.closure().digest, entry["call"], HOPPER.arch)


def program_for(kernel: JitFunction, entry: dict[str, Any]) -> Program:
    """Compiles the program of an entry. Raises TileError."""
    from tiledsl.compiled import Request
    from tiledsl.ws.launch import Extents
    from tiledsl.ws.launch import Launch
    from tiledsl.ws.overrides import Overrides

    sig = Signature(tuple(entry["names"]), decode(entry["specs"]))
    constants = {k: decode(v) for k, v in entry["constants"].items()}
    overrides = Overrides(entry["num_warps"], **entry["overrides"])
    call = Call({}, constants, overrides, entry["fast_math"], entry["fp_fusion"])
    args: dict[str, Any] = {}
    for name, spec in zip(sig.names, sig.specs, strict=True):
        value = entry["args"][name]
        is_tensor = isinstance(spec, TensorSpec)
        args[name] = Extents(tuple(value[0]), tuple(value[1])) if is_tensor else decode(value)
    x, y, z = entry["grid"]
    request = Request(
        kernel.fn,
        dict(zip(sig.names, sig.specs, strict=True)),
        constants,
        Launch(args, lambda _: (x, y, z)),
        overrides,
        call.fast_math,
        nvrtc_options=call.nvrtc_options,
        f32_precision=entry.get("f32_precision", ""),
    )
    program = compile_program(request, call)
    program.chosen = {k: decode(v) for k, v in entry["chosen"].items()}
    return program


def kernel_of(entry: dict[str, Any]) -> JitFunction:
    """The kernel that an entry names. Raises LaunchError when it cannot be found."""
    module_name, _, path = str(entry["kernel"]).partition(":")
    try:
        found: Any = _module(module_name, Path(entry["file"]))
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, OSError) as fault:
        raise LaunchError(
            f"kernel {entry['kernel']} cannot be found: {fault}",
            hint="define it at the top of a module that this process can import",
        ) from fault
    while isinstance(found, KernelInterface):
        found = found.fn
    if not isinstance(found, JitFunction):
        raise LaunchError(f"{entry['kernel']} is a {type(found).__name__}, not a kernel")
    return found


def _module(name: str, file: Path) -> ModuleType:
    """A module by name, or for a script by its file."""
    main = sys.modules.get("__main__")
    if name != "__main__":
        return sys.modules.get(name) or importlib.import_module(name)
    if main is not None and Path(getattr(main, "__file__", None) or "") == file:
        return main
    alias = f"tiledsl_script_{file.stem}"
    if alias not in sys.modules:
        spec = importlib.util.spec_from_file_location(alias, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is no Python file")
        sys.modules[alias] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[alias])
    return sys.modules[alias]


def records_of(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Records of a manifest's programs by key, compiled where they are missing.

    Raises:
        LaunchError: a program is missing and cannot be compiled.
    """
    out: dict[str, Any] = {}
    for entry in entries:
        outcome = warm_entry(entry)
        if outcome.state.startswith("failed"):
            raise LaunchError(f"kernel {outcome.kernel}: {outcome.state}")
        key = key_of(kernel_of(entry), entry)
        found = PROGRAMS.record(key)
        if found is None:
            raise LaunchError(
                f"kernel {outcome.kernel}: its program is not in the cache",
                hint=f"TILEDSL_CACHE_DIR must be a folder to write to; it is {store().folder}",
            )
        out[key] = found
    return out
