"""The functions of `tl` on `bounds.Tile`s: values in fp64, and how errors go through them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tiledsl import dtypes
from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.fuzz.bounds import DOT_ULPS
from tiledsl.fuzz.bounds import Tile
from tiledsl.fuzz.bounds import flags
from tiledsl.fuzz.bounds import tile


def dot(a: Tile, b: Tile, acc: Tile | None = None, **options: Any) -> Tile:
    """A product; tensor cores round its sums."""
    a_size, b_size = np.abs(a.value), np.abs(b.value)
    with np.errstate(all="ignore"):
        value = a.value @ b.value
        error = a_size @ b.error + a.error @ b_size + a.error @ b.error
        if a.dtype.is_float:
            ulps = DOT_ULPS[a.dtype.bits]
            if options.get("input_precision") == "tf32":
                ulps = 2.0**-9
            depth = max(1.0, math.sqrt(a.shape[-1] / 16))
            error = error + ulps * depth * (a_size @ b_size)
    made = Tile(value, error, int32 if a.dtype.is_int else float32)
    return made if acc is None else made + acc


def where(condition: Any, x: Any, y: Any) -> Tile:
    """A choice; where the condition is unsure, either operand."""
    c = flags(condition)
    plain = int32 if isinstance(x, int) and isinstance(y, int) else float32
    a = tile(x, y.dtype if isinstance(y, Tile) else plain)
    b = tile(y, a.dtype)
    with np.errstate(all="ignore"):
        value = np.where(c.value, a.value, b.value)
        error = np.where(c.value, a.error, b.error)
        either = np.maximum(a.error, b.error) + np.abs(a.value - b.value)
        error = np.where(c.unsure, either, error)
    return Tile(value, error, dtypes.promote(a.dtype, b.dtype), 0.0)


def extremum(how: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """The larger or the smaller of two, numbers or tiles."""

    def run(x: Any, y: Any) -> Any:
        if not isinstance(x, Tile) and not isinstance(y, Tile):
            return int(how(x, y)) if isinstance(x, int) else float(how(x, y))
        a = tile(x, y.dtype if isinstance(y, Tile) else None)
        b = tile(y, a.dtype)
        value = how(a.value, b.value)
        return Tile(value, np.maximum(a.error, b.error), dtypes.promote(a.dtype, b.dtype), 0.0)

    return run


def function(
    how: Callable[[Any], Any], slope: Callable[[Any, Any], Any], ulps: float = 8.0
) -> Callable[[Any], Tile]:
    """A function of one operand. slope: bound of its derivative where the value may be."""

    def run(x: Any) -> Tile:
        a = tile(x)
        with np.errstate(all="ignore"):
            value = how(a.value)
            error = np.where(a.error == 0, 0.0, slope(a.value, a.error) * a.error)
        return Tile(value, error, a.dtype if a.dtype.is_float else float32, ulps)

    return run


def exponential(base: float) -> Callable[[Any], Tile]:
    """The power of a base."""
    scale = math.log(base)

    def run(x: Any) -> Tile:
        a = tile(x)
        with np.errstate(all="ignore"):
            value = np.exp(a.value * scale)
            size = np.where(np.isfinite(a.value), np.abs(a.value), 0.0)
            error = value * np.expm1(scale * a.error + 2.0**-22 * (2 + size))
        return Tile(value, np.where(value == 0, 1e-36, error), a.dtype)

    return run


def _inverse_root(x: Any) -> Any:
    return 1 / np.sqrt(x)


def _logistic(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _low(x: Any, error: Any) -> Any:
    """The smallest value that a positive operand may have."""
    return np.where(x > error, x - error, np.nan)


def sum_(x: Tile, axis: int | None = None) -> Tile:
    """The sum along an axis."""
    value = np.sum(x.value, axis)
    error = np.sum(x.error, axis)
    if x.dtype.is_float:
        count = x.value.size / max(1, value.size)
        total = np.sum(np.abs(x.value), axis)
        error = error + unit_of(x.dtype) * max(4.0, math.sqrt(count)) * total
    return Tile(value, error, x.dtype if x.dtype.is_float else int32)


def unit_of(dtype: DType) -> float:
    """Relative rounding of sums in a dtype."""
    return {"bf16": 2.0**-8, "f16": 2.0**-11}.get(dtype.name, 2.0**-24)


def over(how: Callable[..., Any]) -> Callable[..., Tile]:
    """The largest or smallest along an axis."""

    def run(x: Tile, axis: int | None = None) -> Tile:
        value = how(x.value, axis)
        return Tile(value, np.max(x.error, axis), x.dtype, 0.0)

    return run


def cumsum(x: Tile, axis: int = 0) -> Tile:
    """Running sums."""
    made = np.cumsum(np.abs(x.value), axis)
    error = np.cumsum(x.error, axis) + unit_of(x.dtype) * 8 * made * x.dtype.is_float
    return Tile(np.cumsum(x.value, axis), error, x.dtype)


log = function(np.log, lambda x, e: 1 / _low(x, e))
sqrt = function(np.sqrt, lambda x, e: 0.5 / np.sqrt(_low(x, e)))
rsqrt = function(_inverse_root, lambda x, e: 0.5 * _low(x, e) ** -1.5)
abs_ = function(np.abs, lambda x, e: 1.0, 0.0)
sigmoid = function(_logistic, lambda x, e: 0.25)
tanh = function(np.tanh, lambda x, e: 1.0)
