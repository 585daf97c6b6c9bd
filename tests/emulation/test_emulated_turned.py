"""Rows at odd addresses that are turned in registers, in kernels whose CTAs stay for the next row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.runtime.interop import numpy_view

F32, BF16 = torch.float32, torch.bfloat16
BLOCK, ROWS = 2048, 9
LIMIT = {F32: 1e-6, BF16: 4e-3}


@tiledsl.jit
def softmax(x, y, x_stride, y_stride, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    value = tl.load(x + row * x_stride + at, mask=at < n, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row * y_stride + at, value / tl.sum(value, axis=0), mask=at < n)


@tiledsl.jit
def some_rows(x, y, n_rows, stride, n, BLOCK: tl.constexpr):
    """Programs behind the last row neither load nor store."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    mask = (row < n_rows) & (at < n)
    value = tl.load(x + row * stride + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row * stride + at, value - tl.sum(value, axis=0), mask=mask)


@tiledsl.jit
def layer_norm(
    x, more, y, w, b, mean, x_stride, y_stride, n, BLOCK: tl.constexpr, MORE: tl.constexpr
):
    """Of a row, or the sum of two; the place of an element counts as well."""
    at = tl.arange(0, BLOCK)
    inside = at < n
    row = tl.program_id(0)
    value = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if MORE:
        value += tl.load(more + row * x_stride + at, mask=n > at, other=0.0).to(tl.float32)
    value += tl.where(at < 1500, at, 0) * 1e-3
    average = tl.sum(tl.where(inside, value, 0.0), axis=0) / n
    tl.store(mean + row, average)
    value = tl.where(inside, value - average, 0.0)
    rstd = tl.rsqrt(tl.sum(value * value, axis=0) / n + 1e-5)
    scaled = value * rstd * tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    scaled += tl.load(b + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * y_stride + at, scaled, mask=inside)


@tiledsl.jit
def by_turns(x, y, z, n, BLOCK: tl.constexpr):
    """Rows are stored, and added up, under a condition."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    value = tl.load(x + row * n + at, mask=at < n, other=0.0)
    total = tl.sum(value, axis=0)
    if row % 2 == 1:
        tl.store(y + row * n + at, value + total, mask=at < n)
    else:
        tl.store(y + row * n + at, value - total, mask=at < n)
        tl.store(z + row, tl.sum(tl.where(at < 7, value, 0.0), axis=0))


def run(kernel: Any, args: list[Any], num_warps: int = 2) -> str:
    made, runtime = compiled(kernel, args, persistent=True, num_warps=num_warps)
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (ROWS, 1, 1), num_sms=1, seconds=120.0)
    return made.module.source


def strided(flat: torch.Tensor, offset: int, stride: int, n: int) -> torch.Tensor:
    return flat[offset:].as_strided((ROWS, n), (stride, 1), flat.storage_offset() + offset)


def flat(stride: int, offset: int, dtype: torch.dtype, fill: float) -> torch.Tensor:
    """Memory for rows, with room before and behind them."""
    return torch.full((offset + ROWS * stride + 64,), fill, dtype=dtype)


# Offsets of the first row of x and y; in one column the rows of x and y are off alike.
PLACES = [(0, 0), (3, 3), (1, 4), (37, 5)]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    ("n", "more"),
    [(1981, 0), (1984, 1), (1985, 0), (2017, 2), (65, 0), (2047, 0), (2043, 2), (2048, 3)],
)
@pytest.mark.parametrize(("x_at", "y_at"), PLACES)
def test_softmax(dtype: torch.dtype, n: int, more: int, x_at: int, y_at: int) -> None:
    torch.manual_seed(n + x_at)
    stride = n + more
    x = flat(stride, x_at, dtype, float("nan"))
    rows = strided(x, x_at, stride, n)
    rows.copy_(torch.randn(ROWS, n))
    y = flat(stride, y_at, dtype, 77.0)
    source = run(softmax, [x[x_at:], y[y_at:], stride, stride, n, BLOCK])
    assert "ByTurn" in source
    found = strided(y, y_at, stride, n)
    want = rows.double().softmax(-1)
    assert ((found.double() - want).norm() / want.norm()).item() < LIMIT[dtype]
    found.fill_(77.0)
    assert (y == 77.0).all(), "something was written beside the rows"


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(("n_rows", "n"), [(2, 1981), (ROWS, 0), (ROWS, 3), (ROWS, -5)])
def test_rows_that_are_not_there(dtype: torch.dtype, n_rows: int, n: int) -> None:
    """Nothing is read before them either."""
    width = max(n, 1)
    x = torch.randn(n_rows * 1981).to(dtype)[: (n_rows - 1) * 1981 + width].clone()
    y = torch.full_like(x, 77.0)
    source = run(some_rows, [x, y, n_rows, 1981, n, BLOCK])
    assert "ByTurn" in source
    for row in range(n_rows):
        found, start = y[row * 1981 : (row + 1) * 1981], row * 1981
        if n > 0:
            want = x[start : start + n].double()
            want -= want.sum()
            torch.testing.assert_close(found[:n].double(), want, rtol=1e-2, atol=1e-2)
        assert (found[max(n, 0) :] == 77.0).all()


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("n", [8101, 4113, 8191])
@pytest.mark.parametrize(("x_at", "y_at", "more_at"), [(0, 0, 0), (5, 5, 2), (7, 2, 7)])
def test_norm(dtype: torch.dtype, n: int, x_at: int, y_at: int, more_at: int) -> None:
    """What all programs load is shifted against the row."""
    torch.manual_seed(n + x_at)
    x, more = (flat(n, at, dtype, float("nan")) for at in (x_at, more_at))
    for t, at in ((x, x_at), (more, more_at)):
        strided(t, at, n, n).copy_(torch.randn(ROWS, n))
    w, b = (torch.randn(n).to(dtype) for _ in range(2))
    y, mean, is_sum = flat(n, y_at, dtype, 77.0), torch.zeros(ROWS), dtype == BF16
    args = [x[x_at:], more[more_at:], y[y_at:], w, b, mean, n, n, n, 8192, is_sum]
    source = run(layer_norm, args, num_warps=16)
    assert "ByTurn" in source
    assert source.count(" read_segment") == 2
    places = torch.arange(n, dtype=torch.float64)
    exact = strided(x, x_at, n, n).double()
    if is_sum:
        exact += strided(more, more_at, n, n).double()
    exact += torch.where(places < 1500, places, 0) * 1e-3
    torch.testing.assert_close(mean.double(), exact.mean(-1), rtol=1e-4, atol=1e-5)
    want = torch.nn.functional.layer_norm(exact, (n,), w.double(), b.double(), 1e-5)
    found = strided(y, y_at, n, n)
    assert ((found.double() - want).norm() / want.norm()).item() < LIMIT[dtype]
    found.fill_(77.0)
    assert (y == 77.0).all(), "something was written beside the rows"


@tiledsl.jit
def weighted(x, y, w, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    value = tl.load(x + row * n + at, mask=at < n, other=0.0)
    total = tl.sum(value.to(tl.float32), axis=0)
    weight = tl.load(w + at, mask=at < n, other=0.0)
    tl.store(y + row * n + at, value / total * weight, mask=at < n)


@pytest.mark.parametrize(
    ("out", "why"),
    [(F32, "a convert_layout of them"), (BF16, "elements of 4 bytes beside those of 2")],
)
def test_the_report_says_what_is_not_turned(out: torch.dtype, why: str) -> None:
    n = 1981
    x, y, w = torch.randn(ROWS, n).to(BF16), torch.zeros(ROWS, n, dtype=out), torch.ones(n)
    made, _ = compiled(weighted, [x, y, w, n, BLOCK], persistent=True, num_warps=2)
    assert "ByTurn" not in made.module.source
    (note,) = [note for note in made.notes if "not turned" in note]
    assert note.endswith(f"rows are shifted between lanes, not turned: {why}")


def test_rows_that_are_stored_under_a_condition() -> None:
    n = 1981
    x, y, z = (torch.randint(-3, 4, (ROWS * n + 3,)).float()[3:] for _ in range(3))
    assert "ByTurn" not in run(by_turns, [x, y, z, n, BLOCK])
    rows, odd = x.view(ROWS, n), torch.arange(ROWS)[:, None] % 2 == 1
    total = rows.sum(1, keepdim=True)
    assert torch.equal(y.view(ROWS, n), torch.where(odd, rows + total, rows - total))
    assert torch.equal(z[:ROWS:2], rows[::2, :7].sum(1))
