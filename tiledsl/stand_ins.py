"""Programs for extents that nothing was planned for: how many shapes of one kernel are planned.

A program is right for all extents of its argument types; extents only decide which plan is fastest.
The first `EXACT_PLANS` shapes of the same argument types and options are planned each for
themselves. From then on a shape takes the program of one that is close by, unless its CTAs would
need a round of the SMs more, and from `MAX_PLANS` planned shapes on that of the closest, so that a
process which sees ever new batch sizes stops compiling.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
from typing import Any
from typing import TypeVar
from typing import cast

T = TypeVar("T")

EXACT_PLANS = 16
MAX_PLANS = 64
CLOSE = 1.25
"""Extents whose ratio is at most this share a plan once `EXACT_PLANS` shapes are planned."""


def stand_in(
    planned: Mapping[Any, T],
    values: object,
    *,
    always: bool = False,
    suits: Callable[[Any], bool] = lambda _: True,
) -> T | None:
    """The program of a planned shape that serves for another one; None where it has to be planned.

    Args:
        planned: programs by the numbers that they were planned for.
        values: the numbers of the call: extents, integers, grid; nested tuples.
        always: take the closest one in any case, as where compiling is frozen.
        suits: whether the program of a shape that is close is as good for the call.
    """
    if not planned or not (always or len(planned) >= EXACT_PLANS):
        return None
    numbers = tuple(_numbers(values))
    ratios = {key: _ratio(numbers, tuple(_numbers(key))) for key in planned}
    keys = sorted(planned, key=lambda key: sum(ratios[key]))
    if always or len(planned) >= MAX_PLANS:
        return planned[keys[0]]
    close = (key for key in keys if max(ratios[key]) <= math.log(CLOSE) and suits(key))
    return next((planned[key] for key in close), None)


def keeps_rounds(planned: int, ctas: int, at_once: int) -> bool:
    """Whether CTAs take no more rounds than they are more than those that were planned.

    Of fp8, 64 x 8192 x 8192, 148 CTAs of a plan that had 128 took 25.1 us, its own plan 16.7.
    """
    rounds = -(-ctas // at_once) / max(1, -(-planned // at_once))
    return rounds <= CLOSE * max(1.0, ctas / max(1, planned))


def _numbers(values: object) -> Iterator[float]:
    """The numbers of nested tuples, in order; None counts as 0."""
    if isinstance(values, tuple):
        for item in cast("tuple[object, ...]", values):
            yield from _numbers(item)
    else:
        yield float(values) if isinstance(values, int | float) else 0.0


def _ratio(new: tuple[float, ...], old: tuple[float, ...]) -> list[float]:
    """How far each number is from the planned one: logarithms of ratios, at least one item."""
    return [_distance(a, b) for a, b in zip(new, old, strict=True)] or [0.0]


def _distance(a: float, b: float) -> float:
    if a == b:
        return 0.0
    if min(a, b) <= 0 or not math.isfinite(a + b):
        return math.log(2.0)  # of another kind, such as a stride of 0
    return abs(math.log(a / b))
