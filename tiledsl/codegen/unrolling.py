"""How far loops over the registers of a tile are unrolled.

All the way, so that tiles stay in registers, unless the text would be so long that ptxas takes tens
of seconds for it: a thread that holds hundreds of elements and computes a sine or random bits of
each. Such a loop runs a few registers at a time, and what it reads and writes lies in local memory.
"""

from __future__ import annotations

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops.elementwise_library import Function
from tiledsl.ir.types import ScalarType

MOST_OPS = 8192
"""Operations of an unrolled loop."""
OPS_AT_ONCE = 1024
"""Those of a loop that is longer, unrolled as far as it is."""
LONG: dict[type[Op], int] = {
    ew.Sin: 64,
    ew.Cos: 64,
    Function: 64,
    ew.Erf: 24,
    ew.FloorDiv: 16,
    ew.Mod: 16,
    ew.Log: 12,
    ew.Log2: 12,
    ew.Tanh: 8,
    ew.Div: 8,
}
"""Operations that stand for many instructions, f64 ones for four times as many."""


def unroll_of(body: list[Op], count: int) -> str:
    """What follows `#pragma unroll`: nothing, or how many of `count` registers at a time."""
    cost = sum(_cost(op) for op in body)
    if cost * count <= MOST_OPS:
        return ""
    few = 1
    while 2 * few * cost <= OPS_AT_ONCE:
        few *= 2
    return f" {few}"


def _cost(op: Op) -> int:
    cost = LONG.get(type(op), 1)
    return 4 * cost if cost > 1 and any(map(_is_double, op.results)) else cost


def _is_double(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and value.type.dtype.name == "f64"
