"""Simulates a specialised MACHINE program with its data: what the kernel would compute.

The roles run as in check_run, with the same clocks and obligations, but in an order drawn from a
seed, and with copies and wgmmas that happen at any time between their start and the wait for them.
A slot that is read too early or overwritten too soon shows in the result as well as in the clocks.
Set-up and layout of shared memory are judged before the run (check_static).
A warpgroup holds whole tiles; of a write to its own part of a tile it writes that part.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import isgenerator
from itertools import product
from typing import Any
from typing import cast

import numpy as np

from tiledsl.errors import LaunchError
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.interp import Interpreter
from tiledsl.ir.interp import bind
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
from tiledsl.ir.ops import role
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.barrier import ArriveCopies
from tiledsl.ir.ops.pointer_copy import CopyLanes
from tiledsl.ir.ops.tile import Undef
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ws.check_machine import RULES
from tiledsl.ws.check_places import gives
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import Program
from tiledsl.ws.check_program import Step
from tiledsl.ws.check_program import cut_down
from tiledsl.ws.check_state import WARPGROUP_THREADS
from tiledsl.ws.check_state import Barrier
from tiledsl.ws.check_state import Does
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import MayWait
from tiledsl.ws.check_state import SlotState
from tiledsl.ws.check_state import Thread
from tiledsl.ws.check_static import check_objects
from tiledsl.ws.check_steps import Call
from tiledsl.ws.coroutines import Coroutines

EAGERNESS = 0.3
"""Chance of each copy or wgmma in flight to happen in a round."""


def simulate(
    graph: TileGraph,
    args: Mapping[str, Any],
    grid: tuple[int, ...],
    *,
    seed: int = 0,
    clusters: int = 2,
) -> None:
    """Runs a MACHINE graph; stores write into the arrays given.

    Args:
        graph: of a specialised kernel.
        args: by name, an array per tensor, a number per scalar.
        grid: the user's, one to three extents.
        seed: of the order in which threads, copies and wgmmas go on.
        clusters: of a persistent kernel, which share out the tiles.

    Raises:
        Fault: an obligation of the checker is violated in this run.
    """
    for run in simulations(graph, args, grid, seed=seed, clusters=clusters):
        run.run()


def simulations(
    graph: TileGraph,
    args: Mapping[str, Any],
    grid: tuple[int, ...],
    *,
    seed: int = 0,
    clusters: int = 2,
) -> Iterator[Simulation]:
    """The runs of `simulate`, one cluster after the other; each has to end before the next."""
    if not 1 <= len(grid) <= 3:
        raise LaunchError(f"grid must be one to three ints, got {grid}")
    x, y, z = (*grid, 1, 1)[:3]
    whole = (x, y, z)
    check_objects(graph)
    memory_ = GlobalMemory()
    values = bind(graph, args, memory_)
    code = cut_down(graph, RULES, whole=True)
    if code.unknown:
        raise Fault(
            "liveness", f"the simulator does not know op {code.unknown[0].opcode}", code.unknown[0]
        )
    size = int(graph.facts.get("cluster_size", 1))
    persistent = any(isinstance(s.op, role.NumTiles) for steps in code.code.values() for s in steps)
    drawn = 0
    if persistent:
        for first in range(clusters):
            point = LaunchPoint(0, whole, clusters, first, drawn)
            run = Simulation(code, point, size, values, memory_, (0, 0, 0), seed + first)
            yield run
            drawn = run.drawn
        return
    for number, (z, y, x) in enumerate(product(*map(range, reversed(whole)))):
        point = LaunchPoint(0, whole)
        yield Simulation(code, point, size, values, memory_, (x, y, z), seed + number)


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
                    state.data = _nothing(type_.shape, type_.dtype.numpy)

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
            t.env[op.result] = _nothing(op.shape, op.dtype.numpy)
            return
        if isinstance(op, memory.Store | pointer.StoreLanes) and _is_shared_out(op.value):
            self.store_own(t, op)
            return
        results: Any = op.execute(self.machines[t], *[self.value(t, v) for v in op.operands])
        if isgenerator(results):
            results = finish(cast("Steps", results))
        many = cast("tuple[Any, ...]", results if isinstance(results, tuple) else (results,))
        for r, x in zip(op.results, many, strict=False):
            t.env[r] = x

    def store_own(self, t: Thread, op: memory.Store | pointer.StoreLanes) -> None:
        """Stores what a warpgroup holds of a tile; its copy of the rest may be anything."""
        type_ = op.value.type
        assert isinstance(type_, TileType)
        assert type_.layout is not None
        own = np.zeros(type_.layout.padded_shape, bool)
        places = type_.layout.coords()[4 * t.warpgroup : 4 * t.warpgroup + 4]
        own[tuple(np.moveaxis(places, -1, 0))] = True
        own = own[tuple(map(slice, type_.shape))]
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
        clock, tensor = t.clock, t.env[op.item or _map(op.map).tensor]

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
            state.data = _nothing(slot.type.shape, slot.type.dtype.numpy)

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
            tensor, data = t.env[op.item or _map(op.map).tensor], slot.state
            if op.rows is not None:
                made = _map(op.map)
                tensor = memory.before_end(tensor, coords[1] + int(t.env[op.rows]), made.dims[1])

            def happen() -> None:
                if guard:
                    starts, shape = _box(op.map, coords)
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
            slot.state.data = _nothing(slot.type.shape, slot.type.dtype.numpy)
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


@dataclass(frozen=True)
class Held:
    """A slot that is read later. orders: permutations of its dimensions, one after the other."""

    state: SlotState
    orders: tuple[tuple[int, ...], ...]


def _is_shared_out(value: Value) -> bool:
    """Whether warpgroups hold different parts of a tile."""
    type_ = value.type
    if not isinstance(type_, TileType) or type_.layout is None:
        return False
    terms = (type_.layout.unit_terms(dim, Unit.WARP) for dim in range(type_.rank))
    return any(stride >= 4 for found in terms for stride, _, _ in found)


def contents(x: Any) -> Any:
    """What an operand of a wgmma holds when it is read."""
    if not isinstance(x, Held):
        return x
    data = x.state.data
    for order in x.orders:
        data = data.transpose(order)
    return data


def fill(op: tma.Load, state: SlotState, tensor: Array, coords: list[int], part: int) -> None:
    """Copies one box into its place in a slot."""
    made = op.smem.type
    assert isinstance(made, SmemType)
    starts, shape = _box(op.map, coords)
    block = load_block(tensor, starts, shape)
    box = op.offset_bytes // max(1, made.box_rows * made.swizzle_bytes)
    row = part * op.part_bytes // max(1, made.swizzle_bytes)
    sizes = _kept(op.map, len(made.shape))
    at = [row] * len(made.shape)
    at[made.major] = box * made.box_elems
    block = np.reshape(block, sizes)
    if made.paired:  # rows 0 and 1, or 2 and 3, of every four
        half = op.offset_bytes // (made.box_rows // 2 * made.swizzle_bytes) % 2
        own = np.arange(made.box_rows) % 4 // 2 == half
        data, block = (np.moveaxis(x, made.major, 1) for x in (state.data, block))
        first = box * made.box_elems
        wide = min(block.shape[1], data.shape[1] - first)
        data[own, first : first + wide] = block[own, :wide]
        return
    room = [min(n, m - a) for n, m, a in zip(sizes, made.shape, at, strict=True)]
    inside = tuple(slice(0, n) for n in room)
    state.data[tuple(slice(a, a + n) for a, n in zip(at, room, strict=True))] = block[inside]


def _map(v: Value) -> tma.TensorMap:
    op = v.defining_op
    assert isinstance(op, tma.TensorMap)
    return op


def _box(v: Value, coords: list[int]) -> tuple[list[int], list[int]]:
    """Starts and extents of a box in the order of the tensor's dimensions."""
    op = _map(v)
    type_ = op.tensor.type
    assert isinstance(type_, TensorType)
    starts, shape = [0] * type_.rank, [1] * type_.rank
    for i, (dim, extent, at) in enumerate(zip(op.dims, op.box, coords, strict=True)):
        per = 4 if dim in op.dims[:i] else 1  # the fours of a dimension that stands twice
        starts[dim], shape[dim] = at * per, extent * per
    return starts, shape


def _kept(v: Value, rank: int) -> list[int]:
    """Extents of a box without the dimensions that the tile does not have."""
    op = _map(v)
    _, shape = _box(v, [0] * len(op.dims))
    inner = op.dims[0]
    wide = [d for d in range(len(shape)) if shape[d] > 1 or d == inner]
    spare = [d for d in reversed(range(len(shape))) if d not in wide]
    kept = sorted(wide + spare[: rank - len(wide)])
    return [shape[d] for d in kept]


def _nothing(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array that no result may come from."""
    out = np.zeros(shape, dtype)
    if np.dtype(dtype).kind in "iu":
        out[...] = np.iinfo(dtype).max
    else:
        out[...] = np.asarray(float("nan")).astype(dtype)
    return out


def violation(
    graph: TileGraph, args: Mapping[str, Any], grid: tuple[int, int, int], **options: Any
) -> Op | None:
    """The op at which a simulation finds a violated obligation, None where it finds none."""
    try:
        simulate(graph, args, grid, **options)
    except Fault as fault:
        return fault.op
    return None
