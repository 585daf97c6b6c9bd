"""Builder: appends ops to a region of a graph with the current source location."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Generator
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TypeVar

from tiledsl.errors import SourceLoc
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value

T = TypeVar("T", bound=Op)


class Builder:
    """Adds ops at an insertion point.

    region: where ops go.  index: position in the region, or None for its end.  loc: location given
    to new ops.
    apply: calls a function of the user on values, its ops going to the insertion point (set by the
    frontend).
    """

    apply: Callable[[object, Sequence[object]], object] | None = None

    def __init__(
        self,
        graph: TileGraph,
        region: Region | None = None,
        index: int | None = None,
        loc: SourceLoc | None = None,
    ) -> None:
        self.graph = graph
        self.region = region if region is not None else graph.body
        self.index = index
        self.loc = loc

    def add(self, op: T) -> T:
        """Inserts an op (built by the caller) and returns it."""
        if op.loc is None:
            op.loc = self.loc
        if self.index is None:
            self.graph.append(self.region, op)
        else:
            self.graph.insert(self.region, self.index, op)
            self.index += 1
        return op

    def value(self, op: Op, name: str = "") -> Value:
        """Inserts an op and returns its only result, named."""
        self.add(op)
        if name:
            op.result.name = name
        return op.result

    @contextmanager
    def at(self, region: Region, index: int | None = None) -> Generator[Builder]:
        """Moves the insertion point for the duration of a block."""
        saved = (self.region, self.index)
        self.region, self.index = region, index
        try:
            yield self
        finally:
            self.region, self.index = saved

    @contextmanager
    def located(self, loc: SourceLoc | None) -> Generator[Builder]:
        """Uses another source location for the duration of a block."""
        saved, self.loc = self.loc, loc or self.loc
        try:
            yield self
        finally:
            self.loc = saved
