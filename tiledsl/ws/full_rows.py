"""Whether rows fill their tile: their loads have no mask that differs inside of a row."""

from __future__ import annotations

from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Value
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.pointer import Load
from tiledsl.ir.types import TileType


def rows_are_full(graph: TileGraph) -> bool:
    """Whether each of the largest loads takes its tile whole, or leaves it out."""
    loads = [op for op in graph.find(Load) if isinstance(op.result.type, TileType)]
    sizes = [_elements(op.result) for op in loads]
    largest = [op for op, size in zip(loads, sizes, strict=True) if size == max(sizes)]
    return bool(loads) and not any(op.mask is not None and _varies(op.mask) for op in largest)


def _elements(value: Value) -> int:
    return value.type.num_elements if isinstance(value.type, TileType) else 1


def _varies(mask: Value) -> bool:
    """Whether the elements of a mask may differ inside of a row.

    An index or a loaded tile is behind it, other than of whole rows.
    """
    seen: set[Value] = set()
    todo = [mask]
    while todo:
        value = todo.pop()
        op = value.defining_op
        if value in seen or not isinstance(value.type, TileType) or isinstance(op, tile.Splat):
            continue
        if value.type.rank > 1 and value.type.shape[-1] == 1:
            continue
        seen.add(value)
        if _elements(value) > 1 and (op is None or not op.operands or op.regions):
            return True
        if isinstance(op, Load):
            return True
        todo += op.operands if op else ()
    return False
