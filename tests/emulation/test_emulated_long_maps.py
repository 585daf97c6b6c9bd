"""Loops over so many registers, with so much to compute of each, that they are not unrolled."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import F32
from tests.emulation.matmuls import compiled
from tests.emulation.matmuls import tensor
from tests.emulation.test_emulated_kernels import normal
from tests.emulation.test_emulated_kernels import same_as_interpreter


@tiledsl.jit
def waves(x: tl.Tensor, y: tl.Tensor, M: tl.constexpr, N: tl.constexpr):
    """Sines and cosines, then what reads them by register again."""
    r = x.load((0, 0), (M, N)).to(tl.float32)
    r = tl.sin(r) + tl.cos(r)
    y.store((0, 0), r - tl.sum(r, 1)[:, None])


@tiledsl.jit
def noise(x: tl.Tensor, y: tl.Tensor, M: tl.constexpr, N: tl.constexpr):
    """Half of the elements, chosen at random."""
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    y.store((0, 0), tl.where(tl.rand(7, at) > 0.5, x.load((0, 0), (M, N)), 0.0))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=["f32", "bf16"])
@pytest.mark.parametrize("shape", [(64, 128), (48, 96)], ids=str)
@pytest.mark.parametrize("kernel", [waves, noise], ids=["waves", "noise"])
def test_long_maps(kernel, shape: tuple[int, int], dtype: np.dtype) -> None:
    M, N = shape
    args = {"x": normal((M, N), dtype), "y": normal((M, N), dtype)}
    options = {"M": M, "N": N, "num_warps": 1}
    made = compiled(kernel, tuple(map(tensor, args.values())), (1,), **options)
    assert re.search(r"#pragma unroll \d", made.module.source)
    same_as_interpreter(kernel, args, ("y",), (1,), tolerance=2e-6, **options)


def test_short_ones_are_unrolled() -> None:
    args = (tensor(normal((16, 64), F32)), tensor(normal((16, 64), F32)))
    made = compiled(waves, args, (1,), M=16, N=64, num_warps=4)
    assert not re.search(r"#pragma unroll \d", made.module.source)
