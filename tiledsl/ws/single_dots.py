"""Dots of a single role: operands to shared memory, a barrier, the tensor core, a barrier."""

from __future__ import annotations

from tiledsl.dtypes import DType
from tiledsl.dtypes import int1
from tiledsl.dtypes import int32
from tiledsl.errors import InternalError
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise_library import Function
from tiledsl.ir.ops.role import Role
from tiledsl.ir.passes.fold_sums import is_zero
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.dot_operands import in_ring
from tiledsl.ws.dot_operands import is_promoted
from tiledsl.ws.dot_operands import needs_sync
from tiledsl.ws.dot_operands import operand_tile
from tiledsl.ws.dot_operands import outer_loop
from tiledsl.ws.dot_operands import stays_in_registers
from tiledsl.ws.dot_places import DotPlaces
from tiledsl.ws.dot_shapes import DotShape
from tiledsl.ws.dot_shapes import shape_of_dot

_PRODUCTS = (mma.Dot, mma.Issue)


class DotLowering:
    """Lowers the dots of one role; buffers are shared by dots, which run one after the other.

    top: where buffers are made. rings: start and end of the memory of rings (`DotPlaces`).
    """

    def __init__(
        self,
        graph: TileGraph,
        role: Role,
        plan: SmemPlan,
        top: Builder,
        target: Target,
        rings: tuple[int, int] | None = None,
    ) -> None:
        self.graph = graph
        self.role = role
        self.plan = plan
        self.top = top
        self.target = target
        self.places = DotPlaces(graph, role, target, rings)
        self.groups = self.places.groups
        self.buffers: dict[tuple[SmemType, int, int], Value] = {}
        self.shared: dict[int, int] = {}
        self.zeroed = False
        self.ready: set[Value] = set()
        self.keeps = False

    def run(self) -> None:
        """All dots, in program order."""
        self.keeps = self.places.most_bytes(keeps=True) <= self.target.smem_bytes
        if self.places.most_bytes(keeps=self.keeps) > self.target.smem_bytes:
            self.share()
        for op in list(self.role.body.walk()):
            if isinstance(op, mma.Dot):
                self.lower(op)
        drop_double_syncs(self.graph, self.role.body)
        if self.zeroed:
            # Padding is written before anything else is; the barrier of the first dot orders it.
            self.graph.insert(self.role.body, 0, barrier.CtaSync())
            for (type_, _, used), buffer in self.buffers.items():
                if used:
                    self.graph.insert(self.role.body, 0, smem.Zero(buffer, type_.bytes))

    # ------------------------------------------------------------------ one dot
    def lower(self, op: mma.Dot) -> None:
        assert op.parent is not None
        b = Builder(self.graph, op.parent, op.parent.ops.index(op), op.loc)
        dtype = operand_tile(op.a).dtype
        if is_promoted(op):
            result = self.promoted(b, op)
        elif dtype.name == "f32":
            result = self.in_tf32(b, op)
        else:
            result = self.multiply(b, op, [self.staged(b, op)], *self.start(b, op))
        self.graph.replace_uses(op.result, result)
        sources = [v.defining_op for v in (op.a, op.b, op.acc)]
        self.graph.erase(op)
        for made in dict.fromkeys(sources):
            if isinstance(made, smem.Read | tile.Splat | tile.Map) and self.is_unused(made):
                self.graph.erase(made)

    def is_unused(self, op: Op) -> bool:
        """Whether nothing reads what an op makes."""
        return not any(self.graph.has_uses(r) for r in op.results)

    def start(self, b: Builder, op: mma.Dot) -> tuple[Value, Value | None]:
        """What products are added to, and whether: not where that is zero, made just before."""
        return self.nothing(b, op) if _starts_anew(op) else (op.acc, None)

    def nothing(self, b: Builder, op: mma.Dot) -> tuple[Value, Value]:
        """An accumulator that holds nothing yet, and that it is not to be added to."""
        type_ = operand_tile(op.acc)
        fresh = b.value(tile.Undef(type_.shape, type_.dtype), op.result.name)
        fresh.type = type_
        return fresh, b.value(Constant(0, int1))

    def in_tf32(self, b: Builder, op: mma.Dot) -> Value:
        """One product of rounded operands, or three whose sum is as accurate as f32."""
        parts = ("tf32_high",) if op.precision == "tf32" else ("tf32_high", "tf32_low")
        left, right = (
            [
                self.stage_side(b, op, self.mapped(b, value, name), side, slot=slot)
                for slot, name in enumerate(parts)
            ]
            for side, value in enumerate((op.a, op.b))
        )
        pairs = [(left[0], right[0])]
        if len(parts) > 1:  # small products first
            pairs = [(left[1], right[0]), (left[0], right[1]), *pairs]
        return self.multiply(b, op, pairs, *self.start(b, op))

    def promoted(self, b: Builder, op: mma.Dot) -> Value:
        """Partial sums over `promote` elements of K are added in f32."""
        K, acc = operand_tile(op.a).shape[1], op.acc
        ring = [self.places.ring_side(op, value, side) for side, value in enumerate((op.a, op.b))]
        for first in range(0, K, op.promote):
            count = min(op.promote, K - first)
            if ring[0] is not None and ring[1] is not None:
                pair = (ring[0], ring[1])
            else:
                pair = self.staged(b, op, first=first, count=count)
            fresh, never = self.nothing(b, op)
            step = self.target.mma_K(operand_tile(op.a).dtype)
            part_of_K = (first, -(-count // step) * step) if in_ring(pair[0]) else (0, 0)
            part = self.multiply(b, op, [pair], fresh, never, part_of_K)
            acc = self.sum(b, acc, part, op.result.name)
        return acc

    def multiply(
        self,
        b: Builder,
        op: mma.Dot,
        pairs: list[tuple[Value, Value]],
        acc: Value,
        keep: Value | None,
        part_of_K: tuple[int, int] = (0, 0),
    ) -> Value:
        """The products of staged operands, added to `acc` in order; complete on return.

        keep: whether the first one is added, if that is not sure.
        part_of_K: first element and count, all of K when these are 0.
        """
        shape = shape_of_dot(op, self.groups)
        # What lies in a ring is complete, and nobody writes to it before the next iteration; what
        # was staged before the loop stays.
        is_staged = any(self.is_staged(v) for pair in pairs for v in pair)
        if is_staged:
            b.add(barrier.AsyncFence())
            b.add(barrier.CtaSync())
        b.add(mma.Fence())
        name = op.result.name
        for x, y in pairs:
            issue = mma.Issue(
                x, y, acc, keep,
                split=shape.split, swapped=shape.swapped,
                first_K=part_of_K[0], count_K=part_of_K[1], names=(name,),
            )  # fmt: skip
            b.add(issue)
            issue.result.type = acc.type
            acc, keep = issue.result, None
        b.add(mma.Commit())
        wait = mma.Wait((acc,), pending=0, names=(name,))
        b.add(wait)
        if is_staged:
            b.add(barrier.CtaSync())
        wait.results[0].type = acc.type
        return wait.results[0]

    # ------------------------------------------------------------------ staging
    def is_staged(self, value: Value) -> bool:
        """Whether threads have just written an operand, for which all of them wait."""
        if in_ring(value):
            return needs_sync(value)
        return not (isinstance(value.type, TileType) or value in self.ready)

    def staged(
        self, b: Builder, op: mma.Dot, *, first: int = 0, count: int = 0
    ) -> tuple[Value, Value]:
        """Both operands in shared memory: K elements `first` to `first + count` (all when 0)."""
        return (
            self.stage_side(b, op, op.a, 0, first=first, count=count),
            self.stage_side(b, op, op.b, 1, first=first, count=count),
        )

    def stage_side(
        self,
        b: Builder,
        op: mma.Dot,
        value: Value,
        side: int,
        *,
        slot: int = 0,
        first: int = 0,
        count: int = 0,
    ) -> Value:
        """A form of one operand; slot: which form it is, where there are several."""
        shape = shape_of_dot(op, self.groups)
        return self.stage(b, op, value, shape, side, slot=slot, first=first, count=count)

    def stage(
        self,
        b: Builder,
        op: mma.Dot,
        value: Value,
        shape: DotShape,
        side: int,
        *,
        slot: int,
        first: int,
        count: int,
    ) -> Value:
        """side: 0 for a [M, K], 1 for b [K, N]."""
        found = None if count else self.places.ring_side(op, value, side)
        if found is not None:
            return found
        read = value.defining_op
        if isinstance(read, smem.Read) and needs_sync(read.smem):
            raise InternalError("a slot that others may still fill is read into registers", op.loc)
        if not count and stays_in_registers(op, value, side, self.groups):
            return value
        K_dim = 1 - side
        K = count or operand_tile(value).shape[K_dim]
        memory = self.places.memory(shape, value, side, K)
        used = K if memory.shape[K_dim] != K else 0
        loop = outer_loop(op, value)
        if loop is not None and self.keeps and not count:
            return self.kept(op, loop, value, memory, used)
        key = (memory, 2 * slot + side, used)
        at = self.places.in_rings(op, side) if slot == 0 and not count else None
        if at is not None:
            key = (memory, -1 - at, 0)
        if key not in self.buffers:
            if at is None:
                at = None if used else self.shared.get(key[1])
            self.buffers[key] = self.buffer(memory, "ab"[side], op, value, at)
            self.zeroed |= used > 0
        start = [0, 0]
        start[K_dim] = first
        b.add(smem.Write(self.buffers[key], value, (start[0], start[1])))
        return self.buffers[key]

    def kept(self, op: mma.Dot, loop: For, value: Value, memory: SmemType, used: int) -> Value:
        """An operand that a loop does not change, written before the loop to its own buffer."""
        key = (memory, -value.id, used)
        if key not in self.buffers:
            self.buffers[key] = self.buffer(memory, "kept", op, value)
            self.zeroed |= used > 0
            assert loop.parent is not None
            b = Builder(self.graph, loop.parent, loop.parent.ops.index(loop), op.loc)
            b.add(barrier.CtaSync())
            b.add(smem.Write(self.buffers[key], value, (0, 0)))
            b.add(barrier.AsyncFence())
            b.add(barrier.CtaSync())
            self.ready.add(self.buffers[key])
        return self.buffers[key]

    def share(self) -> None:
        """One place for all dots' operands of a side: a dot is complete before the next is staged.

        Padded operands have buffers of their own, whose padding is written once.
        """
        largest: dict[int, tuple[SmemType, Value]] = {}
        for _, side, value, memory, forms in self.places.operands():
            for index in range(side, 2 * forms, 2):
                if index not in largest or memory.bytes > largest[index][0].bytes:
                    largest[index] = (memory, value)
        for index, (memory, value) in sorted(largest.items()):
            self.shared[index] = self.take("ab"[index % 2], memory, value, "shared by all dots; ")

    def buffer(
        self, type_: SmemType, name: str, op: Op, value: Value, at: int | None = None
    ) -> Value:
        """Shared memory of a dot for an operand, or for the part of it that is written at once.

        at: where it lies, if that is known.
        """
        place = self.take(name, type_, value) if at is None else at
        return self.top.value(smem.Buffer(type_, 1, place, loc=op.loc), f"{name}_stage")

    def take(self, name: str, type_: SmemType, value: Value, how: str = "") -> int:
        """Room for an operand."""
        return self.plan.take(
            f"dot operand {name}",
            type_.bytes,
            detail=f"{how}{'x'.join(map(str, type_.shape))} {type_.dtype}",
            shapes=(operand_tile(value).shape,),
        )

    # ------------------------------------------------------------------ tile math
    def mapped(self, b: Builder, value: Value, function: str) -> Value:
        """A library function of every element."""
        type_ = operand_tile(value)
        body = _body(type_, [type_.dtype])
        (x,) = body.args[:1]
        return self.loop(b, type_, (value,), body, Function((x,), name=function), function)

    def sum(self, b: Builder, x: Value, y: Value, name: str) -> Value:
        """The sum of two tiles of one layout."""
        type_ = operand_tile(x)
        body = _body(type_, [type_.dtype, type_.dtype])
        return self.loop(b, type_, (x, y), body, Add(body.args[0], body.args[1]), name)

    def loop(
        self,
        b: Builder,
        type_: TileType,
        inputs: tuple[Value, ...],
        body: Region,
        op: Op,
        name: str,
    ) -> Value:
        for inner in (op, Yield((op.result,))):
            inner.parent = body
            body.ops.append(inner)
        follows = (tuple(range(type_.rank)),) * len(inputs)
        new = tile.Map(inputs, type_.shape, type_.layout, follows, (type_.dtype,), body=body)
        return b.value(new, name)


def _starts_anew(dot: mma.Dot) -> bool:
    """Whether a dot is added to zero that is made for it, with no loop or other dot between."""
    made = dot.acc.defining_op
    if made is None or made.parent is not dot.parent or made.parent is None:
        return False
    ops = made.parent.ops
    between = ops[ops.index(made) : ops.index(dot)]
    return is_zero(dot.acc) and not any(op.is_loop or isinstance(op, _PRODUCTS) for op in between)


def drop_double_syncs(graph: TileGraph, region: Region) -> None:
    """Erases barriers before which, since another one, nothing but registers has changed."""
    met = False
    for op in list(region.ops):
        if isinstance(op, barrier.CtaSync):
            if met:
                graph.erase(op)
            met = True
        elif op.effect is not Effect.PURE or op.regions:
            met = False
        for inner in op.regions:
            drop_double_syncs(graph, inner)


def _body(type_: TileType, dtypes: list[DType]) -> Region:
    body = Region()
    for i, dtype in enumerate(dtypes):
        body.add_arg(ScalarType(dtype), f"x{i}")
    for d in range(type_.rank):
        body.add_arg(ScalarType(int32), f"at{d}")
    return body
