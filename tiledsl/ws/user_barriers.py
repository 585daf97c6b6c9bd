"""Barriers that kernels ask for, where nothing is left for them to order."""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.pointer import Barrier

MEMORY = (Effect.READ, Effect.WRITE, Effect.SYNC)


def drop_user_barriers(graph: TileGraph) -> list[str]:
    """Removes `tl.debug_barrier()` where all accesses are blocks of tensors.

    The compiler orders those itself; pointers and atomics keep the barriers. Returns notes.
    """
    barriers: list[Barrier] = graph.find(Barrier)
    if not barriers or any(_needs_order(op) for op in graph.walk()):
        return []
    for op in barriers:
        graph.erase(op)
    where = ", ".join(op.loc.short for op in barriers if op.loc)
    return [f"debug_barrier: not needed, blocks of tensors are ordered anyway ({where})"]


def _needs_order(op: Op) -> bool:
    return op.effect in MEMORY and not isinstance(op, Barrier | Load | Store)
