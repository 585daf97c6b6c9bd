"""Whole programs of unusual forms: the emitted text does what the interpreter does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import emulate
from tiledsl.compiler import modules
from tiledsl.runtime.interop import numpy_view
from tiledsl.ws.plan import Plan

BF16 = torch.bfloat16


# fmt: off
@tiledsl.jit
def two_sums(a: tl.Tensor, b: tl.Tensor, b2: tl.Tensor, c: tl.Tensor,
             G: tl.constexpr, U: tl.constexpr, BM: tl.constexpr = 64, BN: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    g, u = tl.full((BM, BN), G, tl.float32), tl.full((BM, BN), U, tl.float32)
    for k in range(0, a.shape[1], 64):
        x = a.load((m, k), (BM, 64))
        g = tl.dot(x, b.load((k, n), (64, BN)), g)
        u = tl.dot(x, b2.load((k, n), (64, BN)), u)
    c.store((m, n), g + 2.0 * u)


@tiledsl.jit
def store_then_load(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
    c.store((0, 0), acc)
    c.store((0, 0), tl.trans(c.load((0, 0), (64, 64)).to(tl.float32)))


@tiledsl.jit
def far_rows(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, off):
    m = tl.program_id(0) * 64 + off
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
    c.store((m, 0), acc)


@tiledsl.jit
def shifted(o: tl.Tensor):
    o.store((1,), o.load((0,), (64,)))


@tiledsl.jit
def chain(o: tl.Tensor, n):
    for i in range(n):
        o.store((i + 1,), o.load((i,), (256,)))


@tiledsl.jit
def overwritten(o: tl.Tensor):
    o.store((0, 0), tl.full((16, 16), 1.0, tl.float32))
    o.store((8, 3), tl.full((16, 16), 9.0, tl.float32))
# fmt: on


def mat(rows: int, cols: int) -> torch.Tensor:
    return torch.randn(rows, cols).to(BF16)


def both(kernel: Any, args: tuple[Any, ...], grid: tuple[int, ...], seed: int) -> Any:
    """Runs interpreter and emulator on copies; the compiled kernel."""
    mine = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)
    theirs = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)
    kernel[grid](*mine)
    call, request = kernel.request_for(args, {}, grid)
    made = next(iter(modules(request)))
    names = kernel.description.names
    arrays = {
        n: numpy_view(v) if isinstance(v, torch.Tensor) else v
        for n, v in zip(names, theirs, strict=False)
        if n in call.runtime
    }
    emulate.run(made.module, arrays, (*grid, 1, 1)[:3], seed=seed, seconds=120.0)
    for one, other in zip(mine, theirs, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(other, one, rtol=2e-2, atol=2e-2, equal_nan=True)
    return made


@pytest.mark.parametrize("starts", [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0), (1.0, 2.0)], ids=str)
def test_accumulators_start_from_values_of_their_own(starts: tuple[float, float]) -> None:
    args = (mat(64, 192), mat(192, 64), mat(192, 64), torch.empty(64, 64), *starts)
    assert isinstance(both(two_sums, args, (1, 1), 0).plan, Plan)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_load_sees_the_store_before_it(seed: int) -> None:
    both(store_then_load, (mat(64, 128), mat(128, 64), torch.empty(64, 64)), (1,), seed)


def test_rows_beyond_32_bits_are_dropped() -> None:
    args = (mat(64, 64), mat(64, 64), torch.full((64, 64), 7.0), 2**32)
    both(far_rows, args, (2,), 0)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_accesses_of_one_tensor_keep_their_order(seed: int) -> None:
    both(shifted, (torch.randn(80),), (1,), seed)
    both(chain, (torch.randn(400), 5), (1,), seed)
    both(overwritten, (torch.zeros(32, 32),), (1,), seed)
