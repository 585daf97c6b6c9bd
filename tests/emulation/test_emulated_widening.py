"""Bits of 8-bit elements that become 16-bit floats in pairs, for every byte."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_exponentials import run

BLOCK = 1024


def byte(x):
    return x


def low(x):
    return (x.to(tl.int32) << 28) >> 28


def high(x):
    return x.to(tl.int32) >> 4


def low_unsigned(x):
    return x & 15


def high_unsigned(x):
    return (x.to(tl.int32) >> 4) & 15


def biased(x):
    return (x.to(tl.int32) & 15) - 8


def biased_high(x):
    return ((x.to(tl.int32) >> 4) & 15) - 3


def extended(x):
    return ((x.to(tl.int32) & 15) ^ 8) - 8


def inverted(x):
    return (x.to(tl.int32) & 7) ^ 4


def middle(x):
    return (x.to(tl.int32) >> 2) & 7


def shifted_byte(x):
    return x.to(tl.int32) - 128


def far_below(x):
    return ((x.to(tl.int32) << 25) >> 25) - 65


def even_below(x):
    return ((x.to(tl.int32) << 25) >> 25) - 66


def pairs(x):
    return (x.to(tl.int16) << 10) >> 14


@tiledsl.jit
def widened(x, y, F: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, F(tl.load(x + at)).to(y.dtype.element_ty))


WANT = {
    byte: lambda x: x,
    low: lambda x: (x & 15) - ((x & 8) << 1),
    high: lambda x: x >> 4,
    low_unsigned: lambda x: x & 15,
    high_unsigned: lambda x: x >> 4 & 15,
    biased: lambda x: (x & 15) - 8,
    biased_high: lambda x: (x >> 4 & 15) - 3,
    extended: lambda x: (x & 15) - ((x & 8) << 1),
    inverted: lambda x: (x & 7) ^ 4,
    middle: lambda x: x >> 2 & 7,
    shifted_byte: lambda x: x - 128,
    even_below: lambda x: (x & 127) - ((x & 64) << 1) - 66,
    pairs: lambda x: (x >> 4 & 3) - ((x >> 4 & 2) << 1),
}


@pytest.mark.parametrize("source", [torch.int8, torch.uint8])
@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", list(WANT), ids=lambda f: f.__name__)
def test_bits_of_bytes(bits, source, target) -> None:
    x = torch.arange(BLOCK).to(source)
    y = torch.full((BLOCK,), float("nan"), dtype=target)
    wide = WANT[bits](x.to(torch.int64))
    text = run(widened, [x, y, tiledsl.jit(bits), BLOCK])
    assert ("widen<" in text) == (wide.abs().max() <= 256)
    assert torch.equal(y.to(torch.float64), wide.to(target).to(torch.float64))


@pytest.mark.parametrize("source", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16])
def test_small_floats(source, target) -> None:
    x = torch.arange(BLOCK).to(torch.uint8).view(source)
    y = torch.empty(BLOCK, dtype=target)
    assert "widen_floats(" in run(widened, [x, y, tiledsl.jit(byte), BLOCK])
    assert torch.equal(y.isnan(), x.float().isnan())
    assert torch.equal(y.nan_to_num(), x.to(target).nan_to_num())


def add(x):
    return x.to(tl.int32) + 200


def holes(x):
    return x & 5


def other(x):
    return x.to(tl.int32) * 3


@pytest.mark.parametrize("bits", [add, holes, other, far_below], ids=lambda f: f.__name__)
def test_what_is_no_run_of_bits_is_converted_one_by_one(bits) -> None:
    x = torch.arange(BLOCK).to(torch.uint8)
    y = torch.empty(BLOCK, dtype=torch.bfloat16)
    assert "widen<" not in run(widened, [x, y, tiledsl.jit(bits), BLOCK])
    seven = ((x.int() << 25) >> 25).long()
    wide = {
        add: x.long() + 200, holes: x.long() & 5, other: x.long() * 3, far_below: seven - 65,
    }[bits]  # fmt: skip
    assert torch.equal(y, wide.to(torch.bfloat16))


def wraps(x):
    return (x.to(tl.int16) + 32767).to(tl.int32) - 32767


def test_sums_of_16_bits_that_wrap() -> None:
    x = torch.arange(BLOCK).to(torch.uint8)
    y = torch.empty(BLOCK, dtype=torch.float16)
    assert "widen<" not in run(widened, [x, y, tiledsl.jit(wraps), BLOCK])
    assert torch.equal(y, ((x.to(torch.int16) + 32767).int() - 32767).half())


ROWS, COLUMNS = 16, 64


@tiledsl.jit
def scaled(
    x, s, y, BETWEEN: tl.constexpr, OF_SCALE: tl.constexpr, R: tl.constexpr, C: tl.constexpr
):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    scales = tl.broadcast_to(tl.load(s + tl.arange(0, R))[:, None], (R, C)).to(OF_SCALE)
    wide = tl.load(x + at).to(tl.float32) * scales.to(tl.float32)
    tl.store(y + at, wide.to(BETWEEN).to(y.dtype.element_ty))


FLOATS = {tl.float32: torch.float32, tl.bfloat16: torch.bfloat16, tl.float16: torch.float16}


@pytest.mark.parametrize("of_scale", list(FLOATS), ids=str)
@pytest.mark.parametrize("between", list(FLOATS), ids=str)
@pytest.mark.parametrize("target", [torch.bfloat16, torch.float16])
def test_scales_and_products_that_are_rounded_between(target, between, of_scale) -> None:
    """A cast that rounds is no part of a product that rounds once."""
    torch.manual_seed(0)
    x = torch.arange(BLOCK).to(torch.int8)
    s = (torch.randn(ROWS) * torch.logspace(-9, 5, ROWS)).to(target)
    y = torch.empty(BLOCK, dtype=target)
    text = run(scaled, [x, s, y, between, of_scale, ROWS, COLUMNS])
    scales = s.to(FLOATS[of_scale]).float().repeat_interleave(COLUMNS)
    want = (x.float() * scales).to(FLOATS[between]).to(target)
    assert torch.equal(y.isnan(), want.isnan())
    assert torch.equal(y.nan_to_num(), want.nan_to_num())
    exact = {torch.float32, target}
    assert ("widen<" in text) == ({FLOATS[of_scale], FLOATS[between]} <= exact)
