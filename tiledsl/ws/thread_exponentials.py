"""Running maxima and sums of exponentials of each thread alone, merged behind the loop.

A loop over the parts of a row that carries its maximum m and sum l,

    n = max(m, max(x));  l = l * exp(m - n) + sum(exp(x - n));  m = n

lets all warps meet twice in each iteration. Every thread may have its own m and l instead, of the
elements that it holds: they are made of each other alone, and a thread sums up what it took the
maximum of. Behind the loop, the threads' sums are taken relative to the largest of their maxima and
added up. A thread that has met nothing over -inf takes exponentials relative to 0; a row of which
that is all there is gives NaN, as in the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from math import prod

from tiledsl.dtypes import float32
from tiledsl.ir.axis_plan import AxisPlan
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.pointer_copy import FetchLanes
from tiledsl.ir.ops.reduce import MergeThreads
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.load_ahead import counts_up


@dataclass(frozen=True)
class _Power:
    """exp(scale * (x - largest)): the ops that make it of their difference, and its x."""

    ops: tuple[Op, ...]
    x: Value
    scale: float | Value | None


@dataclass(frozen=True)
class _Sum:
    """Carried value `index`: `update` adds `total` to it, times a power of maxima.

    ops: all that make it of the maxima, without `total`.
    """

    index: int
    update: ew.Add
    total: Reduce
    factor: _Power
    ops: tuple[Op, ...]


@dataclass(frozen=True)
class _Online:
    """Carried value `index` is the maximum of itself and `largest`, in `update`."""

    index: int
    update: ew.Max
    largest: Reduce
    sums: tuple[_Sum, ...]


def keep_in_threads(graph: TileGraph, region: Region, num_warps: int, num_ctas: int) -> int:
    """Rewrites loops of a role under `region`, whose tiles have layouts; returns how many.

    The CTAs of a cluster merge no threads, and where dots are, these take the time.
    """
    found = 0
    if num_ctas > 1 or graph.find(Dot):
        return found
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        if not counts_up(loop.step) or _writes(loop):
            continue
        for index in range(len(loop.carried)):
            online = _online(graph, loop, index, num_warps)
            if online is not None:
                _rewrite(graph, loop, online, num_warps)
                found += 1
    return found


def _writes(loop: For) -> bool:
    """Whether a loop writes to memory, which the barriers of its reductions may order."""
    return any(
        op.effect is Effect.WRITE and not isinstance(op, FetchLanes) for op in loop.body.walk()
    )


# ---------------------------------------------------------------------- the pattern
def _online(graph: TileGraph, loop: For, index: int, num_warps: int) -> _Online | None:
    """The maximum that a loop carries as one of its values, and what goes with it, if it is one."""
    end = loop.body.terminator
    assert isinstance(end, Yield)
    carried, update = loop.carried[index], end.values[index].defining_op
    if not isinstance(update, ew.Max) or carried not in (update.a, update.b):
        return None
    if update.propagate_nan:
        return None  # the other threads' NaN would not reach a thread, nor be merged
    other = update.b if update.a is carried else update.a
    largest = _whole(graph, loop, other, "max", num_warps)
    if largest is None:
        return None
    made = [
        _sum(graph, loop, i, carried, update, largest, num_warps) for i in range(len(end.values))
    ]
    sums = tuple(s for s in made if s is not None)
    online = _Online(index, update, largest, sums)
    return online if sums and _is_closed(graph, loop, online) else None


def _sum(
    graph: TileGraph,
    loop: For,
    index: int,
    before: Value,
    maximum: ew.Max,
    largest: Reduce,
    num_warps: int,
) -> _Sum | None:
    """The sum of exponentials that a loop carries as one of its values, if it is one.

    before: the maximum that the loop carries; maximum: its next one, of that and `largest`.
    """
    end = loop.body.terminator
    assert isinstance(end, Yield)
    carried, update = loop.carried[index], end.values[index].defining_op
    after = maximum.result
    if not isinstance(update, ew.Add) or not _is_number(loop.init[index], 0.0):
        return None
    for kept, added in ((update.a, update.b), (update.b, update.a)):
        total = _whole(graph, loop, added, "sum", num_warps)
        scaled = kept.defining_op
        if total is None or not isinstance(scaled, ew.Mul) or carried not in (scaled.a, scaled.b):
            continue
        factor = _power(scaled.b if scaled.a is carried else scaled.a, after)
        choice, masked = _choice(total.inputs[0])
        term = _power(masked, after)
        if factor is None or term is None or factor.x is not before or not _alike(factor, term):
            continue
        if isinstance(factor.scale, Value) and _is_inside(factor.scale, loop):
            continue
        if not _has_maximum(term.x, choice, largest):
            continue
        ops = (update, scaled, *factor.ops, *term.ops, *([choice] if choice else []))
        return _Sum(index, update, total, factor, ops)
    return None


def _whole(graph: TileGraph, loop: For, value: Value, kind: str, num_warps: int) -> Reduce | None:
    """The reduction of one f32 tile, of which each thread holds a part of its own, to a scalar."""
    op = value.defining_op
    if not isinstance(op, Reduce) or op.parent is not loop.body or op.kind != kind:
        return None
    if len(op.inputs) != 1 or op.dtypes != (float32,) or value.type != ScalarType(float32):
        return None
    type_ = op.inputs[0].type
    if not isinstance(type_, TileType) or type_.layout is None or len(graph.users(value)) != 1:
        return None
    plan = AxisPlan(type_.layout, op.axes)
    places = [p.size for unit in (Unit.LANE, Unit.WARP) for p in plan.along(unit)]
    return op if prod(places) == 32 * num_warps and num_warps > 1 else None


def _choice(value: Value) -> tuple[ew.Select | None, Value]:
    """What makes parts of a tile that is summed up 0, and the tile without it."""
    op = value.defining_op
    if isinstance(op, ew.Select) and _is_number(op.b, 0.0):
        return op, op.a
    return None, value


def _has_maximum(x: Value, choice: ew.Select | None, largest: Reduce) -> bool:
    """Whether a thread's maximum is one of the elements whose exponentials it sums up.

    Others may lie far above it, or be all that a thread has.
    """
    source, x = _narrow(largest.inputs[0]), _narrow(x)
    if source is x:
        return True
    op = source.defining_op
    if choice is None or not isinstance(op, ew.Select):
        return False
    return _narrow(op.a) is x and choice.condition is op.condition


def _narrow(value: Value) -> Value:
    """What a tile of f32 has been widened from: reductions may widen their elements themselves."""
    op = value.defining_op
    if isinstance(op, ew.Cast) and isinstance(op.a.type, TileType) and op.a.type.dtype.is_float:
        return op.a if op.a.type.dtype.bits < float32.bits else value
    return value


def _is_inside(value: Value, loop: For) -> bool:
    """Whether a value is made in each iteration of a loop."""
    region = value.owner if isinstance(value.owner, Region) else value.owner.parent
    while region is not None and region is not loop.body:
        region = region.parent.parent if region.parent else None
    return region is loop.body


def _power(value: Value, largest: Value) -> _Power | None:
    """A value as exp(scale * (x - largest)), of scalars or of tiles."""
    power = value.defining_op
    if not isinstance(power, ew.Exp | ew.Exp2):
        return None
    ops: list[Op] = [power]
    scale: float | Value | None = None
    inner = power.a.defining_op
    if isinstance(inner, ew.Mul):
        of_a = isinstance(inner.a.defining_op, ew.Sub)
        scale = _number(inner.b if of_a else inner.a)
        ops.insert(0, inner)
        inner = (inner.a if of_a else inner.b).defining_op
    if not isinstance(inner, ew.Sub) or _source(inner.b) is not largest:
        return None
    return _Power((inner, *ops), inner.a, scale)


def _alike(a: _Power, b: _Power) -> bool:
    """Whether two powers have one base and scale."""
    return type(a.ops[-1]) is type(b.ops[-1]) and a.scale == b.scale


def _source(value: Value) -> Value:
    """The scalar that a tile repeats, or the value itself."""
    op = value.defining_op
    while isinstance(op, tile.Splat | tile.Broadcast | tile.ExpandDims):
        value = op.a
        op = value.defining_op
    return value


def _number(value: Value) -> float | Value:
    """The constant that a scalar or tile repeats, or the scalar."""
    source = _source(value)
    op = source.defining_op
    return float(op.value) if isinstance(op, ew.Constant) else source


def _is_number(value: Value, number: float) -> bool:
    found = _number(value)
    return isinstance(found, float) and found == number


def _is_closed(graph: TileGraph, loop: For, online: _Online) -> bool:
    """Whether only maximum and sums are made of what threads hold of them in the loop."""
    ends = {online.index: online.update, **{s.index: s.update for s in online.sums}}
    known = {op.id for s in online.sums for op in (*s.ops, s.total)} | {online.update.id}
    todo = [loop.carried[i] for i in ends] + [online.largest.result]
    seen: set[Value] = set()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        for use in graph.users(value):
            op = use.op
            if op.parent is not loop.body:
                return False
            if isinstance(op, Yield):
                made = ends.get(use.index)
                if made is None or made.result is not value:
                    return False
            elif op.id not in known and not _repeats(op):
                return False
            todo += op.results
    return True


def _repeats(op: Op) -> bool:
    return isinstance(op, tile.Splat | tile.Broadcast | tile.ExpandDims)


# ---------------------------------------------------------------------- the rewrite
def _rewrite(graph: TileGraph, loop: For, online: _Online, num_warps: int) -> None:
    """Reductions within threads in the loop, and their merge behind it."""
    reference = _guard(graph, loop, online.update)
    for op in (online.largest, *(s.total for s in online.sums)):
        new = op.rebuild({}, (Region(),), within_threads=True)
        for old, result in zip(op.results, new.results, strict=True):
            result.type = old.type
        graph.replace_op(op, new)
    assert loop.parent is not None
    b = Builder(graph, loop.parent, loop.parent.ops.index(loop) + 1, loop.loc)
    own = loop.results[online.index]
    merge = MergeThreads(own, kind="max", warps=num_warps, loc=loop.loc)
    whole = b.value(merge, own.name)
    # Without an iteration there is no maximum, and nothing to be scaled; nor is there where a
    # thread's own is infinite, less which itself would be NaN.
    one, most = (b.value(ew.Constant(n, float32)) for n in (1.0, inf))
    ran = b.value(ew.Compare("lt", loop.lower, loop.upper))
    finite = ew.Compare("ne", own, most)
    is_scaled = b.value(ew.And(b.value(finite), ran))
    kept: list[Op] = [merge, finite]
    merged = {own: whole}
    for s in online.sums:
        mapping = {loop.carried[online.index]: own, reference: whole}
        for op in _with_constants(loop, s.factor.ops):
            clone = clone_op(op, mapping)
            b.add(clone)
            kept.append(clone)
        factor = mapping[s.factor.ops[-1].results[0]]
        factor = b.value(ew.Select(is_scaled, factor, one))
        total = loop.results[s.index]
        scaled = ew.Mul(total, factor)
        kept.append(scaled)
        merged[total] = b.value(
            MergeThreads(b.value(scaled), kind="sum", warps=num_warps, loc=loop.loc), total.name
        )
    for old, value in merged.items():
        graph.replace_uses(old, value, keep=kept)


def _with_constants(loop: For, ops: tuple[Op, ...]) -> list[Op]:
    """Ops of a loop with the constants of the loop that they read, in order."""
    out: list[Op] = []
    for op in ops:
        sources = [v.defining_op for v in op.operands]
        out += [o for o in sources if isinstance(o, ew.Constant) and o.parent is loop.body]
        out.append(op)
    return out


def _guard(graph: TileGraph, loop: For, update: ew.Max) -> Value:
    """Differences are to 0 where there is no maximum: -inf less itself would be NaN.

    Returns what they are to.
    """
    largest = update.result
    b = Builder(graph, loop.body, loop.body.ops.index(update) + 1, update.loc)
    floor, zero = (b.value(ew.Constant(n, float32)) for n in (-inf, 0.0))
    is_empty = ew.Compare("eq", largest, floor)
    b.add(is_empty)
    choice = ew.Select(is_empty.result, zero, largest)
    reference = b.value(choice)
    end = loop.body.terminator
    assert end is not None
    graph.replace_uses(largest, reference, keep=(is_empty, end, choice))
    return reference
