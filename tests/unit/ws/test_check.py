"""The checker accepts what the compiler makes, says what it proved, and refuses what it cannot know."""

from __future__ import annotations

import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import meta
from tests.unit.ws.machine_kernels import NAMES
from tests.unit.ws.machine_kernels import case
from tests.unit.ws.machine_kernels import copy_of
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.debug import Print
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import TileType
from tiledsl.report import render_report
from tiledsl.ws.check import OBLIGATIONS
from tiledsl.ws.check import check
from tiledsl.ws.check_bounds import Bounds
from tiledsl.ws.check_points import first_repeat
from tiledsl.ws.check_points import launch_points
from tiledsl.ws.check_points import units_of_trips
from tiledsl.ws.check_program import FOR
from tiledsl.ws.check_program import cut_down
from tiledsl.ws.check_run import RULES
from tiledsl.ws.check_run import Run
from tiledsl.ws.check_run import handlers_of
from tiledsl.ws.check_steps import WAITS
from tiledsl.ws.check_steps import Table
from tiledsl.ws.simulate import simulate


@pytest.mark.parametrize("name", NAMES)
def test_kernels_are_proved(name: str) -> None:
    made = case(name).kernel.certificate
    assert made is not None
    assert made.failure == ""
    assert [o.name for o in made.obligations] == list(OBLIGATIONS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_simulation_gives_the_result(name: str, seed: int) -> None:
    made = case(name)
    arguments = made.arguments()
    simulate(made.graph, arguments, made.grid, seed=seed)
    assert made.is_right(arguments[made.result])


def test_simulations_agree_bit_for_bit() -> None:
    """The order in which threads and copies go on does not matter."""
    made = case("ping-pong")
    results: list[np.ndarray] = []
    for seed in range(3):
        arguments = made.arguments()
        simulate(made.graph, arguments, made.grid, seed=seed)
        results.append(arguments[made.result].view(np.uint16))
    assert all((r == results[0]).all() for r in results)


def test_report_shows_the_certificate() -> None:
    text = render_report(case("cooperative").kernel)
    assert "proof:" in text
    assert "proved for all trip counts and interleavings" in text
    assert "matmul_kernels.py" in text


def test_loops_repeat_their_state() -> None:
    made = case("ping-pong").kernel.certificate
    assert made is not None
    assert len(made.steady) == 2
    assert all("each trip repeats the one before" in line for line in made.steady)


def test_unknown_ops_are_not_accepted() -> None:
    graph = copy_of("cooperative")
    role = next(o for o in graph.body.ops if isinstance(o, Role) and not o.single_thread)
    op = Print(())
    op.parent = role.body
    role.body.ops.insert(0, op)
    assert "does not know op debug.print" in check(graph).failure


def test_a_loop_that_never_ends_is_refused() -> None:
    graph = copy_of("cooperative")
    for loop in [o for o in graph.body.walk() if isinstance(o, For)]:
        made = loop.step.defining_op
        if isinstance(made, Constant):
            made.value = 0
    assert "step 0" in check(graph).failure


def test_a_program_without_barriers_of_its_own_has_nothing_to_hang_on() -> None:
    graph = copy_of("single tile")
    for role in [o for o in graph.body.ops if isinstance(o, Role)]:
        role.body.ops[:] = []
        assert not any(isinstance(o, barrier.MbarrierWait) for o in role.body.walk())
    assert check(graph).proved


@pytest.mark.parametrize(
    ("items", "at"),
    [([1, 1], 0), ([3, 1, 1], 1), ([5, 1, 2, 1, 2], 1), ([1, 2, 3], -1), ([], -1)],
)
def test_first_repeat(items: list[int], at: int) -> None:
    assert first_repeat([([i], []) for i in items]) == at


# fmt: off
@tiledsl.jit
def counted(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, K,
            BM: tl.constexpr = 128, BN: tl.constexpr = 64, BK: tl.constexpr = 48):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, tl.cdiv(K, BK)):
        acc = tl.dot(a.load((m, i * BK), (BM, BK)), b.load((i * BK, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


@pytest.mark.parametrize("options", [{"mma_depth": 2, "num_consumers": 1}, {"ping_pong": True}])
def test_loops_that_count_blocks_are_run_for_many_trips(options: dict[str, object]) -> None:
    """A trip is 48 elements of K, though the loop's step is 1."""
    a, b, c = meta(256, 480), meta(480, 128), meta(256, 128)
    made = first(counted.request_for((a, b, c, 480), options, (2, 2))[1])
    assert made.certificate is not None
    assert made.certificate.failure == ""
    lines = [line for line in made.certificate.steady if "test_check.py" in line]
    assert lines
    assert all("each trip repeats" in line for line in lines)


# fmt: off
@tiledsl.jit
def nested(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, K, G,
           BM: tl.constexpr = 128, BN: tl.constexpr = 64, BK: tl.constexpr = 32):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(G):
        for k in range(0, K, BK):
            acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


def test_each_loop_of_a_nest_runs_for_as_many_trips_as_the_other() -> None:
    """A trip is 32 elements of K, and one of G: equal extents would run the outer loop for ages."""
    a, b, c = meta(256, 480), meta(480, 128), meta(256, 128)
    made = first(nested.request_for((a, b, c, 480, 3), {}, (2, 2))[1])
    assert made.certificate is not None
    assert made.certificate.failure == ""
    assert made.machine is not None
    step, units = units_of_trips(cut_down(made.machine, RULES))
    assert step == 32
    assert list(units.values()) == [1]


def test_ops_that_may_wait_are_known() -> None:
    """A region without them is run in one go; others' handlers must not give steps."""
    handlers = handlers_of(Run)
    waits = {op for op, h in handlers.items() if "Iterator" in h.__annotations__["return"]}
    assert waits == {*WAITS, barrier.CursorNext}


@pytest.mark.parametrize("name", NAMES)
def test_of_what_a_loop_carries_only_wgmmas_in_flight_count(name: str) -> None:
    code = cut_down(copy_of(name), RULES)
    rows = Table(code, handlers_of(Run), restless=False).rows
    loops = [i for row in rows.values() for kind, _, i in row if kind == FOR]
    assert len(loops) > 1
    for loop in loops:
        tiles = [v for v in loop.op.carried if isinstance(v.type, TileType)]
        assert {v for v in tiles if v in code.flight} == set(loop.args).intersection(tiles)
        assert len(loop.init) == len(loop.args) == len(loop.results)
    assert any(len(loop.op.carried) for loop in loops)


def test_the_launch_for_uneven_tiles_is_uneven() -> None:
    """An offset as large as all extents would make every tile of causal attention alike."""
    code = cut_down(copy_of("causal attention"), RULES)
    point = next(p for p in launch_points(code, 1, 1).few if p.wobble)
    loops = [s.op for steps in code.code.values() for s in steps if isinstance(s.op, For)]
    bounds = [b for b in (Bounds(code, loop) for loop in loops) if b.axes]
    rows = [(x, 0, 0) for x in range(point.grid[0])]
    assert any(len({b.trips(point, ids) for ids in rows}) > 2 for b in bounds)
