"""Kernels on meta tensors for the tests of warp specialisation, and short ways to their plans."""

from __future__ import annotations

import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.compiler import modules
from tiledsl.ir.graph import TileGraph
from tiledsl.lowering import device_graph

BF16, FP32 = torch.bfloat16, torch.float32


# fmt: off
@tiledsl.jit
def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)


@tiledsl.jit
def epilogue(a: tl.Tensor, b: tl.Tensor, bias: tl.Tensor, c: tl.Tensor, scale,
             BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    acc = acc * scale + bias.load((n,), (BN,)).to(tl.float32)
    c.store((m, n), tl.maximum(acc, 0.0))


@tiledsl.jit
def attention(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, scale,
              D: tl.constexpr = 64, BM: tl.constexpr = 128, BN: tl.constexpr = 128):
    m = tl.program_id(0) * BM
    rows, cols = m + tl.arange(0, BM), tl.arange(0, BN)
    queries = q.load((m, 0), (BM, D))
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, tl.minimum(m + BM, k.shape[0]), BN):
        scores = tl.dot(queries, k.load((n, 0), (BN, D)).T) * scale
        scores = tl.where(rows[:, None] >= (n + cols)[None, :], scores, -1e30)
        high = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - high[:, None])
        shrink = tl.exp(top - high)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weights.to(tl.bfloat16), v.load((n, 0), (BN, D)), acc)
        top = high
    o.store((m, 0), acc / total[:, None])
# fmt: on


def meta(rows: int, cols: int, dtype: torch.dtype = BF16, pad: int = 0) -> torch.Tensor:
    """[rows, cols] with rows `cols + pad` apart."""
    return torch.empty((rows, cols + pad), device="meta", dtype=dtype)[:, :cols]


def matmul_request(M: int, N: int, K: int, *, pad: int = 0, out=BF16, **options) -> Request:
    """A request for the README matmul, all row-major; rows of a and b `pad` elements further apart."""
    args = (meta(M, K, pad=pad), meta(K, N, pad=pad), meta(M, N, out))
    grid = lambda c: (tl.cdiv(M, c["BM"]), tl.cdiv(N, c["BN"]))  # noqa: E731
    return matmul.request_for(args, options, grid)[1]


def epilogue_request(M: int, N: int, K: int, **options) -> Request:
    bias = torch.empty(N, device="meta", dtype=FP32)
    args = (meta(M, K), meta(K, N), bias, meta(M, N), 0.5)
    grid = lambda c: (tl.cdiv(M, c["BM"]), tl.cdiv(N, c["BN"]))  # noqa: E731
    return epilogue.request_for(args, options, grid)[1]


def attention_request(S: int = 4096, D: int = 64, **options) -> Request:
    args = (meta(S, D), meta(S, D), meta(S, D), meta(S, D), 0.125)
    grid = lambda c: (tl.cdiv(S, c["BM"]), 1)  # noqa: E731
    return attention.request_for(args, {"D": D, **options}, grid)[1]


def first(request: Request) -> Kernel:
    """The first choice of the compiler, before NVRTC sees it."""
    return next(modules(request))


def tile_graph_of(request: Request) -> TileGraph:
    """The TILE graph of a request without `tl.auto`."""
    return device_graph(request, request.constants)
