"""Common subexpression elimination: of equal pure ops in scope of each other, the first is kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from typing import cast

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.target import Target


@register_pass("cse", consumes=Level.ALL, produces=Level.ALL)
def cse(graph: TileGraph, target: Target) -> PassReport:
    """Replaces a pure op by one that dominates it and has the same fields and result types."""
    del target
    return PassReport("cse", _region(graph, graph.body, {}))


def _region(graph: TileGraph, region: Region, outer: dict[Hashable, Op]) -> int:
    seen = dict(outer)
    changes = 0
    for op in list(region.ops):
        for inner in op.regions:
            changes += _region(graph, inner, seen)
        if op.effect is not Effect.PURE or op.is_unique or op.regions or not op.results:
            continue
        first = seen.setdefault(_key(op), op)
        if first is op:
            continue
        for old, new in zip(op.results, first.results, strict=True):
            new.name = new.name or old.name
            graph.replace_uses(old, new)
        graph.erase(op)
        changes += 1
    return changes


def _key(op: Op) -> Hashable:
    attributes = tuple(_exact(value) for value in op.attributes.values())
    operands = tuple(
        (s.name, getattr(op, s.name)) for s in op.fields if s.kind.startswith("operand")
    )
    return op.opcode, operands, attributes, tuple(r.type for r in op.results)


def _exact(value: Any) -> Hashable:
    """Keeps apart what Python holds equal: 1, 1.0 and True, 0.0 and -0.0."""
    if isinstance(value, tuple):
        return tuple(map(_exact, cast("tuple[Any, ...]", value)))
    if isinstance(value, bool | int | float):
        return type(value), repr(value)
    return value
