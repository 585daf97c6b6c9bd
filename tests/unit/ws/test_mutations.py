"""Seeded faults: the checker refuses each one that changes meaning, and a simulation shows it."""

from __future__ import annotations

import pytest

from tests.unit.ws.machine_kernels import NAMES
from tests.unit.ws.machine_kernels import case
from tests.unit.ws.machine_kernels import copy_of
from tests.unit.ws.mutations import MUTATIONS
from tests.unit.ws.mutations import Mutation
from tests.unit.ws.mutations import apply
from tests.unit.ws.mutations import sites
from tiledsl.ir.graph import TileGraph
from tiledsl.ws.check import check
from tiledsl.ws.check_state import Fault
from tiledsl.ws.simulate import simulate

SEEDS = 3
STORES_ONCE = "each slab is written once, so that nothing is there to wait for or to share"
LAST = "nothing follows that the cursor or the slot would matter to"
COVERED = "the other rings hold the producer back until the wgmma has been waited for"
WAITED = "another wait for no pending groups stands between, which gives the values"
EQUIVALENT: dict[tuple[str, str], tuple[int, str]] = {
    ("cooperative", "one wgmma group more in flight"): (1, WAITED),
    ("cooperative", "results before their wait"): (1, WAITED),
    ("copies", "one wgmma group more in flight"): (1, WAITED),
    ("copies", "results before their wait"): (1, WAITED),
    ("split-K", "one wgmma group more in flight"): (1, WAITED),
    ("split-K", "drop the barrier after the wait for a slab"): (1, STORES_ONCE),
    ("split-K", "drop the wait for a slab"): (1, STORES_ONCE),
    ("split-K", "one bulk store more in flight"): (1, STORES_ONCE),
    ("split-K", "warpgroups share a slab"): (1, STORES_ONCE),
    ("split-K", "a named barrier of another id"): (2, STORES_ONCE),
    ("single tile", "a cursor stays in a consumer"): (1, LAST),
    ("single tile", "a cursor moves twice"): (1, LAST),
    ("single tile", "drop the barrier after the wait for a slab"): (1, STORES_ONCE),
    ("single tile", "drop the wait for a slab"): (1, STORES_ONCE),
    ("single tile", "one bulk store more in flight"): (1, STORES_ONCE),
    ("single tile", "warpgroups share a slab"): (1, STORES_ONCE),
    ("single tile", "a named barrier of another id"): (2, STORES_ONCE),
    ("attention", "drop a release"): (1, LAST),
    ("attention", "release before the wait for the wgmma"): (3, COVERED),
    ("attention", "a cursor stays in a put"): (1, LAST),
    ("attention", "a cursor stays in a consumer"): (1, LAST),
    ("attention", "a cursor moves twice"): (2, LAST),
    ("causal attention", "drop a release"): (1, LAST),
    ("causal attention", "release before the wait for the wgmma"): (2, COVERED),
    ("causal attention", "a cursor stays in a put"): (1, LAST),
    ("causal attention", "a cursor stays in a consumer"): (1, LAST),
    ("causal attention", "a cursor moves twice"): (2, LAST),
}
"""Faults that leave the meaning as it is, by kernel and kind: at how many sites, and why."""
NEEDS_OTHER_LAUNCH = {
    ("attention", "the expect comes before the wait"): "no trips",
    ("causal attention", "the expect comes before the wait"): "no trips",
}
"""Faults that show at other trip counts than those of the simulated launch."""


def kinds(name: str) -> list[Mutation]:
    graph = copy_of(name)
    return [m for m in MUTATIONS if sites(graph, m)]


def broken(name: str, mutation: Mutation, site: int) -> TileGraph:
    graph = copy_of(name)
    apply(graph, mutation, site)
    return graph


def shows(name: str, graph: TileGraph) -> bool:
    """Whether a simulation violates an obligation or computes something else."""
    made = case(name)
    for seed in range(SEEDS):
        arguments = made.arguments()
        try:
            simulate(graph, arguments, made.grid, seed=seed)
        except (Fault, KeyError):
            return True
        if not made.is_right(arguments[made.result]):
            return True
    return False


def test_there_are_enough_kinds() -> None:
    used = {m.name for name in NAMES for m in kinds(name)}
    assert len(used) >= 50
    assert used == {m.name for m in MUTATIONS}


@pytest.mark.parametrize("name", NAMES)
def test_checker_refuses_faults(name: str) -> None:
    graph = copy_of(name)
    accepted: dict[tuple[str, str], int] = {}
    for mutation in MUTATIONS:
        for site in sites(graph, mutation):
            if check(broken(name, mutation, site)).proved:
                accepted[name, mutation.name] = accepted.get((name, mutation.name), 0) + 1
    assert accepted == {k: n for k, (n, _) in EQUIVALENT.items() if k[0] == name}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_simulation_shows_faults(name: str) -> None:
    """At the first site of each kind that the checker refuses."""
    graph = copy_of(name)
    unseen: set[tuple[str, str]] = set()
    for mutation in MUTATIONS:
        for site in sites(graph, mutation):
            made = broken(name, mutation, site)
            if check(made).proved:
                continue
            if not shows(name, made):
                unseen.add((name, mutation.name))
            break
    assert unseen == {k for k in NEEDS_OTHER_LAUNCH if k[0] == name}


@pytest.mark.slow
@pytest.mark.parametrize("key", list(EQUIVALENT), ids=" / ".join)
def test_equivalent_faults_show_in_no_simulation(key: tuple[str, str]) -> None:
    name, kind = key
    mutation = next(m for m in MUTATIONS if m.name == kind)
    for site in sites(copy_of(name), mutation):
        made = broken(name, mutation, site)
        if check(made).proved:
            assert not shows(name, made)
