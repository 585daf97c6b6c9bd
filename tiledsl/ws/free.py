"""Tiles that cost nothing: indexes, masks and addresses made of scalars and coordinates alone.

They have no layout of their own: every loop that reads them makes them anew at its own places.
"""

from __future__ import annotations

import functools

from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.types import TileType

VIEWS = (tile.Splat, tile.Arange, tile.Broadcast, tile.ExpandDims, tile.Transpose)


def is_elementwise(op: Op) -> bool:
    """Whether an op makes each element of a tile from the elements at the same place."""
    results = op.results
    return _is_math(type(op)) and bool(results) and isinstance(results[0].type, TileType)


@functools.cache
def _is_math(kind: type[Op]) -> bool:
    return kind.opcode.startswith("elementwise.") or issubclass(kind, pointer.Add)


def is_index(op: Op) -> bool:
    """Elementwise math on integers, bools and addresses, cheaper to repeat than to keep."""
    if not is_elementwise(op) or (isinstance(op, Hint) and op.kept):
        return False
    type_ = op.result.type
    return isinstance(type_, TileType) and not type_.dtype.is_float


def only_moves(graph: TileGraph) -> bool:
    """Whether tiles are loaded and stored as they are, but for integers."""
    return all(
        isinstance(op, VIEWS) or is_index(op) or isinstance(op, memory.Load | pointer.Load)
        for op in graph.walk()
        for r in op.results
        if isinstance(r.type, TileType)
    )


class FreeTiles:
    """Answers for the values of one graph, remembered while it does not change."""

    def __init__(self) -> None:
        self._known: dict[Value, bool] = {}

    def __call__(self, value: Value) -> bool:
        """Whether a tile depends on scalars and coordinates only, through index math."""
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._find(value)
        return found

    @deep
    def _find(self, value: Value) -> bool:
        op = value.defining_op
        if op is None or not isinstance(value.type, TileType):
            return False
        if isinstance(op, VIEWS) or is_index(op):
            return all(self(v) for v in op.operands if isinstance(v.type, TileType))
        return False
