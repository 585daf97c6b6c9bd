"""What the checker's run does for ops of shared memory, bulk copies and wgmma."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ws.check_barriers import BarrierRules
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Cursor
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import Read
from tiledsl.ws.check_state import SlotState
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_state import Writer


class Slot:
    """A slot as a value: its state, and the use of the ring that the cursor stood for, or -1."""

    __slots__ = ("at", "buffer", "order", "state", "type", "use")

    def __init__(self, buffer: Value, at: int, state: SlotState, use: int, type_: SmemType) -> None:
        self.buffer = buffer
        self.at = at
        self.order: tuple[int, ...] = ()
        self.state = state
        self.use = use
        self.type = type_


class MemoryRules(BarrierRules):
    """Handlers `do_<op>`; each returns None, or steps that wait.

    box_sizes: bytes of a copy, by op.
    """

    box_sizes: dict[Op, int]

    def check_settled(self, t: Thread, v: Value, op: Op) -> None:
        if v in self.code.flight:
            group = t.env.get(v)
            if isinstance(group, int) and group >= t.committed - len(t.groups):
                raise Fault("ordering", f"{v.name} is read while its wgmma may be in flight", op)

    def check_taken(self, t: Thread, v: Value, op: Op) -> None:
        """Results of wgmmas are read as the results of a wait."""
        if v in self.code.flight and isinstance(t.env.get(v), int):
            raise Fault("ordering", f"{v.name} is read without a wait for its wgmma", op)

    # ------------------------------------------------------------------ shared memory
    def do_slot(self, t: Thread, op: smem.Slot) -> None:
        at, use = 0, -1
        if op.cursor is not None:
            cursor: Cursor = t.env[op.cursor]
            at, use = cursor.at, cursor.use
        if op.group is not None:
            at += t.env[op.group] * op.group_slots
        slots = t.cta.buffers[op.buffer]
        if at >= len(slots):
            raise Fault("staging", f"slot {at} of {op.buffer.name}, which has {len(slots)}", op)
        result = op.results[0]
        t.env[result] = Slot(op.buffer, at, slots[at], use, cast("SmemType", result.type))

    def do_view(self, t: Thread, op: smem.View) -> None:
        t.env[op.result] = t.env.get(op.a)

    def write(self, t: Thread, slot: Slot, op: Op) -> None:
        """A write by the threads of the warpgroup."""
        slot.state.check_write(t.clock, op)
        writer = Writer(op, t.index, t.time, use=slot.use)
        slot.state.writer, slot.state.reads = writer, []
        t.written.append(writer)

    def do_write(self, t: Thread, op: smem.Write) -> None:
        self.check_taken(t, op.value, op)
        slot: Slot = t.env[op.smem]
        if not op.is_shared:
            self.write(t, slot, op)
            return
        writer = Writer(op, t.index, t.time)
        slot.state.write_part(t.clock, writer)
        t.written.append(writer)

    def do_clear(self, t: Thread, op: smem.Clear) -> None:
        """Zeros over what a copy has brought: all warpgroups write the same, each reads its own."""
        slot: Slot = t.env[op.smem]
        state = slot.state
        state.check_tenant(t.clock, slot.use, op)
        if any(r.thread == t.index for r in state.reads):
            raise Fault("ordering", f"{state.name} is cleared while it may be read", op)
        writer = Writer(op, t.index, t.time)
        state.cleared[t.index] = writer
        t.written.append(writer)

    def do_read(self, t: Thread, op: smem.Read) -> None:
        """A read by the threads; without scratch nothing tells when it is over."""
        slot: Slot = t.env[op.smem]
        slot.state.check_read(t.clock, slot.use, op)
        slot.state.reads.append(Read(t.index, t.time if op.scratch is not None else -1))
        t.env[op.result] = None

    def do_write_scalars(self, t: Thread, op: smem.WriteScalars) -> None:
        slot: Slot = t.env[op.smem]
        self.write(t, slot, op)
        slot.state.data, slot.state.tile = tuple(t.env.get(v) for v in op.values), t.tile

    def do_read_scalars(self, t: Thread, op: smem.ReadScalars) -> None:
        slot: Slot = t.env[op.smem]
        slot.state.check_read(t.clock, slot.use, op)
        slot.state.reads.append(Read(t.index, t.time))
        data = slot.state.data or (None,) * op.count
        t.env.update(zip(op.results, data, strict=True))
        t.tile = slot.state.tile  # that of the writer: what is loaded now depends on it

    def do_load(self, t: Thread, op: tma.Load) -> None:
        _, use = self.place(t, op)
        slot: Slot = t.env[op.smem]
        cursor: Cursor = t.env[op.cursor]
        size = self.box_sizes.get(op) or self.box_sizes.setdefault(op, box_bytes(op))
        part = t.env[op.part] if op.part is not None else 0
        mask = t.env[op.mask] if op.mask is not None else 1 << t.cta.rank
        if mask >> self.cluster_size or not mask:
            raise Fault(
                "cluster", f"multicast mask {mask:b} in a cluster of {self.cluster_size}", op
            )
        start = op.offset_bytes + part * op.part_bytes
        if start + size > slot.type.bytes:
            raise Fault(
                "ordering",
                f"the box ends {start + size - slot.type.bytes} bytes behind its slot",
                op,
            )
        for cta in self.ctas:
            if mask >> cta.rank & 1:
                target = cta.barriers[op.barriers][cursor.at]
                state = cta.buffers[slot.buffer][slot.at]
                self.land(t, op, state, target, use, (start, start + size))
        t.tick()

    def land(
        self, t: Thread, op: tma.Load, state: SlotState, b: Barrier, use: int, span: tuple[int, int]
    ) -> None:
        """A copy: ordered after what its thread knows, over for those who know the phase."""
        self.signal(t, b, use, op)
        w = state.writer
        if w is None or (w.barrier, w.use) != (b.index, use):
            state.check_write(t.clock, op)
            w = state.writer = Writer(op, t.index, t.time, b.index, use)
            state.reads, state.cleared = [], {}
        if any(lo < span[1] and span[0] < hi for lo, hi in w.ranges):
            raise Fault("ordering", f"two copies write the same bytes of {state.name}", op)
        w.ranges.append(span)
        self.deliver(t, op, state, b, span[1] - span[0])

    def deliver(
        self, t: Thread, op: tma.Load, state: SlotState, b: Barrier, num_bytes: int
    ) -> None:
        """The copy's bytes arrive: here at once, which no barrier can tell from later."""
        del state
        b.receive(t.clock, num_bytes, op, own=t.index)

    # ------------------------------------------------------------------ wgmma
    def do_fence(self, t: Thread, op: mma.Fence) -> None:
        del op
        t.fenced = True

    def do_issue(self, t: Thread, op: mma.Issue) -> None:
        if not t.fenced:
            raise Fault("fences", "a wgmma starts without a fence of its registers", op)
        for v in (op.a, op.b):
            slot = t.env.get(v)
            if isinstance(slot, Slot):
                self.read_by_engine(t, slot, op)
                read = Read(t.index, of_warps=bool(slot.state.parts))
                slot.state.reads.append(read)
                t.open.append(read)
            else:
                self.check_taken(t, v, op)
        t.env[op.result] = t.committed

    def read_by_engine(self, t: Thread, slot: Slot, op: Op) -> None:
        """A read through the async proxy."""
        state = slot.state
        state.check_read(t.clock, slot.use, op)
        if not (state.parts or state.cleared) and state.writer and state.writer.barrier >= 0:
            return  # by copies alone
        for w in (*state.parts.values(), state.cleared.get(t.index), state.writer):
            if w is not None and w.barrier < 0 and not (w.fenced and w.is_visible(t)):
                what = "barrier" if w.fenced else "proxy fence"
                message = f"no {what} between the writes to {state.name} and the copy engine"
                raise Fault("fences", message, op)
        if state.parts and len(state.parts) < t.role.num_warpgroups:
            message = f"{state.name} is read before all warpgroups have written their part"
            raise Fault("ordering", message, op)

    def do_commit(self, t: Thread, op: mma.Commit) -> None:
        del op
        t.groups.append(t.open)
        t.open = []
        t.committed += 1
        t.fenced = False

    def do_wait(self, t: Thread, op: mma.Wait) -> None:
        while len(t.groups) > op.pending:
            for r in t.groups.popleft():
                r.end = t.time
                if r.of_warps:
                    t.waited.append(r)
        for a, r in zip(op.accs, op.results, strict=True):
            self.check_settled(t, a, op)
            t.env[r] = None

    def do_pin(self, t: Thread, op: mma.Pin) -> None:
        self.check_taken(t, op.value, op)

    def do_cluster_reduce(self, t: Thread, op: mma.ClusterReduce) -> Iterator[bool] | None:
        self.check_taken(t, op.acc, op)
        if t.reduced:
            raise Fault(
                "cluster", "the buffer of partial sums is used a second time, nothing frees it", op
            )
        t.reduced = True
        group: int = t.env[op.index]
        rank: int = t.env[op.rank]
        owner = group % op.cluster_size
        assert op.barriers is not None
        slots: list[Barrier] = self.ctas[owner].barriers[op.barriers]
        b = slots[group // op.cluster_size]
        t.env[op.results[1]] = rank == owner
        t.env[op.results[0]] = None
        if rank != owner:
            type_ = op.acc.type
            assert isinstance(type_, TileType)
            assert type_.layout is not None
            b.receive(t.clock, type_.layout.num_regs * 128 * 4, op)
            t.tick()
            return None
        return self._wait(t, b, 0, op)

    # ------------------------------------------------------------------ bulk stores
    def do_store(self, t: Thread, op: tma.Store) -> None:
        slot: Slot = t.env[op.smem]
        self.read_by_engine(t, slot, op)
        read = Read(t.index)
        slot.state.reads.append(read)
        t.stores.append(read)

    def do_store_wait(self, t: Thread, op: tma.StoreWait) -> None:
        while len(t.stores) > op.pending:
            t.leader_done.append(t.stores.popleft())


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
