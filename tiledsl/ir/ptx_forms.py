"""What PTX instructions compute, on arrays of bit patterns. Ref: PTX ISA, instruction set.

Approximate instructions are computed exactly and rounded; `.ftz` flushes results.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tiledsl.dtypes import BY_NAME
from tiledsl.dtypes import rounded

Bits = npt.NDArray[np.uint64]
Array = Any
"""Numbers of any dtype, which numpy's overloads do not take."""
Source = Bits | tuple[Bits, ...] | str
Form = Callable[[list[str], list[Source], int], Bits | tuple[Bits, ...]]
Function = Callable[..., Array]

_where: Callable[..., Any] = np.where

FORMS: list[tuple[re.Pattern[str], Form]] = []
_LANES = {"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}
_NUMPY: dict[str, Any] = {
    **{f"{k}{n}": np.dtype(f"u{n // 8}") for k in "ub" for n in (8, 16, 32, 64)},
    **{f"s{n}": np.dtype(f"i{n // 8}") for n in (8, 16, 32, 64)},
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64), "e4m3": BY_NAME["e4m3"].numpy, "e5m2": BY_NAME["e5m2"].numpy,
}  # fmt: skip


class NoForm(Exception):
    """An instruction, or a form of one, that has no meaning here."""


def form(pattern: str) -> Callable[[Form], Form]:
    """Registers the meaning of the opcodes that match a pattern entirely."""

    def register(function: Form) -> Form:
        FORMS.append((re.compile(pattern), function))
        return function

    return register


# ---------------------------------------------------------------------- registers and numbers
def immediate(text: str, kind: str) -> int:
    """The bits of a constant. Raises NoForm for a text that is none."""
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", text):
        bits = int(match[1], 16)
        return (
            bits
            if kind != "f64"
            else _bits_of(struct.unpack("<f", struct.pack("<I", bits))[0], kind)
        )
    if match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", text):
        return int(match[1], 16)
    try:
        if kind in ("f16", "bf16", "f32", "f64") or "." in text:
            return _bits_of(float(text), kind if kind in _NUMPY else "f32")
        return int(text.rstrip("U"), 0) % (1 << 64)
    except ValueError:
        raise NoForm from None


def _bits_of(number: float, kind: str) -> int:
    raw = np.asarray(number).astype(_NUMPY[kind])
    return int(raw.view(f"u{raw.itemsize}")[()])


def number(source: Source, kind: str) -> Array:
    """A register or constant as numbers of a scalar type."""
    if isinstance(source, tuple) or kind not in _NUMPY:
        raise NoForm
    bits = np.asarray(immediate(source, kind), np.uint64) if isinstance(source, str) else source
    dtype = _NUMPY[kind]
    return np.ascontiguousarray(bits.astype(f"u{dtype.itemsize}")).view(dtype).reshape(bits.shape)


def bits(values: Array, kind: str) -> Bits:
    """Numbers as the bits of a register."""
    dtype = _NUMPY[kind]
    name = {"f16": "f16", "bf16": "bf16", "f32": "f32", "f64": "f64"}.get(kind, kind)
    made = rounded(values, BY_NAME[name]) if name in BY_NAME else values.astype(dtype)
    flat = np.ascontiguousarray(made).view(f"u{dtype.itemsize}").reshape(np.shape(made))
    return flat.astype(np.uint64)


def lanes(source: Source, kind: str) -> tuple[Array, Array]:
    """Both halves of a packed register, the low one first."""
    if isinstance(source, tuple):
        raise NoForm
    inner = _LANES[kind]
    size = 8 * _NUMPY[inner].itemsize
    whole = np.asarray(immediate(source, "b32"), np.uint64) if isinstance(source, str) else source
    return number(whole, inner), number(whole >> np.uint64(size), inner)


def pair(low: Bits, high: Bits, kind: str) -> Bits:
    """Two halves in one register."""
    return low | (high << np.uint64(8 * _NUMPY[_LANES[kind]].itemsize))


def wide(x: Array) -> Array:
    """Small floats as f32."""
    is_small = x.dtype.itemsize < 4 and x.dtype.kind not in "biu"
    return x.astype(np.float32) if is_small else x


def _apply(parts: list[str], sources: Sequence[Source], function: Function) -> Bits:
    """A function of numbers of the opcode's last type, in both halves of packed ones."""
    kind = parts[-1]
    if kind in _LANES:
        halves = [lanes(s, kind) for s in sources]
        made = [bits(function(*(wide(h[i]) for h in halves)), _LANES[kind]) for i in (0, 1)]
        return pair(made[0], made[1], kind)
    result = function(*(wide(number(s, kind)) for s in sources))
    if "sat" in parts and kind.startswith("f"):
        result = np.clip(np.nan_to_num(result, nan=0.0), 0.0, 1.0)
    if "ftz" in parts and kind == "f32":
        result = _where(np.abs(result) < np.float32(2.0**-126), np.copysign(0, result), result)
    return bits(np.asarray(result), kind)


# ---------------------------------------------------------------------- arithmetic
def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return a / b
    safe = _where(b == 0, 1, b)
    return _where(b == 0, np.array(-1).astype(a.dtype), (a - np.fmod(a, safe)) // safe)


def _least(a: Array, b: Array) -> Array:
    return np.fmin(a, b) if a.dtype.kind == "f" else np.minimum(a, b)


def _greatest(a: Array, b: Array) -> Array:
    return np.fmax(a, b) if a.dtype.kind == "f" else np.maximum(a, b)


def _signed(sign: Array, a: Array) -> Array:
    return np.copysign(a, sign)


def _inverse_root(a: Array) -> Array:
    return 1 / np.sqrt(a)


def _fused(a: Array, b: Array, c: Array) -> Array:
    return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(a.dtype)


_ARITHMETIC: dict[str, Function] = {
    "add": operator.add, "sub": operator.sub, "div": _divide, "rem": np.fmod,
    "min": _least, "max": _greatest, "neg": np.negative, "abs": np.abs, "fma": _fused,
    "copysign": _signed, "ex2": np.exp2, "lg2": np.log2, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "sqrt": np.sqrt, "rsqrt": _inverse_root,
    "rcp": np.reciprocal,
}  # fmt: skip


@form(rf"({'|'.join(_ARITHMETIC)})(\.(rn|rz|approx|full|ftz|sat|NaN))*\.\w+")
def _arithmetic(parts: list[str], sources: list[Source], _: int) -> Bits:
    if "rz" in parts:
        raise NoForm
    function = _ARITHMETIC[parts[0]]
    if "NaN" in parts:
        function = np.minimum if parts[0] == "min" else np.maximum
    return _apply(parts, sources, function)


@form(r"(mul|mad)(\.(rn|ftz|sat|lo|hi|wide))*\.\w+")
def _product(parts: list[str], sources: list[Source], _: int) -> Bits:
    kind = parts[-1]
    if kind in _LANES or kind.startswith(("f", "bf")):
        return _apply(parts, sources, _fused if parts[0] == "mad" else operator.mul)
    size = 8 * _NUMPY[kind].itemsize
    a, b = (number(s, kind).astype(object) for s in sources[:2])
    full = np.asarray(a * b, dtype=object)
    width = 2 * size if "wide" in parts else size
    result = full >> size if "hi" in parts else full
    if len(sources) > 2:
        result = result + number(sources[2], f"{kind[0]}{width}").astype(object)
    flat = [int(v) % (1 << width) for v in np.ravel(result)]
    return np.array(flat, dtype=np.uint64).reshape(np.shape(result))


# ---------------------------------------------------------------------- bits
_LOGIC: dict[str, Function] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@form(r"(and|or|xor|not|cnot)\.(b16|b32|b64|pred)")
def _logic(parts: list[str], sources: list[Source], _: int) -> Bits:
    if parts[1] == "pred":
        flags = [number(s, "b64") != 0 for s in sources]
        result = ~flags[0] if parts[0] == "not" else _LOGIC[parts[0]](*flags)
        return np.asarray(result).astype(np.uint64)
    if parts[0] == "cnot":
        return (number(sources[0], parts[1]) == 0).astype(np.uint64)
    return _apply(parts, sources, np.invert if parts[0] == "not" else _LOGIC[parts[0]])


@form(r"(shl|shr)\.[bus](16|32|64)")
def _shift(parts: list[str], sources: list[Source], _: int) -> Bits:
    a, by = number(sources[0], parts[1]), number(sources[1], "u32").astype(np.int64)
    size = 8 * a.dtype.itemsize
    inside = np.clip(by, 0, size - 1).astype(a.dtype)
    if parts[0] == "shl":
        return bits(_where(by < size, a << inside, 0).astype(a.dtype), parts[1])
    gone = _where(a < 0, -1, 0).astype(a.dtype)
    return bits(_where(by < size, a >> inside, gone), parts[1])


@form(r"shf\.[lr]\.(wrap|clamp)\.b32")
def _funnel(parts: list[str], sources: list[Source], _: int) -> Bits:
    low, high, by = (number(s, "u32").astype(np.uint64) for s in sources)
    by = by & np.uint64(31) if parts[2] == "wrap" else np.minimum(by, np.uint64(32))
    both = (high << np.uint64(32)) | low
    moved = both >> by if parts[1] == "r" else both >> (np.uint64(32) - by)
    return moved & np.uint64(0xFFFFFFFF)


@form(r"lop3\.b32")
def _lop3(parts: list[str], sources: list[Source], _: int) -> Bits:
    a, b, c = (number(s, "b32").astype(np.uint64) for s in sources[:3])
    table = int(number(sources[3], "b32"))
    full = np.uint64(0xFFFFFFFF)
    out = np.zeros(np.broadcast(a, b, c).shape, np.uint64)
    for i in range(8):
        if table >> i & 1:
            picks = [x if i >> (2 - j) & 1 else x ^ full for j, x in enumerate((a, b, c))]
            out = out | (picks[0] & picks[1] & picks[2])
    return out


@form(r"prmt\.b32")
def _permute(parts: list[str], sources: list[Source], _: int) -> Bits:
    a, b, selector = (number(s, "b32").astype(np.uint64) for s in sources)
    both = (b << np.uint64(32)) | a
    out = np.zeros(np.broadcast(a, b, selector).shape, np.uint64)
    for i in range(4):
        pick = selector >> np.uint64(4 * i)
        byte = (both >> ((pick & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
        sign = _where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
        out = out | (_where(pick & np.uint64(8), sign, byte) << np.uint64(8 * i))
    return out


@form(r"(popc|clz|brev)\.b(32|64)")
def _counts(parts: list[str], sources: list[Source], _: int) -> Bits:
    size = int(parts[1][1:])
    functions: dict[str, Callable[[int], int]] = {
        "popc": int.bit_count,
        "clz": lambda v: size - v.bit_length(),
        "brev": lambda v: int(format(v, f"0{size}b")[::-1], 2),
    }
    values = number(sources[0], parts[1])
    made = [functions[parts[0]](int(v)) for v in np.ravel(values)]
    return np.array(made, np.uint64).reshape(values.shape)


@form(r"bfe\.[us]32")
def _extract(parts: list[str], sources: list[Source], _: int) -> Bits:
    a = number(sources[0], "u32").astype(np.int64)
    start, length = (number(s, "u32").astype(np.int64) & 255 for s in sources[1:])
    length = np.minimum(length, 32 - np.minimum(start, 32))
    field = (a >> np.minimum(start, 32)) & ((np.int64(1) << length) - 1)
    if parts[1] == "s32":
        top = _where(length > 0, (field >> np.maximum(length - 1, 0)) & 1, 0)
        field = _where(top == 1, field - (np.int64(1) << length), field)
    return bits(field.astype(np.int32), "s32")


@form(r"bfi\.b32")
def _insert(parts: list[str], sources: list[Source], _: int) -> Bits:
    a, b, start, length = (number(s, "u32").astype(np.uint64) for s in sources)
    mask = ((np.uint64(1) << np.minimum(length, np.uint64(32))) - np.uint64(1)) << start
    return ((b & ~mask) | ((a << start) & mask)) & np.uint64(0xFFFFFFFF)


# ---------------------------------------------------------------------- moves and choices
@form(r"mov\.(b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64|pred)")
def _move(parts: list[str], sources: list[Source], count: int) -> Bits | tuple[Bits, ...]:
    source, size = sources[0], int(re.sub(r"\D", "", parts[1]) or 1)
    if isinstance(source, tuple):
        part = np.uint64(size // len(source))
        low = (np.uint64(1) << part) - np.uint64(1)
        made = [(x & low) << np.uint64(i * int(part)) for i, x in enumerate(source)]
        return np.bitwise_or.reduce(np.broadcast_arrays(*made))
    whole = number(source, parts[1] if parts[1] in _NUMPY else "b64")
    flat = bits(whole, parts[1]) if parts[1] in _NUMPY else whole.astype(np.uint64)
    if not count:
        return flat
    part = size // count
    low = np.uint64((1 << part) - 1)
    return tuple((flat >> np.uint64(i * part)) & low for i in range(count))


_COMPARE: dict[str, Function] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
}  # fmt: skip


@form(rf"setp\.({'|'.join(_COMPARE)})u?(\.ftz)?\.\w+")
def _compare(parts: list[str], sources: list[Source], _: int) -> Bits:
    a, b = (wide(number(s, parts[-1])) for s in sources)
    result = _COMPARE[parts[1].removesuffix("u")](a, b) if parts[1] != "eu" else a == b
    if parts[1].endswith("u"):
        result = np.asarray(result) | np.isnan(a) | np.isnan(b)
    return np.asarray(result).astype(np.uint64)


@form(r"selp\.\w+")
def _choose(parts: list[str], sources: list[Source], _: int) -> Bits:
    a, b = (number(s, parts[1]) for s in sources[:2])
    return bits(_where(number(sources[2], "b64") != 0, a, b).astype(a.dtype), parts[1])


# ---------------------------------------------------------------------- conversions
_TO_WHOLE: dict[str, Function] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip


@form(r"cvt(\.(rn|rna|rni|rzi|rmi|rpi|ftz|sat|satfinite|relu))*\.\w+\.\w+")
def _convert(parts: list[str], sources: list[Source], _: int) -> Bits:
    target, source = parts[-2:]
    if target in _LANES:
        if source in _LANES:
            low, high = lanes(sources[0], source)
        elif len(sources) == 2:
            high, low = (number(s, source) for s in sources)
        else:
            raise NoForm
        if "relu" in parts:
            low, high = np.fmax(wide(low), 0), np.fmax(wide(high), 0)
        inner = _LANES[target]
        return pair(bits(wide(low), inner), bits(wide(high), inner), target)
    value = wide(number(sources[0], source))
    if target == "tf32":
        return (bits(value, "f32") + np.uint64(0x1000)) & np.uint64(0xFFFFE000)
    if target.startswith(("f", "bf")):
        modes = [m for m in parts if m in _TO_WHOLE]
        value = _TO_WHOLE[modes[0]](value) if modes else value
        return _apply(parts[:-1], [bits(value, target)], np.positive)
    if value.dtype.kind != "f":
        return bits(value.astype(_NUMPY[target]), target)
    mode = next((m for m in parts if m in _TO_WHOLE), "rzi")
    whole = np.nan_to_num(_TO_WHOLE[mode](value.astype(np.float64)), nan=0.0)
    info = np.iinfo(_NUMPY[target])
    low, high = whole <= float(info.min), whole >= float(info.max)
    inside = _where(low | high, 0, whole).astype(info.dtype)
    return bits(_where(low, info.min, _where(high, info.max, inside)).astype(info.dtype), target)
