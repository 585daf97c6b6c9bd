"""The least and the largest value of integers that follow from coordinates and constants."""

from __future__ import annotations

from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import int_limits
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

MAX_DEPTH = 16


@deep
def extremes(value: Value, depth: int = MAX_DEPTH) -> tuple[int, int] | None:
    """(least, largest) element of an integer tile or scalar; None where that is not known."""
    if (
        not isinstance(value.type, TileType | ScalarType)
        or not value.type.dtype.is_int
        or not depth
    ):
        return None
    number = constant_value(value)
    if number is not None:
        return int(number), int(number)
    match value.defining_op:
        case tile.Arange(start=start, end=end):
            return start, end - 1
        case tile.ExpandDims(a=a) | tile.Broadcast(a=a) | tile.Reshape(a=a) | tile.Transpose(a=a):
            return extremes(a, depth - 1)
        case ew.Cast(a=a):
            return _within(extremes(a, depth - 1), value)
        case ew.Add(a=a, b=b):
            x, y = extremes(a, depth - 1), extremes(b, depth - 1)
            return _within((x[0] + y[0], x[1] + y[1]) if x and y else None, value)
        case ew.Mul(a=a, b=b):
            x, y = extremes(a, depth - 1), extremes(b, depth - 1)
            products = [p * q for p in x for q in y] if x and y else []
            return _within((min(products), max(products)) if products else None, value)
        case _:
            return None


def _within(found: tuple[int, int] | None, value: Value) -> tuple[int, int] | None:
    """The same, where nothing wraps."""
    assert isinstance(value.type, TileType | ScalarType)
    low, high = int_limits(value.type.dtype)
    return found if found and low <= found[0] and found[1] <= high else None


def compared(predicate: str, a: Value, b: Value) -> bool | None:
    """What a comparison gives for all elements, where that is known."""
    x, y = extremes(a), extremes(b)
    if x is None or y is None:
        return None
    match predicate:
        case "lt" | "ge":
            known = True if x[1] < y[0] else False if x[0] >= y[1] else None
        case "le" | "gt":
            known = True if x[1] <= y[0] else False if x[0] > y[1] else None
        case _:
            return None
    return known if known is None or predicate in ("lt", "le") else not known
