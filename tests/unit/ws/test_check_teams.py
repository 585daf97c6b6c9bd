"""Threads of a role have their steps in common, and where their place decides nothing, all rows."""

from __future__ import annotations

import pytest

from tests.unit.ws.machine_kernels import copy_of
from tiledsl.ws.check_machine import RULES
from tiledsl.ws.check_points import launch_points
from tiledsl.ws.check_program import cut_down
from tiledsl.ws.check_run import Run
from tiledsl.ws.check_trace import Tracer


def run_of(name: str) -> Run:
    graph = copy_of(name)
    return Run(cut_down(graph, RULES), int(graph.facts.get("cluster_size", 1)))


def sizes(run: Run) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for team in run.teams:
        out.setdefault(team[0].role.name, []).append(len(team))
    return out


@pytest.mark.parametrize(
    ("name", "producer", "consumer"),
    [
        ("cooperative", [1], [2]),
        ("attention", [1], [2]),
        ("causal attention", [1], [1, 1]),
        ("ping-pong", [1], [1, 1]),
        ("cluster", [2], [2, 2]),
        ("split-K", [1, 1], [1, 1, 1, 1]),
    ],
)
def test_teams(name: str, producer: list[int], consumer: list[int]) -> None:
    """Warpgroups that take turns, or have their own bounds, differ, and CTAs that share a sum."""
    found = sizes(run_of(name))
    assert found["producer"] == producer
    assert found["consumer"] == consumer


def test_all_threads_of_a_role_have_their_steps_in_common() -> None:
    run = run_of("cluster")
    blocks = {team[0].role.name: run.block(team) for team in run.teams}
    assert all(run.block(team) is blocks[team[0].role.name] for team in run.teams)
    assert [t.number for t in run.threads if t.role.name == "consumer"] == [0, 1, 2, 3]


def test_who_takes_turns_is_followed_in_its_own_place() -> None:
    run = run_of("ping-pong")
    run.start(launch_points(run.code, 1, 1).few[1])
    rows = Tracer(run, run.teams).traces()
    first, second = (r for r, t in zip(rows, run.teams, strict=True) if not t[0].single)
    assert first != second
