"""Whether a scalar grows or falls along a grid axis, whatever memory holds."""

from __future__ import annotations

from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ws.dependence import program_axes


def growth(value: Value, axis: int) -> int | None:
    """1: grows along the axis (or stays), -1: falls, 0: does not depend on it, None: unknown.

    Of a select the choice is not looked at: it is as good as its alternatives. For decisions of
    order only.
    """
    return _Growth(axis).of(value)


class _Growth:
    """Along one axis."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self._axes: dict[Value, frozenset[int]] = {}

    @deep
    def of(self, value: Value) -> int | None:
        """As `growth`."""
        if self.axis not in program_axes(value, self._axes):
            return 0
        op = value.defining_op
        match op:
            case ProgramId():
                return 1
            case ew.Cast():
                return self.of(op.a)
            case ew.Add() | ew.Min() | ew.Max() | ew.Select():
                return _both(self.of(op.a), self.of(op.b))
            case ew.Sub():
                return _both(self.of(op.a), _times(self.of(op.b), -1))
            case ew.Mul() | ew.FloorDiv():
                if isinstance(op, ew.Mul) and isinstance(op.a.defining_op, ew.Constant):
                    return _times(self.of(op.b), int(op.a.defining_op.value))
                if isinstance(op.b.defining_op, ew.Constant):
                    return _times(self.of(op.a), int(op.b.defining_op.value))
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
