"""SASS of a cubin, through whichever NVIDIA disassembler is at hand."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tiledsl.errors import TileError

TOOLS = ("nvdisasm", "cuobjdump")
INSTALL_HINT = "pip install nvidia-cuda-nvdisasm, or put a CUDA toolkit's nvdisasm on PATH"
TIMEOUT_SECONDS = 120


def find_disassembler() -> Path | None:
    """The disassembler on PATH, in a CUDA toolkit or in a pip package; None without one."""
    for tool in TOOLS:
        if on_path := shutil.which(tool):
            return Path(on_path)
        for folder in _folders():
            found = folder / tool
            if found.is_file() and os.access(found, os.X_OK):
                return found
    return None


def sass(cubin: bytes) -> str:
    """The machine code of a cubin as text.

    Raises:
        TileError: no disassembler was found (the hint says how to get one), or it failed.
    """
    tool = find_disassembler()
    if tool is None:
        raise TileError("no CUDA disassembler was found", hint=INSTALL_HINT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        flags = ["-c"] if tool.name == "nvdisasm" else ["-sass"]
        try:
            done = subprocess.run(
                [str(tool), *flags, str(path)],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as fault:
            raise TileError(f"{tool} cannot be run: {fault}", hint=INSTALL_HINT) from fault
    if done.returncode != 0:
        raise TileError(f"{tool} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def _folders() -> list[Path]:
    """Folders that may hold the tools, most specific first."""
    folders = [
        Path(root) / "bin" for key in ("CUDA_HOME", "CUDA_PATH") if (root := os.environ.get(key))
    ]
    folders.append(Path("/usr/local/cuda/bin"))
    for root in _package_roots("nvidia"):
        folders += sorted(root.glob("*/bin"))
    folders += [root / "backends" / "nvidia" / "bin" for root in _package_roots("triton")]
    return folders


def _package_roots(name: str) -> list[Path]:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    return [Path(root) for root in found.submodule_search_locations or ()] if found else []
