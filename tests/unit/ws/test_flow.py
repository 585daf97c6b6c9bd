"""Loops that are no plain accumulations: their schedule for an attention kernel, and its roles."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.ws.kernels import attention_request
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import tile_graph_of
from tiledsl.compiler import modules
from tiledsl.errors import ScheduleError
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.role import Role
from tiledsl.ir.parser import parse_graph
from tiledsl.ws.flow import FlowLoop
from tiledsl.ws.flow import analyze_flow
from tiledsl.ws.loop_schedule import LoopSchedule
from tiledsl.ws.loop_schedule import Step
from tiledsl.ws.loop_schedule import schedule_loop
from tiledsl.ws.loop_schedule import schedule_with


@pytest.fixture(scope="module")
def loop() -> FlowLoop:
    (found,) = analyze_flow(tile_graph_of(attention_request())).loops
    return found


def chosen(loop: FlowLoop, limit: int = 200) -> LoopSchedule:
    return schedule_loop(loop, 2, limit)[0]


def test_the_second_dot_runs_one_iteration_behind(loop: FlowLoop) -> None:
    found = chosen(loop)
    assert found.distance == (0, 1)
    assert found.is_rotated
    plain = schedule_with(loop, (0, 0), 2)
    assert plain is not None
    assert found.clocks < plain.clocks


def test_no_room_for_registers_keeps_the_loop_as_it_is(loop: FlowLoop) -> None:
    assert chosen(loop, limit=110).distance == (0, 0)


def test_a_dot_cannot_run_behind_what_needs_it(loop: FlowLoop) -> None:
    assert schedule_with(loop, (1, 0), 2) is None


def place(steps: tuple[Step, ...], kind: str, nth: int = 0) -> int:
    return [i for i, s in enumerate(steps) if s.kind == kind][nth]


def test_order_of_the_steps(loop: FlowLoop) -> None:
    steps = chosen(loop).steps
    kinds = [s.kind for s in steps]
    assert kinds[:2] == ["issue", "issue"], "both dots start before the softmax"
    assert [s.op for s in steps[:2]] == [d.dot for d in loop.dots]
    assert (steps[place(steps, "wait")].pending, steps[place(steps, "wait", 1)].pending) == (1, 0)
    # A slot goes back as soon as the dot that read it is done, before anything else.
    for nth in (0, 1):
        assert place(steps, "release", nth) == place(steps, "wait", nth) + 1
    exps = [i for i, s in enumerate(steps) if s.op is not None and s.op.opcode == "elementwise.exp"]
    assert place(steps, "wait") < exps[0] < place(steps, "wait", 1)


def test_every_op_of_the_loop_has_one_step(loop: FlowLoop) -> None:
    ops = [s.op for s in chosen(loop).steps if s.kind in ("op", "issue")]
    assert len(ops) == len({o.id for o in ops if o is not None})
    assert {d.dot.id for d in loop.dots} <= {o.id for o in ops if o is not None}


def test_a_loop_without_trips_takes_its_own_branch(tmp_path: Path) -> None:
    first(replace(attention_request(), dump=tmp_path))
    graph = parse_graph((tmp_path / "20_partition.tir").read_text(encoding="utf-8"))
    consumer = next(op for op in graph.find(Role) if op.name == "consumer")
    branches = [op for op in consumer.body.walk() if isinstance(op, If) and op.results]
    rotated = [b for b in branches if any(isinstance(o, For) for o in b.then.walk())]
    assert rotated, "the peeled iterations stand under `if some`"
    assert not any(isinstance(o, For) for o in rotated[0].orelse.walk())


def test_the_table_of_a_schedule(loop: FlowLoop) -> None:
    head, *rows = [line.split() for line in chosen(loop).table.splitlines()]
    assert head == ["op", "unit", "distance", "start", "registers"]
    by_name = {" ".join(r[:-3]): r[-3:] for r in rows}
    first, second = by_name["issue mma.dot tensor core"], by_name["issue mma.dot acc tensor core"]
    assert (first[0], second[0]) == ("0", "1")
    # Per thread: scores 64, the sum 32, weights of the iteration before 32, row statistics.
    assert 128 <= int(second[2]) <= 136
    starts = [int(r[-2]) for r in rows]
    assert starts == sorted(starts)
    assert int(by_name["wait pending 1"][1]) < int(by_name["wait pending 0"][1])


def test_turns_that_a_schedule_of_fewer_registers_cannot_take_are_refused() -> None:
    """When the first kernel is rejected, no other one has a dot that runs behind."""
    kernels = modules(attention_request(ping_pong=True))
    next(kernels).rejected = "registers spill"
    with pytest.raises(ScheduleError, match="one iteration behind"):
        next(kernels)


@pytest.mark.parametrize(("BM", "in_trees"), [(192, False), (128, True)])
def test_maxima_are_combined_in_chains_and_in_turns_sums_too(BM: int, *, in_trees: bool) -> None:
    """A value is combined when it is there, whatever the tensor core does meanwhile."""
    text = first(attention_request(BM=BM, num_consumers=BM // 64)).module.source
    kinds = {
        how: {line.split()[-1] for line in re.findall(rf"{how}<32>\(.*?\(\)\);", text, re.DOTALL)}
        for how in ("reduce_chains", "reduce_registers")
    }
    assert "Max());" in kinds["reduce_chains"]
    assert ("Sum());" in kinds["reduce_chains"]) is not in_trees
    assert kinds["reduce_registers"] == ({"Sum());"} if in_trees else set())
