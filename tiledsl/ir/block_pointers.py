"""Blocks of strided memory as objects of the frontend: block pointers and tensor descriptors.

Both describe a tensor by a pointer, extents and strides that the kernel computes. An access makes a
tile of pointers and a mask; nothing of the objects is left in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any
from typing import NamedTuple
from typing import cast

from tiledsl.dtypes import DType
from tiledsl.dtypes import int64
from tiledsl.errors import TypeMismatch
from tiledsl.ir.addressing import widened
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.builder import Builder
from tiledsl.ir.markers import LanguageObject
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import axis_argument
from tiledsl.ir.operands import compile_time_shape
from tiledsl.ir.operands import constant
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_sequence
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.pointer import Add
from tiledsl.ir.pointer_values import pointer_dtype
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

PADDINGS = ("", "zero", "nan")


class Access(NamedTuple):
    """What a load or store of a block needs."""

    pointer: Value
    mask: Value | None
    other: Value | None


@dataclass(frozen=True, eq=False)
class Geometry:
    """A tensor in memory as a kernel describes it; compared by identity.

    base: pointer. shape, strides: i64 scalars. padding: what lies outside, "" for undefined.
    """

    base: Value
    shape: tuple[Value, ...]
    strides: tuple[Value, ...]
    block_shape: tuple[int, ...]
    padding: str = ""

    @property
    def rank(self) -> int:
        return len(self.strides)

    @property
    def dtype(self) -> DType:
        """The element type."""
        found = pointer_dtype(self.base)
        assert found is not None
        assert found.element is not None
        return found.element

    def block(
        self, b: Builder, offsets: Sequence[Value], axes: Sequence[int], padding: str
    ) -> Access:
        """The block at offsets (i64 scalars), checked against the extents of `axes`."""
        start = self.base
        for offset, stride in zip(offsets, self.strides, strict=True):
            start = b.value(Add(start, b.value(ew.Mul(offset, stride))))
        places = [self._places(b, axis) for axis in range(self.rank)]
        pointer = broadcast_value(b, start, self.block_shape, "block")
        steps = [self._scaled(b, p, self.strides[a]) for a, p in enumerate(places)]
        distance = reduce(lambda x, y: b.value(ew.Add(x, y)), [self._whole(b, s) for s in steps])
        pointer = b.value(Add(pointer, distance))
        checks = [self._inside(b, places[a], offsets[a], self.shape[a]) for a in axes]
        mask = reduce(lambda x, y: b.value(ew.And(x, y)), checks) if checks else None
        return Access(pointer, mask, self.outside(b, padding) if checks else None)

    def outside(self, b: Builder, padding: str) -> Value | None:
        """The tile that fills what lies outside; None for zeros."""
        if padding != "nan":
            return None
        if not self.dtype.is_float:
            raise TypeMismatch(f"padding_option 'nan' needs floats, got {self.dtype!r}")
        return broadcast_value(
            b, constant(b, float("nan"), self.dtype), self.block_shape, "padding"
        )

    def _places(self, b: Builder, axis: int) -> Value:
        """0, 1, ... along an axis, i64, of extent 1 along the others."""
        x = b.value(ew.Cast(b.value(tile.Arange(0, self.block_shape[axis])), int64))
        for other in range(self.rank):
            if other != axis:
                x = b.value(tile.ExpandDims(x, other))
        return x

    def _scaled(self, b: Builder, places: Value, stride: Value) -> Value:
        return b.value(ew.Mul(places, broadcast_value(b, stride, _shape(places), "stride")))

    def _inside(self, b: Builder, places: Value, offset: Value, extent: Value) -> Value:
        """Whether 0 <= offset + place < extent, over the whole block."""
        shape = _shape(places)
        at = b.value(ew.Add(broadcast_value(b, offset, shape, "offset"), places))
        zero = broadcast_value(b, constant(b, 0, int64), shape, "offset")
        low = b.value(ew.Compare("ge", at, zero))
        high = b.value(ew.Compare("lt", at, broadcast_value(b, extent, shape, "extent")))
        return self._whole(b, b.value(ew.And(low, high)))

    def _whole(self, b: Builder, x: Value) -> Value:
        return broadcast_value(b, x, self.block_shape, "block")


def _shape(x: Value) -> tuple[int, ...]:
    assert isinstance(x.type, TileType)
    return x.type.shape


class _BlockPointerFields(NamedTuple):
    geometry: Geometry
    offsets: tuple[Value, ...]


class BlockPointer(_BlockPointerFields, LanguageObject):
    """A block of a tensor at offsets; only the offsets change when it is advanced."""

    __slots__ = ()

    def access(self, b: Builder, boundary_check: Sequence[int], padding: str, what: str) -> Access:
        """Pointers, mask and filling of an access."""
        axes = unwrap(boundary_check)
        listed = tuple(axes) if is_sequence(axes) else (axes,)
        checked = [axis_argument(a, self.geometry.rank, f"{what}: boundary_check") for a in listed]
        kind = padding_option(padding, what)
        return self.geometry.block(b, self.offsets, sorted(set(checked)), kind)

    def advanced(self, b: Builder, offsets: object) -> BlockPointer:
        """The block pointer moved by offsets."""
        steps = scalars(b, offsets, self.geometry.rank, "advance(): offsets")
        moved = [b.value(ew.Add(x, y)) for x, y in zip(self.offsets, steps, strict=True)]
        return BlockPointer(self.geometry, tuple(moved))

    def member(self, name: str) -> object:
        """Attributes in kernels."""
        facts: dict[str, object] = {
            "shape": self.geometry.shape,
            "strides": self.geometry.strides,
            "block_shape": self.geometry.block_shape,
            "dtype": pointer_dtype(self.geometry.base),
            "type": pointer_dtype(self.geometry.base),
        }
        return facts.get(name, LanguageObject.MISSING)


def make_geometry(
    b: Builder, base: object, shape: object, strides: object, block_shape: object, what: str
) -> Geometry:
    """Checks the description of a tensor. Raises TypeMismatch."""
    if not isinstance(base, Value) or pointer_dtype(base) is None:
        raise TypeMismatch(f"{what}: base must be a pointer, got {describe(base)}")
    if not isinstance(base.type, ScalarType):
        raise TypeMismatch(f"{what}: base must be a single pointer, got {describe(base)}")
    block = compile_time_shape(unwrap(block_shape), f"{what}: block_shape")
    extents = scalars(b, shape, len(block), f"{what}: shape")
    return Geometry(base, extents, scalars(b, strides, len(block), f"{what}: strides"), block)


def padding_option(given: object, what: str) -> str:
    """The option: "zero", "nan" or nothing. Raises TypeMismatch."""
    option = unwrap(given) or ""
    if option not in PADDINGS:
        raise TypeMismatch(f"{what}: padding_option {option!r} is none of zero, nan")
    return cast("str", option)


def scalars(b: Builder, given: object, rank: int, what: str) -> tuple[Value, ...]:
    """Integers or integer scalars, one per dimension, as i64."""
    items: Any = unwrap(given)
    if not is_sequence(items):
        items = (items,)
    if len(items) != rank:
        raise TypeMismatch(f"{what}: expected {rank} integers, got {len(items)}")
    return tuple(scalar(b, item, f"{what}[{i}]") for i, item in enumerate(items))


def scalar(b: Builder, given: Operand | object, what: str) -> Value:
    """An integer or an integer scalar as i64."""
    x: object = unwrap(given)
    if isinstance(x, int) and not isinstance(x, bool):
        return constant(b, x, int64)
    if isinstance(x, Value) and isinstance(x.type, ScalarType) and x.type.dtype.is_int:
        return widened(b, x)
    raise TypeMismatch(f"{what} must be an integer scalar, got {describe(x)}")
