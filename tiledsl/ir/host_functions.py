"""Functions of the language that serve on the host too, where they load nothing of the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiledsl.ir.builtin import builtin

if TYPE_CHECKING:
    from tiledsl.ir.builder import Builder
    from tiledsl.ir.operands import Operand


def _host_cdiv(x: int, div: int) -> int:
    return -(-x // div)


@builtin(on_host=_host_cdiv)
def cdiv(b: Builder, x: Operand, div: Operand) -> Operand:
    """X / div rounded up, for x >= 0 and div > 0. Works on host integers too, for grids."""
    from tiledsl.ir import operators
    from tiledsl.ir.operands import compile_time_int
    from tiledsl.ir.operands import is_number
    from tiledsl.ir.pointer_values import need_numbers

    need_numbers("cdiv()", x, div)
    if is_number(x) and is_number(div):
        return _host_cdiv(compile_time_int(x, "cdiv(): x"), compile_time_int(div, "cdiv(): div"))
    if is_number(div):
        return operators.binary(b, "//", operators.binary(b, "+", x, div - 1), div)
    return operators.binary(
        b, "//", operators.binary(b, "+", x, operators.binary(b, "-", div, 1)), div
    )
