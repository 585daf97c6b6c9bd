"""What the checker's run does for ops of barriers and of the program's place in the launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tiledsl.ir.op import Op
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import program
from tiledsl.ir.ops import role
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_state import NAMED_BARRIERS
from tiledsl.ws.check_state import WARPS
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Cta
from tiledsl.ws.check_state import Cursor
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import NamedBarrier
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_state import join


class BarrierRules:
    """Handlers `do_<op>`; each returns None, or steps that wait.

    code, point: what runs, and at which launch. drawn: tiles drawn from the launch's counter.
    """

    code: Program
    point: LaunchPoint
    cluster_size: int
    ctas: list[Cta]
    drawn: int

    # ------------------------------------------------------------------ mbarriers
    def do_cursor_create(self, t: Thread, op: barrier.CursorCreate) -> None:
        t.env[op.results[0]] = Cursor(op.depth)

    def do_cursor_next(self, t: Thread, op: barrier.CursorNext) -> Iterator[bool] | None:
        cursor: Cursor = t.env[op.cursor]
        cursor.n += 1
        cursor.at += 1
        if cursor.at == cursor.depth:
            cursor.at = 0
            cursor.use += 1
        return iter((True,)) if t.single else None

    def do_cursor_skip(self, t: Thread, op: barrier.CursorSkip) -> None:
        count = t.env[op.count]
        if count < 0:
            raise Fault("balance", f"a cursor is moved by {count} slots", op)
        t.env[op.cursor].move(count)

    def place(self, t: Thread, op: Any) -> tuple[Barrier, int]:
        """The mbarrier at a cursor, and the phase that the cursor stands for."""
        slots: list[Barrier] = t.cta.barriers[op.barriers]
        cursor: Cursor = t.env[op.cursor]
        if cursor.depth != len(slots):
            message = f"a cursor of depth {cursor.depth} walks over {len(slots)} mbarriers"
            raise Fault("balance", message, op)
        if t.single:
            cursor.rings.add(op.barriers)
        return slots[cursor.at], cursor.use

    def do_mbarrier_wait(self, t: Thread, op: barrier.MbarrierWait) -> Iterator[bool] | None:
        b, use = self.place(t, op)
        phase = use - 1 if op.invert else use
        if t.clock[b.index] < phase:
            message = (
                f"{b.name}: the wait for phase {phase} may come while phase {phase - 2} is current"
            )
            raise Fault("ordering", message, op)
        if b.blocks(phase):
            return self._wait(t, b, phase, op)
        self.passed(b, phase, op)
        self.acquire(t, b, phase)
        return None

    def passed(self, b: Barrier, phase: int, op: Op) -> bool:
        """The hardware's rule: the parity of the current phase is not the one waited for."""
        if b.phases > phase + 1:
            raise Fault("ordering", f"{b.name} is two phases ahead of a wait", op)
        return (b.phases & 1) != (phase & 1)

    def _wait(self, t: Thread, b: Barrier, phase: int, op: Op) -> Iterator[bool]:
        t.waits_on, t.waits_for = b, phase
        while not self.passed(b, phase, op):
            yield False
        t.waits_on = None
        self.acquire(t, b, phase)

    def acquire(self, t: Thread, b: Barrier, phase: int) -> None:
        if phase >= 0 and t.clock[b.index] <= phase:
            t.clock = join(t.clock, b.done)
        b.waits.append((t.index, t.clock[t.index], phase))  # phase -1 can be missed as well
        if b.seen <= phase:
            b.seen = phase + 1

    def signal(self, t: Thread, b: Barrier, use: int, op: Op) -> None:
        """What an arrival or a copy needs: the phase before its own is known to be over."""
        b.used = True
        if t.clock[b.index] < use:
            message = f"{b.name}: an arrival for phase {use} may fall into phase {use - 1}"
            raise Fault("ordering", message, op)
        if b.phases != use:
            raise Fault(
                "ordering", f"{b.name} is in phase {b.phases}, an arrival is for phase {use}", op
            )

    def do_expect_tx(self, t: Thread, op: barrier.ExpectTx) -> None:
        b, use = self.place(t, op)
        self.signal(t, b, use, op)
        b.arrive(t.clock, 1, op, tx=op.num_bytes, own=t.index)
        t.tick()

    def do_arrive(self, t: Thread, op: barrier.Arrive) -> None:
        own, use = self.place(t, op)
        if op.cluster_size == 1:
            self.signal(t, own, use, op)
            own.arrive(t.clock, 1 if t.single else WARPS, op, own=t.index)
            t.clock[t.index] += 1
            return
        cursor: Cursor = t.env[op.cursor]
        if op.cluster_size > self.cluster_size:
            raise Fault("cluster", "an arrival goes to a CTA that the cluster does not have", op)
        for cta in self.ctas[: op.cluster_size]:
            b = cta.barriers[op.barriers][cursor.at]
            self.signal(t, b, use, op)
            b.arrive(t.clock, 1 if t.single else WARPS, op, own=t.index)
        t.tick()

    # ------------------------------------------------------------------ named barriers
    def named(self, t: Thread, op: Any) -> NamedBarrier:
        at = op.base + (t.env[op.index] if op.index is not None else 0)
        if t.single or not 0 < at < NAMED_BARRIERS or at not in t.cta.named:
            raise Fault("named barriers", f"named barrier {at} cannot be used by {t.name}", op)
        return t.cta.named[at]

    def do_named_arrive(self, t: Thread, op: barrier.NamedArrive) -> None:
        self.named(t, op).arrive(t, op.num_threads, op)
        t.tick()

    def do_named_sync(self, t: Thread, op: barrier.NamedSync) -> Iterator[bool] | None:
        nb = self.named(t, op)
        mine = nb.arrive(t, op.num_threads, op)
        t.tick()
        if nb.generation > mine:
            self._synced(t, nb, mine)
            return None
        return self._named_wait(t, nb, mine)

    def _named_wait(self, t: Thread, nb: NamedBarrier, mine: int) -> Iterator[bool]:
        t.waits_on, t.waits_for = nb, mine
        while nb.generation <= mine:
            yield False
        t.waits_on = None
        self._synced(t, nb, mine)

    def _synced(self, t: Thread, nb: NamedBarrier, mine: int) -> None:
        """The thread knows what all have told in its generation, itself among them."""
        if nb.generation == mine + 1:
            time = t.time  # the one thing of its clock that has grown since it arrived
            t.clock = nb.done[:]
            t.clock[t.index] = time
        else:
            t.clock = join(t.clock, nb.done)
        for r in t.leader_done:
            r.end = t.time
        t.leader_done.clear()
        for r in t.waited:
            r.of_warps = False
        t.waited.clear()
        if t.written:
            for w in t.written:
                w.published = w.fenced
            t.written = [w for w in t.written if not w.published]

    def do_async_fence(self, t: Thread, op: barrier.AsyncFence) -> None:
        del op
        for w in t.written:
            if not w.fenced:
                w.fenced, w.fence_time = True, t.time

    def do_warp_sync(self, t: Thread, op: barrier.WarpSync) -> None:
        """Lanes of a warp are one thread here."""

    # ------------------------------------------------------------------ the program's place
    def do_warpgroup_index(self, t: Thread, op: Op) -> None:
        t.env[op.result] = t.warpgroup

    def do_cluster_rank(self, t: Thread, op: Op) -> None:
        t.env[op.result] = t.cta.rank

    def do_first_tile(self, t: Thread, op: Op) -> None:
        t.env[op.result] = self.point.first

    def do_tile_step(self, t: Thread, op: Op) -> None:
        t.env[op.result] = self.point.clusters

    def do_num_tiles(self, t: Thread, op: role.NumTiles) -> None:
        total = 1
        for axis, extent in enumerate(self.point.grid):
            total *= -(-extent // op.cluster_size) if axis == op.cluster_axis else extent
        t.env[op.result] = total

    def do_draw_tile(self, t: Thread, op: role.DrawTile) -> None:
        t.env[op.result] = self.drawn
        self.drawn += 1

    def do_next_tile(self, t: Thread, op: role.NextTile) -> None:
        t.env[op.result] = t.env[op.drawn] + self.point.clusters

    def do_program_id(self, t: Thread, op: program.ProgramId) -> None:
        t.env[op.result] = self.point.program[op.axis]

    def do_num_programs(self, t: Thread, op: program.NumPrograms) -> None:
        t.env[op.result] = self.point.grid[op.axis]

    def do_own_row(self, t: Thread, op: program.OwnRow) -> None:
        t.env[op.result] = op.rows - 1 if op.last else 0

    def do_tile_to_program(self, t: Thread, op: program.TileToProgram) -> None:
        left = t.tile = t.env[op.tile]
        for axis, (extent, r) in enumerate(zip(self.point.grid, op.results, strict=True)):
            here = -(-extent // op.cluster_size) if axis == op.cluster_axis else extent
            at, left = (left % here, left // here) if here else (0, 0)
            t.env[r] = at * op.cluster_size + t.cta.rank if axis == op.cluster_axis else at

    def do_shape(self, t: Thread, op: memory.Shape) -> None:
        symbol = self.code.symbols.get((memory.tensors_of(op.tensor)[0], op.dim), -1)
        extent = self.point.extent_of(symbol)
        if isinstance(op.tensor.defining_op, memory.Pick):  # differs from tile to tile
            extent *= 1 + t.tile % 3 * self.point.wobble
        t.env[op.result] = extent

    def do_pick(self, t: Thread, op: memory.Pick) -> None:
        t.env[op.result] = 0

    def do_stride(self, t: Thread, op: memory.Stride) -> None:
        t.env[op.result] = self.point.extent
