"""Simulations that stop at a line, an op or a role, and say what slots and barriers hold."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.ws.machine_kernels import case
from tests.unit.ws.machine_kernels import copy_of
from tests.unit.ws.mutations import MUTATIONS
from tests.unit.ws.mutations import apply
from tests.unit.ws.mutations import sites
from tiledsl.errors import LaunchError
from tiledsl.ws.check_state import Fault
from tiledsl.ws.stepping import Stepping


def start(name: str, seed: int = 1) -> tuple[Stepping, dict[str, np.ndarray]]:
    made = case(name)
    arguments = made.arguments()
    return Stepping(made.graph, arguments, made.grid, seed=seed), arguments


def test_what_is_in_a_slot() -> None:
    run, arguments = start("cooperative")
    empty = run_to_first_wait(run).slot("b", 2)
    assert "nothing was written" in str(empty)
    assert np.isnan(empty.data.astype(np.float32)).all()
    stop = run.until(role="consumer", op="mma.wait")
    assert stop is not None
    assert "matmul_kernels.py" in stop.place
    view = run.slot("a", 0)
    assert view.use == 0
    assert not view.under_way
    want = arguments["a"][:128, :64].astype(np.float32)
    np.testing.assert_array_equal(view.data.astype(np.float32), want)
    assert "use 0, 128x64 by matmul_kernels.py" in str(view)


def run_to_first_wait(run: Stepping) -> Stepping:
    assert run.until(role="producer", op="barrier.wait") is not None
    return run


def test_a_copy_is_on_its_way_until_its_barrier_says_so() -> None:
    run, _ = start("cooperative")
    assert run.until(role="producer", op="tma.load", count=2) is not None
    seen = {run.slot("a", 0).under_way}
    full = run.barrier("a_b_full", 0)
    assert (full.phases, full.arrived) in ((0, 1), (1, 0))
    assert run.until(role="consumer", op="mma.issue") is not None
    seen.add(run.slot("a", 0).under_way)
    assert seen == {True, False}
    assert run.slot("a", 0).readers
    assert run.barrier("a_b_full", 0).phases == 1
    assert "phase 1 (parity 1), 0 of 1 arrivals, 0 bytes to come" in str(run.barrier("a_b_full", 0))


def test_breakpoints_by_line_and_role() -> None:
    run, arguments = start("single tile")
    stop = run.until(role="producer", op="tma.load")
    assert stop is not None
    assert stop.op == "tma.load"
    again = run.until(line=stop.line)
    assert again is not None
    assert again.line == stop.line
    assert {s.role.split()[0] for s in run.threads()} == {"producer", "consumer"}
    assert run.until(op="tma.store", count=10_000) is None, "the launch ends before"
    assert case("single tile").is_right(arguments["c"])


def test_names_that_do_not_exist_are_errors() -> None:
    run, _ = start("cooperative")
    with pytest.raises(LaunchError, match="has not started"):
        run.slot("a", 0)
    run.until()
    with pytest.raises(LaunchError, match="nothing is called 'k'; there are a, b"):
        run.slot("k", 0)
    with pytest.raises(LaunchError, match="a_ring has 3 slots, got 7"):
        run.slot("a", 7)


def test_stepping_goes_the_way_of_the_simulation() -> None:
    """A fault is met on the way; until then everything can be looked at."""
    mutation = next(m for m in MUTATIONS if m.name == "release before the wait for the wgmma")
    graph = copy_of("cooperative")
    apply(graph, mutation, sites(graph, mutation)[0])
    made = case("cooperative")
    run = Stepping(graph, made.arguments(), made.grid)
    with pytest.raises(Fault, match="is written while it may still be read"):
        run.until(op="no such op")
    assert any(s.role == "producer" for s in run.threads())
