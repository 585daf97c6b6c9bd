"""Loops over rows: warps, CTAs that share a row, CTAs on an SM, and rows on their way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl.compiled import Kernel
from tiledsl.ws.fetch_loop import Space
from tiledsl.ws.single_plan import SinglePlan

BF16, F32 = torch.bfloat16, torch.float32
SMS = 132


@tiledsl.jit
def centred(x, y, sums, rows, n, BLOCK: tl.constexpr):
    """Rows over their means; sums: of their columns."""
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        value = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        total += value
        tl.store(y + row * n + at, value - tl.sum(value, axis=0) / n, mask=at < n)
    tl.store(sums + tl.program_id(0) * n + at, total, mask=at < n)


@tiledsl.jit
def column_sums(x, sums, rows, n, BLOCK: tl.constexpr):
    """Nothing is reduced in an iteration."""
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        total += tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(0) * n + at, total, mask=at < n)


def made(n: int, dtype: torch.dtype, grid: int, **options: Any) -> Kernel:
    x = torch.empty(8, n, dtype=dtype)
    args = [x, torch.empty_like(x), torch.empty(8, n), 8, n, tiledsl.next_power_of_2(n)]
    return compiled(centred, args, grid=(grid, 1, 1), **options)[0]


# Width, dtype, programs; warps, CTAs of a program, CTAs on an SM, rows on their way.
PLANS = [
    (1024, BF16, 8 * SMS, 4, 1, 8, 4),
    (4096, BF16, 2 * SMS, 16, 1, 2, 4),
    (4096, BF16, SMS, 16, 1, 1, 4),
    (4096, F32, SMS, 16, 1, 1, 4),
    (8192, BF16, SMS, 16, 1, 1, 4),
    (8192, F32, SMS // 2, 16, 2, 1, 4),
    (16384, F32, SMS // 4, 16, 4, 1, 4),
    (32768, BF16, SMS // 4, 16, 4, 1, 4),
    (65536, F32, SMS // 8, 16, 8, 1, 2),
]


@pytest.mark.parametrize(("n", "dtype", "grid", "warps", "ctas", "blocks", "slots"), PLANS)
def test_plan(
    n: int, dtype: torch.dtype, grid: int, warps: int, ctas: int, blocks: int, slots: int
) -> None:
    """About 16 KB of a row for a CTA, as many CTAs on an SM as the grid has."""
    plan = made(n, dtype, grid).plan
    assert isinstance(plan, SinglePlan)
    assert (plan.num_warps, plan.num_ctas, plan.min_blocks) == (warps, ctas, blocks)
    assert plan.num_stages == slots


def test_as_many_warps_as_asked() -> None:
    """Then rows are shared only where the threads could not hold them."""
    plan = made(8192, F32, SMS, num_warps=8).plan
    assert isinstance(plan, SinglePlan)
    assert (plan.num_warps, plan.num_ctas) == (8, 1)


def test_loops_that_reduce_nothing() -> None:
    """Their warps do not meet: loads come ahead in registers."""
    x = torch.empty(8, 4096, dtype=BF16)
    args = [x, torch.empty(8, 4096), 8, 4096, 4096]
    kernel, _ = compiled(column_sums, args, grid=(SMS, 1, 1))
    assert "cp_async" not in kernel.module.source
    assert any("loads of the next iteration" in note for note in kernel.notes)


@pytest.mark.parametrize(
    ("space", "slots"),
    [
        (Space(512, 200_000, 1), 2),  # 64 KB on their way
        (Space(512, 200_000, 2), 1),
        (Space(512, 200_000, 1, asked=5), 5),
        (Space(512, 200_000, 1, asked=9), 6),
        (Space(512, 40_000, 1), 1),
        (Space(512, 30_000, 1), 0),
        (Space(512, -1, 1), 0),
    ],
)
def test_slots(space: Space, slots: int) -> None:
    assert space.depth(32768) == slots


@pytest.mark.parametrize(("n", "warps"), [(4096, 8), (8192, 16)])
def test_warps_of_loops_that_reduce_nothing(n: int, warps: int) -> None:
    """Their warps do not meet, and few wide loads of each are faster: 16 elements of a tile."""
    x = torch.empty(8, n)
    kernel = compiled(column_sums, [x, torch.empty(8, n), 8, n, n], grid=(SMS, 1, 1))[0]
    assert isinstance(kernel.plan, SinglePlan)
    assert kernel.plan.num_warps == warps
