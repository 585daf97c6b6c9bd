"""Blocks of tensors that are stored by rows out of shared memory."""

from __future__ import annotations

from tiledsl.errors import VerifyError
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout_moves import exchange_bytes
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.tile import tile_type
from tiledsl.target import Target

PIECE_BYTES = 16


class StoreRows(
    Store,
    opcode="memory.store_rows",
    levels=Level.WARP_SPECIALIZED | Level.MACHINE,
    effect=Effect.WRITE,
):
    """`memory.store` of a tile that threads exchange for it, so that they write pieces of rows.

    layout: in which they hold the tile where rows are aligned; others they take straight from
    shared memory. scratch, barrier, guarded: see `tile.reshape`.
    """

    layout: Layout = attribute(kw_only=True)
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def scratch_bytes(self) -> int:
        """Shared memory for the tile."""
        t = tile_type(self.value, "store_rows")
        return exchange_bytes(t.num_elements, t.dtype.bytes)


class StoreSectors(
    Store,
    opcode="memory.store_sectors",
    levels=Level.WARP_SPECIALIZED | Level.MACHINE,
    effect=Effect.WRITE,
):
    """`memory.store` of a matrix whose rows go on in the next program's: no sector has two writers.

    A sector of memory that two programs share is stored by the first of them, all of it, so that
    what programs store together is the same. more: the tile's next columns, which are the first
    ones of the next program. program, programs: its number along the grid, and how many there are.
    Both pass through shared memory. scratch, barrier, guarded: see `tile.reshape`.
    """

    more: Value = operand(kw_only=True)
    program: Value = operand(kw_only=True)
    programs: Value = operand(kw_only=True)
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def verify(self, target: Target) -> None:
        super().verify(target)
        t, more = tile_type(self.value, "store_sectors"), tile_type(self.more, "store_sectors")
        if t.rank != 2 or more.shape[:1] != t.shape[:1] or more.dtype != t.dtype:
            raise VerifyError(f"store_sectors: {more} is no column behind {t}")

    def scratch_bytes(self) -> int:
        """Shared memory for both, with a piece more in each row and for a few rows."""
        t, more = tile_type(self.value, "store_sectors"), tile_type(self.more, "store_sectors")
        vector = PIECE_BYTES // t.dtype.bytes
        elements = t.num_elements + more.num_elements + t.shape[0] * vector
        return exchange_bytes(elements + -(-t.shape[0] // vector) * vector, t.dtype.bytes)
