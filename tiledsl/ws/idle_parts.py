"""Warpgroups whose part of a tile lies behind the end of what the tile is stored to.

They leave out their products, which nobody would see, and take and give back the slots as the
others do. The other warpgroup then has the tensor core for itself, and its tile ends early: that is
worth it where tiles are drawn at run time. Dealt out by number some CTA would have no such tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiledsl.ir.op import Value
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.memory import Pick
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.epilogues import is_rounded_sum
from tiledsl.ws.partition import narrowed

if TYPE_CHECKING:
    from tiledsl.ws.consumer import ConsumerBuilder


def part_is_stored(maker: ConsumerBuilder, found: DotLoop) -> Value | None:
    """Whether anything of this warpgroup's part is stored, in front of the loop; None: not asked.

    The sums have to be all that the loop carries, and go to the store as they are, or rounded.
    """
    plan, store = maker.plan, maker.deferred_store
    drawn = maker.numbers is not None and maker.numbers.drawn
    if not drawn or store is None or plan.mma_depth != 1 or plan.num_consumers == 1:
        return None
    plain = found.can_split and not found.partial and not found.beside
    if not plain or not is_rounded_sum(store.value) or store.id not in maker.stores:
        return None
    part = maker.stores[store.id]
    kept = [d for d in range(len(store.offsets)) if d not in store.squeeze]
    dim = kept[part.split] if part.split >= 0 else -1
    end = _end(maker, store, dim) if dim >= 0 else None
    if end is None or store.offsets[dim] not in maker.map:
        return None
    b = maker.b
    first = b.value(Mul(b.value(WarpgroupIndex()), maker.const(part.part[part.split])))
    start = b.value(Add(narrowed(b, maker.get(store.offsets[dim])), first))
    return b.value(Compare("lt", start, end), "is_stored")


def _end(maker: ConsumerBuilder, store: Store, dim: int) -> Value | None:
    """Where the store ends along a dimension, if that is known in front of the loop."""
    b = maker.b
    if store.end is not None and store.end_dim == dim:
        return narrowed(b, maker.get(store.end)) if store.end in maker.map else None
    picked = store.tensor.defining_op
    if isinstance(picked, Pick):
        if picked.index not in maker.map:
            return None
        tensor = b.value(Pick(maker.get(picked.index), tuple(map(maker.get, picked.tensors))))
    else:
        tensor = maker.get(store.tensor)
    return narrowed(b, b.value(Shape(tensor, dim)))
