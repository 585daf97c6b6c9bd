"""A number that divides an integer value for certain, for alignment."""

from __future__ import annotations

from math import gcd

from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ops
from tiledsl.ir.ops.control import For

MOST = 1 << 16
_MAX_DEPTH = 16

__all__ = ["divisor"]


@deep
def divisor(value: Value, depth: int = 0) -> int:
    """A power-of-two-friendly divisor of a value; `MOST` for zero, 1 when nothing is known."""
    if depth > _MAX_DEPTH:
        return 1
    if isinstance(value.owner, Region):
        loop = value.owner.parent
        if isinstance(loop, For) and value.index == 0:
            return gcd(divisor(loop.lower, depth + 1), divisor(loop.step, depth + 1))
        return 1
    match value.owner:
        case ops.Constant(value=number):
            return abs(int(number)) or MOST
        case ops.Cast(a=a):
            return divisor(a, depth + 1) if _is_int(a) else 1
        case ops.Add(a=a, b=b) | ops.Sub(a=a, b=b):
            return gcd(divisor(a, depth + 1), divisor(b, depth + 1))
        case ops.Mul(a=a, b=b):
            return min(MOST, divisor(a, depth + 1)) * min(MOST, divisor(b, depth + 1))
        case _:
            return 1


def _is_int(value: Value) -> bool:
    return bool(getattr(getattr(value.type, "dtype", None), "is_int", False))
