"""What one launch hands to the driver: parameters and configuration in one buffer.

The call is cuLaunchKernelEx through ctypes, with pointers that are made once: half the cost of the
same call through the bindings, and like theirs without Python's lock.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ALIGN_BYTES = 64
"""Of the buffer: what a tensor map among the parameters needs."""
WORD, SIGNED_WORD = ("L", "l") if struct.calcsize("@L") == 8 else ("Q", "q")
"""Format of a 64-bit number in this machine's layout; longs take half the time of long longs."""
HEAD = f"32s{WORD}"
"""CUlaunchConfig up to its attributes: `Setup.head`, and the stream."""
_HEAD = struct.Struct(f"@{HEAD}")
_SETUP = struct.Struct("<7I4x")  # grid, block, bytes of shared memory
_TAIL = struct.Struct("<QI4x")  # pointer to the attributes, how many
_ATTRIBUTE = struct.Struct("<I4xi60x")  # CUlaunchAttribute: what, and an int
PROGRAMMATIC_STREAM_SERIALIZATION = 6

pointer = ctypes.c_void_p.from_param
"""An address as an argument of a driver call."""
NULL = pointer(None)


@dataclass(frozen=True, slots=True)
class Setup:
    """What all launches of a kernel share.

    pdl: a launch may start before the kernel ahead of it in the stream has ended.
    """

    num_threads: int = 1
    smem_bytes: int = 0
    pdl: bool = False

    def head(self, grid: tuple[int, int, int]) -> bytes:
        """The start of CUlaunchConfig for a grid."""
        return _SETUP.pack(*grid, self.num_threads, 1, 1, self.smem_bytes)


class Frame:
    """Buffer of a launch: the parameters, and after them the configuration.

    It serves one launch at a time; the driver has copied all of it when the call returns.

    view: the buffer, as `struct` packs into it.  params, config: the driver's pointers to it.
    """

    def __init__(self, size: int, offsets: Sequence[int], setup: Setup) -> None:
        self.setup = setup
        self.head = head_offset(size)
        total = self.head + _HEAD.size + _TAIL.size + _ATTRIBUTE.size
        self.buffer = ctypes.create_string_buffer(total + ALIGN_BYTES)
        skipped = -ctypes.addressof(self.buffer) % ALIGN_BYTES
        self.start = ctypes.addressof(self.buffer) + skipped
        self.view = memoryview(self.buffer)[skipped:]
        pointers = [self.start + offset for offset in offsets]
        self.pointers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        self.address = ctypes.addressof(self.pointers) if pointers else 0
        self.params, self.config = pointer(self.address or None), pointer(self.start + self.head)
        if setup.pdl:
            tail = self.head + _HEAD.size
            attribute = tail + _TAIL.size
            _ATTRIBUTE.pack_into(self.view, attribute, PROGRAMMATIC_STREAM_SERIALIZATION, 1)
            _TAIL.pack_into(self.view, tail, self.start + attribute, 1)

    def aim(self, grid: tuple[int, int, int], stream: int) -> None:
        """Sets the grid and the stream of the next launch."""
        _HEAD.pack_into(self.view, self.head, self.setup.head(grid), stream)

    @property
    def grid(self) -> tuple[int, int, int]:
        """The grid of the last launch."""
        x, y, z, *_ = _SETUP.unpack_from(self.view, self.head)
        return x, y, z

    def bytes_at(self, offset: int, size: int) -> bytes:
        """Part of the buffer, for tests and debugging."""
        return bytes(self.view[offset : offset + size])


def head_offset(size: int) -> int:
    """Where the configuration starts after parameters of so many bytes."""
    return size + -size % 8


def call_of(function: Any) -> Any:
    """A kernel as an argument of a driver call."""
    return pointer(int(function))
