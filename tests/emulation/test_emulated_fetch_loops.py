"""Loops whose warps meet in each iteration: later iterations are fetched into shared memory."""

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
from tiledsl.ws import fetch_loop

F32, BF16 = torch.float32, torch.bfloat16


@tiledsl.jit
def scaled_rows(x, y, total, first, last, n, BLOCK: tl.constexpr):
    """Rows first, first + 2, ... below last over their largest element; total is their sum."""
    at = tl.arange(0, BLOCK)
    whole = tl.zeros((BLOCK,), tl.float32)
    for row in range(first, last, 2):
        value = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        whole += value
        value = value / tl.max(tl.abs(value), axis=0)
        tl.store(y + row * n + at, value, mask=at < n)
    tl.store(total + at, whole, mask=at < n)


@tiledsl.jit
def centred_rows(x, dy, y, rows, n, BLOCK: tl.constexpr):
    """Two sums of two tiles in each iteration."""
    at = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        a = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        b = tl.load(dy + row * n + at, mask=at < n, other=0.0).to(tl.float32)
        out = b - tl.sum(b, axis=0) / n - a * (tl.sum(a * b, axis=0) / n)
        tl.store(y + row * n + at, out, mask=at < n)


@tiledsl.jit
def shifted_rows(x, y, total, first, last, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    whole = tl.zeros((BLOCK,), tl.float32)
    for row in range(first, last):
        value = tl.load(x + (row - first) * BLOCK + at)
        whole += value
        tl.store(y + (row - first) * BLOCK + at, value / tl.max(value, axis=0))
    tl.store(total + at, whole)


@tiledsl.jit
def several_rows(x, y, count, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS rows in each iteration, each over its sum."""
    at = tl.arange(0, BLOCK)[None, :]
    for first in range(0, count, ROWS):
        rows = first + tl.arange(0, ROWS)[:, None]
        value = tl.load(x + rows * n + at, mask=at < n, other=0.0)
        tl.store(y + rows * n + at, value / tl.sum(value, axis=1, keep_dims=True), mask=at < n)


@tiledsl.jit
def divergence(x, y, out, n, BLOCK: tl.constexpr):
    """Sum of y * (log(y) - x) over a row of each."""
    total = 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        a = tl.load(x + at, mask=at < n, other=0.0)
        b = tl.load(y + at, mask=at < n, other=0.0)
        total += tl.sum(b * (tl.log(tl.maximum(b, 1e-10)) - a), axis=0)
    tl.store(out, total)


@tiledsl.jit
def in_place(x, rows, n, BLOCK: tl.constexpr):
    """Each row is divided by the sum of the row above."""
    at = tl.arange(0, BLOCK)
    for row in range(1, rows):
        above = tl.sum(tl.load(x + (row - 1) * n + at, mask=at < n, other=0.0), axis=0)
        value = tl.load(x + row * n + at, mask=at < n, other=0.0)
        tl.store(x + row * n + at, value / above, mask=at < n)


def run(kernel: Any, args: list[Any], grid: int = 1, seed: int = 0, **edit: str) -> KernelModule:
    made, runtime = compiled(kernel, args, num_warps=4)
    module = replaced(made.module, edit["old"], edit["new"], count=0) if edit else made.module
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(module, arrays, (grid, 1, 1), seed=seed, seconds=120.0)
    return made.module


def slots(module: KernelModule) -> int:
    """Iterations that are on their way when the first one begins."""
    loop = module.source.index("for (int row")
    return module.source[:loop].count("cp_async_commit")


# Depth of the ring by bytes in flight, and rows that are aligned, cut by the mask, at odd addresses.
@pytest.mark.parametrize(("flight_bytes", "depth"), [(1, 1), (1 << 30, 4)])
@pytest.mark.parametrize("n", [1024, 1000, 1001])
@pytest.mark.parametrize("rows", [(0, 0), (3, 4), (0, 5), (1, 15), (5, 2)], ids=str)
def test_every_number_of_trips(
    rows: tuple[int, int], n: int, flight_bytes: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows beyond the end hold NaN: nothing of them may be used."""
    monkeypatch.setattr(fetch_loop, "FLIGHT_BYTES", flight_bytes)
    torch.manual_seed(0)
    x = torch.randn(16, n)
    x[rows[1] :] = float("nan")
    y, total = torch.full_like(x, float("nan")), torch.full((n,), float("nan"))
    module = run(scaled_rows, [x, y, total, *rows, n, 1024])
    assert slots(module) == depth
    done = list(range(*rows, 2))
    want = x[done] / x[done].abs().amax(-1, keepdim=True)
    torch.testing.assert_close(y[done], want, rtol=1e-6, atol=0)
    torch.testing.assert_close(total, x[done].sum(0), rtol=1e-5, atol=1e-5)
    rest = sorted(set(range(16)) - set(done))
    assert y[rest].isnan().all()


def test_the_end_may_be_far() -> None:
    """Distances to the end do not wrap, where addresses of later iterations would."""
    torch.manual_seed(0)
    x = torch.randn(3, 1024)
    y, total = torch.empty_like(x), torch.empty(1024)
    first = 2**31 - 6
    run(shifted_rows, [x, y, total, first, first + 3, 1024])
    torch.testing.assert_close(total, x.sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "block"), [(2048, 2048), (16384, 16384), (16001, 16384)])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_two_sums(n: int, block: int, dtype: torch.dtype, seed: int) -> None:
    """In one CTA and in clusters, whose CTAs exchange both sums on one mbarrier."""
    torch.manual_seed(0)
    x, dy = torch.randn(5, n, dtype=dtype), torch.randn(5, n, dtype=dtype)
    y = torch.full_like(x, float("nan"))
    module = run(centred_rows, [x, dy, y, 5, n, block], 2, seed)
    assert (module.cluster_size > 1) == (block > 2048)
    assert "cp_async_wait" in module.source
    assert "cluster_sync" not in module.source
    a, b = x.double(), dy.double()
    want = b - b.mean(-1, keepdim=True) - a * (a * b).mean(-1, keepdim=True)
    error = ((y.double() - want).norm() / want.norm()).item()
    assert error < (1e-6 if dtype == F32 else 4e-3)


@pytest.mark.parametrize("seed", [0, 1])
def test_several_rows_in_a_cluster(seed: int) -> None:
    """Some warps of a CTA hold other rows: each warp tells all CTAs."""
    x = torch.rand(6, 8000)
    y = torch.full_like(x, float("nan"))
    module = run(several_rows, [x, y, 6, 8000, 2, 8192], 1, seed)
    assert module.cluster_size == 8
    assert "exchange_partials" in module.source
    torch.testing.assert_close(y, x / x.sum(-1, keepdim=True), rtol=1e-5, atol=0)


def test_warps_that_do_not_meet_load_ahead_in_registers() -> None:
    args = [torch.rand(8, 1024), torch.empty(8, 1024), 8, 1024, 4, 1024]
    made, _ = compiled(several_rows, args, num_warps=4)
    assert "cp_async" not in made.module.source
    assert any("loads" in note for note in made.notes)


@pytest.mark.parametrize(("block", "is_fetched"), [(16384, False), (8192, True)])
def test_one_slot_of_one_cta_fetches_nothing_ahead(block: int, *, is_fetched: bool) -> None:
    x, y, out = torch.randn(20000), torch.rand(20000), torch.full((1,), float("nan"))
    made, runtime = compiled(divergence, [x, y, out, 20000, block], num_warps=32)
    assert ("cp_async" in made.module.source) == is_fetched
    assert any("fit once" in note for note in made.notes) != is_fetched
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (1, 1, 1), seed=1, seconds=120.0)
    want = (y * (y.clamp_min(1e-10).log() - x)).double().sum().float()
    torch.testing.assert_close(out[0], want, rtol=1e-5, atol=1e-3)


def test_what_the_loop_writes_is_loaded_in_order() -> None:
    x = torch.rand(4, 1024) + 1
    want = x.clone()
    for row in range(1, 4):
        want[row] /= want[row - 1].sum()
    module = run(in_place, [x, 4, 1024, 1024])
    assert "cp_async" not in module.source
    torch.testing.assert_close(x, want)


def is_right(seed: int, old: str, new: str) -> bool:
    torch.manual_seed(0)
    x = torch.randn(9, 1024)
    y, total = torch.empty_like(x), torch.empty(1024)
    try:
        run(scaled_rows, [x, y, total, 0, 9, 1024, 1024], 1, seed, old=old, new=new)
    except emulate.EmulationFault:
        return False
    want = x[::2] / x[::2].abs().amax(-1, keepdim=True)
    return torch.allclose(y[::2], want) and torch.allclose(total, x[::2].sum(0), atol=1e-5)


@pytest.mark.parametrize(
    ("old", "new"),
    [("cp_async_wait<1>", "cp_async_wait<2>"),
     ("cp_async_commit();", ""),
     ("< 2) ?", "< 1) ?")],
)  # fmt: skip
def test_a_wrong_wait_shows(old: str, new: str) -> None:
    assert not all(is_right(seed, old, new) for seed in range(4))
