"""Which arguments a program stores to, as far as the pointers of its stores can be followed."""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Value
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType


def stored_arguments(graph: TileGraph) -> tuple[str, ...]:
    """Names of tensors and pointers that the graph writes through, in the order of the arguments.

    A pointer that a loop carries or that was loaded from memory is not followed.
    """
    arguments = {a: a.name for a in graph.args if _is_memory(a)}
    found: set[str] = set()
    for op in graph.walk():
        if op.effect is not Effect.WRITE or not op.operands:
            continue
        seen: set[Value] = set()
        waiting = [op.operands[0]]  # the tensor or the pointers; the values come after
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in arguments:
                found.add(arguments[value])
            elif value.defining_op is not None and value.defining_op.effect is Effect.PURE:
                waiting += value.defining_op.operands
    return tuple(name for name in arguments.values() if name in found)


def _is_memory(value: Value) -> bool:
    if isinstance(value.type, ScalarType):
        return value.type.dtype.is_pointer
    return isinstance(value.type, TensorType)
