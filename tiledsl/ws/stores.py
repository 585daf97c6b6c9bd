"""Which stores go through staging in shared memory, and in what chunks."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.types import TileType
from tiledsl.ws.plan import Plan


@dataclass(frozen=True)
class StoreGeometry:
    """How one warpgroup's part of a stored tile is cut.

    major: the tile dimension that is contiguous in the tensor.  part: extents of one warpgroup's
    part.
    width: elements of a chunk along `major` (128 bytes).  num_chunks: chunks; the last may overlap
    its neighbour.
    """

    major: int
    part: tuple[int, int]
    width: int
    num_chunks: int
    itemsize: int

    @property
    def rows(self) -> int:
        """Rows of a chunk: the part's extent across `major`."""
        return self.part[1 - self.major]

    @property
    def buffer_bytes(self) -> int:
        return self.rows * self.width * self.itemsize

    @property
    def chunk_shape(self) -> tuple[int, int]:
        return (self.rows, self.width) if self.major == 1 else (self.width, self.rows)

    def start(self, chunk: int) -> tuple[int, int]:
        """First coordinate of a chunk inside the part."""
        at = min(chunk * self.width, self.part[self.major] - self.width)
        return (0, at) if self.major == 1 else (at, 0)


def store_geometry(store: Store, plan: Plan) -> StoreGeometry | str:
    """The staging of a store, or the reason why it writes straight from registers."""
    t = tensor_type(store.tensor, "store")
    if not t.tma or t.inner_dim is None:
        return (
            "the output has no legal tensor map "
            "(base or stride alignment, or no dimension of stride 1)"
        )
    kept = [d for d in range(t.rank) if d not in store.squeeze]
    value = store.value.type
    assert isinstance(value, TileType)
    if len(kept) != 2 or t.inner_dim not in kept:
        return "the stored block is not two-dimensional along the dimension of stride 1"
    if t.dtype.bits not in (16, 32):
        return f"dtype {t.dtype!r} is not staged"
    major = kept.index(t.inner_dim)
    part = list(value.shape)
    part[plan.split_dim] //= plan.warpgroups_per_tile
    width = 128 // t.dtype.bytes
    if part[major] < width or part[1 - major] > 256 or part[1 - major] % 8:
        return f"a warpgroup's part of {part[0]}x{part[1]} is too narrow for a 128-byte chunk"
    return StoreGeometry(major, (part[0], part[1]), width, -(-part[major] // width), t.dtype.bytes)
