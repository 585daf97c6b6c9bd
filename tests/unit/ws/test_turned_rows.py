"""Which rows at odd addresses are turned."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tests.unit.ws.test_staying import centre
from tests.unit.ws.test_staying import centre_with_weight

BF16, F32 = torch.bfloat16, torch.float32


@tiledsl.jit
def centre_with_gaps(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row + at, value - tl.sum(value, axis=0) / n, mask=(at < n) & (at % 3 != 1))


@tiledsl.jit
def centre_whole(x, y, n, BLOCK: tl.constexpr):
    """Without a mask there is no room for a line."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row + at, value - tl.sum(value, axis=0) / n)


@tiledsl.jit
def first_largest(x, y, n, BLOCK: tl.constexpr):
    """Of equal elements the first one counts."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=-1e4).to(tl.float32)
    place = tl.argmax(value, axis=0)
    tl.store(y + row + at, tl.where(at < place, value, 0.0), mask=at < n)


@tiledsl.jit
def sum_before(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row + at, tl.cumsum(value, axis=0) / tl.sum(value, axis=0), mask=at < n)


@tiledsl.jit
def centre_other_end(x, y, n, BLOCK: tl.constexpr):
    """Rows of which programs take different numbers of elements."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    mask = at < n - tl.program_id(0)
    value = tl.load(x + row + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row + at, value - tl.sum(value, axis=0) / n, mask=mask)


def source(kernel: Any, n: int, dtype: torch.dtype, y_dtype: torch.dtype | None = None) -> str:
    x = torch.empty(4, n, dtype=dtype, device="meta")
    y = torch.empty(4, n, dtype=y_dtype or dtype, device="meta")
    found, _ = compiled(kernel, [x, y, n, 8192], grid=(4, 1, 1), num_warps=16, persistent=True)
    return found.module.source


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("kernel", [centre, centre_with_weight])
def test_odd_rows_are_turned(kernel: Any, dtype: torch.dtype) -> None:
    """The row's own accesses; what all programs load is read shifted against it."""
    text = source(kernel, 8001, dtype)
    assert "load_fetched_shifted<" in text
    assert text.count("ByTurn, Chained") == 4  # two copies, a read and a store
    assert text.count(" read_segment<") == (kernel is centre_with_weight)


@pytest.mark.parametrize("kernel", [centre, centre_with_weight])
def test_aligned_rows_are_not(kernel: Any) -> None:
    assert "ByTurn" not in source(kernel, 8000, BF16)


@pytest.mark.parametrize(
    "kernel", [centre_with_gaps, centre_whole, first_largest, sum_before, centre_other_end]
)
def test_places_that_count_stay(kernel: Any) -> None:
    """Masks that are no end of the row, functions of places, ends that vary."""
    assert "ByTurn" not in source(kernel, 8001, BF16)


def test_elements_of_two_sizes_stay() -> None:
    assert "ByTurn" not in source(centre, 8001, BF16, F32)
