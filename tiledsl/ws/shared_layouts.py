"""Layouts of tiles that shared memory alone holds: read from rings, written for dots.

A tile that a dot takes computed (dequantised, scaled) is written to shared memory in pieces of the
neighbours that a thread holds, which 16-bit operands may have along M or N as well as along K. What
is read of a ring comes in such pieces too, where both run along the same dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.tile_moves import Join
from tiledsl.ir.types import TileType
from tiledsl.ws.access_layouts import VECTOR_BYTES
from tiledsl.ws.access_layouts import Shape
from tiledsl.ws.dot_operands import ATOM_BYTES
from tiledsl.ws.dot_operands import in_ring
from tiledsl.ws.dot_operands import operand_tile
from tiledsl.ws.dot_shapes import shape_of_dot


def shared_shape(ops: Iterable[Op], group: set[Value], num_warps: int) -> tuple[Shape, int] | None:
    """How a group of tiles lies that only shared memory holds, and lanes of the fastest dimension.

    None where no dot takes one of them from registers, and none is read from a ring.
    """
    ops = list(ops)
    reshapes = [op for op in ops if isinstance(op, tile.Reshape) and op.result in group]
    runs = {_repeated_dim(op) for op in reshapes}
    written = next((found for op in ops if (found := _written(op, group, num_warps, runs))), None)
    read = next((op for op in ops if isinstance(op, smem.Read) and op.result in group), None)
    source = _read_dim(read) if read is not None else None
    if written is None:
        if source is None:
            return None
        joined = any(isinstance(op, Join) and op.a in group for op in ops)
        size = max(_element_bytes(v) for v in group) if joined else source[1]
        return _shape(source[0], size), 32
    fast, size = written
    # Lanes side by side along the contiguous dimension of the ring meet no bank twice.
    crossed = bool(reshapes) if source is None else source[0] != fast
    return _shape(fast, size), 1 if crossed else 32


def reshaped_operands(ops: Iterable[Op], tied: Callable[[Value, Value], bool]) -> list[Value]:
    """What says how operands lie that dots take computed from tiles of another shape.

    tied: whether two values lie alike. The operand itself, where what it is reshaped from may lie
    in any way; one of the two tiles that were joined before, whose pairs a thread has in registers.
    """
    ops = list(ops)
    reshapes = [op for op in ops if isinstance(op, tile.Reshape)]
    out: list[Value] = []
    for dot in ops:
        if isinstance(dot, mma.Dot):
            for value in (dot.a, dot.b):
                made = [op for op in reshapes if tied(op.result, value)]
                out += [_joined(op) or value for op in made[:1]]
    return out


def _joined(op: tile.Reshape) -> Value | None:
    """One of the two tiles that a tile is joined from before it is reshaped."""
    value = op.a
    while isinstance(value.defining_op, tile.Transpose):
        value = value.defining_op.a
    join = value.defining_op
    return join.a if isinstance(join, Join) else None


def _element_bytes(value: Value) -> int:
    return value.type.dtype.bytes if isinstance(value.type, TileType) else 1


def _shape(fast: int, size: int) -> Shape:
    return Shape((fast, 1 - fast), max(1, VECTOR_BYTES // size))


def _repeated_dim(op: tile.Reshape) -> int | None:
    """The dimension along which runs of equal elements make a tile; None where none do."""
    spread = op.a.defining_op
    source = spread.a.defining_op if isinstance(spread, tile.Broadcast) else None
    if not isinstance(spread, tile.Broadcast) or not isinstance(source, tile.ExpandDims):
        return None
    dim, shape = source.axis - 1, spread.shape
    whole = dim >= 0 and (*shape[:dim], shape[dim] * shape[dim + 1], *shape[dim + 2 :])
    return dim if whole == op.shape else None


def _written(
    op: Op, group: set[Value], num_warps: int, runs: set[int | None]
) -> tuple[int, int] | None:
    """(contiguous dimension, bytes of an element) of an operand that a dot takes from registers.

    runs: dimensions along which equal elements lie, best in one thread.
    """
    if not isinstance(op, mma.Dot):
        return None
    groups = max(1, num_warps // 4)
    for side, value in enumerate((op.a, op.b)):
        source = value.defining_op
        if value not in group or (isinstance(source, smem.Read) and in_ring(source.smem)):
            continue
        type_ = operand_tile(value)
        shape = shape_of_dot(op, groups)
        extent = shape.N if side else shape.M
        is_parted = (shape.split == 0) != (shape.swapped != (side == 1))
        whole = ATOM_BYTES // type_.dtype.bytes * (groups if is_parted else 1)
        along_K = type_.dtype.bits != 16 or extent % whole != 0 or 1 - side in runs
        return (1 - side if along_K else side), type_.dtype.bytes
    return None


def _read_dim(op: smem.Read) -> tuple[int, int] | None:
    """(contiguous dimension, bytes of an element) of what is read, if it has two dimensions."""
    memory, type_ = smem.smem_type(op.smem, "read"), op.result.type
    if not isinstance(type_, TileType) or type_.rank != 2 or len(memory.shape) != 2:
        return None
    return memory.major, type_.dtype.bytes
