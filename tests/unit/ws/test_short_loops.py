"""Chunks of sequences whose products have loops of few iterations: one role, many CTAs on an SM."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.target import HOPPER
from tiledsl.ws.live_registers import blocks_of_tiles
from tiledsl.ws.single_plan import Limits
from tiledsl.ws.single_plan import SinglePlan


@tiledsl.jit
def chunk_scores(
    k, g, out, T, H: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr
):
    """Decayed products of the rows of a chunk with each other."""
    chunk, bh = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    t = chunk * BT + tl.arange(0, BT)
    m = t < T
    acc = tl.zeros((BT, BT), tl.float32)
    for i in range(tl.cdiv(K, BK)):
        c = i * BK + tl.arange(0, BK)
        at = k + (b * T * H + h) * K + t[:, None] * (H * K) + c[None, :]
        x = tl.load(at, mask=m[:, None] & (c < K)[None, :], other=0.0)
        acc += tl.dot(x, tl.trans(x))
    decay = tl.load(g + b * T * H + h + t * H, mask=m, other=0.0)
    acc *= tl.exp2(decay[:, None] - decay[None, :])
    acc = tl.where((t[:, None] > t[None, :]) & (m[:, None] & m), acc, 0)
    p = out + (b * T * H + h) * BT + t[:, None] * (BT * H) + tl.arange(0, BT)[None, :]
    tl.store(p, acc, mask=m[:, None])


def made(K: int, **options: object) -> Kernel:
    T, H = 4096, 16
    k = torch.empty(8, T, H, K, dtype=torch.bfloat16, device="meta")
    g = torch.empty(8, T, H, device="meta")
    out = torch.empty(8, T, H, 64, device="meta")
    given = {"H": H, "K": K, "BT": 64, "BK": 64, "num_warps": 4, "num_stages": 3, **options}
    _, request = chunk_scores.request_for((k, g, out, T), given, (T // 64, 8 * H))
    return next(modules(request))


@pytest.mark.parametrize("K", [64, 128, 256])
def test_short_loops_have_one_role(K: int) -> None:
    kernel = made(K)
    assert isinstance(kernel.plan, SinglePlan)
    assert "threads copy what the loop loads" in kernel.declined[0].reason


@pytest.mark.parametrize(("K", "options"), [(1024, {}), (128, {"num_consumers": 1})], ids=str)
def test_others_have_roles(K: int, options: dict[str, object]) -> None:
    assert "consumers" in made(K, **options).plan.describe()


def test_ctas_on_an_sm() -> None:
    """As many as hide the time of loads; rows of floats lie where the rings were."""
    kernel = made(128)
    assert "__launch_bounds__(128, 6)" in kernel.module.source
    rings = sum(b.num_bytes for b in kernel.smem.blocks if b.name.startswith("ring"))
    assert kernel.smem.end_bytes == rings + 256
    assert "rows_in_warp<32, 8>" in kernel.module.source


def test_blocks() -> None:
    """By registers, by shared memory, by warps, by the grid; one for other CTAs."""
    assert blocks_of_tiles(4, 148, 65792, (), HOPPER) == 3
    assert blocks_of_tiles(4, 44, 73728, (), HOPPER) == 3
    assert blocks_of_tiles(4, 10, 1024, (), HOPPER) == 6
    assert blocks_of_tiles(4, 10, 1024, (200, 1, 1), HOPPER) == 2
    assert blocks_of_tiles(4, 300, 1024, (), HOPPER) == 1
    assert blocks_of_tiles(8, 10, 1024, (), HOPPER) == 1


def test_after_spills() -> None:
    """One CTA less, not half of them."""
    plan = SinglePlan().crowded(6)
    assert Limits().after(plan).blocks == 5
    assert SinglePlan(min_blocks=6).crowded(4).min_blocks == 6
