"""Loop-carried tiles that move by a scalar become an invariant tile and a carried scalar.

`ptrs += BLOCK * stride` moves all pointers of a tile alike: carrying one distance instead of the
tile frees its registers, and what the pointers are made of stays visible inside the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.dtypes import DType
from tiledsl.dtypes import int64
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.target import Target


@register_pass("uniform-steps", consumes=Level.TILE, produces=Level.TILE)
def uniform_steps(graph: TileGraph, target: Target) -> PassReport:
    """Carries the distance of tiles of integers or pointers that a loop moves by scalars.

    Applies where the next value is the carried one plus scalars that every element gets. Integer
    distances wrap as the tiles did; those of pointers have 64 bits.
    """
    del target
    changes = 0
    for op in list(graph.walk()):
        if isinstance(op, For):
            changes += _for(graph, op)
        elif isinstance(op, While):
            changes += _while(graph, op)
    return PassReport("uniform-steps", changes)


@dataclass(frozen=True)
class _Step:
    """Carried value `index` moves by the sum of `scalars`."""

    index: int
    scalars: tuple[Value, ...]


def _for(graph: TileGraph, op: For) -> int:
    steps = _steps(op.init, op.carried, _yield(op.body).values)
    if not steps:
        return 0
    zeros = [_zero(graph, op, _distance_dtype(op.init[s.index])) for s in steps]
    distances = [
        op.body.add_arg(z.type, _name(op.init[s.index])) for s, z in zip(steps, zeros, strict=True)
    ]
    _extend(
        graph, op.body, [_next(graph, op.body, d, s) for d, s in zip(distances, steps, strict=True)]
    )
    for step, distance in zip(steps, distances, strict=True):
        _replace(graph, op.carried[step.index], op.init[step.index], distance, op.body)
    new = op.rebuild({}, op.regions, init=(*op.init, *zeros))
    _supersede(graph, op, new, steps, op.init)
    return len(steps)


def _while(graph: TileGraph, op: While) -> int:
    passed = _yield(op.before).values[1:]
    steps = [
        s
        for s in _steps(op.init, op.body.args, _yield(op.body).values)
        if passed[s.index] is op.before.args[s.index]
    ]
    if not steps:
        return 0
    zeros = [_zero(graph, op, _distance_dtype(op.init[s.index])) for s in steps]
    for region in (op.before, op.body):
        args = region.args[: len(op.init)]
        added = [
            region.add_arg(z.type, _name(op.init[s.index]))
            for s, z in zip(steps, zeros, strict=True)
        ]
        ends = (
            added
            if region is op.before
            else [_next(graph, region, d, s) for d, s in zip(added, steps, strict=True)]
        )
        _extend(graph, region, ends)
        for step, distance in zip(steps, added, strict=True):
            _replace(graph, args[step.index], op.init[step.index], distance, region)
    new = op.rebuild({}, op.regions, init=(*op.init, *zeros))
    _supersede(graph, op, new, steps, op.init)
    return len(steps)


def _steps(init: tuple[Value, ...], args: Sequence[Value], ends: tuple[Value, ...]) -> list[_Step]:
    out: list[_Step] = []
    for index, (first, arg, end) in enumerate(zip(init, args, ends, strict=True)):
        if isinstance(first.type, TileType) and not first.type.dtype.is_float:
            scalars = _scalars(arg, end)
            if scalars:
                out.append(_Step(index, scalars))
    return out


def _scalars(arg: Value, end: Value) -> tuple[Value, ...]:
    """The scalars that lead from the carried tile to its next value; empty where others do."""
    out: list[Value] = []
    while end is not arg:
        op = end.defining_op
        if not isinstance(op, ew.Add | pointer.Add):
            return ()
        sides = op.operands
        step = sides[1].defining_op
        if not isinstance(step, tile.Splat) and isinstance(op, ew.Add):
            sides = (sides[1], sides[0])
            step = sides[1].defining_op
        if not isinstance(step, tile.Splat):
            return ()
        out.append(step.a)
        end = sides[0]
    return tuple(out)


def _distance_dtype(value: Value) -> DType:
    assert isinstance(value.type, TileType)
    return int64 if value.type.dtype.is_pointer else value.type.dtype


def _name(value: Value) -> str:
    return f"{value.name}_step" if value.name else ""


def _zero(graph: TileGraph, before: Op, dtype: DType) -> Value:
    return _insert(graph, before, ew.Constant(0, dtype))


def _insert(graph: TileGraph, before: Op, op: Op) -> Value:
    op.loc = before.loc
    graph.insert_before(before, op)
    return op.results[0]


def _yield(region: Region) -> Yield:
    end = region.terminator
    assert isinstance(end, Yield)
    return end


def _next(graph: TileGraph, region: Region, distance: Value, step: _Step) -> Value:
    """The distance after an iteration."""
    end = _yield(region)
    total = step.scalars[0]
    for scalar in step.scalars[1:]:
        total = _insert(graph, end, ew.Add(total, scalar))
    return _insert(graph, end, ew.Add(distance, total))


def _extend(graph: TileGraph, region: Region, values: list[Value]) -> None:
    """Makes a region yield more values."""
    end = _yield(region)
    graph.insert_before(end, Yield((*end.values, *values), loc=end.loc))
    graph.erase(end)


def _replace(graph: TileGraph, arg: Value, init: Value, distance: Value, region: Region) -> None:
    """Makes uses of a carried tile read the invariant tile moved by the distance."""
    moved = _moved(graph, region.ops[0], init, distance)
    moved.name = arg.name
    graph.replace_uses(arg, moved)


def _moved(graph: TileGraph, before: Op, init: Value, distance: Value) -> Value:
    type_ = init.type
    assert isinstance(type_, TileType)
    assert isinstance(distance.type, ScalarType)
    splat = _insert(graph, before, tile.Splat(distance, type_.shape))
    cls = pointer.Add if type_.dtype.is_pointer else ew.Add
    return _insert(graph, before, cls(init, splat))


def _supersede(
    graph: TileGraph, old: For | While, new: Op, steps: list[_Step], init: tuple[Value, ...]
) -> None:
    """Puts the new loop in the place of the old one; final tiles are made from final distances."""
    kept = dict(zip(old.results, new.results, strict=False))
    graph.supersede(old, new, kept)
    after = new.results[len(init) :]
    assert new.parent is not None
    follower = new.parent.ops[new.parent.ops.index(new) + 1 :]
    for step, distance in zip(steps, after, strict=True):
        result = new.results[step.index]
        if graph.has_uses(result) and follower:
            moved = _moved(graph, follower[0], init[step.index], distance)
            moved.name = result.name
            graph.replace_uses(result, moved)
