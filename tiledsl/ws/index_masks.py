"""Masks along an axis, one number per row instead of comparisons per element.

`n + arange(0, N) < end` holds for the first `count_below(end, n)` elements along the arange's axis
where the index does not wrap. A loop over registers then compares the coordinate with that number,
and what the thread contributes to the coordinate goes to the side of the number: for each register
a comparison with a constant is left. Bounds on one side are one bound, whether all or one of them
shall hold; so is one beside a condition that is the same along the axis.
Where limit and start are multiples of the elements that a thread holds side by side, so is the
number, and these elements share one comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import TYPE_CHECKING

from tiledsl.dtypes import int32
from tiledsl.ir.analysis.affine import Dims
from tiledsl.ir.analysis.affine import inner_dims
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.ops.elementwise_index import CountBelow
from tiledsl.ir.passes.no_wrap import VIEWS
from tiledsl.ir.passes.no_wrap import index_parts
from tiledsl.ir.types import TileType
from tiledsl.ir.vectors import vectors_of

if TYPE_CHECKING:
    from tiledsl.ws.fuse import LoopBody

FEWEST_REGISTERS = 8
"""Along the axis; for fewer, the number costs about as much as the comparisons."""
DEEPEST = 24
"""Conditions in each other that become one count."""
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@dataclass(frozen=True)
class _Index:
    """A tile that counts up along one axis of a loop's iteration space.

    start: the scalar it begins with, None for 0.
    """

    axis: int
    start: Value | None
    extent: int


@dataclass(frozen=True)
class _Bound:
    """`index predicate limit`, where the limit is the same along the index's axis.

    dims: what the dimensions of the limit follow.
    """

    index: _Index
    predicate: str
    limit: Value
    dims: Dims

    @property
    def side(self) -> tuple[int, bool]:
        """The axis, and whether elements behind the limit are the ones left out."""
        return self.index.axis, self.predicate in ("lt", "le")


@dataclass(frozen=True)
class _Joined:
    """Bounds on one side, and conditions that are the same along the axis, of which all hold.

    Or one of them, where is_any is set.
    """

    is_any: bool
    bounds: tuple[_Bound | _Joined, ...]
    conditions: tuple[tuple[Value, Dims], ...]

    @property
    def side(self) -> tuple[int, bool]:
        """That of its bounds."""
        return self.bounds[0].side

    @property
    def extent(self) -> int:
        """The elements of its index."""
        first = self.bounds[0]
        return first.extent if isinstance(first, _Joined) else first.index.extent


def short_mask(loop: LoopBody, mask: Value, dims: Dims) -> Value | None:
    """The element of a mask at a loop's position, from counts; None where no part of it is a bound.

    dims maps the mask's dimensions to the loop's.
    """
    bounds, others = list[_Bound | _Joined](), list[tuple[Value, Dims]]()
    _split(loop, mask, dims, bounds, others)
    if not bounds:
        return None
    sides: dict[tuple[int, bool], list[_Bound | _Joined]] = {}
    for bound in bounds:
        sides.setdefault(bound.side, []).append(bound)
    parts = [loop.scalar(*other) for other in others]
    for (axis, is_upper), group in sides.items():
        limit = _least(loop, [_count(loop, bound) for bound in group], is_least=is_upper)
        limit.name = limit.name or "limit"
        parts.append(loop.add(ew.Compare("lt" if is_upper else "ge", loop.coordinate(axis), limit)))
    result = reduce(lambda x, y: loop.add(ew.And(x, y)), parts)
    result.name = result.name or mask.name
    return result


def mask_parts(loop: LoopBody, mask: Value, dims: Dims) -> list[tuple[Value, Dims]] | None:
    """The elements that `short_mask` takes for a mask; None where it makes nothing of it."""
    bounds, others = list[_Bound | _Joined](), list[tuple[Value, Dims]]()
    _split(loop, mask, dims, bounds, others)
    if not bounds:
        return None
    return [*others, *(part for bound in bounds for part in _parts(bound))]


def _parts(bound: _Bound | _Joined) -> Iterator[tuple[Value, Dims]]:
    if isinstance(bound, _Bound):
        yield bound.limit, bound.dims
        if bound.index.start is not None:
            yield bound.index.start, ()
        return
    for inner in bound.bounds:
        yield from _parts(inner)
    yield from bound.conditions


def _least(loop: LoopBody, counts: list[Value], *, is_least: bool) -> Value:
    """The smallest of some counts, or the largest."""
    merge = ew.Min if is_least else ew.Max
    return reduce(lambda x, y: loop.add(merge(x, y)), counts)


def _count(loop: LoopBody, bound: _Bound | _Joined) -> Value:
    """How many elements of the index come before the limit, or are up to it."""
    if isinstance(bound, _Joined):
        return _joined_count(loop, bound)
    index, inclusive = bound.index, bound.predicate in ("le", "gt")
    start = index.start
    ends = [0 if v is None else constant_value(v) for v in (start, bound.limit)]
    if None not in ends:
        below = int(ends[1] or 0) - int(ends[0] or 0) + inclusive
        return loop.add(ew.Constant(min(max(below, 0), index.extent), int32))
    limit = loop.scalar(bound.limit, bound.dims)
    first = loop.add(ew.Constant(0, int32)) if start is None else loop.scalar(start, ())
    multiple = 1 if inclusive else _multiple(loop, bound)
    return loop.add(CountBelow(limit, first, index.extent, inclusive, multiple))


def _joined_count(loop: LoopBody, joined: _Joined) -> Value:
    """The smallest or largest of the counts; all elements, or none, where a condition decides it.

    Products with 0 and 1 instead of choices: those would be branches around what is chosen.
    """
    is_upper = joined.side[1]
    counts = [_count(loop, bound) for bound in joined.bounds]
    count = _least(loop, counts, is_least=is_upper != joined.is_any)
    for condition in joined.conditions:
        holds = loop.scalar(*condition)
        flag = loop.add(ew.Cast(holds if is_upper else loop.add(ew.Not(holds)), int32))
        if is_upper != joined.is_any:
            count = loop.add(ew.Mul(count, flag))
        else:
            every = loop.add(ew.Mul(loop.add(ew.Constant(joined.extent, int32)), flag))
            count = loop.add(ew.Max(count, every))
    return count


def _multiple(loop: LoopBody, bound: _Bound) -> int:
    """The elements that a thread holds side by side along the axis, where they divide the count."""
    found = vectors_of(loop.type.layout) if loop.type.layout is not None else None
    if loop.facts is None or found is None or found.dim != bound.index.axis:
        return 1
    ends = [v for v in (bound.limit, bound.index.start) if v is not None]
    counts = [bound.index.extent, *(loop.facts.of(v).every for v in ends)]
    return found.size if all(n % found.size == 0 for n in counts) else 1


def _split(
    loop: LoopBody,
    mask: Value,
    dims: Dims,
    bounds: list[_Bound | _Joined],
    others: list[tuple[Value, Dims]],
) -> None:
    """Takes a conjunction that the loop makes itself apart."""
    todo = [(mask, dims)]
    while todo:
        mask, dims = todo.pop()
        op = mask.defining_op
        bound: _Bound | _Joined | None = None
        if isinstance(op, tile.Broadcast | tile.ExpandDims | tile.Transpose):
            todo.append((op.a, inner_dims(op, dims)))
            continue
        if isinstance(op, ew.And) and loop.makes(op):
            todo += [(op.b, dims), (op.a, dims)]
            continue
        if isinstance(op, ew.Compare) and loop.makes(op):
            bound = _bound(loop, op, dims)
        elif isinstance(op, ew.Or):
            bound = _joined(loop, op, dims)
        if bound is None:
            others.append((mask, dims))
        else:
            bounds.append(bound)


def _joined(loop: LoopBody, op: ew.And | ew.Or, dims: Dims, depth: int = 0) -> _Joined | None:
    """What two conditions come to, if at least one is a bound and the other fits to it.

    depth: of the condition in those that are looked at.
    """
    if depth > DEEPEST or not loop.makes(op):
        return None
    found, others = list[_Bound | _Joined](), list[tuple[Value, Dims]]()
    for v in (op.a, op.b):
        made, inner = _behind_views(v, dims)
        bound = None
        if isinstance(made, ew.Compare) and loop.makes(made):
            bound = _bound(loop, made, inner)
        elif isinstance(made, ew.And | ew.Or):
            bound = _joined(loop, made, inner, depth + 1)
        if bound is None:
            others.append((v, dims))
        else:
            found.append(bound)
    if not found or any(b.side != found[0].side for b in found):
        return None
    if any(_varies(loop, v, d, found[0].side[0]) for v, d in others):
        return None
    return _Joined(isinstance(op, ew.Or), tuple(found), tuple(others))


def _bound(loop: LoopBody, op: ew.Compare, dims: Dims) -> _Bound | None:
    """A comparison as a bound along the axis of which a thread has the most elements."""
    layout = loop.type.layout
    if op.predicate not in _MIRRORED or layout is None or not isinstance(op.a.type, TileType):
        return None
    best, most = None, FEWEST_REGISTERS - 1
    for a, b, predicate in ((op.a, op.b, op.predicate), (op.b, op.a, _MIRRORED[op.predicate])):
        index = _index(a, dims)
        if index is None or _varies(loop, b, dims, index.axis):
            continue
        count = _registers(layout, index.axis)
        if count > most:
            best, most = _Bound(index, predicate, b, dims), count
    return best


def _index(value: Value, dims: Dims) -> _Index | None:
    """A tile as an index that does not wrap, along an axis of the loop."""
    op, dims = _behind_views(value, dims)
    if isinstance(op, tile.Arange):
        if op.start != 0 or dims[0] is None:
            return None
        return _Index(dims[0], None, op.end)
    if not isinstance(op, ew.Add) or not op.no_wrap:
        return None
    parts = index_parts(op)
    if parts is None:
        return None
    axes = [d for v in op.operands for d in _arange_axes(v, dims)]
    return _Index(axes[0], parts[0], parts[1].end) if len(axes) == 1 else None


def _behind_views(value: Value, dims: Dims) -> tuple[Op | None, Dims]:
    """What makes a tile's elements, behind ops that only move them, and the dims of its result."""
    op = value.defining_op
    while isinstance(op, VIEWS):
        if not isinstance(op, Hint):
            dims = inner_dims(op, dims)
        op = op.a.defining_op
    return op, dims


def _arange_axes(value: Value, dims: Dims) -> list[int]:
    """The axis of the loop along which an operand of an index counts; none for its scalar."""
    op, dims = _behind_views(value, dims)
    return [dims[0]] if isinstance(op, tile.Arange) and dims[0] is not None else []


def _registers(layout: Layout, axis: int) -> int:
    """Elements along an axis that a thread holds."""
    return prod(size for _, size, _ in layout.unit_terms(axis, Unit.REG))


@deep
def _varies(loop: LoopBody, value: Value, dims: Dims, axis: int) -> bool:
    """Whether a value may change along an axis of the loop."""
    op = value.defining_op
    if not isinstance(value.type, TileType) or isinstance(op, tile.Splat):
        return False
    if isinstance(op, tile.Broadcast | tile.ExpandDims | tile.Transpose):
        return _varies(loop, op.a, inner_dims(op, dims), axis)
    if op is not None and op.opcode.startswith("elementwise.") and loop.makes(op):
        return any(_varies(loop, v, dims, axis) for v in op.operands)
    return axis in dims
