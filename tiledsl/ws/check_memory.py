"""What a thread does in the checker's run at ops of shared memory, bulk copies and wgmma."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from math import prod

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.pointer_copy import CopyLanes
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ws.check_barriers import BarrierRules
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_state import WARPGROUP_THREADS
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Cursor
from tiledsl.ws.check_state import Does
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import MayWait
from tiledsl.ws.check_state import Read
from tiledsl.ws.check_state import Slot
from tiledsl.ws.check_state import SlotState
from tiledsl.ws.check_state import Span
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_state import Writer

Delivers = Callable[[Thread, tma.Load, SlotState, Barrier, int], None]
Box = tuple[tma.Load, int | None, int | None]
"""A copy with its multicast mask and its part of the box."""


class MemoryRules(BarrierRules):
    """Methods `link_<op>`, as of BarrierRules.

    code: what runs. box_sizes: bytes of a slot that a copy lies in, by op. flies: whether copies
    take their time; here they arrive at once, which no barrier can tell from later.
    """

    code: Program
    flies = False
    box_sizes: dict[Op, int]

    def in_flight(self, *values: Value) -> list[Value]:
        """Those of some values that may be results of wgmmas in flight."""
        return [v for v in values if v in self.code.flight]

    def check_taken(self, t: Thread, flight: list[Value], op: Op) -> None:
        """Results of wgmmas are read as the results of a wait."""
        for v in flight:
            if isinstance(t.env.get(v), int):
                raise Fault("ordering", f"{v.name} is read without a wait for its wgmma", op)

    def link_taken(self, t: Thread, op: Op, *values: Value) -> Does | None:
        """An op that does nothing but read results of wgmmas."""
        flight = self.in_flight(*values)
        return (lambda: self.check_taken(t, flight, op)) if flight else None

    # ------------------------------------------------------------------ shared memory
    def link_slot(self, t: Thread, op: smem.Slot, group: int | None) -> Does:
        slots, slot = t.cta.buffers[op.buffer], t.slot(op.results[0])
        first, count = (group or 0) * op.group_slots, len(slots)
        cursor = t.cursor(op.cursor) if op.cursor is not None else None

        if cursor is not None and not first and cursor.depth <= count:
            return _takes_of_ring(slot, slots, cursor)
        return _takes(op, slot, slots, cursor, first)

    def link_view(self, t: Thread, op: smem.View) -> None:
        """Another name for a slot."""

    def write(self, t: Thread, slot: Slot, op: Op) -> None:
        """A write by the threads of the warpgroup."""
        state: SlotState = slot.state
        state.check_write(t.clock, op)
        writer = state.writer = Writer(op, t.index, t.now, use=slot.use)
        state.reads = []
        t.written.append(writer)

    def link_write(self, t: Thread, op: smem.Write) -> Does:
        slot, flight = t.slot(op.smem), self.in_flight(op.value)

        def write(
            t: Thread = t,
            op: smem.Write = op,
            slot: Slot = slot,
            flight: list[Value] = flight,
            rules: MemoryRules = self,
        ) -> None:
            rules.check_taken(t, flight, op)
            if not op.is_shared:
                rules.write(t, slot, op)
                return
            writer = Writer(op, t.index, t.now)
            slot.state.write_part(t.clock, writer)
            t.written.append(writer)

        return write

    def link_clear(self, t: Thread, op: smem.Clear, first: int) -> Does:
        """Zeros over what a copy has brought: all warpgroups write the same, each reads its own."""
        del first
        slot = t.slot(op.smem)

        def clear() -> None:
            state: SlotState = slot.state
            state.check_tenant(t.clock, slot.use, op)
            if any(r.thread == t.index for r in state.reads):
                raise Fault("ordering", f"{state.name} is cleared while it may be read", op)
            writer = Writer(op, t.index, t.now)
            state.cleared[t.index] = writer
            t.written.append(writer)

        return clear

    def link_read(self, t: Thread, op: smem.Read) -> Does:
        """A read by the threads: scratch tells of its end, a wait for a wgmma, or for the read."""
        slot, ends = t.slot(op.smem), op.scratch is not None

        def read() -> None:
            slot.state.check_read(t.clock, slot.use, op)
            made = Read(t.index, t.now if ends else 0)
            slot.state.reads.append(made)
            if op.by_wgmma:
                t.open.append(made)
            elif op.awaited:
                t.arriving.setdefault(op.result, []).append(made)

        return read

    def link_arrived(self, t: Thread, op: smem.Arrived) -> Does:
        """The end of reads by the threads."""

        def arrived(t: Thread = t, values: tuple[Value, ...] = op.values) -> None:
            for v in values:
                for made in t.arriving.pop(v, ()):
                    made.end = t.now

        return arrived

    def link_write_scalars(self, t: Thread, op: smem.WriteScalars, *words: int | None) -> Does:
        slot = t.slot(op.smem)

        def write() -> None:
            self.write(t, slot, op)
            slot.state.data = words

        return write

    def read_words(self, t: Thread, slot: Slot, op: smem.ReadScalars) -> tuple[int | None, ...]:
        """What the thread finds in a slot."""
        state: SlotState = slot.state
        state.check_read(t.clock, slot.use, op)
        state.reads.append(Read(t.index, t.now))
        return state.data or (None,) * op.count

    def link_read_scalars(self, t: Thread, op: smem.ReadScalars, *words: int | None) -> Does:
        """words: what the thread has gone by, if it has."""
        slot = t.slot(op.smem)

        def read() -> None:
            if self.read_words(t, slot, op) != words and words:
                what = f"{slot.state.name} holds words of another use than the one that is read"
                raise Fault("ordering", what, op)

        return read

    def link_load(self, t: Thread, op: tma.Load, mask: int | None, part: int | None) -> Does:
        return self.link_boxes(t, [(op, mask, part)])

    def link_boxes(self, t: Thread, boxes: list[Box]) -> Does:
        """Copies that fill the same slot of the same CTAs, and tell the same mbarriers."""
        op, mask, _ = boxes[0]
        _, cursor, rings = self.ring(t, op)
        slot = t.slot(op.smem)
        if mask is None:
            mask = 1 << t.cta.rank
        if mask >> self.cluster_size or not mask:
            what = f"multicast mask {mask:b} in a cluster of {self.cluster_size}"
            raise Fault("cluster", what, op)
        spans = self._spans(boxes, slot)
        size = sum(box_bytes(op) for op, _, _ in boxes)
        told = [cta for cta in self.ctas if mask >> cta.rank & 1]
        targets = [(cta.barriers[op.barriers], cta.buffers[slot.buffer]) for cta in told]

        def load(
            t: Thread = t,
            op: tma.Load = op,
            slot: Slot = slot,
            cursor: Cursor = cursor,
            rings: set[Value] = rings,
            targets: list[tuple[list[Barrier], list[SlotState]]] = targets,
            spans: list[Span] = spans,
            size: int = size,
            deliver: Delivers | None = self.deliver if self.flies else None,
        ) -> None:
            rings.add(op.barriers)
            number: int = slot.state.number
            at, use, clock = cursor.at, cursor.use, t.clock
            for barriers, states in targets:
                # Ordered after what its thread knows, over for those who know the phase.
                b, state = barriers[at], states[number]
                if b.phases != use or b.last & ~clock:
                    b.signal(clock, use, op)
                b.used = True
                w = state.writer
                if w is None or w.end != b.end:
                    state.check_write(clock, op)
                    state.writer = Writer(op, t.index, b.end, b, use, *spans)
                    state.reads, state.cleared = [], {}
                elif overlap(spans, w.ranges):
                    what = f"two copies write the same bytes of {state.name}"
                    raise Fault("ordering", what, op)
                else:
                    w.ranges += (*spans,)
                if deliver is None:
                    b.receive(clock, size, op)
                else:
                    deliver(t, op, state, b, size)
            t.tick()

        return load

    def deliver(
        self, t: Thread, op: tma.Load, state: SlotState, b: Barrier, num_bytes: int
    ) -> None:
        """Lets the bytes of a copy that takes its time arrive."""
        raise NotImplementedError

    def _spans(self, boxes: list[Box], slot: Slot) -> list[Span]:
        """The bytes of a slot that copies write."""
        out: list[Span] = []
        for op, _, part in boxes:
            out.append(self._span(op, part, slot))
            if overlap(out[-1:], out[:-1]):
                name = slot.buffer.name
                raise Fault("ordering", f"two copies write the same bytes of a slot of {name}", op)
        return out

    def _span(self, op: tma.Load, part: int | None, slot: Slot) -> Span:
        start = op.offset_bytes + (part or 0) * op.part_bytes
        end = start + (self.box_sizes.get(op) or self.box_sizes.setdefault(op, box_span(op)))
        if end > slot.type.bytes:
            behind = end - slot.type.bytes
            raise Fault("ordering", f"the box ends {behind} bytes behind its slot", op)
        return start, end

    # ------------------------------------------------------------------ copies of threads
    def link_copy_lanes(self, t: Thread, op: CopyLanes) -> Does:
        """Copies to a whole slot: nobody knows that they have landed before an mbarrier tells."""
        slot = t.slot(op.slot)
        if op.shape != slot.type.shape:
            raise Fault("ordering", f"copies of {op.shape} fill a part of {slot.type} only", op)

        def copy() -> None:
            state: SlotState = slot.state
            state.check_write(t.clock, op)
            writer = state.writer = Writer(op, t.index, 0, use=slot.use)
            writer.copied = True
            state.reads, state.cleared, state.parts = [], {}, {}
            t.copying.append(writer)

        return copy

    def link_arrive_copies(self, t: Thread, op: barrier.ArriveCopies) -> Does:
        slots, cursor, rings = self.ring(t, op)

        def arrive() -> None:
            rings.add(op.barriers)
            b = slots[cursor.at]
            for writer in t.copying:
                writer.end, writer.barrier = b.end, b
            t.copying = []
            self.landed(t, b, cursor.use, op)
            t.tick()

        return arrive

    def landed(self, t: Thread, b: Barrier, use: int, op: barrier.ArriveCopies) -> None:
        """The thread's copies have landed: here at once, which no barrier can tell from later."""
        b.receives = True
        b.arrive(t.clock, use, WARPGROUP_THREADS, op)

    # ------------------------------------------------------------------ wgmma
    def link_fence(self, t: Thread, op: mma.Fence) -> Does:
        del op

        def fence(t: Thread = t) -> None:
            t.fenced = True

        return fence

    def link_issue(self, t: Thread, op: mma.Issue) -> Does:
        operands = (op.a, op.b)
        slots = [t.slot(v) for v in operands if isinstance(v.type, SmemType)]
        flight = self.in_flight(*(v for v in operands if not isinstance(v.type, SmemType)))

        def issue(
            t: Thread = t,
            op: mma.Issue = op,
            slots: list[Slot] = slots,
            flight: list[Value] = flight,
            rules: MemoryRules = self,
            result: Value = op.result,
        ) -> None:
            if not t.fenced:
                raise Fault("fences", "a wgmma starts without a fence of its registers", op)
            if flight:
                rules.check_taken(t, flight, op)
            for slot in slots:
                state: SlotState = slot.state
                if not state.is_filled(t.clock, slot.use):
                    rules.read_by_engine(t, state, slot.use, op)
                read = Read(t.index, 0, bool(state.parts))
                state.reads.append(read)
                t.open.append(read)
            t.env[result] = t.committed

        return issue

    def read_by_engine(self, t: Thread, state: SlotState, use: int, op: Op) -> None:
        """A read through the async proxy."""
        state.check_read(t.clock, use, op)
        if not (state.parts or state.cleared) and state.writer and state.writer.barrier:
            if state.writer.copied and not t.fence_clock & state.writer.end:
                what = f"no proxy fence between the copies of threads to {state.name} and the read"
                raise Fault("fences", what, op)
            return  # by copies alone
        for w in (*state.parts.values(), state.cleared.get(t.index), state.writer):
            if w is not None and w.barrier is None and not (w.fenced and w.is_visible(t)):
                what = "barrier" if w.fenced else "proxy fence"
                message = f"no {what} between the writes to {state.name} and the copy engine"
                raise Fault("fences", message, op)
        if state.parts and len(state.parts) < t.role.num_warpgroups:
            message = f"{state.name} is read before all warpgroups have written their part"
            raise Fault("ordering", message, op)

    def link_commit(self, t: Thread, op: mma.Commit) -> Does:
        del op

        def commit(t: Thread = t) -> None:
            t.groups.append(t.open)
            t.open = []
            t.committed += 1
            t.fenced = False

        return commit

    def link_wait(self, t: Thread, op: mma.Wait) -> Does:
        flight = self.in_flight(*op.accs)

        def wait(
            t: Thread = t,
            op: mma.Wait = op,
            pending: int = op.pending,
            flight: list[Value] = flight,
        ) -> None:
            groups, env = t.groups, t.env
            while len(groups) > pending:
                for r in groups.popleft():
                    r.end = t.now
                    if r.of_warps:
                        t.waited.append(r)
            for v in flight:
                group = env.get(v)
                if isinstance(group, int) and group >= t.committed - len(groups):
                    what = f"{v.name} is read while its wgmma may be in flight"
                    raise Fault("ordering", what, op)

        return wait

    def link_pin(self, t: Thread, op: mma.Pin) -> Does | None:
        return self.link_taken(t, op, op.value)

    def link_cluster_reduce(
        self, t: Thread, op: mma.ClusterReduce, index: int, rank: int
    ) -> MayWait:
        flight, owner = self.in_flight(op.acc), index % op.cluster_size
        type_ = op.acc.type
        assert isinstance(type_, TileType)
        assert type_.layout is not None
        num_bytes = type_.layout.num_regs * 128 * 4
        assert op.barriers is not None
        b = self.ctas[owner].barriers[op.barriers][index // op.cluster_size]

        def begin() -> None:
            self.check_taken(t, flight, op)
            if t.reduced:
                what = "the buffer of partial sums is used a second time, nothing frees it"
                raise Fault("cluster", what, op)
            t.reduced = True
            if rank != owner:
                b.receive(t.clock, num_bytes, op)
                t.tick()

        def reduce() -> bool:
            if t.waits_on is None:
                begin()
            return rank == owner and self.wait(t, b, 0, op)

        return reduce

    # ------------------------------------------------------------------ bulk stores
    def link_store(self, t: Thread, op: tma.Store) -> Does:
        slot = t.slot(op.smem)

        def store(
            t: Thread = t, op: tma.Store = op, slot: Slot = slot, rules: MemoryRules = self
        ) -> None:
            state: SlotState = slot.state
            rules.read_by_engine(t, state, slot.use, op)
            read = Read(t.index)
            state.reads.append(read)
            t.stores.append(read)

        return store

    def link_store_wait(self, t: Thread, op: tma.StoreWait) -> Does:
        def wait(t: Thread = t, op: tma.StoreWait = op) -> None:
            while len(t.stores) > op.pending:
                t.leader_done.append(t.stores.popleft())

        return wait


def _takes_of_ring(slot: Slot, slots: list[SlotState], cursor: Cursor) -> Does:
    def take(slot: Slot = slot, slots: list[SlotState] = slots, cursor: Cursor = cursor) -> None:
        slot.state, slot.use = slots[cursor.at], cursor.use

    return take


def _takes(
    op: smem.Slot, slot: Slot, slots: list[SlotState], cursor: Cursor | None, first: int
) -> Does:
    def take() -> None:
        at = first
        if cursor is not None:
            at += cursor.at
            slot.use = cursor.use
        if at >= len(slots):
            what = f"slot {at} of {op.buffer.name}, which has {len(slots)}"
            raise Fault("staging", what, op)
        slot.state = slots[at]

    return take


def overlap(spans: Iterable[Span], others: Iterable[Span]) -> bool:
    """Whether two copies write the same bytes."""
    return any(lo < end and start < hi for lo, hi in others for start, end in spans)


def box_bytes(op: tma.Load) -> int:
    """Bytes of one copy of a load's tensor map."""
    made = op.map.defining_op
    assert isinstance(made, tma.TensorMap)
    type_ = made.tensor.type
    assert isinstance(type_, TensorType)
    return prod(made.box) * type_.dtype.bytes


def box_span(op: tma.Load) -> int:
    """Bytes of a slot that a box lies in: its rows are as far apart as the swizzle is wide."""
    made = op.map.defining_op
    assert isinstance(made, tma.TensorMap)
    return prod(made.box[1:]) * made.swizzle_bytes if made.swizzle_bytes else box_bytes(op)
