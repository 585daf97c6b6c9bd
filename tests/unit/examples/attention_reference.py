"""Attention in fp64, with every option of `examples/attention.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch

Score = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
LIMITS = {torch.bfloat16: 4e-3, torch.float16: 1e-3}


def attention_fp64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: int = 0,
    offset: int | None = None,
    scale: float | None = None,
    score: Score | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the log-sum-exp; rows that see no key give 0. score: (scores, rows, columns)."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double(), v.double()
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    at = k.shape[2] - q.shape[2] if offset is None else offset
    rows = torch.arange(q.shape[2], device=q.device)[:, None] + at
    cols = torch.arange(k.shape[2], device=q.device)[None, :]
    if score is not None:
        s = score(s, rows, cols)
    seen = torch.ones_like(rows >= cols)
    if causal:
        seen = seen & (rows >= cols)
    if window:
        seen = seen & (cols > rows - window)
    s = s.masked_fill(~seen, -float("inf"))
    lse = torch.logsumexp(s, -1)
    weights = torch.where(torch.isfinite(lse)[..., None], torch.softmax(s, -1), 0.0)
    return weights @ v, lse


def check(
    got: tuple[torch.Tensor, torch.Tensor],
    want: tuple[torch.Tensor, torch.Tensor],
    factor: float = 1.0,
) -> None:
    """Compares output and log-sum-exp; nothing may be NaN that the reference has as a number."""
    (o, lse), (o_want, lse_want) = got, want
    assert not o.isnan().any()
    assert o.shape == o_want.shape
    error = (o.double() - o_want).norm() / o_want.norm().clamp(min=1e-30)
    assert error <= factor * LIMITS[o.dtype], f"relative error {error:.2e}"
    assert torch.equal(lse.isinf(), lse_want.isinf())
    finite = ~lse_want.isinf()
    difference = (lse.double() - lse_want)[finite].abs()
    # The tensor core sums in a little less than f32: some 2**-18 of the largest score.
    scores = lse_want[finite].abs()
    largest = max(scores.flatten().tolist(), default=0.0)  # the terms of a row may cancel
    bound = 1e-5 + 4e-6 * scores + 4e-7 * largest
    assert (difference <= factor * bound).all(), f"log-sum-exp off by {difference.max():.2e}"
