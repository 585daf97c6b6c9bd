"""Tiles in fp64 that know how far a result of the compiler's dtypes may be from them.

A `Tile` holds values as if nothing were ever rounded, and with each element a bound of the error
that rounding to the dtypes of the kernel makes, carried through every operation. An element that is
NaN, or whose bound is infinite, says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.dtypes import promote

Array = np.ndarray[Any, Any]

SLACK = 2.0
"""How much more than half a unit in the last place an operation may be off."""
DOT_ULPS = {8: 2.0**-11, 16: 2.0**-20, 32: 2.0**-18}
"""Relative error of a sum of products, by the operands' bits.

Tensor cores keep few bits of fp8 sums, and f32 is three TF32 products.
"""


def unit(dtype: DType) -> tuple[float, float, float]:
    """Relative error of one operation, absolute error near zero, largest value."""
    facts = {
        "f64": (0.0, 0.0, 1e300),
        "f32": (2.0**-24, 1e-36, 3e38),
        "bf16": (2.0**-8, 1e-36, 3e38),
        "f16": (2.0**-11, 2.0**-24, 65504.0),
        "e4m3": (2.0**-4, 2.0**-9, 448.0),
        "e5m2": (2.0**-3, 2.0**-16, 57344.0),
    }
    return facts[dtype.name]


class Tile:
    """Values, bounds and dtype of a tile or scalar."""

    __array_ufunc__ = None  # so that numpy leaves `array + tile` to the tile

    def __init__(self, value: Any, error: Any, dtype: DType, ulps: float = 1.0) -> None:
        self.dtype = dtype
        self.value: Array = np.asarray(value, np.float64)
        with np.errstate(all="ignore"):
            bound = np.broadcast_to(np.asarray(error, np.float64), self.value.shape).copy()
            if dtype.is_float:
                relative, absolute, top = unit(dtype)
                bound += SLACK * ulps * relative * np.abs(self.value)
                bound += absolute * (self.value != 0)
                bound[np.abs(self.value) + bound > top] = np.inf
            bound[np.isinf(self.value)] = 0.0
            bound[np.isnan(self.value) | np.isnan(bound)] = np.inf
        self.error: Array = bound

    # ------------------------------------------------------------------ what kernels ask of a tile
    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def T(self) -> Tile:
        return self.moved(lambda x: x.T)

    def moved(self, how: Callable[[Array], Array]) -> Tile:
        """The same elements in another order or shape."""
        out = Tile(0.0, 0.0, self.dtype)
        out.value, out.error = how(self.value), how(self.error)
        return out

    def __getitem__(self, index: Any) -> Tile:
        return self.moved(lambda x: x[index])

    def reshape(self, *shape: Any) -> Tile:
        return self.moved(lambda x: x.reshape(*shape))

    def to(self, dtype: DType) -> Tile:
        if self.dtype == dtype:
            return self
        if dtype.is_int and self.dtype.is_float:
            return Tile(np.trunc(self.value), np.ceil(self.error), dtype)
        exact = dtype.is_float and self.dtype.is_float and dtype.bits > self.dtype.bits
        return Tile(self.value, self.error, dtype, 0.0 if exact else 1.0)

    def __int__(self) -> int:
        assert not self.error.any()
        return int(self.value)

    __index__ = __int__

    # ------------------------------------------------------------------ arithmetic
    def __add__(self, other: Any) -> Tile:
        return apply(self, other, np.add, _sum_error)

    def __sub__(self, other: Any) -> Tile:
        return apply(self, other, np.subtract, _sum_error)

    def __mul__(self, other: Any) -> Tile:
        return apply(self, other, np.multiply, _product_error)

    def __truediv__(self, other: Any) -> Tile:
        return apply(self, other, np.divide, _quotient_error, wide=True)

    def __floordiv__(self, other: Any) -> Tile:
        return apply(self, other, _truncated_quotient, _no_error)

    def __mod__(self, other: Any) -> Tile:
        return apply(self, other, np.fmod, _no_error)

    def __radd__(self, other: Any) -> Tile:
        return self + other

    def __rmul__(self, other: Any) -> Tile:
        return self * other

    def __rsub__(self, other: Any) -> Tile:
        return tile(other, self.dtype) - self

    def __rtruediv__(self, other: Any) -> Tile:
        return tile(other, self.dtype) / self

    def __neg__(self) -> Tile:
        return self.moved(lambda x: x) * -1

    def __lt__(self, other: Any) -> Flags:
        return compare(self, other, np.less)

    def __le__(self, other: Any) -> Flags:
        return compare(self, other, np.less_equal)

    def __gt__(self, other: Any) -> Flags:
        return compare(self, other, np.greater)

    def __ge__(self, other: Any) -> Flags:
        return compare(self, other, np.greater_equal)

    def equals(self, other: Any) -> Flags:
        """`==` of the kernel."""
        return compare(self, other, np.equal)

    __eq__ = equals  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Flags:
    """A tile of bools; `unsure` where rounding may turn the answer."""

    __array_ufunc__ = None

    def __init__(self, value: Any, unsure: Any) -> None:
        self.value: Array = np.asarray(value, np.bool_)
        self.unsure: Array = np.broadcast_to(np.asarray(unsure, np.bool_), self.value.shape)

    def __getitem__(self, index: Any) -> Flags:
        return Flags(self.value[index], self.unsure[index])

    def __and__(self, other: Any) -> Flags:
        b = flags(other)
        return Flags(self.value & b.value, self.unsure | b.unsure)

    def __or__(self, other: Any) -> Flags:
        b = flags(other)
        return Flags(self.value | b.value, self.unsure | b.unsure)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Flags:
        return Flags(~self.value, self.unsure)


def flags(x: Any) -> Flags:
    """A bool as flags."""
    return x if isinstance(x, Flags) else Flags(np.asarray(bool(x)), False)


def tile(x: Any, like: DType | None = None) -> Tile:
    """A number as a tile: a Python number takes the dtype of the other operand."""
    if isinstance(x, Tile):
        return x
    if isinstance(x, Flags):
        return Tile(x.value, np.where(x.unsure, 1.0, 0.0), int32)
    if isinstance(x, int) or (like is not None and like.is_float):
        return Tile(float(x), 0.0, like or int32, 0.0 if like is None or like.is_int else 1.0)
    return Tile(float(x), 0.0, float32)


def apply(
    x: Any, y: Any, how: Callable[[Any, Any], Any], bound: Callable[..., Any], *, wide: bool = False
) -> Tile:
    """An operation of two operands. wide: a quotient of ints is f32."""
    a = tile(x, y.dtype if isinstance(y, Tile) else None)
    b = tile(y, a.dtype)
    dtype = promote(a.dtype, b.dtype)
    if wide and not dtype.is_float:
        dtype = float32
    with np.errstate(all="ignore"):
        value = how(a.value, b.value)
        error = bound(a, b, value)
        error = np.where(np.isnan(error) & np.isinf(value), 0.0, error)
    return Tile(value, error, dtype, 4.0 if wide else 1.0)


def _sum_error(a: Tile, b: Tile, _: Array) -> Array:
    return np.asarray(a.error + b.error)


def _no_error(a: Tile, b: Tile, value: Array) -> Array:
    del a, b
    return np.zeros_like(value)


def _truncated_quotient(a: Array, b: Array) -> Array:
    return np.trunc(a / b)


def _product_error(a: Tile, b: Tile, _: Array) -> Array:
    made = np.abs(a.value) * b.error + np.abs(b.value) * a.error + a.error * b.error
    return np.asarray(made)


def _quotient_error(a: Tile, b: Tile, value: Array) -> Array:
    low = np.abs(b.value) - b.error
    return np.where(low > 0, (a.error + np.abs(value) * b.error) / np.maximum(low, 1e-300), np.inf)


def compare(x: Tile, y: Any, how: Callable[[Any, Any], Any]) -> Flags:
    """A comparison; unsure where the bounds overlap."""
    b = tile(y, x.dtype)
    slack = x.error + b.error
    with np.errstate(all="ignore"):
        near = (np.abs(x.value - b.value) <= slack) & (slack > 0)
        near |= np.isnan(x.value) | np.isnan(b.value)
    return Flags(how(x.value, b.value), near)
