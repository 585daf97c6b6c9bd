"""Left operands that are made of a loaded tile in registers: quantised weights that are widened.

A dot loop whose dots only accumulate may do elementwise math on the tile that becomes operand a:
each warpgroup reads its rows from the slot, makes the operand where the tensor core reads it, and
gives the slot back after the products. These may share one accumulator, as two halves of packed
weights do.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.tile import Broadcast
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import TileType
from tiledsl.ws.dot_loop import Made
from tiledsl.ws.free import is_elementwise
from tiledsl.ws.operands import operand_source
from tiledsl.ws.slot_vectors import row_vector


def made_operand(loop: For, value: Value) -> Made | None:
    """The tile that a computed left operand is made of by elementwise math alone, in the loop."""
    type_ = value.type
    if not isinstance(type_, TileType) or not type_.dtype.is_16bit_float:
        return None
    loads: set[Load] = set()
    found: set[Op] = set()
    work = [value]
    while work:
        op = work.pop().defining_op
        if isinstance(op, Load):
            loads.add(op)
        elif isinstance(op, ExpandDims | Broadcast) and op.parent is loop.body and _of_rows(op):
            found.add(op)
            work.append(op.a)
        elif isinstance(op, Splat):
            found.add(op)
        elif op is None or op.parent is not loop.body or not _is_math(op):
            return None
        elif op not in found:
            found.add(op)
            work += [v for v in op.operands if isinstance(v.type, TileType)]
    tiles = [op for op in loads if tile_type(op.result, "load").shape == type_.shape]
    vectors = [
        op for op in loop.body.ops if isinstance(op, Load) and op in loads and op not in tiles
    ]
    if len(tiles) != 1 or len(vectors) + 1 != len(loads):
        return None
    if not all(row_vector(loop, op) is not None for op in vectors):
        return None
    (load,) = tiles
    inside = [op for op in loop.body.ops if op in found]
    outside = sorted((op for op in found if op.parent is not loop.body), key=lambda op: op.id)
    return Made(load, (*outside, *inside), tuple(vectors))


def _of_rows(op: ExpandDims | Broadcast) -> bool:
    """Whether an op hands on a number for each row of a tile."""
    if isinstance(op, ExpandDims):
        return op.axis == 1 and tile_type(op.a, "made").rank == 1
    return tile_type(op.a, "made").shape == (op.shape[0], 1)


def _is_math(op: Op) -> bool:
    return is_elementwise(op) and op.effect is Effect.PURE and not op.regions


def made_operands(graph: TileGraph, loop: For, dots: list[Dot]) -> dict[int, Made]:
    """By dot, how the left operands of a loop are made, where all of them are.

    Nothing else may read what lies between.
    """
    out: dict[int, Made] = {}
    for dot in dots:
        made = made_operand(loop, dot.a) if operand_source(dot.a) is None else None
        if made is None:
            return {}
        out[dot.id] = made
    own = {op.id for made in out.values() for op in made.ops if op.parent is loop.body}
    known = own | {d.id for d in dots}
    for made in out.values():
        for op in (made.load, *made.vectors, *made.ops):
            inside = op.parent is loop.body
            if inside and any(u.op.id not in known for u in graph.users(op.results[0])):
                return {}
    return out


def chain_of(loop: For, dots: list[Dot], dot: Dot) -> tuple[Dot, ...]:
    """The dots that add to one accumulator, from the first on, up to one of them."""
    known = set(dots)
    chain = [dot]
    while isinstance(before := chain[-1].acc.defining_op, Dot):
        if before not in known or before.parent is not loop.body:
            break
        chain.append(before)
    return tuple(reversed(chain))


def chained(graph: TileGraph, loop: For, dots: list[Dot], dot: Dot, *, several: bool) -> str:
    """Why a dot does not simply add to what the loop carries, or ""; several: to the dot before."""
    first = chain_of(loop, dots, dot)[0] if several else dot
    if first.acc not in loop.carried:
        return "the dot's accumulator is not carried by the loop"
    if [u.op for u in graph.users(dot.acc)] != [dot]:
        return "the accumulator is read by other operations in the loop"
    uses = [u.op for u in graph.users(dot.result)]
    end = loop.body.terminator
    assert isinstance(end, Yield)
    if several and len(uses) == 1 and isinstance(uses[0], Dot) and uses[0].acc is dot.result:
        return ""
    at = loop.carried.index(first.acc)
    if len(uses) != 1 or end.values[at] is not dot.result:
        return "the dot's result is used by other operations in the loop"
    return ""
