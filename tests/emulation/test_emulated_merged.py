"""Maxima and sums of exponentials of the warps of a cluster, merged in one exchange."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_staying import run
from tests.emulation.test_emulated_staying import softmax

F32, BF16 = torch.float32, torch.bfloat16
INF, NAN = float("inf"), float("nan")


@tiledsl.jit
def rows_softmax(x, y, lse, weights, n_rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Softmax of a tile of rows, the logarithm of its sums, and what is left of the exponentials."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    mask = (rows < n_rows) & (at < n)
    value = tl.load(x + rows * n + at, mask=mask, other=-float("inf")).to(tl.float32)
    largest = tl.max(value, axis=1, keep_dims=True)
    power = tl.exp(value - largest)
    total = tl.sum(power, axis=1, keep_dims=True)
    tl.store(lse + rows, largest + tl.log(total), mask=rows < n_rows)
    tl.store(weights + rows * n + at, power, mask=mask)
    tl.store(y + rows * n + at, power / total, mask=mask)


@tiledsl.jit
def read_before(x, y, highest, n, BLOCK: tl.constexpr):
    """The maximum is needed before the sum."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=-float("inf")).to(tl.float32)
    largest = tl.max(value, axis=0)
    value = tl.exp(value - largest)
    value = value / tl.sum(value * largest, axis=0)
    tl.store(y + row + at, value, mask=at < n)
    tl.store(highest + tl.program_id(0), largest)


def odd_rows(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers; parts without any over -inf; infinities; NaNs, alone, and of a part's all elements."""
    torch.manual_seed(0)
    x = torch.randn(7, n) * 30 - 200
    x[1, : n - 9] = -INF
    x[2, n // 3 :] = -INF
    x[3, 5] = INF
    x[4, n - 1] = NAN
    x[5, : n // 2] = NAN
    x[6] = -INF
    return x.to(dtype)


@pytest.mark.parametrize(("dtype", "n"), [(F32, 16384), (F32, 16000), (BF16, 32768), (BF16, 32001)])
def test_rows_of_one_dimension(dtype: torch.dtype, n: int) -> None:
    x = odd_rows(n, dtype)
    y = torch.full_like(x, 9.0)
    module = run(softmax, [x, y, n, 1 << (n - 1).bit_length()], 7)
    assert "merge_exponentials" in module.source
    assert "reduce_cluster" not in module.source
    rounding = 2e-5 if dtype == F32 else 1e-2
    torch.testing.assert_close(
        y.double(), x.double().softmax(-1), rtol=rounding, atol=1e-38, equal_nan=True
    )


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("dtype", "n"), [(F32, 16384), (BF16, 32001)])
def test_all_that_is_read_behind_the_sum(dtype: torch.dtype, n: int, seed: int) -> None:
    x = odd_rows(n, dtype)
    y, power, lse = torch.full_like(x, 9.0), torch.full_like(x, 9.0), torch.zeros(7)
    module = run(rows_softmax, [x, y, lse, power, 7, n, 1, 1 << (n - 1).bit_length()], 7, seed)
    assert module.source.count("merge_exponentials<") == 1
    rounding, exact = 2e-5 if dtype == F32 else 1e-2, x.double()
    torch.testing.assert_close(
        y.double(), exact.softmax(-1), rtol=rounding, atol=1e-38, equal_nan=True
    )
    kept = torch.tensor([0, 1, 2])
    torch.testing.assert_close(lse[kept].double(), exact.logsumexp(-1)[kept], rtol=1e-6, atol=0)
    want = (exact - exact.amax(-1, keepdim=True)).exp()
    torch.testing.assert_close(power[kept].double(), want[kept], rtol=rounding, atol=1e-38)
    assert power[6].isnan().all()


def test_a_maximum_that_is_read_before_the_sum_is_exchanged_alone() -> None:
    x = torch.randn(3, 16384) + 5
    y, highest = torch.full_like(x, NAN), torch.zeros(3)
    module = run(read_before, [x, y, highest, 16384, 16384], 3)
    assert "merge_exponentials" not in module.source
    assert module.source.count("reduce_cluster<") == 2
    assert torch.equal(highest, x.amax(-1))


@tiledsl.jit
def scaled_softmax(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=-float("inf")).to(tl.float32) * 0.125
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row + at, power / tl.sum(power, axis=0), mask=at < n)


@pytest.mark.parametrize(("n", "block"), [(16384, 16384), (16001, 16384), (50, 64)], ids=str)
def test_scaled_rows_of_one_dimension(n: int, block: int) -> None:
    x = torch.randn(3, n) * 30
    y = torch.full_like(x, 9.0)
    module = run(scaled_softmax, [x, y, n, block], 3)
    assert ("merge_exponentials" in module.source) == (block > 64)
    want = (x.double() * 0.125).softmax(-1)
    torch.testing.assert_close(y.double(), want, rtol=2e-5, atol=1e-38)
