"""Copies from global to shared memory that a thread starts and waits for later.

A thread's copies are grouped by commits; it may wait until all but its latest groups have landed.
Other threads see them after a barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

from tiledsl.dtypes import int1
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import region
from tiledsl.ir.ops.control import same_type
from tiledsl.ir.ops.elementwise import like
from tiledsl.ir.ops.pointer import LOWER
from tiledsl.ir.ops.pointer import Lanes
from tiledsl.ir.ops.pointer import pointed_to
from tiledsl.ir.ops.smem import smem_type
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine

LINE_BYTES = 128
"""What lies before a warp's vectors in a segment."""
MOST_BYTES = 16
COPY_BYTES = (4, 8, MOST_BYTES)
"""What one copy moves. Ref: PTX ISA, cp.async."""


def check_copy(what: str, slot: Value, tile: TileType) -> None:
    """The tile's elements have a place in the slot. Raises TypeMismatch."""
    memory = smem_type(slot, what)
    fits = len(memory.shape) == tile.rank and all(
        n <= room for n, room in zip(tile.shape, memory.shape, strict=True)
    )
    if memory.dtype != tile.dtype or not fits:
        raise TypeMismatch(f"{what}: a tile {tile.with_layout(None)} into {memory}")


class Copy(Op, opcode="pointer.copy", levels=Level.WARP_SPECIALIZED, effect=Effect.WRITE):
    """Starts copies of the elements at a tile of pointers to a tile in shared memory.

    Where the mask is false nothing is read and zeros are written. The result stands for what is on
    its way: nothing reads it, its layout says which thread copies what.
    Ref: PTX ISA, cp.async.
    """

    slot: Value = operand()
    pointer: Value = operand()
    mask: Value | None = operand(default=None)

    def infer_types(self) -> tuple[Type, ...]:
        made = like(self.pointer.type, pointed_to(self.pointer, "copy"))
        if not isinstance(made, TileType):
            raise TypeMismatch(f"copy: pointer is {self.pointer.type}, expected a tile of pointers")
        mask = self.mask
        if mask is not None and not same_type(mask.type, made.with_dtype(int1)):
            raise TypeMismatch(f"copy: mask is {mask.type}, expected {made.with_dtype(int1)}")
        check_copy("copy", self.slot, made)
        return (made.with_layout(None),)


class CopyLanes(Lanes, opcode="pointer.copy_lanes", levels=LOWER, effect=Effect.WRITE):
    """`pointer.copy` with the computation of its addresses and mask, `width` elements at once."""

    slot: Value = operand(kw_only=True)
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        check_copy("copy_lanes", self.slot, TileType(self.shape, self.dtype))
        return ()

    def verify(self, target: Target) -> None:
        super().verify(target)
        if self.width * self.dtype.bytes not in COPY_BYTES:
            raise VerifyError(
                f"copy_lanes: {self.width * self.dtype.bytes} bytes at once, expected 4, 8 or 16"
            )


class FetchLanes(Lanes, opcode="pointer.fetch_lanes", levels=LOWER, effect=Effect.WRITE):
    """Starts copies of what a `pointer.load_lanes` with the same slot will read, as a group.

    Each of the `num_threads` threads of a CTA copies what it will read itself, to places of its
    own, so that it only waits for its own copies; at odd addresses also those of its warp. when:
    whether anything is copied (i1). filled_slot: fillings are written where the mask keeps out.
    segment: a warp's vectors follow each other, behind a line for what comes before them ("main");
    or what goes to that line ("line").
    Ref: PTX ISA, cp.async.
    """

    slot: Value = operand(kw_only=True)
    when: Value | None = operand(default=None, kw_only=True)
    num_threads: int = attribute(default=0)
    filled_slot: bool = attribute(default=False)
    segment: str = attribute(default="")
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        memory, needed = smem_type(self.slot, "fetch_lanes"), fetched_bytes(self, self.num_threads)
        if memory.bytes < needed:
            raise TypeMismatch(f"fetch_lanes: {needed} bytes into {memory}")
        return ()

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        """Whoever reads the slot finds in memory what was copied."""
        return ()

    def verify(self, target: Target) -> None:
        super().verify(target)
        if self.width * self.dtype.bytes not in COPY_BYTES:
            raise VerifyError(
                f"fetch_lanes: {self.width * self.dtype.bytes} bytes at once, expected 4, 8 or 16"
            )


class PrefetchLanes(Lanes, opcode="pointer.prefetch_lanes", levels=LOWER, effect=Effect.SYNC):
    """Asks for the lines of L2 that hold the elements of a `pointer.load_lanes`, without a value.

    when: whether any are asked for (i1). parts: only the first of so many parts of a thread's
    elements is asked for. Ref: PTX ISA, prefetch.
    """

    when: Value | None = operand(default=None, kw_only=True)
    parts: int = attribute(default=1)
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        if self.when is not None and self.when.type != ScalarType(int1):
            raise TypeMismatch(f"prefetch_lanes: when is {self.when.type}, expected i1")
        return ()

    def verify(self, target: Target) -> None:
        super().verify(target)
        if self.parts < 1 or self.layout.num_regs % (self.parts * max(self.width, self.repeats)):
            raise VerifyError(
                f"prefetch_lanes: {self.layout.num_regs} elements in vectors of {self.width}, "
                f"expected {self.parts} parts of whole vectors"
            )

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        """Nothing changes."""
        return ()


def fetched_bytes(op: Lanes, num_threads: int) -> int:
    """Shared memory for what threads fetch of an access.

    Where it is shifted a vector lies in two pieces, of which a warp whose vectors follow each other
    shares all but the last.
    """
    num_bytes = num_threads * op.layout.num_regs * op.dtype.bytes
    if getattr(op, "segment", False):
        return num_bytes + num_threads // 32 * LINE_BYTES
    if not op.shifted:
        return num_bytes
    return num_bytes + num_threads // 32 * MOST_BYTES if op.chained else 2 * num_bytes


class CopyCommit(Op, opcode="pointer.copy_commit", levels=LOWER, effect=Effect.SYNC):
    """Makes a group of the copies that each thread started since its last commit.

    Ref: PTX ISA, cp.async.commit_group.
    """

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class CopyWait(Op, opcode="pointer.copy_wait", levels=LOWER, effect=Effect.SYNC):
    """Each thread waits until at most its latest `pending` groups of copies are on their way.

    Ref: PTX ISA, cp.async.wait_group.
    """

    pending: int = attribute(default=0)

    def infer_types(self) -> tuple[Type, ...]:
        return ()

    def verify(self, target: Target) -> None:
        if self.pending < 0:
            raise VerifyError(f"copy_wait: pending is {self.pending}, expected 0 or more")
