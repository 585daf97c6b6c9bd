"""Dots beyond the 16-bit ones: f64, precisions of f32, scaled products, batches."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl


@tiledsl.jit
def product(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, P: tl.constexpr = None):
    acc = tl.zeros((16, 32), c.dtype)
    for k in range(0, a.shape[1], 16):
        acc = tl.dot(a.load((0, k), (16, 16)), b.load((k, 0), (16, 32)), acc, input_precision=P)
    c.store((0, 0), acc)


@pytest.fixture
def highest():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def test_f64() -> None:
    a, b = torch.randn(16, 64, dtype=torch.float64), torch.randn(64, 32, dtype=torch.float64)
    c = torch.zeros(16, 32, dtype=torch.float64)
    product[(1,)](a, b, c)
    torch.testing.assert_close(c, a @ b, rtol=1e-13, atol=1e-13)
    assert "single role" in product.report(a, b, c)


@pytest.mark.usefixtures("highest")
@pytest.mark.parametrize(
    ("setting", "precision", "is_exact"),
    [
        ("highest", None, True),
        ("high", None, False),
        ("medium", None, False),
        ("high", "ieee", True),
        ("high", "bf16x3", True),
        ("highest", "tf32", False),
    ],
)
def test_precision_follows_torch(setting: str, precision: str | None, is_exact: bool) -> None:
    torch.set_float32_matmul_precision(setting)
    a, b, c = torch.randn(16, 16), torch.randn(16, 32), torch.zeros(16, 32)
    product[(1,)](a, b, c, precision)
    error = (c.double() - a.double() @ b.double()).abs().max().item()
    assert (error < 1e-5) == is_exact
    text = product.cuda(a, b, c, precision)
    assert ("tf32_low" in text) == is_exact
