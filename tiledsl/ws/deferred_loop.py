"""The dot loop of a tile over the stores of the tile before, one chunk under each first iteration.

These iterations are a loop of their own, kept rolled up: ptxas takes about 11 ms for each wgmma of
256 columns, and a copy of the iteration for each chunk was more than half of a compile.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import And
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ws.channels import Channel
from tiledsl.ws.idle_parts import part_is_stored
from tiledsl.ws.partition import constant_step

if TYPE_CHECKING:
    from tiledsl.ws.consumer import ConsumerBuilder


class DeferredLoop:
    """Builds the loop that a channel feeds, with what its consumer has yet to store."""

    def __init__(self, maker: ConsumerBuilder, channel: Channel) -> None:
        self.maker, self.channel = maker, channel
        self.found = maker.dot_loop_of(channel)
        self.loop = self.found.loop
        self.depth = maker.plan.mma_depth

    def build(self) -> None:
        """A loop with an iteration for each chunk, then one for the rest of the products."""
        maker, b = self.maker, self.maker.b
        step = constant_step(self.loop)
        lower, upper = maker.loop_bounds(self.loop, step)
        store = maker.deferred_store
        assert store is not None
        starts = [
            lower if chunk == 0 else b.value(Add(lower, maker.like(lower, chunk * step)))
            for chunk in range(maker.stores[store.id].num_chunks + 1)
        ]
        rest = starts.pop()
        maker.is_stored = part_is_stored(maker, self.found)
        values = maker.start_accumulators(self.channel)
        saved = dict(maker.map)
        first = self.loop_over(lower, rest, values, unroll=-1)
        with b.at(first.body), b.located(self.loop.loc):
            b.add(Yield(tuple(self.over_store(first, upper, starts))))
        maker.map = dict(saved)
        b.add(first)
        others = self.loop_over(rest, upper, list(first.results))
        with b.at(others.body), b.located(self.loop.loc):
            b.add(Yield(tuple(self.iteration(others))))
        maker.map = saved
        b.add(others)
        maker.finish(self.channel, list(others.results), lower, upper, self.depth)

    def loop_over(self, lower: Value, upper: Value, values: list[Value], unroll: int = 1) -> For:
        """A loop like the program's, without its body."""
        loop, body = self.loop, Region()
        body.add_arg(loop.iv.type, loop.iv.name)
        for v, a in zip(values, loop.carried, strict=True):
            body.add_arg(v.type, a.name)
        return For(
            lower,
            upper,
            self.maker.get(loop.step),
            tuple(values),
            body=body,
            unroll=unroll,
            loc=loop.loc,
            names=tuple(r.name for r in loop.results),
        )

    def iteration(self, loop: For) -> list[Value]:
        """An iteration over nothing else; the next carried values."""
        maker, b = self.maker, self.maker.b
        values = maker.loop_body(self.channel, loop.iv, list(loop.carried), None)
        if self.depth == 1:
            values = maker.wait(self.channel, values, 0)
        else:
            b.add(mma.Wait((), pending=self.depth - 1))
        maker.release(self.channel)
        return values

    def over_store(self, loop: For, upper: Value, starts: list[Value]) -> list[Value]:
        """An iteration, if the program has it, over the store of a chunk."""
        maker, b, iv = self.maker, self.maker.b, loop.iv
        there = b.value(Compare("lt", iv, upper), "has_slot")
        branch = If(
            there,
            result_types=tuple(v.type for v in loop.carried),
            names=tuple(a.name for a in self.loop.carried),
        )
        b.add(branch)
        with b.at(branch.then):
            has_zeros = any(self.found.zero_init)
            keep = b.value(Compare("ne", iv, starts[0]), "keep") if has_zeros else None
            b.add(Yield(tuple(maker.loop_body(self.channel, iv, list(loop.carried), keep))))
        with b.at(branch.orelse):
            b.add(Yield(tuple(loop.carried)))
        values = list(branch.results)
        if self.depth == 2:
            b.add(mma.Wait((), pending=1))
            if len(starts) > 1:  # the only iteration over a chunk is else the first one
                is_later = b.value(Compare("ne", iv, starts[0]), "is_later")
                maker.when(b.value(And(there, is_later)), lambda: maker.release(self.channel))
        self.store_chunk(iv, starts)
        if self.depth == 1:
            values = maker.wait(self.channel, values, 0)
            maker.when(there, lambda: maker.release(self.channel))
        return values

    def store_chunk(self, iv: Value, starts: list[Value]) -> None:
        """Stores the chunk of the pending result whose iteration this is, if there is a result."""
        maker, b = self.maker, self.maker.b

        def emit() -> None:
            for chunk, start in enumerate(starts):
                is_its = b.value(Compare("eq", iv, start))
                maker.when(is_its, functools.partial(maker.store_part, chunk))

        assert maker.deferred_store is not None
        with b.located(maker.deferred_store.loc):
            maker.when(maker.pending[-1], emit)
