"""Which loops may count past the end of their integers: `i + step` where that is 2**31 or more.

Arguments and extents stay `INT32_ROOM` below it, so that most loops with constant steps cannot.
Others, with steps or ends that are computed or loaded, leave before they count on
(`codegen/contexts/counted_loops.py`), and what asks for later iterations counts back from the end
(`ws/range_starts.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tiledsl.dtypes import INT32_ROOM
from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.constants import int_limits
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import program
from tiledsl.ir.ops import role
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import yielded
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.smem import ReadScalars
from tiledsl.ir.types import ScalarType

OF_ARGUMENTS = ("divisors", "fixed")
"""The facts of a graph that tell what arguments may be."""
MAX_DEPTH = 16
MOST_CTAS = 1 << 13
"""At once on a GPU."""
MOST_TILES = INT32_ROOM - (1 << 20)
"""Of a grid whose CTAs take one tile after the other."""


def may_pass(loop: For, ahead: int = 1) -> bool:
    """Whether `iv + ahead * step` may not fit the integers of a loop in one of its iterations."""
    dtype = dtype_of(loop.iv)
    least, most = int_limits(dtype)
    known = [
        int(n) for v in (loop.lower, loop.upper, loop.step) if (n := constant_value(v)) is not None
    ]
    if len(known) == 3 and known[2]:
        return passes(known[0], known[1], known[2], dtype, ahead)
    if dtype.bits > 32:
        return False  # nothing is that large
    upper, step = span_of(loop.upper), span_of(loop.step)
    if ahead == 1 and step.low > 0 and _is_step_before(loop.upper, loop.step):
        return False
    above = step.high > 0 and upper.high - 1 + ahead * step.high > most
    return above or (step.low < 0 and upper.low + 1 + ahead * step.low < least)


def _is_step_before(upper: Value, step: Value) -> bool:
    """Whether it is the end of a loop that leaves out the last iteration (ws/range_starts.py)."""
    op = upper.defining_op
    last = op.b.defining_op if isinstance(op, ew.Select) else None
    return isinstance(last, ew.Sub) and last.b is step


def ends_below(loop: For, ahead: int = 1) -> bool:
    """Whether `upper - ahead * step` of a loop that counts up may not fit its integers."""
    dtype = dtype_of(loop.iv)
    far = span_of(loop.upper).low - ahead * span_of(loop.step).high
    return dtype.bits <= 32 and far < int_limits(dtype)[0]


def passes(lower: int, upper: int, step: int, dtype: DType, ahead: int = 1) -> bool:
    """`may_pass` of known numbers."""
    least, most = int_limits(dtype)
    trips = range(lower, upper, step)
    return bool(trips) and not least <= trips[-1] + ahead * step <= most


# ---------------------------------------------------------------------- spans
@dataclass(frozen=True)
class Span:
    """The least and the largest a scalar may be.

    is_place: it follows from the numbers of programs and what is within INT32_ROOM; what programs
    work at is taken to be so, too.
    """

    low: int
    high: int
    is_place: bool = False


def span_of(value: Value, depth: int = MAX_DEPTH) -> Span:
    """Between which numbers an integer scalar lies; index arithmetic is taken not to wrap."""
    full = Span(*int_limits(dtype_of(value)))
    number, op = constant_value(value), value.defining_op
    if number is not None:
        return Span(int(number), int(number))
    if op is None or not depth:
        return _of_argument(value, full, depth)
    of = partial(span_of, depth=depth - 1)
    match op:
        case Hint():
            return of(op.a)
        case ew.Cast():
            return _of_cast(op, full, depth)
        case ew.Select():
            x, y = of(op.a), of(op.b)
            return Span(min(x.low, y.low), max(x.high, y.high), _are_places(x, y))
        case ew.Binary():
            return _fitting(_combined(op, of(op.a), of(op.b), full), full)
        case _:
            return _of_launch(op, full)


def _of_launch(op: Op, full: Span) -> Span:
    """Of extents, and what counts programs."""
    match op:
        case memory.Shape():
            return Span(0, INT32_ROOM)
        case role.TileStep():
            return Span(1, MOST_CTAS)
        case role.NumTiles():
            return Span(1, MOST_TILES)
        case program.NumPrograms():
            return Span(1, INT32_ROOM, is_place=True)
        case program.ProgramId() | program.TileToProgram() | role.ClusterRank():
            return Span(0, INT32_ROOM, is_place=True)
        case ReadScalars(signed=False):  # a program's tile and numbers
            return Span(0, INT32_ROOM, is_place=True)
        case _:
            return full


def _of_cast(op: ew.Cast, full: Span, depth: int) -> Span:
    if not isinstance(op.a.type, ScalarType) or not op.a.type.dtype.is_int:
        return full
    found = span_of(op.a, depth - 1)
    return found if full.low <= found.low and found.high <= full.high else full


def _of_argument(value: Value, full: Span, depth: int) -> Span:
    """Of an argument of the kernel, the variable of a loop around, or what its condition read."""
    owner = value.owner
    if not isinstance(owner, Region) or not depth:
        return full
    if owner.graph is not None:
        if dtype_of(value) != int32 or value.name in owner.graph.facts.get("fixed", ()):
            return full
        known = getattr(owner.graph.facts.get("divisors"), "numbers", {}).get(value.name)
        least = 1 if known is not None and known[1] else full.low
        return Span(least, INT32_ROOM - 1)
    loop = owner.parent
    if isinstance(loop, While) and owner is loop.body:
        return span_of(yielded(loop.before)[1 + value.index], depth - 1)
    if not isinstance(loop, For) or value is not loop.iv:
        return full
    lower, upper, step = (span_of(v, depth - 1) for v in (loop.lower, loop.upper, loop.step))
    is_place = _are_places(lower, upper)
    if step.low > 0:
        return Span(lower.low, max(lower.low, upper.high - 1), is_place)
    return full


def _combined(op: ew.Binary, x: Span, y: Span, full: Span) -> Span:
    is_place = _are_places(x, y)
    ends = [(p, q) for p in (x.low, x.high) for q in (y.low, y.high)]
    match op:
        case ew.Add():
            return Span(x.low + y.low, x.high + y.high, is_place)
        case ew.Sub():
            return Span(x.low - y.high, x.high - y.low, is_place)
        case ew.Mul():
            products = [p * q for p, q in ends]
            return Span(min(products), max(products), is_place)
        case ew.Min():
            return Span(min(x.low, y.low), min(x.high, y.high), is_place)
        case ew.Max():
            return Span(max(x.low, y.low), max(x.high, y.high), is_place)
        case ew.FloorDiv() if y.low > 0:
            quotients = [p // q for p, q in ends]
            return Span(min(quotients), max(quotients) + (x.high < 0), is_place)
        case ew.Mod() if y.low > 0:
            return Span(max(min(x.low, 0), 1 - y.high), y.high - 1, is_place)
        case _:
            return full


def _are_places(x: Span, y: Span) -> bool:
    return (x.is_place or y.is_place) and max(x.high, y.high) <= INT32_ROOM


def _fitting(found: Span, full: Span) -> Span:
    """Of arithmetic that is taken not to wrap: it goes no further than its integers.

    Upwards it may come close to their end, but for places.
    """
    high = min(found.high, INT32_ROOM if found.is_place else full.high)
    if found.high < full.low or found.low > full.high:
        return full
    return Span(max(found.low, full.low), max(high, full.low), found.is_place)


def dtype_of(value: Value) -> DType:
    """The dtype of a scalar."""
    assert isinstance(value.type, ScalarType)
    return value.type.dtype
