"""Loads one iteration ahead: the emitted text against the interpreter, and loops that stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.runtime.interop import numpy_view

AHEAD, AT_ONCE = "loads of the next", "iterations at once before the work of these"


@tiledsl.jit
def row_sums(x, w, y, first, last, n, BLOCK: tl.constexpr):
    """y = the sum of w[r] * x[r] over rows first, first + 2, ... below last, and their number."""
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    count = 0
    for row in range(first, last, 2):
        weight = tl.load(w + row)
        total += tl.load(x + row * n + at, mask=at < n, other=0.5) * weight
        count += 1
    tl.store(y + at, tl.where(at < n, total, count))


@tiledsl.jit
def in_place(x, n, BLOCK: tl.constexpr):
    """Each row becomes the sum of the rows up to it."""
    at = tl.arange(0, BLOCK)
    for row in range(1, n):
        above = tl.load(x + (row - 1) * BLOCK + at)
        tl.store(x + row * BLOCK + at, tl.load(x + row * BLOCK + at) + above)


@tiledsl.jit
def chased(x, y, n, BLOCK: tl.constexpr):
    """Where each element comes from is what was loaded before."""
    at = tl.arange(0, BLOCK)
    for _ in range(n):
        at = tl.load(x + at)
    tl.store(y + tl.arange(0, BLOCK), at)


@tiledsl.jit
def gathered(x, index, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(n):
        total += tl.load(x + tl.load(index + row * BLOCK + at))
    tl.store(y + at, total)


@tiledsl.jit
def long_rows(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(n):
        total += tl.load(x + row * BLOCK + at)
    tl.store(y + at, total)


def emulated(kernel: Any, args: list[Any], **options: Any) -> list[str]:
    """Runs the emitted text; what was noted about it."""
    made, runtime = compiled(kernel, args, **options)
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (1, 1, 1), seconds=60.0)
    return made.notes


@pytest.mark.parametrize("rows", [(0, 0), (3, 4), (0, 7), (5, 2)], ids=str)
def test_every_number_of_trips(rows: tuple[int, int]) -> None:
    """Rows beyond the end hold NaN: nothing of them may be used."""
    torch.manual_seed(0)
    x, w = torch.randn(9, 100), torch.randn(9)
    x[rows[1] :], w[rows[1] :] = float("nan"), float("nan")
    got, want = torch.full((128,), float("nan")), torch.full((128,), float("nan"))
    notes = emulated(row_sums, [x, w, got, *rows, 100, 128])
    row_sums[(1,)](x, w, want, *rows, 100, 128)
    assert any(AHEAD in note for note in notes)
    torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


def test_what_the_loop_writes_is_loaded_in_order() -> None:
    x = torch.rand(6, 64)
    want = x.cumsum(0)
    notes = emulated(in_place, [x, 6, 64])
    assert any("the loop may write what it loads" in note for note in notes)
    torch.testing.assert_close(x, want)


def test_addresses_that_the_loop_computes() -> None:
    x, y = torch.randperm(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)
    notes = emulated(chased, [x, y, 3, 64])
    assert any("addresses depend on what the loop computes" in note for note in notes)
    assert torch.equal(y.long(), x[x[x.long()].long()].long())


def test_indexes_of_a_gather_come_ahead() -> None:
    x, index = torch.rand(1000), torch.randint(0, 1000, (5, 64), dtype=torch.int32)
    y = torch.zeros(64)
    notes = emulated(gathered, [x, index, y, 5, 64])
    assert any(AT_ONCE in note for note in notes)
    torch.testing.assert_close(y, x[index.long()].sum(0))


def test_many_bytes_stay() -> None:
    args = [torch.rand(4, 8192), torch.empty(8192), 4, 8192]
    notes = compiled(long_rows, args, num_warps=4)[0].notes
    assert any("256 bytes a thread, 64 are the most" in note for note in notes)


@tiledsl.jit
def moving_rows(x, w, y, n, stride, BLOCK: tl.constexpr):
    """Pointers that the loop moves; a maximum that is carried, and one register of each load."""
    at = tl.arange(0, BLOCK)
    rows, scale = x + at, w
    total = tl.zeros((BLOCK,), tl.float32)
    most = float("-inf")
    for _ in range(n):
        s = tl.load(scale)
        most = tl.maximum(most, s)
        total += tl.load(rows) * s
        rows += stride
        scale += 1
    tl.store(y + at, total + most)


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8, 9, 15, 16, 17, 30])
def test_groups_of_iterations(n: int) -> None:
    """Small loads of eight iterations come together; rows beyond the end hold NaN."""
    torch.manual_seed(n)
    x, w, y = torch.randn(31, 40), torch.randn(31), torch.full((32,), float("nan"))
    x[n:], w[n:] = float("nan"), float("nan")
    notes = emulated(moving_rows, [x, w, y, n, 40, 32], num_warps=1)
    assert n == 1 or any(AT_ONCE in note for note in notes), notes
    most = w[:n].max() if n else torch.tensor(float("-inf"))
    torch.testing.assert_close(y, (x[:n, :32] * w[:n, None]).sum(0) + most)


@tiledsl.jit
def blocks_of_a_row(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    p = x + at
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, n, BLOCK):
        total += tl.load(p, mask=k + at < n, other=0.0)
        p += BLOCK
    tl.store(y + at, total)


@pytest.mark.parametrize("n", [0, 5, 32, 33, 100])
def test_moved_pointers_in_steps(n: int) -> None:
    """A loop over blocks of a row may have one iteration: each loads for the next one alone."""
    x, y = torch.randn(128), torch.full((32,), float("nan"))
    x[n:] = float("nan")
    notes = emulated(blocks_of_a_row, [x, y, n, 32], num_warps=1)
    assert any("loads of the next iteration" in note for note in notes), notes
    padded = torch.cat([x[:n], torch.zeros(128 - n)])
    torch.testing.assert_close(y, padded.view(4, 32).sum(0))


@tiledsl.jit
def centred(x, y, n, BLOCK: tl.constexpr):
    """Loop after loop over the parts of a row; the last part that there is, and how many."""
    total = tl.zeros((BLOCK,), tl.float32)
    parts, begin = 0, -1
    for k in range(0, n, BLOCK):
        at = k + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < n, other=0.0)
        parts, begin = parts + 1, k
    mean = tl.sum(total) / n
    for k in range(0, n, BLOCK):
        at = k + tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at, mask=at < n) - mean, mask=at < n)
    tl.store(y + 2048, parts)
    tl.store(y + 2049, begin)


@pytest.mark.parametrize("n", [0, 1, 100, 512, 513, 1024, 1500, 2048])
@pytest.mark.parametrize("block", [128, 512], ids=["peeled", "alone"])
def test_no_loads_in_the_last_iteration(n: int, block: int) -> None:
    """It stands behind the loop, or alone where it is the only one; the end of the row holds NaN."""
    torch.manual_seed(n)
    x, y = torch.randn(2048), torch.full((2050,), float("nan"))
    x[n:] = float("nan")
    notes = emulated(centred, [x, y, n, block], num_warps=1)
    assert any("loads of the next iteration" in note for note in notes), notes
    torch.testing.assert_close(y[:n], x[:n] - x[:n].mean())
    assert y[n:2048].isnan().all()
    parts = -(-n // block)
    assert y[2048:].tolist() == [parts, (parts - 1) * block if n else -1]
