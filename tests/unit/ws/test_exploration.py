"""Thousands of random channel programs: what the checker accepts, no interleaving breaks.

The explorer shares nothing with the checker but the ops. Accepting a broken program is a hole of the
proof; refusing a sound one costs speed only, and how often that happens is bounded here.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.unit.ws.channel_programs import Actor
from tests.unit.ws.channel_programs import Channel
from tests.unit.ws.channel_programs import ChannelProgram
from tests.unit.ws.channel_programs import draw
from tests.unit.ws.channel_programs import graph_of
from tests.unit.ws.explore import TooMany
from tests.unit.ws.explore import explore
from tiledsl.ws.check import check

TRIPS = range(5)
"""Trips that are explored where a program's trips are an extent of the launch."""
MAX_STATES = 30_000
LEFT_OVER = ("balance", "ends with wgmmas in flight")
"""Refused though nothing breaks: what is left over at the end would break a longer program."""


def verdict(p: ChannelProgram) -> tuple[bool, str, str]:
    """Whether the checker accepts, why not, and what an interleaving does wrong. Raises TooMany."""
    graph = graph_of(p)
    found = check(graph)
    for trips in TRIPS if p.trips < 0 else (0,):
        made = explore(graph, trips, limit=MAX_STATES)
        if made.problem:
            return found.proved, found.failure, f"{made.problem} (trips {trips})"
    return found.proved, found.failure, ""


def compare(seed: int, count: int, *, any_trips: bool) -> Counter[str]:
    rng = random.Random(f"{seed} {any_trips}")
    counts: Counter[str] = Counter()
    for _ in range(count):
        p = draw(rng, any_trips=any_trips)
        try:
            accepted, why, problem = verdict(p)
        except TooMany:
            counts["too many states"] += 1
            continue
        assert not (accepted and problem), f"the checker accepts what breaks: {problem}\n{p}"
        counts["broken" if problem else "sound"] += 1
        if not accepted and not problem:
            left = any(word in why for word in LEFT_OVER)
            counts["refused for what is left over" if left else "refused"] += 1
    return counts


def test_accepted_programs_have_no_bad_interleaving() -> None:
    counts = compare(1, 90, any_trips=False) + compare(2, 60, any_trips=True)
    assert counts["broken"] > 40
    assert counts["sound"] > 40
    assert counts["refused"] <= 0.2 * counts["sound"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.parametrize("any_trips", [False, True], ids=["fixed", "any"])
def test_many_programs(seed: int, *, any_trips: bool) -> None:
    counts = compare(seed, 500 if any_trips else 1000, any_trips=any_trips)
    print(f"{dict(counts)}")
    assert counts["refused"] <= 0.2 * counts["sound"]


SINGLE_PUT = (("wait_empty", 0), ("expect", 0), ("load", 0), ("next", 0))
TAKE = (("wait_full", 0), ("issue", 0), ("next", 0), ("mma_wait", 0), ("release", 0), ("next_done", 0))  # fmt: skip


def one_channel(put: tuple, take: tuple, depth: int = 2, trips: int = -1) -> ChannelProgram:
    copy = Channel("copy", depth, 1, 4)
    return ChannelProgram((copy,), (Actor(True, put), Actor(False, take)), trips)


def test_the_explorer_knows_right_from_wrong() -> None:
    good = graph_of(one_channel(SINGLE_PUT, TAKE))
    assert explore(good, 3).problem == ""
    assert explore(good, 3).states > 50
    late = tuple(s for s in TAKE if s[0] != "release")
    assert explore(graph_of(one_channel(SINGLE_PUT, late)), 3).problem == "deadlock"
    early = (TAKE[0], TAKE[1], TAKE[4], TAKE[2], TAKE[3], TAKE[5])
    broken = graph_of(one_channel(SINGLE_PUT, early, depth=1))
    assert "copy starts while its slot is read" in explore(broken, 3).problem
    unread = graph_of(one_channel(SINGLE_PUT, ()))
    assert explore(unread, 1).problem == "the block ends while a copy is in flight"
    twice = (SINGLE_PUT[0], SINGLE_PUT[1], *SINGLE_PUT[1:])
    assert "more arrivals" in explore(graph_of(one_channel(twice, TAKE)), 1).problem


@pytest.mark.parametrize(
    ("actors", "kind"),
    [
        ((Actor(True, (SINGLE_PUT[1], SINGLE_PUT[2], SINGLE_PUT[0], SINGLE_PUT[3])), Actor(False, TAKE)), "copy"),
        (
            (
                Actor(True, (("write", 0), ("arrive_full", 0), ("wait_empty", 0), ("next", 0))),
                Actor(True, (("wait_full", 0), ("read", 0), ("release", 0), ("next", 0), ("next_done", 0))),
            ),
            "word",
        ),
        (
            (
                Actor(True, (("wait_empty", 0), ("arrive_full", 0), ("next", 0), ("write", 0))),
                Actor(False, (("wait_full", 0), ("read", 0), ("release", 0), ("next", 0), ("next_done", 0))),
            ),
            "word",
        ),
    ],
    ids=["wait behind the copy", "wait behind the arrival", "write behind the arrival"],
)  # fmt: skip
def test_holes_that_exploration_found(actors: tuple[Actor, ...], kind: str) -> None:
    """A wait for a fresh slot that its release may overtake; a word that belongs to another use."""
    empty = 1 if actors[1].is_single else 4
    p = ChannelProgram((Channel(kind, 3, 1, empty),), actors, -1)
    accepted, _, problem = verdict(p)
    assert problem
    assert not accepted
