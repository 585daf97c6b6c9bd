"""Emitted text of attention as others write it: masks of several parts, two loops, blocks by index."""

from __future__ import annotations

import pytest
import torch

from tests.triton_style.cases import check
from tests.triton_style.online_softmax import CASES
from tiledsl import simulator
from tiledsl.compiled import Kernel
from tiledsl.ws import flow_plan
from tiledsl.ws.plan import Plan

NAMED = {case.name: case for case in CASES}


def emulated(name: str, seed: int, grid: tuple[int, int, int]) -> tuple[Kernel, list[object]]:
    """The kernel, and its arguments after the programs of a grid have run."""
    case = NAMED[name]
    args = case.make()
    made = case.kernel.compile(*args, grid=case.grid, **case.keywords)
    given = dict(zip(case.kernel.description.names, args, strict=True))
    simulator.emulate(made, given, grid, seed=seed)
    return made, args


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["prefix_attention", "two_loop_attention"])
def test_loops_in_roles(name: str, seed: int) -> None:
    case = NAMED[name]
    assert isinstance(case.grid, tuple)
    x, y, z = (*case.grid, 1)[:3]
    made, args = emulated(name, seed, (x, y, z))
    assert isinstance(made.plan, Plan), made.declined
    check(case, args, case.want(*case.make()))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ["prefix_attention", "two_loop_attention"])
def test_two_ctas_of_one_consumer_on_an_sm(name: str, seed: int, monkeypatch) -> None:
    """As in grids with many tiles for each CTA."""
    monkeypatch.setattr(flow_plan, "PAIR_WAVES", 0)
    case = NAMED[name]
    assert isinstance(case.grid, tuple)
    x, y, z = (*case.grid, 1)[:3]
    made, args = emulated(name, seed, (x, y, z))
    assert isinstance(made.plan, Plan), made.declined
    assert (made.plan.num_consumers, made.plan.ctas_per_sm) == (1, 2)
    assert made.certificate is not None
    assert made.certificate.proved
    check(case, args, case.want(*case.make()))


def test_a_mask_of_several_parts_is_one_comparison() -> None:
    """And blocks before the diagonal have none."""
    case = NAMED["prefix_attention"]
    made = case.kernel.compile(*case.make(), grid=case.grid, **case.keywords)
    masks = [line for line in made.module.source.splitlines() if "< limit_" in line]
    assert len(masks) == 2, "one in the first iteration, one behind the diagonal"
    assert not any(" && " in line or " || " in line for line in masks)


def test_a_rescaled_sum_is_the_tensor_core_s() -> None:
    case = NAMED["two_loop_attention"]
    made = case.kernel.compile(*case.make(), grid=case.grid, **case.keywords)
    assert "exp2_approx(" in made.module.source
    assert "tdsl::exp2(" not in made.module.source
    products = [
        line for line in made.module.source.splitlines() if "_rs_tb(" in line and "x_" in line
    ]
    assert products
    assert all(line.rstrip().endswith(", 1);") for line in products), "none starts from zeros"


@pytest.mark.parametrize("seed", range(3))
def test_blocks_by_index(seed: int) -> None:
    case = NAMED["chosen_attention"]
    _, args = emulated("chosen_attention", seed, (70, 2, 1))
    want = case.want(*case.make())[3]
    got = args[3]
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got[:70].float(), want[:70].float(), rtol=2e-2, atol=2e-2)
