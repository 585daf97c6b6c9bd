"""Quotients and other long functions in the emitted text: where they are computed, and with how much."""

from __future__ import annotations

import torch

import tiledsl
import tiledsl.language as tl


@tiledsl.jit
def chosen(x, y, p, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(y + at, tl.where(value > p, value / (1 - p), 0.0))


@tiledsl.jit
def gated(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at).to(tl.float32)
    tl.store(y + at, value * tl.sigmoid(value))


@tiledsl.jit
def softplus(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(y + at, tl.where(value <= 20.0, tl.log(tl.exp(value) + 1), value))


def text(kernel, dtype: torch.dtype, *args: object) -> str:
    x, y = (torch.empty(1024, device="meta", dtype=dtype) for _ in range(2))
    return kernel.cuda(x, y, *args, 1024, grid=(1,))


def test_one_side_of_a_choice_is_divided_before_it() -> None:
    """Else each element is divided in a branch of its own, and the divisor inverted there."""
    assert "? div_full(" not in text(chosen, torch.float32, 0.3)
    assert "div_full(" in text(chosen, torch.float32, 0.3)


def test_one_side_of_a_choice_is_computed_before_it() -> None:
    made = text(softplus, torch.float32)
    assert "? tdsl::log(" not in made
    assert "= tdsl::log(tdsl::exp(" in made


def test_sigmoids_of_16_bits() -> None:
    """1 + exp(-x) is a normal number, and nothing below the 16 bits is kept."""
    short, full = text(gated, torch.bfloat16), text(gated, torch.float32)
    assert "rcp_approx(" in short
    assert "exp2_approx(" in short
    assert "reciprocal(tdsl::exp(" in full
