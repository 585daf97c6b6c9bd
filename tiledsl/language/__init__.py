"""The names that kernels use: `import tiledsl.language as tl`."""

from __future__ import annotations

from tiledsl.dtypes import DType as dtype  # noqa: N813
from tiledsl.dtypes import bfloat16
from tiledsl.dtypes import float8e4nv
from tiledsl.dtypes import float8e5
from tiledsl.dtypes import float16
from tiledsl.dtypes import float32
from tiledsl.dtypes import float64
from tiledsl.dtypes import int1
from tiledsl.dtypes import int8
from tiledsl.dtypes import int16
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.dtypes import uint8
from tiledsl.dtypes import uint16
from tiledsl.dtypes import uint32
from tiledsl.dtypes import uint64
from tiledsl.ir.markers import Auto
from tiledsl.ir.markers import PropagateNan
from tiledsl.ir.markers import Tensor
from tiledsl.ir.markers import auto
from tiledsl.ir.markers import constexpr
from tiledsl.ir.markers import tensor
from tiledsl.ir.ops.control import range
from tiledsl.ir.ops.control import static_range
from tiledsl.ir.ops.elementwise_functions import abs
from tiledsl.ir.ops.elementwise_functions import assume
from tiledsl.ir.ops.elementwise_functions import cast
from tiledsl.ir.ops.elementwise_functions import ceil
from tiledsl.ir.ops.elementwise_functions import clamp
from tiledsl.ir.ops.elementwise_functions import cos
from tiledsl.ir.ops.elementwise_functions import debug_barrier
from tiledsl.ir.ops.elementwise_functions import erf
from tiledsl.ir.ops.elementwise_functions import exp
from tiledsl.ir.ops.elementwise_functions import exp2
from tiledsl.ir.ops.elementwise_functions import floor
from tiledsl.ir.ops.elementwise_functions import fma
from tiledsl.ir.ops.elementwise_functions import log
from tiledsl.ir.ops.elementwise_functions import log2
from tiledsl.ir.ops.elementwise_functions import max_constancy
from tiledsl.ir.ops.elementwise_functions import max_contiguous
from tiledsl.ir.ops.elementwise_functions import maximum
from tiledsl.ir.ops.elementwise_functions import minimum
from tiledsl.ir.ops.elementwise_functions import multiple_of
from tiledsl.ir.ops.elementwise_functions import rsqrt
from tiledsl.ir.ops.elementwise_functions import sigmoid
from tiledsl.ir.ops.elementwise_functions import sin
from tiledsl.ir.ops.elementwise_functions import sqrt
from tiledsl.ir.ops.elementwise_functions import tanh
from tiledsl.ir.ops.elementwise_functions import where
from tiledsl.ir.ops.elementwise_library import add
from tiledsl.ir.ops.elementwise_library import div_rn
from tiledsl.ir.ops.elementwise_library import fdiv
from tiledsl.ir.ops.elementwise_library import logical_and
from tiledsl.ir.ops.elementwise_library import logical_or
from tiledsl.ir.ops.elementwise_library import mul
from tiledsl.ir.ops.elementwise_library import sqrt_rn
from tiledsl.ir.ops.elementwise_library import sub
from tiledsl.ir.ops.elementwise_library import umulhi
from tiledsl.ir.ops.mma import dot
from tiledsl.ir.ops.program import cdiv
from tiledsl.ir.ops.program import num_programs
from tiledsl.ir.ops.program import program_id
from tiledsl.ir.ops.program import static_assert
from tiledsl.ir.ops.program import static_print
from tiledsl.ir.ops.reduce_functions import argmax
from tiledsl.ir.ops.reduce_functions import argmin
from tiledsl.ir.ops.reduce_functions import max
from tiledsl.ir.ops.reduce_functions import min
from tiledsl.ir.ops.reduce_functions import reduce
from tiledsl.ir.ops.reduce_functions import reduce_or
from tiledsl.ir.ops.reduce_functions import sum
from tiledsl.ir.ops.reduce_functions import xor_sum
from tiledsl.ir.ops.tile import arange
from tiledsl.ir.ops.tile import broadcast_to
from tiledsl.ir.ops.tile import expand_dims
from tiledsl.ir.ops.tile import full
from tiledsl.ir.ops.tile import full_like
from tiledsl.ir.ops.tile import permute
from tiledsl.ir.ops.tile import ravel
from tiledsl.ir.ops.tile import reshape
from tiledsl.ir.ops.tile import trans
from tiledsl.ir.ops.tile import zeros
from tiledsl.ir.ops.tile import zeros_like
from tiledsl.language import extra
from tiledsl.language import math

__all__ = [
    "Auto",
    "PropagateNan",
    "Tensor",
    "abs",
    "add",
    "arange",
    "argmax",
    "argmin",
    "assume",
    "auto",
    "bfloat16",
    "broadcast_to",
    "cast",
    "cdiv",
    "ceil",
    "clamp",
    "constexpr",
    "cos",
    "debug_barrier",
    "div_rn",
    "dot",
    "dtype",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "extra",
    "fdiv",
    "float16",
    "float32",
    "float64",
    "float8e4nv",
    "float8e5",
    "floor",
    "fma",
    "full",
    "full_like",
    "int1",
    "int16",
    "int32",
    "int64",
    "int8",
    "log",
    "log2",
    "logical_and",
    "logical_or",
    "math",
    "max",
    "max_constancy",
    "max_contiguous",
    "maximum",
    "min",
    "minimum",
    "mul",
    "multiple_of",
    "num_programs",
    "permute",
    "program_id",
    "range",
    "ravel",
    "reduce",
    "reduce_or",
    "reshape",
    "rsqrt",
    "sigmoid",
    "sin",
    "sqrt",
    "sqrt_rn",
    "static_assert",
    "static_print",
    "static_range",
    "sub",
    "sum",
    "tanh",
    "tensor",
    "trans",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "umulhi",
    "where",
    "xor_sum",
    "zeros",
    "zeros_like",
]
