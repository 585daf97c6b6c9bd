"""The program's place in the launch grid."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.errors import StaticFailure
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir import operators
from tiledsl.ir.broadcasting import unify_pair
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.operands import is_number
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import Type
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine


REGISTERS: dict[str, DType] = {"globaltimer": int64, "num_threads": int32, "smid": int32}


class ProgramId(Op, opcode="program.id", effect=Effect.PURE):
    """Index of this program along grid axis 0, 1 or 2. Result: i32."""

    axis: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)

    def verify(self, target: Target) -> None:
        if self.axis not in (0, 1, 2):
            raise VerifyError(f"program_id: axis must be 0, 1 or 2, got {self.axis}")

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        return np.asarray(machine.program[self.axis], dtype=np.int32)


class NumPrograms(Op, opcode="program.count", effect=Effect.PURE):
    """Extent of grid axis 0, 1 or 2 as the user gave it. Result: i32."""

    axis: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)

    def verify(self, target: Target) -> None:
        if self.axis not in (0, 1, 2):
            raise VerifyError(f"num_programs: axis must be 0, 1 or 2, got {self.axis}")

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        return np.asarray(machine.grid[self.axis], dtype=np.int32)


class OwnRow(Op, opcode="program.own_row", effect=Effect.PURE):
    """First or last of the rows that the executing warps hold of a tile of `rows` rows.

    Warpgroups that share a tile by rows hold a part each; elsewhere it is 0 or rows - 1. Result:
    i32.
    """

    rows: int = attribute()
    last: bool = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),)

    def verify(self, target: Target) -> None:
        if self.rows < 1:
            raise VerifyError(f"own_row: rows must be positive, got {self.rows}")

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        return np.asarray(self.rows - 1 if self.last else 0, dtype=np.int32)


class TileToProgram(Op, opcode="program.of_tile", levels=Level.WARP_SPECIALIZED | Level.MACHINE):
    """The program ids (axes 0, 1, 2) of tile `tile` in an L2-friendly order.

    group: programs of axis `group_axis` visited together before the other of axes 0 and 1 advances
    (0: row-major order of the grid); group_axis 2 takes axes 1 and 2 together as one.
    cluster_axis, cluster_size: the axis along which the CTAs of
    a cluster sit side by side.
    Results: three i32.
    """

    tile: Value = operand()
    group: int = attribute(default=0)
    group_axis: int = attribute(default=0)
    cluster_axis: int = attribute(default=-1)
    cluster_size: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(int32),) * 3


@builtin
def program_id(b: Builder, axis: int) -> Value:
    """Index of this program along grid axis 0, 1 or 2; int32 scalar."""
    return b.value(ProgramId(_grid_axis(axis, "program_id()")))


@builtin
def num_programs(b: Builder, axis: int) -> Value:
    """Extent of grid axis 0, 1 or 2; int32 scalar."""
    return b.value(NumPrograms(_grid_axis(axis, "num_programs()")))


def _grid_axis(axis: int, what: str) -> int:
    number = compile_time_int(axis, f"{what}: axis")
    if number not in (0, 1, 2):
        raise TypeMismatch(f"{what}: axis must be 0, 1 or 2, got {number}")
    return number


@builtin
def swizzle2d(
    b: Builder, i: Operand, j: Operand, size_i: Operand, size_j: Operand, size_g: Operand
) -> tuple[Operand, Operand]:
    """Indices of a row-major grid of size_i x size_j in groups of size_g rows, column by column."""

    def math(symbol: str, x: Operand, y: Operand) -> Operand:
        if is_number(x) and is_number(y):
            whole = {"*": x * y, "+": x + y, "-": x - y}
            return whole[symbol] if symbol in whole else int(x // y if symbol == "//" else x % y)
        return operators.binary(b, symbol, x, y)

    ij = math("+", math("*", i, size_j), j)
    size_gj = math("*", size_g, size_j)
    first = math("*", math("//", ij, size_gj), size_g)
    left = math("-", size_i, first)
    rows = min(left, size_g) if is_number(left) and is_number(size_g) else smaller(b, left, size_g)
    ij = math("%", ij, size_gj)
    return math("+", first, math("%", ij, rows)), math("//", ij, rows)


def smaller(b: Builder, x: Operand, y: Operand) -> Value:
    """The smaller of two integers."""
    return b.value(Min(*unify_pair(b, x, y, "swizzle2d()")))


class Register(Op, opcode="program.register", effect=Effect.WRITE):
    """A fact of the hardware that runs the program; the interpreter gives some value.

    name: "globaltimer" (ns, i64), "smid" or "num_threads" (i32). Never removed, moved or merged.
    """

    name: str = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        if self.name not in REGISTERS:
            raise TypeMismatch(f"register: {self.name!r} is none of {', '.join(REGISTERS)}")
        return (ScalarType(REGISTERS[self.name]),)

    def evaluate(self) -> Any:
        values = {"globaltimer": time.monotonic_ns(), "smid": 0, "num_threads": 128}
        return np.asarray(values[self.name], REGISTERS[self.name].numpy)


# ---------------------------------------------------------------------- at compile time
@builtin
def static_assert(b: Builder, cond: object, msg: object = "") -> None:
    """Fails the compilation with `msg` unless a compile-time condition holds."""
    del b
    if isinstance(cond, Value):
        raise TypeMismatch(
            "static_assert(): the condition must be known at compile time, "
            f"got a run-time {cond.type}"
        )
    if not cond:
        text = str(msg)
        raise StaticFailure(f"static_assert failed: {text}" if text else "static_assert failed")


@builtin
def static_print(b: Builder, *values: object, sep: str = " ", end: str = "\n") -> None:
    """Prints while compiling; a run-time value shows as its type."""
    del b
    sys.stdout.write(
        sep.join(f"<{v.type}>" if isinstance(v, Value) else str(v) for v in values) + end
    )
