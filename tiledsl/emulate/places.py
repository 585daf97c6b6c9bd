"""Addresses in a report to places in the CUDA text and in the Python source."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

__all__ = ["resolve"]

_PC = re.compile(r" \[pc (0x[0-9a-f]+|\(nil\))\]")
_LINE = re.compile(r"^\s*// (\S+\.py:\d+)  (.*)$")
_MAP_LINE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ ([0-9a-f]+) \S+ \S+\s+(.*)$")


def resolve(report: str, library: Path) -> str:
    """The report with each `[pc 0x...]` replaced by the kernel's and the Python line."""
    addresses = {match[1] for match in _PC.finditer(report) if match[1] != "(nil)"}
    places = _places(sorted(addresses), library)
    return _PC.sub(lambda m: f", at {places[m[1]]}" if m[1] in places else "", report)


def _places(addresses: list[str], library: Path) -> dict[str, str]:
    tool = shutil.which("addr2line")
    base = _load_address(library)
    if tool is None or base is None or not addresses:
        return {}
    source = (library.parent / "kernel.cu").read_text(encoding="utf-8").splitlines()
    found: dict[str, str] = {}
    for address in addresses:
        # A return address belongs to the statement before it.
        query = [tool, "-i", "-e", str(library), hex(int(address, 16) - base - 1)]
        lines = subprocess.run(
            query, capture_output=True, text=True, check=False
        ).stdout.splitlines()
        numbers = [int(m[1]) for line in lines if (m := re.search(r"kernel\.cpp:(\d+)", line))]
        if numbers:
            found[address] = _describe(source, numbers[-1])
    return found


def _describe(source: list[str], number: int) -> str:
    text = source[number - 1].strip() if number <= len(source) else ""
    out = f"kernel.cu:{number}: {text}"
    for line in reversed(source[: number - 1]):
        if match := _LINE.match(line):
            return f"{out}  ({match[1]}: {match[2].strip()})"
    return out


def _load_address(library: Path) -> int | None:
    """Where the process has the library."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    for line in maps.read_text(encoding="utf-8").splitlines():
        match = _MAP_LINE.match(line)
        if match and match[4] == str(library):
            return int(match[1], 16) - int(match[3], 16)
    return None
