"""Exponentials that are computed with less: of what is at most 0, and for results of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.runtime.interop import numpy_view

BLOCK = 4096


@tiledsl.jit
def exponentials(x, y, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), tl.exp(value - tl.max(value, axis=0)))


@tiledsl.jit
def quotients(x, y, d, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) / tl.load(d + at))


def run(kernel: Any, args: list[Any]) -> str:
    made, runtime = compiled(kernel, args, grid=(1, 1, 1))
    arrays = {n: numpy_view(v) for n, v in runtime.items()}
    emulate.run(made.module, arrays, (1, 1, 1), seconds=120.0)
    return made.module.source


def test_exponentials_of_what_is_at_most_zero() -> None:
    """Two ulp down to the smallest normal number, 0 below; the maximum and infinities are exact."""
    x = torch.linspace(-110, 0, BLOCK)
    x[5], y = -float("inf"), torch.empty(BLOCK)
    assert "exp_nonpositive" in run(exponentials, [x, y, BLOCK])
    exact = np.exp(x.double().numpy())
    smallest = np.finfo(np.float32).tiny
    normal = exact > 1.0001 * smallest
    error = np.abs(y.numpy() - exact)[normal] / np.spacing(exact[normal].astype(np.float32))
    assert error.max() <= 2.5
    assert (y.numpy()[exact < 0.9999 * smallest] == 0).all()
    assert y[-1] == 1
    assert y[5] == 0


def test_nan_stays() -> None:
    x = torch.linspace(-5, 0, BLOCK)
    x[7], y = float("nan"), torch.empty(BLOCK)
    run(exponentials, [x, y, BLOCK])
    assert y[7].isnan()
    assert y.isnan().sum() == 1


def test_results_of_16_bits() -> None:
    """One multiplication and ex2, far below the rounding of the result."""
    x, y = torch.linspace(-80, 0, BLOCK), torch.empty(BLOCK, dtype=torch.bfloat16)
    assert "exp2_approx" in run(exponentials, [x, y, BLOCK])
    exact = x.double().exp()
    assert ((y.double() - exact).abs() / exact).max().item() <= 2**-8 * 1.01


def test_quotients() -> None:
    """The full range of divisors: 0, subnormal ones, the largest, infinity."""
    edges = [0.0, 1e-45, 1e-39, 2.0**-126, 1.0, 2.0**126, 2.0**127, 3.4e38, float("inf")]
    x = torch.tensor([0.0, 1e-45, 1e-39, 1.0, -3.0, 3.4e38, -float("inf")])
    x, d = (t.reshape(-1) for t in torch.meshgrid(x, torch.tensor(edges), indexing="ij"))
    x, d = (torch.cat((t, torch.ones(BLOCK - len(t)))) for t in (x, d))
    y = torch.empty(BLOCK)
    run(quotients, [x, y, d, BLOCK])
    exact = (x.double() / d.double()).float()
    normal = exact.abs() >= 2.0**-126
    torch.testing.assert_close(y[normal], exact[normal], rtol=3e-7, atol=0)
    assert torch.equal(y.isnan(), exact.isnan())
    small = ~normal & ~exact.isnan()
    assert (y[small] - exact[small]).abs().max() <= 2.0**-126


@tiledsl.jit
def shares(x, y, large, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    power = tl.exp(tl.load(x + at).to(tl.float32))
    tl.store(y + at, power / (1 + power))
    tl.store(large + at, tl.load(large + at).to(tl.float32) / (1 + power))


def test_quotients_of_16_bits() -> None:
    """Reciprocals of divisors beyond 2**126 are not normal; what they divide may be as large."""
    x = torch.cat((torch.linspace(-100, 88.7, BLOCK - 2), torch.tensor([88.0, 88.0])))
    x, y = x.bfloat16(), torch.empty(BLOCK, dtype=torch.bfloat16)
    large = torch.full_like(y, 2e38)
    large[-1] = float("inf")
    power = x.double().exp()
    exact, quotient = power / (1 + power), large.double() / (1 + power)
    assert "div_normal" in run(shares, [x, y, large, BLOCK])
    torch.testing.assert_close(y.double(), exact, rtol=2**-8 * 1.01, atol=2.0**-126)
    torch.testing.assert_close(large.double(), quotient, rtol=2**-8 * 1.01, atol=0)
