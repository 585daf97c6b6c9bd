"""Products: persistent with descriptors, split-K with atomics, quantised weights, fp8 with scales, grouped, autotuned."""

from __future__ import annotations

import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.triton_style.cases import Case
from tests.triton_style.cases import seeded
from tiledsl.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _compute_pid(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M, NUM_SMS):
    group_id = tile_id // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + (tile_id % group_size_m)
    pid_n = (tile_id % num_pid_in_group) // group_size_m
    return pid_m, pid_n


@triton.jit
def matmul_persistent(
    a_desc, b_desc, c_desc, M, N, K,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr, EPILOGUE_SUBTILE: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    dtype = tl.float16
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    k_tiles = tl.cdiv(K, BLOCK_SIZE_K)
    num_tiles = num_pid_m * num_pid_n
    tile_id_c = start_pid - NUM_SMS
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS, flatten=True, warp_specialize=False):
        pid_m, pid_n = _compute_pid(tile_id, num_pid_in_group, num_pid_m, GROUP_SIZE_M, NUM_SMS)
        offs_am = pid_m * BLOCK_SIZE_M
        offs_bn = pid_n * BLOCK_SIZE_N
        accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for ki in range(k_tiles):
            offs_k = ki * BLOCK_SIZE_K
            a = a_desc.load([offs_am, offs_k])
            b = b_desc.load([offs_bn, offs_k])
            accumulator = tl.dot(a, b.T, accumulator)
        tile_id_c += NUM_SMS
        pid_m, pid_n = _compute_pid(tile_id_c, num_pid_in_group, num_pid_m, GROUP_SIZE_M, NUM_SMS)
        offs_cm = pid_m * BLOCK_SIZE_M
        offs_cn = pid_n * BLOCK_SIZE_N
        if EPILOGUE_SUBTILE:
            acc = tl.reshape(accumulator, (BLOCK_SIZE_M, 2, BLOCK_SIZE_N // 2))
            acc = tl.permute(acc, (0, 2, 1))
            acc0, acc1 = tl.split(acc)
            c_desc.store([offs_cm, offs_cn], acc0.to(dtype))
            c_desc.store([offs_cm, offs_cn + BLOCK_SIZE_N // 2], acc1.to(dtype))
        else:
            c_desc.store([offs_cm, offs_cn], accumulator.to(dtype))


def _persistent_args(subtile: bool):
    a, b = seeded(100, 96, dtype=torch.float16), seeded(72, 96, dtype=torch.float16)
    c = torch.zeros(100, 72, dtype=torch.float16)
    made = [
        TensorDescriptor.from_tensor(a, [64, 32]),
        TensorDescriptor.from_tensor(b, [64, 32]),
        TensorDescriptor.from_tensor(c, [64, 32 if subtile else 64]),
    ]
    return [*made, 100, 72, 96, 64, 64, 32, 8, subtile, 2]


def _persistent_want(a, b, c, *rest):
    return {2: (a.base.float() @ b.base.float().t()).half()}


# ---------------------------------------------------------------------- device descriptors
@triton.jit
def matmul_device_tma(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    acc = tl.zeros([BM, BN], dtype=tl.float32)
    for k in range(0, K, BK):
        acc += tl.dot(a_desc.load([pid_m * BM, k]), b_desc.load([k, pid_n * BN]))
    c_desc.store([pid_m * BM, pid_n * BN], acc.to(c_desc.dtype))


# ---------------------------------------------------------------------- split-K, autotuned
def _zero_output(nargs):
    if nargs["SPLIT_K"] > 1:
        nargs["C"].zero_()


@triton.autotune(
    configs=[
        triton.Config(
            {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "SPLIT_K": 2},
            num_warps=4,
            num_stages=2,
            pre_hook=_zero_output,
        ),
    ],
    key=["M", "N", "K"],
    prune_configs_by={"early_config_prune": lambda configs, named_args, **kwargs: configs},
)
@triton.heuristics({"EVEN_K": lambda a: a["K"] % (a["BLOCK_K"] * a["SPLIT_K"]) == 0})
@triton.jit
def matmul_split_k(
    A, B, C, M, N, K,
    stride_am, stride_ak,
    stride_bk, stride_bn,
    stride_cm, stride_cn,
    acc_dtype: tl.constexpr,
    input_precision: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    pid_z = tl.program_id(1)
    grid_n = tl.cdiv(N, BLOCK_N)
    pid_m = pid // grid_n
    pid_n = pid % grid_n
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ram = tl.max_contiguous(tl.multiple_of(rm % M, BLOCK_M), BLOCK_M)
    rbn = tl.max_contiguous(tl.multiple_of(rn % N, BLOCK_N), BLOCK_N)
    rk = pid_z * BLOCK_K + tl.arange(0, BLOCK_K)
    A = A + (ram[:, None] * stride_am + rk[None, :] * stride_ak)
    B = B + (rk[:, None] * stride_bk + rbn[None, :] * stride_bn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=acc_dtype)
    for k in range(0, tl.cdiv(K, BLOCK_K * SPLIT_K)):
        if EVEN_K:
            a = tl.load(A)
            b = tl.load(B)
        else:
            k_remaining = K - k * (BLOCK_K * SPLIT_K)
            _0 = tl.zeros((1, 1), dtype=C.dtype.element_ty)
            a = tl.load(A, mask=rk[None, :] < k_remaining, other=_0)
            b = tl.load(B, mask=rk[:, None] < k_remaining, other=_0)
        acc = tl.dot(a, b, acc, out_dtype=acc_dtype, input_precision=input_precision)
        A += BLOCK_K * SPLIT_K * stride_ak
        B += BLOCK_K * SPLIT_K * stride_bk
    acc = acc.to(C.dtype.element_ty)
    C = C + (rm[:, None] * stride_cm + rn[None, :] * stride_cn)
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    if SPLIT_K == 1:
        tl.store(C, acc, mask=mask)
    else:
        tl.atomic_add(C, acc, mask=mask)


def _split_args(k: int):
    a, b = seeded(50, k, dtype=torch.float16), seeded(k, 40, dtype=torch.float16)
    c = torch.full((50, 40), 7.0)
    return [a, b, c, 50, 40, k, *a.stride(), *b.stride(), *c.stride(), tl.float32, None]


# ---------------------------------------------------------------------- int4 weights
@triton.jit
def matmul_int4(
    a_ptr, b_ptr, c_ptr, scales_ptr, zeros_ptr, M, N, K,
    stride_am, stride_bk, stride_cm, stride_sg,
    group_size: tl.constexpr, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    """Eight weights of four bits lie in an int32, along K."""
    pid = tl.program_id(0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    pid_m, pid_n = tl.swizzle2d(
        pid // num_pid_n, pid % num_pid_n, num_pid_m, num_pid_n, GROUP_SIZE_M
    )
    offs_m = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_n = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :]
    b_ptrs = b_ptr + (offs_k[:, None] // 8) * stride_bk + offs_n[None, :]
    shifter = (offs_k % 8) * 4
    zeros_shifter = (offs_n % 8) * 4
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        keep = offs_k < K - k * BLOCK_SIZE_K
        a = tl.load(a_ptrs, mask=(offs_m[:, None] < M) & keep[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=keep[:, None] & (offs_n[None, :] < N), other=0)
        g_id = k * BLOCK_SIZE_K // group_size
        scales = tl.load(scales_ptr + g_id * stride_sg + offs_n, mask=offs_n < N, other=0.0)
        zeros = tl.load(zeros_ptr + g_id * (N // 8) + offs_n // 8, mask=offs_n < N, other=0)
        zeros = (zeros >> zeros_shifter) & 0xF
        b = (b >> shifter[:, None]) & 0xF
        b = (b - zeros[None, :]) * scales[None, :]
        accumulator += tl.dot(a, b.to(a.dtype))
        a_ptrs += BLOCK_SIZE_K
        b_ptrs += (BLOCK_SIZE_K // 8) * stride_bk
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :]
    tl.store(c_ptrs, accumulator, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def _packed(x: torch.Tensor) -> torch.Tensor:
    """[8 n, m] values below 16 as [n, m] int32, the first in the low bits."""
    parts = x.reshape(-1, 8, x.shape[1]).long()
    words = sum(parts[:, i] << (4 * i) for i in range(8))
    return words.int() if (words < 2**31).all() else (words - (words >= 2**31) * 2**32).int()


def _int4_weights():
    g = torch.Generator().manual_seed(0)
    w = torch.randint(0, 16, (64, 48), generator=g)
    z = torch.randint(0, 16, (2, 48), generator=g)
    return w, z, (torch.rand(2, 48, generator=g) / 16).half()


def _int4_args():
    w, z, scales = _int4_weights()
    zeros = _packed(z.t().contiguous()).t().contiguous()
    a = seeded(20, 64, dtype=torch.float16)
    c = torch.zeros(20, 48)
    return [a, _packed(w), c, scales, zeros, 20, 48, 64, 64, 48, 48, 48, 32, 16, 32, 32, 4]


def _int4_want(a, *rest):
    w, z, scales = _int4_weights()
    wide = (w.float() - z.float().repeat_interleave(32, 0)) * scales.float().repeat_interleave(
        32, 0
    )
    return {2: a.float() @ wide.half().float()}


# ---------------------------------------------------------------------- fp8 with block scales
@triton.jit
def per_token_quant_fp8(
    y_ptr, y_q_ptr, y_s_ptr, y_stride, N, eps,
    fp8_min: tl.constexpr, fp8_max: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    g_id = tl.program_id(0)
    y_ptr += g_id.to(tl.int64) * y_stride
    y_q_ptr += g_id.to(tl.int64) * y_stride
    y_s_ptr += g_id
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    y = tl.load(y_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    _absmax = tl.maximum(tl.max(tl.abs(y)), eps)
    y_s = _absmax / fp8_max
    y_s_inv = 1.0 / y_s
    y_q = tl.clamp(y * y_s_inv, fp8_min, fp8_max).to(y_q_ptr.dtype.element_ty)
    tl.store(y_q_ptr + cols, y_q, mask=mask)
    tl.store(y_s_ptr, y_s)


def _quant_want(y, q, s, *rest):
    scale = y.float().abs().amax(1).clamp(min=1e-10) / 448.0
    inverse = 1.0 / scale
    return {1: (y.float() * inverse[:, None]).clamp(-448, 448).to(q.dtype), 2: scale}


@triton.jit
def w8a8_block_fp8_matmul(
    A, B, C, As, Bs, M, N, K, group_n, group_k, stride_am, stride_bn, stride_cm,
    stride_As_m, stride_Bs_n,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
):  # fmt: skip
    pid_m = tl.program_id(axis=0)
    pid_n = tl.program_id(axis=1)
    offs_am = (pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)) % M
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = A + (offs_am[:, None] * stride_am + offs_k[None, :])
    b_ptrs = B + (offs_k[:, None] + offs_bn[None, :] * stride_bn)
    As_ptrs = As + offs_am * stride_As_m
    offs_bsn = offs_bn // group_n
    Bs_ptrs = Bs + offs_bsn * stride_Bs_n
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        k_start = k * BLOCK_SIZE_K
        offs_ks = k_start // group_k
        a_s = tl.load(As_ptrs + offs_ks)
        b_s = tl.load(Bs_ptrs + offs_ks)
        accumulator += tl.dot(a, b) * a_s[:, None] * b_s[None, :]
        a_ptrs += BLOCK_SIZE_K
        b_ptrs += BLOCK_SIZE_K
    if C.dtype.element_ty == tl.bfloat16:
        c = accumulator.to(tl.bfloat16)
    elif C.dtype.element_ty == tl.float16:
        c = accumulator.to(tl.float16)
    else:
        c = accumulator.to(tl.float32)
    offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = C + stride_cm * offs_cm[:, None] + offs_cn[None, :]
    tl.store(c_ptrs, c, mask=(offs_cm[:, None] < M) & (offs_cn[None, :] < N))


def _fp8_args():
    a = seeded(40, 128).to(torch.float8_e4m3fn)
    b = seeded(64, 128, seed=1).to(torch.float8_e4m3fn)
    a_s, b_s = seeded(40, 2).abs(), seeded(2, 2, seed=1).abs()
    c = torch.zeros(40, 64, dtype=torch.bfloat16)
    return [a, b, c, a_s, b_s, 40, 64, 128, 32, 64, 128, 128, 64, 2, 2, 32, 32, 64]


def _fp8_want(a, b, c, a_s, b_s, *rest):
    wide_a = a.float() * a_s.repeat_interleave(64, 1)
    wide_b = b.float() * b_s.repeat_interleave(32, 0).repeat_interleave(64, 1)
    return {2: (wide_a @ wide_b.t()).bfloat16()}


# ---------------------------------------------------------------------- grouped, addresses in memory
@triton.jit
def grouped_matmul(
    group_a_ptrs, group_b_ptrs, group_c_ptrs, group_gemm_sizes, g_lds, group_size,
    NUM_SM: tl.constexpr, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
):  # fmt: skip
    tile_idx = tl.program_id(0)
    last_problem_end = 0
    for g in range(group_size):
        gm = tl.load(group_gemm_sizes + g * 3)
        gn = tl.load(group_gemm_sizes + g * 3 + 1)
        gk = tl.load(group_gemm_sizes + g * 3 + 2)
        num_m_tiles = tl.cdiv(gm, BLOCK_SIZE_M)
        num_n_tiles = tl.cdiv(gn, BLOCK_SIZE_N)
        num_tiles = num_m_tiles * num_n_tiles
        while tile_idx >= last_problem_end and tile_idx < last_problem_end + num_tiles:
            k = gk
            lda = tl.load(g_lds + g * 3)
            ldb = tl.load(g_lds + g * 3 + 1)
            ldc = tl.load(g_lds + g * 3 + 2)
            a_ptr = tl.load(group_a_ptrs + g).to(tl.pointer_type(tl.float16))
            b_ptr = tl.load(group_b_ptrs + g).to(tl.pointer_type(tl.float16))
            c_ptr = tl.load(group_c_ptrs + g).to(tl.pointer_type(tl.float16))
            tile_idx_in_gemm = tile_idx - last_problem_end
            tile_m_idx = tile_idx_in_gemm // num_n_tiles
            tile_n_idx = tile_idx_in_gemm % num_n_tiles
            offs_am = tile_m_idx * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
            offs_bn = tile_n_idx * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
            offs_k = tl.arange(0, BLOCK_SIZE_K)
            a_ptrs = a_ptr + offs_am[:, None] * lda + offs_k[None, :]
            b_ptrs = b_ptr + offs_k[:, None] * ldb + offs_bn[None, :]
            accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
            for _kk in range(0, tl.cdiv(k, BLOCK_SIZE_K)):
                tl.multiple_of(a_ptrs, [16, 16])
                tl.multiple_of(b_ptrs, [16, 16])
                a = tl.load(a_ptrs)
                b = tl.load(b_ptrs)
                accumulator += tl.dot(a, b)
                a_ptrs += BLOCK_SIZE_K
                b_ptrs += BLOCK_SIZE_K * ldb
            c = accumulator.to(tl.float16)
            c_ptrs = c_ptr + ldc * offs_am[:, None] + offs_bn[None, :]
            tl.store(c_ptrs, c)
            tile_idx += NUM_SM
        last_problem_end = last_problem_end + num_tiles


SIZES = ((64, 32, 64), (32, 64, 32))


# ---------------------------------------------------------------------- mixture of experts
@triton.jit
def fused_moe(
    a_ptr, b_ptr, c_ptr, topk_weights_ptr, sorted_token_ids_ptr, expert_ids_ptr,
    num_tokens_post_padded_ptr, N, K, num_valid_tokens, stride_am, stride_be, stride_bn, stride_cm,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
    GROUP_SIZE_M: tl.constexpr, MUL_ROUTED_WEIGHT: tl.constexpr, top_k: tl.constexpr,
    compute_type: tl.constexpr, EM: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(EM, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    num_tokens_post_padded = tl.load(num_tokens_post_padded_ptr)
    if pid_m * BLOCK_SIZE_M >= num_tokens_post_padded:
        return
    offs_token_id = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M).to(tl.int64)
    offs_token = tl.load(sorted_token_ids_ptr + offs_token_id)
    token_mask = offs_token < num_valid_tokens
    off_experts = tl.load(expert_ids_ptr + pid_m).to(tl.int64)
    if off_experts == -1:
        offs_n = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
        zero = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=compute_type)
        at = c_ptr + stride_cm * offs_token[:, None] + offs_n[None, :]
        tl.store(at, zero, mask=token_mask[:, None] & (offs_n[None, :] < N))
        return
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N).to(tl.int64)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_token[:, None] // top_k * stride_am + offs_k[None, :])
    b_ptrs = b_ptr + off_experts * stride_be + (offs_k[:, None] + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        left = K - k * BLOCK_SIZE_K
        a = tl.load(a_ptrs, mask=token_mask[:, None] & (offs_k[None, :] < left), other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < left, other=0.0)
        accumulator += tl.dot(a, b)
        a_ptrs += BLOCK_SIZE_K
        b_ptrs += BLOCK_SIZE_K
    if MUL_ROUTED_WEIGHT:
        moe_weight = tl.load(topk_weights_ptr + offs_token, mask=token_mask, other=0)
        accumulator = accumulator * moe_weight[:, None]
    accumulator = accumulator.to(compute_type)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_token[:, None] + offs_cn[None, :]
    tl.store(c_ptrs, accumulator, mask=token_mask[:, None] & (offs_cn[None, :] < N))


def _routing(tokens: int, top_k: int, experts: int, block: int):
    ids = torch.stack([torch.randperm(experts, generator=torch.Generator().manual_seed(i))[:top_k]
                       for i in range(tokens)])  # fmt: skip
    flat = ids.flatten()
    sorted_ids, expert_ids = [], []
    for e in range(experts):
        mine = (flat == e).nonzero().flatten().tolist()
        mine += [flat.numel()] * (-len(mine) % block)
        sorted_ids += mine
        expert_ids += [e if e != 1 else -1] * (len(mine) // block)
    return (
        ids,
        torch.tensor(sorted_ids, dtype=torch.int32),
        torch.tensor(expert_ids, dtype=torch.int32),
    )


def _moe_args():
    _ids, sorted_ids, expert_ids = _routing(12, 2, 4, 16)
    a, b = seeded(12, 48, dtype=torch.bfloat16), seeded(4, 40, 48, dtype=torch.bfloat16)
    weights = seeded(24).sigmoid()
    c = torch.zeros(24, 40, dtype=torch.bfloat16)
    padded = torch.tensor([len(sorted_ids)], dtype=torch.int32)
    room = torch.cat([sorted_ids, torch.full((32,), 24, dtype=torch.int32)])
    return [a, b, c, weights, room, expert_ids, padded, 40, 48, 24, 48, 40 * 48, 48, 40,
            16, 32, 32, 2, True, 2, tl.bfloat16, len(room)]  # fmt: skip


def _moe_want(a, b, c, weights, *rest):
    ids, _, _ = _routing(12, 2, 4, 16)
    out = torch.einsum("tk,tnk->tn", a.float().repeat_interleave(2, 0), b.float()[ids.flatten()])
    out = out * weights[:, None] * (ids.flatten() != 1)[:, None]
    return {2: out.bfloat16()}


CASES = [
    *(
        Case(
            f"matmul_persistent{'_subtile' if subtile else ''}",
            matmul_persistent,
            (2,),
            lambda subtile=subtile: _persistent_args(subtile),
            _persistent_want,
            tolerance=2e-2,
        )
        for subtile in (False, True)
    ),
    Case(
        "matmul_device_tma",
        matmul_device_tma,
        lambda meta: (triton.cdiv(80, meta["BM"]), triton.cdiv(64, meta["BN"])),
        lambda: [
            seeded(80, 64, dtype=torch.bfloat16),
            seeded(64, 64, dtype=torch.bfloat16),
            torch.zeros(80, 64, dtype=torch.bfloat16),
            80,
            64,
            64,
        ],
        lambda a, b, *rest: {2: (a.float() @ b.float()).bfloat16()},
        {"BM": 64, "BN": 64, "BK": 32},
        2e-2,
    ),
    *(
        Case(
            f"matmul_split_k_{k}",
            matmul_split_k,
            lambda meta: (
                triton.cdiv(meta["M"], meta["BLOCK_M"]) * triton.cdiv(meta["N"], meta["BLOCK_N"]),
                meta["SPLIT_K"],
            ),
            lambda k=k: _split_args(k),
            lambda a, b, *rest: {2: a.float() @ b.float()},
            tolerance=1e-3,
        )
        for k in (128, 104)
    ),
    Case("matmul_int4", matmul_int4, (4,), _int4_args, _int4_want, tolerance=1e-2),
    Case(
        "per_token_quant_fp8",
        per_token_quant_fp8,
        (3,),
        lambda: [
            seeded(3, 100, dtype=torch.bfloat16),
            torch.zeros(3, 100, dtype=torch.float8_e4m3fn),
            torch.zeros(3),
            100,
            100,
            1e-10,
            -448.0,
            448.0,
            128,
        ],
        _quant_want,
        tolerance=0.13,  # one step of e4m3: the division is within 2 ulp
    ),
    Case("w8a8_block_fp8", w8a8_block_fp8_matmul, (2, 2), _fp8_args, _fp8_want, tolerance=2e-2),
    Case("fused_moe", fused_moe, (20,), _moe_args, _moe_want, tolerance=3e-2),
]
