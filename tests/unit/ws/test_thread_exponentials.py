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


@tiledsl.jit
def other_tile(x, y, out, n, BLOCK: tl.constexpr):
    """A sum over another tile than the maximum, whose elements may lie far above a thread's."""
    m, s = -float("inf"), 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at)
        new = tl.maximum(m, tl.max(value))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(tl.load(y + at) - new))
        m = new
    tl.store(out, s)
    tl.store(out + 1, m)


@tiledsl.jit
def all_of_what_is_masked(x, y, out, n, BLOCK: tl.constexpr):
    """The maximum leaves out elements that are summed up."""
    m, s = -float("inf"), 0.0
    for first in range(0, n, BLOCK):
        value = tl.load(x + first + tl.arange(0, BLOCK))
        new = tl.maximum(m, tl.max(tl.where(value > 1.5, value, -float("inf"))))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(value - new))
        m = new
    tl.store(out, s)
    tl.store(out + 1, m)


@tiledsl.jit
def near_the_maximum(x, y, out, n, BLOCK: tl.constexpr):
    """What is summed up depends on the maximum of all threads."""
    m, s = -float("inf"), 0.0
    for first in range(0, n, BLOCK):
        value = tl.load(x + first + tl.arange(0, BLOCK))
        new = tl.maximum(m, tl.max(value))
        s = s * tl.exp(m - new) + tl.sum(tl.where(value > new - 1.0, tl.exp(value - new), 0.0))
        m = new
    tl.store(out, s)
    tl.store(out + 1, m)


@tiledsl.jit
def scale_of_each_iteration(x, y, out, n, BLOCK: tl.constexpr):
    m, s = -1e3, 0.0
    for first in range(0, n, BLOCK):
        scale = tl.load(y + first) * 0.1 + 1.5
        value = tl.load(x + first + tl.arange(0, BLOCK))
        new = tl.maximum(m, tl.max(value))
        s = s * tl.exp((m - new) * scale) + tl.sum(tl.exp((value - new) * scale))
        m = new
    tl.store(out, s)
    tl.store(out + 1, m)


@tiledsl.jit
def nan_in_the_maximum(x, y, out, n, BLOCK: tl.constexpr):
    """A thread would keep a NaN that is none of its row's maximum."""
    m, s = -float("inf"), 0.0
    for first in range(0, n, BLOCK):
        value = tl.load(x + first + tl.arange(0, BLOCK))
        new = tl.maximum(m, tl.max(value), propagate_nan=tl.PropagateNan.ALL)
        s = s * tl.exp(m - new) + tl.sum(tl.exp(value - new))
        m = new
    tl.store(out, s)
    tl.store(out + 1, m)


@tiledsl.jit
def left_out(x, y, out, n, BLOCK: tl.constexpr):
    """Elements that are left out of the sum alone may be infinite."""
    m, s = -float("inf"), 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at)
        new = tl.maximum(m, tl.max(value))
        s = s * tl.exp(m - new) + tl.sum(tl.where(tl.load(y + at) > 0, tl.exp(value - new), 0.0))
        m = new
    tl.store(out, s)
    tl.store(out + 1, m)


@tiledsl.jit
def as_it_lies(x, out, n, scale, BLOCK: tl.constexpr):
    """The maximum is taken of 16-bit floats where they are loaded, the differences of wider ones."""
    m, s = -float("inf"), 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < n, other=-float("inf")).to(tl.float32)
        new = tl.maximum(m, tl.max(value))
        s = s * tl.exp(m - new) + tl.sum(tl.exp(value - new))
        m = new
    tl.store(out, tl.log(s) + m)
    tl.store(out + 1, m)


OTHERS = [
    other_tile,
    all_of_what_is_masked,
    near_the_maximum,
    scale_of_each_iteration,
    nan_in_the_maximum,
]


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_16_bits_as_they_lie(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    x = (8 * torch.randn(3000)).to(dtype)
    got = run(as_it_lies, x)
    torch.testing.assert_close(got[0].double(), x.double().logsumexp(0), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(got[1], x.float().max())


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


@pytest.mark.parametrize("odd", ["", "nan", "inf"])
@pytest.mark.parametrize("kernel", [*OTHERS, left_out], ids=lambda k: k.__name__)
def test_what_threads_hold_is_enough(kernel: Any, odd: str) -> None:
    """As the interpreter: sums of what no thread can tell alone are made by all."""
    torch.manual_seed(1)
    x, y = 3 * torch.randn(4096), 30 * torch.randn(4096)
    if odd == "nan":
        x[0:4] = x[512:516] = float("nan")
        x[1025] = 70.0
    elif odd:
        x[-3], y[-3] = INF, -1.0
    want, out = torch.full((2, 2), float("nan"))
    compiled = kernel.compile(x, y, out, 4096, 1024, grid=(1,), num_warps=4)
    assert ("block_sync" in loop_of(compiled)) == (kernel is not left_out)
    kernel[(1,)](x, y, want, 4096, 1024)
    given = {"x": x, "y": y, "out": out, "n": 4096}
    simulator.emulate(compiled, given, (1, 1, 1))
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-6, equal_nan=True)
