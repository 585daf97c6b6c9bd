"""Contiguity, divisibility and constancy of a value, and what holds of two of them.

A tile is cut along a dimension into runs of `contiguity` elements that count up by one (pointers:
by one element), and into runs of `constancy` equal elements; the first element of each run of the
former kind is a multiple of `divisibility` (pointers: in bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

MOST = 1 << 30


@dataclass(frozen=True)
class Axis:
    """Facts along one dimension."""

    contiguity: int = 1
    divisibility: int = 1
    constancy: int = 1


@dataclass(frozen=True)
class AxisInfo:
    """Facts about a value.

    every: divides every element. unit: what one step of contiguity is worth (bytes of an element
    for pointers, else 1). value: the constant that every element is. positive: none is negative.
    """

    axes: tuple[Axis, ...] = ()
    every: int = 1
    unit: int = 1
    value: int | None = None
    positive: bool = False

    def at_runs(self, dim: int, run: int) -> int:
        """Divides the elements at multiples of `run` along a dimension."""
        axis = self.axes[dim]
        step = gcd(run, axis.contiguity)
        inside = gcd(axis.divisibility, step * self.unit)
        found = axis.divisibility if step == axis.contiguity else inside
        return max(found, self.every)

    def width(self, dim: int, limit: int) -> int:
        """Largest power of two of neighbours along a dimension that one access may take."""
        width = limit
        axis = self.axes[dim]
        while width > 1 and (
            axis.contiguity % width or self.at_runs(dim, width) % (width * self.unit)
        ):
            width //= 2
        return max(1, width)


class Divisors(dict[str, int]):
    """What divides arguments by name: addresses (bytes) and integers over 0.

    numbers: of integers whose sign is known, what divides them and whether they are over 0.
    """

    def __init__(
        self, divisors: Mapping[str, int], numbers: Mapping[str, tuple[int, bool]]
    ) -> None:
        super().__init__(divisors)
        self.numbers = dict(numbers)


def power_of_two(n: int) -> int:
    """The largest power of two that divides n."""
    return min(n & -n, MOST) if n else MOST


def unknown(value: Value) -> AxisInfo:
    """Nothing but the rank."""
    type_ = value.type
    rank = type_.rank if isinstance(type_, TileType) else 0
    unit = 1
    if isinstance(type_, ScalarType | TileType):
        element = type_.dtype.element
        unit = element.bytes if element is not None else 1
        positive = type_.dtype.kind in ("uint", "bool", "ptr")
        return AxisInfo((Axis(),) * rank, 1, unit, None, positive)
    return AxisInfo((Axis(),) * rank, 1, unit)


def meet(a: AxisInfo, b: AxisInfo) -> AxisInfo:
    """What holds of both; also of a tile whose elements come from either."""
    axes: list[Axis] = []
    for dim, (x, y) in enumerate(zip(a.axes, b.axes, strict=True)):
        run = gcd(x.contiguity, y.contiguity)
        divisor = gcd(a.at_runs(dim, run), b.at_runs(dim, run))
        axes.append(Axis(run, divisor, gcd(x.constancy, y.constancy)))
    value = a.value if a.value == b.value else None
    return AxisInfo(tuple(axes), gcd(a.every, b.every), a.unit, value, a.positive and b.positive)


def uniform(rank_of: Value, every: int, value: int | None, *, positive: bool) -> AxisInfo:
    """The same number everywhere."""
    type_ = rank_of.type
    shape = type_.shape if isinstance(type_, TileType) else ()
    axes = tuple(Axis(1, every, n) for n in shape)
    return AxisInfo(axes, every, unknown(rank_of).unit, value, positive)


def capped(n: int) -> int:
    """A divisor as it is kept: itself where it is a power of two, at most MOST."""
    return min(n, MOST) if n & (n - 1) == 0 else power_of_two(n)


def is_given(value: Value) -> bool:
    """Whether a value is an argument of the kernel."""
    return isinstance(value.owner, Region) and value.owner.parent is None
