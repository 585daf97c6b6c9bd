"""Moves the sum over lanes out of loops.

A loop that carries c = c * f + sum(x, 1), with c starting at zero, needs the sum of whole rows only
after its end. The pass carries four partial sums per row instead, one for each lane of the quad
that holds a row of a wgmma accumulator, and adds them up after the loop: no shuffles inside.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dtypes import float32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.ir.types import TileType
from tiledsl.target import Target

LANES, PAIR = 4, 2
"""Lanes that share a row of an accumulator, and columns that one has side by side."""


@dataclass(frozen=True)
class RowSum:
    """Carried value `index` of a loop: `update` adds `total` to it, times `factor` where given."""

    index: int
    update: Op
    total: Reduce
    factor: Value | None


@register_pass("defer-sums", consumes=Level.TILE, produces=Level.TILE)
def defer_sums(graph: TileGraph, target: Target) -> PassReport:
    """Rewrites row sums of loops with dots."""
    del target
    changes = 0
    for loop in graph.find(For):
        if any(isinstance(op, Dot) for op in loop.body.ops):
            sums = [s for i in range(len(loop.carried)) if (s := _row_sum(graph, loop, i))]
            if sums:
                _rewrite(graph, loop, sums)
                changes += len(sums)
    return PassReport("defer-sums", changes)


def _row_sum(graph: TileGraph, loop: For, index: int) -> RowSum | None:
    """The pattern around one carried value, if it is there."""
    end = loop.body.terminator
    assert isinstance(end, Yield)
    carried, update = loop.carried[index], end.values[index].defining_op
    if not isinstance(update, ew.Add) or not _is_zero(loop.init[index]):
        return None
    if len(graph.users(update.result)) != 1 or len(graph.users(carried)) != 1:
        return None
    for kept, added in ((update.a, update.b), (update.b, update.a)):
        total = added.defining_op
        if not _is_total(graph, loop, total):
            continue
        assert isinstance(total, Reduce)
        if kept is carried:
            return RowSum(index, update, total, None)
        scaled = kept.defining_op
        if isinstance(scaled, ew.Mul) and carried in (scaled.a, scaled.b):
            factor = scaled.b if scaled.a is carried else scaled.a
            if len(graph.users(kept)) == 1 and factor is not carried:
                return RowSum(index, update, total, factor)
    return None


def _is_total(graph: TileGraph, loop: For, op: Op | None) -> bool:
    """Whether an op sums the rows of an f32 tile for one use in the loop."""
    if not isinstance(op, Reduce) or op.parent is not loop.body or len(op.inputs) != 1:
        return False
    t = op.inputs[0].type
    return (
        isinstance(t, TileType)
        and t.rank == 2
        and t.dtype == float32
        and t.shape[1] % (LANES * PAIR) == 0
        and op.kind == "sum"
        and op.axes == (1,)
        and not op.widened
        and len(graph.users(op.results[0])) == 1
    )


def _is_zero(value: Value) -> bool:
    op = value.defining_op
    while isinstance(op, tile.Splat | tile.Broadcast | ew.Cast):
        op = op.a.defining_op
    return isinstance(op, ew.Constant) and op.value == 0


def _rewrite(graph: TileGraph, old: For, sums: list[RowSum]) -> None:
    """Puts a loop that carries partial sums in the place of `old`."""
    parent = old.parent
    assert parent is not None
    b = Builder(graph, parent, parent.ops.index(old), old.loc)
    init = list(old.init)
    for s in sums:
        rows = _rows(old.init[s.index])
        zero = b.value(ew.Constant(0.0, float32))
        init[s.index] = b.value(tile.Splat(zero, (rows, LANES)))
    new = For(
        old.lower, old.upper, old.step, tuple(init), old.unroll,
        old.unmasked_from, old.unmasked_until, body=Region(),
    )  # fmt: skip
    new.loc = old.loc
    iv = new.body.add_arg(old.iv.type, old.iv.name)
    carried = [new.body.add_arg(v.type, a.name) for v, a in zip(init, old.carried, strict=True)]
    graph.insert_before(old, new)
    for op in list(old.body.ops):
        graph.move_to(op, new.body)
    graph.replace_uses(old.iv, iv)
    changed = {s.index: s for s in sums}
    for i, (a, fresh) in enumerate(zip(old.carried, carried, strict=True)):
        if i not in changed:
            graph.replace_uses(a, fresh)
    end = new.body.terminator
    assert isinstance(end, Yield)
    values = list(end.values)
    for s in sums:
        values[s.index] = _partial(graph, s, carried[s.index])
    graph.replace_op(end, Yield(tuple(values), loc=end.loc))
    after = Builder(graph, parent, parent.ops.index(new) + 1, old.loc)
    for i, (a, r) in enumerate(zip(old.results, new.results, strict=True)):
        r.name = a.name
        whole = after.value(Reduce((r,), axes=(1,), kind="sum"), a.name) if i in changed else r
        graph.replace_uses(a, whole)
    for s in sums:
        for op in (s.update, s.total):
            _erase_dead(graph, op)
    graph.erase(old)


def _partial(graph: TileGraph, s: RowSum, carried: Value) -> Value:
    """The update of the partial sums, before the update of the whole one."""
    region = s.update.parent
    assert region is not None
    b = Builder(graph, region, region.ops.index(s.update), s.update.loc)
    x = s.total.inputs[0]
    assert isinstance(x.type, TileType)
    rows, cols = x.type.shape
    parts = b.value(tile.Reshape(x, (rows, cols // (LANES * PAIR), LANES, PAIR)))
    total = b.value(Reduce((parts,), axes=(1, 3), kind="sum"))
    if s.factor is not None:
        factor = b.value(tile.ExpandDims(s.factor, 1))
        factor = b.value(tile.Broadcast(factor, (rows, LANES)))
        carried = b.value(ew.Mul(carried, factor))
    return b.value(ew.Add(carried, total), s.update.results[0].name)


def _rows(value: Value) -> int:
    assert isinstance(value.type, TileType)
    return value.type.shape[0]


def _erase_dead(graph: TileGraph, op: Op) -> None:
    """Erases an op without uses and what only it used."""
    todo = [op]
    while todo:
        dead = todo.pop()
        if dead.parent is None or any(graph.users(r) for r in dead.results):
            continue
        graph.erase(dead)
        todo += [m for v in dead.operands if isinstance(m := v.defining_op, ew.Mul)]
