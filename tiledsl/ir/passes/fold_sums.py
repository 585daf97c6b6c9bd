"""`acc + dot(a, b)` as a dot that adds to `acc`: the tensor core does the sum."""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tile
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.target import Target


@register_pass("fold-sums", consumes=Level.TILE, produces=Level.TILE)
def fold_sums_pass(graph: TileGraph, target: Target) -> PassReport:
    """`acc += dot(a, b)` as `dot(a, b, acc)`, where a loop carries `acc`.

    What else is added to a product may come late, as its scale does, and be added by CUDA cores.
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
        if only_carried and not (isinstance(other.owner, Region) and other.owner is dot.parent):
            continue
        made = mma.Dot(
            dot.a, dot.b, other, precision=dot.precision, promote=dot.promote,
            loc=dot.loc, names=(total.result.name,),
        )  # fmt: skip
        graph.replace_op(total, made)
        graph.erase(dot)
        count += 1
    return count


def is_zero(value: Value) -> bool:
    """Whether every element of a value is the constant 0."""
    op = value.defining_op
    if isinstance(op, tile.Splat | tile.Broadcast | ew.Cast):
        return is_zero(op.a)
    return isinstance(op, ew.Constant) and op.value == 0
