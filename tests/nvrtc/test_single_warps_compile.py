"""Single-role kernels of which ptxas moves accumulators take more warps, not the warning."""

from __future__ import annotations

import warnings

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.compiler import modules
from tiledsl.ws.copy_rings import FLIGHT_SLOTS
from tiledsl.ws.single_plan import SinglePlan

pytestmark = pytest.mark.nvrtc


# fmt: off
@tiledsl.jit
def plain_attention(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, scale: tl.float32,
                    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    h, m = tl.program_id(1), tl.program_id(0) * BM
    x = q.load((h, m, 0), (BM, D))
    top = tl.full((BM,), -1e30, tl.float32)
    total, acc = tl.zeros((BM,), tl.float32), tl.zeros((BM, D), tl.float32)
    for n in range(0, k.shape[1], BN):
        s = tl.dot(x, tl.trans(k.load((h, n, 0), (BN, D)))) * scale
        s = tl.where((n + tl.arange(0, BN) < k.shape[1])[None, :], s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p, fade = tl.exp(s - new[:, None]), tl.exp(top - new)
        total, top = total * fade + tl.sum(p, 1), new
        acc = tl.dot(p.to(v.dtype), v.load((h, n, 0), (BN, D)), acc * fade[:, None])
    o.store((h, m, 0), acc / total[:, None])
# fmt: on


@pytest.mark.parametrize(("D", "warps"), [(40, 4), (88, 8), (104, 8)])
def test_head_dims_that_no_specialised_plan_has(D: int, warps: int) -> None:
    x = torch.empty(2, 200, D, dtype=torch.bfloat16, device="meta")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = plain_attention.compile(x, x, x, x, D**-0.5, D, 128, 64, grid=(2, 2))
    assert isinstance(made.plan, SinglePlan)
    assert made.plan.num_warps == warps
    assert made.compiled is not None
    assert made.compiled.spill_bytes == 0
    assert not made.compiled.serialized


def test_what_more_warps_do_not_mend_is_taken_as_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where ptxas moves accumulators of every kernel, the best one may be one with deep rings."""
    monkeypatch.setattr("tiledsl.single._fault", lambda made: -made.plan.num_stages)

    def turned(rows: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(2, 64, rows, dtype=dtype, device="meta").transpose(1, 2)

    q, k = (torch.empty(2, n, 64, dtype=torch.bfloat16, device="meta") for n in (525, 223))
    v, o = turned(223, torch.bfloat16), turned(525, torch.float16)
    tried: list[SinglePlan] = []
    args = (q, k, v, o, 0.1, 64, 192, 64)
    for made in modules(plain_attention.request_for(args, {}, (3, 2))[1]):
        assert isinstance(made.plan, SinglePlan)
        tried.append(made.plan)
        made.rejected = "" if made.plan.is_last(0, are_moved=True) else "moved"
        if not made.rejected:
            break
    assert tried[-1].is_last(0, are_moved=True)
    assert tried[-1].num_stages >= FLIGHT_SLOTS
    assert {plan.num_warps for plan in tried} == {4, 8}
    assert max(plan.num_stages for plan in tried if plan.num_warps == 8) >= FLIGHT_SLOTS
