"""Where operands of dots of a single role lie: in registers, rings, or memory of their own.

Small sides are padded to whole instructions: rows and columns beyond the product are computed and
never read, the padding of K is zero. What wgmma wants K-major (8-bit and TF32 operands) is
transposed on its way to shared memory. Nothing here changes the graph.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.smem_ring import RingSlot
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.dot_operands import ATOM_BYTES
from tiledsl.ws.dot_operands import in_ring
from tiledsl.ws.dot_operands import is_MN_major
from tiledsl.ws.dot_operands import is_promoted
from tiledsl.ws.dot_operands import operand_tile
from tiledsl.ws.dot_operands import outer_loop
from tiledsl.ws.dot_operands import stays_in_registers
from tiledsl.ws.dot_shapes import DotShape
from tiledsl.ws.dot_shapes import shape_of_dot
from tiledsl.ws.ring_places import ALIGN_BYTES
from tiledsl.ws.ring_places import shared_ring_bytes
from tiledsl.ws.scratch import scratch_bytes


class DotPlaces:
    """Places of the operands of one role's dots.

    rings: start and end of the memory of rings, which dots outside of their loops may use: it is
    free before the first copies, and when a loop has ended.
    """

    def __init__(
        self, graph: TileGraph, role: Role, target: Target, rings: tuple[int, int] | None = None
    ) -> None:
        self.graph = graph
        self.role = role
        self.target = target
        self.groups = max(1, role.num_warps // 4)
        self.rings = rings or (0, shared_ring_bytes(graph))

    def in_rings(self, op: mma.Dot, side: int) -> int | None:
        """Where an operand is written to the memory of rings, by a dot outside of their loops."""
        start, end = self.rings
        if end == start or is_promoted(op) or operand_tile(op.a).dtype.name == "f32":
            return None
        around = [o for o in self.graph.enclosing(op) if isinstance(o, For | While)]
        inner = (op for o in around for region in o.regions for op in region.walk())
        if any(isinstance(o, RingSlot) for o in inner):
            return None
        at, found = start, None
        for n, value in enumerate((op.a, op.b)):
            if self.is_read_in_place(op, value, n):
                continue
            K = operand_tile(op.a).shape[1]
            memory = self.memory(shape_of_dot(op, self.groups), value, n, K)
            if outer_loop(op, value) is not None or memory.shape[1 - n] != K:
                return None
            found = at if n == side else found
            at += -(-memory.bytes // ALIGN_BYTES) * ALIGN_BYTES
        return found if at <= end else None

    def is_read_in_place(self, op: mma.Dot, value: Value, side: int) -> bool:
        """Whether the tensor core takes an operand from a ring or from registers."""
        return self.ring_side(op, value, side) is not None or stays_in_registers(
            op, value, side, self.groups
        )

    def memory(self, shape: DotShape, value: Value, side: int, K: int) -> SmemType:
        """How an operand, or K elements of it, is staged."""
        type_ = operand_tile(value)
        extents = self.extents(shape, type_, side, K)
        is_parted = (shape.split == 0) != (shape.swapped != (side == 1))
        major = self.major(type_, side, extents[side], is_parted=is_parted)
        return SmemType((extents[0], extents[1]), type_.dtype, major)

    def extents(self, shape: DotShape, type_: TileType, side: int, K: int) -> list[int]:
        """Extents of an operand, padded to whole instructions."""
        step = self.target.mma_K(type_.dtype)
        lines = shape.M if side == 0 else shape.N
        padded = -(-K // step) * step
        return [lines, padded] if side == 0 else [padded, lines]

    def ring_side(self, op: mma.Dot, value: Value, side: int) -> Value | None:
        """The slot of a ring that holds an operand as the tensor core reads it, or None."""
        read = value.defining_op
        if not isinstance(read, smem.Read) or not in_ring(read.smem):
            return None
        shape = shape_of_dot(op, self.groups)
        memory, type_ = smem.smem_type(read.smem, "dot"), operand_tile(value)
        if list(memory.shape) != self.extents(shape, type_, side, type_.shape[1 - side]):
            return None
        is_parted = (shape.split == 0) != (shape.swapped != (side == 1))
        whole = ATOM_BYTES // memory.dtype.bytes * (self.groups if is_parted else 1)
        along_K = memory.major == 1 - side
        return read.smem if along_K or is_MN_major(memory, side, whole) else None

    def major(self, type_: TileType, mn_dim: int, extent: int, *, is_parted: bool) -> int:
        """The contiguous dimension: K, unless a 16-bit operand's registers run along the other."""
        elems = ATOM_BYTES // type_.dtype.bytes
        whole = elems * (self.groups if is_parted else 1)
        layout = type_.layout
        if type_.dtype.bits != 16 or layout is None or extent % whole:
            return 1 - mn_dim
        return mn_dim if _runs_along(layout, mn_dim) else 1 - mn_dim

    def most_bytes(self, *, keeps: bool = True) -> int:
        """At most what rings, operands and exchanges take.

        keeps: whether operands that a loop does not change have buffers of their own.
        """
        buffers: list[smem.Buffer] = self.graph.find(smem.Buffer)
        sizes: dict[tuple[SmemType, int, int], int] = {}
        for op, side, value, memory, forms in self.operands():
            is_kept = keeps and outer_loop(op, value) is not None
            sizes[memory, side, value.id if is_kept else 0] = memory.bytes * forms
        placed = max((b.offset_bytes + b.slots * b.type_.bytes for b in buffers), default=0)
        rings = shared_ring_bytes(self.graph)
        return placed + rings + sum(sizes.values()) + scratch_bytes(self.role, rings)

    def operands(self) -> Iterator[tuple[mma.Dot, int, Value, SmemType, int]]:
        """Of all dots what may be staged: dot, side, value, memory, and how many forms of it."""
        for op in self.role.body.walk():
            if not isinstance(op, mma.Dot):
                continue
            shape, a = shape_of_dot(op, self.groups), operand_tile(op.a)
            is_f32 = a.dtype.name == "f32"
            is_read_from_slots = not is_f32 and not is_promoted(op)
            for side, value in enumerate((op.a, op.b)):
                if is_read_from_slots and self.is_read_in_place(op, value, side):
                    continue
                if self.in_rings(op, side) is not None:
                    continue
                memory = self.memory(shape, value, side, a.shape[1])
                yield op, side, value, memory, 2 if is_f32 and op.precision != "tf32" else 1


def _runs_along(layout: Layout, dim: int) -> bool:
    """Whether neighbours along a dimension are neighbouring registers."""
    digits = [d for d in layout.dims[dim] if d.size > 1]
    return bool(digits) and digits[0].unit is Unit.REG and digits[0].stride == 1
