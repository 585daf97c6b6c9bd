"""Tensor parameters: their extents and strides, block loads and block stores."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.machine import load_block
from tiledsl.ir.machine import store_block
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
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
    """Extent of dimension `dim` of a tensor, elements. Result: i32 (launches check that it fits)."""

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


class Load(Op, opcode="memory.load", levels=Level.ALL, effect=Effect.READ):
    """A block of a tensor: element i of the result is tensor[offsets + i], `other` outside the tensor.

    offsets: one integer scalar per dimension, elements; may be negative or beyond the end.
    block_shape: one extent per dimension. squeeze: dimensions of block extent 1 that the result leaves out.
    """

    tensor: Value = operand()
    offsets: tuple[Value, ...] = operands()
    other: Value = operand(default=None)
    block_shape: tuple[int, ...] = attribute()
    squeeze: tuple[int, ...] = attribute(default=())

    def infer_types(self) -> tuple[Type, ...]:
        t = tensor_type(self.tensor, "load")
        check_block(t, self.offsets, self.block_shape, "load")
        if any(self.block_shape[d] != 1 for d in self.squeeze):
            raise TypeMismatch(f"load: squeezed dimensions must have block extent 1, got {self.block_shape}")
        shape = tuple(n for i, n in enumerate(self.block_shape) if i not in self.squeeze)
        return (TileType(shape, t.dtype),)

    def evaluate(self, tensor: Any, *rest: Any) -> Any:
        rank = len(self.offsets)
        other = rest[rank] if len(rest) > rank else 0
        block = load_block(tensor, [int(o) for o in rest[:rank]], self.block_shape, other)
        return np.squeeze(block, self.squeeze)


class Store(Op, opcode="memory.store", levels=Level.ALL, effect=Effect.WRITE):
    """Writes a block of a tensor; elements outside the tensor are dropped. value: tile of the tensor's dtype."""

    tensor: Value = operand()
    offsets: tuple[Value, ...] = operands()
    value: Value = operand()
    block_shape: tuple[int, ...] = attribute()
    squeeze: tuple[int, ...] = attribute(default=())

    def infer_types(self) -> tuple[Type, ...]:
        t = tensor_type(self.tensor, "store")
        check_block(t, self.offsets, self.block_shape, "store")
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
        tensor, *offsets, value = arrays
        block = np.reshape(value, self.block_shape)
        window = store_block(tensor, [int(o) for o in offsets], block)
        machine.stored(self, tensor, window)


def check_block(t: TensorType, offsets: tuple[Value, ...], block_shape: tuple[int, ...], what: str) -> None:
    """Rank and dtype rules shared by block loads and stores."""
    if len(offsets) != t.rank:
        raise TypeMismatch(f"{what}: the tensor has rank {t.rank} but {len(offsets)} offsets were given")
    if len(block_shape) != t.rank:
        raise TypeMismatch(f"{what}: the tensor has rank {t.rank} but block_shape is {list(block_shape)}")
    for i, o in enumerate(offsets):
        if not isinstance(o.type, ScalarType) or not o.type.dtype.is_int:
            raise TypeMismatch(f"{what}: offset {i} must be an integer scalar, got {o.type}")
    for n in block_shape:
        if n < 1:
            raise TypeMismatch(f"{what}: block extents must be positive, got {list(block_shape)}")


def reads_and_writes(ops: Any) -> tuple[set[Value], set[Value]]:
    """Tensors that loads read and stores write among some ops."""
    reads: set[Value] = set()
    writes: set[Value] = set()
    for op in ops:
        if isinstance(op, Load):
            reads.add(op.tensor)
        elif isinstance(op, Store):
            writes.add(op.tensor)
    return reads, writes
