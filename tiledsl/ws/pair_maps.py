"""Sums and products of 16-bit floats, two elements at once.

A map computes in f32 and rounds each op to the element's type. Where it ends with ops that add,
subtract and multiply elements of one 16-bit type, these become a map of their own over pairs of
registers, with instructions for two elements: they round as the exact result does, and so does a
sum or a product of two such numbers that f32 has held before.
"""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.mma_warp import WarpDot
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

_PAIRED = (ew.Add, ew.Sub, ew.Mul)
_TYPES = ("f16", "bf16")


def pair_maps(graph: TileGraph, region: Region) -> int:
    """Splits the maps of a role that has dots; returns how many."""
    if not any(isinstance(op, mma.Dot | WarpDot) for op in region.walk()):
        return 0
    maps = [op for op in region.walk() if isinstance(op, tile.Map)]
    return sum(_split(graph, op) for op in maps)


def _split(graph: TileGraph, op: tile.Map) -> bool:
    """Puts a map over pairs in the place of a map, behind one for each thing that it computes."""
    if op.part or op.in_place >= 0 or op.unless_one >= 0 or len(op.out_dtypes) != 1:
        return False
    if op.out_dtypes[0].name not in _TYPES or op.layout is None or op.layout.num_regs % 2:
        return False
    paired = _tail(op)
    if not paired:
        return False
    inputs: list[Value] = []
    follows: list[tuple[int | None, ...]] = []
    body = Region()
    mapping: dict[Value, Value] = {}
    for leaf in _leaves(paired):
        made = leaf.defining_op
        if isinstance(made, ew.Constant):
            clone = clone_op(made, mapping)
            clone.parent = body
            body.ops.append(clone)
            continue
        if made is None:
            inputs.append(op.inputs[leaf.index])
            follows.append(op.follows[leaf.index])
        else:
            before = _before(op, leaf)
            graph.insert_before(op, before)
            inputs.append(before.results[0])
            follows.append(tuple(range(len(op.shape))))
        mapping[leaf] = body.add_arg(leaf.type, leaf.name)
    for dim in range(len(op.shape)):
        arg = op.body.args[len(op.inputs) + dim]
        body.add_arg(arg.type, arg.name)
    end = op.body.ops[-1]
    for inner in (*paired, end):
        clone = clone_op(inner, mapping)
        clone.parent = body
        body.ops.append(clone)
    new = tile.Map(
        tuple(inputs), op.shape, op.layout, tuple(follows), op.out_dtypes,
        body=body, pairs=True, loc=op.loc, names=(op.results[0].name,),
    )  # fmt: skip
    graph.replace_op(op, new)
    return True


def _tail(op: tile.Map) -> list[Op]:
    """The ops at the end of a body that pairs can be computed with, in order; none of the inputs.

    All that uses one of them is among them.
    """
    end = op.body.ops[-1]
    assert isinstance(end, Yield)
    dtype = ScalarType(op.out_dtypes[0])
    users: dict[Value, list[Op]] = {}
    for inner in op.body.ops:
        for value in inner.operands:
            users.setdefault(value, []).append(inner)
    out: list[Op] = []
    for inner in reversed(op.body.ops[:-1]):
        is_paired = isinstance(inner, _PAIRED) and inner.result.type == dtype
        if is_paired and all(u is end or u in out for u in users.get(inner.result, [])):
            out.insert(0, inner)
    if not all(_is_pairable(op, leaf) for leaf in _leaves(out)):
        return []
    return out if out and end.values[0] is out[-1].results[0] else []


def _leaves(ops: list[Op]) -> list[Value]:
    """What ops take that others make."""
    made = {op.results[0] for op in ops}
    return list(dict.fromkeys(v for op in ops for v in op.operands if v not in made))


def _is_pairable(op: tile.Map, leaf: Value) -> bool:
    """Whether a value can be had in pairs: a computed one, a constant, or an input."""
    if leaf.defining_op is not None:
        return True
    if leaf.index >= len(op.inputs):
        return False  # a coordinate
    type_ = op.inputs[leaf.index].type
    return isinstance(type_, ScalarType | TileType) and type_.dtype == op.out_dtypes[0]


def _before(op: tile.Map, leaf: Value) -> tile.Map:
    """The map that gives a value of the body."""
    needed: set[int] = set()
    todo = [leaf]
    while todo:
        made = todo.pop().defining_op
        if made is not None and made.id not in needed:
            needed.add(made.id)
            todo += made.operands
    ops = [inner for inner in op.body.ops if inner.id in needed]
    used = {v for inner in ops for v in inner.operands}
    kept = [n for n in range(len(op.inputs)) if op.body.args[n] in used]
    body = Region()
    mapping: dict[Value, Value] = {}
    args = [op.body.args[n] for n in kept] + op.body.args[len(op.inputs) :]
    for arg in args:
        mapping[arg] = body.add_arg(arg.type, arg.name)
    for inner in (*ops, Yield((leaf,))):
        clone = clone_op(inner, mapping)
        clone.parent = body
        body.ops.append(clone)
    return tile.Map(
        tuple(op.inputs[n] for n in kept), op.shape, op.layout,
        tuple(op.follows[n] for n in kept), op.out_dtypes,
        body=body, loc=op.loc, names=(leaf.name or op.results[0].name,),
    )  # fmt: skip
