"""Evaluates a kernel's text in fp64, apart from the compiler: Python runs it on `bounds.Tile`s.

The names of `tl` that generated kernels use are given here a second time, as plain numpy.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from tiledsl import dtypes
from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.fuzz import functions
from tiledsl.fuzz.bounds import Tile
from tiledsl.fuzz.bounds import flags
from tiledsl.fuzz.bounds import tile


class Memory:
    """The buffer of an argument, guards included: values and bounds, flat."""

    def __init__(self, value: np.ndarray, dtype: DType) -> None:
        self.value = value.astype(np.float64)
        self.error = np.zeros_like(self.value)
        self.dtype = dtype


class Tensor:
    """A `tl.Tensor` argument: a strided window of a buffer."""

    def __init__(
        self, memory: Memory, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
    ) -> None:
        self.shape, self.dtype = shape, memory.dtype
        self._strides = strides
        steps = tuple(s * 8 for s in strides)
        self.value = as_strided(memory.value[offset:], shape, steps)
        self.error = as_strided(memory.error[offset:], shape, steps)

    def stride(self, dim: int) -> int:
        return self._strides[dim]

    def _windows(self, offsets: Any, block: tuple[int, ...]) -> tuple[Any, Any]:
        outer: list[slice] = []
        inner: list[slice] = []
        for n, at, size in zip(self.shape, map(int, offsets), block, strict=True):
            low, high = min(max(at, 0), n), max(min(at + size, n), 0)
            high = max(low, high)
            outer.append(slice(low, high))
            inner.append(slice(low - at, high - at) if high > low else slice(0, 0))
        return tuple(outer), tuple(inner)

    def load(self, offsets: Any, block_shape: Any) -> Tile:
        shape = tuple(map(int, block_shape))
        whole = (1,) * (len(self.shape) - len(shape)) + shape
        outer, inner = self._windows(offsets, whole)
        made = Tile(np.zeros(whole), 0.0, self.dtype)
        made.value[inner], made.error[inner] = self.value[outer], self.error[outer]
        return made.reshape(shape)

    def store(self, offsets: Any, value: Any) -> None:
        made = tile(value).to(self.dtype)
        whole = made.reshape((1,) * (len(self.shape) - made.value.ndim) + made.shape)
        outer, inner = self._windows(offsets, whole.shape)
        self.value[outer], self.error[outer] = whole.value[inner], whole.error[inner]


class Pointer:
    """Elements of a buffer by index."""

    __array_ufunc__ = None

    def __init__(self, memory: Memory, index: Any) -> None:
        self.memory, self.index = memory, index

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=self.memory.dtype)

    def __add__(self, other: Any) -> Pointer:
        step = tile(other).value.astype(np.int64)
        return Pointer(self.memory, self.index + step)

    __radd__ = __add__


# ---------------------------------------------------------------------- loads and stores
def _load(pointer: Pointer, mask: Any = None, other: Any = 0.0) -> Tile:
    keep = np.broadcast_to(True if mask is None else flags(mask).value, np.shape(pointer.index))
    at = np.where(keep, pointer.index, 0)
    memory = pointer.memory
    value = np.where(keep, memory.value[at], float(other))
    return Tile(value, np.where(keep, memory.error[at], 0.0), memory.dtype, 0.0)


def _store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    made = tile(value).to(pointer.memory.dtype)
    at, keep = np.broadcast_arrays(pointer.index, True if mask is None else flags(mask).value)
    pointer.memory.value[at[keep]] = np.broadcast_to(made.value, at.shape)[keep]
    pointer.memory.error[at[keep]] = np.broadcast_to(made.error, at.shape)[keep]


class Language:
    """The module `tl` as one program sees it."""

    Tensor = Tensor
    TensorList = list
    constexpr = int
    load = staticmethod(_load)
    store = staticmethod(_store)
    dot = staticmethod(functions.dot)
    where = staticmethod(functions.where)
    maximum = staticmethod(functions.extremum(np.maximum))
    minimum = staticmethod(functions.extremum(np.minimum))
    exp = staticmethod(functions.exponential(math.e))
    exp2 = staticmethod(functions.exponential(2.0))
    log = staticmethod(functions.log)
    sqrt = staticmethod(functions.sqrt)
    rsqrt = staticmethod(functions.rsqrt)
    abs = staticmethod(functions.abs_)
    sigmoid = staticmethod(functions.sigmoid)
    tanh = staticmethod(functions.tanh)
    sum = staticmethod(functions.sum_)
    max = staticmethod(functions.over(np.max))
    min = staticmethod(functions.over(np.min))
    cumsum = staticmethod(functions.cumsum)

    def __init__(self, program: tuple[int, ...], grid: tuple[int, ...]) -> None:
        self._program, self._grid = program, grid

    def __getattr__(self, name: str) -> DType:
        """A dtype."""
        return dtypes.BY_USER_NAME[name]

    def program_id(self, axis: int) -> int:
        return self._program[axis]

    def num_programs(self, axis: int) -> int:
        return self._grid[axis]

    def arange(self, low: int, high: int) -> Tile:
        return Tile(np.arange(low, high), 0.0, int32)

    def zeros(self, shape: tuple[int, ...], dtype: DType) -> Tile:
        return Tile(np.zeros(shape), 0.0, dtype)

    def full(self, shape: tuple[int, ...], value: float, dtype: DType) -> Tile:
        return Tile(np.full(shape, float(value)), 0.0, dtype)

    def cdiv(self, a: int, b: int) -> int:
        return -(-a // b)

    def range(self, *bounds: Any, **_: Any) -> range:
        return builtins.range(*map(int, bounds))

    def trans(self, x: Tile) -> Tile:
        return x.T

    def reshape(self, x: Tile, shape: tuple[int, ...]) -> Tile:
        return x.reshape(shape)

    def gather(self, x: Tile, index: Tile, axis: int) -> Tile:
        at = index.value.astype(np.int64)
        return x.moved(lambda a: np.take_along_axis(a, at, axis))


def evaluate(source: str, arguments: Mapping[str, Any], grid: tuple[int, int, int]) -> None:
    """Runs the first function of a text for every program; results go into the arguments."""
    text = source[source.index("def ") :]
    name = text[4 : text.index("(")]
    code = compile(text, "<kernel>", "exec")
    for z, y, x in product(*map(range, reversed(grid))):
        tl = Language((x, y, z), grid)
        names: dict[str, Any] = {"tl": tl, "min": tl.minimum, "max": tl.maximum}
        exec(code, names)
        names[name](**arguments)


def unknown(x: Tile | Memory) -> np.ndarray:
    """Elements of which nothing can be said."""
    return ~np.isfinite(x.error) | np.isnan(x.value)
