"""What a thread does in the checker's run at ops of mbarriers and named barriers.

A function gets what it is about as defaults: what it took from around it would be a cell for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops.role import Pause
from tiledsl.ws.check_state import NAMED_BARRIERS
from tiledsl.ws.check_state import WARPS
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Cta
from tiledsl.ws.check_state import Cursor
from tiledsl.ws.check_state import Does
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import MayWait
from tiledsl.ws.check_state import NamedBarrier
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_state import Times


def _nothing() -> None:
    pass


class BarrierRules:
    """Methods `link_<op>`: what a thread does at an op, for its scalars."""

    cluster_size: int
    ctas: list[Cta]
    times: Times

    # ------------------------------------------------------------------ mbarriers
    def link_cursor_create(self, t: Thread, op: barrier.CursorCreate) -> Does:
        return t.cursor(op.result).create

    def link_cursor_next(self, t: Thread, op: barrier.CursorNext) -> Does:
        return t.cursor(op.cursor).next

    def link_cursor_skip(self, t: Thread, op: barrier.CursorSkip, count: int) -> Does:
        cursor = t.cursor(op.cursor)
        if count < 0:
            raise Fault("balance", f"a cursor is moved by {count} slots", op)
        return lambda: cursor.move(count)

    def ring(self, t: Thread, op: Any) -> tuple[list[Barrier], Cursor, set[Value]]:
        """The mbarriers that an op goes round, its cursor, and where to note that it did."""
        slots: list[Barrier] = t.cta.barriers[op.barriers]
        cursor = t.cursor(op.cursor)
        if cursor.depth != len(slots):
            message = f"a cursor of depth {cursor.depth} walks over {len(slots)} mbarriers"
            raise Fault("balance", message, op)
        return slots, cursor, cursor.rings

    def link_mbarrier_wait(self, t: Thread, op: barrier.MbarrierWait) -> MayWait:
        slots, cursor, rings = self.ring(t, op)
        back, array = 1 if op.invert else 0, op.barriers

        def wait(
            t: Thread = t,
            op: barrier.MbarrierWait = op,
            slots: list[Barrier] = slots,
            cursor: Cursor = cursor,
            rings: set[Value] = rings,
            array: Value = array,
            back: int = back,
            slow: Callable[[Thread, Barrier, int, Op], bool] = self.wait,
        ) -> bool:
            rings.add(array)
            b, phase = slots[cursor.at], cursor.use - back
            if b.phases != phase + 1 or b.before & ~t.clock:
                return slow(t, b, phase, op)
            t.waits_on = None
            t.clock |= b.done
            b.passed |= t.now  # of phase -1 as well, which can be missed too
            if b.seen <= phase:
                b.seen = phase + 1
            return False

        return wait

    def wait(self, t: Thread, b: Barrier, phase: int, op: Op) -> bool:
        """The hardware's rule: the parity of the current phase is not the one waited for.

        Whether the thread waits.
        """
        phases = b.phases
        if phase > 0 and not b.is_over(t.clock, phase - 1):
            message = (
                f"{b.name}: the wait for phase {phase} may come while phase {phase - 2} is current"
            )
            raise Fault("ordering", message, op)
        if phases == phase:
            t.waits_on, t.waits_for = b, phase
            return True
        if phases > phase + 1:
            raise Fault("ordering", f"{b.name} is two phases ahead of a wait", op)
        t.waits_on = None
        t.clock |= b.done
        b.passed |= t.now
        b.seen = max(b.seen, phase + 1)
        return False

    def link_expect_tx(self, t: Thread, op: barrier.ExpectTx) -> Does:
        slots, cursor, rings = self.ring(t, op)

        def expect(
            t: Thread = t,
            op: barrier.ExpectTx = op,
            slots: list[Barrier] = slots,
            cursor: Cursor = cursor,
            rings: set[Value] = rings,
        ) -> None:
            rings.add(op.barriers)
            slots[cursor.at].arrive(t.clock, cursor.use, 1, op, op.num_bytes)
            t.tick()

        return expect

    def link_arrive(self, t: Thread, op: barrier.Arrive) -> Does:
        _, cursor, rings = self.ring(t, op)
        count = 1 if t.single else WARPS
        if op.cluster_size > self.cluster_size:
            raise Fault("cluster", "an arrival goes to a CTA that the cluster does not have", op)
        told = [t.cta] if op.cluster_size == 1 else self.ctas[: op.cluster_size]
        targets = [cta.barriers[op.barriers] for cta in told]
        if len(targets) == 1 and not t.single:
            return _arrives_here(t, op, targets[0], cursor, count)

        def arrive() -> None:
            rings.add(op.barriers)
            for slots in targets:
                slots[cursor.at].arrive(t.clock, cursor.use, count, op)
            t.tick()

        return arrive

    # ------------------------------------------------------------------ named barriers
    def named(self, t: Thread, op: Any, index: int | None) -> NamedBarrier:
        """The barrier of an op, whose number may depend on the warpgroup."""
        at = op.base + (index or 0)
        if t.single or not 0 < at < NAMED_BARRIERS or at not in t.cta.named:
            raise Fault("named barriers", f"named barrier {at} cannot be used by {t.name}", op)
        return t.cta.named[at]

    def link_named_arrive(self, t: Thread, op: barrier.NamedArrive, index: int | None) -> Does:
        nb = self.named(t, op, index)

        def arrive() -> None:
            nb.arrive(t, op.num_threads, op)
            t.tick()

        return arrive

    def link_named_sync(self, t: Thread, op: barrier.NamedSync, index: int | None) -> MayWait:
        nb = self.named(t, op, index)

        def sync(
            t: Thread = t,
            op: barrier.NamedSync = op,
            nb: NamedBarrier = nb,
            synced: Callable[[Thread, NamedBarrier], None] = self.synced,
        ) -> bool:
            if t.waits_on is None:
                t.waits_for = nb.arrive(t, op.num_threads, op)
                t.tick()
            if nb.generation <= t.waits_for:
                t.waits_on = nb
                return True
            t.waits_on = None
            synced(t, nb)
            return False

        return sync

    def synced(self, t: Thread, nb: NamedBarrier) -> None:
        """The thread knows what all have told in its generation."""
        t.clock |= nb.done
        if t.leader_done:
            for r in t.leader_done:
                r.end = t.now
            t.leader_done.clear()
        if t.waited:
            for r in t.waited:
                r.of_warps = False
            t.waited.clear()
        if t.written:
            for w in t.written:
                w.published = w.fenced
            t.written = [w for w in t.written if not w.published]

    def link_pause(self, t: Thread, op: Pause) -> Does:
        """It orders nothing; others go on meanwhile in some of the interleavings anyway."""
        del t, op
        return _nothing

    def link_async_fence(self, t: Thread, op: barrier.AsyncFence) -> Does:
        del op

        def fence() -> None:
            t.fence_clock = t.clock
            for w in t.written:
                if not w.fenced:
                    w.fenced, w.fence_time = True, t.now

        return fence

    def link_warp_sync(self, t: Thread, op: barrier.WarpSync) -> None:
        """Lanes of a warp are one thread here."""


def _arrives_here(
    t: Thread, op: barrier.Arrive, slots: list[Barrier], cursor: Cursor, count: int
) -> Does:
    def arrive(
        t: Thread = t,
        op: barrier.Arrive = op,
        slots: list[Barrier] = slots,
        cursor: Cursor = cursor,
        count: int = count,
        times: Times = t.times,
    ) -> None:
        slots[cursor.at].arrive(t.clock, cursor.use, count, op)
        t.now = times.last = times.last << 1
        t.clock |= t.now

    return arrive
