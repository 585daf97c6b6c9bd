"""Quotients that a loop of copies counts along: for divisors of all signs, from any first iteration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.ring_kernels import copied_kernel
from tests.ring_kernels import ring_kernel
from tests.ring_kernels import seeded
from tiledsl import emulate
from tiledsl.runtime.interop import numpy_view
from tiledsl.simulator import simulate


# fmt: off
@triton.jit
def in_blocks(a_ptr, rows_ptr, b_ptr, c_ptr, count, by, size, N, FIRST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Columns of A lie in blocks of `by` iterations, which may go backwards."""
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    rows = tl.load(rows_ptr + m)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(FIRST, count):
        q, r = i // by, i % by
        at = (q + 16) * size + r * BK
        a = tl.load(a_ptr + rows[:, None] * 2048 + (at + k)[None, :])
        b = tl.load(b_ptr + (i * BK + k)[:, None] * N + n[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)
# fmt: on

BM, BN, BK = 64, 64, 32


def in_blocks_args(by: int, first: int) -> tuple[list[Any], torch.Tensor]:
    """Arguments, and what is computed."""
    count, size = 11, 64
    a, b = seeded(BM, 2048), seeded(count * BK, BN, seed=1)
    rows, c = torch.randperm(BM).int(), torch.full((BM, BN), float("nan"))
    want = torch.zeros(BM, BN)
    for i in range(first, count):
        q, r = (int(i / by), i - int(i / by) * by) if by else (0, 0)
        at = (q + 16) * size + r * BK
        want += a.float()[rows.long(), at : at + BK] @ b.float()[i * BK : (i + 1) * BK]
    return [a, rows, b, c, count, by, size, BN, first, BM, BN, BK], want


def counts(text: str) -> bool:
    return "div_or_zero<int>(i_1" not in text and "mod_or_zero<int>(i_1" not in text


@pytest.mark.parametrize("first", [0, 3], ids=str)
@pytest.mark.parametrize("by", [1, 3, 4, 100, -1, -3, 0], ids=str)
def test_a_load_role(by: int, first: int) -> None:
    args, want = in_blocks_args(by, first)
    made, runtime = copied_kernel(in_blocks, args, grid=(1, 1, 1))
    assert counts(made.module.source)
    simulate(made, runtime, (1, 1))
    torch.testing.assert_close(args[3], want, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(("by", "first"), [(3, 0), (-3, 3), (0, 0)], ids=str)
def test_rings(by: int, first: int) -> None:
    args, want = in_blocks_args(by, first)
    made, runtime = ring_kernel(in_blocks, args, grid=(1, 1, 1))
    assert counts(made.module.source)
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (1, 1, 1), seed=by)
    torch.testing.assert_close(args[3], want, rtol=1e-3, atol=1e-2)


# fmt: off
@triton.jit
def in_scaled_blocks(a_ptr, rows_ptr, b_ptr, c_ptr, count, by, N, SCALE: tl.constexpr, FIRST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Columns of A lie where a multiple of the iteration, from some number on, has its quotient."""
    m, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    rows = tl.load(rows_ptr + m)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, count, 2):
        x = SCALE * i + (tl.program_id(0) + FIRST)
        at = (x // by + 32) * 16 + x % by * 8
        a = tl.load(a_ptr + rows[:, None] * 2048 + (at + k)[None, :])
        b = tl.load(b_ptr + (i * BK + k)[:, None] * N + n[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)
# fmt: on


@pytest.mark.parametrize("scale", [1, 3, 8], ids=str)
@pytest.mark.parametrize("by", [1, 5, 16, 40, -3, 0], ids=str)
def test_scaled(by: int, scale: int) -> None:
    """An iteration moves the dividend by less than a divisor, or by several."""
    count, first = 9, 3
    a, b = seeded(BM, 2048), seeded(count * BK, BN, seed=1)
    rows, c = torch.randperm(BM).int(), torch.full((BM, BN), float("nan"))
    want = torch.zeros(BM, BN)
    for i in range(0, count, 2):
        x = scale * i + first
        q, r = (int(x / by), x - int(x / by) * by) if by else (0, 0)
        at = (q + 32) * 16 + r * 8
        want += a.float()[rows.long(), at : at + BK] @ b.float()[i * BK : (i + 1) * BK]
    args = [a, rows, b, c, count, by, BN, scale, first, BM, BN, BK]
    made, runtime = ring_kernel(in_scaled_blocks, args, grid=(1, 1, 1))
    text = made.module.source
    loop = text[text.index("for (int i_") :]
    assert "div_or_zero<int>" not in loop
    assert "mod_or_zero<int>" not in loop
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (1, 1, 1), seed=by)
    torch.testing.assert_close(c, want, rtol=1e-3, atol=1e-2)
