"""Sums that meet between warps at once: one exchange through shared memory for several of them.

Sums of one program along the same axes, none of which needs another one, are added up together as
tuples. Each is added in the order that it has alone, so that no result changes.
"""

from __future__ import annotations

from tiledsl.ir.axis_plan import AxisPlan
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

LEAST_BITS = 32
"""Of elements that are added in their own dtype; narrower ones are rounded once, at the end."""


def share_sums(graph: TileGraph, region: Region) -> int:
    """Joins the sums of each region under `region`, whose tiles have layouts; returns how many."""
    joined = 0
    for op in list(region.ops):
        if not isinstance(op, Reduce):
            joined += sum(share_sums(graph, inner) for inner in op.regions)
    for first in [op for op in region.ops if isinstance(op, Reduce) and _is_exchanged(op)]:
        if first.parent is not region:
            continue
        others = _companions(region, first)
        if others:
            _join(graph, first, others)
            joined += 1 + len(others)
    return joined


def _is_exchanged(op: Reduce) -> bool:
    """Whether an op is a plain sum that several warps hold parts of."""
    type_ = op.inputs[0].type
    assert isinstance(type_, TileType)
    if op.kind != "sum" or type_.layout is None or type_.dtype.bits < LEAST_BITS:
        return False
    whole = type_.layout.padded_shape == type_.shape
    return whole and op.dtypes == (type_.dtype,) and AxisPlan(type_.layout, op.axes).needs_warps


def _companions(region: Region, first: Reduce) -> list[Reduce]:
    """Later sums that can be made where the first one is."""
    found: list[Reduce] = []
    start = region.ops.index(first)
    after = set(first.results)
    for op in region.ops[start + 1 :]:
        depends = any(v in after for v in _operands(op))
        if isinstance(op, Reduce) and not depends and _is_alike(first, op):
            found.append(op)
        elif depends or op.effect is not Effect.PURE:
            after.update(op.results)
    return found


def _operands(op: Op) -> list[Value]:
    """What an op and those inside of it take."""
    return [*op.operands, *(v for r in op.regions for o in r.walk() for v in o.operands)]


def _is_alike(first: Reduce, op: Reduce) -> bool:
    a, b = first.inputs[0].type, op.inputs[0].type
    assert isinstance(a, TileType)
    assert isinstance(b, TileType)
    return (
        _is_exchanged(op) and op.axes == first.axes and (a.shape, a.layout) == (b.shape, b.layout)
    )


def _join(graph: TileGraph, first: Reduce, others: list[Reduce]) -> None:
    """One op in the place of the first; what the others take moves before it."""
    region = first.parent
    assert region is not None
    for op in _needed(region, first, others):
        graph.move_before(first, op)
    sums = [first, *others]
    body = Region()
    dtypes = [d for op in sums for d in op.dtypes]
    left = [body.add_arg(ScalarType(d), "a") for d in dtypes]
    right = [body.add_arg(ScalarType(d), "b") for d in dtypes]
    b = Builder(graph, body, 0, first.loc)
    b.add(Yield(tuple(b.value(Add(x, y)) for x, y in zip(left, right, strict=True))))
    names = tuple(op.results[0].name for op in sums)
    inputs = tuple(op.inputs[0] for op in sums)
    made = Reduce(inputs, axes=first.axes, body=body, names=names, loc=first.loc)
    graph.insert_before(first, made)
    for op, result in zip(sums, made.results, strict=True):
        graph.set_type(result, op.results[0].type)
        graph.replace_uses(op.results[0], result)
        graph.erase(op)


def _needed(region: Region, first: Reduce, others: list[Reduce]) -> list[Op]:
    """Ops after the first sum that the inputs of the others take, in order."""
    later = region.ops[region.ops.index(first) + 1 :]
    wanted = {v for op in others for v in op.inputs}
    found: list[Op] = []
    for op in reversed(later):
        if op not in others and any(r in wanted for r in op.results):
            wanted.update(_operands(op))
            found.append(op)
    return found[::-1]
