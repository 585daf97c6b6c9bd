"""Command line: `python -m tiledsl doctor | cache {list,clear,verify} | compile FILE | fuzz`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tiledsl.errors import TileError
from tiledsl.runtime.store import Damaged
from tiledsl.runtime.store import store
from tiledsl.runtime.store import unpack_record


def parser() -> argparse.ArgumentParser:
    """The arguments of the command line."""
    made = argparse.ArgumentParser(
        prog="tiledsl", description="Tile programs to CUDA C++ for Hopper."
    )
    commands = made.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what is installed, what is missing and how to get it")
    cache = commands.add_parser("cache", help="the disk cache of compiled kernels")
    cache.add_argument("action", choices=("list", "clear", "verify"))
    cache.add_argument("--certificates", action="store_true", help="list with the proofs")
    cache.add_argument("--bundle", type=Path, help="list the programs of a bundle instead")
    compiler = commands.add_parser("compile", help="kernels of a file to cubin, CUDA, C header")
    compiler.add_argument("file", type=Path, help="a Python file with kernels and their signatures")
    compiler.add_argument("-o", "--output", type=Path, default=Path("out"), help="folder to fill")
    compiler.add_argument("-k", "--kernel", action="append", help="only kernels of this name")
    if "fuzz" in sys.argv[1:2]:  # its module loads the compiler
        from tiledsl.fuzz.command import add_arguments

        add_arguments(commands.add_parser("fuzz"))
    else:
        commands.add_parser("fuzz", help="random kernels, compared between all that can run them")
    return made


def certificate_lines(blobs: Mapping[str, bytes], prefix: str = "") -> list[str]:
    """What a file says of the proof of a program."""
    text = blobs.get(f"{prefix}certificate")
    if text is None:
        return []
    lines = text.decode().splitlines()
    return [f"    {line}" for line in lines or ["no roles, nothing to prove"]]


def bundle_list(path: Path, *, certificates: bool) -> int:
    """Prints a line per program of a bundle; 1 when it cannot be read."""
    try:
        record = unpack_record(path.read_bytes())
        programs: dict[str, Any] = record.facts["programs"]
    except (OSError, Damaged, KeyError) as fault:
        print(f"{path} is no bundle: {fault}", file=sys.stderr)
        return 1
    for key, program in programs.items():
        print(f"program  {key[:16]:16} {program['facts'].get('name', '')}")
        if certificates:
            print("\n".join(certificate_lines(record.blobs, f"{key}/")))
    return 0


def cache_list(*, certificates: bool = False) -> int:
    """Prints a line per entry, on demand with the proof of each program."""
    total, count = 0, 0
    for path in store().files():
        try:
            facts, data = path.stat(), path.read_bytes()
        except OSError:
            continue  # another process removed it
        proof: list[str] = []
        try:
            record = unpack_record(data)
            name = str(record.facts.get("name", ""))
            proof = certificate_lines(record.blobs) if certificates else []
        except Damaged as fault:
            name = f"damaged: {fault}"
        kind, _, key = path.stem.partition("-")
        used = datetime.fromtimestamp(facts.st_mtime).strftime("%Y-%m-%d %H:%M")
        print(f"{kind:8} {key[:16]:16} {len(data) / 1024:8.1f} KiB  {used}  {name}")
        for line in proof:
            print(line)
        total, count = total + len(data), count + 1
    print(f"{count} entries, {total / 2**20:.1f} MiB, in {store().folder or 'no folder'}")
    return 0


def cache_clear() -> int:
    """Removes all entries."""
    print(f"removed {store().clear()} entries from {store().folder or 'no folder'}")
    return 0


def cache_verify() -> int:
    """Prints damaged entries; 1 when there are any."""
    bad = store().verify()
    for path, fault in bad:
        print(f"{path}: {fault}")
    print(f"{sum(1 for _ in store().files())} entries, {len(bad)} damaged")
    return 1 if bad else 0


def main() -> int:
    """Entry point; the exit status."""
    given = parser().parse_args()
    match given.command:
        case "cache":
            match given.action:
                case "clear":
                    return cache_clear()
                case "verify":
                    return cache_verify()
                case _ if given.bundle is not None:
                    return bundle_list(given.bundle, certificates=given.certificates)
                case _:
                    return cache_list(certificates=given.certificates)
        case "compile":
            from tiledsl.aot import compile_file

            try:
                made = compile_file(given.file, given.output, given.kernel)
            except TileError as fault:
                print(fault, file=sys.stderr)
                return 1
            for path in made:
                print(path)
            return 0
        case "fuzz":
            from tiledsl.fuzz.command import run

            return run(given)
        case _:
            from tiledsl.runtime.doctor import report

            text = report()
            print(text)
            return int(any(line.startswith("FAIL") for line in text.splitlines()))


if __name__ == "__main__":
    sys.exit(main())
