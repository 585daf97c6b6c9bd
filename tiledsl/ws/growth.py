"""Whether a scalar grows or falls along a grid axis, whatever memory holds."""

from __future__ import annotations

from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ws.dependence import program_axes


def growth(value: Value, axis: int) -> int | None:
    """1: grows along the axis (or stays), -1: falls, 0: does not depend on it, None: unknown.

    Of a select the choice is not looked at: it is as good as its alternatives. For decisions of
    order only.
    """
    if axis not in program_axes(value):
        return 0
    op = value.defining_op
    match op:
        case ProgramId():
            return 1
        case ew.Cast():
            return growth(op.a, axis)
        case ew.Add() | ew.Min() | ew.Max() | ew.Select():
            return _both(growth(op.a, axis), growth(op.b, axis))
        case ew.Sub():
            return _both(growth(op.a, axis), _times(growth(op.b, axis), -1))
        case ew.Mul() | ew.FloorDiv():
            if isinstance(op, ew.Mul) and isinstance(op.a.defining_op, ew.Constant):
                return _times(growth(op.b, axis), int(op.a.defining_op.value))
            if isinstance(op.b.defining_op, ew.Constant):
                return _times(growth(op.a, axis), int(op.b.defining_op.value))
            return None
        case _:
            return None


def _times(a: int | None, factor: int) -> int | None:
    return None if a is None else (a > 0) * _sign(factor) - (a < 0) * _sign(factor)


def _sign(x: int) -> int:
    return (x > 0) - (x < 0)


def _both(a: int | None, b: int | None) -> int | None:
    """Of a combination that grows with each of two values."""
    if a is None or b is None or a * b < 0:
        return None
    return a or b
