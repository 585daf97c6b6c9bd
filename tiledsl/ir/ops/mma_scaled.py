"""Products of block-scaled operands: microscaling formats, decoded to 16-bit tiles."""

from __future__ import annotations

import math

from tiledsl.dtypes import BY_NAME
from tiledsl.dtypes import DType
from tiledsl.dtypes import bfloat16
from tiledsl.dtypes import float16
from tiledsl.dtypes import float32
from tiledsl.dtypes import uint8
from tiledsl.dtypes import uint16
from tiledsl.errors import TypeMismatch
from tiledsl.ir import operators
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import describe
from tiledsl.ir.ops.elementwise import Bitcast
from tiledsl.ir.ops.elementwise_functions import where
from tiledsl.ir.ops.mma import dot
from tiledsl.ir.ops.tile import expand_dims
from tiledsl.ir.ops.tile import permute
from tiledsl.ir.ops.tile import reshape
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.ops.tile import trans
from tiledsl.ir.ops.tile_functions import join
from tiledsl.ir.types import TileType

FORMATS = ("e2m1", "e4m3", "e5m2", "bf16", "fp16")
NO_NUMBER = 255
"""The e8m0 scale that is NaN; others are 2**(scale - 127)."""


@builtin
def dot_scaled(
    b: Builder,
    lhs: Value,
    lhs_scale: Value | None,
    lhs_format: str,
    rhs: Value,
    rhs_scale: Value | None,
    rhs_format: str,
    acc: Value | None = None,
    fast_math: bool = False,
    lhs_k_pack: bool = True,
    rhs_k_pack: bool = True,
    out_dtype: DType = float32,
) -> Value:
    """The product of block-scaled tiles, plus `acc` when given.

    lhs: [M, K], rhs: [K, N] in one of the formats e2m1 (two in a uint8, the first in the low half,
    along K or, without k_pack, along M or N), e4m3, e5m2, bf16, fp16. lhs_scale: [M, K / group],
    rhs_scale: [N, K / group], uint8 exponents (e8m0: 2**(s - 127), 255 is NaN) or numbers
    of another dtype (8-bit floats, float32), which multiply as they are; None for no scales. The
    operands are decoded, scaled in float32, rounded to bfloat16 (float16 where a format is fp16)
    and multiplied as 16-bit tiles. fast_math: scales of 255 need not give NaN.
    """
    formats = [_format(f, side) for f, side in ((lhs_format, "lhs"), (rhs_format, "rhs"))]
    dtype = float16 if "fp16" in formats else bfloat16
    is_exact = not unwrap(fast_math)
    left = _decoded(b, lhs, formats[0], dtype, "lhs", packed_last=bool(unwrap(lhs_k_pack)))
    left = _scaled(b, left, unwrap(lhs_scale), dtype, "lhs", checks=is_exact)
    turned = trans.fn(b, _tile(rhs, "rhs"))
    right = _decoded(b, turned, formats[1], dtype, "rhs", packed_last=bool(unwrap(rhs_k_pack)))
    right = _scaled(b, right, unwrap(rhs_scale), dtype, "rhs", checks=is_exact)
    return dot.fn(b, left, trans.fn(b, right), unwrap(acc), out_dtype=out_dtype)


def _format(given: object, side: str) -> str:
    name = str(unwrap(given)).lower()
    if name not in FORMATS:
        raise TypeMismatch(f"dot_scaled(): {side}_format {name!r} is none of {', '.join(FORMATS)}")
    return name


def _tile(x: object, side: str) -> Value:
    if isinstance(x, Value) and isinstance(x.type, TileType) and x.type.rank == 2:
        return x
    raise TypeMismatch(f"dot_scaled(): {side} must be a tile of two axes, got {describe(x)}")


def _decoded(
    b: Builder, x: object, name: str, dtype: DType, side: str, *, packed_last: bool
) -> Value:
    """The operand [rows, K] as 16-bit floats, without its scales."""
    value = _tile(x, side)
    found = tile_type(value, "dot_scaled()").dtype
    if name == "e2m1":
        if found != uint8:
            raise TypeMismatch(f"dot_scaled(): {side} is e2m1 in uint8, got {found!r}")
        return as_value(b, _from_e2m1(b, value, packed_last=packed_last), dtype)
    wanted = BY_NAME[{"bf16": "bf16", "fp16": "f16"}.get(name, name)]
    if found == uint8 and wanted.is_fp8:
        value = b.value(Bitcast(value, wanted))
    elif found != wanted:
        raise TypeMismatch(f"dot_scaled(): {side} is {found!r}, but its format is {name}")
    return as_value(b, value, dtype)


def _from_e2m1(b: Builder, x: Value, *, packed_last: bool) -> Value:
    """Values of four bits (sign, two of exponent, one of mantissa) as bf16."""
    rows, columns = tile_type(x, "dot_scaled()").shape
    low, high = operators.binary(b, "&", x, 15), operators.binary(b, ">>", x, 4)
    pairs = join.fn(b, low, high)
    if packed_last:
        codes = reshape.fn(b, pairs, (rows, 2 * columns))
    else:
        codes = reshape.fn(b, permute.fn(b, pairs, (0, 2, 1)), (2 * rows, columns))
    wide = as_value(b, codes, uint16)
    sign = operators.binary(b, "<<", operators.binary(b, "&", wide, 8), 12)
    rest = operators.binary(b, "&", wide, 7)
    normal = operators.binary(b, "+", operators.binary(b, "<<", rest, 6), 126 << 7)
    half = operators.binary(b, "*", rest, 0x3F00)  # 0 or 0.5
    is_small = operators.compare(b, "<", rest, 2)
    bits = operators.binary(b, "|", sign, where.fn(b, is_small, half, normal))
    return b.value(Bitcast(bits, bfloat16))


def _scaled(
    b: Builder, x: Value, scale: Operand | None, dtype: DType, side: str, *, checks: bool
) -> Value:
    """The operand [rows, K] times its scales [rows, K / group]."""
    if scale is None:
        return x
    rows, K = tile_type(x, "dot_scaled()").shape
    s = _tile(scale, f"{side}_scale")
    got = tile_type(s, "dot_scaled()")
    if got.shape[0] != rows or K % got.shape[1]:
        raise TypeMismatch(
            f"dot_scaled(): {side}_scale has shape {list(got.shape)}, expected {rows} rows of a "
            f"divisor of K={K}"
        )
    factor = _exponents(b, s, checks=checks) if got.dtype == uint8 else as_value(b, s, float32)
    shape = (rows, got.shape[1], K // got.shape[1])
    spread = broadcast_value(b, expand_dims.fn(b, factor, 2), shape, "dot_scaled()")
    wide = as_value(b, x, float32)
    product = operators.binary(b, "*", wide, reshape.fn(b, spread, (rows, K)))
    return as_value(b, product, dtype)


def _exponents(b: Builder, s: Value, *, checks: bool) -> Value:
    """2**(s - 127) as f32."""
    wide = as_value(b, s, BY_NAME["u32"])
    bits = operators.binary(b, "<<", wide, 23)
    bits = where.fn(b, operators.compare(b, "==", wide, 0), 1 << 22, bits)  # a subnormal
    factor = b.value(Bitcast(bits, float32))
    if not checks:
        return factor
    return where.fn(b, operators.compare(b, "==", wide, NO_NUMBER), math.nan, factor)
