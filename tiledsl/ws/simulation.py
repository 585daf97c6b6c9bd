"""One cluster's run of a specialised MACHINE program with its data.

The rules of the checker, with the values that ops compute, and copies and wgmmas that happen at any
time between their start and the wait for them. A warpgroup holds whole tiles; of a write to its own
part of a tile it writes that part.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from inspect import isgenerator
from typing import Any
from typing import cast

import numpy as np

from tiledsl.ir.interp import Interpreter
from tiledsl.ir.interp import finish
from tiledsl.ir.layout import Unit
from tiledsl.ir.machine import Array
from tiledsl.ir.machine import GlobalMemory
from tiledsl.ir.machine import Steps
from tiledsl.ir.machine import load_block
from tiledsl.ir.machine import store_block
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import program
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.atomic import Cas
from tiledsl.ir.ops.atomic import Rmw
from tiledsl.ir.ops.atomic import Update
from tiledsl.ir.ops.barrier import ArriveCopies
from tiledsl.ir.ops.pointer_copy import CopyLanes
from tiledsl.ir.ops.tile import Undef
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.check_places import gives
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import Step
from tiledsl.ws.check_state import WARPGROUP_THREADS
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Does
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import MayWait
from tiledsl.ws.check_state import SlotState
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_steps import Call
from tiledsl.ws.coroutines import Coroutines
from tiledsl.ws.simulated_slots import Held
from tiledsl.ws.simulated_slots import box_within
from tiledsl.ws.simulated_slots import contents
from tiledsl.ws.simulated_slots import fill
from tiledsl.ws.simulated_slots import is_shared_out
from tiledsl.ws.simulated_slots import nothing
from tiledsl.ws.simulated_slots import own_part
from tiledsl.ws.simulated_slots import tensor_map_of
from tiledsl.ws.simulated_updates import Updates

EAGERNESS = 0.3
"""Chance of each copy or wgmma in flight to happen in a round."""


class InFlight(int):
    """The number of a wgmma group, and the result once it is there."""

    value: Any = None


class Simulation(Coroutines):
    """One cluster's run.

    flying: copies to shared memory under way. copies: of threads, which have not told of them yet.
    """

    flies = True

    def __init__(
        self,
        code: Program,
        point: LaunchPoint,
        cluster_size: int,
        values: Mapping[Value, Any],
        memory_: GlobalMemory,
        program_: tuple[int, int, int],
        seed: int,
    ) -> None:
        super().__init__(code, cluster_size)
        self.start(point)
        self.reset()
        self.rng = random.Random(seed)
        self.program = program_
        self.flying: list[Callable[[], None]] = []
        self.wgmmas: dict[Thread, list[tuple[int, Callable[[], None]]]] = {}
        self.copies: dict[Thread, list[Callable[[], None]]] = {}
        self.sent: dict[Thread, list[Callable[[], None]]] = {}
        self.updates = Updates(code.graph)
        self.partials: dict[tuple[int, int], dict[int, Array]] = {}
        self.machines: dict[Thread, Interpreter] = {}
        for t in self.threads:
            self.machines[t] = Interpreter(memory_, program_, point.grid, values)
            t.env = self.machines[t].values
            self.wgmmas[t], self.sent[t] = [], []
        self._poison()

    def _poison(self) -> None:
        for cta in self.ctas:
            for buffer, slots in cta.buffers.items():
                type_ = buffer.type
                assert isinstance(type_, SmemType)
                for state in slots:
                    state.data = nothing(type_.shape, type_.dtype.numpy)

    # ------------------------------------------------------------------ scheduling
    def run(self) -> None:
        for _ in self.turns():
            pass

    def turns(self) -> Iterator[Thread]:
        """Runs all threads; yields each one that went on, `where` it stands."""
        live = [(t, self.steps(t)) for t in self.threads]
        while live:
            self.rng.shuffle(live)
            moved = self._agents(EAGERNESS)
            for item in list(live):
                thread, steps = item
                before = thread.steps
                try:
                    moved |= next(steps) or thread.steps != before
                except StopIteration:
                    live.remove(item)
                    self.finish(thread)
                    moved = True
                if thread.steps != before:
                    yield thread
            if not moved and not self._agents(1.0) and live:
                raise Fault("liveness", self.stuck([t for t, _ in live]), live[0][0].where)
        self._agents(1.0)
        self.check_end()

    def _agents(self, chance: float) -> bool:
        """Lets some of what is in flight happen."""
        moved = False
        for i in reversed(range(len(self.flying))):
            if self.rng.random() < chance:
                self.flying.pop(i)()
                moved = True
        for t in self.threads:
            for queue in (self.wgmmas[t], self.sent[t]):
                if queue and self.rng.random() < chance:
                    item = queue.pop(0)
                    (item[1] if isinstance(item, tuple) else item)()
        return moved

    # ------------------------------------------------------------------ values
    def value(self, t: Thread, v: Value) -> Any:
        """What a value holds, as ops take it."""
        held: Any = t.env.get(v)
        if isinstance(v.type, ScalarType) and not hasattr(held, "dtype"):
            return np.asarray(held).astype(v.type.dtype.numpy)
        return held

    def link_scalar(self, t: Thread, step: Step) -> Call:
        return lambda: self.compute(t, step.op)

    def compute(self, t: Thread, op: Op) -> None:
        """An op without a rule, by its own semantics."""
        if isinstance(op, Undef):
            t.env[op.result] = nothing(op.shape, op.dtype.numpy)
            return
        if isinstance(op, memory.Store | pointer.StoreLanes) and is_shared_out(op.value):
            self.store_own(t, op)
            return
        values = [self.value(t, v) for v in op.operands]
        if isinstance(op, Rmw | Cas | Update):
            results: Any = self.updates.make(t, op, self.machines[t], values)
        else:
            results = op.execute(self.machines[t], *values)
        if isgenerator(results):
            results = finish(cast("Steps", results))
        many = cast("tuple[Any, ...]", results if isinstance(results, tuple) else (results,))
        for r, x in zip(op.results, many, strict=False):
            t.env[r] = x

    def store_own(self, t: Thread, op: memory.Store | pointer.StoreLanes) -> None:
        """Stores what a warpgroup holds of a tile; its copy of the rest may be anything."""
        type_ = op.value.type
        assert isinstance(type_, TileType)
        own = own_part(type_, t.warpgroup)
        values = [self.value(t, v) for v in op.operands]
        if isinstance(op, pointer.StoreLanes):
            inputs = tuple(values[: len(op.inputs)])
            at, mask, _, origin = finish(op.places(self.machines[t], inputs))
            self.machines[t].memory.scatter(at, t.env[op.value], own & mask, origin=origin)
            return
        at = len(op.offsets) + 1
        before = load_block(values[0], [int(o) for o in values[1:at]], op.block_shape)
        values[at] = np.where(own, values[at], np.reshape(before, own.shape))
        op.execute(self.machines[t], *values)

    def calc_program_id(self, t: Thread, op: program.ProgramId) -> Does:
        return gives(t, op, lambda: self.program[op.axis])

    def calc_shape(self, t: Thread, op: memory.Shape) -> Does:
        return gives(t, op, lambda: int(t.env[op.tensor].shape[op.dim]))

    def calc_pick(self, t: Thread, op: memory.Pick) -> Does:
        return gives(t, op, lambda: t.env[op.tensors[int(t.env[op.index])]])

    def calc_stride(self, t: Thread, op: memory.Stride) -> Does:
        return gives(t, op, lambda: int(op.evaluate(t.env[op.tensor])))

    def calc_tile_to_program(self, t: Thread, op: program.TileToProgram) -> Does:
        place = super().calc_tile_to_program(t, op)

        def whole() -> None:
            t.env[op.tile] = int(t.env[op.tile])
            place()

        return whole

    # ------------------------------------------------------------------ copies
    def deliver(
        self, t: Thread, op: tma.Load, state: SlotState, b: Barrier, num_bytes: int
    ) -> None:
        coords = [int(t.env[v]) for v in op.coords]
        part = int(t.env[op.part]) if op.part is not None else 0
        clock, tensor = t.clock, t.env[op.item or tensor_map_of(op.map).tensor]

        def happen() -> None:
            fill(op, state, tensor, coords, part)
            b.receive(clock, num_bytes, op)

        self.flying.append(happen)

    def link_copy_lanes(self, t: Thread, op: CopyLanes) -> Does:
        begin, slot = super().link_copy_lanes(t, op), t.slot(op.slot)

        def copy() -> None:
            begin()
            machine, state = self.machines[t], slot.state
            inputs = tuple(self.value(t, v) for v in op.inputs)
            at, mask, _, origin = finish(op.places(machine, inputs))
            state.data = nothing(slot.type.shape, slot.type.dtype.numpy)

            def happen() -> None:
                state.data = machine.memory.gather(at, op.dtype, mask, 0, origin=origin)

            self.copies.setdefault(t, []).append(happen)

        return copy

    def landed(self, t: Thread, b: Barrier, use: int, op: ArriveCopies) -> None:
        copies, clock = self.copies.pop(t, []), t.clock
        b.receives = True

        def happen() -> None:
            for copy in copies:
                copy()
            b.arrive(clock, use, WARPGROUP_THREADS, op)

        self.flying.append(happen)

    def link_store(self, t: Thread, op: tma.Store) -> Does:
        begin, slot = super().link_store(t, op), t.slot(op.smem)

        def store() -> None:
            begin()
            coords = [int(t.env[v]) for v in op.coords]
            guard = op.guard is None or bool(t.env[op.guard])
            tensor, data = t.env[op.item or tensor_map_of(op.map).tensor], slot.state
            if op.rows is not None:
                made = tensor_map_of(op.map)
                tensor = memory.before_end(tensor, coords[1] + int(t.env[op.rows]), made.dims[1])

            def happen() -> None:
                if guard:
                    starts, shape = box_within(op.map, coords)
                    store_block(tensor, starts, np.reshape(data.data, shape))

            self.sent[t].append(happen)

        return store

    def link_store_wait(self, t: Thread, op: tma.StoreWait) -> Does:
        end = super().link_store_wait(t, op)

        def wait() -> None:
            while len(self.sent[t]) > op.pending:
                self.sent[t].pop(0)()
            end()

        return wait

    # ------------------------------------------------------------------ shared memory
    def held(self, t: Thread, v: Value) -> Any:
        """An operand of a wgmma: a tile in registers, or what is to be read later of a slot."""
        if not isinstance(v.type, SmemType):
            return t.env.get(v)
        orders: list[tuple[int, ...]] = []
        while isinstance(v.defining_op, smem.View):
            orders.insert(0, v.defining_op.order)
            v = v.defining_op.a
        return Held(t.slot(v).state, tuple(orders))

    def link_write(self, t: Thread, op: smem.Write) -> Does:
        write, slot = super().link_write(t, op), t.slot(op.smem)
        type_ = op.value.type
        assert isinstance(type_, TileType)
        start = list(op.start or (0,) * type_.rank)
        if op.per_warpgroup and type_.layout is not None:
            for dim in range(type_.rank):
                for stride, _, weight in type_.layout.unit_terms(dim, Unit.WARP):
                    start[dim] += t.warpgroup * weight if stride >= 4 else 0
        window = tuple(slice(a, a + n) for a, n in zip(start, slot.type.shape, strict=True))

        def fill_in() -> None:
            write()
            part = np.asarray(t.env[op.value])[window]
            slot.state.data = nothing(slot.type.shape, slot.type.dtype.numpy)
            slot.state.data[tuple(slice(0, n) for n in part.shape)] = part

        return fill_in

    def link_clear(self, t: Thread, op: smem.Clear, first: int) -> Does:
        clear, slot = super().link_clear(t, op, first), t.slot(op.smem)

        def fill_in() -> None:
            clear()
            rows = np.moveaxis(slot.state.data, op.dim, 0)
            rows[first:] = 0

        return fill_in

    def link_read(self, t: Thread, op: smem.Read) -> Does:
        read = super().link_read(t, op)

        def take() -> None:
            read()
            data = np.array(contents(self.held(t, op.smem)))
            if op.part:
                first, count, at = op.part
                whole = np.zeros(op.shape, data.dtype)
                whole[:, first : first + count] = data[: op.shape[0], at : at + count]
                data = whole
            elif op.shape:
                start = int(t.env[op.first]) if op.first is not None else 0
                data = data[start:][tuple(slice(0, n) for n in op.shape)]
            t.env[op.result] = data

        return take

    def link_read_scalars(self, t: Thread, op: smem.ReadScalars, *words: int | None) -> Does:
        del words  # they are what is there
        slot = t.slot(op.smem)

        def read() -> None:
            t.env.update(zip(op.results, self.read_words(t, slot, op), strict=True))

        return read

    # ------------------------------------------------------------------ wgmma
    def link_issue(self, t: Thread, op: mma.Issue) -> Does:
        begin = super().link_issue(t, op)
        type_ = op.acc.type
        assert isinstance(type_, TileType)

        def issue() -> None:
            begin()
            result = InFlight(t.committed)
            t.env[op.result] = result
            a, b, acc = self.held(t, op.a), self.held(t, op.b), t.env.get(op.acc)
            keep = op.keep is None or bool(t.env[op.keep])

            def happen() -> None:
                left, right = (np.asarray(contents(x)) for x in (a, b))
                wide = np.int64 if left.dtype.kind in "iu" else np.float32
                if op.count_K:
                    part = slice(op.first_K, op.first_K + op.count_K)
                    left, right = left[:, part], right[part]
                made = (left.astype(wide) @ right.astype(wide))[: type_.shape[0], : type_.shape[1]]
                made = made.astype(type_.dtype.numpy)
                before = acc.value if isinstance(acc, InFlight) else acc
                result.value = np.asarray(before) + made if keep else made

            self.wgmmas[t].append((t.committed, happen))

        return issue

    def link_wait(self, t: Thread, op: mma.Wait) -> Does:
        end = super().link_wait(t, op)

        def wait() -> None:
            end()
            done = t.committed - len(t.groups)
            queue = self.wgmmas[t]
            while queue and queue[0][0] < done:
                queue.pop(0)[1]()
            for a, r in zip(op.accs, op.results, strict=True):
                held = t.env.get(a)
                t.env[r] = held.value if isinstance(held, InFlight) else held

        return wait

    def link_cluster_reduce(
        self, t: Thread, op: mma.ClusterReduce, index: int, rank: int
    ) -> MayWait:
        waits = super().link_cluster_reduce(t, op, index, rank)
        own = t.cta.rank

        def reduce() -> bool:
            parts = self.partials.setdefault((t.role.id, index), {})
            parts[own] = t.env[op.acc]
            if waits():
                return True
            total = t.env[op.acc]
            if t.env[op.results[1]]:
                for other in sorted(parts):
                    total = total + parts[other] if other != own else total
            t.env[op.results[0]] = total
            return False

        return reduce
