"""Bulk tensor copies through tensor maps."""

from __future__ import annotations

from tiledsl.errors import VerifyError
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.ops.memory import check_block
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.types import HandleType
from tiledsl.ir.types import Type
from tiledsl.target import Target

MACHINE = Level.MACHINE


class TensorMap(Op, opcode="tma.map", levels=MACHINE):
    """A kernel parameter that describes boxes of a tensor.

    dims: dimensions of the tensor, innermost first; one that stands twice is cut into fours, the
    place within four first. box: extents of one copy in that order, elements.
    more: further tensors, whose maps follow in a table.
    Ref: PTX ISA, tensor maps; CUDA driver API, cuTensorMapEncodeTiled.
    """

    tensor: Value = operand()
    more: tuple[Value, ...] = operands()
    dims: tuple[int, ...] = attribute()
    box: tuple[int, ...] = attribute()
    swizzle_bytes: int = attribute(default=128)
    l2_promotion_bytes: int = attribute(default=256)

    def infer_types(self) -> tuple[Type, ...]:
        tensor_type(self.tensor, "tensor map")
        return (HandleType("tensor_map"),)


class Prefetch(Op, opcode="tma.prefetch", levels=MACHINE, effect=Effect.SYNC):
    """Fetches a tensor map into the descriptor cache (one thread).

    Ref: PTX ISA, prefetch.tensormap.
    """

    map: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class PrefetchBox(Op, opcode="tma.prefetch_box", levels=MACHINE, effect=Effect.SYNC):
    """Asks for one box of a tensor to be in L2 (one thread); what lies outside is left out.

    It reads no value, so that it may stand before barrier.grid_dependency, and it keeps its place.
    coords: element coordinates, innermost first. Ref: PTX ISA, cp.async.bulk.prefetch.tensor.
    """

    map: Value = operand()
    coords: tuple[Value, ...] = operands()

    def infer_types(self) -> tuple[Type, ...]:
        return ()

    def verify(self, target: Target) -> None:
        if not 1 <= len(self.coords) <= 5:
            raise VerifyError(f"prefetch: expected 1 to 5 coordinates, got {len(self.coords)}")


class Load(Op, opcode="tma.load", levels=MACHINE, effect=Effect.SYNC):
    """Starts the copy of one box into shared memory; its bytes complete on the cursor's mbarrier.

    smem: destination tile; the box goes to byte `offset_bytes + part * part_bytes` of it. coords:
    element coordinates of the box, innermost first. mask: CTAs of the cluster that receive it
    (multicast), absent for this CTA only. item: which tensor of a table of maps, a memory.pick.
    Executed by one thread. Ref: PTX ISA, cp.async.bulk.tensor.
    """

    map: Value = operand()
    smem: Value = operand()
    barriers: Value = operand()
    cursor: Value = operand()
    coords: tuple[Value, ...] = operands()
    mask: Value | None = operand(default=None)
    part: Value | None = operand(default=None)
    item: Value | None = operand(default=None)
    offset_bytes: int = attribute(default=0)
    part_bytes: int = attribute(default=0)
    cache_hint: str = attribute(default="")

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class StoreWait(Op, opcode="tma.store_wait", levels=MACHINE, effect=Effect.SYNC):
    """The warpgroup's leader waits until at most `pending` of its stores still read shared memory.

    Ref: PTX ISA, cp.async.bulk.wait_group.read.
    """

    pending: int = attribute(default=0)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class Store(Op, opcode="tma.store", levels=MACHINE, effect=Effect.SYNC):
    """The warpgroup's leader copies one box from shared memory to the tensor, as one group.

    coords: element coordinates, innermost first; what lies outside the tensor is dropped.
    guard: when given and false, nothing is copied. rows: when given, only so many lines of the box
    along coordinate 1 are copied; map_8 and map_1 are then maps of boxes of 8 lines and of 1 line.
    item: as in tma.load.
    Ref: PTX ISA, cp.async.bulk.tensor, cp.async.bulk.commit_group.
    """

    map: Value = operand()
    smem: Value = operand()
    coords: tuple[Value, ...] = operands()
    guard: Value | None = operand(default=None)
    rows: Value | None = operand(default=None)
    map_8: Value | None = operand(default=None)
    map_1: Value | None = operand(default=None)
    item: Value | None = operand(default=None)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class StageFree(Op, opcode="tma.stage_free", levels=Level.WARP_SPECIALIZED, effect=Effect.SYNC):
    """Waits until no store of this warpgroup reads its staging any more.

    What store_tile does first, at a place where there is something else to wait for.
    """

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class StoreTile(Op, opcode="tma.store_tile", levels=Level.WARP_SPECIALIZED, effect=Effect.SYNC):
    """Stores a register tile, or one chunk of it, through staging in shared memory and bulk copies.

    A chunk is 128 bytes along the tensor's contiguous dimension of each warpgroup's part. chunk:
    its number, -1 for all. guard: when given and false, nothing reaches the tensor (the staging is
    written all the same). end, end_dim: as in memory.store. ahead: the staging, which holds all
    chunks, was waited for by a stage_free before.
    Lowered to store_wait, smem.write, fences and tma.store.
    """

    tensor: Value = operand()
    offsets: tuple[Value, ...] = operands()
    value: Value = operand()
    guard: Value | None = operand(default=None)
    end: Value | None = operand(default=None)
    block_shape: tuple[int, ...] = attribute(kw_only=True)
    squeeze: tuple[int, ...] = attribute(default=())
    chunk: int = attribute(default=-1)
    end_dim: int = attribute(default=0)
    ahead: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        check_block(tensor_type(self.tensor, "store"), self.offsets, self.block_shape, "store")
        return ()
