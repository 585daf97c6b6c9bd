"""What a thread does in the checker's run at ops of shared memory, bulk copies and wgmma."""

from __future__ import annotations

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ws.check_barriers import BarrierRules
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Does
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import MayWait
from tiledsl.ws.check_state import Read
from tiledsl.ws.check_state import Slot
from tiledsl.ws.check_state import SlotState
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_state import Writer


class MemoryRules(BarrierRules):
    """Methods `link_<op>`, as of BarrierRules.

    code: what runs. box_sizes: bytes of a copy, by op.
    """

    code: Program
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

        def of_ring() -> None:
            assert cursor is not None
            slot.state, slot.use = slots[cursor.at], cursor.use

        def take() -> None:
            at = first
            if cursor is not None:
                at += cursor.at
                slot.use = cursor.use
            if at >= count:
                raise Fault("staging", f"slot {at} of {op.buffer.name}, which has {count}", op)
            slot.state = slots[at]

        return of_ring if cursor is not None and not first and cursor.depth <= count else take

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

        def write() -> None:
            self.check_taken(t, flight, op)
            if not op.is_shared:
                self.write(t, slot, op)
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
        """A read by the threads; without scratch nothing tells when it is over."""
        slot, ends = t.slot(op.smem), op.scratch is not None

        def read() -> None:
            slot.state.check_read(t.clock, slot.use, op)
            slot.state.reads.append(Read(t.index, t.now if ends else 0))

        return read

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
        _, cursor, note = self.ring(t, op)
        slot, array = t.slot(op.smem), op.barriers
        if mask is None:
            mask = 1 << t.cta.rank
        if mask >> self.cluster_size or not mask:
            what = f"multicast mask {mask:b} in a cluster of {self.cluster_size}"
            raise Fault("cluster", what, op)
        size = self.box_sizes.get(op) or self.box_sizes.setdefault(op, box_bytes(op))
        start = op.offset_bytes + (part or 0) * op.part_bytes
        end = start + size
        if end > slot.type.bytes:
            behind = end - slot.type.bytes
            raise Fault("ordering", f"the box ends {behind} bytes behind its slot", op)
        told = [cta for cta in self.ctas if mask >> cta.rank & 1]
        targets = [(cta.barriers[array], cta.buffers[slot.buffer]) for cta in told]

        def load() -> None:
            if note is not None:
                note()
            number: int = slot.state.number
            for barriers, states in targets:
                b = barriers[cursor.at]
                self.land(t, op, states[number], b, cursor.use, (start, end))
            t.tick()

        return load

    def land(
        self, t: Thread, op: tma.Load, state: SlotState, b: Barrier, use: int, span: tuple[int, int]
    ) -> None:
        """A copy: ordered after what its thread knows, over for those who know the phase."""
        b.signal(t.clock, use, op)
        w = state.writer
        if w is None or w.end != b.end:
            state.check_write(t.clock, op)
            w = state.writer = Writer(op, t.index, b.end, b, use)
            state.reads, state.cleared = [], {}
        for lo, hi in w.ranges:
            if lo < span[1] and span[0] < hi:
                raise Fault("ordering", f"two copies write the same bytes of {state.name}", op)
        w.ranges.append(span)
        self.deliver(t, op, state, b, span[1] - span[0])

    def deliver(
        self, t: Thread, op: tma.Load, state: SlotState, b: Barrier, num_bytes: int
    ) -> None:
        """The copy's bytes arrive: here at once, which no barrier can tell from later."""
        del state
        b.receive(t.clock, num_bytes, op)

    # ------------------------------------------------------------------ wgmma
    def link_fence(self, t: Thread, op: mma.Fence) -> Does:
        del op

        def fence() -> None:
            t.fenced = True

        return fence

    def link_issue(self, t: Thread, op: mma.Issue) -> Does:
        operands = (op.a, op.b)
        slots = [t.slot(v) for v in operands if isinstance(v.type, SmemType)]
        flight = self.in_flight(*(v for v in operands if not isinstance(v.type, SmemType)))
        env, result = t.env, op.result

        def issue() -> None:
            if not t.fenced:
                raise Fault("fences", "a wgmma starts without a fence of its registers", op)
            if flight:
                self.check_taken(t, flight, op)
            for slot in slots:
                state: SlotState = slot.state
                if not state.is_filled(t.clock, slot.use):
                    self.read_by_engine(t, state, slot.use, op)
                read = Read(t.index, 0, bool(state.parts))
                state.reads.append(read)
                t.open.append(read)
            env[result] = t.committed

        return issue

    def read_by_engine(self, t: Thread, state: SlotState, use: int, op: Op) -> None:
        """A read through the async proxy."""
        state.check_read(t.clock, use, op)
        if not (state.parts or state.cleared) and state.writer and state.writer.barrier:
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

        def commit() -> None:
            t.groups.append(t.open)
            t.open = []
            t.committed += 1
            t.fenced = False

        return commit

    def link_wait(self, t: Thread, op: mma.Wait) -> Does:
        pending, env, flight = op.pending, t.env, self.in_flight(*op.accs)

        def wait() -> None:
            groups = t.groups
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

        def store() -> None:
            state: SlotState = slot.state
            self.read_by_engine(t, state, slot.use, op)
            read = Read(t.index)
            state.reads.append(read)
            t.stores.append(read)

        return store

    def link_store_wait(self, t: Thread, op: tma.StoreWait) -> Does:
        def wait() -> None:
            while len(t.stores) > op.pending:
                t.leader_done.append(t.stores.popleft())

        return wait


def box_bytes(op: tma.Load) -> int:
    """Bytes of one copy of a load's tensor map."""
    made = op.map.defining_op
    assert isinstance(made, tma.TensorMap)
    type_ = made.tensor.type
    assert isinstance(type_, TensorType)
    total = type_.dtype.bytes
    for n in made.box:
        total *= n
    return total
