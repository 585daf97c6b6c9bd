"""Rules that ptxas and the hardware impose on loops with several dots, on the graphs that are
emitted: one test a rule. What the checker proves has its faults in test_mutations and
test_staged_operands; what NVRTC says is read in tests/nvrtc.
"""

from __future__ import annotations

import functools
import pickle
import sys
import warnings
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.ws.kernels import attention_request
from tests.unit.ws.kernels import first
from tests.unit.ws.machine_kernels import copy_of
from tests.unit.ws.test_bounded import machine as bounded_machine
from tests.unit.ws.test_staged_operands import copy_of as linear_machine
from tiledsl.compiler import faults
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.program import TileToProgram
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.types import TileType
from tiledsl.runtime.nvrtc import CompiledKernel
from tiledsl.ws.check import check
from tiledsl.ws.flow import analyze_flow
from tiledsl.ws.loop_schedule import schedule_loop

sys.setrecursionlimit(100_000)


@functools.cache
def _machine(name: str) -> bytes:
    if name == "linear attention":
        return pickle.dumps(linear_machine())
    if name == "bounded":
        return pickle.dumps(bounded_machine())
    if name == "three consumers":
        return pickle.dumps(first(attention_request(S=4032, BM=192)).machine)
    return pickle.dumps(copy_of(name))


FLOWS = ["attention", "causal attention", "three consumers", "linear attention", "bounded"]


@pytest.fixture(params=FLOWS)
def graph(request: pytest.FixtureRequest) -> TileGraph:
    return pickle.loads(_machine(request.param))


def consumer(graph: TileGraph) -> Role:
    return next(r for r in graph.find(Role) if r.name == "consumer")


def loops(graph: TileGraph) -> list[For]:
    """Loops of the consumer with wgmmas in their bodies."""
    found = [o for o in consumer(graph).body.walk() if isinstance(o, For)]
    return [f for f in found if any(isinstance(o, mma.Issue) for o in f.body.ops)]


def flat(region: Region) -> list[Op]:
    return list(region.walk())


def test_values_read_from_a_slot_have_arrived_before_it_is_given_back(graph: TileGraph) -> None:
    """An arrive overtakes loads in flight; only an instruction that consumes them waits."""
    for read in graph.find(smem.Read):
        assert read.scratch is not None
    for read in [o for o in graph.find(smem.ReadScalars) if o.parent.parent is not None]:
        # A tile's index decides a branch before its slot goes back.
        ops = read.parent.ops
        assert not any(isinstance(o, barrier.Arrive) for o in ops[ops.index(read) :])


def test_no_wgmma_under_a_branch_in_a_loop(graph: TileGraph) -> None:
    """With another one in flight, ptxas would serialise all (C7514)."""
    for loop in loops(graph):
        for op in flat(loop.body):
            if isinstance(op, If | While):
                assert not any(isinstance(o, mma.Issue) for r in op.regions for o in r.walk())


def test_the_row_statistic_stays_above_the_wait(graph: TileGraph) -> None:
    """Nothing but registers orders math and waits: two warpgroups pin, three take turns."""
    for loop in loops(graph):
        waits = [o for o in loop.body.ops if isinstance(o, mma.Wait)]
        pins = [o for o in loop.body.ops if isinstance(o, mma.Pin)]
        rotated = len(waits) == 2 and waits[0].pending == 1 and waits[1].pending == 0
        statistics = [o for o in loop.body.ops if o.opcode == "reduce.reduce"]
        if rotated and statistics and consumer(graph).num_warpgroups <= 2:
            (pin,) = pins
            assert loop.body.ops.index(pin) + 1 == loop.body.ops.index(waits[1])
        else:
            assert not pins


def test_accumulators_are_made_by_multiplies_not_by_integer_adds(graph: TileGraph) -> None:
    """An integer add that yields a float kept in an accumulator register serialises (C7511)."""
    for issue in graph.find(mma.Issue):
        maker = issue.acc.defining_op
        if isinstance(maker, Map):
            opcodes = {o.opcode for o in maker.regions[0].ops}
            assert "elementwise.bitcast" not in opcodes
            assert not any(
                isinstance(o, Cast) and o.a.type.dtype.is_int for o in maker.regions[0].ops
            )


def test_one_register_fence_for_each_product(graph: TileGraph) -> None:
    """Without it ptxas injects one (C7519)."""
    for issue in graph.find(mma.Issue):
        ops = issue.parent.ops
        before = ops[: ops.index(issue)]
        last = next(
            o for o in reversed(before) if isinstance(o, mma.Fence | mma.Issue | mma.Commit)
        )
        assert isinstance(last, mma.Fence)


def test_a_missing_register_fence_is_refused(graph: TileGraph) -> None:
    fence = graph.find(mma.Fence)[0]
    fence.parent.ops.remove(fence)
    assert "fences" in check(graph).failure


def test_no_math_on_an_accumulator_while_a_younger_wgmma_flies(graph: TileGraph) -> None:
    """Read before the first wgmma of an iteration or after a wait, else a wait is injected (C7517)."""
    for loop in loops(graph):
        end = loop.body.ops[-1]
        waited = {
            a for a, v in zip(loop.carried, end.operands, strict=True)
            if isinstance(v.defining_op, mma.Wait)
        }  # fmt: skip
        flying = 0
        for op in loop.body.ops:
            flying += isinstance(op, mma.Issue)
            if isinstance(op, mma.Wait):
                flying = op.pending
            if isinstance(op, Map) and flying:
                assert not waited & set(op.inputs), op


def test_a_register_operand_is_kept_until_its_wgmma_is_over() -> None:
    """The late dot reads its weights until the wait for it; their next values come after (C7513)."""
    (loop,) = analyze_flow(first_graph()).loops
    steps = schedule_loop(loop, 2, 208)[0].steps
    late = next(d.dot for d in loop.dots if d.register_a)
    pack = next(i for i, s in enumerate(steps) if s.op is late.a.defining_op)
    wait = next(i for i, s in enumerate(steps) if s.kind == "wait" and s.op is late)
    assert wait < pack


def first_graph() -> TileGraph:
    from tests.unit.ws.kernels import tile_graph_of

    return tile_graph_of(attention_request())


@pytest.mark.parametrize(
    ("code", "rejected"),
    [(7510, True), (7512, True), (7514, True), (7517, True), (7519, False)],
)
def test_what_ptxas_serialises_is_not_taken(code: int, rejected: bool) -> None:
    from tiledsl.runtime.nvrtc import parse_ptxas

    facts = parse_ptxas(f"ptxas info    : (C{code}) about wgmma\nUsed 168 registers\n")
    made = CompiledKernel(b"", "", 168, 0, 0, facts.serialized, facts.notes, 0.0)
    assert bool(faults(made, forced=False)) is rejected
    assert faults(replace(made, spill_bytes=8), forced=False)


@pytest.mark.parametrize("BM", [128, 192])
def test_a_producer_that_draws_tiles_has_registers_for_it(BM: int) -> None:
    """With 24 it spills."""
    plan = first(attention_request(S=4032, BM=BM)).plan
    assert plan.dynamic
    assert plan.producer_registers >= 32


def test_the_load_role_alone_works_out_which_program_a_drawn_tile_is() -> None:
    """Where the next tile waits for them, divisions are time in which no product runs."""
    made = first(attention_request(S=4032))
    assert made.plan.dynamic
    roles: dict[str, Role] = {r.name: r for r in made.machine.find(Role)}
    located = {
        n: [o for o in flat(r.body) if isinstance(o, TileToProgram)] for n, r in roles.items()
    }
    assert (len(located["producer"]), len(located["consumer"])) == (1, 0)
    (read,) = [o for o in flat(roles["consumer"].body) if isinstance(o, smem.ReadScalars)]
    assert len(read.results) == 4


def test_only_masked_iterations_guard_rows_without_keys() -> None:
    """The steady loop has a copy without selects; masks stay in the other copies."""
    graph: TileGraph = pickle.loads(_machine("causal attention"))
    selects: list[int] = []
    for loop in loops(graph):
        inner = [o for op in flat(loop.body) for r in op.regions for o in r.walk()]
        selects.append(sum(isinstance(o, Select) for o in inner))
    assert 0 in selects
    assert any(selects)


def test_accumulators_fit_the_layout_of_the_instruction(graph: TileGraph) -> None:
    for issue in graph.find(mma.Issue):
        for v in (issue.acc, issue.a):
            if isinstance(v.type, TileType):
                assert v.type.layout is not None


def test_a_single_role_gives_up_its_product_in_flight() -> None:
    """Where ptxas moves accumulators; with rings of fewer slots none is in flight."""
    from tiledsl.ws.copy_rings import FLIGHT_SLOTS
    from tiledsl.ws.single_plan import SinglePlan

    deep, shallow = (SinglePlan(4, num_stages=n) for n in (FLIGHT_SLOTS, FLIGHT_SLOTS - 1))
    assert not deep.is_last(0, are_moved=True)
    assert deep.is_last(0)
    assert shallow.is_last(0, are_moved=True)


def test_the_last_kernel_warns_where_accumulators_are_moved() -> None:
    from types import SimpleNamespace

    from tiledsl.compiler import warned

    for notes, is_warned in ((("ptxas info : (C7517) a wait",), True), (("(C7519)",), False)):
        compiled = CompiledKernel(b"", "", 168, 0, 0, (), notes, 0.0)
        made: Any = SimpleNamespace(
            compiled=compiled, notes=[], module=SimpleNamespace(name="product")
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warned(made)
        assert bool(caught) is bool(made.notes) is is_warned
        assert all("sums may be wrong" in note for note in made.notes)
