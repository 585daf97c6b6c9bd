"""Shape ops that join, cut, reverse, gather and count elements of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.dtypes import int1
from tiledsl.dtypes import int32
from tiledsl.errors import TypeMismatch
from tiledsl.ir.layout_moves import exchange_bytes
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.ops.control import same_type
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type


class Join(Op, opcode="tile.join"):
    """A new last axis of extent 2: element 0 from `a`, element 1 from `b`."""

    a: Value = operand()
    b: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "join")
        if not same_type(self.a.type, self.b.type):
            raise TypeMismatch(f"join: operands differ: {self.a.type} and {self.b.type}")
        return (TileType((*t.shape, 2), t.dtype),)

    def evaluate(self, a: Any, b: Any) -> Any:
        return np.stack([a, b], axis=-1)


class Split(Op, opcode="tile.split"):
    """The two tiles along a last axis of extent 2."""

    a: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "split")
        if t.rank < 2 or t.shape[-1] != 2:
            raise TypeMismatch(f"split: the last axis must have extent 2, got {list(t.shape)}")
        half = TileType(t.shape[:-1], t.dtype)
        return (half, half)

    def evaluate(self, a: Any) -> Any:
        return a[..., 0].copy(), a[..., 1].copy()


class Unstack(Op, opcode="tile.unstack", levels=Level.WARP_SPECIALIZED | Level.MACHINE):
    """The tiles along the first axis, one result each."""

    a: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "unstack")
        if t.rank < 2:
            raise TypeMismatch(f"unstack: expected two axes or more, got {list(t.shape)}")
        return (TileType(t.shape[1:], t.dtype),) * t.shape[0]

    def evaluate(self, a: Any) -> Any:
        return tuple(x.copy() for x in a)


class Stack(Op, opcode="tile.stack", levels=Level.WARP_SPECIALIZED | Level.MACHINE):
    """Tiles side by side along a new first axis."""

    parts: tuple[Value, ...] = operands()

    def infer_types(self) -> tuple[Type, ...]:
        types = [tile_type(v, "stack") for v in self.parts]
        if not types or not all(same_type(t, types[0]) for t in types):
            raise TypeMismatch("stack: expected tiles of one type")
        return (TileType((len(types), *types[0].shape), types[0].dtype),)

    def evaluate(self, *parts: Any) -> Any:
        return np.stack(parts)


class Cat(Op, opcode="tile.cat"):
    """`a`, then `b` along axis `axis`.

    scratch: shared memory through which the elements go; barrier, guarded: see `reduce.reduce`.
    """

    a: Value = operand()
    b: Value = operand()
    axis: int = attribute()
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def infer_types(self) -> tuple[Type, ...]:
        a, b = tile_type(self.a, "cat"), tile_type(self.b, "cat")
        rest = [s[: self.axis] + s[self.axis + 1 :] for s in (a.shape, b.shape)]
        if a.dtype != b.dtype or a.rank != b.rank or rest[0] != rest[1]:
            raise TypeMismatch(
                f"cat: {self.a.type} and {self.b.type} do not fit along axis {self.axis}"
            )
        if not 0 <= self.axis < a.rank:
            raise TypeMismatch(f"cat: axis {self.axis} of a tile of rank {a.rank}")
        shape = list(a.shape)
        shape[self.axis] += b.shape[self.axis]
        return (TileType(tuple(shape), a.dtype),)

    def scratch_bytes(self) -> int:
        """Shared memory for all elements."""
        t = tile_type(self.result, "cat")
        return exchange_bytes(t.num_elements, t.dtype.bytes)

    def evaluate(self, a: Any, b: Any, *_: Any) -> Any:
        return np.concatenate([a, b], axis=self.axis)


class Flip(Op, opcode="tile.flip"):
    """The elements in reverse order along an axis. scratch, barrier, guarded: see `tile.cat`."""

    a: Value = operand()
    axis: int = attribute()
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "flip")
        if not 0 <= self.axis < t.rank:
            raise TypeMismatch(f"flip: axis {self.axis} of a tile of rank {t.rank}")
        return (t,)

    def scratch_bytes(self) -> int:
        """Shared memory for all elements."""
        t = tile_type(self.a, "flip")
        return exchange_bytes(t.num_elements, t.dtype.bytes)

    def evaluate(self, a: Any, *_: Any) -> Any:
        return np.flip(a, self.axis).copy()


class Gather(Op, opcode="tile.gather"):
    """Element i of the result is the element of `a` with coordinate `index[i]` along `axis`.

    index: integers in [0, extent), of a's shape except along the axis; others are moved to the
    nearest bound. scratch, barrier, guarded: see `tile.cat`.
    """

    a: Value = operand()
    index: Value = operand()
    axis: int = attribute()
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def infer_types(self) -> tuple[Type, ...]:
        a, index = tile_type(self.a, "gather"), tile_type(self.index, "gather")
        if not index.dtype.is_int:
            raise TypeMismatch(f"gather: the index must be integers, got {index.dtype!r}")
        if not 0 <= self.axis < a.rank:
            raise TypeMismatch(f"gather: axis {self.axis} of a tile of rank {a.rank}")
        fits = a.rank == index.rank and all(
            m == n
            for d, (m, n) in enumerate(zip(a.shape, index.shape, strict=True))
            if d != self.axis
        )
        if not fits:
            raise TypeMismatch(
                f"gather: shapes {list(a.shape)} and {list(index.shape)} must agree "
                f"but for axis {self.axis}"
            )
        return (TileType(index.shape, a.dtype, index.layout),)

    def scratch_bytes(self) -> int:
        """Shared memory for all elements of `a`."""
        t = tile_type(self.a, "gather")
        return exchange_bytes(t.num_elements, t.dtype.bytes)

    def evaluate(self, a: Any, index: Any, *_: Any) -> Any:
        safe = np.clip(index.astype(np.int64), 0, a.shape[self.axis] - 1)
        return np.take_along_axis(a, safe, self.axis)


class Histogram(Op, opcode="tile.histogram"):
    """How many elements equal 0, 1, ..., num_bins - 1, as i32; other values are not counted.

    mask: i1 of a's shape; elements where it is false are not counted. scratch, barrier, guarded:
    see `tile.cat`.
    """

    numbers = True
    a: Value = operand()
    mask: Value | None = operand(default=None)
    num_bins: int = attribute(kw_only=True)
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "histogram")
        if t.rank != 1 or not t.dtype.is_int:
            raise TypeMismatch(f"histogram: expected a tile of integers with one axis, got {t}")
        if self.mask is not None and not same_type(self.mask.type, t.with_dtype(int1)):
            raise TypeMismatch(
                f"histogram: mask is {self.mask.type}, expected {t.with_dtype(int1)}"
            )
        if self.num_bins < 1:
            raise TypeMismatch(f"histogram: num_bins must be positive, got {self.num_bins}")
        return (TileType((self.num_bins,), int32),)

    def scratch_bytes(self) -> int:
        """Shared memory for the counters."""
        return 4 * self.num_bins

    def evaluate(self, a: Any, *rest: Any) -> Any:
        kept = np.ones(a.shape, bool) if self.mask is None else np.asarray(rest[0])
        values = a[kept & (a >= 0) & (a < self.num_bins)].astype(np.int64)
        return np.bincount(values, minlength=self.num_bins).astype(np.int32)
