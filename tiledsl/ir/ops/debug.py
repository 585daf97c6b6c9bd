"""Looking at a kernel while it runs: prints and assertions."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import int1
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.broadcasting import common_shape
from tiledsl.ir.broadcasting import shape_of
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import is_true
from tiledsl.ir.ops.elementwise import Not
from tiledsl.ir.ops.elementwise import Or
from tiledsl.ir.ops.elementwise import element_dtype
from tiledsl.ir.types import Type

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine


class Print(Op, opcode="debug.print", effect=Effect.SYNC):
    """Prints a line per element of each operand, in Triton's form.

    `pid (0, 0, 0) idx ( 3) x: 1.500000`; without operands `pid (0, 0, 0) text`, once a program.
    """

    prefix: str = attribute()
    values: tuple[Value, ...] = operands()
    hex: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        for value in self.values:
            element_dtype(value, "device_print")
        return ()

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        x, y, z = machine.program
        if not arrays:
            sys.stdout.write(f"pid ({x}, {y}, {z}){self.prefix}\n")
        for number, (value, array) in enumerate(zip(self.values, arrays, strict=True)):
            dtype = element_dtype(value, "device_print")
            widths = [len(str(n - 1)) for n in np.shape(array)]
            for index in np.ndindex(np.shape(array)):
                text = _number_text(np.asarray(array)[index], dtype, hex_=self.hex)
                place = ", ".join(f"{i:{w}}" for i, w in zip(index, widths, strict=True))
                label = f"{self.prefix}{f'(operand {number}) ' if len(arrays) > 1 else ''}"
                sys.stdout.write(f"pid ({x}, {y}, {z}) idx ({place}){label}{text}\n")


def _number_text(value: Any, dtype: DType, *, hex_: bool) -> str:
    """As `printf` writes it: `%f`, `%d`, `%llu`, or hexadecimal in the dtype's width."""
    if dtype.is_pointer or (hex_ and not dtype.is_float):
        bits = int(np.asarray(value).view(f"u{dtype.bytes}"))
        return f"0x{bits:0{dtype.bytes * 2}x}"
    return f"{float(value):f}" if dtype.is_float else str(int(value))


class Assert(Op, opcode="debug.assert", effect=Effect.SYNC):
    """Ends the run with an error unless every element of `condition` (i1) holds.

    Of the kernels on a GPU only debug builds have it.
    """

    condition: Value = operand()
    message: str = attribute(default="")

    def infer_types(self) -> tuple[Type, ...]:
        if element_dtype(self.condition, "device_assert") != int1:
            raise TypeMismatch(f"device_assert: condition is {self.condition.type}, expected bools")
        return ()

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        (condition,) = arrays
        if np.all(condition):
            return
        wrong = np.argwhere(~np.asarray(condition))
        place = f", first for element {wrong[0].tolist()}" if wrong.size else ""
        detail = f": {self.message}" if self.message else ""
        raise TileError(f"device_assert failed in program {tuple(machine.program)}{place}{detail}")


@builtin
def device_print(b: Builder, prefix: str, *args: Operand, hex: bool = False) -> None:
    """Prints values while the kernel runs, a line per element, in Triton's form.

    prefix: a string known at compile time. hex: integers in hexadecimal.
    """
    text = unwrap(prefix)
    if not isinstance(text, str):
        raise TypeMismatch("device_print(): prefix must be a string known at compile time")
    if args:
        text = f"{text.rstrip().removesuffix(':')}: "
    if len(text) > 2 and not text.startswith(" "):
        text = f" {text}"
    values = tuple(as_value(b, x, what="device_print()") for x in args)
    b.add(Print(text, values, bool(unwrap(hex))))


@builtin
def device_assert(b: Builder, cond: Operand, msg: str = "", mask: Operand | None = None) -> None:
    """Stops the kernel with an error unless the condition holds where `mask` does.

    cond: a scalar or a tile. On a GPU only debug builds (`debug=True`) check it. A condition of
    extents, strides and constants alone, outside of loops and branches, is checked before the
    launch, in all builds.
    """
    condition = is_true(b, cond, "device_assert(): cond")
    if unwrap(mask) is not None:
        allowed = b.value(Not(is_true(b, unwrap(mask), "device_assert(): mask")))
        shape = common_shape([shape_of(condition), shape_of(allowed)], "device_assert()")
        sides = [broadcast_value(b, v, shape, "device_assert()") for v in (condition, allowed)]
        condition = b.value(Or(*sides))
    b.add(Assert(condition, str(unwrap(msg))))
