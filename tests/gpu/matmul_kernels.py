"""Matmul kernels that the GPU tests share, in the plain form of the README."""

from __future__ import annotations

from functools import partial

import torch

import tiledsl
import tiledsl.language as tl
from tests.gpu.guarded import BF16
from tests.gpu.guarded import Guarded
from tests.gpu.guarded import random_input
from tests.gpu.guarded import verify
from tiledsl.ws.plan import Plan

DEVICE = "cuda"


@tiledsl.jit
def matmul(
    a: tl.Tensor,
    b: tl.Tensor,
    c: tl.Tensor,
    BM: tl.constexpr = tl.auto,
    BN: tl.constexpr = tl.auto,
    BK: tl.constexpr = 64,
):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)


@tiledsl.jit
def matmul_trans(
    a: tl.Tensor,
    b: tl.Tensor,
    c: tl.Tensor,
    TA: tl.constexpr,
    TB: tl.constexpr,
    BM: tl.constexpr = tl.auto,
    BN: tl.constexpr = tl.auto,
    BK: tl.constexpr = 64,
):
    """The tensors hold the transposes: a is [K, M] when TA, b is [N, K] when TB."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[0] if TA else a.shape[1], BK):
        x = tl.trans(a.load((k, m), (BK, BM))) if TA else a.load((m, k), (BM, BK))
        y = tl.trans(b.load((n, k), (BN, BK))) if TB else b.load((k, n), (BK, BN))
        acc = tl.dot(x, y, acc)
    c.store((m, n), acc)


@tiledsl.jit
def batched(
    a: tl.Tensor,
    b: tl.Tensor,
    c: tl.Tensor,
    BM: tl.constexpr = tl.auto,
    BN: tl.constexpr = tl.auto,
    BK: tl.constexpr = 64,
):
    m, n, z = tl.program_id(0) * BM, tl.program_id(1) * BN, tl.program_id(2)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[2], BK):
        acc = tl.dot(a.load((z, m, k), (BM, BK)), b.load((z, k, n), (BK, BN)), acc)
    c.store((z, m, n), acc)


@tiledsl.jit
def batched_shared(
    a: tl.Tensor,
    b: tl.Tensor,
    c: tl.Tensor,
    BM: tl.constexpr = tl.auto,
    BN: tl.constexpr = tl.auto,
    BK: tl.constexpr = 64,
):
    """One b for all of the batch."""
    m, n, z = tl.program_id(0) * BM, tl.program_id(1) * BN, tl.program_id(2)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[2], BK):
        acc = tl.dot(a.load((z, m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((z, m, n), acc)


def identity(x):
    return x


def relu(x):
    return tl.maximum(x, 0.0)


def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@tiledsl.jit
def linear(
    a: tl.Tensor,
    b: tl.Tensor,
    bias: tl.Tensor,
    c: tl.Tensor,
    scale: tl.float32,
    activation: tl.constexpr,
    BM: tl.constexpr = tl.auto,
    BN: tl.constexpr = tl.auto,
    BK: tl.constexpr = 64,
):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), activation(acc * scale + bias.load((n,), (BN,)).to(tl.float32)))


@tiledsl.jit
def column_bias(
    a: tl.Tensor,
    b: tl.Tensor,
    bias: tl.Tensor,
    c: tl.Tensor,
    BM: tl.constexpr = tl.auto,
    BN: tl.constexpr = tl.auto,
    BK: tl.constexpr = 64,
):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc + bias.load((m,), (BM,)).to(tl.float32)[:, None])


@tiledsl.jit
def residual(
    a: tl.Tensor,
    b: tl.Tensor,
    r: tl.Tensor,
    c: tl.Tensor,
    BM: tl.constexpr = tl.auto,
    BN: tl.constexpr = tl.auto,
    BK: tl.constexpr = 64,
):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc + r.load((m, n), (BM, BN)).to(tl.float32))


def grid_of(m: int, n: int, z: int = 1):
    return lambda meta: (tl.cdiv(m, meta["BM"]), tl.cdiv(n, meta["BN"]), z)


def run(
    m: int,
    n: int,
    k: int,
    *,
    dtype: torch.dtype = BF16,
    out_dtype: torch.dtype = BF16,
    layouts: tuple[str, str, str] = ("row", "row", "row"),
    repeats: int = 1,
    device: str | None = None,
    specialized: bool = False,
    **options,
) -> None:
    """One matmul of the README kernel, verified; `specialized`: it must not fall back to one role."""
    device = device or DEVICE
    a = random_input(layouts[0], (m, k), dtype, device)
    b = random_input(layouts[1], (k, n), dtype, device)
    out = Guarded.output(layouts[2], (m, n), out_dtype, device)
    launch = partial(matmul[grid_of(m, n)], a, b, out.view, **options)
    verify(launch, out, a.double() @ b.double(), k, repeats=repeats)
    if specialized:
        kernel = matmul.compile(a, b, out.view, grid=grid_of(m, n), **options)
        assert isinstance(kernel.plan, Plan), f"right, but {kernel.plan.describe()}: {kernel.notes}"
