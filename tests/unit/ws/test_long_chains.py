"""Loops that are written out make chains of thousands of ops, which no step may recurse over."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import compiler

LONG = 1200
"""Ops at least; Python gives up at 1000 calls inside each other."""


@tiledsl.jit
def floats(x, o, n, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, 128))
    for i in tl.static_range(N // 2):
        v = v * 1.5 + i
    tl.store(o + tl.arange(0, 128), v)


@tiledsl.jit
def hashes(x, o, n, N: tl.constexpr):
    h = tl.arange(0, 128)
    for i in tl.static_range(N // 4):
        h = (h ^ (h >> 3)) * 1664525 + i
    tl.store(o + tl.arange(0, 128), h.to(tl.float32))


@tiledsl.jit
def exponentials(x, o, n, N: tl.constexpr):
    v = tl.load(x + tl.arange(0, 128))
    for i in tl.static_range(N // 4):
        v = v + tl.exp(-v * (i + 1)) * (i + 1)
    tl.store(o + tl.arange(0, 128), v)


@tiledsl.jit
def masks(x, o, n, N: tl.constexpr):
    r = tl.arange(0, 2048)
    m = r < n
    for i in tl.static_range(N // 2):
        m = m | (r < n + i)
    tl.store(o + r, tl.load(x + r, mask=m, other=0.0), mask=m)


@tiledsl.jit
def scalars(x, o, n, N: tl.constexpr):
    r, s = tl.arange(0, 128), tl.program_id(0)
    for _ in tl.static_range(N // 2):
        s = s * 3 + n
    tl.store(o + r, tl.load(x + r + s, mask=r + s < n, other=0.0))


@tiledsl.jit
def pointers(x, o, n, N: tl.constexpr):
    p = x + tl.arange(0, 128)
    for _ in tl.static_range(N):
        p = p + n
    tl.store(o + tl.arange(0, 128), tl.load(p))


@tiledsl.jit
def in_a_loop(x, o, n, N: tl.constexpr):
    r = tl.arange(0, 128)
    s, q = tl.zeros((128,), tl.float32), r
    for _ in range(n):
        s += tl.load(x + q)
        for i in tl.static_range(N // 2):
            q = q * 3 + i
    tl.store(o + r, s)


def text_of(kernel: Any, *args: object, grid: tuple[int, ...] = (8,)) -> str:
    _, request = kernel.request_for(args, {}, grid)
    return next(iter(compiler.modules(request))).module.source


@pytest.mark.parametrize(
    "kernel",
    [floats, hashes, exponentials, masks, scalars, pointers, in_a_loop],
    ids=lambda k: k.__name__,
)
def test_chains_compile(kernel: Any) -> None:
    x = torch.empty(1 << 20, device="meta")
    assert text_of(kernel, x, x, 1000, LONG)


@tiledsl.jit
def product(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, N: tl.constexpr):
    m, n = tl.program_id(0) * 128, tl.program_id(1) * 128
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (128, 64)), b.load((k, n), (64, 128)), acc)
    for i in tl.static_range(N // 2):
        acc = acc * 1.5 + i
    c.store((m, n), acc)


def test_an_epilogue_of_a_long_chain() -> None:
    a = torch.empty(512, 512, device="meta", dtype=torch.bfloat16)
    assert "wgmma" in text_of(
        product, a, a, torch.empty(512, 512, device="meta"), LONG, grid=(4, 4)
    )


@tiledsl.jit
def scaled_operand(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, N: tl.constexpr):
    m, n = tl.program_id(0) * 128, tl.program_id(1) * 128
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(0, a.shape[1], 64):
        left = a.load((m, k), (128, 64))
        for i in tl.static_range(N):
            left = left * 1.5 + i
        acc = tl.dot(left, b.load((k, n), (64, 128)), acc)
    c.store((m, n), acc)


def test_math_on_pairs_is_cut_into_statements() -> None:
    a = torch.empty(512, 512, device="meta", dtype=torch.bfloat16)
    args = (a, a, torch.empty(512, 512, device="meta"), 100)
    _, request = scaled_operand.request_for(args, {}, (4, 4))
    texts: list[str] = []
    for made in compiler.modules(request):
        texts.append(made.module.source)
        made.rejected = "the next one"
    assert any("const auto pair" in text for text in texts)
