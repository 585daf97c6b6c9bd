"""How loop bounds move along a grid axis."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Level
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId
from tiledsl.ws.growth import growth

Make = Callable[[Builder, Value, Value, Value], Value]

CASES: dict[str, tuple[Make, int | None]] = {
    "an id": (lambda b, i, n, c: i, 1),
    "another axis": (lambda b, i, n, c: n, 0),
    "sum": (lambda b, i, n, c: b.value(ew.Add(n, b.value(ew.Mul(i, c)))), 1),
    "difference": (lambda b, i, n, c: b.value(ew.Sub(n, i)), -1),
    "bounded": (lambda b, i, n, c: b.value(ew.Min(n, b.value(ew.Add(i, c)))), 1),
    "divided": (lambda b, i, n, c: b.value(ew.FloorDiv(i, c)), 1),
    "opposite parts": (lambda b, i, n, c: b.value(ew.Add(i, b.value(ew.Sub(n, i)))), None),
    "of unknown sign": (lambda b, i, n, c: b.value(ew.Mul(i, n)), None),
}


@pytest.mark.parametrize("name", CASES)
def test_growth(name: str) -> None:
    make, want = CASES[name]
    graph = TileGraph("k", Level.TILE)
    b = Builder(graph)
    values = b.value(ProgramId(0)), b.value(NumPrograms(1)), b.value(ew.Constant(64, int32))
    assert growth(make(b, *values), 0) == want


def test_growth_through_a_select() -> None:
    graph = TileGraph("k", Level.TILE)
    b = Builder(graph)
    i, n, zero = b.value(ProgramId(0)), b.value(NumPrograms(1)), b.value(ew.Constant(0, int32))
    inside = b.value(ew.Compare("lt", i, n))
    assert growth(b.value(ew.Select(inside, i, zero)), 0) == 1
