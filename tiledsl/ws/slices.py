"""The scalar ops that values are made of: what has to be cloned or moved with their user."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Iterable

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.types import TileType


def scalar_slice(region: Region, values: Iterable[Value]) -> tuple[Op, ...] | None:
    """The ops directly under a region that values are made of, in order.

    None where one of them reads memory, waits, has regions, or makes a tile.
    """
    return _slice(region, values, region.args, tiles=False)


def tile_slice(region: Region, values: Iterable[Value]) -> tuple[Op, ...] | None:
    """The same where some of them make tiles."""
    return _slice(region, values, region.args, tiles=True)


def slice_of_iteration(loop: For, values: Iterable[Value], *, tiles: bool) -> tuple[Op, ...] | None:
    """The same for values of a loop's body that another iteration can make ahead.

    None also where one of them needs what the loop carries. tiles: whether there may be some.
    """
    return _slice(loop.body, values, (loop.iv,), tiles=tiles)


def _slice(
    region: Region, values: Iterable[Value], known: Collection[Value], *, tiles: bool
) -> tuple[Op, ...] | None:
    """known: of the region's arguments, those that may be needed."""
    needed: set[int] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        op = value.defining_op
        if not tiles and isinstance(value.type, TileType):
            return None
        if op is None:
            if value.owner is region and value not in known:
                return None
        elif op.parent is region and op.id not in needed:
            if op.effect is not Effect.PURE or op.regions:
                return None
            needed.add(op.id)
            todo += op.operands
    return tuple(op for op in region.ops if op.id in needed)
