"""Shape ops on tiles, and `tile.map`, the fused elementwise loop of the lower levels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout_moves import exchange_bytes
from tiledsl.ir.layout_moves import keeps_threads
from tiledsl.ir.layout_moves import reshape_layout
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.op import region
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import ShapeLike
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import axis_argument
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.operands import compile_time_shape
from tiledsl.ir.operands import dtype_argument
from tiledsl.ir.operands import element_type
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.ir.warp_rows import WARP_BYTES
from tiledsl.ir.warp_rows import rows_of_move
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine


def tile_type(value: Value, what: str) -> TileType:
    """The type of a tile operand. Raises TypeMismatch for anything else."""
    if not isinstance(value.type, TileType):
        raise TypeMismatch(f"{what}: expected a tile, got {value.type}")
    return value.type


class Splat(Op, opcode="tile.splat"):
    """A tile of `shape` with every element equal to a scalar."""

    a: Value = operand()
    shape: tuple[int, ...] = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        if not isinstance(self.a.type, ScalarType):
            raise TypeMismatch(f"full: expected a scalar, got {self.a.type}")
        if any(n < 1 for n in self.shape):
            raise TypeMismatch(f"full: every extent must be positive, got {self.shape}")
        return (TileType(self.shape, self.a.type.dtype),)

    def evaluate(self, a: Any) -> Any:
        return np.full(self.shape, a, dtype=np.asarray(a).dtype)


class Undef(Op, opcode="tile.undef", levels=Level.WARP_SPECIALIZED | Level.MACHINE):
    """A tile whose elements hold nothing yet: an accumulator before its first wgmma."""

    # Two of them become two accumulators: never one op for both.
    is_unique = True
    shape: tuple[int, ...] = attribute()
    dtype: DType = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (TileType(self.shape, self.dtype),)


class Arange(Op, opcode="tile.arange"):
    """[start, start+1, ..., end-1] as i32."""

    start: int = attribute()
    end: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        if self.end <= self.start:
            raise TypeMismatch(f"arange: end must be above start, got {self.start}, {self.end}")
        return (TileType((self.end - self.start,), int32),)

    def evaluate(self) -> Any:
        return np.arange(self.start, self.end, dtype=np.int32)


class ExpandDims(Op, opcode="tile.expand_dims"):
    """Inserts a dimension of extent 1 before dimension `axis`."""

    a: Value = operand()
    axis: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "expand_dims")
        if not 0 <= self.axis <= t.rank:
            raise TypeMismatch(f"expand_dims: axis {self.axis} is outside 0..{t.rank}")
        return (TileType((*t.shape[: self.axis], 1, *t.shape[self.axis :]), t.dtype),)

    def evaluate(self, a: Any) -> Any:
        return np.expand_dims(a, self.axis)


class Broadcast(Op, opcode="tile.broadcast"):
    """Repeats dimensions of extent 1 up to `shape` (same rank)."""

    a: Value = operand()
    shape: tuple[int, ...] = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "broadcast")
        if t.rank != len(self.shape) or any(
            a not in (1, b) for a, b in zip(t.shape, self.shape, strict=True)
        ):
            raise TypeMismatch(
                f"broadcast: {list(t.shape)} does not broadcast to {list(self.shape)}"
            )
        return (TileType(self.shape, t.dtype),)

    def evaluate(self, a: Any) -> Any:
        return np.broadcast_to(a, self.shape).copy()


class Reshape(Op, opcode="tile.reshape"):
    """The elements in row-major order under another shape.

    scratch: shared memory for elements that change their thread. barrier, guarded: see
    `reduce.reduce`.
    """

    a: Value = operand()
    shape: tuple[int, ...] = attribute()
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "reshape")
        if t.num_elements != prod(self.shape):
            raise TypeMismatch(
                f"reshape: {list(t.shape)} has {t.num_elements} elements, "
                f"{list(self.shape)} has {prod(self.shape)}"
            )
        return (TileType(self.shape, t.dtype),)

    def scratch_bytes(self) -> int:
        """Shared memory, unless registers are only renamed."""
        dtype = tile_type(self.a, "reshape").dtype
        return 0 if self.is_view() else exchange_bytes(prod(self.shape), dtype.bytes)

    def is_view(self) -> bool:
        """Whether the layouts on both sides put each element into the same thread and register."""
        source, target = tile_type(self.a, "reshape"), tile_type(self.result, "reshape")
        assert source.layout is not None
        assert target.layout is not None
        found = reshape_layout(source.layout, source.shape, self.shape)
        return found is not None and found.same_places(target.layout)

    def evaluate(self, a: Any, *_: Any) -> Any:
        return np.reshape(a, self.shape)


class Transpose(Op, opcode="tile.transpose"):
    """Permutes dimensions: result dimension i is operand dimension order[i]."""

    a: Value = operand()
    order: tuple[int, ...] = attribute(default=(1, 0))

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "trans")
        if sorted(self.order) != list(range(t.rank)):
            raise TypeMismatch(
                f"trans: {self.order} is not a permutation of the {t.rank} dimensions"
            )
        return (TileType(tuple(t.shape[i] for i in self.order), t.dtype),)

    def evaluate(self, a: Any) -> Any:
        return np.transpose(a, self.order)


def lane_arguments(
    shape: tuple[int, ...], follows: tuple[tuple[int | None, ...], ...], arrays: Sequence[Any]
) -> list[Any]:
    """What a loop over the elements of a tile gives its body, for all elements at once.

    The inputs, each along the dimensions that it follows, and a coordinate per dimension.
    """
    args: list[Any] = []
    for i, array in enumerate(arrays):
        places = follows[i] if i < len(follows) else ()
        index: list[Any] = [np.newaxis] * len(shape)
        kept = [d for d in places if d is not None]
        for d in kept:
            index[d] = slice(None)
        sizes = [n for n, d in zip(np.shape(array), places, strict=True) if d is not None]
        order = sorted(range(len(kept)), key=kept.__getitem__)
        spread = np.transpose(np.reshape(array, sizes), order)[tuple(index)] if kept else None
        args.append(np.reshape(array, ()) if spread is None else spread)
    return [*args, *np.indices(shape, dtype=np.int32, sparse=True)]


class Map(Op, opcode="tile.map", levels=Level.WARP_SPECIALIZED | Level.MACHINE):
    """A fused elementwise loop over the registers of one layout.

    inputs: scalars (used as they are) or tiles; a tile's dims follow `follows`: for each dimension
    of the input the dimension of the iteration space, or None where it is broadcast. body:
    arguments (one scalar per input, then one i32 coordinate per dimension of the iteration space),
    scalar ops only, yields one scalar per result.
    part: (first coordinate, extents) of the box that is computed, everything when empty; the other
    registers of the results hold nothing. part_of_warpgroup: coordinates of a warpgroup's part.
    in_place: an input whose place the result takes, -1 for none; where nothing is computed the
    result is that input.
    unless_one: an f32 tile among the inputs, -1 for none: a warp that sees nothing but ones in it
    computes nothing. For products with it, which are the same then.
    shape, layout: the iteration space; all results have it.
    pairs: two registers at once are computed, of 16-bit floats that are added and multiplied only.
    """

    vectorized = True
    inputs: tuple[Value, ...] = operands()
    shape: tuple[int, ...] = attribute()
    layout: Layout | None = attribute(default=None)
    follows: tuple[tuple[int | None, ...], ...] = attribute(default=())
    out_dtypes: tuple[DType, ...] = attribute(default=())
    body: Region = region(factory=Region)
    part: tuple[tuple[int, ...], ...] = attribute(default=())
    part_of_warpgroup: bool = attribute(default=False)
    in_place: int = attribute(default=-1)
    unless_one: int = attribute(default=-1)
    pairs: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        return tuple(TileType(self.shape, d, self.layout) for d in self.out_dtypes)

    def verify(self, target: Target) -> None:
        if len(self.body.args) != len(self.inputs) + len(self.shape):
            expected = len(self.inputs) + len(self.shape)
            raise VerifyError(f"map: body has {len(self.body.args)} arguments, expected {expected}")
        if self.unless_one >= 0 and self.in_place < 0:
            raise VerifyError("map: with unless_one, the result takes the place of an input")

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        args = lane_arguments(self.shape, self.follows, arrays)
        results = yield from machine.run_region(self.body, args)
        made = tuple(np.broadcast_to(r, self.shape) for r in results)
        if self.in_place < 0 or not self.part or self.layout is None:
            return made
        return (np.where(self.computed(self.layout), made[0], arrays[self.in_place]),)

    def computed(self, layout: Layout) -> Any:
        """Which elements a loop over a part computes: those of the registers that it touches."""
        coords = layout.coords()
        seen = coords[:4] if self.part_of_warpgroup else coords
        low, high = np.asarray(self.part[0]), np.asarray(self.part[0]) + np.asarray(self.part[1])
        inside = (seen.max(axis=(0, 1)) >= low) & (seen.min(axis=(0, 1)) < high)
        mask = np.zeros(layout.padded_shape, dtype=bool)
        mask[tuple(np.moveaxis(coords[:, :, inside.all(axis=1)], -1, 0))] = True
        return mask[tuple(slice(n) for n in self.shape)]


class Shift(Op, opcode="tile.shift", levels=Level.WARP_SPECIALIZED | Level.MACHINE):
    """Element i of dimension `dim` is element i + distance of `a`; the last `distance` stay.

    Registers move inside of each thread, in place.
    """

    a: Value = operand()
    dim: int = attribute()
    distance: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (tile_type(self.a, "shift"),)

    def verify(self, target: Target) -> None:
        shape = tile_type(self.a, "shift").shape
        if not 0 <= self.dim < len(shape) or not 0 < self.distance < shape[self.dim]:
            raise VerifyError(f"shift: no shift by {self.distance} along {self.dim} of {shape}")

    def evaluate(self, a: Any) -> Any:
        made, kept = np.array(a), a.shape[self.dim] - self.distance
        before, after = [slice(None)] * a.ndim, [slice(None)] * a.ndim
        before[self.dim], after[self.dim] = slice(self.distance, None), slice(kept)
        made[tuple(after)] = a[tuple(before)]
        return made


class ConvertLayout(
    Op, opcode="tile.convert_layout", levels=Level.WARP_SPECIALIZED | Level.MACHINE
):
    """The same tile in another register layout. scratch, barrier, guarded: see `tile.reshape`."""

    a: Value = operand()
    layout: Layout = attribute()
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def infer_types(self) -> tuple[Type, ...]:
        return (tile_type(self.a, "convert_layout").with_layout(self.layout),)

    def scratch_bytes(self) -> int:
        """Shared memory, unless registers are only renamed."""
        t = tile_type(self.a, "convert_layout")
        assert t.layout is not None
        if keeps_threads(t.layout, self.layout):
            return 0
        if self.is_within_warps:
            return t.layout.num_warps * WARP_BYTES
        return exchange_bytes(t.num_elements, t.dtype.bytes)

    @property
    def is_within_warps(self) -> bool:
        """Whether each warp has shared memory of its own, and no barrier is needed."""
        t = tile_type(self.a, "convert_layout")
        return rows_of_move(t.layout, self.layout, t.dtype.bytes) is not None if t.layout else False

    def evaluate(self, a: Any, *_: Any) -> Any:
        return a


# ---------------------------------------------------------------------- functions of the language
@builtin
def zeros(b: Builder, shape: ShapeLike, dtype: DType) -> Value:
    """A tile of zeros; shape is a list or tuple known at compile time, `[]` gives a scalar."""
    return _filled(b, shape, 0, dtype, "zeros()")


@builtin
def full(b: Builder, shape: ShapeLike, value: Operand, dtype: DType) -> Value:
    """A tile with every element equal to `value` (a number or a scalar), cast to `dtype`."""
    return _filled(b, shape, value, dtype, "full()")


@builtin
def zeros_like(b: Builder, input: Value) -> Value:
    """Zeros in the shape and dtype of a tile or scalar."""
    return _filled_like(b, input, 0, None, "zeros_like()")


@builtin
def full_like(b: Builder, input: Value, value: Operand, dtype: DType | None = None) -> Value:
    """`value` in the shape (and dtype, unless one is given) of a tile or scalar."""
    return _filled_like(b, input, value, dtype, "full_like()")


def _filled(b: Builder, shape: ShapeLike, value: Operand, dtype: DType, what: str) -> Value:
    extents = compile_time_shape(shape, f"{what}: shape")
    dtype = dtype_argument(dtype, f"{what}: dtype")
    if isinstance(value, Value) and not isinstance(value.type, ScalarType):
        raise TypeMismatch(f"{what}: value must be a number or a scalar, got {value.type}")
    scalar = as_value(b, value, dtype, what=f"{what}: value")
    return b.value(Splat(scalar, extents)) if extents else scalar


def _filled_like(
    b: Builder, like: Operand, value: Operand, dtype: DType | None, what: str
) -> Value:
    dtype = element_type(like, what) if dtype is None else dtype
    shape = like.type.shape if isinstance(like, Value) and isinstance(like.type, TileType) else ()
    return _filled(b, shape, value, dtype, what)


@builtin
def arange(b: Builder, start: int, end: int) -> Value:
    """[start, start + 1, ..., end - 1] as int32; both known at compile time, any length."""
    first, last = compile_time_int(start, "arange(): start"), compile_time_int(end, "arange(): end")
    if last <= first:
        raise TypeMismatch(f"arange(): end must be above start, got {first} and {last}")
    return b.value(Arange(first, last))


@builtin(methods=(TileType, ScalarType))
def expand_dims(b: Builder, input: Operand, axis: int | list[int] | tuple[int, ...]) -> Value:
    """Inserts axes of extent 1; `axis` counts in the result, a negative one from its end."""
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    value = _value_argument(b, input)
    if isinstance(value.type, ScalarType):
        return b.value(Splat(value, (1,) * len(axes)))
    rank = tile_type(value, "expand_dims()").rank + len(axes)
    places = sorted(axis_argument(a, rank, "expand_dims(): axis") for a in axes)
    if len(set(places)) != len(places):
        raise TypeMismatch(f"expand_dims(): the axes {list(axes)} name one place twice")
    for place in places:
        value = b.value(ExpandDims(value, place))
    return value


def _value_argument(b: Builder, x: Operand) -> Value:
    """A value, or a number as a constant; what else there is, the ops refuse."""
    return x if isinstance(x, Value) else as_value(b, x)


@builtin(methods=(TileType, ScalarType))
def broadcast_to(b: Builder, input: Operand, *shape: ShapeLike) -> Value:
    """Repeats axes of extent 1 up to `shape` (of equal rank), which is a tuple or several ints."""
    extents = _shape_arguments(shape, "broadcast_to()")
    value = _value_argument(b, input)
    if isinstance(value.type, ScalarType):
        return b.value(Splat(value, extents))
    if tile_type(value, "broadcast_to()").shape == extents:
        return value
    return b.value(Broadcast(value, extents))


@builtin(methods=(TileType, ScalarType), also=("view",))
def reshape(b: Builder, input: Operand, *shape: ShapeLike, can_reorder: bool = False) -> Value:
    """The elements in row-major order under another shape, a tuple or several ints.

    can_reorder: accepted; the order is kept anyway.
    """
    del can_reorder
    extents = _shape_arguments(shape, "reshape()")
    value = _value_argument(b, input)
    if isinstance(value.type, ScalarType):
        if prod(extents) != 1:
            raise TypeMismatch(f"reshape(): a scalar has one element, shape is {list(extents)}")
        return b.value(Splat(value, extents)) if extents else value
    if tile_type(value, "reshape()").shape == extents:
        return value
    return b.value(Reshape(value, extents))


@builtin(methods=(TileType,))
def ravel(b: Builder, x: Value) -> Value:
    """The elements in row-major order as one axis."""
    t = tile_type(x, "ravel()")
    return b.value(Reshape(x, (t.num_elements,))) if t.rank != 1 else x


def _shape_arguments(shape: tuple[ShapeLike, ...], what: str) -> tuple[int, ...]:
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    return compile_time_shape(given, f"{what}: shape")


@builtin(methods=(TileType,))
def trans(b: Builder, input: Value, *dims: ShapeLike) -> Value:
    """Swaps the last two axes, or permutes all: `trans(x, 2, 0, 1)`, `trans(x, (2, 0, 1))`."""
    t = tile_type(input, "trans()")
    if not dims:
        if t.rank < 2:
            raise TypeMismatch(f"trans(): expected at least two axes, got shape {list(t.shape)}")
        return _permuted(b, input, (*range(t.rank - 2), t.rank - 1, t.rank - 2), "trans()")
    return _permuted(b, input, dims, "trans()")


@builtin(methods=(TileType,))
def permute(b: Builder, input: Value, *dims: ShapeLike) -> Value:
    """Result axis i is axis dims[i] of the tile; dims is a tuple or several ints."""
    return _permuted(b, input, dims, "permute()")


def _permuted(b: Builder, x: Value, dims: tuple[ShapeLike, ...], what: str) -> Value:
    given = dims[0] if len(dims) == 1 and isinstance(dims[0], tuple | list) else dims
    t = tile_type(x, what)
    order = tuple(axis_argument(d, t.rank, f"{what}: dims") for d in given)
    if sorted(order) != list(range(t.rank)):
        raise TypeMismatch(f"{what}: {list(order)} is not a permutation of the {t.rank} axes")
    return b.value(Transpose(x, order)) if order != tuple(range(t.rank)) else x
