"""Random numbers: counter-based, so that a result depends on seed and offset alone.

Ref: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (Philox-4x32-10, Philox-4x64-10).
"""

from __future__ import annotations

from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.dtypes import uint32
from tiledsl.dtypes import uint64
from tiledsl.errors import TypeMismatch
from tiledsl.ir import operators
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.operands import constant
from tiledsl.ir.operands import element_type
from tiledsl.ir.ops.elementwise import Bitcast
from tiledsl.ir.ops.elementwise_functions import cos
from tiledsl.ir.ops.elementwise_functions import log
from tiledsl.ir.ops.elementwise_functions import maximum
from tiledsl.ir.ops.elementwise_functions import sin
from tiledsl.ir.ops.elementwise_functions import sqrt
from tiledsl.ir.ops.elementwise_functions import where
from tiledsl.ir.ops.elementwise_library import call_library

N_ROUNDS = 10
# Per word width: (key A, key B, multiplier A, multiplier B).
_CONSTANTS = {
    32: (0x9E3779B9, 0xBB67AE85, 0xD2511F53, 0xCD9E8D57),
    64: (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B, 0xD2E7470EE14C6C93, 0xCA5A826395121157),
}
# The largest factor by which the largest signed integer stays below 1.
_SCALES = {32: 4.6566127342e-10, 64: 1.0842020432385337e-19}

Four = tuple[Value, Value, Value, Value]


def _of(b: Builder, symbol: str, x: Operand, y: Operand) -> Value:
    return operators.binary(b, symbol, x, y)


def _bits(b: Builder, x: Value, dtype: DType) -> Value:
    """An integer as another integer dtype: reinterpreted when that is as wide, else cast."""
    found = element_type(x, "philox()")
    if found == dtype:
        return x
    return b.value(Bitcast(x, dtype)) if found.bits == dtype.bits else as_value(b, x, dtype)


def _integer(b: Builder, x: Operand, what: str) -> Value:
    value = as_value(b, x, what=what)
    if not element_type(value, what).is_int:
        raise TypeMismatch(f"{what}: expected integers, got {element_type(value, what)!r}")
    return value


@builtin
def philox(
    b: Builder,
    seed: Operand,
    c0: Operand,
    c1: Operand,
    c2: Operand,
    c3: Operand,
    n_rounds: int = N_ROUNDS,
) -> Four:
    """Four random words of 32 (64) bits from four counters of that width and a seed.

    The key is (seed low, seed high) for 32-bit words and (seed, 0) for 64-bit words.
    """
    counters = [_integer(b, c, "philox(): a counter") for c in (c0, c1, c2, c3)]
    bits = element_type(counters[0], "philox()").bits
    if bits not in _CONSTANTS:
        raise TypeMismatch(f"philox(): counters must have 32 or 64 bits, got {bits}")
    word = uint32 if bits == 32 else uint64
    key = _bits(b, _integer(b, seed, "philox(): seed"), uint64)
    if bits == 32:
        high = as_value(b, _of(b, ">>", key, 32), uint32)
        low = as_value(b, _of(b, "&", key, 0xFFFFFFFF), uint32)
    else:
        low, high = key, constant(b, 0, uint64)
    words = [_bits(b, c, word) for c in counters]
    return _philox_rounds(
        b, words, low, high, compile_time_int(n_rounds, "philox(): n_rounds"), bits
    )


def _product(b: Builder, x: Value, factor: int, bits: int) -> tuple[Value, Value]:
    """The upper and the lower word of a product; of 32 bits both come from one multiplication."""
    if bits == 64:
        return call_library(b, "umulhi", x, factor), _of(b, "*", x, factor)
    both = _of(b, "*", as_value(b, x, uint64), factor)
    return as_value(b, _of(b, ">>", both, 32), uint32), as_value(b, both, uint32)


def _philox_rounds(
    b: Builder, words: list[Value], k0: Value, k1: Value, n_rounds: int, bits: int
) -> Four:
    key_a, key_b, factor_a, factor_b = _CONSTANTS[bits]
    c0, c1, c2, c3 = words
    for _ in range(n_rounds):
        high_b, low_b = _product(b, c2, factor_b, bits)
        high_a, low_a = _product(b, c0, factor_a, bits)
        c0 = _of(b, "^", _of(b, "^", high_b, c1), k0)
        c2 = _of(b, "^", _of(b, "^", high_a, c3), k1)
        c1, c3 = low_b, low_a
        k0 = _of(b, "+", k0, key_a)
        k1 = _of(b, "+", k1, key_b)
    return c0, c1, c2, c3


@builtin
def randint4x(b: Builder, seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS) -> Four:
    """Four blocks of random uint32 for a block of offsets."""
    value = _integer(b, offset, "randint4x(): offset")
    low = (
        as_value(b, value, uint32)
        if element_type(value, "").bits != 32
        else _bits(b, value, uint32)
    )
    zero = _of(b, "*", low, 0)
    high = zero
    if element_type(value, "").bits > 32:
        high = as_value(b, _of(b, ">>", value, 32), uint32)
    return philox.fn(b, seed, low, high, zero, zero, n_rounds)


@builtin
def randint(b: Builder, seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS) -> Value:
    """Random uint32 for a block of offsets: the first of the four words."""
    return randint4x.fn(b, seed, offset, n_rounds)[0]


@builtin
def uint_to_uniform_float(b: Builder, x: Value) -> Value:
    """Random unsigned integers as float32 in [0, 1)."""
    bits = element_type(x, "uint_to_uniform_float()").bits
    if bits not in _SCALES:
        raise TypeMismatch(f"uint_to_uniform_float(): expected 32 or 64 bits, got {bits}")
    signed = _bits(b, x, int32 if bits == 32 else int64)
    mirrored = operators.unary(b, "~", signed)
    positive = where.fn(b, operators.compare(b, "<", signed, 0), mirrored, signed)
    return _of(b, "*", as_value(b, positive, float32), _SCALES[bits])


@builtin
def rand(b: Builder, seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS) -> Value:
    """Random float32 in [0, 1) for a block of offsets."""
    return uint_to_uniform_float.fn(b, randint.fn(b, seed, offset, n_rounds))


@builtin
def rand4x(b: Builder, seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS) -> Four:
    """Four blocks of random float32 in [0, 1) for a block of offsets."""
    words = randint4x.fn(b, seed, offset, n_rounds)
    u0, u1, u2, u3 = (uint_to_uniform_float.fn(b, w) for w in words)
    return u0, u1, u2, u3


@builtin
def pair_uniform_to_normal(b: Builder, u1: Value, u2: Value) -> tuple[Value, Value]:
    """Two normally distributed numbers from two uniform ones (Box-Muller)."""
    safe = maximum.fn(b, 1.0e-7, u1)
    angle = _of(b, "*", 6.283185307179586, u2)
    radius = sqrt.fn(b, _of(b, "*", -2.0, log.fn(b, safe)))
    return _of(b, "*", radius, cos.fn(b, angle)), _of(b, "*", radius, sin.fn(b, angle))


@builtin
def randn(b: Builder, seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS) -> Value:
    """Normally distributed float32 for a block of offsets."""
    first, second, _, _ = randint4x.fn(b, seed, offset, n_rounds)
    uniform = [uint_to_uniform_float.fn(b, w) for w in (first, second)]
    return pair_uniform_to_normal.fn(b, uniform[0], uniform[1])[0]


@builtin
def randn4x(b: Builder, seed: Operand, offset: Operand, n_rounds: int = N_ROUNDS) -> Four:
    """Four blocks of normally distributed float32 for a block of offsets."""
    u0, u1, u2, u3 = rand4x.fn(b, seed, offset, n_rounds)
    return (*pair_uniform_to_normal.fn(b, u0, u1), *pair_uniform_to_normal.fn(b, u2, u3))
