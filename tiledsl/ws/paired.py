"""Right operands with paired rows, so that 8-bit weights reach the next dot without a shuffle.

A lane holds pairs of columns of an accumulator, but of a left operand of 8-bit elements four
columns side by side. Where a product is rounded to 8 bits and multiplied again (attention), the
rows of its right operand are loaded in another order: the first two of every four to the first half
of the slot, the others to the second half. Then a lane's two pairs are four columns side by side,
and rounding them is all that is left to do. The tensor map cuts the rows into fours for this, so
that their number must be a multiple of 4.
"""

from __future__ import annotations

from dataclasses import replace

from tiledsl.dtypes import float32
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.mma import Dot
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.tile import Reshape
from tiledsl.ir.ops.tile import Transpose
from tiledsl.ir.specs import TMA_MAX_RANK
from tiledsl.ir.types import TileType
from tiledsl.ws.flow_parts import FlowDot
from tiledsl.ws.flow_parts import Rounded
from tiledsl.ws.free import FreeTiles
from tiledsl.ws.free import is_elementwise
from tiledsl.ws.operands import OperandLoad


def pair_rows(
    graph: TileGraph,
    loop: For,
    dots: list[FlowDot],
    inner: dict[int, OperandLoad],
    notes: list[str],
) -> list[FlowDot]:
    """The dots of a loop, and its loads in `inner`; rows are paired where that spares a shuffle.

    notes: gets a line for every operand that is shuffled.
    """
    rounded: dict[int, Rounded] = {}
    for receiver in dots:
        a = receiver.dot.a
        assert isinstance(a.type, TileType)
        if not receiver.register_a or not a.type.dtype.is_fp8:
            continue
        found = _pair(graph, loop, receiver, dots, inner)
        if isinstance(found, str):
            at = receiver.dot.loc.short if receiver.dot.loc else "?"
            notes.append(f"{at}: bytes of the left operand move between lanes: {found}")
        else:
            rounded[receiver.dot.id] = found
    return [
        replace(
            d,
            loads=tuple(inner.get(o.op.id, o) for o in d.loads),
            rounded=rounded.get(d.dot.id),
        )
        for d in dots
    ]


def _pair(
    graph: TileGraph,
    loop: For,
    receiver: FlowDot,
    dots: list[FlowDot],
    inner: dict[int, OperandLoad],
) -> Rounded | str:
    """Pairs the rows behind a left operand of 8-bit floats, or says why they stay in order."""
    cast = receiver.dot.a.defining_op
    if not isinstance(cast, Cast) or cast.parent is not loop.body:
        return "it is not rounded in the loop"
    source = cast.a.type
    if not isinstance(source, TileType) or source.dtype != float32:
        return f"it is rounded from {source}"
    users = [u.op for u in graph.users(cast.result)]
    if not all(any(u is d.dot and d.register_a for d in dots) for u in users):
        return "others than products read the rounded tile"
    alike = _lies_alike(graph, loop, cast.a)
    if alike is None:
        return "a tile that has to lie like it goes beyond the iteration or has another layout"
    makers = [op.id for v in alike if isinstance(op := v.defining_op, Dot)]
    found = [d for d in dots if d.dot.id in makers]
    if len(makers) != 1 or len(found) != 1 or not found[0].zero_acc:
        return "it is not made from one product that starts from zero"
    if not found[0].loads:
        return "the first product's right operand is not loaded"
    load = found[0].loads[-1]
    problem = _problem(graph, loop, found[0], load) if load.op.id in inner else "no load"
    if problem:
        return problem
    inner[load.op.id] = replace(load, smem=replace(load.smem, paired=True))
    readers = [u.op for v in alike for u in graph.users(v)]
    return Rounded(cast.id, frozenset(op.id for op in readers if isinstance(op, Reshape)))


def _lies_alike(graph: TileGraph, loop: For, start: Value) -> list[Value] | None:
    """The tiles that elementwise math ties to one; None where they go beyond the iteration."""
    seen, work = {start}, [start]
    free = FreeTiles()
    while work:
        v = work.pop()
        op = v.defining_op
        if op is None or op.parent is not loop.body or isinstance(op, Load):
            return None
        ops = [op, *(u.op for u in graph.users(v))]
        if any(v in o.operands and not _is_read(o, v) for o in ops[1:]):
            return None
        for other in ops:
            if not is_elementwise(other):
                continue
            for w in (*other.operands, *other.results):
                if w not in seen and _same_shape(w, v) and not free(w):
                    seen.add(w)
                    work.append(w)
    return list(seen)


def _is_read(op: Op, v: Value) -> bool:
    """Whether an op uses a tile without a say in how it lies."""
    if isinstance(op, Dot):
        return v is op.a
    is_sum = isinstance(op, Reshape) and regrouped(op) is not None
    return is_elementwise(op) or isinstance(op, Reduce) or is_sum


def regrouped(op: Reshape) -> tuple[int, ...] | None:
    """The shape [M, N / 16, 4, 4] of a reshape to [M, N / 8, 4, 2], as pass defer-sums makes it.

    Sums over the dimensions 1 and 3 then stay inside of a lane with paired columns, too.
    """
    match op.shape:
        case (rows, blocks, 4, 2) if blocks % 2 == 0:
            return (rows, blocks // 2, 4, 4)
        case _:
            return None


def _same_shape(a: Value, b: Value) -> bool:
    return (
        isinstance(a.type, TileType)
        and isinstance(b.type, TileType)
        and a.type.shape == b.type.shape
    )


def _problem(graph: TileGraph, loop: For, source: FlowDot, load: OperandLoad) -> str:
    """Why the rows of a right operand cannot be paired, or "".

    Only this dot may read the tile, transposed, and its rows have to come in whole fours.
    """
    transposed = source.dot.b.defining_op
    if not isinstance(transposed, Transpose) or transposed.a is not load.op.result or source.bounds:
        return "the first product's right operand is no transposed tile"
    readers = [u.op for u in graph.users(load.op.result)]
    if readers != [transposed] or [u.op for u in graph.users(transposed.result)] != [source.dot]:
        return f"others read {load.name}"
    tensor = load.block.tensor
    t = tensor_type(tensor, "load")
    outer = [d for d in range(t.rank) if d != t.inner_dim]
    rows = [d for d in outer if d not in load.block.squeeze]
    if t.rank >= TMA_MAX_RANK or load.smem.major != 1 or rows != outer[-1:]:
        return f"a tensor map of {tensor.name or load.name} cannot be cut into fours of rows"
    in_fours = tensor.defining_op is None and tensor.name in graph.facts.get("fours", ())
    if not in_fours or load.smem.shape[0] % 32:
        return f"the rows of {tensor.name or load.name} do not come in fours"
    if not _by_four(load.block.offsets[rows[0]], loop):
        return f"the first row of {load.name} may be no multiple of 4"
    return ""


@deep
def _by_four(v: Value, loop: For) -> bool:
    """Whether an offset is a multiple of 4 for certain."""
    if v is loop.iv:
        return _by_four(loop.lower, loop) and _by_four(loop.step, loop)
    op = v.defining_op
    if isinstance(op, Constant):
        return isinstance(op.value, int) and op.value % 4 == 0
    if isinstance(op, Add | Sub):
        return _by_four(op.a, loop) and _by_four(op.b, loop)
    if isinstance(op, Mul):
        return _by_four(op.a, loop) or _by_four(op.b, loop)
    return False
