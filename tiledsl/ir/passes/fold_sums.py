"""`acc + dot(a, b)` as a dot that adds to `acc`: the tensor core does the sum."""

from __future__ import annotations

from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.target import Target


@register_pass("fold-sums", consumes=Level.TILE, produces=Level.TILE)
def fold_sums_pass(graph: TileGraph, target: Target) -> PassReport:
    """`acc += dot(a, b)` as `dot(a, b, acc)`, where a loop carries `acc`.

    Also where `acc` is first multiplied by a factor made of a product that `a` or `b` is made of,
    as online softmax does: the factor is there when they are. What else is added to a product may
    come late, as its scale does, and be added by CUDA cores.
    """
    del target
    return PassReport("fold-sums", fold_sums(graph, only_carried=True))


def fold_sums(graph: TileGraph, *, only_carried: bool = False) -> int:
    """Rewrites the dots of a graph in place; returns how many were folded.

    A dot is folded where it starts from zero and nothing but one sum, in the same region, takes it.
    only_carried: and where what it is added to is carried by the loop around it.
    """
    count = 0
    for dot in graph.find(mma.Dot):
        users = graph.users(dot.result)
        if len(users) != 1 or not is_zero(dot.acc):
            continue
        total = users[0].op
        if not isinstance(total, ew.Add) or total.parent is not dot.parent:
            continue
        other = total.b if users[0].index == 0 else total.a
        if only_carried and not (_is_carried(other, dot) or _is_rescaled(other, dot)):
            continue
        made = mma.Dot(
            dot.a, dot.b, other, precision=dot.precision, promote=dot.promote,
            loc=dot.loc, names=(total.result.name,),
        )  # fmt: skip
        graph.replace_op(total, made)
        graph.erase(dot)
        count += 1
    return count


def _is_carried(value: Value, dot: mma.Dot) -> bool:
    """Whether the loop around a dot carries a value."""
    return isinstance(value.owner, Region) and value.owner is dot.parent


def _is_rescaled(value: Value, dot: mma.Dot) -> bool:
    """Whether it is what the loop carries times a factor that comes no later than the operands."""
    product = value.defining_op
    if not isinstance(product, ew.Mul) or product.parent is not dot.parent:
        return False
    for kept, factor in ((product.a, product.b), (product.b, product.a)):
        if _is_carried(kept, dot):
            return bool(_dots_behind(factor) & (_dots_behind(dot.a) | _dots_behind(dot.b)))
    return False


def _dots_behind(value: Value) -> set[mma.Dot]:
    """The dots of an iteration that a value follows from."""
    found, seen, todo = set[mma.Dot](), set[int](), [value]
    while todo:
        op = todo.pop().defining_op
        if op is None or op.id in seen:
            continue
        seen.add(op.id)
        if isinstance(op, mma.Dot):
            found.add(op)
        todo += op.operands
    return found


@deep
def is_zero(value: Value) -> bool:
    """Whether every element of a value is the constant 0."""
    op = value.defining_op
    if isinstance(op, tile.Splat | tile.Broadcast | ew.Cast):
        return is_zero(op.a)
    if isinstance(op, tile.Map):  # what elementwise math became
        end = op.body.terminator
        assert isinstance(end, Yield)
        made = end.values[op.results.index(value)]
        is_input = made in op.body.args[: len(op.inputs)]
        return not op.part and is_zero(op.inputs[made.index] if is_input else made)
    return isinstance(op, ew.Constant) and op.value == 0
