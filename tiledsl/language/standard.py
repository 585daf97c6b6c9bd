"""`tl.standard`: compositions by their module, and helpers that kernels reach there."""

from __future__ import annotations

from tiledsl.errors import TypeMismatch
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.host_functions import cdiv
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.ops.elementwise_functions import sigmoid
from tiledsl.ir.ops.program import swizzle2d
from tiledsl.ir.ops.reduce_functions import argmax
from tiledsl.ir.ops.reduce_functions import argmin
from tiledsl.ir.ops.reduce_functions import max
from tiledsl.ir.ops.reduce_functions import min
from tiledsl.ir.ops.reduce_functions import reduce_or
from tiledsl.ir.ops.reduce_functions import sum
from tiledsl.ir.ops.reduce_functions import xor_sum
from tiledsl.ir.ops.scan import cumprod
from tiledsl.ir.ops.scan import cumsum
from tiledsl.ir.ops.sort import bitonic_merge
from tiledsl.ir.ops.sort import sort
from tiledsl.ir.ops.sort import topk
from tiledsl.ir.ops.tile import ravel
from tiledsl.ir.ops.tile import zeros
from tiledsl.ir.ops.tile import zeros_like
from tiledsl.ir.ops.tile_functions import flip
from tiledsl.ir.ops.tile_functions import interleave
from tiledsl.ir.ops.tile_functions import softmax
from tiledsl.ir.ops.tile_functions import squeeze
from tiledsl.ir.ops.tile_functions import unsqueeze

__all__ = [
    "argmax", "argmin", "bitonic_merge", "cdiv", "cumprod", "cumsum", "flip", "interleave", "max",
    "min", "ravel", "reduce_or", "sigmoid", "softmax", "sort", "squeeze", "sum", "swizzle2d",
    "topk", "unsqueeze", "xor_sum", "zeros", "zeros_like",
]  # fmt: skip


def _host_log2(i: int) -> int:
    if i < 1 or i & (i - 1):
        raise TypeMismatch(f"_log2(): expected a power of two, got {i}")
    return i.bit_length() - 1


@builtin(on_host=_host_log2)
def _log2(b: Builder, i: int) -> int:  # pyright: ignore[reportUnusedFunction]
    """Logarithm to base 2 of a power of two known at compile time."""
    del b
    return _host_log2(compile_time_int(i, "_log2(): i"))


def _host_is_power_of_two(i: int) -> bool:
    return i > 0 and i & (i - 1) == 0


@builtin(on_host=_host_is_power_of_two)
def _is_power_of_two(b: Builder, i: int) -> bool:  # pyright: ignore[reportUnusedFunction]
    """Whether a number known at compile time is a power of two."""
    del b
    return _host_is_power_of_two(compile_time_int(i, "_is_power_of_two(): i"))
