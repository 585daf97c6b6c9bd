"""Matmuls with an operand that no tensor map loads: experts of chosen tokens, convolutions.

One list for the emulation, the checker, NVRTC and the GPU.
"""

from __future__ import annotations

from typing import Any

import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.ring_kernels import seeded


# fmt: off
@triton.jit
def fused_moe(
    a_ptr,
    b_ptr,
    c_ptr,
    topk_weights_ptr,
    sorted_token_ids_ptr,
    expert_ids_ptr,
    num_tokens_post_padded_ptr,
    N,
    K,
    num_valid_tokens,
    stride_am,
    stride_be,
    stride_bn,
    stride_cm,
    top_k: tl.constexpr,
    MUL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Products of sorted tokens with the weights of their experts, as vLLM's kernel computes them."""
    pid = tl.program_id(axis=0)
    EM = tl.load(num_tokens_post_padded_ptr)
    num_pid_m = tl.cdiv(EM, BM)
    num_pid_n = tl.cdiv(N, BN)
    num_pid_in_group = GROUP * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP
    group_size_m = min(num_pid_m - first_pid_m, GROUP)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    if pid_m * BM >= EM:
        return
    offs_token_id = pid_m * BM + tl.arange(0, BM).to(tl.int64)
    offs_token = tl.load(sorted_token_ids_ptr + offs_token_id)
    token_mask = offs_token < num_valid_tokens
    off_experts = tl.load(expert_ids_ptr + pid_m).to(tl.int64)
    offs_bn = (pid_n * BN + tl.arange(0, BN).to(tl.int64)) % N
    offs_k = tl.arange(0, BK)
    a_ptrs = a_ptr + (offs_token[:, None] // top_k * stride_am + offs_k[None, :])
    b_ptrs = b_ptr + off_experts * stride_be + (offs_k[:, None] + offs_bn[None, :] * stride_bn)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=token_mask[:, None] & (offs_k[None, :] < K - k * BK), other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BK, other=0.0)
        acc += tl.dot(a, b)
        a_ptrs += BK
        b_ptrs += BK
    if MUL:
        w = tl.load(topk_weights_ptr + offs_token, mask=token_mask, other=0)
        acc = acc * w[:, None]
    offs_cn = pid_n * BN + tl.arange(0, BN)
    c_ptrs = c_ptr + stride_cm * offs_token[:, None] + offs_cn[None, :]
    tl.store(
        c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=token_mask[:, None] & (offs_cn[None, :] < N)
    )


@triton.jit
def conv(
    x_ptr,
    w_ptr,
    y_ptr,
    B,
    H,
    W,
    C,
    P,
    Q,
    OC,
    R: tl.constexpr,
    S: tl.constexpr,
    PAD: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """A convolution as a product: the rows of the left operand lie anywhere in the image."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    q = rows % Q
    p = rows // Q % P
    n = rows // (Q * P)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    steps = tl.cdiv(C, BK)
    for i in range(0, R * S * steps):
        rs = i // steps
        r, s = rs // S, rs % S
        c = (i % steps) * BK + tl.arange(0, BK)
        h, w = p + r - PAD, q + s - PAD
        inside = (n < B) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        x = tl.load(
            x_ptr + ((n * H + h) * W + w)[:, None] * C + c[None, :],
            mask=inside[:, None] & (c < C)[None, :],
            other=0.0,
        )
        y = tl.load(
            w_ptr + (rs * C + c)[:, None] * OC + cols[None, :],
            mask=(c < C)[:, None] & (cols < OC)[None, :],
            other=0.0,
        )
        acc = tl.dot(x, y, acc)
    tl.store(
        y_ptr + rows[:, None] * OC + cols[None, :],
        acc.to(y_ptr.dtype.element_ty),
        mask=(rows < B * P * Q)[:, None] & (cols < OC)[None, :],
    )

@triton.jit
def changing_rows(a_ptr, rows_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The rows are others in every iteration."""
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, K, BK):
        rows = tl.load(rows_ptr + i // BK * M + m)
        a = tl.load(a_ptr + rows[:, None] * K + i + k[None, :])
        b = tl.load(b_ptr + (i + k[:, None]) * N + n[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc.to(tl.bfloat16))
# fmt: on


def moe_args(
    tokens: int, experts: int, N: int, K: int, tile: tuple[int, int, int], *, top_k: int = 2,
    weighted: bool = True, device: str = "cpu",
) -> tuple[list[Any], torch.Tensor, tuple[int, int]]:  # fmt: skip
    """Arguments of `fused_moe`, what it computes in f32, and its grid."""
    generator = torch.Generator().manual_seed(tokens + experts)
    a, b = seeded(tokens, K), seeded(experts, N, K, seed=1)
    flat = torch.randint(0, experts, (tokens * top_k,), generator=generator)
    rows: list[torch.Tensor] = []
    blocks: list[int] = []
    for e in range(experts):
        mine = (flat == e).nonzero().flatten()
        rows.append(torch.nn.functional.pad(mine, (0, -len(mine) % tile[0]), value=len(flat)))
        blocks += [e] * (len(rows[-1]) // tile[0])
    sorted_rows = torch.cat(rows).int()
    weights = torch.rand(len(flat), generator=generator)
    c = torch.zeros(len(flat), N, dtype=a.dtype)
    total = torch.tensor([len(sorted_rows)], dtype=torch.int32)
    tensors = [a, b, c, weights, sorted_rows, torch.tensor(blocks, dtype=torch.int32), total]
    want = torch.einsum("tk,tnk->tn", a.float()[torch.arange(len(flat)) // top_k], b.float()[flat])
    if weighted:
        want = want * weights[:, None]
    args = [*(t.to(device) for t in tensors), N, K, len(flat), K, N * K, K, N, top_k, weighted]
    return [*args, *tile, 8], want, (len(blocks) * -(-N // tile[1]), 1)


def conv_args(
    B: int, H: int, W: int, C: int, OC: int, tile: tuple[int, int, int], *, device: str = "cpu"
) -> tuple[list[Any], torch.Tensor, tuple[int, int]]:
    """Arguments of `conv` of 3 x 3 with padding, what it computes in f32, and its grid."""
    x, w = seeded(B, H, W, C), seeded(3, 3, C, OC, seed=2)
    y = torch.zeros(B * H * W, OC, dtype=x.dtype)
    planes = x.float().permute(0, 3, 1, 2), w.float().permute(3, 2, 0, 1)
    made = torch.nn.functional.conv2d(*planes, padding=1).permute(0, 2, 3, 1).reshape(-1, OC)
    tensors = [t.to(device) for t in (x, w, y)]
    args = [*tensors, B, H, W, C, H, W, OC, 3, 3, 1, *tile]
    return args, made, (-(-B * H * W // tile[0]), -(-OC // tile[1]))
