"""Integer helpers for host code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])


def cdiv(a: int, b: int) -> int:
    """a / b rounded up."""
    return int(-(-a // b))


def constexpr_function(fn: Function) -> Function:
    """Accepted: kernels call any Python function on compile-time values."""
    return fn


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n (1 for n < 1)."""
    return 1 << (int(n) - 1).bit_length() if n > 1 else 1
