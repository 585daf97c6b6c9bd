# ruff: noqa: PLW2901 - names as in kernels elsewhere
"""Attention whose loops differ from the textbook's: two of them, masks of several parts, chosen blocks of keys."""

from __future__ import annotations

import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.triton_style.cases import Case
from tests.triton_style.cases import seeded

PREFIX = 100


# ---------------------------------------------------------------------- a prefix that all see
@triton.jit
def prefix_attention(
    Q, K, V, Out, N_CTX: tl.constexpr, SEEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Causal, except that the first SEEN keys and queries see each other."""
    start_m = tl.program_id(0)
    base = tl.program_id(1) * N_CTX * D
    q_block = tl.make_block_ptr(
        Q + base, (N_CTX, D), (D, 1), (start_m * BLOCK_M, 0), (BLOCK_M, D), (1, 0)
    )
    k_block = tl.make_block_ptr(K + base, (D, N_CTX), (1, D), (0, 0), (D, BLOCK_N), (0, 1))
    v_block = tl.make_block_ptr(V + base, (N_CTX, D), (D, 1), (0, 0), (BLOCK_N, D), (1, 0))
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    q = tl.load(q_block)
    for start_n in range(0, N_CTX, BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        k, v = tl.load(k_block), tl.load(v_block)
        qk = tl.dot(q, k)
        limit = tl.full([1], SEEN, tl.int64)
        both = (offs_m[:, None] < limit) & (start_n + offs_n[None, :] < limit)
        before = offs_m[:, None] >= (start_n + offs_n[None, :])
        qk = tl.where(both | before, qk, float("-inf"))
        qk *= 1.44269504
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        masked_out = m_new == float("-inf")
        alpha = tl.where(masked_out, 0, tl.math.exp2(m_i - m_new))
        p = tl.where(masked_out[:, None], 0, tl.math.exp2(qk - m_new[:, None]))
        acc *= (l_i * 0 + alpha)[:, None]
        acc = tl.dot(p.to(tl.float16), v, acc)
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
        k_block = tl.advance(k_block, (0, BLOCK_N))
        v_block = tl.advance(v_block, (BLOCK_N, 0))
    acc = acc / l_i[:, None]
    xindex = tl.arange(0, D)[None, :] + D * offs_m[:, None] + base
    tl.store(Out + xindex, acc, None)


def _prefix_args():
    q, k, v = (seeded(2, 256, 64, dtype=torch.float16, seed=i) for i in range(3))
    return [q, k, v, torch.empty_like(q), 256, PREFIX, 128, 64, 64]


def _prefix_want(q, k, v, *rest):
    at = torch.arange(256)
    both = (at[:, None] < PREFIX) & (at < PREFIX)
    scores = (q.float() @ k.float().mT).where(both | (at[:, None] >= at), -torch.inf)
    return {3: (scores.softmax(-1) @ v.float()).half()}


# ---------------------------------------------------------------------- two loops, int64
@triton.jit
def two_loop_attention(
    q, k, v, o, lse, scale, T,
    HQ: tl.constexpr, G: tl.constexpr, K: tl.constexpr, BT: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Causal: blocks before the diagonal, then those on it. q, o: [B, T, HQ, K]; k, v: [B, T, HQ // G, K]."""
    i_v, i_t, i_bh = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    i_b, i_hq = i_bh // HQ, i_bh % HQ
    H: tl.constexpr = HQ // G
    bos, i_h = (i_b * T).to(tl.int64), i_hq // G
    o_q, o_d = i_t * BT + tl.arange(0, BT), tl.arange(0, K)
    o_v = i_v * K + tl.arange(0, K)
    m_q = o_q < T
    p_q = q + (bos * HQ + i_hq) * K + o_q[:, None] * (HQ * K) + o_d[None, :]
    p_o = o + (bos * HQ + i_hq) * K + o_q[:, None] * (HQ * K) + o_v[None, :]
    p_lse = lse + bos * HQ + i_hq + o_q * HQ
    b_q = tl.load(p_q, mask=m_q[:, None], other=0.0)
    b_o = tl.zeros([BT, K], dtype=tl.float32)
    b_m = tl.full([BT], float("-inf"), dtype=tl.float32)
    b_acc = tl.zeros([BT], dtype=tl.float32)
    for i_s in range(0, i_t * BT, BS):
        o_k = i_s + tl.arange(0, BS)
        p_k = k + (bos * H + i_h) * K + o_d[:, None] + o_k[None, :] * (H * K)
        p_v = v + (bos * H + i_h) * K + o_k[:, None] * (H * K) + o_v[None, :]
        b_k = tl.load(p_k, mask=(o_k < T)[None, :], other=0.0)
        b_v = tl.load(p_v, mask=(o_k < T)[:, None] & (o_v[None, :] < K), other=0.0)
        b_s = tl.dot(b_q, b_k) * scale * 1.4426950216
        b_m, b_mp = tl.maximum(b_m, tl.max(b_s, 1)), b_m
        b_mw = tl.where(b_m == float("-inf"), 0.0, b_m)
        b_r = tl.exp2(b_mp - b_mw)
        b_p = tl.exp2(b_s - b_mw[:, None])
        b_acc = b_acc * b_r + tl.sum(b_p, 1)
        b_o = b_o * b_r[:, None] + tl.dot(b_p.to(b_q.dtype), b_v)
    for i_s in range(i_t * BT, min((i_t + 1) * BT, T), BS):
        o_k = i_s + tl.arange(0, BS)
        m_k = o_k < T
        p_k = k + (bos * H + i_h) * K + o_d[:, None] + o_k[None, :] * (H * K)
        p_v = v + (bos * H + i_h) * K + o_k[:, None] * (H * K) + o_v[None, :]
        b_k = tl.load(p_k, mask=m_k[None, :], other=0.0)
        b_v = tl.load(p_v, mask=m_k[:, None] & (o_v[None, :] < K), other=0.0)
        b_s = tl.dot(b_q, b_k) * scale * 1.4426950216
        b_s = tl.where((o_q[:, None] >= o_k[None, :]) & m_k[None, :], b_s, float("-inf"))
        b_m, b_mp = tl.maximum(b_m, tl.max(b_s, 1)), b_m
        b_mw = tl.where(b_m == float("-inf"), 0.0, b_m)
        b_r = tl.exp2(b_mp - b_mw)
        b_p = tl.exp2(b_s - b_mw[:, None])
        b_acc = b_acc * b_r + tl.sum(b_p, 1)
        b_o = b_o * b_r[:, None] + tl.dot(b_p.to(b_q.dtype), b_v)
    b_o = b_o / b_acc[:, None]
    b_m += tl.log2(b_acc)
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), mask=m_q[:, None] & (o_v[None, :] < K))
    if i_v == 0:
        tl.store(p_lse, b_m.to(p_lse.dtype.element_ty), mask=m_q)


def _two_loop_args():
    q, k, v = (seeded(1, 304, n, 64, dtype=torch.bfloat16, seed=n) for n in (4, 2, 2))
    return [q, k, v, torch.empty_like(q), torch.zeros(1, 304, 4), 0.125, 304, 4, 2, 64, 128, 64]


def _two_loop_want(q, k, v, *rest):
    k, v = (x.repeat_interleave(2, 2).float().transpose(1, 2) for x in (k, v))
    at = torch.arange(304)
    scores = (q.float().transpose(1, 2) @ k.mT * 0.125).where(at[:, None] >= at, -torch.inf)
    lse = torch.logsumexp(scores, -1) * 1.4426950216
    return {3: (scores.softmax(-1) @ v).transpose(1, 2).bfloat16(), 4: lse.transpose(1, 2)}


# ---------------------------------------------------------------------- blocks by index
@triton.jit
def chosen_attention(
    q, k, v, o, chosen, scale, T,
    H: tl.constexpr, HQ: tl.constexpr, K: tl.constexpr, S: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """Each query of a group of heads sees S blocks of keys, those that begin behind it left out."""
    i_t, i_h = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    G: tl.constexpr = HQ // H
    k += i_h * K
    v += i_h * K
    chosen += (i_t * H + i_h) * S
    o_g, o_d = i_h * G + tl.arange(0, G), tl.arange(0, K)
    b_q = tl.load(q + i_t * HQ * K + o_g[:, None] * K + o_d[None, :])
    b_q = (b_q * scale).to(b_q.dtype)
    b_o = tl.zeros([G, K], dtype=tl.float32)
    b_m = tl.full([G], float("-inf"), dtype=tl.float32)
    b_acc = tl.zeros([G], dtype=tl.float32)
    for i in range(S):
        i_s = tl.load(chosen + i).to(tl.int64) * BS
        if i_s <= i_t and i_s >= 0:
            o_s = i_s + tl.arange(0, BS)
            m_s = o_s < T
            b_k = tl.load(k + o_d[:, None] + o_s[None, :] * (H * K), mask=m_s[None, :], other=0.0)
            b_v = tl.load(v + o_s[:, None] * (H * K) + o_d[None, :], mask=m_s[:, None], other=0.0)
            b_s = tl.dot(b_q, b_k)
            b_s = tl.where((i_t >= o_s)[None, :], b_s, float("-inf"))
            b_m, b_mp = tl.maximum(b_m, tl.max(b_s, 1)), b_m
            b_r = tl.exp(b_mp - b_m)
            b_p = tl.exp(b_s - b_m[:, None])
            b_acc = b_acc * b_r + tl.sum(b_p, 1)
            b_o = b_o * b_r[:, None] + tl.dot(b_p.to(b_q.dtype), b_v)
    b_o = b_o / b_acc[:, None]
    tl.store(o + i_t * HQ * K + o_g[:, None] * K + o_d[None, :], b_o.to(o.dtype.element_ty))


def _chosen_args():
    q, k, v = (seeded(200, n, 64, dtype=torch.bfloat16, seed=n) for n in (32, 2, 2))
    # The first one is always there; others lie ahead, or are none.
    chosen = torch.stack(
        [torch.randperm(7, generator=torch.Generator().manual_seed(i)) for i in range(400)]
    )
    chosen = torch.cat([torch.zeros(400, 1), chosen[:, :4]], 1).to(torch.int32) - 1
    chosen[:, 0] = 0
    for row in chosen:
        row[1:][row[1:] == 0] = -1
    return [q, k, v, torch.empty_like(q), chosen.view(200, 2, 5), 0.125, 200, 2, 32, 64, 5, 32]


def _chosen_want(q, k, v, o, chosen, *rest):
    seen = torch.zeros(200, 2, 8, dtype=torch.bool)
    for n in range(7):
        seen[..., n] = (chosen == n).any(-1)
    at = torch.arange(200)
    mask = seen.repeat_interleave(32, -1)[..., :200] & (at[:, None, None] >= at)
    scores = torch.einsum(
        "thgd,shd->thgs", (q.float() * 0.125).bfloat16().float().view(200, 2, 16, 64), k.float()
    )
    weights = scores.where(mask[:, :, None], -torch.inf).softmax(-1)
    return {3: torch.einsum("thgs,shd->thgd", weights, v.float()).reshape(200, 32, 64).bfloat16()}


CASES = [
    Case("prefix_attention", prefix_attention, (2, 2), _prefix_args, _prefix_want, {"num_warps": 4}, 1e-2),
    Case("two_loop_attention", two_loop_attention, (1, 3, 4), _two_loop_args, _two_loop_want, {"num_warps": 8}, 2e-2),
    Case("chosen_attention", chosen_attention, (200, 2), _chosen_args, _chosen_want, {"num_warps": 2}, 2e-2),
]  # fmt: skip
