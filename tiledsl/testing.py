"""Timing and comparing, under the names that Triton's users know."""

from __future__ import annotations

from typing import Any

from tiledsl.runtime.interop import assert_close_arrays
from tiledsl.runtime.timing import do_bench

__all__ = ["assert_close", "do_bench"]


def assert_close(x: Any, y: Any, atol: float | None = None, rtol: float | None = None) -> None:
    """Raises AssertionError unless two tensors (or what becomes one) are close.

    atol, rtol: absolute 1e-2 and relative 0 unless given.
    """
    assert_close_arrays(x, y, 1e-2 if atol is None else atol, 0.0 if rtol is None else rtol)
