"""Tensor parameters: their extents and strides, block loads and block stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.machine import load_block
from tiledsl.ir.machine import store_block
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import axis_argument
from tiledsl.ir.operands import compile_time_shape
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_number
from tiledsl.ir.pointer_values import need_numbers
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine


def tensor_type(value: Value, what: str) -> TensorType:
    """The type of a tensor operand. Raises TypeMismatch for anything else."""
    if not isinstance(value.type, TensorType):
        raise TypeMismatch(f"{what}: expected a tensor, got {value.type}")
    return value.type


class Shape(Op, opcode="memory.shape"):
    """Extent of dimension `dim` of a tensor, elements. Result: i32 (launches check its range)."""

    tensor: Value = operand()
    dim: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        t = tensor_type(self.tensor, "shape")
        if not 0 <= self.dim < t.rank:
            raise TypeMismatch(f"shape: dimension {self.dim} of a tensor of rank {t.rank}")
        return (ScalarType(int32),)

    def evaluate(self, tensor: Any) -> Any:
        return np.asarray(tensor.shape[self.dim], dtype=np.int32)


class Stride(Op, opcode="memory.stride"):
    """Stride of dimension `dim` of a tensor, elements. Result: i64."""

    tensor: Value = operand()
    dim: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        t = tensor_type(self.tensor, "stride")
        if not 0 <= self.dim < t.rank:
            raise TypeMismatch(f"stride: dimension {self.dim} of a tensor of rank {t.rank}")
        return (ScalarType(int64),)

    def evaluate(self, tensor: Any) -> Any:
        return np.asarray(tensor.strides[self.dim] // tensor.itemsize, dtype=np.int64)


class Pick(Op, opcode="memory.pick"):
    """One of several tensors of a rank and a dtype, by its number.

    index: an integer scalar in [0, number of tensors), the same for all threads.
    """

    index: Value = operand()
    tensors: tuple[Value, ...] = operands()

    def infer_types(self) -> tuple[Type, ...]:
        types = [tensor_type(t, "pick") for t in self.tensors]
        if not types:
            raise TypeMismatch("pick: expected at least one tensor")
        if not isinstance(self.index.type, ScalarType) or not self.index.type.dtype.is_int:
            raise TypeMismatch(f"pick: index must be an integer scalar, got {self.index.type}")
        first = types[0]
        for t in types[1:]:
            if (t.rank, t.dtype) != (first.rank, first.dtype):
                raise TypeMismatch(
                    f"pick: expected tensors of one rank and dtype, got {first}, {t}"
                )
        inner = first.inner_dim if all(t.inner_dim == first.inner_dim for t in types) else None
        tma = inner is not None and all(t.tma for t in types)
        align = min(t.align_bytes for t in types)
        ragged = any(t.ragged for t in types)
        pitch = 1 if tma else min(16 if t.tma else t.pitch_bytes for t in types)
        return (TensorType(first.rank, first.dtype, inner, tma, align, ragged, pitch),)

    def evaluate(self, index: Any, *tensors: Any) -> Any:
        return tensors[int(index)]


def tensors_of(value: Value) -> tuple[Value, ...]:
    """The arguments that a tensor may be."""
    op = value.defining_op
    return op.tensors if isinstance(op, Pick) else (value,)


def picked(value: Value) -> Value | None:
    """A tensor that is one of several; None for an argument."""
    return value if isinstance(value.defining_op, Pick) else None


class Load(Op, opcode="memory.load", levels=Level.ALL, effect=Effect.READ):
    """A block of a tensor: element i is tensor[offsets + i], or `other` outside the tensor.

    offsets: one integer scalar per dimension, elements; may be negative or beyond the end.
    block_shape: one extent per dimension. squeeze: dimensions of block extent 1 that the result
    leaves out. part, part_of_warpgroup: (first coordinate, extents) of the result that is read, as
    in tile.map; all of it when empty. streamed: a role loads it, in chunks through a channel.
    """

    tensor: Value = operand()
    offsets: tuple[Value, ...] = operands()
    other: Value | None = operand(default=None)
    block_shape: tuple[int, ...] = attribute(kw_only=True)
    squeeze: tuple[int, ...] = attribute(default=())
    part: tuple[tuple[int, ...], ...] = attribute(default=())
    part_of_warpgroup: bool = attribute(default=False)
    streamed: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        t = tensor_type(self.tensor, "load")
        check_block(t, self.offsets, self.block_shape, "load")
        if any(self.block_shape[d] != 1 for d in self.squeeze):
            raise TypeMismatch(
                f"load: squeezed dimensions must have block extent 1, got {self.block_shape}"
            )
        shape = tuple(n for i, n in enumerate(self.block_shape) if i not in self.squeeze)
        return (TileType(shape, t.dtype),)

    def evaluate(self, tensor: Any, *rest: Any) -> Any:
        rank = len(self.offsets)
        other = rest[rank] if len(rest) > rank else 0
        block = load_block(tensor, [int(o) for o in rest[:rank]], self.block_shape, other)
        return np.squeeze(block, self.squeeze)


class Store(Op, opcode="memory.store", levels=Level.ALL, effect=Effect.WRITE):
    """Writes a block of a tensor; elements outside the tensor are dropped.

    value: tile of the tensor's dtype. end: where given, the coordinate of dimension `end_dim` from
    which on elements are dropped too.
    """

    tensor: Value = operand()
    offsets: tuple[Value, ...] = operands()
    value: Value = operand()
    block_shape: tuple[int, ...] = attribute()
    squeeze: tuple[int, ...] = attribute(default=())
    end: Value | None = operand(default=None)
    end_dim: int = attribute(default=0)

    def infer_types(self) -> tuple[Type, ...]:
        t = tensor_type(self.tensor, "store")
        check_block(t, self.offsets, self.block_shape, "store")
        check_end(t, self.end, self.end_dim, "store")
        v = self.value.type
        shape = tuple(n for i, n in enumerate(self.block_shape) if i not in self.squeeze)
        if not isinstance(v, TileType) or v.shape != shape:
            raise TypeMismatch(f"store: value is {v}, expected a tile of shape {list(shape)}")
        if v.dtype != t.dtype:
            raise TypeMismatch(f"store: value is {v.dtype!r}, the tensor is {t.dtype!r}")
        return ()

    def verify(self, target: Target) -> None:
        if any(self.block_shape[d] != 1 for d in self.squeeze):
            raise VerifyError("store: squeezed dimensions must have block extent 1")

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        rank = len(self.offsets)
        tensor, offsets, value = arrays[0], arrays[1 : rank + 1], arrays[rank + 1]
        part = tensor
        if self.end is not None:
            part = before_end(tensor, int(arrays[rank + 2]), self.end_dim)
        block = np.reshape(value, self.block_shape)
        window = store_block(part, [int(o) for o in offsets], block)
        machine.stored(self, tensor, window)


def before_end(tensor: Any, end: int, dim: int) -> Any:
    """The part of an array in front of a coordinate of one dimension."""
    return tensor[(*(slice(None),) * dim, slice(0, max(0, end)))]


def check_end(t: TensorType, end: Value | None, dim: int, what: str) -> None:
    """Rules of the end of a store."""
    if end is None:
        return
    if not isinstance(end.type, ScalarType) or not end.type.dtype.is_int:
        raise TypeMismatch(f"{what}: end must be an integer scalar, got {end.type}")
    if not 0 <= dim < t.rank:
        raise TypeMismatch(f"{what}: end is of dimension {dim}, the tensor has rank {t.rank}")


def check_block(
    t: TensorType, offsets: tuple[Value, ...], block_shape: tuple[int, ...], what: str
) -> None:
    """Rank and dtype rules shared by block loads and stores."""
    if len(offsets) != t.rank:
        raise TypeMismatch(
            f"{what}: the tensor has rank {t.rank} but {len(offsets)} offsets were given"
        )
    if len(block_shape) != t.rank:
        raise TypeMismatch(
            f"{what}: the tensor has rank {t.rank} but block_shape is {list(block_shape)}"
        )
    for i, o in enumerate(offsets):
        if not isinstance(o.type, ScalarType) or not o.type.dtype.is_int:
            raise TypeMismatch(f"{what}: offset {i} must be an integer scalar, got {o.type}")
    for n in block_shape:
        if n < 1:
            raise TypeMismatch(f"{what}: block extents must be positive, got {list(block_shape)}")


# -------------------------------------------------------------------- methods of tensor parameters
@builtin(methods=(TensorType,))
def load(
    b: Builder,
    tensor: Value,
    offsets: Sequence[Operand] | Operand,
    block_shape: Sequence[int] | int,
    other: Operand | None = None,
) -> Value:
    """The block of `block_shape` at `offsets`; elements outside the tensor read as `other` (or 0).

    offsets: one integer per dimension, in elements, of any size and sign. block_shape: known at
    compile time; when it has fewer entries than the tensor has dimensions, the leading dimensions
    have extent 1 and the result leaves them out: `a.load((batch, m, k), (BM, BK))` is a tile of
    shape [BM, BK].
    """
    t = tensor_type(tensor, "load()")
    what = f"{tensor.name or 'tensor'}.load()"
    shape = compile_time_shape(block_shape, f"{what}: block_shape")
    block, squeeze = _whole_block(t, shape, what, "block_shape")
    fill: Any = None
    if other is not None:
        fill = as_value(b, other, t.dtype, what=f"{what}: other")
        if not isinstance(fill.type, ScalarType):
            raise TypeMismatch(f"{what}: other must be a number or a scalar, got {describe(other)}")
    places = _offsets(b, t, offsets, what)
    return b.value(Load(tensor, places, other=fill, block_shape=block, squeeze=squeeze))


@builtin(methods=(TensorType,))
def store(
    b: Builder,
    tensor: Value,
    offsets: Sequence[Operand] | Operand,
    value: Operand,
    end: Operand | None = None,
) -> None:
    """Writes a tile at `offsets`, cast to the tensor's dtype; elements outside it are dropped.

    A tile with fewer dimensions than the tensor is written with extent 1 along the leading ones.
    end: where the tile's first dimension ends: what lies there or behind is dropped as well.
    """
    t = tensor_type(tensor, "store()")
    what = f"{tensor.name or 'tensor'}.store()"
    data = as_value(b, value, t.dtype, what=f"{what}: value")
    if isinstance(data.type, ScalarType):
        data = broadcast_value(b, data, (1,) * t.rank, what)
    assert isinstance(data.type, TileType)
    block, squeeze = _whole_block(t, data.type.shape, what, "the tile's shape")
    places = _offsets(b, t, offsets, what)
    last = None if unwrap(end) is None else _offset(b, end, f"{what}: end")
    dim = len(squeeze)
    b.add(Store(tensor, places, data, block, squeeze, last, dim if last is not None else 0))


@builtin(methods=(TensorType,))
def stride(b: Builder, tensor: Value, dim: int) -> Value:
    """Stride of a dimension of a tensor in elements; int64 scalar."""
    t = tensor_type(tensor, "stride()")
    return b.value(Stride(tensor, axis_argument(dim, t.rank, f"{tensor.name}.stride(): dim")))


def _whole_block(
    t: TensorType, shape: tuple[int, ...], what: str, name: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The block over all dimensions, and those that the tile leaves out."""
    missing = t.rank - len(shape)
    if missing < 0 or not shape:
        raise TypeMismatch(f"{what}: {name} is {list(shape)}, but the tensor has rank {t.rank}")
    return (1,) * missing + shape, tuple(range(missing))


def _offsets(
    b: Builder, t: TensorType, offsets: Sequence[Operand] | Operand, what: str
) -> tuple[Value, ...]:
    items = tuple(offsets) if isinstance(offsets, tuple | list) else (offsets,)
    if len(items) != t.rank:
        raise TypeMismatch(
            f"{what}: expected {t.rank} offsets, one per dimension of the tensor, got {len(items)}"
        )
    return tuple(_offset(b, item, f"{what}: offsets[{i}]") for i, item in enumerate(items))


def _offset(b: Builder, x: Any, what: str) -> Value:
    if isinstance(x, Value) and isinstance(x.type, ScalarType) and x.type.dtype.is_int:
        return x
    if is_number(x) and isinstance(x, int) and not isinstance(x, bool):
        return as_value(b, x)
    hint = None
    if isinstance(x, Value) and isinstance(x.type, ScalarType):
        need_numbers(what, x)
    if isinstance(x, Value) and isinstance(x.type, TileType):
        hint = (
            "an offset is where the block begins, a scalar; the block's extents say how far it goes"
        )
    raise TypeMismatch(f"{what} must be an integer scalar, got {describe(x)}", hint=hint)
