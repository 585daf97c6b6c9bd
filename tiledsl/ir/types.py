"""Types of SSA values: frozen, hashable, printable; `parse_type` reads the printed form back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from tiledsl.dtypes import DType
from tiledsl.ir.layout import Layout


class Type:
    """Base of all types."""

    __slots__ = ()


CHUNK_BYTES = 16
"""What bulk copies bring of a row is a multiple of this."""


@dataclass(frozen=True)
class ScalarType(Type):
    """One element, equal in every thread of the program unless a layout says otherwise."""

    dtype: DType

    def __str__(self) -> str:
        return str(self.dtype)


@dataclass(frozen=True)
class TileType(Type):
    """A tile of elements. layout is None until the layout pass (and on TILE level)."""

    shape: tuple[int, ...]
    dtype: DType
    layout: Layout | None = None

    def __str__(self) -> str:
        dims = "x".join(map(str, (*self.shape, self.dtype)))
        return f"tile<{dims}>" if self.layout is None else f"tile<{dims}, {self.layout}>"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    def with_dtype(self, dtype: DType) -> TileType:
        return TileType(self.shape, dtype, self.layout)

    def with_layout(self, layout: Layout | None) -> TileType:
        return TileType(self.shape, self.dtype, layout)


@dataclass(frozen=True)
class TensorType(Type):
    """A kernel parameter: a strided view of global memory.

    inner_dim: the dimension with stride 1, or None.  tma: whether a tensor map of it is legal for
    this launch.  ragged: whether its rows may end between multiples of 16 bytes.
    pitch_bytes: divides all strides but the inner one.
    """

    rank: int
    dtype: DType
    inner_dim: int | None = None
    tma: bool = False
    align_bytes: int = 1
    ragged: bool = False
    pitch_bytes: int = 1

    def __str__(self) -> str:
        inner = "none" if self.inner_dim is None else self.inner_dim
        facts = f"inner={inner}, tma={int(self.tma)}, align={self.align_bytes}"
        facts += ", ragged=1" if self.ragged else ""
        facts += f", pitch={self.pitch_bytes}" if self.pitch_bytes > 1 and not self.tma else ""
        return f"tensor<{self.rank}x{self.dtype}, {facts}>"


@dataclass(frozen=True)
class SmemType(Type):
    """A tile in shared memory (one slot of a ring, or a buffer).

    major: the dimension that is contiguous in memory.  swizzle_bytes: 0 or 128. The tile is cut
    along the contiguous dimension into boxes of `swizzle_bytes`, each box stored row after row
    (hopper: TMA boxes and wgmma atoms).
    paired: of every four rows, the first two lie in the first half of a box, the others in the
    second half, so that a lane's accumulators of the product are four columns side by side.
    """

    shape: tuple[int, ...]
    dtype: DType
    major: int
    swizzle_bytes: int = 128
    paired: bool = False

    def __str__(self) -> str:
        dims = "x".join(map(str, (*self.shape, self.dtype)))
        paired = ", paired=1" if self.paired else ""
        return f"smem<{dims}, major={self.major}, swizzle={self.swizzle_bytes}{paired}>"

    @property
    def box_elems(self) -> int:
        """Elements of one box along the contiguous dimension (0 swizzle: the whole extent)."""
        return (
            self.swizzle_bytes // self.dtype.bytes if self.swizzle_bytes else self.shape[self.major]
        )

    @property
    def num_boxes(self) -> int:
        """Boxes along the contiguous dimension; the last one may be padded."""
        return -(-self.shape[self.major] // self.box_elems)

    @property
    def box_rows(self) -> int:
        """Rows of one box: the product of the other extents."""
        return prod(n for i, n in enumerate(self.shape) if i != self.major)

    @property
    def copied_elems(self) -> int:
        """Elements of one box along the contiguous dimension that a bulk copy brings.

        Rows of a tile narrower than a box lie `swizzle_bytes` apart all the same, and a copy leaves
        out what is behind them (seen on an H200). Ref: CUDA driver API, cuTensorMapEncodeTiled: the
        inner dimension of a box is no more than the swizzle.
        """
        own = self.shape[self.major]
        exact = own < self.box_elems and own * self.dtype.bytes % CHUNK_BYTES == 0
        return own if exact else self.box_elems

    @property
    def copied_bytes(self) -> int:
        """Bytes that bulk copies bring to one slot."""
        return self.num_boxes * self.copied_elems * self.box_rows * self.dtype.bytes

    @cached_property
    def bytes(self) -> int:
        """Bytes of one slot, padding included."""
        return self.num_boxes * self.box_elems * self.box_rows * self.dtype.bytes


@dataclass(frozen=True)
class ArefType(Type):
    """An asynchronous reference: a ring of `depth` slots in shared memory.

    Each slot is a tuple of tiles.
    """

    payload: tuple[SmemType, ...]
    depth: int

    def __str__(self) -> str:
        return f"aref<({', '.join(map(str, self.payload))}), depth={self.depth}>"

    @property
    def slot_bytes(self) -> int:
        return sum(p.bytes for p in self.payload)


@dataclass(frozen=True)
class HandleType(Type):
    """A machine object without a value of its own: ring, barriers, cursor, staging, tensor map."""

    kind: str
    depth: int = 1

    def __str__(self) -> str:
        return f"{self.kind}<{self.depth}>"
