"""CTAs that stay for the next program of the grid and fetch ahead what it loads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.harness import replaced
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.codegen.module import KernelModule
from tiledsl.runtime.interop import numpy_view

F32, BF16 = torch.float32, torch.bfloat16


@tiledsl.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row + at, value / tl.sum(value, axis=0), mask=at < n)


@tiledsl.jit
def norm(x, weight, y, square, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    mean = tl.sum(value * value, axis=0) / n
    tl.store(square + tl.program_id(0), mean)
    w = tl.load(weight + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row + at, value * tl.rsqrt(mean + 1e-6) * w, mask=at < n)


@tiledsl.jit
def centre(x, y, spread, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    value = tl.where(at < n, value - tl.sum(value, axis=0) / n, 0.0)
    rstd = tl.rsqrt(tl.sum(value * value, axis=0) / n)
    tl.store(spread + tl.program_id(0), rstd)
    tl.store(y + row + at, value * rstd, mask=at < n)


def run(
    kernel: Any, args: list[Any], grid: int, seed: int = 0, num_sms: int = 1, **edit: str
) -> KernelModule:
    made, runtime = compiled(kernel, args, persistent=True)
    module = replaced(made.module, edit["old"], edit["new"]) if edit else made.module
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(module, arrays, (grid, 1, 1), seed=seed, num_sms=num_sms, seconds=240.0)
    return made.module


# Rows whose vectors are whole, cut by the mask, and at odd addresses; in one CTA and in a cluster.
ROWS = [
    (F32, 8192, 8192),
    (F32, 16000, 16384),
    (BF16, 16379, 16384),
    (BF16, 32768, 32768),
    (BF16, 32001, 32768),
]


@pytest.mark.parametrize(("dtype", "n", "block"), ROWS)
@pytest.mark.parametrize("seed", [0, 1])
def test_softmax(dtype: torch.dtype, n: int, block: int, seed: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(7, n, dtype=dtype)
    y = torch.full_like(x, float("nan"))
    module = run(softmax, [x, y, n, block], 7, seed)
    assert module.grid.mode == "persistent"
    assert "cp_async_wait" in module.source
    want = x.double().softmax(-1)
    assert ((y.double() - want).norm() / want.norm()).item() < (1e-6 if dtype == F32 else 4e-3)


@pytest.mark.parametrize(("rows", "num_sms"), [(1, 8), (2, 8), (7, 8), (3, 4)])
@pytest.mark.parametrize("seed", [0, 1])
def test_large_clusters_draw_their_second_program(rows: int, num_sms: int, seed: int) -> None:
    """Fewer programs than clusters, as many, and more; one cluster, and two."""
    x = torch.randn(rows, 131072, dtype=BF16)
    y = torch.full_like(x, float("nan"))
    module = run(softmax, [x, y, 131072, 131072], rows, seed, num_sms)
    assert module.cluster_size == 8
    assert module.source.count("draw_program<8>") == 2
    want = x.double().softmax(-1)
    assert ((y.double() - want).norm() / want.norm()).item() < 4e-3


@pytest.mark.parametrize(("dtype", "n", "block"), ROWS)
def test_norm(dtype: torch.dtype, n: int, block: int) -> None:
    """What all programs load is fetched once."""
    torch.manual_seed(0)
    x, w = torch.randn(7, n, dtype=dtype), torch.randn(n, dtype=dtype)
    y, square = torch.full_like(x, float("nan")), torch.zeros(7)
    module = run(norm, [x, w, y, square, n, block], 7)
    lines = module.source.count("lane_id() < 8")  # before what a warp holds, where rows are turned
    assert module.source.count("cp_async_commit") == 3 + lines + 1  # an empty group
    exact = x.double()
    mean = exact.square().mean(-1, keepdim=True)
    torch.testing.assert_close(square.double(), mean[:, 0], rtol=1e-5, atol=0)
    want = exact * (mean + 1e-6).rsqrt() * w.double()
    assert ((y.double() - want).norm() / want.norm()).item() < (1e-6 if dtype == F32 else 4e-3)


@pytest.mark.parametrize(("n", "block"), [(16384, 16384), (16379, 16384)])
def test_what_all_programs_load_is_waited_for_late(n: int, block: int) -> None:
    """Each wait that would leave one group more under way is found."""
    for old, new in (
        ("cp_async_wait<1>", "cp_async_wait<2>"),
        ("cp_async_wait<2>", "cp_async_wait<5>"),
    ):
        x, w = torch.randn(3, n), torch.randn(n)
        y, square = torch.full_like(x, float("nan")), torch.zeros(3)
        run(norm, [x, w, y, square, n, block], 3)
        assert torch.isfinite(y).all()
        with pytest.raises(emulate.EmulationFault, match="while a copy into it is in flight"):
            run(norm, [x, w, y, square, n, block], 3, old=old, new=new)


@pytest.mark.parametrize(("n", "block", "num_sms"), [(16000, 16384, 1), (60000, 65536, 8)])
def test_a_mean_far_from_0(n: int, block: int, num_sms: int) -> None:
    """1000 times what the elements differ by."""
    torch.manual_seed(0)
    x, rstd = torch.randn(3, n) + 1000.0, torch.zeros(3)
    y = torch.full_like(x, float("nan"))
    run(centre, [x, y, rstd, n, block], 3, num_sms=num_sms)
    exact = x.double()
    want = exact.var(-1, unbiased=False).rsqrt()
    torch.testing.assert_close(rstd.double(), want, rtol=1e-6, atol=0)
    want = (exact - exact.mean(-1, keepdim=True)) * want[:, None]
    assert ((y.double() - want).norm() / want.norm()).item() < 1e-4  # the mean has 24 bits
