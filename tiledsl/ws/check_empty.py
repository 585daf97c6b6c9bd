"""Loops that no launch enters, and branches that none takes, by bounds alone.

The part of a loop whose masks are known to be true is empty where a kernel's own masks leave
nothing of it. That it is follows from comparing the terms of its bounds:
`min(N - 127, m - 62) <= min(N, m) + 128`. Extents are at least 0 and at most INT32_ROOM, ids of
programs at least 0; integers do not wrap (docs/semantics.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import gcd
from types import MappingProxyType

from tiledsl.dtypes import INT32_ROOM
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ws.check_program import drawn_axis
from tiledsl.ws.check_program import role_of

OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
"""What holds where a comparison does not."""
ALWAYS = {
    "ge": [(1, 0)], "gt": [(1, 1)], "le": [(-1, 0)], "lt": [(-1, 1)], "ne": [(1, 1), (-1, 1)],
}  # fmt: skip
"""By how much, at least, one operand is the larger one: 1 the first, -1 the second."""
MAX_TERMS = 24
"""Terms of a bound beyond which it stands for itself."""
MAX_MAXIMA = 4
"""Maxima that are taken apart by cases."""
Atom = tuple[object, ...]
Linear = tuple[int, tuple[tuple[Atom, int], ...]]
"""A constant, and atoms with their factors, sorted."""


def is_empty(loop: For) -> bool:
    """Whether a loop that counts up has `upper <= lower` in every launch."""
    step = loop.step.defining_op
    if not isinstance(step, Constant) or not isinstance(step.value, int) or step.value <= 0:
        return False
    if any(_Terms(choice).never_below(loop.lower, loop.upper) for choice in (0, 1)):
        return True
    # In each launch one operand of each maximum is the larger one: it has to hold in all cases.
    maxima = _Terms(0).maxima(loop.lower, loop.upper)
    if not 0 < len(maxima) <= MAX_MAXIMA:
        return False
    return all(
        _is_empty_where(loop, dict(zip(maxima, case, strict=True)))
        for case in product((0, 1), repeat=len(maxima))
    )


def is_never(region: Region) -> bool:
    """Whether a side of a branch is run in no launch: its condition compares what lies apart."""
    branch = region.parent
    condition = branch.condition.defining_op if isinstance(branch, If) else None
    if not isinstance(branch, If) or not isinstance(condition, Compare):
        return False
    predicate = condition.predicate
    if region is branch.then:
        predicate = OPPOSITE[predicate]
    a, b = condition.operands
    return any(
        _Terms(choice).never_below(*((a, b) if order > 0 else (b, a)), by=by)
        for order, by in ALWAYS.get(predicate, ())
        for choice in (0, 1)
    )


def _is_empty_where(loop: For, larger: Mapping[Value, int]) -> bool:
    """The same where these operands of maxima are the larger ones."""
    return any(
        _Terms(choice, larger, from_below=from_below).never_below(loop.lower, loop.upper)
        for choice, from_below in ((0, True), (0, False), (1, False))
    )


class _Terms:
    """Bounds of scalars as sums; an atom stands for the same scalar wherever it is computed.

    choice: the operand of a maximum that stands for it from below, where neither is the larger one.
    larger: of some maxima the operand that is the larger one; from_below: also where either operand
    would do.
    """

    def __init__(
        self,
        choice: int,
        larger: Mapping[Value, int] = MappingProxyType({}),
        *,
        from_below: bool = False,
    ) -> None:
        self.choice = choice
        self.larger = larger
        self.from_below = from_below
        self._unbounded: list[Value] = []
        self.least: dict[Atom, int] = {}
        self.most: dict[Atom, int] = {}
        self._numbers: dict[Atom, Atom] = {}
        self._quotients: dict[Atom, tuple[Linear, int]] = {}
        self._known: dict[tuple[Value, int], list[Linear]] = {}

    def at_most(self, v: Value) -> list[Linear]:
        """Sums none of which v exceeds."""
        return self._bounds(v, 1)

    def at_least(self, v: Value) -> list[Linear]:
        """Sums the least of which v reaches."""
        return self._bounds(v, -1)

    def maxima(self, a: Value, b: Value) -> list[Value]:
        """Maxima that stand in the way of a >= b: neither operand is known to be the larger one."""
        self.at_most(b)
        for v in a.defining_op.operands if a.defining_op is not None else ():
            self.at_least(v)
        return list(dict.fromkeys(self._unbounded))

    def never_below(self, a: Value, b: Value, by: int = 0) -> bool:
        """Whether a >= b + by: what a reaches is no less than something that b does not exceed."""
        op = a.defining_op
        if op is not None and op.opcode.endswith(".max"):
            return any(self.never_below(x, b, by) for x in op.operands)
        highs = [_sum(high, (by, ())) for high in self.at_most(b)]
        return all(
            any(self.is_positive(_sum(low, high, -1)) for high in highs) for low in self.at_least(a)
        )

    def is_positive(self, x: Linear) -> bool:
        """Whether a sum is at least 0, whatever its atoms are."""
        least = self._least(self._without_programs(self._without_quotients(x)))
        return least is not None and least >= 0

    def _least(self, x: Linear, sign: int = 1) -> int | None:
        """The least value of a sum, or with -1 its largest; None where there is none."""
        total, atoms = x
        for atom, factor in atoms:
            limit = self.least if factor * sign > 0 else self.most
            if atom not in limit:
                return None
            total += factor * limit[atom]
        return total

    def _without_quotients(self, x: Linear) -> Linear:
        """A positive multiple of a sum, or less: x // c * c lies within x - (c - 1) and x.

        Where all of x, and c, are multiples of g, within x - (c - g) and x.
        """
        for atom, factor in x[1]:
            if atom in self._quotients:
                inner, by = self._quotients[atom]
                rest = _times(_sum(x, (0, ((atom, factor),)), -1), by)
                unit = gcd(by, inner[0], *(f for _, f in inner[1]))
                least = _sum(inner, (by - unit, ()), -1) if factor > 0 else inner
                return self._without_quotients(_sum(rest, least, factor))
        return x

    def _without_programs(self, x: Linear) -> Linear:
        """A sum, or less: the id of a program is less than their number."""
        for atom, factor in x[1]:
            if factor < 0 and atom in self._numbers:
                self.least[self._numbers[atom]] = 1
                last: Linear = (-1, ((self._numbers[atom], 1), (atom, -1)))
                x = _sum(x, last, factor)
        return x

    def _bounds(self, v: Value, sign: int) -> list[Linear]:
        if (v, sign) not in self._known:
            op = v.defining_op
            found = self._of_op(v, op, sign) if op is not None else []
            self._known[v, sign] = found if 0 < len(found) <= MAX_TERMS else [self._atom(v)]
        return self._known[v, sign]

    @deep
    def _of_op(self, v: Value, op: Op, sign: int) -> list[Linear]:
        name = op.opcode.partition(".")[2]
        match name, op.operands:
            case "constant", _ if isinstance(op, Constant) and isinstance(op.value, int):
                return [(int(op.value), ())]
            case "cast" | "hint", (a,):
                return self._bounds(a, sign)
            case "add", (a, b):
                pairs = product(self._bounds(a, sign), self._bounds(b, sign))
                return [_sum(x, y) for x, y in pairs]
            case "sub", (a, b):
                return self._difference(a, b, sign)
            case "neg", (a,):
                exact = self._exact(a)
                return [] if exact is None else [_times(exact, -1)]
            case "mul", (a, b):
                return self._scaled(a, b, sign)
            case "floordiv", (a, b):
                return [t for x in self._bounds(a, sign) for t in self._divided(x, b)]
            case "min", (a, b):
                return self._bounds(a, sign) + self._bounds(b, sign)
            case "max", (a, b):
                return self._larger(v, a, b, sign)
            case _:
                return [self._atom(v)]

    def _difference(self, a: Value, b: Value, sign: int) -> list[Linear]:
        """b must be one sum: the least of several is no bound from the other side."""
        exact = self._exact(b)
        return [] if exact is None else [_sum(x, exact, -1) for x in self._bounds(a, sign)]

    def _scaled(self, a: Value, b: Value, sign: int) -> list[Linear]:
        for x, y in ((a, b), (b, a)):
            factor = self._exact(y)
            if factor is None or factor[1]:
                continue
            if factor[0] >= 0:
                return [_times(t, factor[0]) for t in self._bounds(x, sign)]
            exact = self._exact(x)
            return [] if exact is None else [_times(exact, factor[0])]
        return []

    def _divided(self, x: Linear, b: Value) -> list[Linear]:
        """The quotient of the parts that have one, and of the rest something that lies near it."""
        y = self._exact(b)
        if y is None or y[1] or y[0] <= 0:
            return []
        by = y[0]
        whole = (0, tuple((atom, f // by) for atom, f in x[1] if f % by == 0))
        rest = (x[0], tuple((atom, f) for atom, f in x[1] if f % by))
        least, most = self._least(rest), self._least(rest, -1)
        if least is not None and most is not None and least // by == most // by:
            return [(least // by, whole[1])]
        atom: Atom = ("quotient", rest, by)
        self._quotients[atom] = rest, by
        return [_sum(whole, (0, ((atom, 1),)))]

    def _larger(self, v: Value, a: Value, b: Value, sign: int) -> list[Linear]:
        """The one that is never below the other, if there is one; from below either will do."""
        if v in self.larger and (sign > 0 or self.from_below):
            return self._bounds((a, b)[self.larger[v]], sign)
        for x, y in ((a, b), (b, a)):
            if self.never_below(x, y):
                return self._bounds(x, sign)
        if sign > 0:
            self._unbounded.append(v)
            return []
        return self._bounds((a, b)[self.choice], sign)

    def _exact(self, v: Value) -> Linear | None:
        """The sum that v is; None where it is the least of several."""
        found = self._bounds(v, 1)
        return found[0] if len(found) == 1 and found == self._bounds(v, -1) else None

    def _atom(self, v: Value) -> Linear:
        """A scalar that is not taken apart."""
        atom = self._name(v)
        return 0, ((atom, 1),)

    def _name(self, v: Value) -> Atom:
        """The same for clones of a scalar, with what is known of it."""
        match v.defining_op:
            case Shape() as op:
                atom: Atom = ("extent", op.tensor.id, op.dim)
                self.least[atom], self.most[atom] = 0, INT32_ROOM
            case ProgramId() as op:
                atom = ("program", op.axis)
                self.least[atom], self._numbers[atom] = 0, ("programs", op.axis)
            case TileToProgram() as op:
                atom = ("program of", op.tile.id, v.index)
                self.least[atom], self._numbers[atom] = 0, ("programs", v.index)
            case NumPrograms() as op:
                atom = ("programs", op.axis)
                self.least[atom] = 1
            case WarpgroupIndex() as op:
                assert op.parent is not None
                atom = ("warpgroup",)
                self.least[atom], self.most[atom] = 0, role_of(op.parent).num_warpgroups - 1
            case None if (axis := drawn_axis(v)) >= 0:
                atom = ("program drawn", axis)
                self.least[atom], self._numbers[atom] = 0, ("programs", axis)
            case _:
                atom = ("value", v.id)
        return atom


def _sum(a: Linear, b: Linear, factor: int = 1) -> Linear:
    total = dict(a[1])
    for atom, f in b[1]:
        total[atom] = total.get(atom, 0) + factor * f
    atoms = sorted((x for x in total.items() if x[1]), key=lambda x: repr(x[0]))
    return a[0] + factor * b[0], tuple(atoms)


def _times(a: Linear, factor: int) -> Linear:
    return a[0] * factor, tuple((atom, f * factor) for atom, f in a[1] if f * factor)
