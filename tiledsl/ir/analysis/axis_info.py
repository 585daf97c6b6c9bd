"""Contiguity, divisibility and constancy of integer and pointer tiles, per dimension.

From these (ir/analysis/axis_values.py) follow the width of vector accesses and whether a mask holds
for a vector as a whole. Here is the way through regions, loops and branches; what an op makes of
its operands is in ir/analysis/axis_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from math import gcd

from tiledsl.ir.analysis.axis_rules import RULES
from tiledsl.ir.analysis.axis_values import AxisInfo
from tiledsl.ir.analysis.axis_values import Divisors
from tiledsl.ir.analysis.axis_values import is_given
from tiledsl.ir.analysis.axis_values import meet
from tiledsl.ir.analysis.axis_values import power_of_two
from tiledsl.ir.analysis.axis_values import unknown
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import yielded

MAX_ROUNDS = 8


class AxisFacts:
    """The analysis of a region, made with the first question; ask for values in or around it.

    trusting: takes the difference of two computed numbers that are not below 0, such as a tile's
    number less that of the first tile of its group, not to be below 0 either.
    """

    def __init__(
        self, divisors: Mapping[str, int], region: Region | None = None, *, trusting: bool = False
    ) -> None:
        self.trusting = trusting
        self.divisors = divisors
        self.numbers = divisors.numbers if isinstance(divisors, Divisors) else {}
        self.known: dict[Value, AxisInfo] = {}
        self.region = region

    def of(self, value: Value) -> AxisInfo:
        """Facts about an integer, bool or pointer value."""
        if self.region is not None:
            region, self.region = self.region, None
            self.analyze(region)
        if value not in self.known:
            self.known[value] = self._behind(value)
        return self.known[value]

    def analyze(self, region: Region) -> None:
        """Goes through a region in order; carried values by iteration from above."""
        for op in region.ops:
            match op:
                case For():
                    self._loop(op)
                case While():
                    self._while(op)
                case If():
                    self.analyze(op.then)
                    self.analyze(op.orelse)
                    for i, result in enumerate(op.results):
                        sides = (yielded(op.then)[i], yielded(op.orelse)[i])
                        self.known[result] = meet(*map(self.of, sides))
                case _:
                    for inner in op.regions:
                        self.analyze(inner)
                    for result in op.results:
                        self.known[result] = self._compute(result)

    def _loop(self, op: For) -> None:
        self.known[op.iv] = self._counted(op)
        self._settle(op.init, [op.carried], lambda: self._body(op.body))
        for result, arg in zip(op.results, op.carried, strict=True):
            self.known[result] = self.known[arg]

    def _argument(self, value: Value) -> AxisInfo:
        """What is said of an argument of the kernel; nothing of a value that a loop carries."""
        found = unknown(value)
        if not is_given(value):
            return found
        every, positive = self.numbers.get(value.name, (1, False))
        every = max(every, power_of_two(self.divisors.get(value.name, 1)))
        return AxisInfo(found.axes, every, found.unit, None, positive or found.positive)

    def may_be_negative(self, value: Value) -> bool:
        """Whether a scalar is made of an argument that is not over 0.

        Other divisors of indexes, such as sizes of groups, are taken to be positive.
        """
        seen: set[Value] = set()
        todo = [value]
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            op = v.defining_op
            if op is not None:
                todo += op.operands
            elif is_given(v) and not self.numbers.get(v.name, (1, True))[1]:
                return True
        return False

    def _counted(self, op: For) -> AxisInfo:
        """The variable of a loop."""
        lower, upper, step = self.of(op.lower), self.of(op.upper), self.of(op.step)
        ends_at_zero = upper.value is not None and upper.value >= -1
        is_down = step.value is not None and step.value < 0
        positive = ends_at_zero if is_down else lower.positive and step.positive
        return AxisInfo((), gcd(lower.every, step.every), positive=positive)

    def _while(self, op: While) -> None:
        before, body = op.before.args, op.body.args

        def run() -> tuple[Value, ...]:
            self.analyze(op.before)
            for arg, value in zip(body, yielded(op.before)[1:], strict=True):
                self.known[arg] = self.of(value)
            return self._body(op.body)

        self._settle(op.init, [before], run)
        for result, arg in zip(op.results, body, strict=True):
            self.known[result] = self.known[arg]

    def _body(self, region: Region) -> tuple[Value, ...]:
        self.analyze(region)
        return yielded(region)

    def _settle(
        self,
        init: Sequence[Value],
        args: Sequence[Sequence[Value]],
        run: Callable[[], tuple[Value, ...]],
    ) -> None:
        """Assumes of carried values what holds at first, until an iteration keeps it."""
        (carried,) = args
        for arg, value in zip(carried, init, strict=True):
            self.known[arg] = self.of(value)
        for round_ in range(MAX_ROUNDS):
            changed = False
            for arg, value in zip(carried, run(), strict=True):
                old = self.known[arg]
                new = meet(old, self.of(value)) if round_ < MAX_ROUNDS - 2 else unknown(arg)
                changed |= new != old
                self.known[arg] = new
            if not changed:
                return

    @deep
    def _behind(self, value: Value) -> AxisInfo:
        """Facts about a value whose operands have not been looked at."""
        return self._compute(value)

    def _compute(self, value: Value) -> AxisInfo:
        op = value.defining_op
        if op is None:
            loop = value.owner.parent if isinstance(value.owner, Region) else None
            if isinstance(loop, For) and value is loop.iv:
                return self._counted(loop)
            return self._argument(value)
        rule = RULES.get(op.opcode)
        return rule(self, op) if rule is not None else unknown(value)


def axis_facts(region: Region, divisors: Mapping[str, int]) -> AxisFacts:
    """The analysis of a region. divisors: of arguments by name (addresses: bytes)."""
    return AxisFacts(divisors, region)
