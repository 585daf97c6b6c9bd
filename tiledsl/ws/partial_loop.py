"""Dot loops whose products CUDA cores go on with: f32 sums of fp8 products, scaled products.

An iteration gets a slot, starts each product from zero, makes what does not depend on them, waits,
gives the slot back, and does the rest of the loop body. While one warpgroup does that, the wgmmas
of the others run, so that the tensor core stays busy without a second group in flight; they start
their products in turns, which keeps them apart. Vectors that the body loads for itself (scales)
come in the slots (`slot_vectors`), or, like other small blocks, are loaded one iteration ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from tiledsl.dtypes import int1
from tiledsl.dtypes import int32
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Mod
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Or
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.ops.tile import Undef
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.channels import Channel
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.dot_loop import is_zero_tile
from tiledsl.ws.dot_loop import needs_promotion
from tiledsl.ws.loop_versions import Versions
from tiledsl.ws.loop_versions import known_scalar
from tiledsl.ws.loop_versions import loop_versions
from tiledsl.ws.operands import operand_load
from tiledsl.ws.partition import constant_step
from tiledsl.ws.slot_vectors import address_ops
from tiledsl.ws.slot_vectors import loads_of
from tiledsl.ws.slot_vectors import slot_vectors
from tiledsl.ws.vector_reads import read_vectors

if TYPE_CHECKING:
    from tiledsl.ws.consumer import ConsumerBuilder

AHEAD_ELEMENTS = 512
"""A block that is loaded an iteration ahead has at most so many elements."""


def parts_of_K(dot: mma.Dot) -> list[tuple[int, int]]:
    """(first, count) of the parts of K that the tensor core may add up."""
    assert isinstance(dot.a.type, TileType)
    K = dot.a.type.shape[1]
    if not needs_promotion(dot) or dot.promote >= K:
        return [(0, 0)]
    return [(k, min(dot.promote, K - k)) for k in range(0, K, dot.promote)]


def made_from(body: Region, sources: list[Value]) -> set[int]:
    """Ids of the ops of a body that depend on some values."""
    known, out = set(sources), set[int]()
    for op in body.ops:
        inside = [v for r in op.regions for o in r.walk() for v in o.operands]
        if any(v in known for v in (*op.operands, *inside)):
            known.update(op.results)
            out.add(op.id)
    return out


@dataclass(frozen=True)
class Started:
    """Products of an iteration that run, and tiles read from its slot."""

    products: list[tuple[mma.Dot, Value]]
    read: list[Value]


class PartialLoop:
    """Emits one such loop into the consumer role that `maker` builds."""

    def __init__(self, maker: ConsumerBuilder, found: DotLoop, channel: Channel) -> None:
        self.maker = maker
        self.b = maker.b
        self.channel = channel
        self.found = found
        self.loop = found.loop
        body = found.loop.body
        self.vectors = slot_vectors(found)
        operands = {op.id for op in loads_of((*found.loads, *self.vectors))}
        self.views = [
            op for op in body.ops if isinstance(op, Transpose) and self.is_operand(op, operands)
        ]
        dots = {d.id for d in found.dots}
        late = made_from(body, [d.result for d in found.dots])
        rest = [
            o
            for o in body.ops
            if not isinstance(o, Yield) and o.id not in operands and o not in self.views
        ]
        self.ahead = [(op, a) for op in rest if (a := self.loads_ahead(op)) is not None]
        early = {op.id for op, _ in self.ahead}
        self.early = [
            o for o in rest if o.id not in late and o.id not in dots and o.id not in early
        ]
        self.math = [o for o in rest if o.id in late and o.id not in dots]

    def is_operand(self, op: Transpose, operands: set[int]) -> bool:
        found = operand_load(op.result)
        return found is not None and found[0].id in operands

    def loads_ahead(self, op: Op) -> list[Op] | None:
        """What a load needs that may be made for the next iteration; None for everything else.

        A block load reads nothing outside of its tensor, also past the last iteration.
        """
        if not isinstance(op, Load):
            return None
        type_ = op.result.type
        assert isinstance(type_, TileType)
        small = type_.num_elements <= AHEAD_ELEMENTS
        return address_ops(self.loop, op) if small else None

    # ------------------------------------------------------------------ the loop
    def build(self) -> None:
        """The loop, once for each number that its masks depend on."""
        maker, found = self.maker, loop_versions(self.loop)
        values = self.emit() if found is None else self.version(found, 0)
        if maker.plan.split_k > 1:
            values = maker.reduce_over_cluster(self.channel, values)
        maker.map.update(zip(self.loop.results, values, strict=True))

    def version(self, found: Versions, number: int) -> list[Value]:
        """The loop where the remainder is one of a version's numbers, and the versions after it."""
        maker, b, loop = self.maker, self.b, self.loop
        numbers = found.numbers[number]
        saved = dict(maker.map)
        if number == len(found.numbers) - 1:
            return self.known(found, numbers[0])
        at = maker.get(found.remainder)
        tests = [b.value(Compare("eq", at, maker.like(at, n))) for n in numbers]
        here = reduce(lambda x, y: b.value(Or(x, y)), tests)
        types, names = (tuple(v.type for v in loop.results), tuple(v.name for v in loop.carried))
        branch = If(here, result_types=types, names=names, loc=loop.loc)
        b.add(branch)
        with b.at(branch.then), b.located(loop.loc):
            b.add(Yield(tuple(self.known(found, numbers[0]))))
        maker.map = dict(saved)
        with b.at(branch.orelse), b.located(loop.loc):
            b.add(Yield(tuple(self.version(found, number + 1))))
        maker.map = saved
        return list(branch.results)

    def known(self, found: Versions, number: int) -> list[Value]:
        """The loop where the remainder is a number."""
        maker = self.maker
        maker.map[found.remainder] = maker.like(found.remainder, number)
        for op in found.made:
            scalar = known_scalar(op.result, found.remainder, number)
            if scalar is None:
                maker.clone_into([op])
            else:
                maker.map[op.result] = maker.like(op.result, scalar)
        starts = [v.defining_op for v in self.loop.init if is_zero_tile(v)]
        maker.clone_into([op for op in starts if op is not None])
        return self.emit()

    def emit(self) -> list[Value]:
        """The loop, with chunks of the tile before stored under its first iterations."""
        maker, b, loop = self.maker, self.b, self.loop
        step = constant_step(loop)
        lower, upper = maker.loop_bounds(loop, step)
        saved = dict(maker.map)
        state = [*(maker.get(v) for v in loop.init), *self.load_ahead(lower)]
        at = lower
        for j in range(self.num_chunks):
            at = lower if j == 0 else b.value(Add(lower, maker.like(lower, j * step)), loop.iv.name)
            state = self.first(at, upper, state, j)
        if self.num_chunks:
            at = b.value(Add(lower, maker.like(lower, self.num_chunks * step)))
        if maker.plan.mma_depth > 1:
            middle = self.end_of_pairs(at, upper, step)
            state = self.loop_over(at, middle, 2 * step, state, self.pair)
            maker.map = dict(saved)
            state = self.first(middle, upper, state, None)
        else:
            state = self.loop_over(at, upper, step, state, self.iteration)
        maker.map = saved
        return state[: len(loop.carried)]

    def loop_over(
        self,
        lower: Value,
        upper: Value,
        step: int,
        state: list[Value],
        emit: Callable[[Value, list[Value]], list[Value]],
    ) -> list[Value]:
        """A loop like the program's, whose body `emit` makes; what it leaves behind."""
        maker, b, loop = self.maker, self.b, self.loop
        body = Region()
        iv = body.add_arg(loop.iv.type, loop.iv.name)
        args = [body.add_arg(v.type, n) for v, n in zip(state, self.names, strict=True)]
        stride = maker.get(loop.step) if step == constant_step(loop) else maker.like(lower, step)
        new = For(lower, upper, stride, tuple(state), body=body, loc=loop.loc)
        with b.at(body), b.located(loop.loc):
            b.add(Yield(tuple(emit(iv, args))))
        b.add(new)
        for r, n in zip(new.results, self.names, strict=True):
            r.name = n
        return list(new.results)

    def end_of_pairs(self, lower: Value, upper: Value, step: int) -> Value:
        """Where the last iteration starts that has no other to go with, or the loop ends."""
        maker, b = self.maker, self.b
        trips = maker.trip_count(lower, upper, step)
        paired = b.value(Sub(trips, b.value(Mod(trips, maker.const(2)))))
        span = b.value(Mul(paired, maker.const(step)))
        assert isinstance(lower.type, ScalarType)
        if lower.type.dtype != int32:
            span = b.value(Cast(span, lower.type.dtype))
        return b.value(Add(lower, span), "paired")

    @property
    def num_chunks(self) -> int:
        """Chunks of a pending result."""
        store = self.maker.deferred_store
        return self.maker.stores[store.id].num_chunks if self.maker.pending and store else 0

    @property
    def names(self) -> list[str]:
        return [v.name for v in (*self.loop.carried, *(o.results[0] for o, _ in self.ahead))]

    def first(self, at: Value, upper: Value, state: list[Value], chunk: int | None) -> list[Value]:
        """An iteration outside of the loop, if there is one, over the store of a chunk."""
        maker, b = self.maker, self.b
        there = b.value(Compare("lt", at, upper), "has_slot")
        names = tuple(self.names)
        branch = If(there, result_types=tuple(v.type for v in state), names=names)
        b.add(branch)
        saved = dict(maker.map)
        with b.at(branch.then), b.located(self.loop.loc):
            b.add(Yield(tuple(self.iteration(at, state, chunk))))
        maker.map = saved
        with b.at(branch.orelse):
            if chunk is not None:
                maker.store_pending(chunk)
            b.add(Yield(tuple(state)))
        return list(branch.results)

    # ------------------------------------------------------------------ one iteration
    def iteration(self, iv: Value, state: list[Value], chunk: int | None = None) -> list[Value]:
        """One iteration; chunk: of a pending result, stored while the tensor core works."""
        return self.end(iv, state, self.start(iv), chunk=chunk)

    def pair(self, iv: Value, state: list[Value]) -> list[Value]:
        """Two iterations, whose products are started together."""
        maker, saved = self.maker, dict(self.maker.map)
        first = self.start(iv)
        known = maker.map
        maker.map = saved
        following = self.b.value(
            Add(iv, maker.like(iv, constant_step(self.loop))), self.loop.iv.name
        )
        second = self.start(following)
        later, maker.map = maker.map, known
        state = self.end(iv, state, first, pending=len(second.products))
        maker.map = later
        return self.end(following, state, second)

    def start(self, iv: Value) -> Started:
        """Gets a slot and starts its products.

        Loads from shared memory wait for the wgmmas that read it, also those of other warpgroups:
        vectors are read in front of them. Those who take turns have the time, and others wait.
        """
        maker = self.maker
        maker.map[self.loop.iv] = iv
        maker.get_channel(self.channel)
        maker.clone_into([*self.views])
        if maker.plan.turns:
            maker.enter_order()
        read = [] if maker.plan.turns else read_vectors(maker, self.loop, self.vectors)
        if read:
            self.b.add(barrier.WarpSync())  # ptxas leaves the loads in front of it
        products = [(d, self.issue(d, k)) for d in self.found.dots for k in parts_of_K(d)]
        if maker.plan.turns:
            maker.leave_order()
        return Started(products, read)

    def end(
        self,
        iv: Value,
        state: list[Value],
        started: Started,
        *,
        pending: int = 0,
        chunk: int | None = None,
    ) -> list[Value]:
        """What follows on the start of products; `pending` others were started behind those."""
        maker, b, loop = self.maker, self.b, self.loop
        carried = len(loop.carried)
        maker.map.update(zip(loop.carried, state[:carried], strict=True))
        for (op, _), v in zip(self.ahead, state[carried:], strict=True):
            maker.map[op.results[0]] = v
        read = started.read
        if maker.plan.turns:
            read = read_vectors(maker, loop, self.vectors)
        maker.clone_into(self.early)
        step = maker.like(iv, constant_step(loop))
        following = self.load_ahead(b.value(Add(iv, step))) if self.ahead else []
        if chunk is not None:
            maker.store_pending(chunk)
        self.finish(started.products, pending, read)
        maker.clone_into(self.math)
        end = loop.body.terminator
        assert isinstance(end, Yield)
        return [*(maker.get(v) for v in end.values), *following]

    def issue(self, dot: mma.Dot, part: tuple[int, int]) -> Value:
        """Starts a product, or a part of it, from zero."""
        maker, b = self.maker, self.b
        type_ = dot.acc.type
        assert isinstance(type_, TileType)
        with b.located(dot.loc):
            b.add(mma.Fence())
            fresh = b.value(Undef(type_.shape, type_.dtype), "partial")
            new = mma.Issue(
                maker.get(dot.a),
                maker.get(dot.b),
                fresh,
                b.value(Constant(0, int1)),
                split=maker.plan.split,
                swapped=maker.plan.swapped,
                first_K=part[0],
                count_K=part[1],
                names=("partial",),
            )
            b.add(new)
            b.add(mma.Commit())
        return new.result

    def finish(self, products: list[tuple[mma.Dot, Value]], behind: int, read: list[Value]) -> None:
        """Waits for the products in order and adds their parts up; the slot goes back.

        behind: products of other slots that were started later. read: tiles read from the slot.
        """
        b = self.b
        for dot in self.found.dots:
            self.maker.map.pop(dot.result, None)
        for i, (dot, value) in enumerate(products):
            pending = len(products) - 1 - i
            wait = mma.Wait((value,), pending=pending + behind, loc=dot.loc, names=("partial",))
            b.add(wait)
            if not pending:
                if read:
                    b.add(smem.Arrived(tuple(read), loc=self.loop.loc))
                b.add(aref.Consumed(self.channel.aref))
            self.add_part(dot, wait.results[0])

    def add_part(self, dot: mma.Dot, part: Value) -> None:
        """Adds a part of a product to its dot's result so far."""
        maker, b = self.maker, self.b
        before = maker.map.get(dot.result)
        if before is None and not is_zero_tile(dot.acc):
            before = maker.get(dot.acc)
        with b.located(dot.loc):
            name = dot.result.name
            maker.map[dot.result] = part if before is None else b.value(Add(before, part), name)

    def load_ahead(self, iv: Value) -> list[Value]:
        """The blocks that an iteration loads ahead, for a value of the loop variable."""
        maker = self.maker
        saved = dict(maker.map)
        maker.map[self.loop.iv] = iv
        out: list[Value] = []
        for op, address in self.ahead:
            maker.clone_into([*address, op])
            out.append(maker.get(op.results[0]))
        maker.map = saved
        return out
