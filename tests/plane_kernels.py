"""Convolutions of images in planes: elements of two bytes a plane apart, which no copy takes.

One list for the emulation, NVRTC and the GPU.
"""

from __future__ import annotations

from typing import Any

import torch

import tiledsl as triton
import tiledsl.language as tl


# fmt: off
@triton.jit
def conv_planes(
    x_ptr, w_ptr, y_ptr, B, H, W, OC, P, Q,
    x_n, x_c, x_h, w_o, w_c, w_h, y_n, y_c, y_h,
    C: tl.constexpr, R: tl.constexpr, S: tl.constexpr, PAD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    """Images [B, C, H, W], weights [OC, C, R, S], results [B, OC, P, Q]; all strides are arguments."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    q = rows % Q
    p = rows // Q % P
    n = rows // Q // P
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    STEPS: tl.constexpr = (C + BK - 1) // BK
    for i in range(R * S * STEPS):
        c = (i % STEPS) * BK + tl.arange(0, BK)
        r, s = i // STEPS // S, i // STEPS % S
        h, w = p + r - PAD, q + s - PAD
        inside = (n < B) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        x = tl.load(
            x_ptr + (n * x_n + h * x_h + w)[:, None] + (c * x_c)[None, :],
            mask=inside[:, None] & (c < C)[None, :], other=0.0,
        )
        y = tl.load(
            w_ptr + (cols * w_o)[None, :] + (c * w_c)[:, None] + r * w_h + s,
            mask=(c < C)[:, None] & (cols < OC)[None, :], other=0.0,
        )
        acc += tl.dot(x, y)
    tl.store(
        y_ptr + (n * y_n + p * y_h + q)[:, None] + (cols * y_c)[None, :],
        acc.to(y_ptr.dtype.element_ty), mask=(n < B)[:, None] & (cols < OC)[None, :],
    )
@triton.jit
def planes_to_rows(x_ptr, y_ptr, B, C, AREA, x_n, x_c, x_p, BM: tl.constexpr, BN: tl.constexpr):
    """Pixels as rows of their channels; nothing is multiplied."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    n, p = rows // AREA, rows % AREA
    mask = (n < B)[:, None] & (cols < C)[None, :]
    x = tl.load(x_ptr + (n * x_n + p * x_p)[:, None] + (cols * x_c)[None, :], mask=mask)
    tl.store(y_ptr + (n * (AREA * C) + p * C)[:, None] + cols[None, :], x, mask=mask)
# fmt: on


def conv_planes_args(
    batch: int, size: tuple[int, int], channels: tuple[int, int], tile: tuple[int, int, int],
    *, taps: int = 3, dtype: torch.dtype = torch.float16, device: str = "cpu",
) -> tuple[list[Any], torch.Tensor, tuple[int, int]]:  # fmt: skip
    """Arguments in order, the result that is wanted, and the grid. channels: of input and output."""
    (H, W), (C, OC), pad = size, channels, taps // 2
    numbers = torch.Generator().manual_seed(7)
    x = torch.randn((batch, C, H, W), generator=numbers).to(dtype)
    w = (torch.randn((OC, C, taps, taps), generator=numbers) * 0.1).to(dtype)
    want = torch.nn.functional.conv2d(x.float(), w.float(), padding=pad)
    y = torch.full(want.shape, float("nan"), dtype=dtype)
    P, Q = want.shape[2:]
    x, w, y, want = (t.to(device) for t in (x, w, y, want))
    strides = [n for t in (x, w, y) for n in t.stride()[:3]]
    args = [x, w, y, batch, H, W, OC, P, Q, *strides, C, taps, taps, pad, *tile]
    return args, want, (-(-batch * P * Q // tile[0]), -(-OC // tile[1]))
