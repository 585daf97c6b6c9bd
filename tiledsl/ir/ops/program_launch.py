"""Programmatic dependent launch (hints, as the compiler does it itself), clocks and places."""

from __future__ import annotations

from tiledsl.ir import operators
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.op import Value
from tiledsl.ir.ops.program import Register


@builtin
def gdc_wait(b: Builder) -> None:
    """Waits for the memory of the previous grid; the launch order gives that without it."""
    del b


@builtin
def globaltimer(b: Builder) -> Value:
    """A clock of the device in nanoseconds, int64."""
    return b.value(Register("globaltimer"))


@builtin
def smid(b: Builder) -> Value:
    """The multiprocessor that runs the program, int32."""
    return b.value(Register("smid"))


@builtin
def num_threads(b: Builder) -> Value:
    """The threads that run the program, all roles together; a number at run time, int32."""
    return b.value(Register("num_threads"))


@builtin
def num_warps(b: Builder) -> Value:
    """The warps that run the program, all roles together; a number at run time, int32."""
    return operators.binary(b, "//", b.value(Register("num_threads")), 32)


@builtin
def gdc_launch_dependents(b: Builder) -> None:
    """Says that the next grid may start; a hint that changes no result."""
    del b
