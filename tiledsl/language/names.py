"""The names that kernels use, one a line: `import tiledsl.language as tl` gives them."""

from __future__ import annotations

from tiledsl.dtypes import DType as dtype  # noqa: N813
from tiledsl.dtypes import bfloat16
from tiledsl.dtypes import float8e4b8
from tiledsl.dtypes import float8e4b15
from tiledsl.dtypes import float8e4nv
from tiledsl.dtypes import float8e5
from tiledsl.dtypes import float8e5b16
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
from tiledsl.ir.host_functions import cdiv
from tiledsl.ir.markers import Auto
from tiledsl.ir.markers import PropagateNan
from tiledsl.ir.markers import Tensor
from tiledsl.ir.markers import TensorList
from tiledsl.ir.markers import auto
from tiledsl.ir.markers import constexpr
from tiledsl.ir.markers import tensor
from tiledsl.ir.markers import tensor_descriptor
from tiledsl.ir.ops.atomic_functions import atomic_add
from tiledsl.ir.ops.atomic_functions import atomic_and
from tiledsl.ir.ops.atomic_functions import atomic_cas
from tiledsl.ir.ops.atomic_functions import atomic_max
from tiledsl.ir.ops.atomic_functions import atomic_min
from tiledsl.ir.ops.atomic_functions import atomic_or
from tiledsl.ir.ops.atomic_functions import atomic_xchg
from tiledsl.ir.ops.atomic_functions import atomic_xor
from tiledsl.ir.ops.block_functions import advance
from tiledsl.ir.ops.block_functions import load_tensor_descriptor
from tiledsl.ir.ops.block_functions import make_block_ptr
from tiledsl.ir.ops.block_functions import make_tensor_descriptor
from tiledsl.ir.ops.block_functions import store_tensor_descriptor
from tiledsl.ir.ops.control import range
from tiledsl.ir.ops.control import static_range
from tiledsl.ir.ops.debug import device_assert
from tiledsl.ir.ops.debug import device_print
from tiledsl.ir.ops.elementwise_functions import abs
from tiledsl.ir.ops.elementwise_functions import assume
from tiledsl.ir.ops.elementwise_functions import cast
from tiledsl.ir.ops.elementwise_functions import ceil
from tiledsl.ir.ops.elementwise_functions import clamp
from tiledsl.ir.ops.elementwise_functions import cos
from tiledsl.ir.ops.elementwise_functions import erf
from tiledsl.ir.ops.elementwise_functions import exp
from tiledsl.ir.ops.elementwise_functions import exp2
from tiledsl.ir.ops.elementwise_functions import floor
from tiledsl.ir.ops.elementwise_functions import fma
from tiledsl.ir.ops.elementwise_functions import log
from tiledsl.ir.ops.elementwise_functions import log2
from tiledsl.ir.ops.elementwise_functions import maximum
from tiledsl.ir.ops.elementwise_functions import minimum
from tiledsl.ir.ops.elementwise_functions import rsqrt
from tiledsl.ir.ops.elementwise_functions import sigmoid
from tiledsl.ir.ops.elementwise_functions import sin
from tiledsl.ir.ops.elementwise_functions import sqrt
from tiledsl.ir.ops.elementwise_functions import tanh
from tiledsl.ir.ops.elementwise_functions import where
from tiledsl.ir.ops.elementwise_hints import max_constancy
from tiledsl.ir.ops.elementwise_hints import max_contiguous
from tiledsl.ir.ops.elementwise_hints import multiple_of
from tiledsl.ir.ops.elementwise_library import add
from tiledsl.ir.ops.elementwise_library import div_rn
from tiledsl.ir.ops.elementwise_library import fdiv
from tiledsl.ir.ops.elementwise_library import get_int_dtype
from tiledsl.ir.ops.elementwise_library import logical_and
from tiledsl.ir.ops.elementwise_library import logical_or
from tiledsl.ir.ops.elementwise_library import mul
from tiledsl.ir.ops.elementwise_library import sqrt_rn
from tiledsl.ir.ops.elementwise_library import sub
from tiledsl.ir.ops.elementwise_library import umulhi
from tiledsl.ir.ops.elementwise_random import pair_uniform_to_normal
from tiledsl.ir.ops.elementwise_random import philox
from tiledsl.ir.ops.elementwise_random import rand
from tiledsl.ir.ops.elementwise_random import rand4x
from tiledsl.ir.ops.elementwise_random import randint
from tiledsl.ir.ops.elementwise_random import randint4x
from tiledsl.ir.ops.elementwise_random import randn
from tiledsl.ir.ops.elementwise_random import randn4x
from tiledsl.ir.ops.elementwise_random import uint_to_uniform_float
from tiledsl.ir.ops.mma import dot
from tiledsl.ir.ops.mma_scaled import dot_scaled
from tiledsl.ir.ops.pointer_functions import debug_barrier
from tiledsl.ir.ops.pointer_functions import load
from tiledsl.ir.ops.pointer_functions import pointer_type
from tiledsl.ir.ops.pointer_functions import store
from tiledsl.ir.ops.program import num_programs
from tiledsl.ir.ops.program import program_id
from tiledsl.ir.ops.program import static_assert
from tiledsl.ir.ops.program import static_print
from tiledsl.ir.ops.program import swizzle2d
from tiledsl.ir.ops.reduce_functions import argmax
from tiledsl.ir.ops.reduce_functions import argmin
from tiledsl.ir.ops.reduce_functions import max
from tiledsl.ir.ops.reduce_functions import min
from tiledsl.ir.ops.reduce_functions import reduce
from tiledsl.ir.ops.reduce_functions import reduce_or
from tiledsl.ir.ops.reduce_functions import sum
from tiledsl.ir.ops.reduce_functions import xor_sum
from tiledsl.ir.ops.scan import associative_scan
from tiledsl.ir.ops.scan import cumprod
from tiledsl.ir.ops.scan import cumsum
from tiledsl.ir.ops.sort import bitonic_merge
from tiledsl.ir.ops.sort import sort
from tiledsl.ir.ops.sort import topk
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
from tiledsl.ir.ops.tile_asm import inline_asm_elementwise
from tiledsl.ir.ops.tile_asm import map_elementwise
from tiledsl.ir.ops.tile_functions import broadcast
from tiledsl.ir.ops.tile_functions import cat
from tiledsl.ir.ops.tile_functions import flip
from tiledsl.ir.ops.tile_functions import gather
from tiledsl.ir.ops.tile_functions import histogram
from tiledsl.ir.ops.tile_functions import interleave
from tiledsl.ir.ops.tile_functions import join
from tiledsl.ir.ops.tile_functions import softmax
from tiledsl.ir.ops.tile_functions import split
from tiledsl.ir.ops.tile_functions import squeeze
from tiledsl.ir.ops.tile_functions import unsqueeze
from tiledsl.ir.ops.tile_functions import view
from tiledsl.language import extra
from tiledsl.language import math
from tiledsl.language import standard

__all__ = [
    "Auto",
    "PropagateNan",
    "Tensor",
    "TensorList",
    "abs",
    "add",
    "advance",
    "arange",
    "argmax",
    "argmin",
    "associative_scan",
    "assume",
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_xchg",
    "atomic_xor",
    "auto",
    "bfloat16",
    "bitonic_merge",
    "broadcast",
    "broadcast_to",
    "cast",
    "cat",
    "cdiv",
    "ceil",
    "clamp",
    "constexpr",
    "cos",
    "cumprod",
    "cumsum",
    "debug_barrier",
    "device_assert",
    "device_print",
    "div_rn",
    "dot",
    "dot_scaled",
    "dtype",
    "erf",
    "exp",
    "exp2",
    "expand_dims",
    "extra",
    "fdiv",
    "flip",
    "float8e4b8",
    "float8e4b15",
    "float8e4nv",
    "float8e5",
    "float8e5b16",
    "float16",
    "float32",
    "float64",
    "floor",
    "fma",
    "full",
    "full_like",
    "gather",
    "get_int_dtype",
    "histogram",
    "inline_asm_elementwise",
    "int1",
    "int8",
    "int16",
    "int32",
    "int64",
    "interleave",
    "join",
    "load",
    "load_tensor_descriptor",
    "log",
    "log2",
    "logical_and",
    "logical_or",
    "make_block_ptr",
    "make_tensor_descriptor",
    "map_elementwise",
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
    "pair_uniform_to_normal",
    "permute",
    "philox",
    "pointer_type",
    "program_id",
    "rand",
    "rand4x",
    "randint",
    "randint4x",
    "randn",
    "randn4x",
    "range",
    "ravel",
    "reduce",
    "reduce_or",
    "reshape",
    "rsqrt",
    "sigmoid",
    "sin",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "sqrt_rn",
    "squeeze",
    "standard",
    "static_assert",
    "static_print",
    "static_range",
    "store",
    "store_tensor_descriptor",
    "sub",
    "sum",
    "swizzle2d",
    "tanh",
    "tensor",
    "tensor_descriptor",
    "topk",
    "trans",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "uint_to_uniform_float",
    "umulhi",
    "unsqueeze",
    "view",
    "where",
    "xor_sum",
    "zeros",
    "zeros_like",
]
