"""How a register tile lies over registers, lanes and warps.

Each dimension of a tile is a mixed-radix number. A digit has a size, a unit (REG, LANE or WARP) and
a stride inside
that unit: its value is `(unit_index // stride) % size`. The coordinate along a dimension is the sum
of its digits, least significant first, each weighted with the product of the sizes before it. Sizes
need not be powers of two; a
dimension whose digits multiply to more than its extent is padded, and the elements beyond are never
read or stored. A unit value that no digit reads is a replica: those threads hold copies.

Ref: PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16" for `mma_accumulator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from functools import lru_cache
from math import prod

import numpy as np


class Unit(Enum):
    """Where a digit lives. WARP counts the warps of the executing role."""

    REG = "reg"
    LANE = "lane"
    WARP = "warp"


@dataclass(frozen=True)
class Digit:
    """One digit of a dimension: `(index of unit // stride) % size`."""

    size: int
    unit: Unit
    stride: int = 1

    def __str__(self) -> str:
        return f"{self.size}{self.unit.value[0]}{self.stride}"


def _merged(digits: Sequence[Digit]) -> tuple[Digit, ...]:
    out: list[Digit] = []
    for d in digits:
        before = out[-1] if out else None
        if d.size == 1:
            continue
        if before and before.unit is d.unit and d.stride == before.stride * before.size:
            out[-1] = Digit(before.size * d.size, d.unit, before.stride)
        else:
            out.append(d)
    return tuple(out)


@dataclass(frozen=True)
class Layout:
    """A register layout.

    dims: digits per dimension, least significant first.
    num_regs: elements that a thread holds.  num_warps: warps of the role that hold the tile.
    """

    dims: tuple[tuple[Digit, ...], ...]
    num_regs: int
    num_warps: int
    kind: str = "blocked"

    def __hash__(self) -> int:
        return self._hash  # layouts are keys of the tables that make loops

    @cached_property
    def _hash(self) -> int:
        return hash((self.dims, self.num_regs, self.num_warps, self.kind))

    def __str__(self) -> str:
        body = ";".join(",".join(map(str, d)) or "1" for d in self.dims)
        return f"{self.kind}<{body}|{self.num_regs}x{self.num_warps}>"

    @property
    def rank(self) -> int:
        return len(self.dims)

    @cached_property
    def has_replicas(self) -> bool:
        """Whether several threads hold the same elements."""
        held = {Unit.LANE: 1, Unit.WARP: 1}
        for digits in self.dims:
            for d in digits:
                if d.unit in held:
                    held[d.unit] *= d.size
        return held[Unit.LANE] < 32 or held[Unit.WARP] < self.num_warps

    @cached_property
    def padded_shape(self) -> tuple[int, ...]:
        """Extents that the digits span; at least the tile's shape."""
        return tuple(prod(d.size for d in digits) for digits in self.dims)

    @cached_property
    def merged_dims(self) -> tuple[tuple[Digit, ...], ...]:
        """The digits, with those made one that follow on each other in one unit."""
        return tuple(_merged(digits) for digits in self.dims)

    def same_places(self, other: Layout) -> bool:
        """True when both put every element into the same register, lane and warp."""
        return (
            self.merged_dims == other.merged_dims
            and self.num_regs == other.num_regs
            and self.num_warps == other.num_warps
        )

    @lru_cache(maxsize=32)  # noqa: B019 - layouts are small, and equal ones share an entry
    def coords(self) -> np.ndarray:
        """Coordinates of every element: int array [num_warps, 32, num_regs, rank], read-only."""
        index = np.meshgrid(
            np.arange(self.num_warps), np.arange(32), np.arange(self.num_regs), indexing="ij"
        )
        units = {Unit.WARP: index[0], Unit.LANE: index[1], Unit.REG: index[2]}
        out = np.zeros((*index[0].shape, self.rank), dtype=np.int64)
        for dim, digits in enumerate(self.dims):
            weight = 1
            for d in digits:
                out[..., dim] += (units[d.unit] // d.stride) % d.size * weight
                weight *= d.size
        out.flags.writeable = False
        return out

    def unit_terms(self, dim: int, unit: Unit) -> tuple[tuple[int, int, int], ...]:
        """(stride, size, weight) of the digits of one dimension that live in one unit."""
        out: list[tuple[int, int, int]] = []
        weight = 1
        for d in self.dims[dim]:
            if d.unit is unit and d.size > 1:
                out.append((d.stride, d.size, weight))
            weight *= d.size
        return tuple(out)

    def reg_coord(self, dim: int, reg: int) -> int:
        """The part of a coordinate that register index `reg` contributes."""
        return sum(reg // s % n * w for s, n, w in self.unit_terms(dim, Unit.REG))

    def transpose(self, order: Sequence[int]) -> Layout:
        """Dimensions permuted; nothing moves."""
        return Layout(tuple(self.dims[i] for i in order), self.num_regs, self.num_warps, self.kind)

    def expand(self, dim: int) -> Layout:
        """A dimension of extent 1 inserted at `dim`; nothing moves."""
        dims = (*self.dims[:dim], (), *self.dims[dim:])
        return Layout(dims, self.num_regs, self.num_warps, self.kind)

    def drop(self, dim: int, *, keep: bool) -> Layout:
        """The layout after reducing dimension `dim` (kept with extent 1 when `keep`).

        What lay in lanes and warps becomes replicated; what lay in registers is compacted away.
        """
        dims = list(self.dims)
        gone = {(d.stride, d.size) for d in dims[dim] if d.unit is Unit.REG and d.size > 1}
        dims[dim] = ()
        regs = sorted(
            (d.stride, d.size, i, j)
            for i, digits in enumerate(dims)
            for j, d in enumerate(digits)
            if d.unit is Unit.REG and d.size > 1
        )
        if not gone and self.num_regs == prod(size for _, size, _, _ in regs):
            new = tuple(dims)
            num_regs = self.num_regs
        else:
            fresh: dict[tuple[int, int], Digit] = {}
            stride = 1
            for _, size, i, j in regs:
                fresh[i, j] = Digit(size, Unit.REG, stride)
                stride *= size
            num_regs = stride
            new = tuple(
                tuple(fresh.get((i, j), d) for j, d in enumerate(digits))
                for i, digits in enumerate(dims)
            )
        if not keep:
            new = new[:dim] + new[dim + 1 :]
        return Layout(new, num_regs, self.num_warps, self.kind)

    def reg_index_map(self, source: Layout, dims: Sequence[int | None]) -> tuple[int, ...]:
        """For each register here, the register of `source` with the same coordinates.

        dims[i] is the dimension of this layout that dimension i of `source` follows, or None where
        the source has extent 1 (broadcast). Raises ValueError when lanes or warps would have to
        move.
        """
        for i, follow in enumerate(dims):
            if follow is None:
                continue
            for unit in (Unit.LANE, Unit.WARP):
                if source.unit_terms(i, unit) != self.unit_terms(follow, unit):
                    raise ValueError(f"dimension {i} lies differently over {unit.value}s")
        table: dict[tuple[int, ...], int] = {}
        for reg in range(source.num_regs):
            key = tuple(
                0 if follow is None else source.reg_coord(i, reg) for i, follow in enumerate(dims)
            )
            table.setdefault(key, reg)
        out: list[int] = []
        for reg in range(self.num_regs):
            key = tuple(0 if follow is None else self.reg_coord(follow, reg) for follow in dims)
            if key not in table:
                raise ValueError("a register's element lies in another thread")
            out.append(table[key])
        return tuple(out)


def register_shift(layout: Layout, shape: Sequence[int], dim: int, distance: int) -> int | None:
    """By how many registers elements lie apart that are `distance` apart along a dimension.

    None where they are not in the same thread, or not all equally far and further on.
    """
    coords = layout.coords()
    kept = (coords[..., dim].max(axis=(0, 1)) < shape[dim] - distance).nonzero()[0]
    places = {tuple(c): r for r, c in enumerate(coords[0, 0].tolist())}
    step = np.arange(layout.rank) == dim
    found = {
        places.get(tuple((coords[0, 0, r] + distance * step).tolist()), -1) - r
        for r in kept.tolist()
    }
    apart = found.pop() if len(found) == 1 else 0
    if apart <= 0:
        return None
    moved = coords[:, :, kept + apart] == coords[:, :, kept] + distance * step
    return apart if bool(moved.all()) else None


def mma_accumulator(
    M: int, N: int, num_warpgroups: int = 1, *, split: int = 0, paired: bool = False
) -> Layout:
    """The wgmma accumulator of an [M, N] tile over `num_warpgroups` warpgroups.

    split 0: warpgroups share the rows; split 1: they share the columns. Register order: row block
    of 64, then the instruction's own order (2 columns, 2 rows, N/8). paired: of every four columns
    the instruction has the first two in its first half, the others in its second half.
    """
    groups_M = num_warpgroups if split == 0 else 1
    groups_N = num_warpgroups if split == 1 else 1
    wm, wn = M // groups_M, N // groups_N
    if M % (64 * groups_M) or N % (8 * groups_N):
        raise ValueError(
            f"{M}x{N} does not split into 64-row, 8-column blocks over {num_warpgroups} warpgroups"
        )
    per_block = wn // 2
    rows = [Digit(8, Unit.LANE, 4), Digit(2, Unit.REG, 2), Digit(4, Unit.WARP, 1)]
    if wm > 64:
        rows.append(Digit(wm // 64, Unit.REG, per_block))
    if groups_M > 1:
        rows.append(Digit(groups_M, Unit.WARP, 4))
    cols = [Digit(2, Unit.REG, 1), Digit(4, Unit.LANE, 1)]
    if paired:
        if wn % 16:
            raise ValueError(f"{wn} columns have no halves of 8-column blocks")
        cols.insert(1, Digit(2, Unit.REG, wn // 4))
    if wn > (16 if paired else 8):
        cols.append(Digit(wn // (16 if paired else 8), Unit.REG, 4))
    if groups_N > 1:
        cols.append(Digit(groups_N, Unit.WARP, 4))
    return Layout((tuple(rows), tuple(cols)), wm // 64 * per_block, 4 * num_warpgroups, "mma")


def mma_operand_8bit(M: int, K: int, num_warpgroups: int = 1) -> Layout:
    """The left operand [M, K] of wgmma with 8-bit elements in registers; warpgroups share the rows.

    Ref: PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk32".
    """
    wm = M // num_warpgroups
    if M % (64 * num_warpgroups) or K % 32:
        raise ValueError(f"{M}x{K} does not split into 64x32 blocks over {num_warpgroups} groups")
    rows = [Digit(8, Unit.LANE, 4), Digit(2, Unit.REG, 4), Digit(4, Unit.WARP, 1)]
    if wm > 64:
        rows.append(Digit(wm // 64, Unit.REG, K // 2))
    if num_warpgroups > 1:
        rows.append(Digit(num_warpgroups, Unit.WARP, 4))
    cols = (
        Digit(2, Unit.REG, 1),
        Digit(2, Unit.REG, 2),
        Digit(4, Unit.LANE, 1),
        Digit(K // 16, Unit.REG, 8),
    )
    return Layout((tuple(rows), cols), wm // 64 * K // 2, 4 * num_warpgroups, "mma")


def _vector(digits: dict[int, list[Digit]], left: dict[int, int], dim: int, vector: int) -> int:
    """Gives each thread its vector; the stride of registers then."""
    v = max(1, min(vector, left[dim]))
    if v > 1:
        digits[dim].append(Digit(v, Unit.REG, 1))
        left[dim] = -(-left[dim] // v)
    return v


def _run(
    digits: dict[int, list[Digit]],
    left: dict[int, int],
    dim: int,
    num_warps: int,
    reg_stride: int,
    most: int,
) -> int:
    """Gives each thread its share of a dimension in one piece; how many registers that takes."""
    run = min(left[dim], most, -(-prod(left.values()) // (32 * num_warps)))
    while left[dim] % run:
        run -= 1
    if run > 1:
        digits[dim].append(Digit(run, Unit.REG, reg_stride))
        left[dim] //= run
    return run


def _chain(
    digits: dict[int, list[Digit]], left: dict[int, int], dim: int, num_warps: int, reg_stride: int
) -> int:
    """Gives a warp its share of the only row in one piece; the stride of registers then."""
    share = -(-left[dim] // num_warps)
    if share == 1 or prod(left.values()) != left[dim]:
        return reg_stride
    digits[dim].append(Digit(share, Unit.REG, reg_stride))
    left[dim] = -(-left[dim] // share)
    return reg_stride * share


def blocked(
    shape: Sequence[int],
    num_warps: int,
    *,
    vector: int = 1,
    order: Sequence[int] | None = None,
    warp_order: Sequence[int] | None = None,
    most_lanes: int = 32,
    chained: bool = False,
    run_dim: int = -1,
    most_run: int = 1 << 30,
) -> Layout:
    """A coalesced layout: `vector` contiguous elements a thread along the fastest dimension.

    order: dimensions from fastest to slowest (default: last dimension fastest). Lanes fill the
    fastest dimension, then the next ones, then warps (in `warp_order`, by default the same order),
    then registers; what does not fill a unit is replicated. most_lanes: of the fastest dimension.
    chained: a warp's registers of a single row go on where its lanes end. run_dim: a slower
    dimension along which the registers of a thread lie side by side, as many as its share, or
    most_run.
    """
    rank = len(shape)
    order = tuple(order) if order is not None else tuple(reversed(range(rank)))
    left = {d: shape[d] for d in range(rank)}
    digits: dict[int, list[Digit]] = {d: [] for d in range(rank)}
    reg_stride = _vector(digits, left, order[0], vector) if rank else 1
    if run_dim >= 0:
        reg_stride *= _run(digits, left, run_dim, num_warps, reg_stride, most_run)
    orders = (order, order if warp_order is None else warp_order)
    for unit, total, dims in zip((Unit.LANE, Unit.WARP), (32, num_warps), orders, strict=True):
        room, stride = total, 1
        if chained and unit is Unit.WARP:
            reg_stride = _chain(digits, left, order[0], num_warps, reg_stride)
        for d in dims:
            if left[d] <= 1 or room == 1:
                continue
            take = min(left[d], room)
            if unit is Unit.LANE and d == order[0]:
                take = min(take, most_lanes)
            while room % take:
                take += 1
            digits[d].append(Digit(take, unit, stride))
            left[d] = -(-left[d] // take)
            stride *= take
            room //= take
    for d in order:
        if left[d] > 1:
            digits[d].append(Digit(left[d], Unit.REG, reg_stride))
            reg_stride *= left[d]
    return Layout(tuple(tuple(digits[d]) for d in range(rank)), reg_stride, num_warps, "blocked")
