"""Shape ops on tiles, and `tile.map`, the fused elementwise loop of the lower levels."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.op import region
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine

TENSOR_LEVELS = Level.TILE | Level.WARP_SPECIALIZED


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
        if t.rank != len(self.shape) or any(a not in (1, b) for a, b in zip(t.shape, self.shape, strict=True)):
            raise TypeMismatch(f"broadcast: {list(t.shape)} does not broadcast to {list(self.shape)}")
        return (TileType(self.shape, t.dtype),)

    def evaluate(self, a: Any) -> Any:
        return np.broadcast_to(a, self.shape).copy()


class Reshape(Op, opcode="tile.reshape"):
    """The elements in row-major order under another shape."""

    a: Value = operand()
    shape: tuple[int, ...] = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "reshape")
        if t.num_elements != int(np.prod(self.shape)):
            raise TypeMismatch(f"reshape: {list(t.shape)} has {t.num_elements} elements, {list(self.shape)} has {int(np.prod(self.shape))}")
        return (TileType(self.shape, t.dtype),)

    def evaluate(self, a: Any) -> Any:
        return np.reshape(a, self.shape)


class Transpose(Op, opcode="tile.transpose"):
    """Permutes dimensions: result dimension i is operand dimension order[i]."""

    a: Value = operand()
    order: tuple[int, ...] = attribute(default=(1, 0))

    def infer_types(self) -> tuple[Type, ...]:
        t = tile_type(self.a, "trans")
        if sorted(self.order) != list(range(t.rank)):
            raise TypeMismatch(f"trans: {self.order} is not a permutation of the {t.rank} dimensions")
        return (TileType(tuple(t.shape[i] for i in self.order), t.dtype),)

    def evaluate(self, a: Any) -> Any:
        return np.transpose(a, self.order)


class Map(Op, opcode="tile.map", levels=Level.WARP_SPECIALIZED | Level.MACHINE):
    """A fused elementwise loop over the registers of one layout.

    inputs: scalars (used as they are) or tiles; a tile's dims follow `follows`: for each dimension of the input the
    dimension of the iteration space, or None where it is broadcast. body: arguments (one scalar per input, then one
    i32 coordinate per dimension of the iteration space), scalar ops only, yields one scalar per result.
    shape, layout: the iteration space; all results have it.
    """

    inputs: tuple[Value, ...] = operands()
    shape: tuple[int, ...] = attribute()
    layout: Layout | None = attribute(default=None)
    follows: tuple[tuple[int | None, ...], ...] = attribute(default=())
    out_dtypes: tuple[DType, ...] = attribute(default=())
    body: Region = region()

    def infer_types(self) -> tuple[Type, ...]:
        return tuple(TileType(self.shape, d, self.layout) for d in self.out_dtypes)

    def verify(self, target: Target) -> None:
        if len(self.body.args) != len(self.inputs) + len(self.shape):
            raise VerifyError(f"map: body has {len(self.body.args)} arguments, expected {len(self.inputs) + len(self.shape)}")

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        rank = len(self.shape)
        args: list[Any] = []
        for i, array in enumerate(arrays):
            follows = self.follows[i] if i < len(self.follows) else ()
            index: list[Any] = [np.newaxis] * rank
            kept = [d for d in follows if d is not None]
            for d in kept:
                index[d] = slice(None)
            sizes = [n for n, d in zip(np.shape(array), follows, strict=True) if d is not None]
            order = sorted(range(len(kept)), key=kept.__getitem__)
            args.append(np.transpose(np.reshape(array, sizes), order)[tuple(index)] if kept else np.reshape(array, ()))
        args += np.indices(self.shape, dtype=np.int32, sparse=True)
        results = yield from machine.run_region(self.body, args)
        return tuple(np.broadcast_to(r, self.shape) for r in results)


class ConvertLayout(Op, opcode="tile.convert_layout", levels=Level.WARP_SPECIALIZED | Level.MACHINE):
    """The same tile in another register layout."""

    a: Value = operand()
    layout: Layout = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (tile_type(self.a, "convert_layout").with_layout(self.layout),)

    def evaluate(self, a: Any) -> Any:
        return a
