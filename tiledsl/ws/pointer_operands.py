"""Operands that a consumer would load through pointers itself, iteration by iteration.

A load role brings blocks of tensors. What a dot takes computed from tiles of pointers (dequantised
weights, windows of a convolution) the consumers of a flow loop load where they need it, and wait
for memory each time; a single role copies it ahead, or has other CTAs on the SM meanwhile.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.types import TileType


def pointer_operand(graph: TileGraph) -> pointer.Load | None:
    """A tile loaded through pointers in a loop of which an operand of its dots is made, or None.

    What is made of another product (weights of attention, with a bias) does not count: there the
    load is only part of the work of an iteration.
    """
    for loop in graph.find(For):
        inside = {op.id for op in loop.body.ops}
        for dot in [op for op in loop.body.ops if isinstance(op, mma.Dot)]:
            for value in (dot.a, dot.b):
                found = _loaded(value, inside)
                if found is not None:
                    return found
    return None


def _loaded(value: Value, inside: set[int]) -> pointer.Load | None:
    """The tile of two dimensions behind an operand that depends on no product."""
    seen: set[int] = set()
    pending = [value.defining_op]
    found: pointer.Load | None = None
    while pending:
        op = pending.pop()
        if op is None or op.id not in inside or op.id in seen:
            continue
        seen.add(op.id)
        if isinstance(op, mma.Dot):
            return None
        if isinstance(op, pointer.Load):
            found = found or (op if _is_matrix(op) else None)
            continue
        pending += [v.defining_op for v in _operands(op)]
    return found


def _operands(op: Op) -> list[Value]:
    inner = [v for region in op.regions for o in region.walk() for v in o.operands]
    return [*op.operands, *inner]


def _is_matrix(op: pointer.Load) -> bool:
    type_ = op.result.type
    return isinstance(type_, TileType) and sum(n > 1 for n in type_.shape) > 1
