"""Normalisation: layer norm with its gradients, RMS norm, group norm, and fused residuals."""

from __future__ import annotations

import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.triton_style.cases import Case
from tests.triton_style.cases import seeded


# ---------------------------------------------------------------------- layer norm, forward
@triton.jit
def _layer_norm_fwd(
    X,
    Y,
    W,
    B,
    Mean,
    Rstd,
    stride,
    N,
    eps,
    BLOCK_SIZE: tl.constexpr,
):
    row = tl.program_id(0)
    Y += row * stride
    X += row * stride
    _mean = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        _mean += tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
    mean = tl.sum(_mean, axis=0) / N
    _var = tl.zeros([BLOCK_SIZE], dtype=tl.float32)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        x = tl.load(X + cols, mask=cols < N, other=0.0).to(tl.float32)
        x = tl.where(cols < N, x - mean, 0.0)
        _var += x * x
    var = tl.sum(_var, axis=0) / N
    rstd = 1 / tl.sqrt(var + eps)
    tl.store(Mean + row, mean)
    tl.store(Rstd + row, rstd)
    for off in range(0, N, BLOCK_SIZE):
        cols = off + tl.arange(0, BLOCK_SIZE)
        mask = cols < N
        w = tl.load(W + cols, mask=mask)
        b = tl.load(B + cols, mask=mask)
        x = tl.load(X + cols, mask=mask, other=0.0).to(tl.float32)
        x_hat = (x - mean) * rstd
        tl.store(Y + cols, x_hat * w + b, mask=mask)


def _layer_norm_want(x, y, w, b, mean, rstd, *rest):
    f = x.float()
    out = torch.nn.functional.layer_norm(f, f.shape[1:], w.float(), b.float(), 1e-5)
    var = f.var(1, unbiased=False)
    return {1: out.to(y.dtype), 4: f.mean(1), 5: (var + 1e-5).rsqrt()}


# ---------------------------------------------------------------------- layer norm, gradients
@triton.jit
def _layer_norm_bwd(
    DX, DY, DW, DB, X, W, Mean, Rstd, Lock, stride, N,
    GROUP_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_SIZE_N)
    mask = cols < N
    X += row * stride
    DY += row * stride
    DX += row * stride
    lock_id = row % GROUP_SIZE_M
    Lock += lock_id
    Count = Lock + GROUP_SIZE_M
    DW = DW + lock_id * N + cols
    DB = DB + lock_id * N + cols
    x = tl.load(X + cols, mask=mask, other=0).to(tl.float32)
    dy = tl.load(DY + cols, mask=mask, other=0).to(tl.float32)
    w = tl.load(W + cols, mask=mask).to(tl.float32)
    mean = tl.load(Mean + row)
    rstd = tl.load(Rstd + row)
    xhat = (x - mean) * rstd
    wdy = w * dy
    xhat = tl.where(mask, xhat, 0.0)
    wdy = tl.where(mask, wdy, 0.0)
    c1 = tl.sum(xhat * wdy, axis=0) / N
    c2 = tl.sum(wdy, axis=0) / N
    dx = (wdy - (xhat * c1 + c2)) * rstd
    tl.store(DX + cols, dx, mask=mask)
    partial_dw = (dy * xhat).to(w.dtype)
    partial_db = (dy).to(w.dtype)
    while tl.atomic_cas(Lock, 0, 1) == 1:
        pass
    count = tl.load(Count)
    if count == 0:
        tl.atomic_xchg(Count, 1)
    else:
        partial_dw += tl.load(DW, mask=mask)
        partial_db += tl.load(DB, mask=mask)
    tl.store(DW, partial_dw, mask=mask)
    tl.store(DB, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(Lock, 0)


def _layer_norm_bwd_args():
    x, dy, w = seeded(8, 100), seeded(8, 100, seed=1), seeded(100, seed=2)
    mean, rstd = x.mean(1), (x.var(1, unbiased=False) + 1e-5).rsqrt()
    dw, db, lock = torch.zeros(2, 100), torch.zeros(2, 100), torch.zeros(4, dtype=torch.int32)
    return [torch.zeros_like(x), dy, dw, db, x, w, mean, rstd, lock, 100, 100, 2, 128]


def _layer_norm_bwd_want(dx, dy, dw, db, x, w, *rest):
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    torch.nn.functional.layer_norm(x, (100,), w, None, 1e-5).backward(dy)
    hat = torch.nn.functional.layer_norm(x.detach(), (100,), None, None, 1e-5)
    groups = [(dy * hat)[i::2].sum(0) for i in range(2)]
    return {
        0: x.grad,
        2: torch.stack(groups),
        3: torch.stack([dy[i::2].sum(0) for i in range(2)]),
    }


@triton.jit
def _layer_norm_bwd_dwdb(
    DW, FINAL_DW, M, N, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr
):
    pid = tl.program_id(0)
    cols = pid * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    dw = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for i in range(0, M, BLOCK_SIZE_M):
        rows = i + tl.arange(0, BLOCK_SIZE_M)
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        offs = rows[:, None] * N + cols[None, :]
        dw += tl.load(DW + offs, mask=mask, other=0.0)
    tl.store(FINAL_DW + cols, tl.sum(dw, axis=0), mask=cols < N)


# ---------------------------------------------------------------------- RMS norm with residual
@triton.heuristics(
    {
        "HAS_RESIDUAL": lambda args: args["RES"] is not None,
        "BLOCK_N": lambda args: triton.next_power_of_2(args["N"]),
    }
)
@triton.jit
def _rms_norm(
    X,
    RES,
    W,
    Y,
    x_row_stride: tl.int64,
    N,
    eps: tl.constexpr,
    offset: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.max_contiguous(tl.multiple_of(tl.arange(0, BLOCK_N), 16), 16)
    mask = cols < N
    x = tl.load(X + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        x += tl.load(RES + row * x_row_stride + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(RES + row * x_row_stride + cols, x.to(RES.dtype.element_ty), mask=mask)
    rstd = tl.math.rsqrt(tl.sum(x * x) / N + eps)
    w = tl.load(W + cols, mask=mask, other=0.0, eviction_policy="evict_last").to(tl.float32)
    y = x * rstd * (offset + w)
    tl.store(Y + row * x_row_stride + cols, y.to(Y.dtype.element_ty), mask=mask)


def _rms_want(x, res, w, y, *rest):
    f = x.float() + (0 if res is None else res.float())
    out = f * (f.square().mean(1, keepdim=True) + 1e-6).rsqrt() * (1.0 + w.float())
    found = {3: out.to(y.dtype)}
    return found if res is None else {**found, 1: f.to(res.dtype)}


def _rms_args(residual: bool):
    x, w = seeded(5, 96, dtype=torch.bfloat16), seeded(96, dtype=torch.bfloat16, seed=1)
    res = seeded(5, 96, dtype=torch.bfloat16, seed=2) if residual else None
    return [x, res, w, torch.zeros_like(x), 96, 96]


# ---------------------------------------------------------------------- RMS norm, gradients
@triton.jit
def _rms_norm_bwd(
    dY_ptr, dY_row_stride, X_ptr, X_row_stride, W_ptr, RSTD_ptr, dX_ptr, dW_ptr,
    n_rows, n_cols, rows_per_program: tl.constexpr, BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    row_block_id = tl.program_id(0)
    row_start = row_block_id * rows_per_program
    row_end = min((row_block_id + 1) * rows_per_program, n_rows)
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    dW_row = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    dY_ptr += row_start * dY_row_stride
    X_ptr += row_start * X_row_stride
    dX_ptr += row_start * X_row_stride
    RSTD_ptr += row_start
    W_row = tl.load(W_ptr + col_offsets, mask=mask, other=0.0)
    for _ in range(row_start, row_end):
        dY_row = tl.load(dY_ptr + col_offsets, mask=mask, other=0.0)
        X_row = tl.load(X_ptr + col_offsets, mask=mask, other=0.0).to(tl.float32)
        rstd_row = tl.load(RSTD_ptr)
        m = (dY_row * W_row).to(tl.float32)
        dX_row = rstd_row * m
        dX_row += rstd_row * (
            -(1 / n_cols) * rstd_row * rstd_row * tl.sum(m * X_row, axis=0) * X_row
        )
        dW_row += dY_row * (X_row * rstd_row)
        tl.store(dX_ptr + col_offsets, dX_row, mask=mask)
        dY_ptr += dY_row_stride
        X_ptr += X_row_stride
        dX_ptr += X_row_stride
        RSTD_ptr += 1
    tl.store(dW_ptr + row_block_id * n_cols + col_offsets, dW_row, mask=mask)


def _rms_bwd_args():
    x, dy, w = seeded(7, 60), seeded(7, 60, seed=1), seeded(60, seed=2)
    rstd = x.square().mean(1).rsqrt()
    return [dy, 60, x, 60, w, rstd, torch.zeros_like(x), torch.zeros(3, 60), 7, 60, 3, 64]


def _rms_bwd_want(dy, _, x, __, w, rstd, dx, dw, *rest):
    x = x.clone().requires_grad_()
    (x * x.square().mean(1, keepdim=True).rsqrt() * w).backward(dy)
    parts = (dy * x.detach() * rstd[:, None]).split(3)
    return {6: x.grad, 7: torch.stack([p.sum(0) for p in parts])}


# ---------------------------------------------------------------------- group norm, two passes
@triton.jit
def _group_norm(
    X, Y, W, B, G, C, HW, eps, ACT: tl.constexpr, BLOCK_G: tl.constexpr, BLOCK_HW: tl.constexpr
):
    n, g = tl.program_id(1), tl.program_id(0)
    per_group = C // G
    channels = tl.arange(0, BLOCK_G)
    total = 0.0
    squares = 0.0
    base = (n * C + g * per_group) * HW
    for start in tl.range(0, HW, BLOCK_HW, num_stages=2):
        places = start + tl.arange(0, BLOCK_HW)
        keep = (channels[:, None] < per_group) & (places[None, :] < HW)
        at = X + base + channels[:, None] * HW + places[None, :]
        x = tl.load(at, mask=keep, other=0.0).to(tl.float32)
        total += tl.sum(tl.sum(x, 1), 0)
        squares += tl.sum(tl.reshape(x * x, [BLOCK_G * BLOCK_HW]))
    count = per_group * HW
    mean = total / count
    rstd = tl.rsqrt(squares / count - mean * mean + eps)
    w = tl.load(W + g * per_group + channels, mask=channels < per_group, other=0.0)[:, None]
    b = tl.load(B + g * per_group + channels, mask=channels < per_group, other=0.0)[:, None]
    for start in range(0, HW, BLOCK_HW):
        places = start + tl.arange(0, BLOCK_HW)
        keep = (channels[:, None] < per_group) & (places[None, :] < HW)
        offs = base + channels[:, None] * HW + places[None, :]
        y = (tl.load(X + offs, mask=keep, other=0.0) - mean) * rstd * w + b
        if ACT == "silu":
            y = y * tl.sigmoid(y)
        elif ACT == "relu":
            y = tl.maximum(y, 0.0)
        else:
            tl.static_assert(ACT is None, f"unknown activation {ACT}")
        tl.store(Y + offs, y.to(Y.dtype.element_ty), mask=keep)


def _group_norm_args(act):
    x = seeded(2, 12, 50)
    return [x, torch.zeros_like(x), seeded(12), seeded(12, seed=1), 4, 12, 50, 1e-5, act, 4, 32]


def _group_norm_want(x, y, w, b, *rest):
    out = torch.nn.functional.group_norm(x, 4, w, b, 1e-5)
    return {1: torch.nn.functional.silu(out) if rest[-3] == "silu" else out}


def _layer_norm_args(dtype):
    x = seeded(4, 200, dtype=dtype)
    w, b = seeded(200, dtype=dtype, seed=1), seeded(200, dtype=dtype, seed=2)
    return [x, torch.zeros_like(x), w, b, torch.zeros(4), torch.zeros(4), 200, 200, 1e-5, 128]


CASES = [
    Case(
        "layer_norm_f16",
        _layer_norm_fwd,
        (4,),
        lambda: _layer_norm_args(torch.float16),
        _layer_norm_want,
        tolerance=1e-3,
    ),
    Case(
        "layer_norm_bwd",
        _layer_norm_bwd,
        (8,),
        _layer_norm_bwd_args,
        _layer_norm_bwd_want,
        tolerance=1e-4,
    ),
    Case(
        "layer_norm_bwd_dwdb",
        _layer_norm_bwd_dwdb,
        lambda meta: (triton.cdiv(100, meta["BLOCK_SIZE_N"]),),
        lambda: [seeded(6, 100), torch.zeros(100), 6, 100],
        lambda dw, out, *rest: {1: dw.sum(0)},
        {"BLOCK_SIZE_M": 4, "BLOCK_SIZE_N": 64},
        1e-5,
    ),
    Case(
        "rms_norm",
        _rms_norm,
        (5,),
        lambda: _rms_args(False),
        _rms_want,
        {"eps": 1e-6, "offset": 1.0, "num_warps": 4, "num_stages": 2},
        2e-2,
    ),
    Case(
        "rms_norm_residual",
        _rms_norm,
        (5,),
        lambda: _rms_args(True),
        _rms_want,
        {"eps": 1e-6, "offset": 1.0},
        2e-2,
    ),
    Case("rms_norm_bwd", _rms_norm_bwd, (3,), _rms_bwd_args, _rms_bwd_want, tolerance=1e-5),
    Case(
        "group_norm",
        _group_norm,
        (4, 2),
        lambda: _group_norm_args(None),
        _group_norm_want,
        tolerance=1e-4,
    ),
    Case(
        "group_norm_silu",
        _group_norm,
        (4, 2),
        lambda: _group_norm_args("silu"),
        _group_norm_want,
        tolerance=1e-4,
    ),
]
