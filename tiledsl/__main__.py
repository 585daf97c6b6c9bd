"""Command line: `python -m tiledsl doctor | cache {list,clear,verify} | compile FILE | fuzz`."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path

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


def cache_list() -> int:
    """Prints a line per entry."""
    total, count = 0, 0
    for path in store().files():
        try:
            facts, data = path.stat(), path.read_bytes()
        except OSError:
            continue  # another process removed it
        try:
            name = str(unpack_record(data).facts.get("name", ""))
        except Damaged as fault:
            name = f"damaged: {fault}"
        kind, _, key = path.stem.partition("-")
        used = datetime.fromtimestamp(facts.st_mtime).strftime("%Y-%m-%d %H:%M")
        print(f"{kind:8} {key[:16]:16} {len(data) / 1024:8.1f} KiB  {used}  {name}")
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
            return {"list": cache_list, "clear": cache_clear, "verify": cache_verify}[
                given.action
            ]()
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
