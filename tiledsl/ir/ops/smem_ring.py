"""Rings of tiles in shared memory that the threads of one role fill and read in turn."""

from __future__ import annotations

from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.ops.smem import LOWER
from tiledsl.ir.ops.smem import smem_type
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import Type
from tiledsl.target import Target


class Ring(Op, opcode="smem.ring", levels=Level.WARP_SPECIALIZED, effect=Effect.SYNC):
    """`depth` tiles side by side in shared memory; the value stands for the first.

    is_zeroed: filled with zeros when the kernel starts, for what no copy ever writes.
    """

    type_: SmemType = attribute()
    depth: int = attribute()
    is_zeroed: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        return (self.type_,)

    def verify(self, target: Target) -> None:
        if self.depth < 1:
            raise VerifyError(f"ring: depth is {self.depth}, expected 1 or more")

    def describe(self) -> str:
        """`3 x 64x64 bf16`."""
        return f"{self.depth} x {'x'.join(map(str, self.type_.shape))} {self.type_.dtype}"


class RingSlot(Op, opcode="smem.ring_slot", levels=LOWER, effect=Effect.SYNC):
    """Tile `index` (i32, equal in all threads) of a ring.

    needs_sync: threads wait for their own copies to it only: who reads it waits for all of them,
    before and after.
    """

    ring: Value = operand()
    index: Value = operand()
    needs_sync: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        if not isinstance(self.index.type, ScalarType) or not self.index.type.dtype.is_int:
            raise TypeMismatch(f"ring_slot: index is {self.index.type}, expected an integer")
        return (smem_type(self.ring, "ring_slot"),)
