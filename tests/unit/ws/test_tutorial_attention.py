"""Plans for Triton's tutorial of attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.triton_style.attention import _attn_fwd
from tests.unit.ws.kernels import first
from tiledsl.compiled import Kernel
from tiledsl.ws.plan import Plan

S = 2048
CAUSAL, FULL = 3, 1


def made_of(D: int, stage: int = CAUSAL, heads: int = 2, **options: Any) -> Kernel:
    q = torch.empty(1, heads, S, D, device="meta", dtype=torch.float16)
    sums = torch.empty(1, heads, S, device="meta")
    strides = [n for _ in range(4) for n in q.stride()]
    args = (q, q, q, 0.125, sums, q, *strides, 1, heads, S, D, 128, 64, stage)
    options = {"num_warps": 4, **options}
    return first(_attn_fwd.request_for(args, options, (S // 128, heads, 1))[1])


@pytest.mark.parametrize("D", [64, 128])
def test_blocks_on_a_diagonal_leave_none_without_masks(D: int) -> None:
    """A loop begins at `tl.multiple_of(start_m * BLOCK_M, BLOCK_M)`."""
    made = made_of(D)
    assert made.certificate is not None
    assert made.certificate.failure == ""


@pytest.mark.parametrize("stage", [CAUSAL, FULL])
def test_loops_that_wait_for_exponentials_have_two_ctas_an_sm(stage: int) -> None:
    made = made_of(64, stage, heads=128)
    assert isinstance(made.plan, Plan)
    assert (made.plan.num_consumers, made.plan.ctas_per_sm) == (1, 2)
    assert 2 * made.smem.end_bytes <= 233472 - 2048
    assert made.certificate is not None
    assert made.certificate.proved
    assert "2 CTAs an SM" in made.plan.describe()
    assert ", 2)\n" in made.module.source.partition("__launch_bounds__(256")[2][:10]


@pytest.mark.parametrize(
    ("D", "heads", "options"),
    [
        (128, 128, {}),  # waits for the tensor core
        (64, 16, {}),  # few tiles
        (64, 128, {"num_consumers": 2}),
        (64, 128, {"ping_pong": True}),
        (64, 128, {"persistent": False}),
    ],
)
def test_others_have_two_consumers(D: int, heads: int, options: dict[str, Any]) -> None:
    made = made_of(D, heads=heads, **options)
    assert isinstance(made.plan, Plan)
    assert (made.plan.num_consumers, made.plan.ctas_per_sm) == (2, 1)
