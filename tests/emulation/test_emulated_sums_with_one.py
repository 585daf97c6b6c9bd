"""erf and tanh that are only added to constants: right to an ulp of 1 or two, infinities and NaN as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_exponentials import BLOCK
from tests.emulation.test_emulated_exponentials import run


@tiledsl.jit
def gelu(x, y, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476)))


@tiledsl.jit
def far_from_one(x, y, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    """A sum with a number, of which a small or large multiple is multiplied by 1 + erf."""
    value = tl.load(x + tl.arange(0, BLOCK)) + tl.load(x)
    tl.store(y + tl.arange(0, BLOCK), value * SCALE * (1.0 + tl.erf(value)) * (1 / SCALE))


@tiledsl.jit
def one_less(x, y, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), 1.0 - tl.erf(value))


@tiledsl.jit
def one_more(x, y, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), 1.0 + tl.math.tanh(value * 0.8))


@tiledsl.jit
def alone(x, y, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), tl.erf(value))


def outcome(kernel: Any) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Arguments in double precision, results, and the text."""
    x, y = torch.linspace(-9, 9, BLOCK), torch.empty(BLOCK)
    x[:5] = torch.tensor([0.0, 1e-30, float("inf"), -float("inf"), float("nan")])
    text = run(kernel, [x, y, BLOCK])
    return x.double(), y.double(), text


def compare(got: torch.Tensor, want: torch.Tensor, limit: float) -> None:
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())
    known = want.isfinite()
    assert (got - want)[known].abs().max().item() <= limit


@pytest.mark.parametrize(
    ("kernel", "function", "exact", "limit"),
    [
        (one_less, "erf_absolute", lambda x: 1 - torch.erf(x), 2.4e-7),
        (one_more, "tanh_absolute", lambda x: 1 + torch.tanh(0.8 * x), 3.6e-7),
    ],
)
def test_sums(kernel: Any, function: str, exact: Any, limit: float) -> None:
    x, y, text = outcome(kernel)
    assert function in text
    compare(y, exact(x), limit)


def test_gelu_is_one_fused_product() -> None:
    x, y, text = outcome(gelu)
    assert "erf_absolute" in text
    assert "fma(" in text
    want = torch.nn.functional.gelu(x)
    known = x.isfinite()
    assert ((y - want) / x.abs().clamp(min=1))[known].abs().max().item() <= 2.4e-7
    assert y[2] == float("inf")
    assert y[4].isnan()


def test_erf_alone_keeps_its_precision() -> None:
    x, y, text = outcome(alone)
    assert "erf_absolute" not in text
    assert y[1].item() == pytest.approx(torch.erf(x)[1].item(), rel=1e-6)


@pytest.mark.parametrize("power", [-64, -20, -9, 9, 20, 64])
def test_multiples_whose_powers_are_no_numbers(power: int) -> None:
    x, y = torch.linspace(-5, 5, BLOCK), torch.empty(BLOCK)
    run(far_from_one, [x, y, 2.0**power, BLOCK])
    value = (x + x[0]).double()
    want = value * (1 + torch.erf(value))
    assert ((y - want) / value.abs().clamp(min=1)).abs().max().item() <= 4e-7
