"""What an op with state may ask of the machine that runs it; global memory by address."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any
from typing import Protocol

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.errors import LaunchError

if TYPE_CHECKING:
    from tiledsl.ir.op import Op
    from tiledsl.ir.op import Region

Array = np.ndarray[Any, np.dtype[Any]]

# Every `yield` lets the other roles run; the returned tuple holds the results.
Steps = Generator[None, None, tuple[Any, ...]]


class Machine(Protocol):
    """The state around an op, given to `Op.execute`.

    program: indices of the running program along the three grid axes.  grid: extents of the grid.
    memory: global memory by address, for pointers.
    """

    @property
    def program(self) -> tuple[int, int, int]: ...

    @property
    def grid(self) -> tuple[int, int, int]: ...

    @property
    def memory(self) -> GlobalMemory: ...

    def run_region(self, region: Region, args: Sequence[Any]) -> Steps:
        """Runs a region of the op with the given arguments; returns what its terminator yields."""
        ...

    def stored(self, op: Op, array: Array, window: tuple[slice, ...]) -> None:
        """Reports that `op` has written `array[window]`."""
        ...


class GlobalMemory:
    """Arrays by address: a pointer is the real 64-bit address of an element. Checks accesses."""

    def __init__(self) -> None:
        self._blocks: list[tuple[int, int, Array]] = []

    def add(self, array: Array) -> int:
        """Makes an array's bytes accessible; returns the address of its first element."""
        base = int(array.__array_interface__["data"][0])
        spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        if array.size:
            start = base + sum(min(0, s) for s in spans)
            stop = base + sum(max(0, s) for s in spans) + array.itemsize
            self._blocks.append((start, stop, array))
        return base

    def gather(self, addresses: Any, dtype: DType, mask: Any = True, other: Any = 0) -> Array:
        """Elements at int64 addresses; `other` where the mask is false, which is not accessed."""
        at, active = np.broadcast_arrays(np.asarray(addresses, dtype=np.int64), mask)
        out = np.array(np.broadcast_to(np.asarray(other).astype(dtype.numpy), at.shape))
        for memory, offsets, lanes in self._split(at, active, dtype.numpy.itemsize):
            index = offsets[:, None] + np.arange(dtype.numpy.itemsize)
            out[lanes] = memory[index].view(dtype.numpy)[:, 0]
        return out

    def scatter(self, addresses: Any, values: Any, mask: Any = True) -> None:
        """Writes elements at int64 addresses where the mask holds; the last of two lanes wins."""
        data = np.asarray(values)
        at, active = np.broadcast_arrays(np.asarray(addresses, dtype=np.int64), mask)
        data = np.broadcast_to(data, at.shape)
        for memory, offsets, lanes in self._split(at, active, data.itemsize, write=True):
            index = offsets[:, None] + np.arange(data.itemsize)
            memory[index] = np.ascontiguousarray(data[lanes])[:, None].view(np.uint8)

    def _split(
        self, at: Array, active: Array, itemsize: int, *, write: bool = False
    ) -> list[tuple[Array, Array, Array]]:
        """(bytes of a block, offsets into it, lanes that access it) for each block accessed."""
        out: list[tuple[Array, Array, Array]] = []
        left = np.asarray(active, dtype=bool).copy()
        for start, stop, array in self._blocks:
            lanes = left & (at >= start) & (at + itemsize <= stop)
            if not lanes.any() or (write and not array.flags.writeable):
                continue
            left &= ~lanes
            raw = (ctypes.c_uint8 * (stop - start)).from_address(start)
            out.append((np.ctypeslib.as_array(raw), at[lanes] - start, lanes))
        if left.any():
            word = "write to" if write else "read from"
            raise LaunchError(f"{word} address {int(at[left].flat[0]):#x}, outside every tensor")
        return out


def block_window(
    extents: Sequence[int], offsets: Sequence[int], block_shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """The part of a block that lies in a tensor, as slices of the tensor and of the block."""
    outer: list[slice] = []
    inner: list[slice] = []
    for extent, offset, size in zip(extents, offsets, block_shape, strict=True):
        start = min(max(0, offset), extent)
        stop = max(start, min(extent, offset + size))
        outer.append(slice(start, stop))
        inner.append(slice(start - offset, stop - offset) if stop > start else slice(0, 0))
    return tuple(outer), tuple(inner)


def load_block(
    array: Array, offsets: Sequence[int], block_shape: Sequence[int], other: Any = 0
) -> Array:
    """A copy of a block of a tensor, with `other` outside it."""
    outer, inner = block_window(array.shape, offsets, block_shape)
    part = array[outer]
    if part.shape == tuple(block_shape):
        return part.copy()
    out = np.full(block_shape, np.asarray(other).astype(array.dtype), dtype=array.dtype)
    out[inner] = part
    return out


def store_block(array: Array, offsets: Sequence[int], block: Array) -> tuple[slice, ...]:
    """Writes the part of a block that lies in the tensor; returns where."""
    outer, inner = block_window(array.shape, offsets, block.shape)
    array[outer] = block[inner]
    return outer
