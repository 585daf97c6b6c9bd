"""Programmatic dependent launch: hints, as the compiler places the instructions itself."""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin


@builtin
def gdc_wait(b: Builder) -> None:
    """Waits for the memory of the previous grid; the launch order gives that without it."""
    del b


@builtin
def gdc_launch_dependents(b: Builder) -> None:
    """Says that the next grid may start; a hint that changes no result."""
    del b
