"""A loop whose loads come through rings in shared memory: the rewrite.

Copies for iteration i start `ahead` iterations before it, in the loop before the loop for the first
ones, and each iteration's copies are one group, empty or not: that the oldest group has landed is a
wait for all but the latest `ahead - 1`. One barrier an iteration makes what each thread waited for
visible to all, and says that the slot written next is read no more. Copies beyond the last
iteration are masked off.

A proxy fence waits for all copies of its thread. Where an iteration has one, since threads write an
operand of a dot, copies start behind it, at the end of the iteration: into the slot that this one
has read, so that they come as many iterations ahead as there are slots.

A loop of no more iterations than slots copies all of them before it starts; its iterations have
empty groups, and it is unrolled.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.mma_warp import WarpDot
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.ops.pointer_copy import CopyCommit
from tiledsl.ir.ops.pointer_copy import CopyWait
from tiledsl.ir.ops.smem_ring import Ring
from tiledsl.ir.ops.smem_ring import RingSlot
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.dot_operands import is_of_product
from tiledsl.ws.dot_shapes import shape_of_dot
from tiledsl.ws.free import VIEWS
from tiledsl.ws.free import is_index


def wide(b: Builder, value: Value) -> Value:
    """An integer scalar in int64, where differences of loop bounds do not wrap."""
    return value if value.type == ScalarType(int64) else b.value(ew.Cast(value, int64))


@dataclass(frozen=True)
class RingLoad:
    """A load that comes through a ring.

    memory: a slot. width_bytes: of a copy. is_zeroed: part of a slot is never copied and has to be
    zero. is_direct: the tensor core reads the slot. name: of the tile, or else of what is loaded.
    """

    load: pointer.Load
    memory: SmemType
    width_bytes: int
    is_zeroed: bool = False
    is_direct: bool = False
    name: str = ""


def dot_uses(graph: TileGraph, load: pointer.Load) -> list[tuple[mma.Dot, int, tuple[int, ...]]]:
    """The dots that take a loaded tile: with the side, and the order of its dimensions there."""
    out: list[tuple[mma.Dot, int, tuple[int, ...]]] = []
    for use in graph.users(load.result):
        if isinstance(use.op, mma.Dot) and use.index < 2:
            out.append((use.op, use.index, (0, 1)))
        elif isinstance(use.op, tile.Transpose):
            out += [
                (inner.op, inner.index, use.op.order)
                for inner in graph.users(use.op.result)
                if isinstance(inner.op, mma.Dot) and inner.index < 2
            ]
    return out


def writes_operands(loop: For, direct: set[Value]) -> list[bool]:
    """For each dot of a loop, whether threads write an operand of it in the loop.

    direct: tiles that the tensor core reads where copies put them.
    """
    out: list[bool] = []
    for dot in [op for op in loop.body.ops if isinstance(op, mma.Dot)]:
        written = False
        for side, value in enumerate((dot.a, dot.b)):
            source = value
            while isinstance(source.defining_op, tile.Transpose):
                source = source.defining_op.a
            inside = source.defining_op is not None and source.defining_op.parent is loop.body
            written |= inside and source not in direct and (side == 1 or not is_of_product(source))
        out.append(written)
    return out


@dataclass(frozen=True)
class Ahead:
    """What copies of an iteration take: carried values at its start, and loaded indexes."""

    state: tuple[Value, ...]
    indexes: tuple[Value, ...]

    @property
    def values(self) -> tuple[Value, ...]:
        """Both, as a loop carries them."""
        return (*self.state, *self.indexes)


@dataclass(frozen=True)
class CopyLoop:
    """The plan for one loop.

    ops: of the body that addresses and masks take. indexes: the loads among them. state: positions
    of the carried values that they take. depth: slots. dot: the dot whose products stay in flight
    over the end of an iteration, or None. groups: warpgroups of the role. late: whether copies
    start at the end of an iteration. is_fenced: whether it has a fence before its first product, or
    needs none. by_warps: the dot that warps compute, which read the slots themselves, or None.
    is_whole: whether all copies start before the loop.
    """

    loop: For
    loads: tuple[RingLoad, ...]
    ops: tuple[Op, ...]
    indexes: tuple[pointer.Load, ...]
    state: tuple[int, ...]
    depth: int
    dot: mma.Dot | None
    groups: int
    late: bool = False
    is_fenced: bool = False
    by_warps: mma.Dot | None = None
    is_whole: bool = False

    @property
    def ahead(self) -> int:
        """Iterations between a copy and its use: a product in flight still reads one slot."""
        if self.late or self.is_whole:
            return self.depth
        return self.depth - (1 if self.dot is None else 2)

    def describe(self) -> list[str]:
        """Lines for the report."""
        out: list[str] = []
        for c in self.loads:
            at = c.load.loc.short if c.load.loc else "?"
            reader = "read into registers"
            if c.is_direct:
                reader = "read by the tensor core" if self.by_warps is None else "read by warps"
            out.append(
                f"{at}: {c.name or 'a tile'} through cp.async, {c.width_bytes} bytes "
                f"at once, {self.depth} slots of {c.memory.bytes} bytes, {reader}"
            )
        at = self.loop.loc.short if self.loop.loc else "?"
        line = f"{at}: copies {self.ahead} iterations ahead"
        if self.is_whole:
            line = f"{at}: copies of all {self.ahead} iterations before the first one"
        elif self.late:
            line += ", at the end of one"
        if self.indexes:
            line += ", the indexes in their addresses one more"
        if self.dot is not None:
            line += ", one product in flight"
        return [*out, line]

    def rewrite(self, graph: TileGraph) -> None:
        """Puts the loop with rings in the place of the loop."""
        _Rewrite(graph, self).run()


class _Rewrite:
    """The rewrite of one loop. acc: the carried accumulator whose products stay in flight."""

    def __init__(self, graph: TileGraph, plan: CopyLoop) -> None:
        self.graph = graph
        self.plan = plan
        self.old = plan.loop
        self.acc: Value | None = None
        self.owned: dict[Value, Value] = {}
        end = self.old.body.terminator
        assert isinstance(end, Yield)
        self.end = end
        top = Builder(graph, graph.body, 0, self.old.loc)
        self.rings = [
            top.value(
                Ring(c.memory, plan.depth, is_zeroed=c.is_zeroed, loc=c.load.loc),
                f"{c.name or 'tile'}_ring",
            )
            for c in plan.loads
        ]

    def run(self) -> None:
        old = self.old
        assert old.parent is not None
        b = Builder(self.graph, old.parent, old.parent.ops.index(old), old.loc)
        for op in (*self.plan.ops, *(c.load for c in self.plan.loads)):
            for value in op.operands:
                self.own(b, value)
        room = b.value(ew.Sub(wide(b, old.upper), wide(b, old.lower)))
        ready = self.prologue(b, room)
        unroll = old.unroll
        if self.plan.is_whole:
            ready, unroll = Ahead((), ()), 0
        init = (*old.init, b.value(ew.Constant(0, int32)), *ready.values)
        new = For(
            old.lower, old.upper, old.step, init, unroll,
            old.unmasked_from, old.unmasked_until, body=Region(), loc=old.loc,
        )  # fmt: skip
        iv = new.body.add_arg(old.iv.type, old.iv.name)
        names = [*(a.name for a in old.carried), "slot", *(v.name for v in ready.values)]
        carried = [new.body.add_arg(v.type, n) for v, n in zip(init, names, strict=True)]
        b.add(new)
        count = len(old.init)
        self.body(new, iv, carried[:count], carried[count], self.split(carried[count + 1 :]))
        self.finish(b, new)

    def own(self, b: Builder, value: Value) -> None:
        """Makes index math from before the loop anew: copies have layouts of their own."""
        op = value.defining_op
        if op is None or value in self.owned or not isinstance(value.type, TileType):
            return
        is_inside = any(op.parent is region for region in self.old.regions)
        if is_inside or not (isinstance(op, VIEWS) or is_index(op)):
            return
        for operand in op.operands:
            self.own(b, operand)
        b.add(clone_op(op, self.owned))

    def split(self, values: list[Value]) -> Ahead:
        """Carried values as what copies take."""
        at = len(self.plan.state)
        return Ahead(tuple(values[:at]), tuple(values[at:]))

    def finish(self, b: Builder, new: For) -> None:
        """What follows the loop: nothing is on its way, and the slots are free."""
        for at, (a, r) in enumerate(zip(self.old.results, new.results, strict=False)):
            r.name = a.name
            value = r
            if self.plan.dot is not None and new.carried[at] is self.acc:
                wait = mma.Wait((r,), pending=0, names=(r.name,))
                b.add(wait)
                value = wait.results[0]
            self.graph.replace_uses(a, value)
        b.add(CopyWait())
        b.add(barrier.CtaSync())
        self.graph.erase(self.old)

    # ------------------------------------------------------------------ copies
    def prologue(self, b: Builder, room: Value) -> Ahead:
        """Copies of the first iterations; what those of the next one take."""
        plan, old = self.plan, self.old
        start = tuple(old.init[n] for n in plan.state)
        exists = b.value(ew.Compare("lt", old.lower, old.upper))
        first = Ahead(start, self.load_indexes(b, old.lower, start, exists))
        bounds = [b.value(ew.Constant(n, self.iv_dtype)) for n in (0, plan.ahead, 1)]
        unroll = 0 if plan.is_whole else 1
        loop = For(
            bounds[0], bounds[1], bounds[2], first.values, unroll, body=Region(), loc=old.loc
        )
        at = loop.body.add_arg(old.iv.type, "ahead")
        ready = self.split([loop.body.add_arg(v.type, v.name) for v in first.values])
        b.add(loop)
        with b.at(loop.body):
            index = b.value(ew.Cast(at, int32)) if self.iv_dtype != int32 else at
            iv = b.value(ew.Add(old.lower, b.value(ew.Mul(at, old.step))))
            distance = b.value(ew.Mul(wide(b, at), wide(b, old.step)))
            ready = self.copy(b, iv, b.value(ew.Sub(room, distance)), ready, index)
            b.add(Yield(ready.values))
        return self.split(list(loop.results))

    @property
    def iv_dtype(self) -> DType:
        assert isinstance(self.old.iv.type, ScalarType)
        return self.old.iv.type.dtype

    def copy(self, b: Builder, iv: Value, room: Value, ready: Ahead, index: Value) -> Ahead:
        """Copies of the iteration of `iv` to slot `index`; what those of the one after it take.

        room: how far the end is, an int64; there is no such iteration where it is not positive.
        """
        plan, old = self.plan, self.old
        zero = b.value(ew.Constant(0, int64))
        exists = b.value(ew.Compare("gt", room, zero))
        mapping = self.mapping(iv, ready.state)
        mapping.update((op.result, v) for op, v in zip(plan.indexes, ready.indexes, strict=True))
        for op in plan.ops:
            if op not in plan.indexes:
                b.add(clone_op(op, mapping))
        for c, ring in zip(plan.loads, self.rings, strict=True):
            slot = b.value(RingSlot(ring, index), ring.name.replace("_ring", "_to"))
            at = mapping.get(c.load.pointer, c.load.pointer)
            with b.located(c.load.loc):
                copy = Copy(slot, at, self.inside(b, c.load, mapping, exists), loc=c.load.loc)
                b.add(copy)
        b.add(CopyCommit())
        state = tuple(mapping.get(v, v) for v in (self.end.values[n] for n in plan.state))
        after = b.value(ew.Add(iv, old.step))
        left = b.value(ew.Compare("gt", room, wide(b, old.step)))
        return Ahead(state, self.load_indexes(b, after, state, left))

    def load_indexes(
        self, b: Builder, iv: Value, state: tuple[Value, ...], exists: Value
    ) -> tuple[Value, ...]:
        """The indexes in the addresses of one iteration, where that iteration exists."""
        if not self.plan.indexes:
            return ()
        mapping = self.mapping(iv, state)
        for op in self.plan.ops:
            if isinstance(op, pointer.Load):
                mask = self.inside(b, op, mapping, exists)
                other = None if op.other is None else mapping.get(op.other, op.other)
                at = mapping.get(op.pointer, op.pointer)
                made = pointer.Load(at, mask, other, hint=op.hint, loc=op.loc)
                mapping[op.result] = b.value(made, op.result.name)
            else:
                b.add(clone_op(op, mapping))
        return tuple(mapping[op.result] for op in self.plan.indexes)

    def mapping(self, iv: Value, state: tuple[Value, ...]) -> dict[Value, Value]:
        """What stands for the old loop's arguments."""
        old = self.old
        pairs = zip(self.plan.state, state, strict=True)
        return {**self.owned, old.iv: iv, **{old.carried[n]: v for n, v in pairs}}

    def inside(
        self, b: Builder, load: pointer.Load, mapping: dict[Value, Value], exists: Value
    ) -> Value:
        """The mask of a load of an iteration that may not exist."""
        type_ = load.pointer.type
        mask = exists
        if isinstance(type_, TileType):
            mask = b.value(tile.Splat(exists, type_.shape))
        if load.mask is None:
            return mask
        return b.value(ew.And(mapping.get(load.mask, load.mask), mask))

    # ------------------------------------------------------------------ the loop
    def body(self, new: For, iv: Value, carried: list[Value], slot: Value, ready: Ahead) -> None:
        """Waits, copies, and then what the old loop did."""
        plan, old = self.plan, self.old
        b = Builder(self.graph, new.body, None, old.loc)
        b.add(CopyWait(pending=plan.ahead - 1))
        if any(c.is_direct for c in plan.loads) and not plan.is_fenced:
            b.add(barrier.AsyncFence())
        b.add(barrier.CtaSync())
        slots = [
            b.value(RingSlot(ring, slot), ring.name.replace("_ring", "_at")) for ring in self.rings
        ]
        product = self.issue(b, carried, slots) if plan.dot is not None else None
        first = len(new.body.ops)
        ready = self.copy_later(b, iv, ready, slot)
        copies = new.body.ops[first:] if plan.late else []
        if product is not None:
            b.add(mma.Wait((), pending=1))
        following = self.turned(b, slot, 1)
        for op in (*old.body.ops, *copies):
            if op is not self.end:
                self.graph.move_to(op, new.body)
        self.graph.move_to(self.end, new.body)
        for a, fresh in zip((old.iv, *old.carried), (iv, *carried), strict=True):
            self.graph.replace_uses(a, fresh)
        if plan.dot is not None and product is not None:
            self.graph.replace_uses(plan.dot.result, product)
            self.graph.erase(plan.dot)
        for c, at in zip(plan.loads, slots, strict=True):
            if c.is_direct and plan.by_warps is not None:
                self.multiply_by_warps(plan.by_warps, at)
            self.read(c.load, at)
        end = Yield((*self.end.values, following, *ready.values), loc=self.end.loc)
        self.graph.replace_op(self.end, end)

    def copy_later(self, b: Builder, iv: Value, ready: Ahead, slot: Value) -> Ahead:
        """The group of copies that starts in an iteration; what those of the next one take."""
        plan, old = self.plan, self.old
        if plan.is_whole:
            b.add(CopyCommit())
            return ready
        if plan.late:
            b.add(barrier.CtaSync())
        ahead = b.value(ew.Constant(plan.ahead, self.iv_dtype))
        then = b.value(ew.Add(iv, b.value(ew.Mul(ahead, old.step))))
        distance = b.value(ew.Mul(wide(b, ahead), wide(b, old.step)))
        left = b.value(ew.Sub(wide(b, old.upper), wide(b, iv)))
        target = slot if plan.late else self.turned(b, slot, plan.ahead)
        return self.copy(b, then, b.value(ew.Sub(left, distance)), ready, target)

    def turned(self, b: Builder, slot: Value, steps: int) -> Value:
        """The slot so many after another one."""
        depth = self.plan.depth
        after = b.value(ew.Add(slot, b.value(ew.Constant(steps, int32))))
        before = b.value(ew.Add(slot, b.value(ew.Constant(steps - depth, int32))))
        limit = b.value(ew.Constant(depth - steps, int32))
        return b.value(ew.Select(b.value(ew.Compare("lt", slot, limit)), after, before), "slot")

    def issue(self, b: Builder, carried: list[Value], slots: list[Value]) -> Value:
        """Starts the product of this iteration's slots."""
        dot = self.plan.dot
        assert dot is not None
        sides: dict[int, Value] = {}
        for c, at in zip(self.plan.loads, slots, strict=True):
            for user, side, order in dot_uses(self.graph, c.load):
                if user is dot:
                    sides[side] = at if order == (0, 1) else b.value(smem.View(at, order))
        shape = shape_of_dot(dot, self.plan.groups)
        self.acc = carried[self.old.carried.index(dot.acc)]
        b.add(mma.Fence())
        issue = mma.Issue(
            sides[0], sides[1], self.acc,
            split=shape.split, swapped=shape.swapped, names=(dot.result.name,), loc=dot.loc,
        )  # fmt: skip
        b.add(issue)
        b.add(mma.Commit())
        return issue.result

    def multiply_by_warps(self, dot: mma.Dot, slot: Value) -> None:
        """Puts the product that warps compute in the place of a dot."""
        made = WarpDot(slot, dot.b, dot.acc, names=(dot.result.name,), loc=dot.loc)
        self.graph.insert_before(dot, made)
        self.graph.replace_uses(dot.result, made.result)
        self.graph.erase(dot)

    def read(self, load: pointer.Load, slot: Value) -> None:
        """Reads the slot where the tile was loaded, for each form in which it is used."""
        assert load.parent is not None
        b = Builder(self.graph, load.parent, load.parent.ops.index(load), load.loc)
        for use in self.graph.users(load.result):
            if isinstance(use.op, tile.Transpose):
                turned = use.op
                if self.graph.has_uses(turned.result):
                    view = b.value(smem.View(slot, turned.order))
                    self.graph.replace_uses(turned.result, b.value(self.part(view, turned.result)))
                self.graph.erase(turned)
        if self.graph.has_uses(load.result):
            self.graph.replace_uses(load.result, b.value(self.part(slot, load.result)))
        self.graph.erase(load)

    def part(self, slot: Value, old: Value) -> Op:
        """The tile in a slot, which may be padded."""
        assert isinstance(old.type, TileType)
        return smem.Read(slot, shape=old.type.shape, names=(old.name,))
