"""Softmax, cross entropy and its gradient, KL divergence, dropout, activations, embeddings, rotary embeddings."""

from __future__ import annotations

import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.triton_style.cases import Case
from tests.triton_style.cases import seeded
from tiledsl.language.extra import libdevice


@triton.jit
def softmax_kernel(
    output_ptr, input_ptr, input_row_stride, output_row_stride, n_rows, n_cols,
    BLOCK_SIZE: tl.constexpr, num_stages: tl.constexpr,
):  # fmt: skip
    row_start = tl.program_id(0)
    row_step = tl.num_programs(0)
    for row_idx in tl.range(row_start, n_rows, row_step, num_stages=num_stages):
        row_start_ptr = input_ptr + row_idx * input_row_stride
        col_offsets = tl.arange(0, BLOCK_SIZE)
        mask = col_offsets < n_cols
        row = tl.load(row_start_ptr + col_offsets, mask=mask, other=-float("inf"))
        row_minus_max = row - tl.max(row, axis=0)
        numerator = tl.exp(row_minus_max)
        denominator = tl.sum(numerator, axis=0)
        out = output_ptr + row_idx * output_row_stride
        tl.store(out + col_offsets, numerator / denominator, mask=mask)


@triton.jit
def element_mul(X_ptr, X_stride, grad_output_ptr, n_cols, BLOCK_SIZE: tl.constexpr):
    program_id = tl.program_id(0).to(tl.int64)
    X_ptr += program_id * X_stride
    grad_output = tl.load(grad_output_ptr)
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        X_block = tl.load(X_ptr + X_offsets, mask=X_offsets < n_cols)
        tl.store(X_ptr + X_offsets, X_block * grad_output, mask=X_offsets < n_cols)


@triton.jit
def cross_entropy(  # noqa: C901 - one kernel
    X_ptr, X_stride, Y_ptr, loss_ptr, n_cols, n_non_ignore, ignore_index,
    label_smoothing: tl.constexpr, softcap, HAS_SOFTCAP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    program_id = tl.program_id(0).to(tl.int64)
    y = tl.load(Y_ptr + program_id)
    X_ptr += program_id * X_stride
    if y == ignore_index:
        for i in range(0, n_cols, BLOCK_SIZE):
            X_offsets = i + tl.arange(0, BLOCK_SIZE)
            tl.store(X_ptr + X_offsets, 0.0, mask=X_offsets < n_cols)
        return
    loss_ptr += program_id
    m = float("-inf")
    d = 0.0
    ori_X_y = tl.load(X_ptr + y).cast(tl.float32)
    if HAS_SOFTCAP:
        ori_X_y = softcap * libdevice.tanh(ori_X_y / softcap)
    scaled_x_sum = 0.0
    eps = label_smoothing / n_cols
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        inside = X_offsets < n_cols
        X_block = tl.load(X_ptr + X_offsets, mask=inside, other=float("-inf")).cast(tl.float32)
        if HAS_SOFTCAP:
            X_block = tl.where(inside, softcap * libdevice.tanh(X_block / softcap), X_block)
        block_max = tl.max(X_block)
        if label_smoothing > 0:
            scaled_x_sum += tl.sum(tl.where(inside, -eps * X_block, 0.0))
        m_new = tl.maximum(m, block_max)
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(X_block - m_new))
        m = m_new
    lse = m + tl.log(d)
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        inside = X_offsets < n_cols
        X_block = tl.load(X_ptr + X_offsets, mask=inside, other=float("-inf")).cast(tl.float32)
        if HAS_SOFTCAP:
            intermediate = libdevice.tanh(X_block / softcap)
            X_block = softcap * intermediate
        X_block = tl.exp(X_block - m) / d
        X_block += -eps
        X_block = tl.where(X_offsets != y, X_block, X_block - (1 - label_smoothing))
        X_block = X_block / n_non_ignore
        if HAS_SOFTCAP:
            X_block = X_block * (1 - intermediate * intermediate)
        tl.store(X_ptr + X_offsets, X_block, mask=inside)
    tl.debug_barrier()
    loss = lse - ori_X_y
    if label_smoothing > 0:
        smooth_loss = scaled_x_sum + label_smoothing * lse
        loss = loss * (1 - label_smoothing) + smooth_loss
    loss = loss / n_non_ignore
    tl.store(loss_ptr, loss)


def _cross_entropy_args(smoothing: float, cap: float | None):
    x = seeded(4, 150)
    y = torch.tensor([3, -100, 149, 64])
    return [x, 150, y, torch.zeros(4), 150, 3, -100, smoothing, cap, cap is not None, 64]


def _cross_entropy_want(x, _, y, loss, *rest):
    smoothing, cap = rest[3], rest[4]
    x = x.clone().requires_grad_()
    f = x if cap is None else cap * torch.tanh(x / cap)
    each = torch.nn.functional.cross_entropy(
        f, y, reduction="none", ignore_index=-100, label_smoothing=smoothing
    )
    (each.sum() / 3).backward()
    return {0: x.grad, 3: each.detach() / 3}


@triton.jit
def kl_div(
    y_ptr, gt_ptr, loss_ptr, n_cols, eps, BLOCK_SIZE: tl.constexpr, log_target: tl.constexpr = False
):
    pid = tl.program_id(0).to(tl.int64)
    y_ptr += pid * n_cols
    gt_ptr += pid * n_cols
    base_offsets = tl.arange(0, BLOCK_SIZE)
    loss_sum = 0.0
    for i in range(0, n_cols, BLOCK_SIZE):
        offsets = i + base_offsets
        mask = offsets < n_cols
        y = tl.load(y_ptr + offsets, mask=mask, other=0.0)
        y_true = tl.load(gt_ptr + offsets, mask=mask, other=0.0)
        if not log_target:
            loss = y_true * (tl.log(tl.maximum(y_true, eps)) - y)
        else:
            loss = tl.exp(y_true) * (y_true - y)
        loss_sum += tl.sum(loss, axis=0)
    tl.store(loss_ptr + pid, loss_sum)


# ---------------------------------------------------------------------- dropout
@triton.jit
def seeded_dropout(x_ptr, output_ptr, n_elements, p, seed, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    block_start = pid * BLOCK_SIZE
    offsets = block_start + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)
    random = tl.rand(seed, offsets)
    x_keep = random > p
    output = tl.where(x_keep, x / (1 - p), 0.0)
    tl.store(output_ptr + offsets, output, mask=mask)


def philox(seed: int, counter: int) -> int:
    """The first word of Philox-4x32-10."""
    mask = 0xFFFFFFFF
    c, key = [counter & mask, counter >> 32, 0, 0], [seed & mask, seed >> 32]
    for _ in range(10):
        high_a, low_a = divmod(0xD2511F53 * c[0], 1 << 32)
        high_b, low_b = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [high_b ^ c[1] ^ key[0], low_b, high_a ^ c[3] ^ key[1], low_a]
        key = [(key[0] + 0x9E3779B9) & mask, (key[1] + 0xBB67AE85) & mask]
    return c[0]


def _dropout_want(x, out, n, p, seed, *rest):
    words = torch.tensor([philox(seed, i) for i in range(n)])
    signed = torch.where(words >= 2**31, words - 2**32, words)
    uniform = torch.where(signed < 0, ~signed, signed).float() * 4.6566127342e-10
    return {1: torch.where(uniform > p, x / (1 - p), torch.zeros(()))}


# ---------------------------------------------------------------------- activations
@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def tanh(x):
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def swiglu_fwd(a_ptr, b_ptr, c_ptr, stride, n_cols: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    program_id = tl.program_id(0).to(tl.int64)
    a_ptr += program_id * stride
    b_ptr += program_id * stride
    c_ptr += program_id * stride
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    a_row = tl.load(a_ptr + col_offsets, mask=mask, other=0).to(tl.float32)
    b_row = tl.load(b_ptr + col_offsets, mask=mask, other=0)
    c_row = silu(a_row).cast(b_row.dtype) * b_row
    tl.store(c_ptr + col_offsets, c_row, mask=mask)


@triton.jit
def geglu_bwd(dc_ptr, a_ptr, b_ptr, n, BLOCK_SIZE: tl.constexpr):
    offs = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    mask = offs < n
    dc_row = tl.load(dc_ptr + offs, mask=mask, other=0)
    a_row = tl.load(a_ptr + offs, mask=mask, other=0).to(tl.float32)
    b_row = tl.load(b_ptr + offs, mask=mask, other=0)
    sqrt_2_over_pi = 0.7978845608028654
    a_cubed = a_row * a_row * a_row
    tanh_arg = sqrt_2_over_pi * (a_row + 0.044715 * a_cubed)
    tanh_result = tanh(tanh_arg)
    geglu_a = 0.5 * a_row * (1 + tanh_result)
    db_row = dc_row.cast(tl.float32) * geglu_a
    term1 = 0.5 * (1 + tanh_result)
    tanh_sq = tanh_result * tanh_result
    term2 = 0.5 * a_row * (1 - tanh_sq) * (sqrt_2_over_pi * (1 + 3 * 0.044715 * a_row * a_row))
    da_row = dc_row * b_row * (term1 + term2)
    tl.store(a_ptr + offs, da_row, mask=mask)
    tl.store(b_ptr + offs, db_row.to(dc_row.dtype), mask=mask)


def _geglu_want(dc, a, b, *rest):
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    (torch.nn.functional.gelu(a, approximate="tanh") * b).backward(dc)
    return {1: a.grad, 2: b.grad}


ACTIVATIONS = {"relu": 0, "gelu": 1}
USE_APPROXIMATION: tl.constexpr = tl.constexpr(True)


@triton.jit
def _relu(x):
    return tl.where(x > 0, x, 0.0)


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def activation(x_ptr, y_ptr, n, fn: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    y = fn(x) if USE_APPROXIMATION else x
    tl.store(y_ptr + offs, y, mask=offs < n)


# ---------------------------------------------------------------------- rotary embeddings
@triton.jit
def rope(
    q_ptr, q_row_stride, k_ptr, k_row_stride, cos_ptr, sin_ptr, sl,
    n_qh: tl.constexpr, n_kh: tl.constexpr, hd: tl.constexpr, pad_n_qh: tl.constexpr,
    pad_n_kh: tl.constexpr, pad_hd: tl.constexpr, BACKWARD_PASS: tl.constexpr = False,
):  # fmt: skip
    pid = tl.program_id(0).to(tl.int64)
    q_ptr = q_ptr + pid * q_row_stride
    k_ptr = k_ptr + pid * k_row_stride
    cos_row_idx = pid % sl
    cos_offsets = tl.arange(0, pad_hd // 2)
    cos_mask = cos_offsets < hd // 2
    cos_row = tl.load(cos_ptr + cos_row_idx * hd + cos_offsets, mask=cos_mask, other=0)
    sin_row = tl.load(sin_ptr + cos_row_idx * hd + cos_offsets, mask=cos_mask, other=0)
    first_half_q = tl.arange(0, pad_n_qh)[:, None] * hd + tl.arange(0, pad_hd // 2)[None, :]
    first_half_k = tl.arange(0, pad_n_kh)[:, None] * hd + tl.arange(0, pad_hd // 2)[None, :]
    half = tl.arange(0, pad_hd // 2)[None, :] < hd // 2
    first_q_mask = (tl.arange(0, pad_n_qh)[:, None] < n_qh) & half
    first_k_mask = (tl.arange(0, pad_n_kh)[:, None] < n_kh) & half
    q_1 = tl.load(q_ptr + first_half_q, mask=first_q_mask, other=0).to(sin_row.dtype)
    k_1 = tl.load(k_ptr + first_half_k, mask=first_k_mask, other=0).to(sin_row.dtype)
    second_half_q = first_half_q + (hd // 2)
    second_half_k = first_half_k + (hd // 2)
    q_2 = tl.load(q_ptr + second_half_q, mask=first_q_mask, other=0).to(sin_row.dtype)
    k_2 = tl.load(k_ptr + second_half_k, mask=first_k_mask, other=0).to(sin_row.dtype)
    if not BACKWARD_PASS:
        tl.store(q_ptr + first_half_q, q_1 * cos_row - q_2 * sin_row, mask=first_q_mask)
        tl.store(q_ptr + second_half_q, q_2 * cos_row + q_1 * sin_row, mask=first_q_mask)
        tl.store(k_ptr + first_half_k, k_1 * cos_row - k_2 * sin_row, mask=first_k_mask)
        tl.store(k_ptr + second_half_k, k_2 * cos_row + k_1 * sin_row, mask=first_k_mask)
    else:
        tl.store(q_ptr + first_half_q, q_1 * cos_row + q_2 * sin_row, mask=first_q_mask)
        tl.store(q_ptr + second_half_q, q_2 * cos_row - q_1 * sin_row, mask=first_q_mask)
        tl.store(k_ptr + first_half_k, k_1 * cos_row + k_2 * sin_row, mask=first_k_mask)
        tl.store(k_ptr + second_half_k, k_2 * cos_row - k_1 * sin_row, mask=first_k_mask)


def _rotated(x, cos, sin, sign):
    a, b = x.chunk(2, -1)
    cos, sin = cos[:, None, : a.shape[-1]], sign * sin[:, None, : a.shape[-1]]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _rope_args(backward: bool):
    q, k = seeded(6, 4, 20), seeded(6, 2, 20, seed=1)
    angle = seeded(3, 20, seed=2)
    return [q, 80, k, 40, angle.cos(), angle.sin(), 3, 4, 2, 20, 4, 2, 32, backward]


def _rope_want(q, _, k, __, cos, sin, *rest):
    cos, sin = cos.repeat(2, 1), sin.repeat(2, 1)
    sign = -1 if rest[-1] else 1
    return {0: _rotated(q, cos, sin, sign), 2: _rotated(k, cos, sin, sign)}


@triton.jit
def rope_interleaved(X, COS, SIN, OUT, seqlen, D: tl.constexpr, BLOCK_S: tl.constexpr):
    """Pairs of neighbours rotate: reshape, split, join."""
    offs_s = tl.program_id(0) * BLOCK_S + tl.arange(0, BLOCK_S)
    offs_d = tl.arange(0, D)
    half = tl.arange(0, D // 2)
    mask = offs_s[:, None] < seqlen
    x = tl.load(X + offs_s[:, None] * D + offs_d[None, :], mask=mask, other=0.0)
    c = tl.load(COS + offs_s[:, None] * (D // 2) + half[None, :], mask=mask, other=1.0)
    s = tl.load(SIN + offs_s[:, None] * (D // 2) + half[None, :], mask=mask, other=0.0)
    x0, x1 = tl.split(tl.reshape(x, [BLOCK_S, D // 2, 2]))
    o = tl.join(x0 * c - x1 * s, x0 * s + x1 * c).reshape(BLOCK_S, D)
    tl.store(OUT + offs_s[:, None] * D + offs_d[None, :], o, mask=mask)


def _interleaved_want(x, cos, sin, *rest):
    a, b = x[:, ::2], x[:, 1::2]
    return {3: torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(1)}


# ---------------------------------------------------------------------- embedding
@triton.jit
def embedding_backward(
    grad_output_ptr, grad_weight_ptr, indices_ptr, n_elements, embedding_dim: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr,
):  # fmt: skip
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    offsets_m = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
    mask_m = offsets_m < n_elements
    indices = tl.load(indices_ptr + offsets_m, mask=mask_m, other=0)
    offsets_n = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    mask_n = offsets_n < embedding_dim
    both = mask_m[:, None] & mask_n[None, :]
    grad_output = tl.load(
        grad_output_ptr + offsets_m[:, None] * embedding_dim + offsets_n[None, :],
        mask=both,
        other=0.0,
    )
    tl.atomic_add(
        grad_weight_ptr + indices[:, None] * embedding_dim + offsets_n[None, :],
        grad_output,
        mask=both,
    )


def _embedding_want(grad, weight, indices, *rest):
    return {1: torch.zeros_like(weight).index_add_(0, indices, grad)}


def _activation_args(fn):
    return lambda: [seeded(100), torch.zeros(100), 100, fn, 64]


CASES = [
    Case(
        "softmax",
        softmax_kernel,
        (3,),
        lambda: [torch.zeros(7, 75), seeded(7, 75), 75, 75, 7, 75],
        lambda out, x, *rest: {0: x.softmax(1)},
        {"BLOCK_SIZE": 128, "num_stages": 2},
        1e-6,
    ),
    Case(
        "element_mul",
        element_mul,
        (3,),
        lambda: [seeded(3, 50), 50, torch.tensor(2.5), 50, 32],
        lambda x, *rest: {0: x * 2.5},
    ),
    *(
        Case(
            f"cross_entropy_{name}",
            cross_entropy,
            (4,),
            lambda s=s, c=c: _cross_entropy_args(s, c),
            _cross_entropy_want,
            tolerance=1e-4,
        )
        for name, s, c in (("plain", 0.0, None), ("smooth", 0.1, None), ("softcap", 0.1, 5.0))
    ),
    Case(
        "kl_div",
        kl_div,
        (2,),
        lambda: [
            seeded(2, 70).log_softmax(1),
            seeded(2, 70, seed=1).softmax(1),
            torch.zeros(2),
            70,
            1e-10,
            64,
        ],
        lambda y, gt, out, *rest: {2: torch.nn.functional.kl_div(y, gt, reduction="none").sum(1)},
        tolerance=1e-5,
    ),
    Case(
        "dropout",
        seeded_dropout,
        lambda meta: (triton.cdiv(200, meta["BLOCK_SIZE"]),),
        lambda: [seeded(200), torch.zeros(200), 200, 0.4, 123],
        _dropout_want,
        {"BLOCK_SIZE": 64},
        1e-6,
    ),
    Case(
        "swiglu",
        swiglu_fwd,
        (3,),
        lambda: [
            seeded(3, 50, dtype=torch.float16),
            seeded(3, 50, dtype=torch.float16, seed=1),
            torch.zeros(3, 50, dtype=torch.float16),
            50,
            50,
            64,
        ],
        lambda a, b, c, *rest: {2: torch.nn.functional.silu(a.float()).half() * b},
        tolerance=1e-3,
    ),
    Case(
        "geglu_bwd",
        geglu_bwd,
        (2,),
        lambda: [seeded(90), seeded(90, seed=1), seeded(90, seed=2), 90, 64],
        _geglu_want,
        tolerance=1e-5,
    ),
    Case(
        "activation_relu",
        activation,
        (2,),
        _activation_args(_relu),
        lambda x, *rest: {1: x.relu()},
    ),
    Case(
        "activation_gelu",
        activation,
        (2,),
        _activation_args(_gelu),
        lambda x, *rest: {1: torch.nn.functional.gelu(x)},
        tolerance=1e-5,
    ),
    Case("rope", rope, (6,), lambda: _rope_args(False), _rope_want, tolerance=1e-5),
    Case("rope_bwd", rope, (6,), lambda: _rope_args(True), _rope_want, tolerance=1e-5),
    Case(
        "rope_interleaved",
        rope_interleaved,
        (2,),
        lambda: [
            seeded(10, 16),
            seeded(10, 8).cos(),
            seeded(10, 8).sin(),
            torch.zeros(10, 16),
            10,
            16,
            8,
        ],
        _interleaved_want,
        tolerance=1e-6,
    ),
    Case(
        "embedding_bwd",
        embedding_backward,
        (2, 2),
        lambda: [
            seeded(20, 40),
            torch.zeros(7, 40),
            torch.arange(20) % 7,
            20,
            40,
            16,
            32,
        ],
        _embedding_want,
        tolerance=1e-5,
    ),
]
