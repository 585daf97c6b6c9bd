"""Which constexprs that the compiler picks say how much of the work a program does."""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Value
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ir.specs import AutoInt


def grid_factors(graph: TileGraph) -> tuple[str, ...]:
    """Names of `tl.auto` constexprs by which a number of the program is multiplied.

    graph: as the frontend leaves it, before passes fold and merge constants; those that came from
    such a constexpr are plain numbers afterwards. A kernel that asks how many programs there are
    walks over its work with any number of them: it has none.
    """
    chosen: dict[object, str] = {}
    for op in graph.find(Constant):
        if isinstance(op.value, AutoInt):
            chosen[op] = op.value.name
            op.value = int(op.value)
    if graph.find(NumPrograms):
        return ()
    found: dict[str, None] = {}
    for product in graph.find(Mul):
        for factor, other in ((product.a, product.b), (product.b, product.a)):
            names = [chosen[op] for op in _sources(factor) if op in chosen]
            if names and any(isinstance(op, ProgramId) for op in _sources(other)):
                found |= dict.fromkeys(names)
    return tuple(found)


def _sources(value: Value) -> set[object]:
    """The ops that a value is computed by, without those that read memory."""
    seen: set[object] = set()
    waiting = [value]
    while waiting:
        op = waiting.pop().defining_op
        if op is not None and op not in seen and op.effect is Effect.PURE:
            seen.add(op)
            waiting += op.operands
    return seen
