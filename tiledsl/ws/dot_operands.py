"""What the dots of a single role say of their operands: where they lie, and what changes them."""

from __future__ import annotations

from tiledsl.errors import CodegenError
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.smem_ring import RingSlot
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.dot_shapes import shape_of_dot

ATOM_BYTES = 128


def operand_tile(value: Value) -> TileType:
    """The type of an operand in registers. Raises CodegenError for anything else."""
    if not isinstance(value.type, TileType):
        raise CodegenError(f"dot: operand {value.type} is no tile")
    return value.type


def outer_loop(op: mma.Dot, value: Value) -> For | None:
    """The loop around a dot, where an operand is the same in all its iterations."""
    region = op.parent
    while region is not None and region.parent is not None:
        around = region.parent
        if isinstance(around, While):
            return None
        if isinstance(around, For):
            return around if _is_outside(value, around) else None
        region = around.parent
    return None


def _is_outside(value: Value, loop: For) -> bool:
    """Whether a value is made outside of a loop."""
    region = value.owner if isinstance(value.owner, Region) else value.owner.parent
    while region is not None and region is not loop.body:
        region = region.parent.parent if region.parent is not None else None
    return region is None


def is_promoted(op: mma.Dot) -> bool:
    """Whether a dot adds partial sums in f32."""
    return operand_tile(op.a).dtype.is_fp8 and bool(op.promote)


def in_ring(value: Value) -> bool:
    """Whether a tile in shared memory is a slot of a ring that copies fill."""
    op = value.defining_op
    return isinstance(op, RingSlot) or (isinstance(op, smem.View) and in_ring(op.a))


def needs_sync(value: Value) -> bool:
    """Whether a slot of a ring has been filled just now, and threads have waited for their part."""
    op = value.defining_op
    if isinstance(op, smem.View):
        return needs_sync(op.a)
    return isinstance(op, RingSlot) and op.needs_sync


def is_MN_major(memory: SmemType, dim: int, whole: int) -> bool:
    """Whether wgmma can read an operand that is contiguous along M or N: whole boxes of 16 bits."""
    return memory.dtype.bits == 16 and memory.shape[dim] % whole == 0


def is_of_product(value: Value) -> bool:
    """Whether a value is computed of a product in the same block of the program."""
    seen: set[Op] = set()
    todo = [value.defining_op]
    while todo:
        op = todo.pop()
        if op is None or op in seen or op.parent is not getattr(value.defining_op, "parent", None):
            continue
        seen.add(op)
        if isinstance(op, mma.Dot | mma.Wait):
            return True
        todo += [v.defining_op for v in op.operands]
    return False


def stays_in_registers(op: mma.Dot, value: Value, side: int, num_warpgroups: int) -> bool:
    """Whether the tensor core takes an operand from registers: a left one that lies as sums do.

    So does what is computed of another product, the weights of attention among them.
    """
    type_ = operand_tile(value)
    shape = shape_of_dot(op, num_warpgroups)
    if side or shape.swapped or shape.split or type_.dtype.bits != 16 or type_.layout is None:
        return False
    M, K = type_.shape
    if M != shape.M or K % 16 or not is_of_product(value):
        return False
    return type_.layout.same_places(mma_accumulator(M, K, num_warpgroups))
