"""Matmuls and attention whose loads stay pointers: gathered rows, odd strides, paged keys and values.

One list for the emulation, NVRTC and the GPU.
"""

from __future__ import annotations

from typing import Any

import torch

import tiledsl as triton
import tiledsl.language as tl
from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.compiler import modules
from tiledsl.ir.specs import Spec
from tiledsl.runtime.signature import signature
from tiledsl.ws.launch import Launch
from tiledsl.ws.overrides import Overrides
from tiledsl.ws.plan import Plan


@triton.jit
def gathered_matmul(
    a_ptr, rows_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bk, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C = A[rows] @ B: the rows of a mixture of experts."""
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    rows = tl.load(rows_ptr + offs_m, mask=offs_m < M, other=0)
    a_ptrs = a_ptr + rows[:, None] * stride_am + offs_k[None, :]
    b_ptrs = b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=(offs_m[:, None] < M) & (offs_k[None, :] < K - k * BK), other=0.0)
        b = tl.load(b_ptrs, mask=(offs_k[:, None] < K - k * BK) & (offs_n[None, :] < N), other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BK
        b_ptrs += BK * stride_bk
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :]
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def paged_decode(
    q_ptr, k_ptr, v_ptr, table_ptr, out_ptr, length, scale, stride_page, stride_slot, table_stride,
    HEADS: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One query for each of HEADS heads that share keys and values, which lie in pages."""
    request = tl.program_id(0)
    heads, cols = tl.arange(0, HEADS), tl.arange(0, D)
    slots = tl.arange(0, PAGE)
    q = tl.load(q_ptr + request * HEADS * D + heads[:, None] * D + cols[None, :])
    top = tl.full((HEADS,), float("-inf"), tl.float32)
    total = tl.zeros((HEADS,), tl.float32)
    acc = tl.zeros((HEADS, D), tl.float32)
    for page in range(0, tl.cdiv(length, PAGE)):
        block = tl.load(table_ptr + request * table_stride + page).to(tl.int64)
        inside = page * PAGE + slots < length
        at = block * stride_page + slots * stride_slot
        k = tl.load(k_ptr + at[:, None] + cols[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(v_ptr + at[:, None] + cols[None, :], mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - new_top[:, None])
        shrink = tl.exp(top - new_top)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        top = new_top
    out = acc / total[:, None]
    out_ptrs = out_ptr + request * HEADS * D + heads[:, None] * D + cols[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty))


@triton.jit
def strided_matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C = A @ B with K along both operands' rows, which begin at any multiple of an element."""
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.int32 if a_ptr.dtype.element_ty == tl.int8 else tl.float32)
    for k in range(0, K, BK):
        offs_k = k + tl.arange(0, BK)
        a_mask = (offs_m[:, None] < M) & (offs_k[None, :] < K)
        a = tl.load(a_ptr + offs_m[:, None] * stride_am + offs_k[None, :], mask=a_mask, other=0.0)
        b_mask = (offs_k[:, None] < K) & (offs_n[None, :] < N)
        b = tl.load(b_ptr + offs_n[None, :] * stride_bn + offs_k[:, None], mask=b_mask, other=0.0)
        acc = tl.dot(a, b, acc)
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :], acc, mask=mask)


@triton.jit
def narrow_matmul(
    x_ptr, w_ptr, out_ptr, M, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """X @ W.T for few rows of W: the first product of a low-rank update."""
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    k = tl.arange(0, BK)
    x_ptrs = x_ptr + (m % M)[:, None] * K + k[None, :]
    w_ptrs = w_ptr + n[None, :] * K + k[:, None]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, tl.cdiv(K, BK)):
        acc += tl.dot(tl.load(x_ptrs), tl.load(w_ptrs))
        x_ptrs += BK
        w_ptrs += BK
    tl.store(out_ptr + m[:, None] * BN + n[None, :], acc, mask=(m < M)[:, None])


@triton.jit
def scaled_matmul(
    a_ptr, rows_ptr, b_ptr, as_ptr, bs_ptr, c_ptr, M, N, K, stride_as, stride_bs,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """C = A[rows] @ B.T in fp8, scaled for each row of A, 128 rows of B, and BK elements of K."""
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    rows = tl.load(rows_ptr + offs_m, mask=offs_m < M, other=0)
    a_ptrs = a_ptr + rows[:, None] * K + offs_k[None, :]
    b_ptrs = b_ptr + offs_n[None, :] * K + offs_k[:, None]
    as_ptrs, bs_ptrs = as_ptr + rows * stride_as, bs_ptr + offs_n // 128 * stride_bs
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=(offs_m[:, None] < M) & (offs_k[None, :] < K - k * BK), other=0.0)
        b = tl.load(b_ptrs, mask=(offs_k[:, None] < K - k * BK) & (offs_n[None, :] < N), other=0.0)
        a_scale, b_scale = tl.load(as_ptrs + k), tl.load(bs_ptrs + k)
        acc += tl.dot(a, b) * a_scale[:, None] * b_scale[None, :]
        a_ptrs += BK
        b_ptrs += BK
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc, mask=mask)


@triton.jit
def tensor_matmul(
    a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    """C = A @ B of tensor parameters."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)


def seeded(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    """Normal numbers of a dtype, small integers of an integer one."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if not dtype.is_floating_point:
        return torch.randint(-9, 10, shape, generator=generator).to(dtype)
    return torch.randn(*shape, generator=generator).to(dtype)


def gathered_args(
    M: int, N: int, K: int, tile: tuple[int, int, int], *, total: int = 0, device: str = "cpu",
    dtype: torch.dtype = torch.bfloat16, pad: int = 0,
) -> list[Any]:  # fmt: skip
    """Arguments of `gathered_matmul`; rows of A that no index names hold NaN."""
    total = total or 2 * M + 3
    a = torch.full((total, K + pad), float("nan")).to(dtype)
    rows = torch.randperm(total, generator=torch.Generator().manual_seed(M))[:M].to(torch.int32)
    a[rows.long(), :K] = seeded(M, K, dtype=dtype)
    b, c = seeded(K, N, dtype=dtype, seed=1), torch.full((M, N), float("nan"), dtype=dtype)
    tensors = [t.to(device) for t in (a, rows, b, c)]
    return [*tensors, M, N, K, K + pad, N, N, *tile]


def gathered_want(args: list[Any]) -> torch.Tensor:
    """What `gathered_matmul` computes, in f32."""
    a, rows, b, _, _, _, K, *_ = args
    return a[rows.long(), :K].float() @ b.float()


def narrow_args(M: int, K: int, block: tuple[int, int, int]) -> list[Any]:
    x, w = seeded(M, K, seed=1), seeded(block[1], K, seed=2)
    return [x, w, torch.full((M, block[1]), float("nan")), M, K, *block]


def narrow_want(args: list[Any]) -> torch.Tensor:
    return args[0].float() @ args[1].float().T


def scaled_args(
    M: int, N: int, K: int, tile: tuple[int, int, int], *, device: str = "cpu"
) -> list[Any]:
    """Arguments of `scaled_matmul`."""
    fp8, blocks = torch.float8_e4m3fn, -(-K // tile[2])
    rows = torch.randperm(2 * M, generator=torch.Generator().manual_seed(M))[:M].to(torch.int32)
    scales = (
        seeded(2 * M, blocks, dtype=torch.float32),
        seeded(-(-N // 128) + 1, blocks, dtype=torch.float32),
    )
    c = torch.full((M, N), float("nan"))
    tensors = [seeded(2 * M, K, dtype=fp8), rows, seeded(N, K, dtype=fp8, seed=1), *scales, c]
    return [*(t.to(device) for t in tensors), M, N, K, blocks, blocks, *tile]


def scaled_want(args: list[Any]) -> torch.Tensor:
    """What `scaled_matmul` computes, in f32."""
    a, rows, b, a_scale, b_scale, _, _, N, K, *_, BK = args
    block = torch.arange(K, device=a.device) // BK
    left = a.float()[rows.long()] * a_scale[rows.long()][:, block]
    return left @ (b.float() * b_scale[torch.arange(N, device=a.device) // 128][:, block]).T


def paged_args(
    requests: int, heads: int, D: int, page: int, length: int, *, device: str = "cpu"
) -> list[Any]:
    """Arguments of `paged_decode`: the pages of a request lie anywhere."""
    pages = -(-length // page)
    table = torch.randperm(requests * pages + 3, generator=torch.Generator().manual_seed(length))
    table = table[: requests * pages].view(requests, pages).to(torch.int32)
    total = requests * pages + 3
    q = seeded(requests, heads, D, dtype=torch.float16)
    k, v = (seeded(total, page, D, dtype=torch.float16, seed=s) for s in (1, 2))
    out = torch.full_like(q, float("nan"))
    tensors = [t.to(device) for t in (q, k, v, table, out)]
    return [*tensors, length, D**-0.5, page * D, D, pages, heads, D, page]


def paged_want(args: list[Any]) -> torch.Tensor:
    """What `paged_decode` computes, in f32."""
    q, k, v, table, _, length, scale, *_ = args
    keys = k[table.long()].flatten(1, 2)[:, :length].float()
    values = v[table.long()].flatten(1, 2)[:, :length].float()
    return torch.softmax(q.float() @ keys.transpose(1, 2) * scale, -1) @ values


def strided_args(
    M: int, N: int, K: int, tile: tuple[int, int, int], *, device: str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
) -> list[Any]:  # fmt: skip
    """Arguments of `strided_matmul` with rows of K elements."""
    a, b = seeded(M, K, dtype=dtype), seeded(N, K, dtype=dtype, seed=1)
    c = torch.full((M, N), -7777.0).to(torch.float32 if dtype.is_floating_point else torch.int32)
    return [*(t.to(device) for t in (a, b, c)), M, N, K, K, K, N, *tile]


def strided_want(args: list[Any]) -> torch.Tensor:
    """What `strided_matmul` computes, in f32."""
    return args[0].float() @ args[1].float().T


def ring_kernel(
    kernel: Any,
    args: list[Any],
    *,
    grid: tuple[int, int, int] = (32, 32, 1),
    **overrides: Any,
) -> tuple[Kernel, dict[str, Any]]:
    """The single-role kernel for arguments in order, and the run-time ones by name."""
    request, runtime = _request(kernel, args, grid, {"warp_specialize": False, **overrides})
    return list(modules(request))[-1], runtime


def copied_kernel(
    kernel: Any, args: list[Any], *, grid: tuple[int, int, int] = (32, 32, 1), **overrides: Any
) -> tuple[Kernel, dict[str, Any]]:
    """The kernel whose load role copies, for arguments in order, and the run-time ones by name."""
    request, runtime = _request(kernel, args, grid, {"warp_specialize": True, **overrides})
    made = next(modules(request))
    assert isinstance(made.plan, Plan), made.notes
    assert made.plan.copies
    return made, runtime


def _request(
    kernel: Any,
    args: list[Any],
    grid: tuple[int, int, int],
    overrides: dict[str, Any],
) -> tuple[Request, dict[str, Any]]:
    names = kernel.description.names
    constexprs = {p.name for p in kernel.description.parameters if p.is_constexpr}
    given = dict(zip(names, args, strict=True))
    runtime = {n: v for n, v in given.items() if n not in constexprs}
    constants = {n: v for n, v in given.items() if n in constexprs}
    tensors = {p.name for p in kernel.description.parameters if p.annotation == "tensor"}
    found, _ = signature(runtime, pointers=tuple(n for n in names if n not in tensors))
    specs: dict[str, Spec] = dict(zip(found.names, found.specs, strict=True))
    request = Request(
        kernel.fn, specs, constants, Launch(runtime, lambda _: grid),
        Overrides(**overrides),
    )  # fmt: skip
    return request, runtime
