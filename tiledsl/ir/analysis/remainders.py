"""What is known of the remainders of an integer, also by numbers that are no powers of two.

Alignment asks for powers of two, and so do `axis_facts`. An index that counts in tiles of 192 has
one remainder by 96, and so has one that begins 8 elements behind: a step and a first value tell.
"""

from __future__ import annotations

from math import gcd
from math import lcm
from typing import NamedTuple

from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.types import ScalarType


class Series(NamedTuple):
    """The integers `first + step * t`, for every t; one number where the step is 0."""

    step: int
    first: int


@deep
def series_of(value: Value, facts: AxisFacts) -> Series:
    """The integers that a scalar is one of. Index arithmetic is taken not to wrap."""
    step, first = _made(value, facts)
    return Series(step, first % step if step else first)


def remainders(value: Value, size: int, facts: AxisFacts) -> range:
    """What `value % size` may be, of a value that is not below 0."""
    step, first = series_of(value, facts)
    every = gcd(step, size)
    return range(first % every, size, every)


def _made(value: Value, facts: AxisFacts) -> Series:
    op, every = value.defining_op, facts.of(value).every
    if not isinstance(value.type, ScalarType) or not value.type.dtype.is_int:
        return Series(1, 0)
    if isinstance(op, ew.Constant):
        return Series(0, int(op.value))
    if not isinstance(op, ew.Mul | ew.Add | ew.Sub | ew.Mod | ew.Min | ew.Max | ew.FloorDiv):
        return Series(every, 0)
    a, b = (series_of(v, facts) for v in op.operands)
    match op:
        case ew.Add():
            made = Series(gcd(a.step, b.step), a.first + b.first)
        case ew.Sub():
            made = Series(gcd(a.step, b.step), a.first - b.first)
        case ew.Mul():
            steps = gcd(a.step * b.step, a.step * b.first, b.step * a.first)
            made = Series(steps, a.first * b.first)
        case ew.FloorDiv():
            is_exact = not b.step and b.first > 0 and not (a.step % b.first or a.first % b.first)
            made = Series(a.step // b.first, a.first // b.first) if is_exact else Series(1, 0)
        case ew.Mod():
            made = Series(gcd(a.step, b.step, b.first), a.first)
        case _:
            made = Series(gcd(a.step, b.step, a.first - b.first), a.first)
    # Stated facts may say more of a multiple.
    return made if made.first else Series(lcm(made.step, every) if made.step else 0, 0)
