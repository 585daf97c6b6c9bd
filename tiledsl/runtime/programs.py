"""Programs: what a launch needs of a compiled kernel, in memory, on disk and in bundles.

A program is found by a digest of the kernel's closure, what is known of the call, the options, and
the compiler that made it; finding one on disk needs neither the compiler nor NVRTC.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

from tiledsl.codegen.module import KernelModule
from tiledsl.runtime.codec import decode
from tiledsl.runtime.codec import decode_compiled
from tiledsl.runtime.codec import decode_module
from tiledsl.runtime.codec import encode
from tiledsl.runtime.codec import encode_compiled
from tiledsl.runtime.codec import encode_module
from tiledsl.runtime.launcher import Launcher
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.runtime.store import Record
from tiledsl.runtime.store import store

KIND = "program"
PACKAGE = Path(__file__).resolve().parents[1]
TEMPLATES = ("_templates", "../templates")
IMPORTED = time.time()
COMPILERS = ("nvidia-cuda-nvrtc", "cuda-bindings")


@dataclass
class Program:
    """A compiled kernel without the compiler's own data.

    chosen: values of the constants that were left to the compiler.  report: what it decided.
    origin: "compiled", "disk" or "bundle".  certificate: the proof of a specialised kernel's
    synchronisation, as text.  stored: arguments that it stores to.  follows_precision: torch's
    setting for float32 products decides its code.
    """

    module: KernelModule
    compiled: CompiledKernel
    chosen: dict[str, Any]
    report: str = ""
    origin: str = "compiled"
    certificate: str = ""
    stored: tuple[str, ...] = ()
    follows_precision: bool = False
    _launcher: Launcher | None = field(default=None, repr=False)

    @property
    def launcher(self) -> Launcher:
        """The launcher of the program, made once."""
        if self._launcher is None:
            self._launcher = Launcher(self.module, self.compiled)
        return self._launcher


def _files_of(folder: str) -> list[str]:
    """All files below a folder but what was compiled from them, sorted.

    A process reads them before its first launch: no Path.
    """
    found: list[str] = []
    for at, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [os.path.join(at, name) for name in names]
    return sorted(found)


@functools.cache
def package_digest() -> str:
    """Digest of this package's files.

    Files that changed after they were imported say nothing about the code that runs: then the
    digest is one that no other process has.
    """
    digest = hashlib.sha256()
    files = [f for f in _files_of(str(PACKAGE)) if f.endswith(".py")]
    for folder in TEMPLATES:
        files += _files_of(str((PACKAGE / folder).resolve()))
    for path in files:
        digest.update(os.path.basename(path).encode() + b"\0")
        with open(path, "rb") as file:
            digest.update(file.read())
            if os.fstat(file.fileno()).st_mtime > IMPORTED:
                digest.update(f"{os.getpid()} {IMPORTED}".encode())
    return digest.hexdigest()


@functools.cache
def compiler_digest() -> str:
    """Digest of this package and of the versions of NVRTC and its bindings."""
    parts = [package_digest(), *(f"{name} {_version(name)}" for name in COMPILERS)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def program_key(closure: str, call: str, arch: str) -> str:
    """The key of a program: closure and call are digest and text of what decides the code.

    It holds this package but not NVRTC, so that a bundle serves where there is no NVRTC.
    """
    parts = "\0".join([closure, call, arch, package_digest()])
    return hashlib.sha256(parts.encode()).hexdigest()


def file_key(key: str) -> str:
    """The key of a program in the disk cache: that of the program with the compiler's versions."""
    return hashlib.sha256(f"{key}\0{compiler_digest()}".encode()).hexdigest()


def program_record(program: Program, facts: Mapping[str, Any]) -> Record:
    """A program for a file. facts: more about it, for people and tools. Raises TypeError."""
    module, texts = encode_module(program.module)
    compiled, binaries = encode_compiled(program.compiled)
    chosen = {k: encode(v) for k, v in program.chosen.items()}
    made = {**facts, "module": module, "compiled": compiled, "chosen": chosen}
    made |= {"stored": list(program.stored), "follows_precision": program.follows_precision}
    about = {"report": program.report.encode(), "certificate": program.certificate.encode()}
    return Record(made, {**about, **texts, **binaries})


def program_of(record: Record, origin: str) -> Program:
    """The program of a file. Raises KeyError, TypeError, ValueError for another version's file."""
    facts, blobs = record.facts, record.blobs
    return Program(
        decode_module(facts["module"], blobs),
        decode_compiled(facts["compiled"], blobs),
        {k: decode(v) for k, v in facts["chosen"].items()},
        blobs["report"].decode(),
        origin,
        blobs["certificate"].decode(),
        tuple(facts["stored"]),
        bool(facts["follows_precision"]),
    )


class Programs:
    """Programs by key: loaded bundles first, then the disk cache. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bundled: dict[str, Record] = {}

    def after_fork(self) -> None:
        """A thread that holds the lock is not in the new process."""
        self._lock = threading.Lock()

    def find(self, key: str) -> Program | None:
        """A program that need not be compiled, or None."""
        with self._lock:
            record = self._bundled.get(key)
        origin = "bundle" if record else "disk"
        record = record or store().get(KIND, file_key(key))
        if record is None:
            return None
        try:
            return program_of(record, origin)
        except (KeyError, TypeError, ValueError) as fault:
            warnings.warn(
                f"tiledsl cache: program {key[:12]} cannot be used: {fault!r}", stacklevel=2
            )
            return None

    def keep(self, key: str, program: Program, facts: Mapping[str, Any]) -> None:
        """Writes a program to the disk cache, where it can be written."""
        try:
            record = program_record(program, facts)
        except TypeError:
            return  # a constant that no file can hold
        store().put(KIND, file_key(key), record)

    def record(self, key: str) -> Record | None:
        """The record of a program in a bundle or the disk cache."""
        with self._lock:
            found = self._bundled.get(key)
        return found or store().get(KIND, file_key(key))

    def add(self, key: str, record: Record) -> None:
        """Makes a program of a bundle known."""
        with self._lock:
            self._bundled[key] = record

    def has(self, key: str) -> bool:
        """Whether a bundle or the disk cache holds a program."""
        path = store().path(KIND, file_key(key))
        return key in self._bundled or (path is not None and path.exists())

    def forget(self) -> None:
        """Drops the loaded bundles."""
        with self._lock:
            self._bundled.clear()


PROGRAMS = Programs()
os.register_at_fork(after_in_child=PROGRAMS.after_fork)
