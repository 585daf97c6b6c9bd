"""The products of an iteration whose left operand is made in registers, in the consumer role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiledsl.ir.op import Op
from tiledsl.ir.ops.smem import Read
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.slot_vectors import loads_of
from tiledsl.ws.slot_vectors import slot_vectors
from tiledsl.ws.vector_reads import read_vectors

if TYPE_CHECKING:
    from tiledsl.ws.consumer_loop import ConsumerLoop


def multiply_made(maker: ConsumerLoop, found: DotLoop, ops: list[Op]) -> None:
    """The products of an iteration: all operands are made, then multiplied.

    An instruction with an operand in registers keeps its warp until the ones before have begun, so
    that a warpgroup makes nothing under its own products. In turns it does so under the others'.
    """
    b = maker.b
    math = {op.id for m in found.made.values() for op in m.ops}
    vectors = slot_vectors(found)
    apart = {op.id for op in loads_of(vectors)} - maker.load_ids
    maker.clone_into([o for o in ops if o not in found.dots and o.id not in math | apart])
    read_vectors(maker, found.loop, vectors, by_wgmma=True)
    for load in {m.load.id: m.load for m in found.made.values()}.values():
        with b.located(load.loc):
            read = Read(maker.get(load.result), by_wgmma=True)
            maker.map[load.result] = b.value(read, load.result.name)
    maker.clone_into([o for o in ops if o.id in math])
    if maker.plan.turns:
        maker.enter_order()
    maker.multiply(found, list(found.dots))
    if maker.plan.turns:
        maker.leave_order()
