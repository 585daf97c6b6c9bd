"""What an op with state may ask of the machine that runs it; global memory by address."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
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


@dataclass(frozen=True, eq=False)
class Block:
    """Bytes [start, stop) of an array that pointers may reach.

    base: address of element 0. raw: the bytes.
    """

    name: str
    start: int
    stop: int
    base: int
    array: Array
    raw: Array


class GlobalMemory:
    """Arrays by address: a pointer is the real 64-bit address of an element. Checks accesses."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []

    def add(self, array: Array, name: str = "", *, offset: int = 0) -> int:
        """Makes an array's bytes accessible; returns the address of its element `offset`."""
        base = int(array.__array_interface__["data"][0]) + offset * array.itemsize
        spans = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
        if array.size:
            start = base - offset * array.itemsize + sum(min(0, s) for s in spans)
            stop = base - offset * array.itemsize + sum(max(0, s) for s in spans) + array.itemsize
            bytes_ = (ctypes.c_uint8 * (stop - start)).from_address(start)
            raw = np.ctypeslib.as_array(bytes_)
            self._blocks.append(Block(name, start, stop, base, array, raw))
        return base

    def gather(
        self,
        addresses: Any,
        dtype: DType,
        mask: Any = True,
        other: Any = 0,
        *,
        origin: str | None = "",
    ) -> Array:
        """Elements at int64 addresses; `other` where the mask is false, which is not accessed.

        origin: name of the tensor that the pointer came from, for messages; None for a pointer made
        from an integer, which may reach any memory of the process.
        """
        at, active = np.broadcast_arrays(np.asarray(addresses, dtype=np.int64), mask)
        out = np.array(np.broadcast_to(np.asarray(other).astype(dtype.numpy), at.shape))
        for memory, offsets, lanes in self._split(at, active, dtype.numpy.itemsize, origin):
            index = offsets[:, None] + np.arange(dtype.numpy.itemsize)
            out[lanes] = memory[index].view(dtype.numpy)[:, 0]
        return out

    def scatter(
        self, addresses: Any, values: Any, mask: Any = True, *, origin: str | None = ""
    ) -> None:
        """Writes elements at int64 addresses where the mask holds; the last of two lanes wins."""
        data = np.asarray(values)
        at, active = np.broadcast_arrays(np.asarray(addresses, dtype=np.int64), mask)
        data = np.broadcast_to(data, at.shape)
        for memory, offsets, lanes in self._split(at, active, data.itemsize, origin, write=True):
            index = offsets[:, None] + np.arange(data.itemsize)
            memory[index] = np.ascontiguousarray(data[lanes])[:, None].view(np.uint8)

    def _split(
        self,
        at: Array,
        active: Array,
        itemsize: int,
        origin: str | None = "",
        *,
        write: bool = False,
    ) -> list[tuple[Array, Array, Array]]:
        """(bytes of a block, offsets into it, lanes that access it) for each block accessed."""
        out: list[tuple[Array, Array, Array]] = []
        left = np.asarray(active, dtype=bool).copy()
        own = [b for b in self._blocks if origin and b.name == origin]
        for block in own or self._blocks:
            lanes = left & (at >= block.start) & (at + itemsize <= block.stop)
            if not lanes.any() or (write and not block.array.flags.writeable):
                continue
            left &= ~lanes
            out.append((block.raw, at[lanes] - block.start, lanes))
        if left.any() and origin is None and _is_mapped(at[left], itemsize, write=write):
            start, stop = int(at[left].min()), int(at[left].max()) + itemsize
            raw = np.ctypeslib.as_array((ctypes.c_uint8 * (stop - start)).from_address(start))
            out.append((raw, at[left] - start, left))
        elif left.any():
            raise self._fault(at, left, itemsize, origin, "write to" if write else "read from")
        return out

    def _fault(
        self, at: Array, left: Array, itemsize: int, origin: str | None, word: str
    ) -> LaunchError:
        """The error for the first lane of `left`, in terms of the tensor it was meant for."""
        lane = tuple(int(i) for i in np.argwhere(left)[0])
        address = int(at[lane])
        message = f"{word} address {address:#x}, outside every tensor"
        near = [b for b in self._blocks if b.name == origin] or self._blocks
        if near:
            block = min(near, key=lambda b: max(b.start - address, address - b.stop))
            index, rest = divmod(address - block.base, block.array.itemsize)
            place = f"element {index}" if not rest else f"byte {address - block.base}"
            name = f"{block.name!r}" if block.name else "the nearest one"
            size = (block.stop - block.base) // block.array.itemsize
            message += f": {place} of {name}, whose memory holds {size} elements"
        if lane:
            message += f" (element {list(lane)} of the tile)"
        inside = [b for b in near if b.start <= address and address + itemsize <= b.stop]
        if inside and not inside[0].array.flags.writeable:
            message = f"{word} address {address:#x}: the tensor there cannot be written"
        return LaunchError(message)


def _is_mapped(addresses: Array, itemsize: int, *, write: bool) -> bool:
    """Whether the process may access elements at all of these addresses (Linux)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    left = np.asarray(addresses).ravel()
    for line in lines:
        span, modes, *_ = line.split()
        start, stop = (int(x, 16) for x in span.split("-"))
        if "r" in modes and (not write or "w" in modes) and stop < 1 << 63:
            left = left[~((left >= start) & (left + itemsize <= stop))]
    return not left.size


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
