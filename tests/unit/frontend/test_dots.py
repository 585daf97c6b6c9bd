"""Dots beyond the 16-bit ones: f64, precisions of f32, scaled products, batches."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.errors import TypeMismatch


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


# ---------------------------------------------------------------------- scaled operands
@tiledsl.jit
def scaled(
    a, a_scale, b, b_scale, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, K_PACK: tl.constexpr = True,
):  # fmt: skip
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    g = tl.arange(0, K // 32)
    half_m: tl.constexpr = M if K_PACK else M // 2
    ka: tl.constexpr = K // 2 if A == "e2m1" and K_PACK else K
    rows = tl.arange(0, half_m if A == "e2m1" else M)
    x = tl.load(a + rows[:, None] * ka + tl.arange(0, ka)[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    xs = tl.load(a_scale + m[:, None] * (K // 32) + g[None, :])
    ys = None
    if b_scale is not None:
        ys = tl.load(b_scale + n[:, None] * (K // 32) + g[None, :])
    out = tl.dot_scaled(x, xs, A, y, ys, B, lhs_k_pack=K_PACK)
    tl.store(c + m[:, None] * N + n[None, :], out)


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def bytes_of(*shape: int, low: int = 0, high: int = 256) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )


@pytest.mark.parametrize("k_pack", [True, False])
def test_scaled_e2m1(k_pack: bool) -> None:
    a = bytes_of(16, 32) if k_pack else bytes_of(8, 64)
    scale = bytes_of(16, 2, low=120, high=132)
    b, c = torch.randn(64, 16).bfloat16(), torch.zeros(16, 16)
    scaled[(1,)](a, scale, b, None, c, 16, 16, 64, "e2m1", "bf16", k_pack)
    low, high = FP4[(a & 15).long()], FP4[(a >> 4).long()]
    values = (
        torch.stack([low, high], -1).flatten(1)
        if k_pack
        else torch.stack([low, high], 1).flatten(0, 1)
    )
    wide = values * torch.exp2(scale.float() - 127).repeat_interleave(32, 1)
    torch.testing.assert_close(c, wide @ b.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_scaled_fp8(name: str) -> None:
    kind = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[name]
    a, b = torch.randn(16, 64).to(kind), torch.randn(64, 16).to(kind)
    scales = bytes_of(16, 2, low=125, high=130)
    scales[0, 0], scales[1, 1] = 0, 255
    c = torch.zeros(16, 16)
    scaled[(1,)](a, scales, b.view(torch.uint8), scales, c, 16, 16, 64, name, name)
    factors = torch.exp2(scales.double() - 127).repeat_interleave(32, 1)
    want = (a.double() * factors) @ (b.double() * factors.t())
    want[1, :] = want[:, 1] = float("nan")
    torch.testing.assert_close(c.double(), want, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert "mma_" in scaled.cuda(a, scales, b.view(torch.uint8), scales, c, 16, 16, 64, name, name)


def test_scaled_errors() -> None:
    a, b, c = bytes_of(16, 32), torch.randn(64, 16), torch.zeros(16, 16)
    with pytest.raises(TypeMismatch, match=r"rhs is tl.float32, but its format is bf16"):
        scaled[(1,)](a, bytes_of(16, 2), b, None, c, 16, 16, 64, "e2m1", "bf16")
    with pytest.raises(TypeMismatch, match=r"lhs_format .e3m2. is none of e2m1"):
        scaled[(1,)](a, bytes_of(16, 2), b, None, c, 16, 16, 64, "e3m2", "bf16")
