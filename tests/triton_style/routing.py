"""Gating, sampling, sorting, alignment of expert blocks, prefix sums, optimisers, bit tricks, rare syntax."""

from __future__ import annotations

import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.triton_style.cases import Case
from tests.triton_style.cases import seeded


# ---------------------------------------------------------------------- top-k gating
@triton.jit
def topk_gating(
    logits, weights, ids, n_experts, K: tl.constexpr, BLOCK_E: tl.constexpr, NORMALIZE: tl.constexpr
):
    token = tl.program_id(0)
    cols = tl.arange(0, BLOCK_E)
    x = tl.load(logits + token * n_experts + cols, mask=cols < n_experts, other=-float("inf"))
    x = tl.softmax(x.to(tl.float32), 0)
    total = 0.0
    for i in tl.static_range(K):
        value, index = tl.max(x, axis=0, return_indices=True)
        tl.store(weights + token * K + i, value)
        tl.store(ids + token * K + i, index)
        total += value
        x = tl.where(cols == index, -1.0, x)
    if NORMALIZE:
        tl.debug_barrier()
        at = weights + token * K + tl.arange(0, K)
        tl.store(at, tl.load(at) / total)


def _gating_want(logits, weights, ids, n, k, *rest):
    found = logits.float().softmax(1).topk(k, 1)
    return {1: found.values / found.values.sum(1, keepdim=True), 2: found.indices.int()}


@triton.jit
def topk_packed(X, Y, Idx, N, K: tl.constexpr, BLOCK: tl.constexpr):
    """Keys of order-preserving bits above an index, in one 64-bit sort."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(X + row * N + cols, mask=cols < N, other=float("-inf")).to(tl.float32)
    bits = x.to(tl.uint32, bitcast=True)
    top: tl.constexpr = 0x80000000
    key = bits ^ tl.where((bits & top) != 0, 0xFFFFFFFF, top)
    packed = (key.to(tl.uint64) << 32) | (BLOCK - 1 - cols).to(tl.uint64)
    best = tl.topk(packed, K, dim=0)
    index = BLOCK - 1 - (best & 0xFFFFFFFF).to(tl.int32)
    key = (best >> 32).to(tl.uint32)
    bits = key ^ tl.where((key & top) != 0, top, 0xFFFFFFFF)
    tl.store(Y + row * K + tl.arange(0, K), bits.to(tl.float32, bitcast=True))
    tl.store(Idx + row * K + tl.arange(0, K), index)


def _topk_want(x, y, idx, n, k, *rest):
    found = x.topk(k, 1)
    return {1: found.values, 2: found.indices.int()}


# ---------------------------------------------------------------------- alignment of blocks
@triton.jit
def moe_align_stage1(topk_ids_ptr, tokens_cnts_ptr, num_experts: tl.constexpr, numel, per_thread):
    pid = tl.program_id(0)
    start_idx = pid * per_thread
    off_c = (pid + 1) * num_experts
    for i in range(per_thread):
        if start_idx + i < numel:
            idx = tl.load(topk_ids_ptr + start_idx + i)
            token_cnt = tl.load(tokens_cnts_ptr + off_c + idx)
            tl.store(tokens_cnts_ptr + off_c + idx, token_cnt + 1)


def _stage1_want(ids, counts, *rest):
    parts = [torch.bincount(p.long(), minlength=4).int() for p in ids.split(5)]
    return {1: torch.stack([torch.zeros(4, dtype=torch.int32), *parts])}


@triton.jit
def moe_align_stage3(total_ptr, counts_ptr, cumsum_ptr, E: tl.constexpr, block_size: tl.constexpr):
    last_cumsum = 0
    for i in range(1, E + 1):
        token_cnt = tl.load(counts_ptr + i - 1)
        last_cumsum = last_cumsum + tl.cdiv(token_cnt, block_size) * block_size
        tl.store(cumsum_ptr + i, last_cumsum)
    tl.store(total_ptr, last_cumsum)


def _stage3_want(total, counts, cumsum, *rest):
    padded = ((counts + 15) // 16 * 16).cumsum(0).int()
    return {0: padded[-1:], 2: torch.cat([torch.zeros(1, dtype=torch.int32), padded])}


# ---------------------------------------------------------------------- prefix sums
@triton.jit
def chunk_local_cumsum(
    s, o, T, H: tl.constexpr, BT: tl.constexpr, REVERSE: tl.constexpr, HEAD_FIRST: tl.constexpr
):
    i_t, i_h = tl.program_id(0), tl.program_id(1)
    if HEAD_FIRST:
        p_s = tl.make_block_ptr(s + i_h * T, (T,), (1,), (i_t * BT,), (BT,), (0,))
        p_o = tl.make_block_ptr(o + i_h * T, (T,), (1,), (i_t * BT,), (BT,), (0,))
    else:
        p_s = tl.make_block_ptr(s + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
        p_o = tl.make_block_ptr(o + i_h, (T,), (H,), (i_t * BT,), (BT,), (0,))
    b_s = tl.load(p_s, boundary_check=(0,)).to(tl.float32)
    b_o = tl.cumsum(b_s, axis=0)
    if REVERSE:
        b_z = tl.sum(b_s, axis=0)
        b_o = -b_o + b_z[None] + b_s
    tl.store(p_o, b_o.to(p_o.dtype.element_ty), boundary_check=(0,))


def _cumsum_want(s, o, t, h, bt, reverse, *rest):
    parts = s.split(bt, 0)
    out = [p.flip(0).cumsum(0).flip(0) if reverse else p.cumsum(0) for p in parts]
    return {1: torch.cat(out)}


# ---------------------------------------------------------------------- sampling
@triton.jit
def gumbel_sample(logits, out, seeds, vocab, temperature, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    best = float("-inf")
    best_index = 0
    seed = tl.load(seeds + row)
    for start in range(0, vocab, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * vocab + cols, mask=cols < vocab, other=float("-inf"))
        if temperature > 0:
            u = tl.rand(seed, cols)
            x = x / temperature - tl.log(-tl.log(tl.maximum(u, 1e-20)))
        value = tl.max(x, axis=0)
        index = tl.argmax(x, axis=0)
        if value > best:
            best = value
            best_index = start + index
    tl.store(out + row, best_index)


@triton.jit
def greedy_accept(draft_ptr, target_ptr, bonus_ptr, cu_ptr, out_ptr, is_greedy_ptr, max_len):
    """Rejection of drafted tokens: flags that loops change."""
    req = tl.program_id(0)
    is_greedy = True if is_greedy_ptr is None else tl.load(is_greedy_ptr + req)
    if not is_greedy:
        return
    start = 0 if req == 0 else tl.load(cu_ptr + req - 1)
    end = tl.load(cu_ptr + req)
    rejected = False
    for pos in range(end - start):
        if not rejected:
            draft = tl.load(draft_ptr + start + pos)
            target = tl.load(target_ptr + start + pos)
            tl.store(out_ptr + req * (max_len + 1) + pos, target)
            if draft != target:
                rejected = True
    if not rejected:
        tl.store(out_ptr + req * (max_len + 1) + end - start, tl.load(bonus_ptr + req))


# ---------------------------------------------------------------------- optimiser
@triton.jit
def adamw(
    p_ptr, g_ptr, m_ptr, v_ptr, lr, beta1, beta2, eps, wd, step, n,
    STOCHASTIC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    p = tl.load(p_ptr + offs, mask=mask).to(tl.float32)
    g = tl.load(g_ptr + offs, mask=mask).to(tl.float32)
    m = tl.load(m_ptr + offs, mask=mask)
    v = tl.load(v_ptr + offs, mask=mask)
    m = tl.fma(beta1, m, (1 - beta1) * g)
    v = beta2 * v + (1 - beta2) * g * g
    bias1 = 1 - tl.exp(step * tl.log(beta1))
    bias2 = 1 - tl.exp(step * tl.log(beta2))
    p = p * (1 - lr * wd) - lr * (m / bias1) / (tl.sqrt_rn(v / bias2) + eps)
    if STOCHASTIC:
        noise = tl.randint(7, offs) & 0xFFFF
        bits = p.to(tl.uint32, bitcast=True) + noise
        p = (bits & 0xFFFF0000).to(tl.float32, bitcast=True)
    tl.store(p_ptr + offs, p.to(p_ptr.dtype.element_ty), mask=mask)
    tl.store(m_ptr + offs, m, mask=mask)
    tl.store(v_ptr + offs, v, mask=mask)


def _adam_want(p, g, m, v, lr, b1, b2, eps, wd, step, *rest):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    new = p * (1 - lr * wd) - lr * (m / (1 - b1**step)) / ((v / (1 - b2**step)).sqrt() + eps)
    return {0: new, 2: m, 3: v}


# ---------------------------------------------------------------------- assembly and bits
@triton.jit
def fast_exp2(x):
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def asm_softplus(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    t = tl.inline_asm_elementwise(
        asm="tanh.approx.f32 $0, $1;", constraints="=r,r", args=[x], dtype=tl.float32,
        is_pure=True, pack=1,
    )  # fmt: skip
    tl.store(y_ptr + offs, t + fast_exp2(x))


@triton.jit
def unpack_bytes(x_ptr, lo_ptr, hi_ptr, BLOCK: tl.constexpr):
    """Four bytes to a register; two results."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    lo, hi = tl.inline_asm_elementwise(
        asm="""
        {
            and.b32 $0, $2, 0x0f0f0f0f;
            shr.b32 $1, $2, 4;
            and.b32 $1, $1, 0x0f0f0f0f;
        }
        """,
        constraints="=r,=r,r",
        args=[x],
        dtype=(tl.uint8, tl.uint8),
        is_pure=True,
        pack=4,
    )
    tl.store(lo_ptr + offs, lo)
    tl.store(hi_ptr + offs, hi)


@triton.jit
def fp4_to_bf16(x_ptr, scale_ptr, y_ptr, N: tl.constexpr, GROUP: tl.constexpr):
    """E2M1 pairs with E8M0 scales."""
    row = tl.program_id(0)
    packed = tl.load(x_ptr + row * (N // 2) + tl.arange(0, N // 2))
    nibbles = tl.interleave(packed & 0xF, packed >> 4)
    sign = (nibbles & 8).to(tl.uint16) << 12
    exponent = ((nibbles >> 1) & 3).to(tl.uint16)
    mantissa = (nibbles & 1).to(tl.uint16)
    normal = ((exponent + 126) << 7) | (mantissa << 6)
    tiny = tl.where(mantissa == 1, 0x3F00, 0).to(tl.uint16)
    bits = sign | tl.where(exponent == 0, tiny, normal)
    value = bits.to(tl.bfloat16, bitcast=True)
    scale = tl.load(scale_ptr + row * (N // GROUP) + tl.arange(0, N // GROUP))
    scale = (scale.to(tl.uint16) << 7).to(tl.bfloat16, bitcast=True)
    value = tl.reshape(value, [N // GROUP, GROUP]) * scale[:, None]
    tl.store(y_ptr + row * N + tl.arange(0, N), tl.reshape(value, [N]))


FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _fp4_want(x, scale, y, n, group):
    values = torch.stack([FP4[(x & 15).long()], FP4[(x >> 4).long()]], -1).flatten(1)
    scales = torch.exp2(scale.float() - 127).repeat_interleave(group, 1)
    return {2: (values * scales).bfloat16()}


@triton.jit
def hash_rows(x_ptr, h_ptr, n, BLOCK: tl.constexpr):
    """FNV of bytes: 64-bit products that wrap."""
    row = tl.program_id(0)
    h = tl.full([], 0xCBF29CE484222325, tl.uint64)
    for i in range(n):
        byte = tl.load(x_ptr + row * n + i).to(tl.uint64)
        h = (h ^ byte) * 0x100000001B3
    tl.store(h_ptr + row, h.to(tl.int64, bitcast=True))


def _fnv(x, *rest):
    out = []
    for row in x.tolist():
        h = 0xCBF29CE484222325
        for byte in row:
            h = ((h ^ byte) * 0x100000001B3) % (1 << 64)
        out.append(h - (1 << 64) if h >> 63 else h)
    return {1: torch.tensor(out)}


# ---------------------------------------------------------------------- reductions of tuples
@triton.jit
def welford_combine(mean_1, m2_1, n_1, mean_2, m2_2, n_2):
    delta = mean_2 - mean_1
    n = n_1 + n_2
    ratio = tl.where(n == 0, 0.0, n_2 / n)
    return mean_1 + delta * ratio, m2_1 + m2_2 + delta * delta * n_1 * ratio, n


@triton.jit
def welford(x_ptr, mean_ptr, var_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    mean = tl.zeros([BLOCK], tl.float32)
    m2 = tl.zeros([BLOCK], tl.float32)
    count = tl.zeros([BLOCK], tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=0.0)
        keep = (cols < N).to(tl.float32)
        new = count + keep
        delta = x - mean
        mean = tl.where(cols < N, mean + delta / new, mean)
        m2 = tl.where(cols < N, m2 + delta * (x - mean), m2)
        count = new
    mean, m2, count = tl.reduce((mean, m2, count), 0, welford_combine)
    tl.store(mean_ptr + row, mean)
    tl.store(var_ptr + row, m2 / count)


# ---------------------------------------------------------------------- rare syntax
@triton.jit
def accumulate(pair, x, count: tl.constexpr = 2):
    total, squares = pair
    for _ in tl.static_range(count):
        total, squares = total + x, squares + x * x
    return total, squares


BLOCKS = tl.constexpr(4)


@triton.jit
def syntax(
    x_ptr, out_ptr, n, MODE: tl.constexpr, UNROLL: tl.constexpr, dims: tl.constexpr,
    BLOCK: tl.constexpr = 32, bias=None,
):  # fmt: skip
    """Loops chosen by a condition, chains, tuples, assertions, early ends."""
    pid = tl.program_id(0)
    if pid >= 2 and pid != 3:
        return
    assert BLOCK % BLOCKS == 0, f"{BLOCK=} is no multiple of {BLOCKS}"
    tl.static_assert(len(dims) == 2)
    rows, columns = dims
    offs = tl.arange(0, BLOCK)
    pair = (tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32))
    for i in (tl.static_range if UNROLL else range)(3):
        x = tl.load(x_ptr + offs + i * BLOCK, mask=0 <= offs + i * BLOCK < n, other=0.0)
        pair = accumulate(pair, x)
    y = pair[0]
    if MODE == "squares":
        y = pair[1]
    elif MODE != "sums":
        raise ValueError("unknown mode")
    if bias is not None:
        y += tl.load(bias + offs)
    scale = 2.0 if pid == 0 else 3.0
    y = y * scale if rows > columns else y
    shape: tl.constexpr = [BLOCK // 2, 2]
    y = y.reshape(shape).trans().reshape([BLOCK])
    y = tl.where(not (offs < 0), y, -1.0)
    tl.device_assert(y > -1e30, "finite")
    tl.store(out_ptr + pid * BLOCK + offs, y)


def _syntax_want(x, out, n, mode, unroll, dims, block, bias):
    parts = torch.nn.functional.pad(x, (0, 3 * 32 - n)).view(3, 32)
    y = 2 * (parts.square() if mode == "squares" else parts).sum(0)
    y = y + (0 if bias is None else bias)
    rows = []
    for pid in range(4):
        z = y * (2.0 if pid == 0 else 3.0) if dims[0] > dims[1] else y
        z = z.view(16, 2).t().reshape(32)
        rows.append(z if pid != 2 else torch.zeros(32))
    return {1: torch.stack(rows)}


def _syntax_args(mode, unroll, bias):
    return lambda: [
        seeded(80), torch.zeros(4, 32), 80, mode, unroll, (3, 2), 32, seeded(32) if bias else None,
    ]  # fmt: skip


def _accept_want(*rest):
    out = torch.full((3, 4), -1, dtype=torch.int32)
    out[0, :3] = torch.tensor([5, 6, 9])
    out[1, :1] = torch.tensor([8])
    out[2, :1] = torch.tensor([3])
    return {4: out}


CASES = [
    Case(
        "topk_gating",
        topk_gating,
        (5,),
        lambda: [
            seeded(5, 20),
            torch.zeros(5, 4),
            torch.zeros(5, 4, dtype=torch.int32),
            20,
            4,
            32,
            True,
        ],
        _gating_want,
        tolerance=1e-5,
    ),
    Case(
        "topk_packed",
        topk_packed,
        (3,),
        lambda: [seeded(3, 50), torch.zeros(3, 8), torch.zeros(3, 8, dtype=torch.int32), 50, 8, 64],
        _topk_want,
    ),
    Case(
        "moe_align_stage1",
        moe_align_stage1,
        (4,),
        lambda: [
            (torch.arange(18) * 7 % 4).int(),
            torch.zeros(5, 4, dtype=torch.int32),
            4,
            18,
            5,
        ],
        _stage1_want,
    ),
    Case(
        "moe_align_stage3",
        moe_align_stage3,
        (1,),
        lambda: [
            torch.zeros(1, dtype=torch.int32),
            torch.tensor([3, 0, 17, 32], dtype=torch.int32),
            torch.zeros(5, dtype=torch.int32),
            4,
            16,
        ],
        _stage3_want,
    ),
    *(
        Case(
            f"chunk_local_cumsum_{reverse}",
            chunk_local_cumsum,
            (3, 2),
            lambda reverse=reverse: [seeded(40, 2), torch.zeros(40, 2), 40, 2, 16, reverse, False],
            _cumsum_want,
            tolerance=1e-5,
        )
        for reverse in (False, True)
    ),
    Case(
        "gumbel_sample",
        gumbel_sample,
        (3,),
        lambda: [
            seeded(3, 70),
            torch.zeros(3, dtype=torch.int32),
            torch.tensor([1, 2, 3]),
            70,
            0.0,
            32,
        ],
        lambda x, *rest: {1: x.argmax(1).int()},
    ),
    Case(
        "greedy_accept",
        greedy_accept,
        (3,),
        lambda: [
            torch.tensor([5, 6, 7, 1], dtype=torch.int32),
            torch.tensor([5, 6, 8, 2], dtype=torch.int32),
            torch.tensor([9, 9, 3], dtype=torch.int32),
            torch.tensor([2, 4, 4], dtype=torch.int32),
            torch.full((3, 4), -1, dtype=torch.int32),
            None,
            3,
        ],
        _accept_want,
    ),
    Case(
        "adamw",
        adamw,
        (2,),
        lambda: [
            seeded(100),
            seeded(100, seed=1),
            seeded(100, seed=2) * 0.1,
            seeded(100, seed=3).abs() * 0.1,
            0.01,
            0.9,
            0.95,
            1e-8,
            0.1,
            3,
            100,
            False,
            64,
        ],
        _adam_want,
        tolerance=1e-5,
    ),
    Case(
        "asm_softplus",
        asm_softplus,
        (1,),
        lambda: [seeded(64), torch.zeros(64), 64],
        lambda x, *rest: {1: x.tanh() + x.exp2()},
        tolerance=1e-3,
    ),
    Case(
        "unpack_bytes",
        unpack_bytes,
        (1,),
        lambda: [
            torch.arange(256).to(torch.uint8),
            torch.zeros(256, dtype=torch.uint8),
            torch.zeros(256, dtype=torch.uint8),
            256,
        ],
        lambda x, *rest: {1: x & 15, 2: x >> 4},
    ),
    Case(
        "fp4_to_bf16",
        fp4_to_bf16,
        (2,),
        lambda: [
            torch.arange(64).mul(37).remainder(256).to(torch.uint8).view(2, 32),
            torch.tensor([[127, 128], [120, 130]], dtype=torch.uint8),
            torch.zeros(2, 64, dtype=torch.bfloat16),
            64,
            32,
        ],
        _fp4_want,
    ),
    Case(
        "hash_rows",
        hash_rows,
        (3,),
        lambda: [
            torch.arange(24).mul(91).remainder(256).to(torch.uint8).view(3, 8),
            torch.zeros(3, dtype=torch.int64),
            8,
            1,
        ],
        _fnv,
    ),
    Case(
        "welford",
        welford,
        (3,),
        lambda: [seeded(3, 70), torch.zeros(3), torch.zeros(3), 70, 32],
        lambda x, *rest: {1: x.mean(1), 2: x.var(1, unbiased=False)},
        tolerance=1e-5,
    ),
    Case(
        "syntax_sums", syntax, (4,), _syntax_args("sums", True, False), _syntax_want, tolerance=1e-5
    ),
    Case(
        "syntax_squares",
        syntax,
        (4,),
        _syntax_args("squares", False, True),
        _syntax_want,
        tolerance=1e-5,
    ),
]
