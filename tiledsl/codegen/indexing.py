"""Layouts as C++ index expressions: thread parts, register parts, and register-to-register maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tiledsl.codegen.cpp import literal
from tiledsl.dtypes import int32
from tiledsl.errors import CodegenError
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.vectors import vectors_of

__all__ = [
    "IndexMap",
    "index_map",
    "register_part",
    "replica_conditions",
    "term_sum",
    "thread_part",
    "vector_width",
]

LANES = 32


@dataclass(frozen=True, slots=True)
class IndexMap:
    """Register of a source tile for register `i`.

    An expression, and a table when no formula fits.
    """

    text: str
    table: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One dimension of a tile's place in a loop over registers. thread: what the thread gives."""

    thread: str
    layout: Layout
    dim: int

    def register(self, multiple: int = 1) -> str:
        """What the register gives; see `register_part`."""
        return register_part(self.layout, self.dim, multiple=multiple)

    def first(self, run: int) -> str | None:
        """The first of the elements of a run, as text; None where that is no sum of the parts."""
        units = (Unit.LANE, Unit.WARP)
        thread = [t for unit in units for t in self.layout.unit_terms(self.dim, unit)]
        register = self.layout.unit_terms(self.dim, Unit.REG)
        low = [t for t in (*thread, *register) if t[2] % run]
        kept = [t for t in thread if t[2] % run == 0]
        if sum((size - 1) * weight for _, size, weight in low) >= run:
            return None
        if kept and len(kept) < len(thread):
            return None
        rest = term_sum("i", [t for t in register if t[2] % run == 0], self.layout.num_regs)
        return " + ".join(text for text in (self.thread if kept else "", rest) if text) or "0"

    def is_decided(self, limit: int) -> bool:
        """Whether the register alone tells on which side of a limit an element is."""
        units = (Unit.LANE, Unit.WARP)
        terms = [t for unit in units for t in self.layout.unit_terms(self.dim, unit)]
        most = sum((size - 1) * weight for _, size, weight in terms)
        parts = {self.layout.reg_coord(self.dim, reg) for reg in range(self.layout.num_regs)}
        return not any(part < limit <= part + most for part in parts)


def term_sum(variable: str, terms: Sequence[tuple[int, int, int]], count: int) -> str:
    """Sum of `variable / stride % size * weight`; `count`: the variable runs below it.

    Empty when zero.
    """
    parts: list[str] = []
    for stride, size, weight in terms:
        if size <= 1 or stride >= count or weight == 0:
            continue
        text = variable if stride == 1 else f"{variable} / {stride}"
        if stride * size < count:
            text += f" % {size}"
        parts.append(text if weight == 1 else f"{text} * {weight}")
    return " + ".join(parts)


def thread_part(
    layout: Layout, dim: int, num_warps: int, *, own_group: bool = False, joins: bool = False
) -> str:
    """The part of a coordinate that lane and warp contribute; empty when zero.

    own_group: leave out which warpgroup it is. joins: whether the thread's number stands for both,
    where lanes of one warp follow those of another: `threadIdx.x * 4`.
    """
    lanes = layout.unit_terms(dim, Unit.LANE)
    warps = layout.unit_terms(dim, Unit.WARP)
    if own_group:
        warps = tuple(t for t in warps if t[0] < 4)
    count = max(num_warps, layout.num_warps)
    both: tuple[tuple[int, int, int], ...] = ()
    if joins and lanes and warps:
        (stride, size, weight), (first, more, step) = lanes[-1], warps[0]
        if stride * size == LANES and first == 1 and step == size * weight:
            both = ((stride, size * more, weight),)
            lanes, warps = lanes[:-1], warps[1:]
    parts = (
        term_sum("lane", lanes, LANES),
        term_sum("threadIdx.x", both, LANES * count),
        term_sum("warp", warps, count),
    )
    return " + ".join(part for part in parts if part)


def register_part(layout: Layout, dim: int, variable: str = "i", *, multiple: int = 1) -> str:
    """The part of a coordinate that register index `variable` contributes; empty when zero.

    multiple: of the first element instead of those that a thread holds side by side, where their
    number divides this one.
    """
    terms = layout.unit_terms(dim, Unit.REG)
    found = vectors_of(layout)
    if found is not None and found.dim == dim and multiple % found.size == 0:
        terms = tuple(t for t in terms if t[2] >= found.size)
    return term_sum(variable, terms, layout.num_regs)


def index_map(
    target: Layout, source: Layout, follows: Sequence[int | None], variable: str = "i"
) -> IndexMap:
    """Where register `variable` of the target layout finds its element in the source's registers.

    Raises:
        CodegenError: the element lies in another thread.
    """
    return _index_map(target, source, tuple(follows), variable)


@lru_cache(maxsize=1024)
def _index_map(
    target: Layout, source: Layout, follows: tuple[int | None, ...], variable: str
) -> IndexMap:
    try:
        table = target.reg_index_map(source, follows)
    except ValueError as fault:
        raise CodegenError(f"a tile has to change its layout before this use: {fault}") from None
    digits = sorted(
        {
            (d.stride, d.size)
            for dim in target.dims
            for d in dim
            if d.unit is Unit.REG and d.size > 1
        }
    )
    terms: list[tuple[int, int, int]] = []
    for stride, size in digits:
        weight = table[stride] - table[0] if stride < len(table) else 0
        last = terms[-1] if terms else None
        if last and last[0] * last[1] == stride and last[2] * last[1] == weight:
            terms[-1] = (last[0], last[1] * size, last[2])
        elif weight:
            terms.append((stride, size, weight))
    fitted = [table[0] + sum(i // s % n * w for s, n, w in terms) for i in range(len(table))]
    if fitted != list(table) or any(w < 0 for _, _, w in terms):
        return IndexMap("", table)
    text = term_sum(variable, terms, target.num_regs)
    first = "" if table[0] == 0 else literal(table[0], int32)
    return IndexMap(" + ".join(part for part in (first, text) if part) or "0")


def replica_conditions(layout: Layout, num_warps: int) -> tuple[str, ...]:
    """Conditions under which a thread is the first of those that hold the same elements."""
    out: list[str] = []
    counts = ((Unit.LANE, "lane", LANES), (Unit.WARP, "warp", max(num_warps, layout.num_warps)))
    for unit, variable, count in counts:
        digits = sorted(
            {
                (d.stride, d.size)
                for dim in layout.dims
                for d in dim
                if d.unit is unit and d.size > 1
            }
        )
        covered = 1
        for stride, size in digits:
            if stride > covered:
                head = variable if covered == 1 else f"{variable} / {covered}"
                out.append(f"{head} % {stride // covered} == 0")
            covered = max(covered, stride * size)
        if covered == 1:
            out += [f"{variable} == 0"] if count > 1 else []
        elif covered < count:
            out.append(f"{variable} < {covered}")
    return tuple(out)


def vector_width(
    layout: Layout,
    dim: int,
    extent: int,
    element_bytes: int,
    *,
    limit_bytes: int = 16,
    least_bytes: int = 4,
) -> int:
    """Neighbours along `dim` that a thread holds in consecutive registers and may move at once.

    1 when that is nothing, or fewer than `least_bytes`. The vectors begin at multiples of the width
    along the dimension.
    """
    digits = [d for d in layout.dims[dim] if d.size > 1]
    if not digits or digits[0].unit is not Unit.REG or digits[0].stride != 1:
        return 1
    width = limit_bytes // element_bytes
    while width > 1 and (digits[0].size % width or extent % width):
        width //= 2
    return width if width * element_bytes >= least_bytes and width > 1 else 1


def registers_inside(
    layout: Layout, start: Sequence[int], shape: Sequence[int], *, own: bool, index: str = "i"
) -> tuple[str, bool]:
    """Which elements are inside of a box, and whether they are so for every thread.

    The first is a condition on register `i`, for elements that some thread has inside.
    own: coordinates of one warpgroup's part.
    """
    coords = layout.coords()
    if own:
        coords = coords[:4]
    low, high = coords.min(axis=(0, 1)), coords.max(axis=(0, 1))
    box = np.asarray(start), np.asarray(start) + np.asarray(shape)
    touched = ((high >= box[0]) & (low < box[1])).all(axis=1)
    sure = bool(((low >= box[0]) & (high < box[1]))[touched].all())
    if touched.all():
        return "true", sure
    runs = _runs(np.flatnonzero(touched))
    first, length = runs[0]
    if len(runs) == 1:
        return f"{index} >= {first} && {index} < {first + length}", sure
    period = runs[1][0] - first
    regular = all(r == (first + n * period, length) for n, r in enumerate(runs))
    if regular and first < period and touched.size % period == 0:
        return f"{index} % {period} >= {first} && {index} % {period} < {first + length}", sure
    return "true", False


def _runs(indices: np.ndarray) -> list[tuple[int, int]]:
    """(first, length) of the runs of consecutive numbers."""
    out: list[tuple[int, int]] = []
    for i in indices.tolist():
        if out and i == out[-1][0] + out[-1][1]:
            out[-1] = (out[-1][0], out[-1][1] + 1)
        else:
            out.append((i, 1))
    return out
