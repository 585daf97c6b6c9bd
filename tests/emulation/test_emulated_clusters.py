"""Programs that the CTAs of a cluster share: reductions through each other's shared memory."""

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

BLOCK = 16384


@tiledsl.jit
def softmax_rows(x, y, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS
    for row in range(rows, rows + ROWS):
        at = tl.arange(0, BLOCK)
        value = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
        value = tl.exp(value - tl.max(value, axis=0))
        tl.store(y + row * n + at, value / tl.sum(value, axis=0), mask=at < n)


@tiledsl.jit
def softmax_row(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=-float("inf"))
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + tl.program_id(0) * n + at, value / tl.sum(value, axis=0), mask=at < n)


@tiledsl.jit
def places_of_largest(x, place, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=-float("inf"))
    tl.store(place + tl.program_id(0), tl.argmax(value, axis=0))


@tiledsl.jit
def column_sums(x, out, n, M: tl.constexpr, N: tl.constexpr):
    rows, cols = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    value = tl.load(x + rows * n + cols, mask=cols < n, other=0.0)
    tl.store(out + tl.arange(0, N), tl.sum(value, axis=0), mask=tl.arange(0, N) < n)


@tiledsl.jit
def sums_and_scan(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(y + at, tl.cumsum(value, 0) / tl.sum(value, axis=0), mask=at < n)


def run(kernel: Any, args: list[Any], grid: int, seed: int = 0, **edit: str) -> KernelModule:
    made, runtime = compiled(kernel, args, num_warps=4, persistent=False)
    module = replaced(made.module, edit["old"], edit["new"], count=0) if edit else made.module
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(module, arrays, (grid, 1, 1), seed=seed, seconds=120.0)
    return made.module


def softmax_arguments() -> list[Any]:
    torch.manual_seed(0)
    x = torch.randn(4, 15001)
    return [x, torch.full_like(x, float("nan")), 15001, 2, BLOCK]


@pytest.mark.parametrize("seed", [0, 1])
def test_softmax(seed: int) -> None:
    args = softmax_arguments()
    module = run(softmax_rows, args, 2, seed)
    assert module.cluster_size == 8
    torch.testing.assert_close(args[1], args[0].softmax(-1), rtol=1e-5, atol=1e-9)


def test_pairs() -> None:
    """Members of a tuple have places of their own in the other CTAs."""
    x, place = torch.randn(2, 16000), torch.zeros(2, dtype=torch.int32)
    module = run(places_of_largest, [x, place, 16000, BLOCK], 2)
    assert module.cluster_size == 8
    assert torch.equal(place.long(), x.argmax(-1))


def test_rows_over_ctas() -> None:
    """The reduced axis lies in warps and CTAs, the other one in lanes."""
    x, out = torch.randn(128, 120), torch.full((120,), float("nan"))
    module = run(column_sums, [x, out, 120, 128, 128], 1)
    assert module.cluster_size == 8
    torch.testing.assert_close(out, x.sum(0), rtol=1e-5, atol=1e-5)


def test_another_exchange_keeps_one_cta() -> None:
    args = [torch.rand(9000), torch.empty(9000), 9000, BLOCK]
    made, _ = compiled(sums_and_scan, args, num_warps=4)
    assert made.plan.num_ctas == 1
    assert any("no cluster shares a program" in note for note in made.notes)


def test_small_tiles_keep_one_cta() -> None:
    args = [torch.rand(2, 4096), torch.empty(2, 4096), 4096, 1, 4096]
    assert compiled(softmax_rows, args, num_warps=4)[0].plan.num_ctas == 1


def is_right(kernel: Any, seed: int, old: str, new: str) -> bool:
    args = softmax_arguments()
    args = args if kernel is softmax_rows else [*args[:3], BLOCK]
    try:
        run(kernel, args, 2 if kernel is softmax_rows else 4, seed, old=old, new=new)
    except emulate.EmulationFault:
        return False
    return torch.allclose(args[1], args[0].softmax(-1), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("call", ["cluster_wait();", "cluster_sync();"])
def test_a_missing_barrier_shows(call: str) -> None:
    assert not all(is_right(softmax_row, seed, call, "") for seed in range(4))


@pytest.mark.parametrize(
    ("old", "new"),
    [("mbarrier_init(arrived_1 + 8 * i, 1)", "mbarrier_init(arrived_1, 1)"),
     ("reduce_cluster<8, 4, 128>", "reduce_cluster<8, 2, 128>"),
     ("reduce_cluster<8, 4, 128>(scratch_2", "reduce_cluster<8, 4, 128>(scratch_1 - 128")],
)  # fmt: skip
def test_a_wrong_exchange_shows(old: str, new: str) -> None:
    """In a loop partial results arrive on mbarriers, each with a part of the scratch."""
    assert not all(is_right(softmax_rows, seed, old, new) for seed in range(4))
