"""Gradients of attention: three tile kernels and a `torch.autograd.Function` over them.

The scores S are computed again, the weights P from them and the log-sum-exp of the forward pass.
With delta the row sums of o * do: dV = P^T dO, dS = P * (dO V^T - delta), dQ = dS K, dK = dS^T Q.
One kernel walks over the keys of a tile of queries, one over the queries of a tile of keys; every
gradient is summed by one program in a fixed order, without atomics, so that results are the same
bits each time. A function of the scores comes with its slope. A bias gets a gradient as well: one
program sums a block of it over the batches, heads, rows and columns that share it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiledsl
import tiledsl.language as tl
from examples.attention import add_bias
from examples.attention import attention
from examples.attention import key_range
from examples.attention import load_rows
from examples.attention import reference


# fmt: off
def weights(s, lse, rows, cols, k_len, scale, causal, window, score, at, extra, turned):
    """exp(score(s * scale) - lse) where a query sees a key, else 0; and score(s * scale).

    All but s broadcast to its shape. turned: s is transposed, keys by queries.
    """
    s = s * scale
    seen = cols < k_len
    if causal:
        seen = seen & (rows >= cols)
    if window:
        seen = seen & (rows - window < cols)
    if score:
        if turned:
            s = tl.trans(score(tl.trans(s), tl.trans(rows), tl.trans(cols), at, extra))
        else:
            s = score(s, rows, cols, at, extra)
        seen = seen & (s != -float("inf"))
    return tl.where(seen, tl.exp(s - lse), 0.0), s


def query_range(n, offset, q_len, causal, window, BM, BN):
    """The queries that see keys n to n + BN: first (a multiple of BM), end, number of all."""
    start, end = 0, q_len
    if causal:
        start = max(0, n - offset) // BM * BM
    if window:
        end = max(0, min(end, n + BN - 1 + window - offset))
    return start, end, q_len


def grad_q(x, dy, k, v, stats, at, k0, keys, rows, scale, causal, window, score, slope, extra,
           group, BN, packed=False):
    """The gradient of a tile of queries over keys[0] to keys[1], as in `attend`.

    dy: the gradient of their output. stats: their log-sum-exp and delta.
    """
    b, h, m = at
    acc = tl.zeros(x.shape, tl.float32)
    for n in range(keys[0], keys[1], BN):
        cols = n + tl.arange(0, BN)
        where = (b, h // group, k0 + n, 0)
        y = load_rows(k, where, (BN, x.shape[1]), cols, keys[2], packed)
        z = load_rows(v, where, (BN, dy.shape[1]), cols, keys[2], packed)
        p, s = weights(tl.dot(x, tl.trans(y)), stats[0][:, None], rows[:, None], cols[None, :],
                       keys[2], scale, causal, window, score, (b, h, m, n), extra, False)
        ds = p * (tl.dot(dy, tl.trans(z)) - stats[1][:, None])
        if slope:
            ds = ds * slope(s)
        acc = tl.dot(ds.to(x.dtype), y, acc)
    return acc * scale


def grad_kv(y, z, q, do, lse, delta, at, q0, queries, k_len, offset, scale, causal, window, score,
            slope, extra, group, BM, wanted, packed=False):
    """The gradients of a tile y of keys, and z of values, over queries[0] to queries[1].

    There are queries[2] of them, from row q0 on. at: batch, head and first row of the tile. wanted:
    "kv", or "k" or "v" where a program has no registers for the sums of both.
    """
    b, h, n = at
    start, end, q_len = queries
    cols = n + tl.arange(0, y.shape[0])
    steps = max(0, tl.cdiv(end - start, BM))
    acc_k, acc_v = tl.zeros(y.shape, tl.float32), tl.zeros(z.shape, tl.float32)
    for i in range(0, steps * group, 1):
        head, m = h * group + i // steps, start + i % steps * BM
        rows = m + tl.arange(0, BM)
        x = load_rows(q, (b, head, q0 + m, 0), (BM, y.shape[1]), rows, q_len, packed)
        dy = load_rows(do, (b, head, q0 + m, 0), (BM, z.shape[1]), rows, q_len, packed)
        row_lse = lse.load((b, head, q0 + m), (BM,))
        row_delta = delta.load((b, head, q0 + m), (BM,))
        if packed or score:  # rows behind the last one weigh nothing
            row_lse = tl.where(rows < q_len, row_lse, float("inf"))
        if packed:  # and may be NaN
            row_delta = tl.where(rows < q_len, row_delta, 0.0)
        p, s = weights(tl.dot(y, tl.trans(x)), row_lse[None, :], (rows + offset)[None, :],
                       cols[:, None], k_len, scale, causal, window, score, (b, head, m, n), extra,
                       True)
        if "v" in wanted:
            acc_v = tl.dot(p.to(q.dtype), dy, acc_v)
        if "k" in wanted:
            ds = p * (tl.dot(z, tl.trans(dy)) - row_delta[None, :])
            if slope:
                ds = ds * slope(s)
            acc_k = tl.dot(ds.to(q.dtype), x, acc_k)
    return acc_k * scale, acc_v


@tiledsl.jit
def delta_kernel(o: tl.Tensor, do: tl.Tensor, delta: tl.Tensor, DV: tl.constexpr, BM: tl.constexpr):
    """delta[b, h, m] = sum of o * do over the head dim."""
    m, h, b = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    x = o.load((b, h, m, 0), (BM, DV)).to(tl.float32)
    delta.store((b, h, m), tl.sum(x * do.load((b, h, m, 0), (BM, DV)).to(tl.float32), 1))


@tiledsl.jit
def grad_q_kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, do: tl.Tensor, lse: tl.Tensor,
                  delta: tl.Tensor, dq: tl.Tensor, extra: tl.Tensor, offset: tl.int32,
                  scale: tl.constexpr, causal: tl.constexpr, window: tl.constexpr,
                  score: tl.constexpr, slope: tl.constexpr, group: tl.constexpr,
                  D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """The gradient of BM queries of a head."""
    m, h, b = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    keys = key_range(m, offset, k.shape[2], causal, window, BM, BN)
    x, dy = q.load((b, h, m, 0), (BM, D)), do.load((b, h, m, 0), (BM, DV))
    stats = lse.load((b, h, m), (BM,)), delta.load((b, h, m), (BM,))
    dq.store((b, h, m, 0), grad_q(x, dy, k, v, stats, (b, h, m), 0, keys,
                                  m + offset + tl.arange(0, BM), scale, causal, window, score,
                                  slope, extra, group, BN))


@tiledsl.jit
def grad_kv_kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, do: tl.Tensor, lse: tl.Tensor,
                   delta: tl.Tensor, dk: tl.Tensor, dv: tl.Tensor, extra: tl.Tensor,
                   offset: tl.int32, scale: tl.constexpr, causal: tl.constexpr,
                   window: tl.constexpr, score: tl.constexpr, slope: tl.constexpr,
                   group: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
                   BM: tl.constexpr, BN: tl.constexpr, wanted: tl.constexpr = "kv"):
    """The gradients of BN keys of a head, from all query heads that share it."""
    n, h, b = tl.program_id(0) * BN, tl.program_id(1), tl.program_id(2)
    queries = query_range(n, offset, q.shape[2], causal, window, BM, BN)
    y, z = k.load((b, h, n, 0), (BN, D)), v.load((b, h, n, 0), (BN, DV))
    acc_k, acc_v = grad_kv(y, z, q, do, lse, delta, (b, h, n), 0, queries, k.shape[2], offset,
                           scale, causal, window, score, slope, extra, group, BM, wanted)
    if "k" in wanted:
        dk.store((b, h, n, 0), acc_k)
    if "v" in wanted:
        dv.store((b, h, n, 0), acc_v)


@tiledsl.jit
def grad_bias_kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, do: tl.Tensor, lse: tl.Tensor,
                     delta: tl.Tensor, bias: tl.Tensor, out: tl.Tensor, offset: tl.int32,
                     scale: tl.constexpr, causal: tl.constexpr, window: tl.constexpr,
                     group: tl.constexpr, one_row: tl.constexpr, one_col: tl.constexpr,
                     D: tl.constexpr, DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """A block of the gradient of a bias: dS, summed over the dims in which `out` has extent 1.

    bias: [B, H, Lq, Lk], a view of the smaller one. one_row, one_col: rows, columns are such dims.
    """
    at, heads = tl.program_id(2), out.shape[1]
    over_b, over_h = q.shape[0] // out.shape[0], q.shape[1] // heads
    over_m = tl.cdiv(q.shape[2], BM) // tl.cdiv(out.shape[2], BM)
    over_n = tl.cdiv(k.shape[2], BN) // tl.cdiv(out.shape[3], BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(0, over_b * over_h * over_m * over_n, 1):
        n, j = tl.program_id(1) * BN + i % over_n * BN, i // over_n
        m, j = tl.program_id(0) * BM + j % over_m * BM, j // over_m
        h, b = at % heads + j % over_h, at // heads + j // over_h
        x, dy = q.load((b, h, m, 0), (BM, D)), do.load((b, h, m, 0), (BM, DV))
        y, z = k.load((b, h // group, n, 0), (BN, D)), v.load((b, h // group, n, 0), (BN, DV))
        rows, cols = (m + offset + tl.arange(0, BM))[:, None], (n + tl.arange(0, BN))[None, :]
        p, _ = weights(tl.dot(x, tl.trans(y)), lse.load((b, h, m), (BM,))[:, None], rows, cols,
                       k.shape[2], scale, causal, window, add_bias, (b, h, m, n), bias, False)
        acc += p * (tl.dot(dy, tl.trans(z)) - delta.load((b, h, m), (BM,))[:, None])
    if one_row:
        acc = tl.sum(acc, 0)[None, :]
    if one_col:
        acc = tl.sum(acc, 1)[:, None]
    out.store((at // heads, at % heads, tl.program_id(0) * BM, tl.program_id(1) * BN), acc)
# fmt: on


def grad_tiles(d: int, dv: int, score: object) -> tuple[tuple[int, int], tuple[str, ...]]:
    """The head dims filled up with zeros, and what each launch of `grad_kv_kernel` gives.

    Sums of dK and dV take 2 x 64 registers at 128; what is computed on the scores takes some too.
    """
    dims = tl.cdiv(d, 16) * 16, tl.cdiv(dv, 16) * 16
    return dims, ("kv",) if max(dims) <= (128 if score is None else 64) else ("k", "v")


def attention_gradients(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool,
    window: int,
    scale: float,
    offset: int,
    score: Callable[..., object] | None = None,
    slope: Callable[..., object] | None = None,
    extra: torch.Tensor | None = None,
    BM: int = 64,
    BN: int = 64,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK, dV for the gradient `do` of the output; the rest as `attention` took and gave it.

    slope: the derivative of `score` as a function of its result, where it is not 1.
    """
    B, H, Lq, D = q.shape
    HK, Lk, DV = v.shape[1:]
    delta = torch.empty_like(lse)
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    delta_kernel[tl.cdiv(Lq, BM), H, B](o, do, delta, DV, BM)
    dims, parts = grad_tiles(D, DV, score)
    read = q if extra is None else extra
    masks = (read, offset, scale, causal, window, score, slope, H // HK, *dims, BM, BN)
    inputs = (q, k, v, do, lse, delta)
    grad_q_kernel[tl.cdiv(Lq, BM), H, B](*inputs, dq, *masks, fast_math=True)
    for wanted in parts:
        grid = (tl.cdiv(Lk, BN), HK, B)
        grad_kv_kernel[grid](*inputs, dk, dv, *masks, wanted, fast_math=True)
    return dq, dk, dv


def bias_gradient(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    bias: torch.Tensor,
    *,
    causal: bool,
    window: int,
    scale: float,
    offset: int,
    BM: int = 64,
    BN: int = 64,
) -> torch.Tensor:
    """The gradient of a bias that broadcasts to [B, H, Lq, Lk], in its shape."""
    B, H, Lq, D = q.shape
    HK, Lk, DV = v.shape[1:]
    delta = torch.empty_like(lse)
    delta_kernel[tl.cdiv(Lq, BM), H, B](o, do, delta, DV, BM)
    dims, _ = grad_tiles(D, DV, None)
    out = torch.empty(bias.shape, device=q.device, dtype=bias.dtype)
    b, h, rows, cols = full = (1,) * (4 - bias.ndim) + tuple(bias.shape)
    grad_bias_kernel[tl.cdiv(rows, BM), tl.cdiv(cols, BN), b * h](
        q, k, v, do, lse, delta, bias.expand(B, H, Lq, Lk), out.view(full), offset, scale, causal,
        window, H // HK, rows == 1, cols == 1, *dims, BM, BN, fast_math=True,
    )  # fmt: skip
    return out


def softcap_slope(cap: float) -> Callable[..., object]:
    """The slope of `softcap(cap)`."""

    def slope(s):
        return 1.0 - (s / cap) * (s / cap)

    return slope


def readable(do: torch.Tensor) -> torch.Tensor:
    """A gradient that TMA can read: `sum().backward()` gives one number with strides of 0."""
    return do.contiguous() if 0 in do.stride() else do


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        window: int,
        scale: float,
        offset: int,
        score: Callable[..., object] | None,
        slope: Callable[..., object] | None,
        extra: torch.Tensor | None,
    ) -> torch.Tensor:
        masks = {"causal": causal, "window": window, "scale": scale, "offset": offset}
        read = (
            extra.expand(*q.shape[:3], k.shape[2])
            if score is add_bias and extra is not None
            else extra
        )
        o, lse = attention(q, k, v, score=score, extra=read, **masks)
        ctx.masks, ctx.rest = masks, {"score": score, "slope": slope, "extra": read}
        ctx.save_for_backward(q, k, v, o, lse, extra)
        return o

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        do = readable(gradients[0])
        *saved, extra = ctx.saved_tensors
        grads = attention_gradients(do, *saved, **ctx.masks, **ctx.rest)
        wanted = ctx.needs_input_grad[-1]
        bias = bias_gradient(do, *saved, extra, **ctx.masks) if wanted else None
        return *grads, *[None] * 6, bias


def differentiable_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    offset: int | None = None,
    score: Callable[..., object] | None = None,
    slope: Callable[..., object] | None = None,
    extra: torch.Tensor | None = None,
) -> torch.Tensor:
    """The output of `attention`, with gradients for q, k, v, and for `extra` under `add_bias`.

    slope: the derivative of `score` as a function of its result (`softcap_slope`), None where it is
    1, as for a bias. A bias of any shape that broadcasts to [B, H, Lq, Lk] serves.
    """
    if extra is not None and extra.requires_grad and score is not add_bias:
        name = getattr(score, "__name__", score)
        raise ValueError(
            "differentiable_attention(): extra gets a gradient under add_bias, and score is"
            f" {name}; pass extra.detach()"
        )
    at = k.shape[2] - q.shape[2] if offset is None else offset
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return _Attention.apply(q, k, v, causal, window, factor, at, score, slope, extra)


def run(shape: tuple[int, ...], device: str, *, causal: bool) -> list[float]:
    """Gradients of random bf16 data, [B, H, HK, Lq, Lk, D]; returns their relative errors."""
    B, H, HK, Lq, Lk, D = shape
    q = torch.randn(B, H, Lq, D, device=device, dtype=torch.bfloat16)
    k, v = (torch.randn(B, HK, Lk, D, device=device, dtype=torch.bfloat16) for _ in range(2))
    do = torch.randn_like(q)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    differentiable_attention(*inputs, causal=causal).backward(do)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    reference(*exact, causal=causal).backward(do.double())
    pairs = [(x.grad, y.grad) for x, y in zip(inputs, exact, strict=True)]
    return [((got.double() - want).norm() / want.norm()).item() for got, want in pairs]


def main() -> None:
    """Compares the gradients with fp64, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device = "cuda" if on_gpu else "cpu"
    shape = (2, 16, 4, 1000, 1000, 128) if on_gpu else (1, 2, 1, 70, 100, 64)
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter.")
    for causal in (False, True):
        errors = run(shape, device, causal=causal)
        kind = "causal" if causal else "full"
        print(f"{kind}: relative errors {', '.join(f'{e:.1e}' for e in errors)} of dq, dk, dv")
        if not max(errors) < 1e-2:
            raise SystemExit("the gradients are wrong")


if __name__ == "__main__":
    main()
