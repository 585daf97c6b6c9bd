"""Carried scalars that move by the same amount each time, in terms of the loop variable.

`ptr += stride` makes the address of an iteration depend on the iteration before, so that nothing
can be loaded ahead; `ptr + iv * stride` depends on the loop variable alone.
"""

from __future__ import annotations

from tiledsl.dtypes import DType
from tiledsl.dtypes import int64
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.types import ScalarType


def count_scalars(graph: TileGraph, loop: For) -> int:
    """Makes such scalars anew at the top of the body, where its lower end and step are known.

    Returns how many.
    """
    lower, stride = constant_value(loop.lower), constant_value(loop.step)
    if lower is None or stride is None or stride < 1:
        return 0
    end = loop.body.terminator
    assert isinstance(end, Yield)
    inside = {v for op in loop.body.walk() for v in op.results} | set(loop.body.args)
    b = Builder(graph, loop.body, 0, loop.loc)
    count: Value | None = None
    changes = 0
    for init, arg, following in zip(loop.init, loop.carried, end.values, strict=True):
        step = _step(arg, following)
        if step is None or step in inside or not isinstance(init.type, ScalarType):
            continue
        dtype = int64 if init.type.dtype.is_pointer else init.type.dtype
        count = count or _iteration(b, loop, int(lower), int(stride))
        moved = b.value(ew.Mul(_as(b, count, dtype), step))
        kind = pointer.Add if init.type.dtype.is_pointer else ew.Add
        at = b.value(kind(init, moved), arg.name)
        graph.replace_uses(arg, at, keep=(end,))
        changes += 1
    return changes


def _step(arg: Value, following: Value) -> Value | None:
    """What is added to a carried integer or pointer; None where it changes in another way."""
    if not isinstance(arg.type, ScalarType):
        return None
    op = following.defining_op
    if isinstance(op, pointer.Add) and op.pointer is arg:
        return op.offset
    if isinstance(op, ew.Add) and arg.type.dtype.is_int and arg in (op.a, op.b):
        return op.b if op.a is arg else op.a
    return None


def _iteration(b: Builder, loop: For, lower: int, stride: int) -> Value:
    """The number of an iteration, from 0."""
    assert isinstance(loop.iv.type, ScalarType)
    dtype, count = loop.iv.type.dtype, loop.iv
    if lower:
        count = b.value(ew.Sub(count, b.value(ew.Constant(lower, dtype))))
    if stride > 1:
        count = b.value(ew.FloorDiv(count, b.value(ew.Constant(stride, dtype))))
    return count


def _as(b: Builder, value: Value, dtype: DType) -> Value:
    assert isinstance(value.type, ScalarType)
    return value if value.type.dtype == dtype else b.value(ew.Cast(value, dtype))
