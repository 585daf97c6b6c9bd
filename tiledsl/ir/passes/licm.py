"""Loop-invariant code motion."""

from __future__ import annotations

from tiledsl.ir.analysis.constants import trip_count
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.passes.manager import PassReport
from tiledsl.ir.passes.manager import register_pass
from tiledsl.target import Target


@register_pass("licm", consumes=Level.ALL, produces=Level.ALL)
def licm(graph: TileGraph, target: Target) -> PassReport:
    """Moves ops whose operands do not change out of loops, inner loops first.

    Pure ops move always: they cannot fail. An op that reads memory moves when it is sure to run
    (the loop's trip count is known and above zero) and nothing in the loop writes or synchronises;
    tensors may share memory, so a write to any tensor counts.
    """
    del target
    return PassReport("licm", _region(graph, graph.body))


def _region(graph: TileGraph, region: Region) -> int:
    moved = 0
    for op in list(region.ops):
        for inner in op.regions:
            moved += _region(graph, inner)
        if op.is_loop:
            moved += _hoist(graph, op)
    return moved


def _hoist(graph: TileGraph, loop: Op) -> int:
    may_read = (trip_count(loop) or 0) > 0 and not any(
        op.effect in (Effect.WRITE, Effect.SYNC) for r in loop.regions for op in r.walk()
    )
    varying = {arg for r in loop.regions for arg in r.args}
    moved = 0
    for region in loop.regions:
        for op in list(region.ops):
            is_movable = op.effect is Effect.PURE or (op.effect is Effect.READ and may_read)
            if is_movable and _is_invariant(op, varying):
                graph.move_before(loop, op)
                moved += 1
            else:
                varying.update(op.results)
    return moved


def _is_invariant(op: Op, varying: set[Value]) -> bool:
    """No operand, nor anything that the op's regions read, is defined in the loop."""
    inner = [o for r in op.regions for o in r.walk()]
    return not any(v in varying for o in (op, *inner) for v in o.operands)
