"""Arguments of an emulated launch: guarded copies of arrays, and the bytes of each parameter."""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never
from typing import cast

import numpy as np

from tiledsl.codegen.module import GridParam
from tiledsl.codegen.module import LaunchSlotParam
from tiledsl.codegen.module import Param
from tiledsl.codegen.module import PointerParam
from tiledsl.codegen.module import ScalarParam
from tiledsl.codegen.module import ShapeParam
from tiledsl.codegen.module import StrideParam
from tiledsl.codegen.module import TensorMapParam
from tiledsl.dtypes import DType
from tiledsl.emulate.errors import EmulationFault
from tiledsl.errors import LaunchError
from tiledsl.ir.specs import product_in
from tiledsl.runtime.tensor_map import map_facts

__all__ = ["Arguments", "GuardedArray", "tensor_map_bytes"]

GUARD_BYTES = 4096
CANARY = 0xCB
MAP_MAGIC = 0x70616D54
MAP_BYTES = 128
ALIGN_BYTES = 256
LEAST_ADDRESS, MOST_ADDRESS = 1 << 32, 1 << 47
"""Of the host's memory."""
_MAP_TYPES = {
    "i1": 0, "i8": 0, "u8": 0, "e4m3": 0, "e5m2": 0, "i16": 1, "u16": 1, "u32": 2, "i32": 3,
    "u64": 4, "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9,
}  # fmt: skip
_SCALARS = {
    "i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I",
    "u64": "Q", "f32": "f", "f64": "d",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GuardedArray:
    """A copy of an array, of the same strides, in a buffer of canary bytes.

    Canary bytes lie before and after the array and in the gaps that its strides leave.
    """

    original: np.ndarray
    buffer: np.ndarray
    view: np.ndarray
    gaps: np.ndarray

    @staticmethod
    def of(array: np.ndarray) -> GuardedArray:
        """A guarded copy; the address keeps its remainder by 256."""
        low, high = _extent(array)
        buffer = np.full(2 * GUARD_BYTES + ALIGN_BYTES + high - low, CANARY, np.uint8)
        base = array.__array_interface__["data"][0] + low
        start = GUARD_BYTES + (base - (buffer.ctypes.data + GUARD_BYTES)) % ALIGN_BYTES
        view = _like(array, buffer, start - low)
        gaps = np.ones(buffer.shape, np.bool_)
        if array.size:
            for byte in range(array.itemsize):
                place = start - low + byte
                np.ndarray(array.shape, np.bool_, gaps, place, array.strides)[...] = False
        view[...] = array
        return GuardedArray(array, buffer, view, gaps)

    @property
    def address(self) -> int:
        return int(self.view.__array_interface__["data"][0])

    def finish(self, name: str) -> None:
        """Copies the result back.

        Raises:
            EmulationFault: bytes outside the array were written.
        """
        wrong = np.flatnonzero((self.buffer != CANARY) & self.gaps)
        if wrong.size:
            first = self.buffer.ctypes.data + int(wrong[0]) - self.address
            raise EmulationFault(
                f"{wrong.size} bytes outside argument {name} were written, "
                f"the first at byte {first} of it"
            )
        if self.original.flags.writeable and self.original.size:
            self.original[...] = self.view


class Arguments:
    """The parameters of one launch in memory.

    pointers: what the kernel's entry takes; valid as long as the object lives.
    """

    def __init__(
        self, params: tuple[Param, ...], args: Mapping[str, object], user_grid: tuple[int, int, int]
    ) -> None:
        self._arrays: dict[str, GuardedArray] = {}
        self._args = args
        self._grid = user_grid
        parts: list[bytes] = []
        for param in params:
            if param.name:
                parts.append(self._bytes(param))
            else:
                parts[-1] += self._bytes(param)  # of the table before it
        self._buffers = [_aligned(part) for part in parts]
        addresses = [buffer.ctypes.data for buffer in self._buffers]
        self.pointers = (ctypes.c_void_p * max(1, len(addresses)))(*addresses)

    def regions(self) -> list[tuple[int, int, str]]:
        """First byte, end and name of each array, as the kernel sees them."""
        out: list[tuple[int, int, str]] = []
        for name, array in self._arrays.items():
            low, high = _extent(array.view) if array.view.size else (0, 0)
            out.append((array.address + low, array.address + high, name))
        return out

    def tables(self) -> list[int]:
        """What arrays of 64-bit integers hold and may be addresses, in order."""
        found: set[int] = set()
        for array in self._arrays.values():
            if array.view.dtype.kind in "iu" and array.view.itemsize == 8:
                high = array.view[(array.view > LEAST_ADDRESS) & (array.view < MOST_ADDRESS)]
                found.update(int(x) for x in high.ravel())
        return sorted(found)

    def finish(self) -> None:
        """Copies results back. Raises EmulationFault for writes outside of an argument."""
        for name, array in self._arrays.items():
            array.finish(name)

    def _bytes(self, param: Param) -> bytes:
        match param:
            case GridParam():
                return struct.pack("<i", self._grid[param.axis])
            case LaunchSlotParam():
                return struct.pack("<i", 0)
            case ScalarParam():
                return _scalar_bytes(param.dtype, self._value(param.arg))
            case PointerParam():
                is_none = self._value(param.arg) is None
                return struct.pack("<Q", 0 if is_none else self._array(param.arg).address)
            case ShapeParam():
                return struct.pack("<q", self._array(param.arg).view.shape[param.dim])
            case StrideParam():
                return struct.pack("<q", _strides(self._array(param.arg).view)[param.dim])
            case TensorMapParam():
                array = self._array(param.arg)
                shape, strides = array.view.shape, _strides(array.view)
                if param.shape:
                    shape, strides = self._numbers(param.shape), self._numbers(param.strides)
                return tensor_map_bytes(param, array.address, shape, strides)
            case _:
                assert_never(param)

    def _numbers(self, items: tuple[int | str, ...]) -> tuple[int, ...]:
        """Extents or strides of a tensor that a pointer points to."""

        def number(name: str) -> int:
            return max(1, operator.index(cast("int", self._value(name))))

        return tuple(product_in(item, number) for item in items)

    def _value(self, name: str) -> object:
        if name not in self._args:
            raise LaunchError(f"argument {name} is missing")
        return self._args[name]

    def _array(self, name: str) -> GuardedArray:
        if name not in self._arrays:
            value = self._value(name)
            if not isinstance(value, np.ndarray):
                raise LaunchError(f"argument {name}: expected an array, got {type(value).__name__}")
            array = cast("np.ndarray", value)
            same = [a for a in self._arrays.values() if _is_same(a.original, array)]
            self._arrays[name] = same[0] if same else GuardedArray.of(array)
        return self._arrays[name]


def tensor_map_bytes(
    param: TensorMapParam, address: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> bytes:
    """The emulation's stand-in for the 128 bytes of a tensor map (MapFacts in bulk.cpp).

    Raises:
        LaunchError: TMA cannot describe the tensor.
    """
    if 0 in shape and param.in_table:
        return bytes(MAP_BYTES)
    facts = map_facts(param, address, shape, strides)
    rank = len(facts.extents)
    head = struct.pack(
        "<I4BQ",
        MAP_MAGIC,
        _MAP_TYPES[facts.dtype.name],
        rank,
        facts.swizzle_bytes,
        facts.dtype.bytes,
        facts.ptr,
    )
    extents = struct.pack("<5Q", *facts.extents, *[1] * (5 - rank))
    pitches = struct.pack("<4Q", *facts.pitches_bytes, *[0] * (4 - len(facts.pitches_bytes)))
    box = struct.pack("<5H", *facts.box, *[1] * (5 - rank))
    return (head + extents + pitches + box).ljust(MAP_BYTES, b"\0")


def _scalar_bytes(dtype: DType, value: object) -> bytes:
    if dtype.name in _SCALARS:
        return struct.pack(f"<{_SCALARS[dtype.name]}", value)
    return np.asarray(value, np.float64).astype(dtype.numpy).tobytes()


def _aligned(data: bytes) -> np.ndarray:
    """The bytes at a multiple of 64, which tensor maps need."""
    buffer = np.zeros(len(data) + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    out = buffer[start : start + len(data)]
    out[:] = np.frombuffer(data, np.uint8)
    return out


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arguments are one array."""
    places = [(x.__array_interface__["data"][0], x.shape, x.strides, x.dtype) for x in (a, b)]
    return places[0] == places[1]


def _strides(array: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


def _extent(array: np.ndarray) -> tuple[int, int]:
    """First and last byte of the array, relative to its first element."""
    if not array.size:
        return 0, array.itemsize
    reach = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + array.itemsize


def _like(array: np.ndarray, buffer: np.ndarray, offset: int) -> np.ndarray:
    return np.ndarray(array.shape, array.dtype, buffer, offset, array.strides)
