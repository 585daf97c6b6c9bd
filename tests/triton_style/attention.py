# ruff: noqa: E741, PLW2901 - names as in kernels elsewhere
"""Attention: block pointers, gradients, paged decode with split keys, linear attention and state-space scans."""

from __future__ import annotations

import itertools

import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.triton_style.cases import Case
from tests.triton_style.cases import seeded


# ---------------------------------------------------------------------- forward, block pointers
@triton.jit
def _attn_fwd_inner(
    acc, l_i, m_i, q, K_block_ptr, V_block_ptr, start_m, qk_scale,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
    offs_m: tl.constexpr, offs_n: tl.constexpr, N_CTX: tl.constexpr, fp8_v: tl.constexpr,
):  # fmt: skip
    if STAGE == 1:
        lo, hi = 0, start_m * BLOCK_M
    elif STAGE == 2:
        lo, hi = start_m * BLOCK_M, (start_m + 1) * BLOCK_M
        lo = tl.multiple_of(lo, BLOCK_M)
    else:
        lo, hi = 0, N_CTX
    K_block_ptr = tl.advance(K_block_ptr, (0, lo))
    V_block_ptr = tl.advance(V_block_ptr, (lo, 0))
    for start_n in range(lo, hi, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k = tl.load(K_block_ptr)
        qk = tl.dot(q, k)
        if STAGE == 2:
            mask = offs_m[:, None] >= (start_n + offs_n[None, :])
            qk = qk * qk_scale + tl.where(mask, 0, -1.0e6)
            m_ij = tl.maximum(m_i, tl.max(qk, 1))
            qk -= m_ij[:, None]
        else:
            m_ij = tl.maximum(m_i, tl.max(qk, 1) * qk_scale)
            qk = qk * qk_scale - m_ij[:, None]
        p = tl.math.exp2(qk)
        l_ij = tl.sum(p, 1)
        alpha = tl.math.exp2(m_i - m_ij)
        l_i = l_i * alpha + l_ij
        acc = acc * alpha[:, None]
        v = tl.load(V_block_ptr)
        if fp8_v:
            p = p.to(tl.float8e5)
        else:
            p = p.to(tl.float16)
        acc = tl.dot(p, v, acc)
        m_i = m_ij
        V_block_ptr = tl.advance(V_block_ptr, (BLOCK_N, 0))
        K_block_ptr = tl.advance(K_block_ptr, (0, BLOCK_N))
    return acc, l_i, m_i


@triton.jit
def _attn_fwd(
    Q, K, V, sm_scale, M, Out,
    stride_qz, stride_qh, stride_qm, stride_qk,
    stride_kz, stride_kh, stride_kn, stride_kk,
    stride_vz, stride_vh, stride_vk, stride_vn,
    stride_oz, stride_oh, stride_om, stride_on,
    Z, H, N_CTX,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGE: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_N <= HEAD_DIM)
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    off_z = off_hz // H
    off_h = off_hz % H
    qvk_offset = off_z.to(tl.int64) * stride_qz + off_h.to(tl.int64) * stride_qh
    Q_block_ptr = tl.make_block_ptr(
        base=Q + qvk_offset, shape=(N_CTX, HEAD_DIM), strides=(stride_qm, stride_qk),
        offsets=(start_m * BLOCK_M, 0), block_shape=(BLOCK_M, HEAD_DIM), order=(1, 0),
    )  # fmt: skip
    v_order: tl.constexpr = (0, 1) if V.dtype.element_ty == tl.float8e5 else (1, 0)
    V_block_ptr = tl.make_block_ptr(
        base=V + qvk_offset, shape=(N_CTX, HEAD_DIM), strides=(stride_vk, stride_vn),
        offsets=(0, 0), block_shape=(BLOCK_N, HEAD_DIM), order=v_order,
    )  # fmt: skip
    K_block_ptr = tl.make_block_ptr(
        base=K + qvk_offset, shape=(HEAD_DIM, N_CTX), strides=(stride_kk, stride_kn),
        offsets=(0, 0), block_shape=(HEAD_DIM, BLOCK_N), order=(0, 1),
    )  # fmt: skip
    O_block_ptr = tl.make_block_ptr(
        base=Out + qvk_offset, shape=(N_CTX, HEAD_DIM), strides=(stride_om, stride_on),
        offsets=(start_m * BLOCK_M, 0), block_shape=(BLOCK_M, HEAD_DIM), order=(1, 0),
    )  # fmt: skip
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = sm_scale
    qk_scale *= 1.44269504
    q = tl.load(Q_block_ptr)
    if STAGE & 1:
        acc, l_i, m_i = _attn_fwd_inner(
            acc, l_i, m_i, q, K_block_ptr, V_block_ptr, start_m, qk_scale, BLOCK_M, HEAD_DIM,
            BLOCK_N, 4 - STAGE, offs_m, offs_n, N_CTX, V.dtype.element_ty == tl.float8e5,
        )  # fmt: skip
    if STAGE & 2:
        acc, l_i, m_i = _attn_fwd_inner(
            acc, l_i, m_i, q, K_block_ptr, V_block_ptr, start_m, qk_scale, BLOCK_M, HEAD_DIM,
            BLOCK_N, 2, offs_m, offs_n, N_CTX, V.dtype.element_ty == tl.float8e5,
        )  # fmt: skip
    m_i += tl.math.log2(l_i)
    acc = acc / l_i[:, None]
    m_ptrs = M + off_hz * N_CTX + offs_m
    tl.store(m_ptrs, m_i)
    tl.store(O_block_ptr, acc.to(Out.type.element_ty))


def _fwd_args(causal: bool):
    q, k, v = (seeded(1, 2, 128, 64, dtype=torch.float16, seed=i) for i in range(3))
    o, m = torch.zeros_like(q), torch.zeros(2, 128)
    strides = [s for t in (q, k, v, o) for s in t.stride()]
    return [q, k, v, 0.125, m, o, *strides, 1, 2, 128, 64, 64, 64, 3 if causal else 1]


def _fwd_want(q, k, v, scale, m, o, *rest):
    s = q.float() @ k.float().transpose(-1, -2) * scale
    if rest[-1] == 3:
        s = s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), -float("inf"))
    return {5: (s.softmax(-1) @ v.float()).half()}


# ---------------------------------------------------------------------- gradients
@triton.jit
def _attn_bwd_preprocess(O, DO, Delta, Z, H, N_CTX, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr):
    off_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    off_hz = tl.program_id(1)
    off_n = tl.arange(0, HEAD_DIM)
    at = off_hz * HEAD_DIM * N_CTX + off_m[:, None] * HEAD_DIM + off_n[None, :]
    o = tl.load(O + at)
    do = tl.load(DO + at).to(tl.float32)
    delta = tl.sum(o * do, axis=1)
    tl.store(Delta + off_hz * N_CTX + off_m, delta)


@triton.jit
def _attn_bwd_dkdv(
    Q, K, V, sm_scale, DO, DK, DV, L, D, stride_h, stride_tok, N_CTX,
    BLOCK_M1: tl.constexpr, BLOCK_N1: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    bhid = tl.program_id(1)
    adj = (stride_h * bhid).to(tl.int64)
    Q += adj
    K += adj
    V += adj
    DO += adj
    DK += adj
    DV += adj
    L += bhid * N_CTX
    D += bhid * N_CTX
    start_n = tl.program_id(0) * BLOCK_N1
    offs_n = start_n + tl.arange(0, BLOCK_N1)
    offs_k = tl.arange(0, HEAD_DIM)
    dv = tl.zeros([BLOCK_N1, HEAD_DIM], dtype=tl.float32)
    dk = tl.zeros([BLOCK_N1, HEAD_DIM], dtype=tl.float32)
    k = tl.load(K + offs_n[:, None] * stride_tok + offs_k[None, :])
    v = tl.load(V + offs_n[:, None] * stride_tok + offs_k[None, :])
    start_m = start_n if CAUSAL else 0
    num_steps = (N_CTX - start_m) // BLOCK_M1
    offs_m = start_m + tl.arange(0, BLOCK_M1)
    qT_ptrs = Q + offs_m[None, :] * stride_tok + offs_k[:, None]
    do_ptrs = DO + offs_m[:, None] * stride_tok + offs_k[None, :]
    curr_m = start_m
    for _blk_idx in range(num_steps):
        qT = tl.load(qT_ptrs)
        offs_m = curr_m + tl.arange(0, BLOCK_M1)
        m = tl.load(L + offs_m)
        qkT = tl.dot(k, qT) * sm_scale
        pT = tl.math.exp(qkT - m[None, :])
        if CAUSAL:
            pT = tl.where(offs_m[None, :] >= offs_n[:, None], pT, 0.0)
        do = tl.load(do_ptrs)
        ppT = pT.to(tl.float16)
        dv += tl.dot(ppT, do)
        Di = tl.load(D + offs_m)
        dpT = tl.dot(v, tl.trans(do)).to(tl.float32)
        dsT = pT * (dpT - Di[None, :])
        dsT = dsT.to(tl.float16)
        dk += tl.dot(dsT, tl.trans(qT))
        curr_m += BLOCK_M1
        qT_ptrs += BLOCK_M1 * stride_tok
        do_ptrs += BLOCK_M1 * stride_tok
    tl.store(DV + offs_n[:, None] * stride_tok + offs_k[None, :], dv)
    dk *= sm_scale
    tl.store(DK + offs_n[:, None] * stride_tok + offs_k[None, :], dk)


def _bwd_reference(q, k, v, do, causal):
    q, k, v = (x.float().requires_grad_() for x in (q, k, v))
    s = q @ k.transpose(-1, -2) * 0.125
    if causal:
        s = s.masked_fill(~torch.ones_like(s, dtype=torch.bool).tril(), -float("inf"))
    o = s.softmax(-1) @ v
    o.backward(do.float())
    return o.detach(), torch.logsumexp(s, -1).detach(), k.grad, v.grad


def _bwd_args(causal: bool):
    q, k, v, do = (seeded(2, 128, 64, dtype=torch.float16, seed=i) for i in range(4))
    o, lse, _, _ = _bwd_reference(q, k, v, do, causal)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    delta = (o * do.float()).sum(-1)
    return [q, k, v, 0.125, do, dk, dv, lse, delta, 128 * 64, 64, 128, 32, 64, 64, causal]


def _bwd_want(q, k, v, scale, do, *rest):
    _, _, dk, dv = _bwd_reference(q, k, v, do, rest[-1])
    return {5: dk.half(), 6: dv.half()}


# ---------------------------------------------------------------------- paged decode
@triton.jit
def paged_decode(
    Q, K_Buffer, V_Buffer, sm_scale, Req_to_tokens, B_Seqlen, Mid_O, Mid_Lse,
    stride_req, stride_qbs, stride_qh, stride_buf_bs, stride_buf_h,
    stride_mid_ob, stride_mid_oh, stride_mid_os,
    kv_group_num: tl.constexpr, BLOCK_DMODEL: tl.constexpr, BLOCK_N: tl.constexpr,
    NUM_KV_SPLITS: tl.constexpr, PAGE_SIZE: tl.constexpr, logit_cap: tl.constexpr,
):  # fmt: skip
    cur_batch = tl.program_id(0)
    cur_head = tl.program_id(1)
    split_kv_id = tl.program_id(2)
    cur_kv_head = cur_head // kv_group_num
    offs_d = tl.arange(0, BLOCK_DMODEL)
    cur_batch_seq_len = tl.load(B_Seqlen + cur_batch)
    q = tl.load(Q + cur_batch * stride_qbs + cur_head * stride_qh + offs_d).to(tl.float32)
    kv_len_per_split = tl.cdiv(cur_batch_seq_len, NUM_KV_SPLITS)
    split_kv_start = kv_len_per_split * split_kv_id
    split_kv_end = tl.minimum(split_kv_start + kv_len_per_split, cur_batch_seq_len)
    e_max = -float("inf")
    e_sum = 0.0
    acc = tl.zeros([BLOCK_DMODEL], dtype=tl.float32)
    if split_kv_end > split_kv_start:
        for start_n in range(split_kv_start, split_kv_end, BLOCK_N):
            offs_n = start_n + tl.arange(0, BLOCK_N)
            kv_page_number = tl.load(
                Req_to_tokens + stride_req * cur_batch + offs_n // PAGE_SIZE,
                mask=offs_n < split_kv_end,
                other=0,
            )
            kv_loc = kv_page_number * PAGE_SIZE + offs_n % PAGE_SIZE
            offs_buf = (
                kv_loc[:, None] * stride_buf_bs + cur_kv_head * stride_buf_h + offs_d[None, :]
            )
            k = tl.load(K_Buffer + offs_buf, mask=offs_n[:, None] < split_kv_end, other=0.0)
            qk = tl.sum(q[None, :] * k, 1)
            qk *= sm_scale
            if logit_cap > 0:
                qk = logit_cap * (2 * tl.sigmoid(2 * (qk / logit_cap)) - 1)
            qk = tl.where(offs_n < split_kv_end, qk, float("-inf"))
            v = tl.load(V_Buffer + offs_buf, mask=offs_n[:, None] < split_kv_end, other=0.0)
            n_e_max = tl.maximum(tl.max(qk, 0), e_max)
            re_scale = tl.exp(e_max - n_e_max)
            p = tl.exp(qk - n_e_max)
            acc *= re_scale
            acc += tl.sum(p[:, None] * v, 0)
            e_sum = e_sum * re_scale + tl.sum(p, 0)
            e_max = n_e_max
        at = cur_batch * stride_mid_ob + cur_head * stride_mid_oh + split_kv_id * stride_mid_os
        tl.store(Mid_O + at + offs_d, acc / e_sum)
        tl.store(Mid_Lse + at // BLOCK_DMODEL, e_max + tl.log(e_sum))


@triton.jit
def merge_splits(
    Mid_O, Mid_Lse, O, B_Seqlen, stride_b, stride_h, stride_s,
    NUM_KV_SPLITS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0), tl.program_id(1)
    length = tl.load(B_Seqlen + b)
    offs_d = tl.arange(0, D)
    e_sum = 0.0
    e_max = -float("inf")
    acc = tl.zeros([D], dtype=tl.float32)
    at = b * stride_b + h * stride_h
    per_split = tl.cdiv(length, NUM_KV_SPLITS)
    for i in range(0, NUM_KV_SPLITS):
        start = per_split * i
        end = tl.minimum(start + per_split, length)
        if end > start:
            tv = tl.load(Mid_O + at + i * stride_s + offs_d)
            tlogic = tl.load(Mid_Lse + (at + i * stride_s) // D)
            n_e_max = tl.maximum(tlogic, e_max)
            old_scale = tl.exp(e_max - n_e_max)
            acc *= old_scale
            exp_logic = tl.exp(tlogic - n_e_max)
            acc += exp_logic * tv
            e_sum = e_sum * old_scale + exp_logic
            e_max = n_e_max
    tl.store(O + (b * tl.num_programs(1) + h) * D + offs_d, acc / e_sum)


def _pages():
    table = torch.stack([torch.randperm(16, generator=torch.Generator().manual_seed(i))[:8]
                         for i in range(2)]).int()  # fmt: skip
    return table, torch.tensor([29, 3], dtype=torch.int32)


def _decode_args():
    table, lengths = _pages()
    q = seeded(2, 4, 32)
    k, v = seeded(64, 2, 32, dtype=torch.float16), seeded(64, 2, 32, dtype=torch.float16, seed=1)
    mid, lse = torch.zeros(2, 4, 4, 32), torch.zeros(2, 4, 4)
    return [q, k, v, 0.2, table, lengths, mid, lse, 8, 128, 32, 64, 32, 512, 128, 32,
            2, 32, 8, 4, 4, 0.0]  # fmt: skip


def _decode_reference(q, k, v):
    table, lengths = _pages()
    mid, lse, out = torch.zeros(2, 4, 4, 32), torch.zeros(2, 4, 4), torch.zeros(2, 4, 32)
    for b in range(2):
        n = int(lengths[b])
        rows = (table[b, torch.arange(n) // 4] * 4 + torch.arange(n) % 4).long()
        step = -(-n // 4)
        for h in range(4):
            s = (k[rows, h // 2].float() @ q[b, h]) * 0.2
            values = v[rows, h // 2].float()
            out[b, h] = s.softmax(0) @ values
            for i in range(4):
                part = slice(step * i, min(step * (i + 1), n))
                if s[part].numel():
                    mid[b, h, i] = s[part].softmax(0) @ values[part]
                    lse[b, h, i] = s[part].logsumexp(0)
    return mid, lse, out


def _decode_want(q, k, v, *rest):
    mid, lse, _ = _decode_reference(q, k, v)
    return {6: mid, 7: lse}


def _merge_args():
    q, k, v, *_ = _decode_args()
    mid, lse, _ = _decode_reference(q, k, v)
    return [mid, lse, torch.zeros(2, 4, 32), _pages()[1], 512, 128, 32, 4, 32]


def _merge_want(*rest):
    q, k, v, *_ = _decode_args()
    return {2: _decode_reference(q, k, v)[2]}


# ---------------------------------------------------------------------- linear attention, chunks
@triton.jit(do_not_specialize=["T"])
def chunk_linear_attention(
    q, k, v, g, o, h0, ht, cu_seqlens, scale, T,
    H: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr,
    USE_INITIAL_STATE: tl.constexpr, STORE_FINAL_STATE: tl.constexpr, IS_VARLEN: tl.constexpr,
):  # fmt: skip
    i_nh = tl.program_id(0)
    i_n, i_h = i_nh // H, i_nh % H
    if IS_VARLEN:
        bos = tl.load(cu_seqlens + i_n).to(tl.int32)
        eos = tl.load(cu_seqlens + i_n + 1).to(tl.int32)
        T = eos - bos
    else:
        bos, eos = i_n * T, i_n * T + T
    NT = tl.cdiv(T, BT)
    o_i = tl.arange(0, BT)
    m_s = o_i[:, None] >= o_i[None, :]
    b_h = tl.zeros([K, V], dtype=tl.float32)
    if USE_INITIAL_STATE:
        p_h0 = tl.make_block_ptr(h0 + i_nh * K * V, (K, V), (V, 1), (0, 0), (K, V), (1, 0))
        b_h = tl.load(p_h0, boundary_check=(0, 1)).to(tl.float32)
    for i_t in range(NT):
        p_q = tl.make_block_ptr(
            q + (bos * H + i_h) * K, (T, K), (H * K, 1), (i_t * BT, 0), (BT, K), (1, 0)
        )
        p_k = tl.make_block_ptr(
            k + (bos * H + i_h) * K, (K, T), (1, H * K), (0, i_t * BT), (K, BT), (0, 1)
        )
        p_v = tl.make_block_ptr(
            v + (bos * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, 0), (BT, V), (1, 0)
        )
        p_o = tl.make_block_ptr(
            o + (bos * H + i_h) * V, (T, V), (H * V, 1), (i_t * BT, 0), (BT, V), (1, 0)
        )
        p_g = tl.make_block_ptr(g + bos * H + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
        b_q = tl.load(p_q, boundary_check=(0, 1))
        b_k = tl.load(p_k, boundary_check=(0, 1))
        b_v = tl.load(p_v, boundary_check=(0, 1))
        b_g = tl.cumsum(tl.load(p_g, boundary_check=(0,)).to(tl.float32), axis=0)
        last_idx = min((i_t + 1) * BT, T) - 1 - i_t * BT
        b_g_last = tl.sum(tl.where(o_i == last_idx, b_g, 0.0))
        b_q = (b_q * scale).to(b_k.dtype)
        b_s = tl.dot(b_q, b_k) * tl.exp(b_g[:, None] - b_g[None, :])
        b_s = tl.where(m_s, b_s, 0)
        b_o = tl.dot(b_s.to(b_v.dtype), b_v) + tl.dot(b_q, b_h.to(b_q.dtype)) * tl.exp(b_g)[:, None]
        in_range = (i_t * BT + o_i) < T
        b_v = tl.where(in_range[:, None], b_v * tl.exp(b_g_last - b_g)[:, None], 0.0).to(b_k.dtype)
        b_h = b_h * tl.exp(b_g_last) + tl.dot(b_k, b_v)
        tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0, 1))
    if STORE_FINAL_STATE:
        p_ht = tl.make_block_ptr(ht + i_nh * K * V, (K, V), (V, 1), (0, 0), (K, V), (1, 0))
        tl.store(p_ht, b_h.to(p_ht.dtype.element_ty), boundary_check=(0, 1))


def _chunk_args(varlen: bool):
    q, k, v = (seeded(45, 2, 16, seed=i) * 0.5 for i in range(3))
    g = -seeded(45, 2).abs() * 0.1
    cu = torch.tensor([0, 20, 45]) if varlen else None
    heads = 4 if varlen else 2
    h0, ht = seeded(heads, 16, 16), torch.zeros(heads, 16, 16)
    return [
        q,
        k,
        v,
        g,
        torch.zeros_like(v),
        h0,
        ht,
        cu,
        0.25,
        45,
        2,
        16,
        16,
        16,
        True,
        True,
        varlen,
    ]


def _chunk_want(q, k, v, g, o, h0, ht, cu, scale, *rest):
    out, final = torch.zeros_like(o), torch.zeros_like(ht)
    bounds = [0, 45] if cu is None else cu.tolist()
    for n, (start, end) in enumerate(itertools.pairwise(bounds)):
        for h in range(2):
            state = h0[n * 2 + h].clone()
            for t in range(start, end):
                state = state * g[t, h].exp() + k[t, h][:, None] * v[t, h][None, :]
                out[t, h] = (q[t, h] * scale) @ state
            final[n * 2 + h] = state
    return {4: out, 6: final}


# ---------------------------------------------------------------------- state-space scan
@triton.jit
def _ssm_combine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def selective_scan(
    X, Dt, A, B, C, D, Z, Y, L, dt_bias, stride_l,
    DSTATE: tl.constexpr, BLOCK_L: tl.constexpr, HAS_D: tl.constexpr, HAS_Z: tl.constexpr,
    DT_SOFTPLUS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    offs_n = tl.arange(0, DSTATE)
    offs_l = tl.arange(0, BLOCK_L)
    a = tl.load(A + channel * DSTATE + offs_n)
    bias = tl.load(dt_bias + channel)
    state = tl.zeros([DSTATE], dtype=tl.float32)
    for start in range(0, L, BLOCK_L):
        rows = start + offs_l
        keep = rows < L
        x = tl.load(X + rows * stride_l + channel, mask=keep, other=0.0).to(tl.float32)
        dt = tl.load(Dt + rows * stride_l + channel, mask=keep, other=0.0) + bias
        if DT_SOFTPLUS:
            dt = tl.where(dt <= 20.0, tl.math.log1p(tl.exp(dt)), dt)
        dt = tl.where(keep, dt, 0.0)
        b = tl.load(B + rows[:, None] * DSTATE + offs_n[None, :], mask=keep[:, None], other=0.0)
        c = tl.load(C + rows[:, None] * DSTATE + offs_n[None, :], mask=keep[:, None], other=0.0)
        da = tl.exp(dt[:, None] * a[None, :])
        dbx = (dt * x)[:, None] * b
        decay, h = tl.associative_scan((da, dbx), 0, _ssm_combine)
        h += decay * state[None, :]
        y = tl.sum(h * c, axis=1)
        if HAS_D:
            y += x * tl.load(D + channel)
        if HAS_Z:
            z = tl.load(Z + rows * stride_l + channel, mask=keep, other=0.0)
            y *= z * tl.sigmoid(z)
        tl.store(Y + rows * stride_l + channel, y, mask=keep)
        last = offs_l == BLOCK_L - 1
        state = tl.sum(tl.where(last[:, None], h, 0.0), axis=0)


def _scan_args():
    x, dt, z = seeded(37, 3), seeded(37, 3, seed=1), seeded(37, 3, seed=2)
    a = -seeded(3, 8).abs()
    b, c, d = seeded(37, 8), seeded(37, 8, seed=1), seeded(3)
    return [x, dt, a, b, c, d, z, torch.zeros_like(x), 37, seeded(3, seed=5), 3, 8, 16,
            True, True, True]  # fmt: skip


def _scan_want(x, dt, a, b, c, d, z, y, length, bias, *rest):
    dt = torch.nn.functional.softplus(dt + bias)
    state, out = torch.zeros(3, 8), torch.zeros_like(x)
    for t in range(length):
        state = state * (dt[t][:, None] * a).exp() + (dt[t] * x[t])[:, None] * b[t]
        out[t] = (state * c[t]).sum(1)
    return {7: (out + x * d) * torch.nn.functional.silu(z)}


CASES = [
    *(
        Case(
            f"attn_fwd{'_causal' if c else ''}",
            _attn_fwd,
            (2, 2),
            lambda c=c: _fwd_args(c),
            _fwd_want,
            tolerance=5e-3,
        )
        for c in (False, True)
    ),
    Case(
        "attn_bwd_preprocess",
        _attn_bwd_preprocess,
        (2, 2),
        lambda: [
            seeded(2, 64, 32, dtype=torch.float16),
            seeded(2, 64, 32, dtype=torch.float16, seed=1),
            torch.zeros(2, 64),
            1,
            2,
            64,
            32,
            32,
        ],
        lambda o, do, *rest: {2: (o.float() * do.float()).sum(-1)},
        tolerance=1e-4,
    ),
    *(
        Case(
            f"attn_bwd_dkdv{'_causal' if c else ''}",
            _attn_bwd_dkdv,
            (2, 2),
            lambda c=c: _bwd_args(c),
            _bwd_want,
            tolerance=2e-2,
        )
        for c in (False, True)
    ),
    Case("paged_decode", paged_decode, (2, 4, 4), _decode_args, _decode_want, tolerance=1e-4),
    Case("merge_splits", merge_splits, (2, 4), _merge_args, _merge_want, tolerance=1e-4),
    *(
        Case(
            f"chunk_linear_attention{'_varlen' if v else ''}",
            chunk_linear_attention,
            (4 if v else 2,),
            lambda v=v: _chunk_args(v),
            _chunk_want,
            tolerance=1e-3,
        )
        for v in (False, True)
    ),
    Case("selective_scan", selective_scan, (3,), _scan_args, _scan_want, tolerance=1e-4),
]
