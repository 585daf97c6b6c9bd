"""Blocks of tensors that are stored by rows out of shared memory."""

from __future__ import annotations

from tiledsl.ir.layout import Layout
from tiledsl.ir.layout_moves import exchange_bytes
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.tile import tile_type


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
