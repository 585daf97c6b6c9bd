"""Where the boxes of a load lie in its tensor."""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Value
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import FloorDiv
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.types import SmemType
from tiledsl.ws.partition import narrowed


def box_coords(
    b: Builder,
    load: Load,
    offsets: tuple[Value, ...],
    payload: SmemType,
    box: int,
    rank: Value | None,
    rows: int,
    half: int = 0,
) -> tuple[Value, ...]:
    """Element coordinates of one box of a load, innermost first.

    offsets: of the load. rank: of the CTA, where it takes `rows` rows of each box for its cluster.
    half: of a box with paired rows.
    """
    t = tensor_type(load.tensor, "load")
    assert t.inner_dim is not None
    coords: list[Value] = []
    for d in (t.inner_dim, *(d for d in reversed(range(t.rank)) if d != t.inner_dim)):
        at = narrowed(b, offsets[d])
        if d == t.inner_dim and box:
            at = b.value(Add(at, b.value(Constant(box * payload.box_elems, int32))))
        elif d != t.inner_dim and d not in load.squeeze and rank is not None:
            at = b.value(Add(at, b.value(Mul(rank, b.value(Constant(rows, int32))))))
        if payload.paired and d != t.inner_dim and d not in load.squeeze:
            coords.append(b.value(Constant(2 * half, int32)))
            at = b.value(FloorDiv(at, b.value(Constant(4, int32))))
        coords.append(at)
    return tuple(coords)
