"""Loops that are written out once for each of a few numbers that their masks depend on.

A tile may lie across the end of a block of scales: how many of its columns come in front of that
end follows from `n % block`, which is the same for the whole loop and has few values, as `n` counts
in tiles. With that number known, each accumulator takes one scale and none is chosen at run time,
which would cost an instruction or two for each element of every product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tiledsl.dtypes import int1
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import splat_source
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.analysis.remainders import remainders
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Mod
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.tile import Arange
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

MOST_VERSIONS = 8


@dataclass(frozen=True)
class Versions:
    """A remainder that is known in each version of a loop.

    numbers: per version, those that are the same to the loop. made: ops outside of the loop that
    depend on the remainder and that the loop reads, in order.
    """

    remainder: Value
    numbers: tuple[tuple[int, ...], ...]
    made: tuple[Op, ...]


def loop_versions(loop: For) -> Versions | None:
    """The versions of a loop that chooses between values by the remainder of a division."""
    found = _Masks(loop)
    for op in loop.body.walk():
        if isinstance(op, Select) and isinstance(op.condition.type, TileType):
            found.depends(op.condition)
    if len(found.remainders) != 1:
        return None
    (remainder,) = found.remainders
    alike: dict[tuple[int, ...], list[int]] = {}
    by_limits = found.are_all(loop)
    for n in few_numbers(remainder.defining_op):
        limits = _limits(found.compared, remainder, n) if by_limits else None
        alike.setdefault((-1, n) if limits is None else limits, []).append(n)
    groups = sorted(alike.values(), key=len)  # what is left when no other one is, last
    return Versions(remainder, tuple(map(tuple, groups)), tuple(found.made))


class _Masks:
    """What the masks of a loop are made of.

    remainders: those outside of the loop that have few values. made: what depends on them outside
    of it, in order. compared: comparisons that do.
    """

    def __init__(self, loop: For) -> None:
        self.remainders: list[Value] = []
        self.made: list[Op] = []
        self.compared: list[Compare] = []
        self._inside = {op.id for op in loop.body.walk()}
        self._seen: dict[Value, bool] = {}

    def depends(self, value: Value) -> bool:
        """Whether a value is made of a remainder."""
        if value not in self._seen:
            op = value.defining_op
            is_pure = op is not None and op.effect is Effect.PURE and not op.regions
            self._seen[value] = is_pure and op is not None and self._made_by(op)
        return self._seen[value]

    def are_all(self, loop: For) -> bool:
        """Whether the comparisons are all that the loop takes of the remainder."""
        read = [*loop.operands, *(v for op in loop.body.walk() for v in op.operands)]
        for v in read:
            op = v.defining_op
            is_outside = op is not None and op.id not in self._inside
            if is_outside and not _is_mask(v) and self.depends(v):
                return False
        made = {op.result for op in self.made}
        masks = [op for op in self.made if _is_mask(op.result) and not isinstance(op, Compare)]
        return all(_is_mask(v) for op in masks for v in op.operands if v in made)

    @deep
    def _made_by(self, op: Op) -> bool:
        is_outside = op.id not in self._inside
        if is_outside and few_numbers(op):
            self.remainders.append(op.result)
            return True
        sources = [v for v in op.operands if self.depends(v)]
        if sources and is_outside:
            self.made.append(op)
        if sources and isinstance(op, Compare):
            self.compared.append(op)
        return bool(sources)


def _is_mask(value: Value) -> bool:
    return isinstance(value.type, ScalarType | TileType) and value.type.dtype == int1


def few_numbers(op: Op | None) -> tuple[int, ...]:
    """The values of a remainder that has few; none for other ones."""
    size = constant_value(op.b) if isinstance(op, Mod) else None
    if not isinstance(op, Mod) or not isinstance(op.result.type, ScalarType):
        return ()
    facts = AxisFacts({})
    if not isinstance(size, int) or size < 1 or not facts.of(op.a).positive:
        return ()
    numbers = remainders(op.a, size, facts)
    return tuple(numbers) if len(numbers) <= MOST_VERSIONS else ()


def _limits(masks: list[Compare], remainder: Value, number: int) -> tuple[int, ...] | None:
    """How many elements come in front of the limit of each mask; None where one is no such mask."""
    out: list[int] = []
    for op in masks:
        index, limit = op.a.defining_op, known_scalar(splat_source(op.b), remainder, number)
        if not isinstance(index, Arange) or op.predicate not in ("lt", "ge") or limit is None:
            return None
        out.append(min(max(limit, index.start), index.end))
    return tuple(out)


@deep
def known_scalar(value: Value, remainder: Value, number: int) -> int | None:
    """A scalar where the remainder is known; None where it takes more."""
    if value is remainder:
        return number
    op = value.defining_op
    if isinstance(op, Constant):
        return int(op.value)
    if op is None or op.effect is not Effect.PURE or not op.operands or op.regions:
        return None
    if not isinstance(value.type, ScalarType) or not value.type.dtype.is_int:
        return None
    given = [known_scalar(v, remainder, number) for v in op.operands]
    if any(n is None for n in given):
        return None
    dtypes = [v.type.dtype.numpy for v in op.operands if isinstance(v.type, ScalarType)]
    evaluate: Callable[..., object] = op.evaluate
    result = evaluate(*(np.asarray(n, t) for n, t in zip(given, dtypes, strict=True)))
    return int(np.asarray(result).item())
