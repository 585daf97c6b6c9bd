"""What is followed once for all tiles with the same scalars is what would be followed each time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.ws.machine_kernels import NAMES
from tests.unit.ws.machine_kernels import copy_of
from tiledsl.ws.check_machine import RULES
from tiledsl.ws.check_points import launch_points
from tiledsl.ws.check_points import more_points
from tiledsl.ws.check_program import cut_down
from tiledsl.ws.check_run import Run
from tiledsl.ws.check_steps import BRANCH
from tiledsl.ws.check_steps import LOOP
from tiledsl.ws.check_steps import REPEAT
from tiledsl.ws.check_steps import WHILE
from tiledsl.ws.check_steps import Block
from tiledsl.ws.check_trace import Tracer


def blocks(block: Block) -> list[Block]:
    """A block and those within."""
    inner: dict[int, Any] = {
        LOOP: lambda x: [x.body],
        WHILE: lambda x: [x.before, x.body],
        BRANCH: lambda x: [x.then[0], x.orelse[0]],
    }
    found = [b for kind, item in block.items for b in inner.get(kind, lambda _: [])(item)]
    return [block, *(b for f in found for b in blocks(f))]


@pytest.mark.parametrize("name", NAMES)
def test_each_tile_does_what_it_would_do_by_itself(name: str) -> None:
    graph = copy_of(name)
    code, size = cut_down(graph, RULES), int(graph.facts.get("cluster_size", 1))
    run = Run(code, size)
    found = [b for team in run.teams for b in blocks(run.block(team))]
    walked = [b.walked for b in found]
    points = launch_points(code, size, 1)
    for point in (*points.few, *points.many, *more_points(code, size)):
        traces: list[Any] = []
        for ways in (walked, [b.items for b in found]):
            for b, way in zip(found, ways, strict=True):
                b.walked = way
            run.start(point)
            traces.append(Tracer(run, run.teams, run.threads[-1]).traces())
        assert traces[0] == traces[1]


def test_tiles_are_followed_once() -> None:
    """Of the matmuls and of attention: the part behind where the tile comes from."""
    for name in ("cooperative", "ping-pong", "attention"):
        graph = copy_of(name)
        run = Run(cut_down(graph, RULES), 1)
        found = [b for team in run.teams for b in blocks(run.block(team))]
        assert any(kind == REPEAT for b in found for kind, _ in b.walked)
