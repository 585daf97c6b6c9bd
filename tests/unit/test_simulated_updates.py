"""Atomic updates in a simulation: once for all warpgroups of a tile, by each that has its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.compiler import modules
from tiledsl.simulator import simulate

BF16 = torch.bfloat16


# fmt: off
@tiledsl.jit
def updates(a: tl.Tensor, b: tl.Tensor, one, masked, cols_, rows_, seen, whole, swapped, locked,
            BM: tl.constexpr = 64):
    p = tl.program_id(0)
    m = p * BM
    rows, cols = m + tl.arange(0, BM), tl.arange(0, 64)
    acc = tl.zeros((BM, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, 0), (64, 64)), acc)
    tl.atomic_add(one, tl.sum(acc))
    tl.atomic_max(masked + p, tl.max(acc), mask=p > 0)
    tl.atomic_add(cols_ + cols, tl.sum(acc, 0))
    tl.atomic_add(rows_ + rows, tl.sum(acc, 1), mask=rows < a.shape[0])
    old = tl.atomic_add(seen + p * 64 + cols, tl.max(acc, 0))
    tl.atomic_add(whole + (rows[:, None] % 8) * 64 + cols[None, :], acc + tl.sum(old))
    before = tl.atomic_cas(swapped + p, 3, 5)
    tl.atomic_xchg(swapped + 8 + p, before)
    tl.atomic_cas(locked + cols, cols, cols + 100)
# fmt: on

OUTPUTS = ("one", "masked", "cols_", "rows_", "seen", "whole", "swapped", "locked")


def arguments(rows: int) -> dict[str, Any]:
    made = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-2, 3, s, generator=made).to(BF16) for s in ((rows, 128), (128, 64)))
    swapped = torch.arange(16, dtype=torch.int32) % 2 * 3
    return {
        "a": a, "b": b, "one": torch.zeros(1), "masked": torch.zeros(8), "cols_": torch.zeros(64),
        "rows_": torch.zeros(rows), "seen": torch.ones(8 * 64), "whole": torch.zeros(8 * 64),
        "swapped": swapped, "locked": torch.arange(64, dtype=torch.int32) // 2 * 2,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("BM", "options"),
    [(64, {}), (128, {"num_consumers": 2}), (64, {"ping_pong": True}), (64, {"persistent": True})],
    ids=str,
)
def test_updates(BM: int, options: dict[str, Any]) -> None:
    want, got = arguments(200), arguments(200)
    grid = (-(-200 // BM),)
    updates[grid](*want.values(), BM=BM)
    request = updates.request_for(tuple(got.values()), {"BM": BM, **options}, grid)[1]
    made = next(modules(request))
    assert made.certificate is not None
    assert made.certificate.proved
    simulate(made, got, grid, seed=2)
    for name in OUTPUTS:
        assert torch.equal(got[name], want[name]), name
