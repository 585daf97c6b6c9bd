"""Sums that most iterations need not rescale.

Online softmax multiplies a sum by the exponential of the old maximum of a row minus the new one.
Where no row of a warp has a new maximum, all its factors are one and the products change nothing:
the loop over the registers is put under a vote of the warp. The later the iteration, the rarer a
new maximum: over random scores, iteration n brings a row one with a chance of 1/n.
"""

from __future__ import annotations

from tiledsl.dtypes import float32
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.types import TileType
from tiledsl.ws.fuse import fuse_elementwise
from tiledsl.ws.plan import Plan


def fuse_consumer(graph: TileGraph, region: Region, plan: Plan) -> list[str]:
    """Fuses the tile math of consumers, with votes where the plan has them; returns notes."""
    fuse_elementwise(graph, region)
    if plan.skips_ones and skip_factors_of_one(graph, region):
        return ["sums are rescaled where a row of the warp has a new maximum"]
    return []


def skip_factors_of_one(graph: TileGraph, region: Region) -> int:
    """Marks maps under a region that rescale the sum of a dot; returns how many."""
    count = 0
    for op in list(region.walk()):
        if not isinstance(op, Map) or op.unless_one >= 0:
            continue
        found = rescaled(graph, op)
        if found is not None:
            graph.replace_op(op, clone_op(op, {}, in_place=found[0], unless_one=found[1]))
            count += 1
    return count


def rescaled(graph: TileGraph, op: Map) -> tuple[int, int] | None:
    """(sum, factor) among the inputs of a map that is a dot's sum times a factor that stays one."""
    made = _yielded(op)
    if not isinstance(made, ew.Mul) or len(op.body.ops) != 2:
        return None
    for total, factor in ((made.a, made.b), (made.b, made.a)):
        if total not in op.body.args or factor not in op.body.args:
            return None
        i, j = total.index, factor.index
        if max(i, j) >= len(op.inputs) or op.follows[i] != tuple(range(len(op.shape))):
            continue
        is_sum = isinstance(op.inputs[i].defining_op, mma.Wait)
        if is_sum and len(graph.users(op.inputs[i])) == 1 and stays_one(op.inputs[j]):
            return i, j
    return None


def stays_one(value: Value) -> bool:
    """Whether an f32 tile is the exponential of a maximum up to now minus one with more in it."""
    row = value.defining_op
    if not isinstance(value.type, TileType) or value.type.dtype != float32:
        return False
    made = _yielded(row) if isinstance(row, Map) else None
    if not isinstance(row, Map) or not isinstance(made, ew.Exp | ew.Exp2):
        return False
    at = made.a
    while isinstance(at.defining_op, ew.Mul) and at not in row.body.args:
        factors = at.defining_op
        a_varies = isinstance(factors.a.defining_op, ew.Sub | ew.Mul)
        at = factors.a if a_varies else factors.b
    change = at.defining_op
    if not isinstance(change, ew.Sub):
        return False
    before, after = _outside(row, change.a), _outside(row, change.b)
    grown = after.defining_op
    return isinstance(grown, Map) and _is_maximum_with(grown, before)


def _is_maximum_with(op: Map, value: Value) -> bool:
    """Whether a map is the maximum of a value and something else."""
    made = _yielded(op)
    return isinstance(made, ew.Max) and value in (_outside(op, made.a), _outside(op, made.b))


def _outside(op: Map, v: Value) -> Value:
    """The input that an argument of a map's body stands for; other values as they are."""
    return op.inputs[v.index] if v in op.body.args[: len(op.inputs)] else v


def _yielded(op: Map) -> object:
    """What makes the only result of a map."""
    end = op.body.terminator
    values = end.operands if end is not None else ()
    return values[0].defining_op if len(values) == 1 else None
