"""Loops that carry what their next iteration has loaded.

The loads stand at the top of the body, those of the first iteration before the loop. What the last
iteration would load beyond the end is masked off, or it does not load at all: a loop over the parts
of a row often has no other iteration.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiledsl.ir.analysis.range_ends import ends_below
from tiledsl.ir.analysis.range_ends import may_pass
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.graph import mapped
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ws.load_groups import MOST_OPS
from tiledsl.ws.load_groups import Loads
from tiledsl.ws.load_groups import drop_unused
from tiledsl.ws.load_groups import where
from tiledsl.ws.range_starts import start_of_last

PEELED_BYTES = 32
"""Bytes of a thread that one iteration loads, up to which the last one stands behind the loop.

That one reads what the loop loaded last, so that ptxas gives both the same registers and moves what
comes before the loop to others: the second loads wait for the first ones.
"""
_CONTROL = (For, If, While)


def may_repeat(loop: For) -> bool:
    """Whether the body of a loop may be there twice."""
    ops = list(loop.body.walk())
    is_split = loop.unmasked_from is not None or loop.unmasked_until is not None
    return len(ops) <= MOST_OPS and not is_split and not any(isinstance(o, _CONTROL) for o in ops)


class AheadLoop:
    """Puts a loop that carries what was loaded in the place of `old`.

    found: the loads that it carries. loads: makes those of an iteration.
    """

    def __init__(self, graph: TileGraph, old: For, found: list[pointer.Load], loads: Loads) -> None:
        self.graph = graph
        self.old = old
        self.found = found
        self.loads = loads
        assert old.parent is not None
        self.b = Builder(graph, old.parent, old.parent.ops.index(old), old.loc)
        self.last = start_of_last(self.b, old) if may_pass(old) else None
        self.exists = self.b.value(ew.Compare("lt", old.lower, old.upper))
        self.first = self.values(self.b, old.lower, self.exists)

    def mask(self) -> None:
        """The last iteration masks its loads off."""
        loop = self.make([*self.old.init, *self.first], self.old.upper)
        self.fill(loop, peels=False)
        self.replace(loop.results)

    def peel(self) -> None:
        """The last iteration stands behind the loop, which carries its number."""
        old, b, count = self.old, self.b, len(self.old.carried)
        last = self.last
        if last is None and ends_below(old):
            last = start_of_last(b, old)
        if last is None:
            last = b.value(ew.Sub(old.upper, old.step))
        loop = self.make([*old.init, *self.first, old.lower], last)
        state, loaded, at = loop.results[:count], loop.results[count:-1], loop.results[-1]
        results = where(b, old, self.exists, lambda: self.work(at, state, loaded), state)
        self.fill(loop, peels=True)
        self.replace(results)

    def branch(self) -> None:
        """One iteration alone is no loop; of several the last one masks its loads off."""
        old, b = self.old, self.b
        if self.last is not None:
            several = b.value(ew.Compare("lt", old.lower, self.last))
        else:
            following = b.value(ew.Add(old.lower, old.step))
            several = b.value(ew.Compare("lt", following, old.upper))
        loops: list[For] = []

        def loop() -> tuple[Value, ...]:
            loops.append(self.make([*old.init, *self.first], old.upper))
            return loops[0].results[: len(old.carried)]

        def single() -> tuple[Value, ...]:
            return where(
                b, old, self.exists, lambda: self.work(old.lower, old.init, self.first), old.init
            )

        results = where(b, old, several, loop, single)
        self.fill(loops[0], peels=False)
        self.replace(results)

    # ------------------------------------------------------------------ parts
    def values(self, b: Builder, at: Value, inside: Value | None) -> list[Value]:
        """What one iteration loads. inside: whether it exists; None where it does."""
        return [load.result for load in self.loads(b, {self.old.iv: at}, inside, [])]

    def make(self, init: list[Value], upper: Value) -> For:
        """The loop, whose body has no ops yet."""
        old = self.old
        new = For(
            old.lower, upper, old.step, tuple(init), old.unroll,
            old.unmasked_from, old.unmasked_until, body=Region(), loc=old.loc,
        )  # fmt: skip
        new.body.add_arg(old.iv.type, old.iv.name)
        names = [a.name for a in old.carried] + [load.result.name for load in self.found]
        names += [old.iv.name] * (len(init) - len(names))
        for value, name in zip(init, names, strict=True):
            new.body.add_arg(value.type, name)
        self.b.add(new)
        return new

    def work(self, at: Value, state: Sequence[Value], loaded: Sequence[Value]) -> tuple[Value, ...]:
        """One iteration, a copy of the old body; the carried values after it."""
        mapping = {self.old.iv: at, **dict(zip(self.old.carried, state, strict=True))}
        mapping |= {f.result: value for f, value in zip(self.found, loaded, strict=True)}
        end = self.old.body.terminator
        assert isinstance(end, Yield)
        kept = [op for op in self.old.body.ops if op is not end and op not in self.found]
        made = [self.b.add(clone_op(op, mapping)) for op in kept]
        results = mapped(end.values, mapping)
        drop_unused(self.graph, made, results)
        return results

    def fill(self, loop: For, *, peels: bool) -> None:
        """Moves the ops of the old body into the loop, behind the loads of the next iteration."""
        graph, old = self.graph, self.old
        for op in list(old.body.ops):
            graph.move_to(op, loop.body)
        carried = loop.carried
        for a, fresh in zip((old.iv, *old.carried), (loop.iv, *carried), strict=False):
            graph.replace_uses(a, fresh)
        top = Builder(graph, loop.body, 0, old.loc)
        following = top.value(ew.Add(loop.iv, old.step))
        if peels:
            inside = None
        elif self.last is not None:
            inside = top.value(ew.Compare("lt", loop.iv, self.last))
        else:
            inside = top.value(ew.Compare("lt", following, old.upper))
        ahead = [load.result for load in self.loads(top, {loop.iv: following}, inside, [])]
        ahead += [following] * peels
        for load, value in zip(self.found, carried[len(old.carried) :], strict=not peels):
            graph.replace_uses(load.result, value)
            graph.erase(load)
        drop_unused(graph, loop.body.ops, ahead)
        end = loop.body.terminator
        assert isinstance(end, Yield)
        graph.replace_op(end, Yield((*end.values, *ahead), loc=end.loc))

    def replace(self, results: Sequence[Value]) -> None:
        """Makes the results of the new code those of the old loop, which goes."""
        for arg, old, new in zip(self.old.carried, self.old.results, results, strict=False):
            new.name = arg.name
            self.graph.replace_uses(old, new)
        self.graph.erase(self.old)
