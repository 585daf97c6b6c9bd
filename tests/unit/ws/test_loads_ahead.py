"""Loops that load ahead: addresses, what the last iteration does, registers of loop after loop."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.ws.single_plan import FEW_SPILLS_BYTES
from tiledsl.ws.single_plan import TIGHT_SPILLS_BYTES
from tiledsl.ws.single_plan import Limits
from tiledsl.ws.single_plan import SinglePlan


@tiledsl.jit
def summed(x, w, y, rows, stride, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(rows):
        total += tl.load(x + row * stride + at) * tl.load(w + row)
    tl.store(y + at, total)


@tiledsl.jit
def squared(x, y, n, BLOCK: tl.constexpr):
    for k in range(0, n, BLOCK):
        at = k + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < n)
        tl.store(y + at, value * value, mask=at < n)


@tiledsl.jit
def two_loops(x, y, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, n, BLOCK):
        at = k + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < n, other=0.0)
    mean = tl.sum(total) / n
    for k in range(0, n, BLOCK):
        at = k + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) - mean, mask=at < n)


def made(kernel: Any, *args: object, **options: object) -> Kernel:
    _, request = kernel.request_for(args, options, (1000,))
    return next(modules(request))


def rows(count: int) -> torch.Tensor:
    return torch.empty(count, device="meta")


def test_addresses_of_a_group_follow_each_other() -> None:
    """One product for the iterations of a group; behind the loop one for each."""
    kernel = made(summed, rows(99), rows(9), rows(128), 9, 11, BLOCK=128, num_warps=4)
    text = kernel.module.source
    loop = re.search(r"\n( *)for \(int row.*?\n\1\}\n", text, re.DOTALL)
    assert loop is not None
    assert loop[0].count("mul_wide(") == 1
    assert loop[0].count("load_lanes<") == 8
    assert text[loop.end() :].count("mul_wide(") == 7


@pytest.mark.parametrize("block", [512, 1024, 2048])
def test_last_iteration_loads_nothing(block: int) -> None:
    """Up to 32 bytes of a thread it stands behind the loop; beyond, one iteration alone does."""
    kernel = made(squared, rows(9), rows(9), 9, BLOCK=block, num_warps=4)
    text = kernel.module.source
    assert text.count("load_partial<") == 2
    assert text.count("store_partial<") == 2
    bound = re.search(r"for \(int k_\d+ = 0; k_\d+ < (\w+);", text)
    assert bound is not None
    is_peeled = block <= 1024
    assert (f"{bound[1]} = n - {block}" in text) == is_peeled


@pytest.mark.parametrize(
    ("block", "blocks"),
    [(512, 16), (1024, 12), (2048, 10), (4096, 1)],
)
def test_registers_of_loop_after_loop(block: int, blocks: int) -> None:
    """The less a thread holds, the more CTAs share the registers of an SM."""
    plan = made(two_loops, rows(9), rows(9), 9, BLOCK=block, num_warps=4).plan
    assert isinstance(plan, SinglePlan)
    assert plan.min_blocks == blocks


def test_small_programs_have_as_many_places_as_there_are() -> None:
    plan = made(two_loops, rows(9), rows(9), 9, BLOCK=64, num_warps=1).plan
    assert isinstance(plan, SinglePlan)
    assert plan.min_blocks == 32


def test_one_loop_has_half_of_the_places() -> None:
    plan = made(squared, rows(9), rows(9), 9, BLOCK=512, num_warps=4).plan
    assert isinstance(plan, SinglePlan)
    assert plan.min_blocks == 8


def test_tight_plans_spill_less() -> None:
    """Rather than that, threads have twice the registers; others may spill a little more."""
    tight = SinglePlan(4, min_blocks=16)
    assert tight.is_last(TIGHT_SPILLS_BYTES)
    assert not tight.is_last(TIGHT_SPILLS_BYTES + 8)
    assert Limits().after(tight).blocks == 8
    half = SinglePlan(4, min_blocks=8)
    assert half.is_last(FEW_SPILLS_BYTES)
    assert Limits().after(half).blocks == 4
