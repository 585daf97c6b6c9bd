"""Sorting along the last axis, and its functions of the language."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.errors import TypeMismatch
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.layout_moves import exchange_bytes
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.operands import axis_argument
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type


class Sort(Op, opcode="sort.sort"):
    """The first `count` elements along the last axis in ascending (descending) order.

    NaN of either sign is larger than every number, and loses its sign. merge: the axis is bitonic
    (it rises, then falls, or the reverse), its extent a power of two: only the last pass of the
    network runs. scratch: shared memory for the keys of all elements, each row padded to a power of
    two; barrier, guarded: see `reduce.reduce`.
    """

    numbers = True
    a: Value = operand()
    count: int = attribute()
    scratch: Value | None = operand(default=None)
    descending: bool = attribute(default=False)
    merge: bool = attribute(default=False)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "sort")
        if not t.rank:
            raise TypeMismatch("sort: the tile has no axis")
        n = t.shape[-1]
        if not 1 <= self.count <= n:
            raise TypeMismatch(f"sort: {self.count} of {n} elements")
        if self.merge and n & (n - 1):
            raise TypeMismatch(f"sort: a merge takes a power of two, got {n}")
        return (TileType((*t.shape[:-1], self.count), t.dtype),)

    @property
    def row(self) -> int:
        """Keys of one row, a power of two."""
        return 1 << (tile_type(self.a, "sort").shape[-1] - 1).bit_length()

    def scratch_bytes(self) -> int:
        """Shared memory for the keys."""
        t = tile_type(self.a, "sort")
        return exchange_bytes(t.num_elements // t.shape[-1] * self.row, key_bytes(t.dtype))

    def evaluate(self, a: Any, *_: Any) -> Any:
        keys = sort_keys(np.asarray(a))
        order = np.argsort(~keys if self.descending else keys, axis=-1, kind="stable")
        found = np.take_along_axis(a, order, -1)[..., : self.count]
        if a.dtype.kind in "bui":
            return found.copy()
        return np.where(_is_nan(found), np.abs(found), found)  # NaNs have lost their signs


def key_bytes(dtype: DType) -> int:
    """Bytes of the unsigned integer that an element is sorted by."""
    return 8 if dtype.bits == 64 else 4


def sort_keys(a: Any) -> Any:
    """Unsigned integers in the order of the elements."""
    if a.dtype.kind in "bu":
        return a.astype(np.uint64)
    size = a.dtype.itemsize
    bits = np.ascontiguousarray(a).view(f"u{size}").reshape(a.shape)
    top = bits.dtype.type(1 << (8 * size - 1))
    if a.dtype.kind == "i":
        return bits ^ top
    is_below = (bits & top).astype(bool) & ~_is_nan(a)
    return np.where(is_below, ~bits, bits | top)


def _is_nan(a: Any) -> Any:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.isnan(a)


# ---------------------------------------------------------------------- functions of the language
def _last_axis(x: Value, dim: object, what: str) -> int:
    """The extent of the last axis, which `dim` has to name."""
    t = tile_type(x, what)
    if t.rank == 0:
        raise TypeMismatch(f"{what}: the tile has no axis")
    if unwrap(dim) is not None and axis_argument(dim, t.rank, f"{what}: dim") != t.rank - 1:
        raise TypeMismatch(f"{what}: only the last axis can be sorted", hint="use tl.trans first")
    return t.shape[-1]


@builtin(methods=(TileType,))
def sort(b: Builder, x: Value, dim: int | None = None, descending: bool = False) -> Value:
    """The elements along the last axis in order; NaN, of either sign, is larger than every number.

    -0.0 comes before 0.0, and NaNs lose their signs.
    """
    n = _last_axis(x, dim, "sort()")
    return b.value(Sort(x, n, descending=bool(unwrap(descending))))


@builtin(methods=(TileType,))
def topk(b: Builder, x: Value, k: int, dim: int | None = None) -> Value:
    """The k largest elements along the last axis, the largest first; any k up to the extent.

    NaN counts as in `sort`.
    """
    n, count = _last_axis(x, dim, "topk()"), compile_time_int(k, "topk(): k")
    if not 1 <= count <= n:
        raise TypeMismatch(f"topk(): k must be in 1..{n}, got {count}")
    return b.value(Sort(x, count, descending=True))


@builtin(methods=(TileType,))
def bitonic_merge(b: Builder, x: Value, dim: int | None = None, descending: bool = False) -> Value:
    """Sorts a last axis that is bitonic: rising and then falling, or the reverse."""
    n = _last_axis(x, dim, "bitonic_merge()")
    return b.value(Sort(x, n, descending=bool(unwrap(descending)), merge=True))
