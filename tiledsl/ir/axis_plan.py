"""How a layout lies along some axes: what a reduction or a scan does in registers, lanes and warps.

The lowering asks it for shared memory, codegen for index arithmetic, tests for a simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod

from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit

# Shared-memory areas of the members of a tuple begin at multiples of this.
AREA_BYTES = 8


@dataclass(frozen=True, slots=True)
class Place:
    """A digit without its weight: `(index of unit // stride) % size`."""

    unit: Unit
    stride: int
    size: int


@dataclass(frozen=True)
class AxisPlan:
    """Digits of a layout along some axes and across them.

    layout: of the operands. axes: the dimensions that are combined.
    """

    layout: Layout
    axes: tuple[int, ...]

    def _places(self, dims: Sequence[int], unit: Unit) -> tuple[Place, ...]:
        found = {
            (d.stride, d.size)
            for dim in dims
            for d in self.layout.dims[dim]
            if d.unit is unit and d.size > 1
        }
        return tuple(Place(unit, stride, size) for stride, size in sorted(found))

    def along(self, unit: Unit) -> tuple[Place, ...]:
        """Digits of the axes in a unit, by stride."""
        return self._places(self.axes, unit)

    def across(self, unit: Unit) -> tuple[Place, ...]:
        """Digits of the other dimensions in a unit, by stride."""
        others = [d for d in range(self.layout.rank) if d not in self.axes]
        return self._places(others, unit)

    @cached_property
    def result(self) -> Layout:
        """The layout after the axes are reduced: what lay in lanes and warps is replicated."""
        out = self.layout
        for axis in reversed(self.axes):
            out = out.drop(axis, keep=False)
        if not out.dims:
            return Layout((), 1, self.layout.num_warps)
        return out

    @property
    def count(self) -> int:
        """Elements that a thread combines for each register of the result."""
        return prod(p.size for p in self.along(Unit.REG))

    def register_terms(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """(stride, size, weight) terms of the source register: of result register o, of step r."""
        return (
            compact_terms(self.across(Unit.REG)),
            compact_terms(self.along(Unit.REG)),
        )

    def source_register(self, o: int, r: int) -> int:
        """The register that step r of result register o reads."""
        of_o, of_r = self.register_terms()
        return evaluate(of_o, o) + evaluate(of_r, r)

    @property
    def rises(self) -> bool:
        """Whether the elements that a thread combines follow each other along the one axis."""
        of_r = self.register_terms()[1]
        at = [self.layout.reg_coord(self.axes[0], evaluate(of_r, r)) for r in range(self.count)]
        return len(self.axes) == 1 and all(x < y for x, y in pairwise(at))

    # ------------------------------------------------------------------ shared memory
    @property
    def num_lanes(self) -> int:
        """Lanes of a warp whose partial results differ."""
        return prod(p.size for p in self.across(Unit.LANE))

    @property
    def needs_warps(self) -> bool:
        """Whether elements of several warps meet."""
        return bool(self.along(Unit.WARP))

    def partials(self, num_regs: int) -> int:
        """Elements that the warps exchange when each thread has `num_regs` of them."""
        return self.layout.num_warps * self.num_lanes * num_regs


def compact_terms(places: Sequence[Place]) -> tuple[tuple[int, int, int], ...]:
    """Terms that spread a dense index over digits: the index's own digits become the strides."""
    out: list[tuple[int, int, int]] = []
    stride = 1
    for p in places:
        out.append((stride, p.size, p.stride))
        stride *= p.size
    return merged(out)


def dense_terms(places: Sequence[Place]) -> tuple[tuple[int, int, int], ...]:
    """Terms that number the values of some digits densely."""
    out: list[tuple[int, int, int]] = []
    weight = 1
    for p in places:
        out.append((p.stride, p.size, weight))
        weight *= p.size
    return merged(out)


def merged(terms: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """The same sum with neighbouring digits joined where they count on without a gap."""
    out: list[tuple[int, int, int]] = []
    for stride, size, weight in terms:
        if out:
            s, n, w = out[-1]
            if s * n == stride and w * n == weight:
                out[-1] = (s, n * size, w)
                continue
        out.append((stride, size, weight))
    return tuple(out)


def evaluate(terms: Sequence[tuple[int, int, int]], index: int) -> int:
    """The sum of terms for an index."""
    return sum(index // s % n * w for s, n, w in terms)


def area_bytes(count: int, element_bytes: Sequence[int]) -> int:
    """Bytes of `count` elements of a tuple, each member in an area of its own."""
    return sum(-(-count * size // AREA_BYTES) * AREA_BYTES for size in element_bytes)


@dataclass(frozen=True)
class ScanLevel:
    """One digit of a scanned axis, from the least significant on.

    lower: (stride, size) of the axis' register digits below it: registers that differ in them only
    are one block, whose total the level combines.
    """

    unit: Unit
    stride: int
    size: int
    lower: tuple[tuple[int, int], ...]

    def first(self, register: int) -> int:
        """The first register of a register's block."""
        for stride, size in self.lower:
            register -= register // stride % size * stride
        return register

    def blocks(self, num_regs: int) -> int:
        """Blocks among a thread's registers."""
        return len({self.first(i) for i in range(num_regs)})


def scan_levels(layout: Layout, axis: int) -> tuple[ScanLevel, ...]:
    """The digits of an axis, neighbouring ones of one unit joined."""
    out: list[ScanLevel] = []
    lower: tuple[tuple[int, int], ...] = ()
    for d in layout.dims[axis]:
        if d.size == 1:
            continue
        last = out[-1] if out else None
        if last is not None and last.unit is d.unit and last.stride * last.size == d.stride:
            out[-1] = ScanLevel(d.unit, last.stride, last.size * d.size, last.lower)
        else:
            out.append(ScanLevel(d.unit, d.stride, d.size, lower))
        lower = tuple((level.stride, level.size) for level in out if level.unit is Unit.REG)
    return tuple(out)
