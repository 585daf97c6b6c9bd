"""Control flow that depends on results: left out of the load role, or a reason for a single role."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from tests.steered_kernels import DECLINED
from tests.steered_kernels import SPECIALISED
from tests.steered_kernels import Case
from tests.steered_kernels import agree
from tests.steered_kernels import by_programs
from tests.steered_kernels import interpreted
from tests.steered_kernels import loop_within
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.errors import ScheduleError
from tiledsl.ir.op import Region
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.role import Role
from tiledsl.simulator import simulate
from tiledsl.ws.check import check
from tiledsl.ws.check_data import ALWAYS
from tiledsl.ws.check_data import NEVER
from tiledsl.ws.check_machine import RULES
from tiledsl.ws.check_points import PointRun
from tiledsl.ws.check_points import launch_points
from tiledsl.ws.check_program import cut_down

OPTIONS: list[dict[str, Any]] = [
    {"num_consumers": 2}, {"ping_pong": True}, {"num_stages": 2}, {"persistent": True}
]  # fmt: skip
RUNS = [(name, {}) for name in SPECIALISED]
RUNS += [(name, o) for name in ("branch", "blocks") for o in OPTIONS] + [("either", {"cluster": 2})]


def first(case: Case, args: dict[str, Any], BM: int, **options: Any) -> Kernel:
    grid = case.grid(args, BM)
    given = {**case.options(BM), **options}
    return next(modules(case.kernel.request_for(tuple(args.values()), given, grid)[1]))


@pytest.mark.parametrize(("name", "options"), RUNS, ids=str)
def test_kernels_with_roles_are_proved_and_right(name: str, options: dict[str, Any]) -> None:
    case, BM = SPECIALISED[name], 128 if options.get("num_consumers") == 2 else 64
    args = case.args()
    want, made = interpreted(case, args, BM), first(case, args, BM, **options)
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure
    for seed in range(2):
        got = interpreted_copy(args)
        simulate(made, got, case.grid(args, BM), seed=seed)
        agree(case, got, want)


def interpreted_copy(args: dict[str, Any]) -> dict[str, Any]:
    return {n: v.clone() if hasattr(v, "clone") else v for n, v in args.items()}


@pytest.mark.parametrize("name", list(SPECIALISED))
def test_the_load_role_has_no_branch_on_results(name: str) -> None:
    case = SPECIALISED[name]
    machine = first(case, case.args(), 64).machine
    assert machine is not None
    (producer,) = [r for r in machine.find(Role) if r.name == "producer"]
    assert not [o for o in producer.body.walk() if isinstance(o, If)]


@pytest.mark.parametrize("name", list(DECLINED))
def test_what_loads_or_stores_depend_on_results_is_left_to_a_single_role(name: str) -> None:
    case = DECLINED[name]
    args = case.args()
    made = first(case, args, 64)
    assert made.certificate is None
    (declined,) = made.declined
    assert "depends on what the kernel computes from loaded tiles" in declined.reason
    lines, start = inspect.getsourcelines(case.kernel.fn)
    marked = [start + i for i, text in enumerate(lines) if text.rstrip().endswith(f"# {name}")]
    assert declined.loc is not None
    assert declined.loc.line in (marked[0], marked[0] + 1)  # a branch, or the load in it
    with pytest.raises(ScheduleError, match="depends on what the kernel computes"):
        first(case, args, 64, warp_specialize=True)


def test_both_sides_of_a_branch_are_run() -> None:
    case = SPECIALISED["blocks"]
    machine = first(case, case.args(), 64).machine
    assert machine is not None
    code = cut_down(machine, RULES)
    stores = [r for op in code.chosen for r in op.regions if _stores(r)]
    assert len(stores) == 4  # of the kernel's three branches, one in the other
    run = PointRun(code, 1)
    for run.way in (NEVER, ALWAYS):
        for point in launch_points(code, 1, 1).few:
            run.launch(point)
    assert not run.reached >= set(stores)
    assert check(machine).proved


def test_a_fault_on_either_side_is_found() -> None:
    """Without a wait, or its barrier, a slab is written again while a copy reads it."""
    case = SPECIALISED["blocks"]
    args = case.args()
    for number in range(2):
        machine = first(case, args, 64, persistent=True).machine
        assert machine is not None
        assert check(machine).proved
        inside = [o for o in machine.find(tma.StoreWait) if _in_branch(machine, o)]
        assert len(inside) == 2
        machine.erase(inside[number])
        assert "is written while it may still be read" in check(machine).failure


def _stores(region: Region) -> bool:
    return any(isinstance(o, tma.Store) for o in region.walk())


def _in_branch(machine: Any, op: Any) -> bool:
    return any(isinstance(o, If) for o in machine.enclosing(op))


@pytest.mark.parametrize("which", ["one row", "one column", "one layer", "again"])
@pytest.mark.parametrize("persistent", [False, True])
def test_some_programs_end_early(which: str, persistent: bool) -> None:
    """Where no launch that is tried has such a program, all roles take the branch at once."""
    a, b, o = (torch.empty(s, device="meta", dtype=torch.bfloat16) for s in ((256, 256),) * 3)
    args = (a, b, torch.empty(256, 256, device="meta"), o)
    given = {"WHICH": which, "warp_specialize": True, "persistent": persistent}
    made = next(modules(by_programs.request_for(args, given, (4, 4, 3))[1]))
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure


@pytest.mark.parametrize("which", ["argument", "place"])
@pytest.mark.parametrize("persistent", [False, True])
def test_loops_in_which_nothing_synchronises_are_no_part_of_the_proof(
    which: str, persistent: bool
) -> None:
    """In a loop over tiles its many trips were followed to no end, or none were found."""
    a, b = (torch.empty(256, 256, device="meta", dtype=torch.bfloat16) for _ in range(2))
    args = (a, b, torch.empty(256, 256, device="meta"), 1)
    given = {"WHICH": which, "warp_specialize": True, "persistent": persistent}
    made = next(modules(loop_within.request_for(args, given, (4,))[1]))
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure
