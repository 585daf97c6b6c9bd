"""Matmuls that unpack 4-bit weights in their loops: shifted words, joined halves, interleaved words.

One list for the emulation, NVRTC and the GPU.
"""

from __future__ import annotations

from typing import Any

import torch

import tiledsl
import tiledsl.language as tl


@tiledsl.jit
def shifted_words(
    a_ptr, b_ptr, s_ptr, z_ptr, c_ptr, M, N, K, group,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Eight rows of weights in each word; a scale and a packed zero for each group of rows."""
    part = tl.program_id(1)
    rows = tl.program_id(0) // tl.cdiv(N, BN) * BM + tl.arange(0, BM)
    cols = tl.program_id(0) % tl.cdiv(N, BN) * BN + tl.arange(0, BN)
    ks = part * BK + tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * K + ks[None, :]
    b_ptrs = b_ptr + (ks[:, None] // 8) * N + cols[None, :]
    shift, zero_shift = ks % 8 * 4, cols % 8 * 4
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK * SPLIT)):
        a = tl.load(a_ptrs, mask=rows[:, None] < M, other=0.0)
        b = tl.load(b_ptrs)
        at = (k * SPLIT + part) // (group // BK)
        scales = tl.load(s_ptr + cols + at * N)
        zeros = tl.load(z_ptr + cols // 8 + at * (N // 8))
        zeros = (((zeros >> zero_shift) & 0xF) + 1) * scales
        b = ((b >> shift[:, None]) & 0xF) * scales[None, :] - zeros[None, :]
        acc += tl.dot(a, b.to(a.dtype))
        a_ptrs += BK * SPLIT
        b_ptrs += BK * SPLIT // 8 * N
    at = (part * M + rows[:, None]) * N + cols[None, :]
    tl.store(c_ptr + at, acc, mask=rows[:, None] < M)


@tiledsl.jit
def joined_halves(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """Two rows of signed weights in each byte."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = (tl.program_id(1) * BN + tl.arange(0, BN)) % N
    ks, halves = tl.arange(0, BK), tl.arange(0, BK // 2)
    a_ptrs = a_ptr + rows[:, None] * K + ks[None, :]
    b_ptrs = b_ptr + halves[:, None] * N + cols[None, :]
    four = tl.full((1,), 4, dtype=tl.int8)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        mask = (rows[:, None] < M) & (ks[None, :] < K - k * BK)
        a = tl.load(a_ptrs, mask=mask, other=0.0)
        b = tl.load(b_ptrs)
        low, high = (b << four) >> four, b >> four
        both = tl.join(low.to(a.dtype), high.to(a.dtype)).permute(0, 2, 1).reshape(BK, BN)
        acc += tl.dot(a, both)
        a_ptrs += BK
        b_ptrs += BK // 2 * N
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=rows[:, None] < M)


@tiledsl.jit
def interleaved_words(
    a_ptr, b_ptr, s_ptr, z_ptr, c_ptr, M, N, K, group,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Eight columns of weights in each word, in the order of AWQ."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    words = tl.program_id(1) * (BN // 8) + tl.arange(0, BN // 8)
    ks = tl.arange(0, BK)
    order = ((tl.arange(0, 2) * 4)[None, :] + tl.arange(0, 4)[:, None]).reshape(8)
    shifts = tl.broadcast_to((order * 4)[None, :], (BK * (BN // 8), 8)).reshape(BK, BN)
    acc = tl.zeros((BM, BN), c_ptr.type.element_ty)
    for k in range(0, tl.cdiv(K, BK)):
        inside = ks < K
        a = tl.load(
            a_ptr + rows[:, None] * K + ks[None, :], mask=(rows[:, None] < M) & inside[None, :]
        )
        b = tl.load(b_ptr + ks[:, None] * (N // 8) + words[None, :], mask=inside[:, None])
        at = BK * k // group
        zeros = tl.load(z_ptr + at * (N // 8) + words)
        scales = tl.load(s_ptr + at * N + cols)
        for _ in tl.static_range(3):
            b = tl.interleave(b, b)
            zeros = tl.interleave(zeros, zeros)
        b = (b >> shifts) & 0xF
        zeros = (tl.broadcast_to(zeros[None, :], (BK, BN)) >> shifts) & 0xF
        b = ((b - zeros) * scales[None, :]).to(a.dtype)
        acc = tl.dot(a, b, acc, out_dtype=c_ptr.type.element_ty)
        ks += BK
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=rows[:, None] < M)


def _words(*shape: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)


def _nibbles(words: torch.Tensor) -> torch.Tensor:
    """[..., 8] numbers of each word, from the lowest bits on."""
    return (words[..., None] >> (torch.arange(8, device=words.device) * 4)) & 15


def shifted_args(
    M: int, N: int, K: int, blocks: tuple[int, int, int], split: int = 1, dtype: Any = torch.float16
) -> list[Any]:
    torch.manual_seed(M + N + K)
    a = torch.randn(M, K).to(dtype)
    s = (torch.rand(K // 128, N) * 0.05).to(dtype)
    c = torch.full((split, M, N), float("nan"))
    return [a, _words(K // 8, N), s, _words(K // 128, N // 8), c, M, N, K, 128, *blocks, split]


def shifted_want(args: list[Any]) -> torch.Tensor:
    """The product, added up over the parts of K."""
    a, b, s, z = args[:4]
    K, N = a.shape[1], b.shape[1]
    weights = _nibbles(b).permute(0, 2, 1).reshape(K, N)
    zeros = (_nibbles(z).reshape(z.shape[0], N) + 1).to(a.dtype) * s
    scales, zeros = (x.repeat_interleave(128, 0) for x in (s, zeros))
    return a.float() @ (weights.to(a.dtype) * scales - zeros).float()


def joined_args(M: int, N: int, K: int, blocks: tuple[int, int, int]) -> list[Any]:
    torch.manual_seed(M + N + K)
    b = torch.randint(-128, 128, (K // 2, N), dtype=torch.int8)
    a, c = torch.randn(M, K).bfloat16(), torch.full((M, N), float("nan"))
    return [a, b, c, M, N, K, *blocks]


def joined_want(args: list[Any]) -> torch.Tensor:
    a, b = args[0], args[1].int()
    low, high = (b << 28) >> 28, b >> 4
    weights = torch.stack([low, high], 1).reshape(a.shape[1], b.shape[1])
    return a.float() @ weights.float()


def interleaved_args(
    M: int, N: int, K: int, blocks: tuple[int, int, int], out: Any = torch.float32
) -> list[Any]:
    torch.manual_seed(M + N + K)
    a = torch.randn(M, K).half()
    s = (torch.rand(K // 128, N) * 0.05).half()
    c = torch.full((M, N), float("nan")).to(out)
    return [a, _words(K, N // 8), s, _words(K // 128, N // 8), c, M, N, K, 128, *blocks]


def interleaved_want(args: list[Any]) -> torch.Tensor:
    a, b, s, z = args[:4]
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], device=b.device)
    weights, zeros = (_nibbles(x)[..., order].reshape(x.shape[0], -1) for x in (b, z))
    weights = weights - zeros.repeat_interleave(128, 0)
    return a.float() @ (weights.half() * s.repeat_interleave(128, 0)).float()
