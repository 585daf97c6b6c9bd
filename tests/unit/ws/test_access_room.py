"""Exchanges that only make accesses better give way where they do not fit, and to clusters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tests.emulation.test_emulated_shifted import widen_rows
from tiledsl.compiled import Kernel
from tiledsl.ws.single_plan import SinglePlan

BF16, F32 = torch.bfloat16, torch.float32


@tiledsl.jit
def centre_rows(y, x, n_cols, BLOCK: tl.constexpr):
    """Rows of 16-bit elements less their mean, in f32."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    value = tl.load(x + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    value = value - tl.sum(value, axis=0) / n_cols
    tl.store(y + row * n_cols + cols, value, mask=cols < n_cols)


@tiledsl.jit
def sum_rows(y, x, n_rows, n_cols, BLOCK: tl.constexpr):
    """Sums in f32 of rows of 16-bit elements, each less its mean."""
    cols = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        value = tl.load(x + row * n_cols + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        total += value - tl.sum(value, axis=0) / n_cols
    tl.store(y + tl.program_id(0) * n_cols + cols, total, mask=cols < n_cols)


@tiledsl.jit
def centre_columns(y, x, M: tl.constexpr, N: tl.constexpr):
    """The transposed matrix, each row less its mean."""
    rows, cols = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :]
    value = tl.load(x + rows * N + cols)
    tl.store(y + rows + cols * M, value - tl.sum(value, axis=0, keep_dims=True) / M)


def made(kernel: Any, block: int, *more: int) -> Kernel:
    n = block - 15
    x = torch.empty(4, n, dtype=BF16, device="meta")
    y = torch.empty(4, n, dtype=F32, device="meta")
    found, _ = compiled(kernel, [y, x, *more, n, block], grid=(4, 1, 1))
    return found


def ctas(kernel: Kernel) -> int:
    assert isinstance(kernel.plan, SinglePlan)
    return kernel.plan.num_ctas


def notes(kernel: Kernel, words: str) -> list[str]:
    return [note for note in kernel.notes if words in note]


@pytest.mark.parametrize(("block", "fits"), [(8192, True), (131072, False)])
def test_exchange_that_does_not_fit_is_declined(block: int, fits: bool) -> None:
    kernel = made(widen_rows, block)
    (line,) = notes(kernel, "converted" if fits else "is accessed as it lies")
    assert line.startswith("test_emulated_shifted.py:")
    assert kernel.smem.end_bytes == (16384 if fits else 0)
    source = kernel.module.source
    assert ("load_shifted" in source and "store_shifted" in source) == fits
    assert fits or "262144 bytes to exchange it between threads, 231424 are left" in line


@pytest.mark.parametrize("block", [32768, 65536])
@pytest.mark.parametrize(("kernel", "more"), [(centre_rows, ()), (sum_rows, (4,))])
def test_cluster_stays_rather_than_longer_vectors(
    kernel: Any, more: tuple[int, ...], block: int
) -> None:
    found = made(kernel, block, *more)
    (line,) = notes(found, f"the {ctas(found)} CTAs that share it exchange no tiles")
    assert line.startswith("test_access_room.py:")
    assert ctas(found) > 1
    assert "_shifted<" in found.module.source


@pytest.mark.parametrize(("rows", "fits"), [(128, True), (256, False)])
def test_cluster_gives_way_where_lanes_would_lie_far_apart(rows: int, fits: bool) -> None:
    """Unless one CTA has no room for the exchange either."""
    x, y = (torch.empty(rows, 256, dtype=F32, device="meta") for _ in range(2))
    found, _ = compiled(centre_columns, [y, x, rows, 256], grid=(1, 1, 1))
    assert (ctas(found) == 1) == fits
    assert bool(notes(found, "converted")) == fits
    assert bool(notes(found, "no cluster shares a program")) == fits
    assert bool(notes(found, "CTAs that share it exchange no tiles")) == (not fits)
