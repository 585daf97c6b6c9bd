"""Loops that carry a row's maximum and its sum of exponentials: threads keep their own, merged at the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import simulator
from tiledsl.compiled import Kernel

INF = float("inf")


@tiledsl.jit
def log_sum(x, out, n, scale, BLOCK: tl.constexpr):
    """Logarithm of the sum of exponentials, and the largest element."""
    m, s = -float("inf"), 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < n, other=-float("inf")).to(tl.float32) * scale
        new = tl.maximum(m, tl.max(value))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(value - new))
        m = new
    tl.store(out, tl.log(s) + m)
    tl.store(out + 1, m)


@tiledsl.jit
def masked_base_2(x, out, n, scale, BLOCK: tl.constexpr):
    """The same by powers of two, with a scale inside, of elements that a mask lets through."""
    m, s = -1e30, 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < n, other=0.0)
        new = tl.maximum(tl.max(tl.where(at < n, value, -1e30)), m)
        power = tl.exp2((value - new) * 1.5)
        s = tl.sum(tl.where(at < n, power, 0.0)) + tl.exp2((m - new) * 1.5) * s
        m = new
    tl.store(out, tl.log2(s) + 1.5 * m)
    tl.store(out + 1, m)


@tiledsl.jit
def other_scale(x, out, n, scale, BLOCK: tl.constexpr):
    """Not a sum of exponentials less one maximum."""
    m, s = -float("inf"), 0.0
    for first in range(0, n, BLOCK):
        value = tl.load(x + first + tl.arange(0, BLOCK))
        new = tl.maximum(m, tl.max(value))
        s = s * tl.exp((m - new) * 2.0) + tl.sum(tl.exp(value - new))
        m = new
    tl.store(out, s)


@tiledsl.jit
def read_meanwhile(x, out, n, scale, BLOCK: tl.constexpr):
    """The maximum also counts iterations."""
    m, s, count = -float("inf"), 0.0, 0
    for first in range(0, n, BLOCK):
        value = tl.load(x + first + tl.arange(0, BLOCK))
        new = tl.maximum(m, tl.max(value))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(value - new))
        count += (new > m).to(tl.int32)
        m = new
    tl.store(out, s + count)


def made(kernel: Any, x: torch.Tensor, out: torch.Tensor, scale: float, block: int) -> Kernel:
    return kernel.compile(x, out, x.numel(), scale, block, grid=(1,), num_warps=4)


def loop_of(kernel: Kernel) -> str:
    text = kernel.module.source
    start = text.index("for (int first")
    return text[start : text.index("\n    }\n", start)]


def run(kernel: Any, x: torch.Tensor, scale: float = 1.0, block: int = 1024, seed: int = 0) -> Any:
    out = torch.full((2,), float("nan"))
    compiled = made(kernel, x, out, scale, block)
    assert "block_sync" not in loop_of(compiled)
    given = {"x": x, "out": out, "n": x.numel(), "scale": scale}
    simulator.emulate(compiled, given, (1, 1, 1), seed=seed)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1, 1000, 1024, 2500, 5000])
def test_values(n: int, dtype: torch.dtype) -> None:
    torch.manual_seed(n)
    x = (8 * torch.randn(n)).to(dtype)
    want = (x.double() * 0.7).logsumexp(0)
    got = run(log_sum, x, 0.7, seed=n)
    torch.testing.assert_close(got[0].double(), want, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(got[1], (x.float() * 0.7).max())


@pytest.mark.parametrize("n", [700, 3000])
def test_powers_of_two_with_a_scale(n: int) -> None:
    torch.manual_seed(n)
    x = 3 * torch.randn(n)
    want = (x.double() * 1.5).exp2().sum().log2()
    torch.testing.assert_close(run(masked_base_2, x)[0].double(), want, rtol=1e-6, atol=1e-5)


def test_elements_that_are_no_numbers() -> None:
    """-inf in whole threads, in a whole block behind others, in the whole row; NaN; inf."""
    x = torch.randn(3000)
    x[64:1024] = -INF
    x[1024:2048] = -INF
    want = x.double().logsumexp(0)
    torch.testing.assert_close(run(log_sum, x)[0].double(), want, rtol=1e-6, atol=1e-5)
    assert run(log_sum, torch.full((2000,), -INF))[0].isnan()
    for odd in (INF, float("nan")):
        x[1500] = odd
        assert run(log_sum, x)[0].isnan()


def test_no_iteration() -> None:
    out = torch.full((2,), float("nan"))
    x = torch.randn(2000)
    compiled = made(log_sum, x, out, 1.0, 1024)
    simulator.emulate(compiled, {"x": x, "out": out, "n": 0, "scale": 1.0}, (1, 1, 1))
    assert out.tolist() == [-INF, -INF]


@pytest.mark.parametrize("kernel", [other_scale, read_meanwhile], ids=str)
def test_others_meet_in_each_iteration(kernel: Any) -> None:
    x, out = torch.empty(4096, device="meta"), torch.empty(2, device="meta")
    compiled = made(kernel, x, out, 1.0, 1024)
    assert loop_of(compiled).count("block_sync") >= 2
    assert "reduce_lanes<1, 32>" in loop_of(compiled)


def test_one_exchange_for_each_behind_the_loop() -> None:
    x, out = torch.empty(4096, device="meta"), torch.empty(2, device="meta")
    text = made(log_sum, x, out, 1.0, 1024).module.source
    assert text.count("block_sync();") == 2
    assert text.count("reduce_lanes<1, 32>") == 2
