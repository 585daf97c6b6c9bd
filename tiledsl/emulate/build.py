"""Kernel modules to shared libraries of the host, kept in a folder by a hash of their text."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

from tiledsl.codegen.environment import template_root
from tiledsl.codegen.module import KernelModule
from tiledsl.emulate.errors import NotEmulated
from tiledsl.emulate.ptx import translate

__all__ = ["build", "cache_folder", "compiler"]

PREFIX = "prefix.h"
MAX_KEPT = 1500
"""Libraries that stay in the folder when it is cleared of old ones."""
_COMMON = ("-std=c++20", "-g1", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
# The time of a run is spent in the engine; optimising the kernel takes longer than it saves.
_KERNEL_FLAGS = (*_COMMON, "-O0")
_ENGINE_FLAGS = (*_COMMON, "-O3")
_ENTRY = """
extern "C" void emu_entry(void** p) {{ ::emu::invoke(&{name}, p); }}
"""


def compiler() -> str:
    """The host C++ compiler: the environment's CXX, else g++.

    Raises:
        NotEmulated: there is none.
    """
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        raise NotEmulated("no host C++ compiler", hint="install g++ or set CXX")
    return found


def cache_folder() -> Path:
    """Where libraries are kept: `tiledsl-emulate-<user>` in the folder for temporary files."""
    folder = Path(tempfile.gettempdir()) / f"tiledsl-emulate-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def build(module: KernelModule) -> Path:
    """The shared library of a kernel, made on first use.

    Raises:
        NotEmulated: an instruction without an emulation, or text that the host compiler rejects.
    """
    folder = cache_folder() / _hash(
        _engine_key(), repr(_KERNEL_FLAGS), module.name, module.source, repr(module.headers)
    )
    library = folder / "kernel.so"
    if library.exists():
        return library
    engine, include = _engine(), _headers(module.headers)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        text = translate(module.source) + _ENTRY.format(name=module.name)
        (made / "kernel.cpp").write_text(text, encoding="utf-8")
        (made / "kernel.cu").write_text(module.source, encoding="utf-8")
        emulation = template_root() / "emulation"
        _run(
            *_KERNEL_FLAGS, "-shared", f"-I{emulation}", f"-I{include}", "-include", PREFIX,
            # A kernel that is named like a function of libc is not that one.
            str(made / "kernel.cpp"), "-Wl,--no-as-needed,-Bsymbolic-functions", str(engine),
            # The engine brings the libraries of the language along; to look into them takes as long
            # as to compile a small kernel.
            "-nodefaultlibs", "-lgcc", "-o", str(made / "kernel.so"),
        )  # fmt: skip
        _publish(made, folder)
    return library


@functools.cache
def _engine_key() -> str:
    """Hash of the machine and of the translation."""
    folders = (template_root() / "emulation", Path(__file__).parent)
    files = sorted(f for folder in folders for f in folder.iterdir() if f.is_file())
    texts = (f.read_text(encoding="utf-8") for f in files)
    return _hash(compiler(), repr(_ENGINE_FLAGS), *texts)


def _engine() -> Path:
    """The shared library of the machine itself; kernels are linked to it."""
    folder = cache_folder() / f"engine-{_engine_key()}"
    with _lock():
        if folder.exists():
            return folder / "engine.so"
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            source = template_root() / "emulation" / "engine.cpp"
            _run(*_ENGINE_FLAGS, "-shared", str(source), "-o", str(made / "engine.so"))
            _publish(made, folder)
    return folder / "engine.so"


def _headers(headers: tuple[tuple[str, str], ...]) -> Path:
    """A folder with the translated device headers and all of them precompiled."""
    key = _hash(_engine_key(), repr(_KERNEL_FLAGS), repr(headers))
    folder = cache_folder() / f"headers-{key}"
    with _lock():
        if folder.exists():
            return folder
        with tempfile.TemporaryDirectory(dir=cache_folder()) as scratch:
            made = Path(scratch) / "made"
            for name, text in headers:
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(translate(text, is_lenient=True), encoding="utf-8")
            prefix = "".join(f'#include "{name}"\n' for name in ("cuda.h", *dict(headers)))
            (made / PREFIX).write_text(prefix, encoding="utf-8")
            emulation = template_root() / "emulation"
            _run(
                *_KERNEL_FLAGS, f"-I{emulation}", f"-I{made}", "-x", "c++-header",
                str(made / PREFIX), "-o", str(made / f"{PREFIX}.gch"),
            )  # fmt: skip
            _publish(made, folder)
    return folder


@contextlib.contextmanager
def _lock() -> Generator[None]:
    """What takes long and what all kernels share is made by one process, for which others wait."""
    with (cache_folder() / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _publish(made: Path, folder: Path) -> None:
    """Moves a finished folder to its place; another process may have been faster."""
    try:
        made.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    _clear()


def _clear() -> None:
    """Removes the oldest kernels of a full folder; engines stay, as kernels are linked to them."""
    kept = [path for path in cache_folder().iterdir() if not path.name.startswith("engine-")]
    if len(kept) <= 2 * MAX_KEPT:
        return
    with contextlib.suppress(FileNotFoundError):  # another process clears too
        kept.sort(key=lambda path: path.stat().st_mtime)
        for path in kept[:-MAX_KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def _run(*arguments: str) -> None:
    done = subprocess.run([compiler(), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line][:20]
        raise NotEmulated(
            "the host compiler rejects the kernel:\n" + "\n".join(lines or [done.stderr[-4000:]])
        )


def _hash(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]
