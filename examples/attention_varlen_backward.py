"""Gradients of attention over packed sequences: `differentiable_attention_varlen`.

The loops are those of `examples/attention_backward.py`; the kernels here find the rows of their
sequence, and keep what follows it in memory, NaN or not, out of every sum. Sequences without
queries or keys and queries that see no key get zeros, as do rows outside of all sequences.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tiledsl
import tiledsl.language as tl
from examples.attention import attention_varlen
from examples.attention import key_range
from examples.attention import reference
from examples.attention import store_rows
from examples.attention_backward import delta_kernel
from examples.attention_backward import grad_kv
from examples.attention_backward import grad_q
from examples.attention_backward import grad_tiles
from examples.attention_backward import query_range
from examples.attention_backward import readable


# fmt: off
def bounds(q_starts, k_starts, b):
    """First row and number of rows of sequence b, among queries and among keys."""
    q0, k0 = tl.load(q_starts + b), tl.load(k_starts + b)
    return q0, tl.load(q_starts + b + 1) - q0, k0, tl.load(k_starts + b + 1) - k0


@tiledsl.jit
def varlen_grad_q_kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, do: tl.Tensor, lse: tl.Tensor,
                         delta: tl.Tensor, dq: tl.Tensor, ragged, extra: tl.Tensor,
                         q_starts, k_starts, scale: tl.constexpr, causal: tl.constexpr,
                         window: tl.constexpr, score: tl.constexpr, slope: tl.constexpr,
                         group: tl.constexpr, D: tl.constexpr, DV: tl.constexpr,
                         BM: tl.constexpr, BN: tl.constexpr, exact: tl.constexpr):
    """The gradient of BM queries of a head of sequence b. ragged: the memory of dq.

    exact: D and DV are the head dims; what is known makes simpler stores.
    """
    m, h, b = tl.program_id(0) * BM, tl.program_id(1), tl.program_id(2)
    q0, q_len, k0, k_len = bounds(q_starts, k_starts, b)
    offset = k_len - q_len
    start, end, _ = key_range(m, offset, k_len, causal, window, BM, BN)
    keys = start, tl.where(m < q_len, end, 0), k_len
    x, dy = q.load((0, h, q0 + m, 0), (BM, D)), do.load((0, h, q0 + m, 0), (BM, DV))
    rows = m + tl.arange(0, BM)
    row_lse = tl.where(rows < q_len, lse.load((0, h, q0 + m), (BM,)), float("inf"))
    stats = row_lse, delta.load((0, h, q0 + m), (BM,))
    y = grad_q(x, dy, k, v, stats, (0, h, m), k0, keys, rows + offset, scale, causal,
               window, score, slope, extra, group, BN, packed=True)
    store_rows(dq, ragged, (h, q0, m), q_len, y, True, D if exact else q.shape[3])


@tiledsl.jit
def varlen_grad_kv_kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, do: tl.Tensor, lse: tl.Tensor,
                          delta: tl.Tensor, dk: tl.Tensor, dv: tl.Tensor, ragged_k, ragged_v,
                          extra: tl.Tensor, q_starts, k_starts, scale: tl.constexpr,
                          causal: tl.constexpr, window: tl.constexpr, score: tl.constexpr,
                          slope: tl.constexpr, group: tl.constexpr, D: tl.constexpr,
                          DV: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                          exact: tl.constexpr, wanted: tl.constexpr = "kv"):
    """The gradients of BN keys of a head of sequence b. ragged: the memory of dk and dv."""
    n, h, b = tl.program_id(0) * BN, tl.program_id(1), tl.program_id(2)
    q0, q_len, k0, k_len = bounds(q_starts, k_starts, b)
    offset = k_len - q_len
    start, end, _ = query_range(n, offset, q_len, causal, window, BM, BN)
    queries = start, tl.where(n < k_len, end, 0), q_len
    y, z = k.load((0, h, k0 + n, 0), (BN, D)), v.load((0, h, k0 + n, 0), (BN, DV))
    acc_k, acc_v = grad_kv(y, z, q, do, lse, delta, (0, h, n), q0, queries, k_len, offset, scale,
                           causal, window, score, slope, extra, group, BM, wanted, packed=True)
    # Sums of larger head dims leave no registers for both ways to store.
    if "k" in wanted:
        store_rows(dk, ragged_k, (h, k0, n), k_len, acc_k, D <= 64, D if exact else k.shape[3])
    if "v" in wanted:
        store_rows(dv, ragged_v, (h, k0, n), k_len, acc_v, DV <= 64, DV if exact else v.shape[3])
# fmt: on


def attention_varlen_gradients(
    do: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    q_starts: torch.Tensor,
    k_starts: torch.Tensor,
    *,
    longest: tuple[int, int],
    causal: bool,
    window: int,
    scale: float,
    score: Callable[..., object] | None = None,
    slope: Callable[..., object] | None = None,
    extra: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK, dV for the gradient `do` of the output; the rest as `attention_varlen` had it.

    longest: rows of the longest sequence among queries and among keys.
    """
    T, H, D = q.shape
    HK, DV = v.shape[1:]
    shapes = q.shape, k.shape, v.shape
    dq, dk, dv = (torch.zeros(s, dtype=q.dtype, device=q.device) for s in shapes)
    inputs = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v, do)]
    stats = lse.unsqueeze(0), torch.empty_like(lse).unsqueeze(0)
    delta_kernel[tl.cdiv(T, 64), H, 1](o.transpose(0, 1).unsqueeze(0), inputs[3], stats[1], DV, 64)
    grads = [x.transpose(0, 1).unsqueeze(0) for x in (dq, dk, dv)]
    dims, parts = grad_tiles(D, DV, score)
    read = q if extra is None else extra
    masks = (read, q_starts, k_starts, scale, causal, window, score, slope, H // HK, *dims)
    count, exact = len(q_starts) - 1, dims == (D, DV)
    varlen_grad_q_kernel[tl.cdiv(longest[0], 64), H, count](
        *inputs, *stats, grads[0], dq, *masks, 64, 64, exact, fast_math=True
    )
    BM = 64 if max(dims) <= 128 else 32
    for wanted in parts:
        varlen_grad_kv_kernel[tl.cdiv(longest[1], 64), HK, count](
            *inputs, *stats, *grads[1:], dk, dv, *masks, BM, 64, exact, wanted, fast_math=True
        )
    return dq, dk, dv


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        q_starts: torch.Tensor,
        k_starts: torch.Tensor,
        longest: tuple[int, int],
        options: dict[str, Any],
        slope: Callable[..., object] | None,
    ) -> torch.Tensor:
        o, lse = attention_varlen(q, k, v, q_starts, k_starts, longest[0], **options)
        ctx.options = {**options, "longest": longest, "slope": slope}
        ctx.save_for_backward(q, k, v, o, lse, q_starts, k_starts)
        return o

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        do = readable(gradients[0])
        return *attention_varlen_gradients(do, *ctx.saved_tensors, **ctx.options), *[None] * 5


def differentiable_attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_starts: torch.Tensor,
    k_starts: torch.Tensor,
    longest: tuple[int, int],
    *,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    score: Callable[..., object] | None = None,
    slope: Callable[..., object] | None = None,
    extra: torch.Tensor | None = None,
) -> torch.Tensor:
    """The output of `attention_varlen`, with gradients for q, k and v.

    longest: rows of the longest sequence among queries and among keys. slope: the derivative of
    `score` as a function of its result, None where it is 1.
    """
    if extra is not None and extra.requires_grad:
        raise ValueError(
            "differentiable_attention_varlen(): extra gets no gradient; pass extra.detach()"
        )
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    options = {"causal": causal, "window": window, "scale": factor, "score": score, "extra": extra}
    return _Attention.apply(q, k, v, q_starts, k_starts, longest, options, slope)


def run(
    lengths: list[int], heads: tuple[int, int], D: int, device: str, *, causal: bool
) -> list[float]:
    """Gradients of random bf16 data; returns their relative errors."""
    H, HK = heads
    starts = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    shapes = [(sum(lengths), h, D) for h in (H, HK, HK)]
    inputs = [torch.randn(s, device=device, dtype=torch.bfloat16).requires_grad_() for s in shapes]
    longest = max(lengths), max(lengths)
    o = differentiable_attention_varlen(*inputs, starts, starts, longest, causal=causal)
    do = torch.randn_like(o)
    o.backward(do)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    for a, b in pairwise(starts.tolist()):
        part = [x[a:b].transpose(0, 1)[None] for x in exact]
        reference(*part, causal=causal).backward(do[a:b].transpose(0, 1)[None].double())
    pairs = [(x.grad, y.grad) for x, y in zip(inputs, exact, strict=True)]
    return [((got.double() - want).norm() / want.norm()).item() for got, want in pairs]


def main() -> None:
    """Compares the gradients with fp64, on the GPU or in the interpreter."""
    torch.manual_seed(0)
    on_gpu = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
    device = "cuda" if on_gpu else "cpu"
    lengths, heads, D = (
        ([1000, 3, 0, 700], (16, 4), 128) if on_gpu else ([70, 3, 0, 40], (2, 1), 64)
    )
    if not on_gpu:
        print("No Hopper GPU: running in the interpreter.")
    for causal in (False, True):
        errors = run(lengths, heads, D, device, causal=causal)
        kind = "causal" if causal else "full"
        print(f"{kind}: relative errors {', '.join(f'{e:.1e}' for e in errors)} of dq, dk, dv")
        if not max(errors) < 1e-2:
            raise SystemExit("the gradients are wrong")


if __name__ == "__main__":
    main()
