"""Implicit broadcasting: scalars fill tiles, ranks are aligned on the left, extents of 1 repeat."""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.dtypes import DType
from tiledsl.errors import TypeMismatch
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import common_dtype
from tiledsl.ir.ops.tile import Broadcast
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.types import TileType

Shape = tuple[int, ...]


def shape_of(x: Operand) -> Shape | None:
    """The shape of a tile; None for a scalar or a number."""
    return x.type.shape if isinstance(x, Value) and isinstance(x.type, TileType) else None


def common_shape(shapes: Sequence[Shape | None], what: str) -> Shape | None:
    """The shape that all broadcast to; None when there are scalars only. Raises TypeMismatch."""
    result: Shape | None = None
    for shape in shapes:
        if shape is None or shape == result:
            continue
        result = shape if result is None else _meet(result, shape, what)
    return result


def _meet(x: Shape, y: Shape, what: str) -> Shape:
    rank = max(len(x), len(y))
    long_x = (1,) * (rank - len(x)) + x
    long_y = (1,) * (rank - len(y)) + y
    for i, (m, n) in enumerate(zip(long_x, long_y, strict=True)):
        if m != n and 1 not in (m, n):
            raise TypeMismatch(
                f"{what}: shapes {list(x)} and {list(y)} do not broadcast: "
                f"dimension {i - rank} is {m} and {n}"
            )
    return tuple(n if m == 1 else m for m, n in zip(long_x, long_y, strict=True))


def broadcast_value(b: Builder, x: Value, shape: Shape | None, what: str) -> Value:
    """X as a tile of a shape that it broadcasts to. Raises TypeMismatch where it does not."""
    if shape is None:
        return x
    if not isinstance(x.type, TileType):
        return b.value(Splat(x, shape))
    if x.type.shape == shape:
        return x
    if common_shape([x.type.shape, shape], what) != shape:
        raise TypeMismatch(
            f"{what}: shape {list(x.type.shape)} does not broadcast to {list(shape)}"
        )
    while isinstance(x.type, TileType) and x.type.rank < len(shape):
        x = b.value(ExpandDims(x, 0))
    return b.value(Broadcast(x, shape)) if x.type != TileType(shape, _dtype(x)) else x


def _dtype(x: Value) -> DType:
    assert isinstance(x.type, TileType)
    return x.type.dtype


def unify(b: Builder, xs: Sequence[Operand], dtype: DType | None, what: str) -> list[Value]:
    """Operands as values of one shape, cast to `dtype` when one is given."""
    shape = common_shape([shape_of(x) for x in xs], what)
    return [broadcast_value(b, as_value(b, x, dtype, what=what), shape, what) for x in xs]


def unify_pair(b: Builder, x: Operand, y: Operand, what: str) -> tuple[Value, Value]:
    """Two operands in their common dtype and shape."""
    left, right = unify(b, (x, y), common_dtype((x, y), what), what)
    return left, right
