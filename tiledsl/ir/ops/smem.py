"""Shared memory: buffers, slots, views, and moving register tiles in and out."""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target

LOWER = Level.WARP_SPECIALIZED | Level.MACHINE


def smem_type(value: Value, what: str) -> SmemType:
    """The type of a shared-memory operand. Raises TypeMismatch for anything else."""
    if not isinstance(value.type, SmemType):
        raise TypeMismatch(f"{what}: expected a tile in shared memory, got {value.type}")
    return value.type


class Buffer(Op, opcode="smem.buffer", levels=Level.MACHINE, effect=Effect.SYNC):
    """`slots` tiles side by side at `offset_bytes` of the CTA's shared memory.

    The value stands for the first.
    """

    type_: SmemType = attribute()
    slots: int = attribute()
    offset_bytes: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (self.type_,)


class Slot(Op, opcode="smem.slot", levels=Level.MACHINE, effect=Effect.SYNC):
    """One tile of a buffer: slot `cursor.slot`, in the part of warpgroup `group` if it has parts.

    group_slots: slots of one warpgroup's part. Evaluated where it stands: the cursor may move on
    afterwards.
    """

    buffer: Value = operand()
    cursor: Value | None = operand(default=None)
    group: Value | None = operand(default=None)
    group_slots: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        return (smem_type(self.buffer, "slot"),)


class View(Op, opcode="smem.view", levels=LOWER):
    """A tile in shared memory with its dimensions permuted; nothing moves."""

    a: Value = operand()
    order: tuple[int, ...] = attribute(default=(1, 0))

    def infer_types(self) -> tuple[Type, ...]:
        t = smem_type(self.a, "view")
        shape = tuple(t.shape[i] for i in self.order)
        return (SmemType(shape, t.dtype, self.order.index(t.major), t.swizzle_bytes, t.paired),)


class Write(Op, opcode="smem.write", levels=LOWER, effect=Effect.WRITE):
    """Writes part of a register tile into a tile in shared memory (swizzled as its type says).

    start: for each dimension the first tile coordinate that goes to coordinate 0 of the
    destination; the destination's shape says how much. With `per_warpgroup`, the destination holds
    only the rows or columns of the executing
    warpgroup, and `start` counts from its own part. With `is_shared`, all warpgroups of the role
    write, each what it holds.
    """

    smem: Value = operand()
    value: Value = operand()
    start: tuple[int, ...] = attribute(default=())
    per_warpgroup: bool = attribute(default=False)
    is_shared: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        smem_type(self.smem, "write")
        return ()

    def verify(self, target: Target) -> None:
        if not isinstance(self.value.type, TileType):
            raise VerifyError(f"smem.write: value is {self.value.type}, expected a tile")


class Stage(Op, opcode="smem.stage", levels=Level.WARP_SPECIALIZED, effect=Effect.SYNC):
    """A register tile as an operand in shared memory, written by all warpgroups of the role.

    The buffer is free when they get there, and complete and visible to wgmma afterwards. type_: how
    it lies. key: ops of one key share a buffer, and follow one another.
    """

    value: Value = operand()
    type_: SmemType = attribute()
    key: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        value = self.value.type
        if not isinstance(value, TileType) or value.shape != self.type_.shape:
            raise TypeMismatch(f"stage: value is {value}, expected a tile for {self.type_}")
        return (self.type_,)


class Read(Op, opcode="smem.read", levels=LOWER, effect=Effect.READ):
    """The register tile held in shared memory; its layout is set by the layout pass.

    scratch: 4 bytes of shared memory that nobody reads. With it, the values have arrived in the
    registers when the statement ends, so that the slot may be given back; without it they may still
    be on their way.
    first: i32, of a vector: the element of the slot that is read first.
    shape: the first elements of each dimension that are read; all of them when empty.
    part: (first column of the tile, columns, first column of the slot) of a tile of `shape` of
    which the slot holds some columns; only these registers are written.
    by_wgmma: the wgmmas of the next group multiply what is made of all values, so that these have
    arrived when that group is waited for.
    awaited: `smem.arrived` waits for it.
    """

    smem: Value = operand()
    scratch: Value | None = operand(default=None)
    first: Value | None = operand(default=None)
    shape: tuple[int, ...] = attribute(default=())
    part: tuple[int, ...] = attribute(default=())
    by_wgmma: bool = attribute(default=False)
    awaited: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        t = smem_type(self.smem, "read")
        return (TileType(self.shape or t.shape, t.dtype),)


class Arrived(Op, opcode="smem.arrived", levels=LOWER, effect=Effect.SYNC):
    """Tiles that were read from shared memory are in the registers; slots may be given back.

    One test for all of them, behind what they are read under: ptxas waits for a tile where it is
    tested, and of loads between wgmmas that holds up those that follow.
    scratch: 4 bytes of shared memory that nobody reads.
    """

    values: tuple[Value, ...] = operands()
    scratch: Value | None = operand(default=None)

    def infer_types(self) -> tuple[Type, ...]:
        return ()

    def verify(self, target: Target) -> None:
        if not self.values:
            raise VerifyError("arrived: no tile to wait for")


class WriteScalars(Op, opcode="smem.write_scalars", levels=LOWER, effect=Effect.WRITE):
    """One thread writes one or four i32 to the start of a slot, at once."""

    smem: Value = operand()
    values: tuple[Value, ...] = operands()

    def infer_types(self) -> tuple[Type, ...]:
        smem_type(self.smem, "write_scalars")
        return ()

    def verify(self, target: Target) -> None:
        _check_scalars(len(self.values), "write_scalars")


class ReadScalars(Op, opcode="smem.read_scalars", levels=LOWER, effect=Effect.READ):
    """One i32 at the start of a slot, or four, the same in every thread.

    They arrive together: what waits for one of them has waited for all.
    uniform: of four, those that the warp's loops and branches follow. signed: whether some of four
    may be negative.
    """

    smem: Value = operand()
    count: int = attribute(default=1)
    uniform: tuple[int, ...] = attribute(default=())
    signed: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        smem_type(self.smem, "read_scalars")
        return (ScalarType(int32),) * self.count

    def verify(self, target: Target) -> None:
        _check_scalars(self.count, "read_scalars")


def _check_scalars(count: int, what: str) -> None:
    if count not in (1, 4):
        raise VerifyError(f"{what}: one or four scalars, got {count}")


class Clear(Op, opcode="smem.clear", levels=LOWER, effect=Effect.WRITE):
    """Writes zeros from coordinate `first` on along dimension `dim`, not the contiguous one.

    first: i32, 0 or more. Each warpgroup of the role writes all of them, and needs nobody else to
    read them as zeros.
    """

    smem: Value = operand()
    first: Value = operand()
    dim: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        if smem_type(self.smem, "clear").major == self.dim:
            raise TypeMismatch(f"clear: dimension {self.dim} is the contiguous one")
        return ()


class Zero(Op, opcode="smem.zero", levels=Level.MACHINE, effect=Effect.WRITE):
    """Writes zeros to the first `num_bytes` of a buffer; the role's threads share the work.

    num_bytes: a multiple of 16.
    """

    smem: Value = operand()
    num_bytes: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        smem_type(self.smem, "zero")
        return ()
