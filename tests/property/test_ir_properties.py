"""Random graphs print and parse to the same text; passes keep what they compute, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck
from hypothesis import given
from hypothesis import settings

from tests.property.graphs import arguments
from tests.property.graphs import graphs
from tests.unit.ir.harness import same_bits
from tiledsl.errors import SourceLoc
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.interp import interpret
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.parser import parse_graph
from tiledsl.ir.passes.manager import passes
from tiledsl.ir.passes.manager import run_passes
from tiledsl.ir.printer import print_graph
from tiledsl.ir.verifier import verify

GRID = (2, 1, 1)
PIPELINE = ["canonicalize", "cse", "licm", "canonicalize", "cse", "dce"]
ON_TILES = sorted(
    n for n, p in passes().items() if Level.TILE & p.consumes and p.produces & Level.TILE
)
CONFIG = settings(
    deadline=None,
    max_examples=80,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def results(graph: TileGraph, args: dict[str, object]) -> dict[str, np.ndarray]:
    """Tensors after a run on copies of the arguments."""
    fresh = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    interpret(graph, fresh, GRID)
    return {k: v for k, v in fresh.items() if isinstance(v, np.ndarray)}


def locations(graph: TileGraph) -> set[SourceLoc]:
    return {op.loc for op in graph.walk() if op.loc is not None}


def unlocated(graph: TileGraph) -> list[Op]:
    return [op for op in graph.walk() if op.loc is None and not op.regions and not op.is_terminator]


@CONFIG
@given(graph=graphs())
def test_text_reads_back(graph: TileGraph) -> None:
    verify(graph)
    text = print_graph(graph)
    again = parse_graph(text)
    verify(again)
    assert print_graph(again) == text
    bare = print_graph(graph, locations=False)
    assert print_graph(parse_graph(bare)) == bare


@CONFIG
@given(graph=graphs())
def test_clones_are_equal_and_apart(graph: TileGraph) -> None:
    text = print_graph(graph)
    clone = graph.clone()
    verify(clone)
    assert print_graph(clone) == text
    run_passes(clone, PIPELINE)
    verify(graph)
    assert print_graph(graph) == text


@pytest.mark.parametrize("name", [*ON_TILES, "pipeline"])
@CONFIG
@given(graph=graphs(), args=arguments())
def test_passes_keep_results(name: str, graph: TileGraph, args: dict[str, object]) -> None:
    want = results(graph, args)
    clone = graph.clone()
    unknown = len(unlocated(clone))
    run_passes(clone, PIPELINE if name == "pipeline" else [name], check=2)
    got = results(clone, args)
    assert all(same_bits(got[k], want[k]) for k in want), print_graph(clone)
    assert locations(clone) <= locations(graph)
    assert len(unlocated(clone)) <= unknown


@CONFIG
@given(graph=graphs())
def test_the_pipeline_reaches_a_fixed_point(graph: TileGraph) -> None:
    run_passes(graph, PIPELINE * 2)
    before = print_graph(graph)
    reports = run_passes(graph, ["canonicalize", "cse", "dce"])
    assert [r.changes for r in reports] == [0, 0, 0], before
