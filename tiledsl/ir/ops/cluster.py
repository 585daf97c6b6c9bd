"""The start of CTAs that share a program: nobody writes to a CTA that does not run yet."""

from __future__ import annotations

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.types import Type


class Arrive(Op, opcode="cluster.arrive", levels=Level.MACHINE, effect=Effect.SYNC):
    """Tells the CTAs of the cluster that this one runs; orders no memory.

    Ref: PTX ISA, barrier.cluster.arrive.
    """

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class Wait(Op, opcode="cluster.wait", levels=Level.MACHINE, effect=Effect.SYNC):
    """Waits until all CTAs of the cluster run. Ref: PTX ISA, barrier.cluster.wait."""

    def infer_types(self) -> tuple[Type, ...]:
        return ()
