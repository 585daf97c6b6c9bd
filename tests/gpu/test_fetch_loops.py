"""Loops whose warps meet in each iteration, with later iterations fetched into shared memory."""

from __future__ import annotations

import pytest
import torch

from examples import norms
from tests.emulation.test_emulated_fetch_loops import centred_rows
from tests.emulation.test_emulated_fetch_loops import scaled_rows

pytestmark = pytest.mark.gpu
F32, BF16 = torch.float32, torch.bfloat16


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


@pytest.mark.parametrize("rows", [1, 131, 1000])
@pytest.mark.parametrize("width", [1024, 1000, 5001, 16384, 32768, 50257])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_two_sums(width: int, dtype: torch.dtype, rows: int) -> None:
    x, dy = (torch.randn(rows, width, device="cuda", dtype=dtype) for _ in range(2))
    y = torch.full_like(x, float("nan"))
    block = 1 << (width - 1).bit_length()
    for _ in range(3):
        centred_rows[(66,)](x, dy, y, rows, width, block)
    a, b = x.double(), dy.double()
    want = b - b.mean(-1, keepdim=True) - a * (a * b).mean(-1, keepdim=True)
    assert error(y, want) < (3e-6 if dtype == F32 else 6e-3)


@pytest.mark.parametrize("span", [(0, 0), (3, 4), (0, 5), (1, 40)], ids=str)
def test_every_number_of_trips(span: tuple[int, int]) -> None:
    x = torch.randn(41, 4096, device="cuda")
    x[span[1] :] = float("nan")
    y, total = torch.full_like(x, float("nan")), torch.full((4096,), float("nan"), device="cuda")
    scaled_rows[(1,)](x, y, total, *span, 4096, 4096)
    done = list(range(*span, 2))
    want = x[done] / x[done].abs().amax(-1, keepdim=True)
    torch.testing.assert_close(y[done], want, rtol=1e-6, atol=0)
    torch.testing.assert_close(total, x[done].sum(0), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("width", [1024, 4096, 5000, 16384, 32768])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
@pytest.mark.parametrize("centred", [False, True])
def test_gradients_of_norms(width: int, dtype: torch.dtype, centred: bool) -> None:
    limit = 3e-6 if dtype == F32 else 6e-3
    assert norms.run(700, width, "cuda", dtype, centred=centred) < limit
