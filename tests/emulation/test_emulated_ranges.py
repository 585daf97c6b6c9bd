"""Loops at the ends of the integers, steps of 0, f64 dots: the emitted text against the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.errors import TileError
from tiledsl.runtime.interop import numpy_view


def emulated(kernel: Any, args: list[Any]) -> None:
    made, runtime = compiled(kernel, args)
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (1, 1, 1), seconds=60.0)


@tiledsl.jit
def counted(out, first, last, step):
    n = 0
    for i in range(first, last, step):
        n += 1
        tl.store(out + 1, i)
    tl.store(out, n)
    tl.store(out + 2, tl.cdiv(last, 128))


@pytest.mark.parametrize(
    ("first", "last", "step"),
    [
        (2**31 - 5, 2**31 - 1, 2),
        (2**31 - 200, 2**31 - 1, 64),
        (0, 2**31 - 1, 2**30),
        (7, 100, 31),
        (100, 7, -31),
        (5, 5, 1),
    ],
)
def test_ends_of_ranges(first: int, last: int, step: int) -> None:
    out = torch.zeros(3, dtype=torch.int64)
    emulated(counted, [out, first, last, step])
    items = range(first, last, step)
    assert out.tolist() == [len(items), items[-1] if items else 0, -(-last // 128)]


@pytest.mark.parametrize(("first", "last"), [(0, 3), (3, 0)])
def test_a_step_of_zero(first: int, last: int) -> None:
    """An error in the interpreter; no iteration in compiled code, which would not end."""
    out = torch.zeros(3, dtype=torch.int64)
    emulated(counted, [out, first, last, 0])
    assert out[0] == 0
    with pytest.raises(TileError, match="step"):
        counted[(1,)](out, first, last, 0)


@tiledsl.jit
def product(a, b, c, K: tl.constexpr):
    m, k = tl.arange(0, 8)[:, None], tl.arange(0, K)[None, :]
    n = tl.arange(0, 16)[None, :]
    x = tl.load(a + m * K + k)
    y = tl.load(b + tl.arange(0, K)[:, None] * 16 + n)
    tl.store(c + m * 16 + n, tl.dot(x, y))


def test_f64_dot() -> None:
    a, b = torch.randn(8, 12, dtype=torch.float64), torch.randn(12, 16, dtype=torch.float64)
    c = torch.zeros(8, 16, dtype=torch.float64)
    emulated(product, [a, b, c, 12])
    torch.testing.assert_close(c, a @ b, rtol=1e-13, atol=1e-13)
