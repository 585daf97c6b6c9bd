"""Layouts of tiles that shared memory alone holds: read from rings, written for dots.

A tile that a dot takes computed (dequantised, scaled) is written to shared memory in pieces of the
neighbours that a thread holds, which 16-bit operands may have along M or N as well as along K. What
is read of a ring comes in such pieces too, where both run along the same dimension.
"""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
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
    written = next((found for op in ops if (found := _written(op, group, num_warps))), None)
    read = next((op for op in ops if isinstance(op, smem.Read) and op.result in group), None)
    source = _read_dim(read) if read is not None else None
    if written is None:
        return (_shape(*source), 32) if source is not None else None
    fast, size = written
    # Lanes side by side along the contiguous dimension of the ring meet no bank twice.
    crossed = source is not None and source[0] != fast
    return _shape(fast, size), 1 if crossed else 32


def _shape(fast: int, size: int) -> Shape:
    return Shape((fast, 1 - fast), max(1, VECTOR_BYTES // size))


def _written(op: Op, group: set[Value], num_warps: int) -> tuple[int, int] | None:
    """(contiguous dimension, bytes of an element) of an operand that a dot takes from registers."""
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
        along_K = type_.dtype.bits != 16 or extent % whole != 0
        return (1 - side if along_K else side), type_.dtype.bytes
    return None


def _read_dim(op: smem.Read) -> tuple[int, int] | None:
    """(contiguous dimension, bytes of an element) of what is read, if it has two dimensions."""
    memory, type_ = smem.smem_type(op.smem, "read"), op.result.type
    if not isinstance(type_, TileType) or type_.rank != 2 or len(memory.shape) != 2:
        return None
    return memory.major, type_.dtype.bytes
