"""The scalar ops that values are made of: what has to be cloned or moved with their user."""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.types import TileType


def scalar_slice(region: Region, values: Iterable[Value]) -> tuple[Op, ...] | None:
    """The ops directly under a region that values are made of, in order.

    None where one of them reads memory, waits, has regions, or makes a tile.
    """
    needed: set[int] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        op = value.defining_op
        if isinstance(value.type, TileType):
            return None
        if op is not None and op.parent is region and op.id not in needed:
            if op.effect is not Effect.PURE or op.regions:
                return None
            needed.add(op.id)
            todo += op.operands
    return tuple(op for op in region.ops if op.id in needed)
