"""Command line: `python -m tiledsl doctor`."""

from __future__ import annotations

import argparse

from tiledsl.runtime.doctor import report


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="tiledsl", description="Tile programs to CUDA C++ for Hopper."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("doctor", help="what is installed, what is missing and how to get it")
    parser.parse_args()
    print(report())


if __name__ == "__main__":
    main()
