"""Loops that take a few bits of 8-bit elements and make 16-bit floats of them.

Quantised weights: int8, or two numbers of four bits in a byte. Converted one by one, an element
takes a shift or two, a conversion of an eighth of the rate and half an instruction that rounds;
`widen` (widen.cuh) takes two to three instructions for two elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.ir.op import Value
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ops
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

ZERO = -1
"""A bit that is 0."""
MOST = 256
"""Whole numbers up to here are exact in bf16."""


@dataclass(frozen=True)
class Bits:
    """A whole number made of bits of an element.

    places: per bit, the lowest first, which bit of the element it is, or ZERO. flipped: those that
    are inverted. offset: what is added.
    """

    places: tuple[int, ...]
    flipped: frozenset[int] = frozenset()
    offset: int = 0

    @property
    def width(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class Field:
    """Bits `first` to `first + bits - 1` of an element as a number, plus an offset."""

    first: int
    bits: int
    is_signed: bool
    offset: int

    @property
    def function(self) -> str:
        """What makes floats of it."""
        is_signed = str(self.is_signed).lower()
        return f"widen<{self.first}, {self.bits}, {is_signed}, {self.offset}>"


@dataclass(frozen=True)
class Widening:
    """What a map makes 16-bit floats of.

    source: the input of 8-bit elements. function: what widens it. scale: an input whose elements,
    of the result's dtype, multiply those; -1 for none.
    """

    source: int
    function: str
    scale: int = -1


def widened(op: Map) -> Widening | None:
    """How a map of an 8-bit tile makes 16-bit floats, where that, or a scale, is all it does."""
    end = op.body.ops[-1]
    if len(op.results) != 1 or op.part or op.in_place >= 0 or op.unless_one >= 0:
        return None
    if op.out_dtypes[0].name not in ("bf16", "f16"):
        return None
    assert isinstance(end, control.Yield)
    found = _of_bytes(op, _narrow(end.values[0]))
    if found is not None:
        return Widening(*found)
    # A product of both is exact in f32, so that it is rounded once, as by the instruction.
    product = _rounded_once(end.values[0], op.out_dtypes[0]).defining_op
    if not isinstance(product, ops.Mul):
        return None
    if _dtype(product.result) not in (op.out_dtypes[0], float32):
        return None
    for x, y in ((product.a, product.b), (product.b, product.a)):
        found, scale = _of_bytes(op, _narrow(x)), _input(op, _unrounded(y))
        if found is not None and scale >= 0:
            return Widening(*found, scale)
    return None


def _narrow(value: Value) -> Value:
    """What a float is a cast of, through 16 bits and more: these hold all numbers of 8 bits."""
    while isinstance(value.defining_op, ops.Cast) and _is_exact(_dtype(value)):
        value = value.defining_op.a
    return value


def _unrounded(value: Value) -> Value:
    """What a float of 32 bits or more is a cast of, through types that hold all its numbers."""
    op = value.defining_op
    while isinstance(op, ops.Cast) and _dtype(value).is_float:
        if not 16 <= _dtype(op.a).bits < _dtype(value).bits or not _dtype(op.a).is_float:
            break
        value, op = op.a, op.a.defining_op
    return value


def _rounded_once(value: Value, dtype: DType) -> Value:
    """What becomes a float of a type with one rounding at most."""
    op = value.defining_op
    return _unrounded(op.a if isinstance(op, ops.Cast) and _dtype(value) == dtype else value)


def _input(op: Map, value: Value) -> int:
    """The input of the result's dtype whose element a value is; -1 for others."""
    for n, (arg, source) in enumerate(zip(op.body.args, op.inputs, strict=False)):
        if value is arg and isinstance(source.type, TileType):
            return n if source.type.dtype == op.out_dtypes[0] else -1
    return -1


def _of_bytes(op: Map, value: Value) -> tuple[int, str] | None:
    """Which input a value is made of, its 8-bit elements or bits of them, and what widens these."""
    inputs = dict(zip(op.body.args, op.inputs, strict=False))
    for n, (arg, source) in enumerate(inputs.items()):
        type_ = source.type
        if not isinstance(type_, TileType) or type_.dtype.bits != 8:
            continue
        if type_.dtype.is_float and value is arg:
            return n, "widen_floats"
        if type_.dtype.is_int:
            field = _field(value, _Made(arg, type_.dtype, inputs).bits(value))
            if field is not None:
                return n, field.function
    return None


def is_small_whole(value: Value) -> bool:
    """Whether a whole number of a map's body is exact in every 16-bit float: bits of a byte."""
    around = value.defining_op.parent if value.defining_op is not None else None
    op = around.parent if around is not None else None
    return isinstance(op, Map) and _dtype(value).is_int and _of_bytes(op, value) is not None


def _is_exact(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits >= 16


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, ScalarType)
    return value.type.dtype


def _field(value: Value, bits: Bits | None) -> Field | None:
    """The field that bits of a number are, where its floats are exact."""
    if bits is None or not _dtype(value).is_int:
        return None
    used = [p for p in bits.places if p != ZERO]
    if not used:
        return None
    count = max(used) - used[0] + 1
    run = tuple(range(used[0], used[0] + count))
    is_signed = _dtype(value).kind == "int" and bits.places[-1] != ZERO
    rest = (run[-1],) if is_signed else (ZERO,)
    if bits.places != run + rest * (bits.width - count):
        return None
    offset = bits.offset
    if bits.flipped:
        # Of n bits, the highest one inverted is an addition to the signed number.
        if bits.flipped != frozenset(i for i, p in enumerate(bits.places) if p == run[-1]):
            return None
        offset += (1 << (count - 1)) * (-1 if is_signed else 1)
        is_signed = not is_signed
    low = -(1 << (count - 1)) if is_signed else 0
    high = (1 << (count - (1 if is_signed else 0))) - 1
    if max(abs(low + offset), abs(high + offset)) > MOST or abs(offset) > MOST // 2:
        return None
    taken_off = MOST // 2 - low - offset
    if count < 8 and taken_off > MOST and taken_off % 2:  # which bf16 does not hold
        return None
    return Field(used[0], count, is_signed, offset)


@dataclass(frozen=True)
class _Made:
    """What whole numbers of a map's body are made of.

    element, dtype: the argument that is a tile's element. inputs: what arguments stand for.
    """

    element: Value
    dtype: DType
    inputs: dict[Value, Value]

    def number(self, value: Value) -> int | None:
        """A constant, which may be an input."""
        op = self.inputs.get(value, value).defining_op
        return int(op.value) if isinstance(op, ops.Constant) else None

    def bits(self, value: Value) -> Bits | None:
        """The bits of a whole number, if it is made of nothing else."""
        if value is self.element:
            return Bits(tuple(range(self.dtype.bits)))
        op = value.defining_op
        if isinstance(op, ops.Cast) and _dtype(op.a).is_int and _dtype(value).is_int:
            return _cast(self.bits(op.a), _dtype(op.a), _dtype(value))
        if not isinstance(op, ops.Binary):
            return None
        a, number = op.a, self.number(op.b)
        if number is None and isinstance(op, ops.And | ops.Or | ops.Xor | ops.Add):
            a, number = op.b, self.number(op.a)
        found = self.bits(a)
        if found is None or number is None:
            return None
        if isinstance(op, ops.Add | ops.Sub):
            if _dtype(value).kind != "int" or _dtype(value).bits < 16:  # it may wrap
                return None
            offset = found.offset + (number if isinstance(op, ops.Add) else -number)
            return Bits(found.places, found.flipped, offset) if abs(offset) <= MOST else None
        if found.offset:
            return None
        return _moved(op, found, number, is_signed=_dtype(value).kind == "int")


def _cast(bits: Bits | None, source: DType, target: DType) -> Bits | None:
    """Another width: new bits are those of the sign."""
    if bits is None:
        return None
    if bits.offset:
        return bits if target.kind == "int" and target.bits >= source.bits else None
    count = target.bits - bits.width
    top = bits.places[-1] if source.kind == "int" else ZERO
    places = (*bits.places, *(top,) * max(0, count))[: target.bits]
    last = bits.width - 1
    flipped = set(bits.flipped)
    if source.kind == "int" and last in flipped:
        flipped |= set(range(bits.width, target.bits))
    return Bits(places, frozenset(i for i in flipped if i < target.bits))


def _moved(op: ops.Binary, bits: Bits, number: int, *, is_signed: bool) -> Bits | None:
    """Bits that a shift or a logical operation with a constant moves, clears or inverts."""
    width, places = bits.width, bits.places
    if isinstance(op, ops.Shl | ops.Shr) and not 0 <= number < width:
        return None
    match op:
        case ops.Shl():
            kept = [i + number for i in bits.flipped if i + number < width]
            return Bits((ZERO,) * number + places[: width - number], frozenset(kept))
        case ops.Shr():
            top = places[-1] if is_signed else ZERO
            kept = [i - number for i in bits.flipped if i >= number]
            if is_signed and width - 1 in bits.flipped:
                kept += range(width - number, width)
            return Bits(places[number:] + (top,) * number, frozenset(kept))
        case ops.And():
            on = [bool(number >> i & 1) for i in range(width)]
            masked = tuple(p if k else ZERO for p, k in zip(places, on, strict=True))
            return Bits(masked, frozenset(i for i in bits.flipped if on[i]))
        case ops.Xor():
            turned = frozenset(i for i in range(width) if number >> i & 1)
            if any(places[i] == ZERO for i in turned):
                return None
            return Bits(places, bits.flipped ^ turned)
        case _:
            return None
