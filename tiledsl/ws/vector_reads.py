"""Vectors that come in a slot besides its operands, read into registers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.smem import Read
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ws.slot_vectors import SlotVector
from tiledsl.ws.slot_vectors import address_ops
from tiledsl.ws.slot_vectors import most_in_front

if TYPE_CHECKING:
    from tiledsl.ws.consumer_loop import ConsumerLoop


def read_vectors(
    maker: ConsumerLoop, loop: For, vectors: Iterable[SlotVector], *, by_wgmma: bool = False
) -> list[Value]:
    """Reads the vectors of the slot that was got last.

    by_wgmma: see smem.read; where it is not so, `smem.arrived` has to wait for what is returned.
    """
    b, out = maker.b, list[Value]()
    for item in vectors:
        slot = maker.get(item.op.result)
        with b.located(item.op.loc):
            front = first_of(maker, loop, item.block) if most_in_front(item.block) else None
        for op, at in item.parts:
            with b.located(op.loc):
                first = part_at(maker, front, at)
                shape = tile_type(op.result, "load").shape
                read = Read(slot, first=first, shape=shape, by_wgmma=by_wgmma, awaited=not by_wgmma)
                out.append(b.value(read, op.result.name or item.name))
                maker.map[op.result] = out[-1]
    return out


def part_at(maker: ConsumerLoop, front: Value | None, at: int) -> Value | None:
    """Where a vector starts in its box, of which `front` elements come before the first one."""
    if not at:
        return front
    number = maker.const(at)
    return number if front is None else maker.b.value(Add(front, number))


def first_of(maker: ConsumerLoop, loop: For, load: Load) -> Value:
    """The element of a vector's box where the vector starts."""
    address = address_ops(loop, load)
    assert address is not None
    maker.clone_into([op for op in address if op.results[0] not in maker.map])
    return maker.as_i32(maker.in_front(load))
