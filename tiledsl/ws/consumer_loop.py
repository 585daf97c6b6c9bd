"""The consumer's loop over slots: P groups of wgmma in flight, which are drained after it."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set

from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.role import ClusterRank
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.ops.tile import Undef
from tiledsl.ir.types import TileType
from tiledsl.ws.beside import add_rows
from tiledsl.ws.channels import Channel
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.made_loop import multiply_made
from tiledsl.ws.no_trips import zero_if_empty
from tiledsl.ws.partition import constant_step
from tiledsl.ws.turns import TurnTaking


class ConsumerLoop(TurnTaking):
    """The part of the consumer that multiplies, where each iteration adds to the accumulators.

    load_ids: loads of all channels. readers: by load, the ops that read what it loads.
    owner: whether this CTA has the sum of all that share out a loop.
    """

    load_ids: Set[int] = frozenset()
    readers: Mapping[int, set[int]] = {}
    owner: Value | None = None
    keeps: Mapping[int, Value] = {}
    """Per dot that starts from zero, whether it adds to its accumulator in this iteration."""
    is_stored: Value | None = None
    """Whether this warpgroup has anything to store, where it leaves out its products if not."""
    always: Value | None = None
    """True, for branches that keep work beside the products apart from them."""

    def dot_loop_of(self, channel: Channel) -> DotLoop:
        """The loop that a channel feeds."""
        assert channel.loop is not None
        return channel.loop

    def start_accumulators(self, channel: Channel) -> list[Value]:
        """Initial carried values.

        Accumulators that start from zero are left undefined (scale-d clears them).
        """
        loop = self.dot_loop_of(channel).loop
        init = [self.get(v) for v in loop.init]
        for dot, zero in zip(
            self.dot_loop_of(channel).heads, self.dot_loop_of(channel).zero_init, strict=True
        ):
            if zero:
                at = loop.carried.index(dot.acc)
                type_ = dot.acc.type
                assert isinstance(type_, TileType)
                init[at] = self.b.value(Undef(type_.shape, type_.dtype), dot.acc.name)
        return init

    def acc_indices(self, channel: Channel) -> tuple[int, ...]:
        return self.dot_loop_of(channel).sums

    def loop_body(
        self, channel: Channel, iv: Value, carried: list[Value], keep: Value | None
    ) -> list[Value]:
        """One iteration up to and including the commit; returns the next carried values."""
        found = self.dot_loop_of(channel)
        loop = found.loop
        self.map[loop.iv] = iv
        self.map.update(zip(loop.carried, carried, strict=True))
        starts = zip(found.heads, found.zero_init, strict=True)
        self.keeps = {d.id: keep for d, is_zero in starts if is_zero and keep is not None}
        ops = [o for o in loop.body.ops if not isinstance(o, Yield) and o.id not in found.beside]
        first = next(i for i, o in enumerate(ops) if isinstance(o, mma.Dot))
        end = loop.body.terminator
        assert isinstance(end, Yield)
        if found.made:
            multiply_made(self, found, ops)
            return [self.get(v) for v in end.values]
        self.clone_into(ops[:first])
        if self.is_stored is None:
            self.multiply(found, ops[first:])
            add_rows(self, found, self.always)
            return [self.get(v) for v in end.values]
        branch = If(
            self.is_stored,
            result_types=tuple(v.type for v in carried),
            names=tuple(a.name for a in loop.carried),
        )
        self.b.add(branch)
        with self.b.at(branch.then):
            self.multiply(found, ops[first:])
            self.b.add(Yield(tuple(self.get(v) for v in end.values)))
        with self.b.at(branch.orelse):
            self.b.add(Yield(tuple(carried)))
        return list(branch.results)

    def multiply(self, found: DotLoop, ops: list[Op]) -> None:
        """The products of an iteration, and what stands between them."""
        with self.b.located(found.dots[0].loc):
            self.b.add(mma.Fence())
        self.clone_into(ops)
        self.b.add(mma.Commit(loc=found.dots[-1].loc))

    def release(self, channel: Channel) -> None:
        """Gives a slot back; lanes that read it for themselves have all done so."""
        read = bool(self.dot_loop_of(channel).beside)
        self.b.add(aref.Consumed(channel.aref, converge=read))

    def dot_loop(self, channel: Channel) -> None:
        """for: get, issue, commit, wait<P-1>, release the slot P-1 back; drain after the loop."""
        b, plan, loop = self.b, self.plan, self.dot_loop_of(channel).loop
        step, P = constant_step(loop), plan.mma_depth
        lower, upper = self.loop_bounds(loop, step)
        init = self.start_accumulators(channel)
        if plan.ping_pong:
            self.enter_order()
        body = Region()
        iv = body.add_arg(loop.iv.type, loop.iv.name)
        carried = [body.add_arg(v.type, a.name) for v, a in zip(init, loop.carried, strict=True)]
        new = For(
            lower,
            upper,
            self.get(loop.step),
            tuple(init),
            body=body,
            loc=loop.loc,
            names=tuple(r.name for r in loop.results),
        )
        saved = dict(self.map)
        with b.at(body), b.located(loop.loc):
            keep = (
                b.value(Compare("ne", iv, lower), "keep")
                if any(self.dot_loop_of(channel).zero_init)
                else None
            )
            values = self.loop_body(channel, iv, carried, keep)
            if P == 1:
                values = self.wait(channel, values, 0)
                self.release(channel)
            else:
                b.add(mma.Wait((), pending=P - 1))
                first = lower if P == 2 else b.value(Add(lower, self.like(lower, (P - 2) * step)))
                self.when(b.value(Compare("gt", iv, first)), lambda: self.release(channel))
            b.add(Yield(tuple(values)))
        self.map = saved
        b.add(new)
        self.finish(channel, list(new.results), lower, upper, P)

    def wait(self, channel: Channel, values: list[Value], pending: int) -> list[Value]:
        """A wait after which the accumulators among `values` are readable."""
        at = self.acc_indices(channel)
        op = mma.Wait(tuple(values[i] for i in at), pending=pending)
        self.b.add(op)
        out = list(values)
        for i, r in zip(at, op.results, strict=True):
            r.name = values[i].name
            out[i] = r
        return out

    def when(self, condition: Value, emit: object) -> None:
        """An if without results."""
        branch = If(condition)
        self.b.add(branch)
        with self.b.at(branch.then):
            emit()  # type: ignore[operator]
            self.b.add(Yield(()))
        with self.b.at(branch.orelse):
            self.b.add(Yield(()))

    def finish(
        self, channel: Channel, values: list[Value], lower: Value, upper: Value, P: int
    ) -> None:
        """Ends a dot loop: its order is handed over and its results get their meaning.

        The dots are drained, and what is still borrowed is released.
        """
        b, plan, loop = self.b, self.plan, self.dot_loop_of(channel).loop
        if plan.ping_pong:
            self.leave_order()
        values = self.wait(channel, values, 0)
        trips: Value | None = None
        if P > 1 or plan.ping_pong or any(self.dot_loop_of(channel).zero_init):
            trips = self.trip_count(lower, upper, constant_step(loop))
        for i in range(P - 1):
            assert trips is not None
            self.when(
                b.value(Compare("gt", trips, self.const(i))),
                lambda: self.release(channel),
            )
        if plan.ping_pong:
            assert trips is not None
            count = (
                trips
                if plan.num_consumers == 2
                else b.value(Mul(trips, self.const(plan.num_consumers - 1)))
            )
            b.add(aref.Skip(channel.aref, count))
        if any(self.dot_loop_of(channel).zero_init):
            assert trips is not None
            found = self.dot_loop_of(channel)
            values = zero_if_empty(b, found, values, trips, in_place=plan.split_k > 1)
        if plan.split_k > 1:
            values = self.reduce_over_cluster(channel, values)
        self.map.update(zip(loop.results, values, strict=True))

    def reduce_over_cluster(self, channel: Channel, values: list[Value]) -> list[Value]:
        b = self.b
        out = list(values)
        index, rank = b.value(WarpgroupIndex()), b.value(ClusterRank())
        for i in self.acc_indices(channel):
            op = mma.ClusterReduce(values[i], index, rank, self.plan.split_k)
            b.add(op)
            op.results[0].name, op.results[1].name = values[i].name, "is_owner"
            out[i], self.owner = op.results
        return out
