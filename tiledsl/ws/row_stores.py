"""Stores of tiles that change their layout for it, to rows that are aligned for an element only.

In shared memory, where the exchange puts the tile, aligned pieces of such rows are cut out of two
pieces of the tile (templates/include/tiledsl/rows.cuh); in registers, neighbours would have to pass
each other what their pieces share.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Region
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory_rows import StoreRows
from tiledsl.ir.ops.tile import ConvertLayout
from tiledsl.ir.types import TileType
from tiledsl.ws.scratch import requested_bytes

PIECE_BYTES = 16
ELEMENT_BYTES = (2,)


def store_rows(graph: TileGraph, region: Region) -> None:
    """Puts the exchange into the stores under `region` whose rows may not be aligned."""
    for op in [op for op in region.walk() if type(op) is Store]:
        moved = op.value.defining_op
        if not isinstance(moved, ConvertLayout) or not requested_bytes(moved):
            continue
        if moved.parent is not op.parent or len(graph.users(moved.result)) != 1:
            continue
        if not _has_rows(op):
            continue
        new = StoreRows(
            op.tensor, op.offsets, moved.a, op.block_shape, op.squeeze,
            layout=moved.layout, loc=op.loc,
        )  # fmt: skip
        graph.replace_op(op, new)
        graph.erase(moved)


def _has_rows(op: Store) -> bool:
    """Whether a tile is a matrix whose rows lie along the tensor's contiguous dimension.

    Rows of tensors that have tensor maps are aligned.
    """
    t, tile = tensor_type(op.tensor, "store"), op.value.type
    if t.tma or t.inner_dim is None or op.end is not None or not isinstance(tile, TileType):
        return False
    kept = [d for d in range(t.rank) if d not in op.squeeze]
    long = [d for d in kept if op.block_shape[d] > 1]
    if len(long) != 2 or long[1] != t.inner_dim or t.dtype.bytes not in ELEMENT_BYTES:
        return False
    return op.block_shape[t.inner_dim] * t.dtype.bytes % PIECE_BYTES == 0
