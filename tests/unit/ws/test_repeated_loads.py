"""Which loads of repeated elements are loaded once."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.ring_kernels import ring_kernel


@tiledsl.jit
def repeated(
    a_ptr, b_ptr, c_ptr, K, rows,
    RUN: tl.constexpr, FIRST: tl.constexpr, KIND: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """c = a @ b, of which each row stands for RUN rows. KIND: how the loads of b are masked."""
    ms, ks = tl.arange(0, B), tl.arange(0, B)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        a = tl.load(a_ptr + ms[:, None] * K + (k + ks)[None, :])
        at = (k + ks + FIRST) // RUN
        b_ptrs = b_ptr + at[:, None] * B + ms[None, :]
        if KIND == "none":
            b = tl.load(b_ptrs)
        elif KIND == "runs":
            b = tl.load(b_ptrs, mask=(at < rows)[:, None], other=0)
        elif KIND == "cut":
            b = tl.load(b_ptrs, mask=(k + ks < rows)[:, None], other=0)
        else:
            b = tl.load(b_ptrs, mask=(at < rows)[:, None], other=1)
        acc += tl.dot(a, ((b >> (ks % 4)[:, None]) & 3).to(a.dtype))
    tl.store(c_ptr + ms[:, None] * B + ms[None, :], acc)


@pytest.mark.parametrize(
    ("run", "first", "kind", "times"),
    [
        (8, 0, "none", 8),
        (4, 0, "none", 4),
        (8, 4, "none", 4),
        (8, 0, "runs", 8),
        (8, 1, "none", 0),
        (1, 0, "none", 0),
        (8, 0, "cut", 0),
        (8, 0, "filled", 0),
    ],
)
def test_runs(run: int, first: int, kind: str, times: int) -> None:
    """Runs begin at multiples of their length, and neither a mask nor a filling may cut them."""
    a = torch.empty(64, 256, dtype=torch.float16, device="meta")
    b = torch.empty(257, 64, dtype=torch.int32, device="meta")
    c = torch.empty(64, 64, dtype=torch.float32, device="meta")
    made, _ = ring_kernel(repeated, [a, b, c, 256, 33, run, first, kind, 64], num_stages=3)
    found = [n for n in made.notes if "each is loaded once" in n]
    assert [n.split(": ")[1] for n in found] == (
        [f"b repeats {times} times, each is loaded once"] if times else []
    )
    assert (f"x {64 // max(times, 1)}x64 i32" in str(made.smem)) or kind == "filled"
