"""What a plan takes of an SM: shared memory, and registers of its threads."""

from __future__ import annotations

from tiledsl.dtypes import bfloat16
from tiledsl.dtypes import float8e4nv
from tiledsl.dtypes import float32
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.types import SmemType
from tiledsl.target import Target
from tiledsl.ws.cost import Problem
from tiledsl.ws.kernel_shape import KernelShape
from tiledsl.ws.plan import Plan
from tiledsl.ws.stores import is_turned

CHANNEL_REGS = 8
"""What a consumer needs to walk over the ring of an epilogue's channel."""
COPY_REGS, COPIES_HELD = 56, 8
"""Registers of a thread that copies, and for how many addresses of rows they suffice."""
BARRIER_BYTES = 1024
MOST_SUMS = 200
"""Registers of a thread for the tiles that a loop keeps, where two warpgroups share a tile."""
MOST_PARTIAL_SUMS = 224
"""The same where products start from zero: an iteration needs few others (16 with the scales of
three blocks of columns), and the epilogue has the product's when the loop is over.
"""
_DTYPES = {1: float8e4nv, 2: bfloat16, 4: float32}
"""By bytes, of operands: how they lie depends on no more."""


class Sizes:
    """Shared memory and registers of plans of one kernel; what all plans of a tile share, once."""

    def __init__(self, shape: KernelShape, target: Target) -> None:
        self.shape = shape
        self.target = target
        self._sides: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._stored = _stored(shape.single_top_store)

    # ------------------------------------------------------------------ shared memory
    def room_bytes(self, plan: Plan) -> int:
        """Shared memory of a CTA."""
        t = self.target
        if plan.ctas_per_sm == 1:
            return t.smem_bytes
        return t.smem_per_sm_bytes // plan.ctas_per_sm - t.smem_reserved_bytes

    def slot_bytes(self, tile: tuple[int, int, int]) -> int:
        """Bytes of one slot of the rings of all loops, padding to 128-byte boxes included."""
        return sum(self.side_bytes(tile)) * self.shape.num_loops + self.shape.vector_bytes(tile)

    @property
    def spare_bytes(self) -> int:
        """Room for mbarriers, and for the alignment of what comes after a ring of vectors."""
        return BARRIER_BYTES * (2 if self.shape.vectors else 1)

    def side_bytes(self, tile: tuple[int, int, int]) -> tuple[int, int]:
        """Bytes of a slot by operand."""
        found = self._sides.get(tile)
        if found is None:
            M, N, K = tile
            s = self.shape
            left, right = (_DTYPES[n] for n in s.itemsizes)
            a = SmemType((M, K), left, 0 if s.mn_major[0] else 1).bytes
            b = SmemType((K, N), right, 1 if s.mn_major[1] else 0).bytes
            found = self._sides[tile] = a * s.num_operands[0], b * s.num_operands[1]
        return found

    def staging_bytes(self, plan: Plan, tile: tuple[int, int, int], p: Problem) -> int:
        """Bytes of one staging chunk over all consumer warpgroups."""
        if not p.staged:
            return 0
        if self._stored is None:
            groups = plan.warpgroups_per_tile if plan.split_dim == 0 else 1
            return tile[0] // groups * 128 * plan.num_consumers
        across, _ = self.stored_part(plan, tile, *self._stored)
        return across * 128 * plan.num_consumers

    def stored_part(
        self, plan: Plan, tile: tuple[int, int, int], major: int, turned: bool
    ) -> tuple[int, int]:
        """Extents of what a warpgroup stores of a tile: across the contiguous dimension, along."""
        part = [tile[1], tile[0]] if turned else [tile[0], tile[1]]
        if plan.warpgroups_per_tile > 1:
            part[1 - plan.split_dim if turned else plan.split_dim] //= plan.warpgroups_per_tile
        return part[1 - major], part[major]

    def stores_once(self, plan: Plan, tile: tuple[int, int, int]) -> bool:
        """Whether a warpgroup stages one chunk in all, which one buffer takes."""
        if plan.persistent or self._stored is None:
            return False
        return self.stored_part(plan, tile, *self._stored)[1] * self.shape.out_bits <= 128 * 8

    def channel_bytes(self, tile: tuple[int, int, int]) -> int:
        """Bytes of what a role loads for one chunk of an epilogue."""
        return self.shape.streamable * SmemType((tile[0], 64), _DTYPES[2], 1).bytes

    # ------------------------------------------------------------------ registers
    def copy_registers(self, plan: Plan, tile: tuple[int, int, int]) -> dict[str, int]:
        """Threads that copy rows by index hold the addresses of all that they copy at once."""
        copies = self.shape.copies(tile, indexed=True)
        own = COPY_REGS + -(-6 * max(0, copies - COPIES_HELD) // 8) * 8
        total = 65536 // 128 if plan.num_consumers == 3 else 504
        most = (total - own) // plan.num_consumers // 8 * 8
        return {"producer_registers": own, "consumer_registers": min(224, most)}

    def registers(self, plan: Plan, regs: int, tile: tuple[int, int, int]) -> dict[str, int]:
        """setmaxnreg values: none when the launch registers suffice."""
        if plan.num_consumers == 1 or (plan.num_consumers == 2 and regs <= 64):
            return {"producer_registers": 0, "consumer_registers": 0}
        if self.shape.copied:
            return self.copy_registers(plan, tile)
        if plan.num_consumers == 3:
            return {"producer_registers": 32, "consumer_registers": 160}
        if plan.ping_pong or regs > MOST_SUMS:
            return {"producer_registers": 24, "consumer_registers": 240}
        return {"producer_registers": 40, "consumer_registers": 232}

    def registers_of(self, plan: Plan, tile: tuple[int, int, int]) -> int:
        """Registers of a consumer thread that tiles take at the fullest point."""
        regs = self.shape.sum_regs(plan, tile)
        stored = self.shape.stored_elements(plan, tile)
        held = stored * self.shape.out_bits // 32 if plan.deferred else 0
        if plan.in_place:
            channel = CHANNEL_REGS if plan.epilogue_slots else 0
            return regs + self.shape.chunk_regs(plan, tile, staged=True) + channel
        width = min(tile[1], 128 * 8 // self.shape.out_bits)  # of a staged chunk, made beside them
        made = stored * width // tile[1] * self.shape.out_bits // 32
        return regs + (held or made) + self.shape.epilogue_regs(plan, tile)


def _stored(store: Store | None) -> tuple[int, bool] | None:
    """Of the one stored tile: its contiguous dimension, and whether it is the product turned."""
    if store is None:
        return None
    t = tensor_type(store.tensor, "store")
    kept = [d for d in range(t.rank) if d not in store.squeeze]
    return kept.index(t.inner_dim) if t.inner_dim in kept else 1, is_turned(store.value)
