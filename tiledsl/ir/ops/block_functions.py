"""Functions of the language on block pointers and tensor descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.dtypes import int64
from tiledsl.errors import TypeMismatch
from tiledsl.ir import operators
from tiledsl.ir.block_pointers import BlockPointer
from tiledsl.ir.block_pointers import Geometry
from tiledsl.ir.block_pointers import make_geometry
from tiledsl.ir.block_pointers import padding_option as checked_padding
from tiledsl.ir.block_pointers import scalar
from tiledsl.ir.block_pointers import scalars
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import Builtin
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import LanguageObject
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import constant
from tiledsl.ir.operands import describe
from tiledsl.ir.ops.pointer import Load
from tiledsl.ir.ops.pointer import Store
from tiledsl.ir.ops.pointer_functions import lane_value
from tiledsl.ir.ops.tile import arange
from tiledsl.ir.ops.tile import expand_dims
from tiledsl.ir.types import TileType

Offsets = Sequence[Operand]


@builtin
def make_block_ptr(
    b: Builder,
    base: Value,
    shape: Offsets,
    strides: Offsets,
    offsets: Offsets,
    block_shape: Sequence[int],
    order: Sequence[int],
) -> BlockPointer:
    """A block of `block_shape` at `offsets` of the tensor at `base`; in elements.

    order: accepted; the compiler finds the order of the axes in memory by itself.
    """
    del order
    geometry = make_geometry(b, base, shape, strides, block_shape, "make_block_ptr()")
    at = scalars(b, offsets, geometry.rank, "make_block_ptr(): offsets")
    return BlockPointer(geometry, at)


@builtin
def advance(b: Builder, base: BlockPointer, offsets: Offsets) -> BlockPointer:
    """A block pointer moved by offsets in elements."""
    if not isinstance(base, BlockPointer):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeMismatch(f"advance(): expected a block pointer, got {describe(base)}")
    return base.advanced(b, offsets)


@dataclass(frozen=True, eq=False)
class TensorDescriptor(LanguageObject):
    """A tensor described in the kernel, accessed in blocks that are checked on all sides."""

    geometry: Geometry

    @property
    def is_descriptor(self) -> bool:
        """It is one."""
        return True

    def member(self, name: str) -> object:
        """Attributes and methods in kernels."""
        facts: dict[str, object] = {
            "shape": self.geometry.shape,
            "strides": self.geometry.strides,
            "block_shape": self.geometry.block_shape,
            "dtype": self.geometry.dtype,
        }
        methods: dict[str, Builtin[..., object]] = {
            "load": load_tensor_descriptor,
            "store": store_tensor_descriptor,
            "gather": descriptor_gather,
            "scatter": descriptor_scatter,
        }  # type: ignore[dict-item]
        if name in methods:
            return LanguageObject.method(methods[name], self)
        return facts.get(name, LanguageObject.MISSING)

    @property
    def every_axis(self) -> range:
        return range(self.geometry.rank)


@builtin
def make_tensor_descriptor(
    b: Builder,
    base: Value,
    shape: Offsets,
    strides: Offsets,
    block_shape: Sequence[int],
    padding_option: str = "zero",
) -> TensorDescriptor:
    """A tensor at `base`, for `desc.load(offsets)` and `desc.store(offsets, tile)` in blocks.

    Any strides and alignment will do. padding_option: "zero" or "nan", what loads give outside.
    """
    what = "make_tensor_descriptor()"
    made = make_geometry(b, base, shape, strides, block_shape, what)
    padding = checked_padding(padding_option, what)
    return TensorDescriptor(
        Geometry(made.base, made.shape, made.strides, made.block_shape, padding)
    )


@builtin
def load_tensor_descriptor(b: Builder, desc: TensorDescriptor, offsets: Offsets) -> Value:
    """The block at offsets; outside the tensor it holds zeros (or NaN, see the descriptor)."""
    g = _geometry(desc, "load()")
    at = scalars(b, offsets, g.rank, "load(): offsets")
    made = g.block(b, at, desc.every_axis, g.padding)
    return b.value(Load(made.pointer, made.mask, made.other))


@builtin
def store_tensor_descriptor(
    b: Builder, desc: TensorDescriptor, offsets: Offsets, value: Operand
) -> None:
    """Writes a tile at offsets, cast to the tensor's type; what lies outside is dropped."""
    g = _geometry(desc, "store()")
    at = scalars(b, offsets, g.rank, "store(): offsets")
    made = g.block(b, at, desc.every_axis, "")
    data = lane_value(b, made.pointer, value, g.dtype, "store(): value")
    b.add(Store(made.pointer, data, made.mask))


@builtin
def descriptor_gather(
    b: Builder, desc: TensorDescriptor, x_offsets: Value, y_offset: Operand
) -> Value:
    """Rows `x_offsets` (an integer tile), from column `y_offset` on: a tile of [rows, columns]."""
    g = _geometry(desc, "gather()")
    pointer, mask = _rows(b, g, x_offsets, y_offset, "gather()")
    other: Value | None = None
    if g.padding == "nan":
        assert isinstance(pointer.type, TileType)
        nan = constant(b, float("nan"), g.dtype)
        other = broadcast_value(b, nan, pointer.type.shape, "gather()")
    return b.value(Load(pointer, mask, other))


@builtin
def descriptor_scatter(
    b: Builder, desc: TensorDescriptor, value: Value, x_offsets: Value, y_offset: Operand
) -> None:
    """Writes the rows of a tile to rows `x_offsets`, from column `y_offset` on."""
    g = _geometry(desc, "scatter()")
    pointer, mask = _rows(b, g, x_offsets, y_offset, "scatter()")
    b.add(Store(pointer, lane_value(b, pointer, value, g.dtype, "scatter(): value"), mask))


def _rows(
    b: Builder, g: Geometry, x_offsets: Value, y_offset: Operand, what: str
) -> tuple[Value, Value]:
    """Pointers and mask of some rows of a matrix."""
    if g.rank != 2:
        raise TypeMismatch(f"{what}: the descriptor has rank {g.rank}, expected 2")
    t = x_offsets.type
    if not isinstance(t, TileType) or t.rank != 1 or not t.dtype.is_int:
        raise TypeMismatch(f"{what}: x_offsets must be an integer tile with one axis, got {t}")
    rows = expand_dims.fn(b, as_value(b, x_offsets, int64), 1)
    places = as_value(b, arange.fn(b, 0, g.block_shape[1]), int64)
    start = scalar(b, y_offset, f"{what}: y_offset")
    columns = expand_dims.fn(b, operators.binary(b, "+", places, start), 0)
    distance = operators.binary(
        b,
        "+",
        operators.binary(b, "*", rows, g.strides[0]),
        operators.binary(b, "*", columns, g.strides[1]),
    )
    checks = [
        operators.compare(b, ">=", rows, 0),
        operators.compare(b, "<", rows, g.shape[0]),
        operators.compare(b, ">=", columns, 0),
        operators.compare(b, "<", columns, g.shape[1]),
    ]
    mask = checks[0]
    for check in checks[1:]:
        mask = operators.binary(b, "&", mask, check)
    return operators.binary(b, "+", g.base, distance), mask


def _geometry(desc: object, what: str) -> Geometry:
    if isinstance(desc, TensorDescriptor):
        return desc.geometry
    raise TypeMismatch(f"{what}: expected a tensor descriptor, got {describe(desc)}")
