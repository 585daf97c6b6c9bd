"""The checker accepts what the compiler makes, says what it proved, and refuses what it cannot know."""

from __future__ import annotations

from collections.abc import Iterator

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
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.debug import Print
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.role import Role
from tiledsl.report import render_report
from tiledsl.ws.check import OBLIGATIONS
from tiledsl.ws.check import check
from tiledsl.ws.check_bounds import bounds_of
from tiledsl.ws.check_machine import RULES
from tiledsl.ws.check_machine import rules_of
from tiledsl.ws.check_points import PointRun
from tiledsl.ws.check_points import first_repeat
from tiledsl.ws.check_points import launch_points
from tiledsl.ws.check_points import units_of_trips
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import cut_down
from tiledsl.ws.check_run import Run
from tiledsl.ws.check_state import Fault
from tiledsl.ws.check_state import Writer
from tiledsl.ws.check_steps import BRANCH
from tiledsl.ws.check_steps import LOOP
from tiledsl.ws.check_steps import WAITS
from tiledsl.ws.check_steps import WHILE
from tiledsl.ws.check_steps import Block
from tiledsl.ws.check_steps import Loop
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
    """What others do is done in one go: they must not give functions that ask to be called again."""
    links = {op: rule.link for op, rule in rules_of(Run).items() if rule.link is not None}
    assert {op for op, f in links.items() if f.__annotations__["return"] == "MayWait"} == {*WAITS}


def test_every_op_has_a_rule() -> None:
    assert all(rule.calc or rule.link for rule in rules_of(Run).values())


def loops_in(block: Block) -> Iterator[Loop]:
    for kind, item in block.items:
        if kind == LOOP:
            yield item
        inner = {
            LOOP: lambda x: [x.body],
            WHILE: lambda x: [x.before, x.body],
            BRANCH: lambda x: [x.then[0], x.orelse[0]],
        }.get(kind, lambda _: [])
        for b in inner(item):
            yield from loops_in(b)


@pytest.mark.parametrize("name", NAMES)
def test_of_what_a_loop_carries_only_wgmmas_in_flight_count(name: str) -> None:
    code = cut_down(copy_of(name), RULES)
    run = Run(code, 2)
    loops = [loop for team in run.teams for loop in loops_in(run.block(team))]
    assert len(loops) > 1
    for loop in loops:
        assert all(v in code.needed for v in loop.again.targets)
        flight = any(v in code.flight for v in (*loop.op.carried, *loop.op.results))
        assert len(loop.again.rows) == flight
    assert any(len(loop.op.carried) for loop in loops)


def test_loops_without_decisions_are_not_walked_trip_by_trip() -> None:
    """Their rows are repeated: those of attention, whose conditions stand outside of its loops."""
    run = Run(cut_down(copy_of("attention"), RULES), 1)
    loops = [loop for team in run.teams for loop in loops_in(run.block(team))]
    assert all(loop.body.rows for loop in loops)


def test_warpgroups_that_do_the_same_are_a_team() -> None:
    def sizes(name: str) -> list[int]:
        run = Run(cut_down(copy_of(name), RULES), 1)
        return [len(team) for team in run.teams if not team[0].single]

    assert sizes("cooperative") == [2]
    assert sizes("ping-pong") == [1, 1]


def test_launches_in_which_all_do_the_same_are_run_once() -> None:
    code = cut_down(copy_of("cooperative"), RULES)
    run = PointRun(code, 1)
    point = launch_points(code, 1, 1).few[-1]
    heads: list[int] = []
    for again in (point, point._replace(other=(len(code.symbols), 0)), point._replace(clusters=2)):
        run.launch(again)
        heads.append(run.teams[0][0].committed + run.threads[0].clock.bit_length())
        run.threads[0].clock = 0
    assert [h > 1 for h in heads] == [True, False, True]
    assert run.count == 3


def test_words_of_another_use_are_found() -> None:
    """A launch is laid out by what the drawing role writes; who reads something else is refused."""
    graph = copy_of("causal attention")
    role = next(o for o in graph.body.ops if isinstance(o, Role) and o.single_thread)
    writes = [o for o in role.body.walk() if isinstance(o, smem.WriteScalars)]
    assert writes
    run = PointRun(cut_down(graph, RULES), 1)
    link = rules_of(PointRun)[smem.ReadScalars].link
    assert link is not None
    point = launch_points(run.code, 1, 1).few[1]
    run.launch(point)
    run._done.clear()
    reader = run.teams[-1][0]
    read = next(o for o in reader.role.body.walk() if isinstance(o, smem.ReadScalars))
    run.start(point)
    run.reset()
    slot = reader.slot(read.smem)
    slot.state, slot.use = reader.cta.buffers[slot.buffer][0], -1
    slot.state.writer, slot.state.data = Writer(writes[0], 0, reader.clock), (1, 2, 3, 4)
    link(run, reader, read, 1, 2, 3, 4)()
    with pytest.raises(Fault, match="words of another use"):
        link(run, reader, read, 1, 2, 3, 5)()


def test_who_knows_a_phase_knows_those_before() -> None:
    """Clocks are sets of times: a join is an `or`, and the end of a phase brings those before it."""
    graph = copy_of("cooperative")
    run = Run(cut_down(graph, RULES), 1)
    run.start(LaunchPoint(0, (1, 1, 1)))
    run.reset()
    b = next(iter(run.ctas[0].barriers.values()))[0]
    first, second = run.threads[:2]
    b.expected = 1
    op = graph.body.ops[0]
    b.arrive(first.clock, 0, 1, op)
    assert not b.is_over(second.clock, 0)
    first.clock |= b.done
    first.tick()
    b.arrive(first.clock, 1, 1, op)
    second.clock |= b.done
    assert b.is_over(second.clock, 0)
    assert b.is_over(second.clock, 1)
    assert not b.is_over(second.clock, 2)
    assert second.clock & b.ends[0]
    assert not second.clock & first.clock & ~b.done & first.now
    with pytest.raises(Fault, match="an arrival for phase 2 may fall into phase 1"):
        b.arrive(run.threads[2].clock, 2, 1, op)


def test_the_launch_for_uneven_tiles_is_uneven() -> None:
    """An offset as large as all extents would make every tile of causal attention alike."""
    code = cut_down(copy_of("causal attention"), RULES)
    point = next(p for p in launch_points(code, 1, 1).few if p.wobble)
    bounds = [b for b in bounds_of(code) if b.axes]
    rows = [(x, 0, 0) for x in range(point.grid[0])]
    assert any(len({b.trips(point, ids) for ids in rows}) > 2 for b in bounds)
