"""The order in which consumer warpgroups issue products and read what comes through one channel.

Named barriers of two warpgroups each: one waits for its turn, the one before it gives it.
"""

from __future__ import annotations

from collections.abc import Callable

from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops.barrier import NamedArrive
from tiledsl.ir.ops.barrier import NamedSync
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Mod
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ws.epilogue_channel import EpilogueChannel
from tiledsl.ws.partition import RoleBuilder
from tiledsl.ws.plan import Plan

STORE_BARRIER = 1
"""First named barrier of the staging slabs, one a consumer warpgroup."""


def operand_barrier(plan: Plan) -> int:
    """The named barrier around what all consumers write to shared memory for their wgmmas."""
    return STORE_BARRIER + 2 * plan.num_consumers


def epilogue_barrier(plan: Plan) -> int:
    """The first named barrier of the order in which warpgroups read the epilogue's channel."""
    return operand_barrier(plan) + 1


class TurnTaking(RoleBuilder):
    """The part of the consumer that takes turns. epilogue: the channel of its epilogue."""

    epilogue: EpilogueChannel | None = None

    @property
    def order_barrier(self) -> int:
        """First named barrier of the order in which warpgroups issue."""
        return STORE_BARRIER + self.plan.num_consumers

    def prime_order(self) -> Value:
        """Group 0 goes first: the last warpgroup gives it the turn. Returns the own index."""
        index = self.b.value(WarpgroupIndex(), "warpgroup")
        self.give_first(index, self.order_barrier)
        return index

    def give_first(self, index: Value, base: int) -> None:
        """The last warpgroup gives the first one its turn at some barriers."""
        b, n = self.b, self.plan.num_consumers
        last = b.value(Compare("eq", index, self.const(n - 1)))
        prime = If(last)
        b.add(prime)
        with b.at(prime.then):
            b.add(NamedArrive(base=base, num_threads=256))
            b.add(Yield(()))
        with b.at(prime.orelse):
            b.add(Yield(()))

    def other_warpgroup(self) -> Value:
        b = self.b
        n = self.const(self.plan.num_consumers)
        nxt = b.value(Add(b.value(WarpgroupIndex()), self.const(1)))
        return b.value(Mod(nxt, n))

    def enter_order(self) -> None:
        """Waits for the own turn on the tensor core."""
        if self.plan.ping_pong or self.plan.turns:
            me = self.b.value(WarpgroupIndex())
            self.b.add(NamedSync(me, base=self.order_barrier, num_threads=256))

    def leave_order(self) -> None:
        """Gives the turn to the next warpgroup."""
        if self.plan.ping_pong or self.plan.turns:
            other = self.other_warpgroup()
            self.b.add(NamedArrive(other, base=self.order_barrier, num_threads=256))

    def in_order(self, emit: Callable[[], None]) -> None:
        """An epilogue that reads the channel: warpgroups with tiles of their own take turns.

        A wait may be one phase of a barrier ahead and no more. Each skips the others' chunks.
        """
        if self.epilogue is None or not self.plan.ping_pong:
            emit()
            return
        b, base = self.b, epilogue_barrier(self.plan)
        b.add(NamedSync(b.value(WarpgroupIndex()), base=base, num_threads=256))
        emit()
        b.add(NamedArrive(self.other_warpgroup(), base=base, num_threads=256))
        count = self.epilogue.geometry.num_chunks * (self.plan.num_consumers - 1)
        b.add(aref.Skip(self.epilogue.aref, self.const(count)))
