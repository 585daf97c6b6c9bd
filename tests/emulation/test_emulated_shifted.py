"""Rows at addresses that are aligned for an element only: aligned pieces are moved, registers shifted."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import F32
from tests.emulation.matmuls import compiled as blocks_compiled
from tests.emulation.matmuls import tensor
from tests.emulation.test_emulated_kernels import normal
from tests.emulation.test_emulated_kernels import same_as_interpreter
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.runtime.interop import numpy_view

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


@tiledsl.jit
def copy_rows(
    y,
    x,
    y_stride,
    x_stride,
    n_rows,
    n_cols,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):
    """Rows of x to y where a mask holds that falls (KIND 0), has holes (1), or is not there (2)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    if KIND == 2:
        tl.store(y + rows * y_stride + cols, tl.load(x + rows * x_stride + cols))
    else:
        mask = (rows < n_rows) & (n_cols > cols)
        if KIND == 1:
            mask = mask & ((cols < 9) | (cols % 7 != 3))
        value = tl.load(x + rows * x_stride + cols, mask=mask, other=5)
        tl.store(y + rows * y_stride + cols, value, mask=mask | (cols < 3) & (rows < n_rows))


@tiledsl.jit
def widen_rows(y, x, n_cols, BLOCK: tl.constexpr):
    """Rows of 16-bit elements to rows of f32: the vectors of a store have half as many elements."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    value = tl.load(x + row * n_cols + cols, mask=cols < n_cols, other=0.0)
    tl.store(y + row * n_cols + cols, value.to(tl.float32) * 2.0, mask=cols < n_cols)


def run(kernel: Any, args: list[Any], programs: int, **options: Any) -> str:
    """Emulates the kernel; its text."""
    made, runtime = compiled(kernel, args, grid=(programs, 1, 1), **options)
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (programs, 1, 1), seconds=60.0)
    return made.module.source


def drawn(rows: int, stride: int, dtype: torch.dtype, offset: int) -> torch.Tensor:
    """Rows of small whole numbers, that begin `offset` elements into their memory."""
    return torch.randint(-9, 9, (rows * stride + 32 + offset,)).to(dtype)[offset:]


@pytest.mark.parametrize(
    ("dtype", "n", "BLOCK", "num_warps"),
    [
        (torch.bfloat16, 1999, 2048, 2),
        (torch.bfloat16, 1030, 2048, 2),
        (torch.float16, 4001, 4096, 4),
        (torch.int8, 2043, 2048, 1),
        (torch.float32, 2001, 2048, 4),
    ],
    ids=str,
)
def test_long_rows(dtype: torch.dtype, n: int, BLOCK: int, num_warps: int) -> None:
    """A row a program: the vectors of a warp follow each other, at every offset in turn."""
    rows, pad = 16 // dtype.itemsize + 1, 3
    x, y = drawn(rows, n, dtype, 1), drawn(rows, n + pad, dtype, 2)
    want = y.clone()
    for r in range(rows):
        at = r * (n + pad)
        want[at : at + n] = x[r * n : r * n + n]
    args = [y, x, n + pad, n, rows, n, 1, BLOCK, 0]
    text = run(copy_rows, args, rows, num_warps=num_warps)
    assert ", Chained, " in text
    torch.testing.assert_close(y, want, rtol=0, atol=0)


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize(
    ("dtype", "offset"), [(torch.bfloat16, 0), (torch.float32, 3), (torch.int8, 5)], ids=str
)
def test_rows(dtype: torch.dtype, offset: int, kind: int) -> None:
    n, programs, ROWS, BLOCK = 301, 3, 2, 512 if kind != 2 else 256
    rows = ROWS * programs - (kind != 2)
    x, y = drawn(rows, n, dtype, offset), drawn(rows, n + 6, dtype, 1)
    want = y.clone()
    cols = torch.arange(BLOCK)
    mask = (cols < n) & ((cols < 9) | (cols % 7 != 3) | (kind != 1)) | (kind == 2)
    for r in range(rows):
        read = torch.where(mask, torch.nn.functional.pad(x, (0, BLOCK))[r * n : r * n + BLOCK], 5)
        written = mask | (cols < 3)
        at = r * (n + 6) + cols[written]
        want[at] = read[written].to(dtype)
    text = run(copy_rows, [y, x, n + 6, n, rows, n, ROWS, BLOCK, kind], programs)
    assert "load_shifted" in text
    assert "store_shifted" in text
    assert ("ByElement" in text) == (kind == 1)
    torch.testing.assert_close(y, want, rtol=0, atol=0)


def test_stores_of_wider_elements() -> None:
    n = 301
    x = torch.randn(3 * n, dtype=torch.bfloat16)
    y = torch.full((3 * n,), float("nan"))
    text = run(widen_rows, [y, x, n, 512], 3, num_warps=1)
    assert "load_shifted" in text
    torch.testing.assert_close(y, x.float() * 2, rtol=0, atol=0)


def test_aligned_rows_are_not_shifted() -> None:
    n = 304
    x, y = torch.randn(4 * n), torch.randn(4 * n)
    text = run(copy_rows, [y, x, n, n, 4, n, 2, 512, 0], 2)
    assert "load_lanes<" in text
    assert "load_shifted" not in text
    torch.testing.assert_close(y, x, rtol=0, atol=0)


@tiledsl.jit
def move_blocks(x: tl.Tensor, y: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr):
    """Blocks of x, also across its edges, to their places in its transpose y."""
    m, n = tl.program_id(0) * BM - 3, tl.program_id(1) * BN - 5
    y.store((n, m), tl.trans(x.load((m, n), (BM, BN))))


@pytest.mark.parametrize("dtype", [BF16, F32, E4M3], ids=["bf16", "f32", "e4m3"])
def test_blocks_of_odd_rows(dtype: np.dtype) -> None:
    x = normal((103, 77), dtype)
    y = normal((77, 103), dtype)
    grid = (2, 2)
    made = blocks_compiled(move_blocks, (tensor(x), tensor(y)), grid, BM=64, BN=64)
    assert "load_shifted" in made.module.source
    assert "store_shifted" in made.module.source
    args = {"x": x, "y": y}
    same_as_interpreter(move_blocks, args, ("y",), grid, BM=64, BN=64)
    same_as_interpreter(move_blocks, {"x": x[:, :72].copy(), "y": y}, ("y",), grid, BM=64, BN=64)


@pytest.mark.parametrize("dtype", [BF16, F32, E4M3], ids=["bf16", "f32", "e4m3"])
def test_blocks_whose_sides_are_no_powers_of_two(dtype: np.dtype) -> None:
    """Beside what lies in the tensor only what lies in the block counts."""
    x, y = normal((103, 77), dtype), normal((77, 103), dtype)
    args = {"x": x, "y": y}
    same_as_interpreter(move_blocks, args, ("y",), (2, 2), BM=56, BN=40)


def test_tiles_of_many_elements_a_thread_are_not_shifted() -> None:
    """256 elements of a thread took ptxas minutes."""
    x, y = normal((33, 257), F32), normal((257, 33), F32)
    options = {"BM": 32, "BN": 256, "num_warps": 1}
    made = blocks_compiled(move_blocks, (tensor(x), tensor(y)), (2, 2), **options)
    assert "_shifted<" not in made.module.source


@tiledsl.jit
def sum_parts(y, x, x_stride, n_cols, PARTS: tl.constexpr, WIDTH: tl.constexpr):
    """Sums of rows, PARTS x WIDTH elements at a time."""
    row = tl.program_id(0)
    places = tl.arange(0, PARTS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    total = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, n_cols, PARTS * WIDTH):
        cols = start + places
        x_part = tl.load(x + row * x_stride + cols, mask=cols < n_cols, other=0.0)
        total += tl.sum(x_part.to(tl.float32), axis=0)
    tl.store(y + row, tl.sum(total, axis=0))


@pytest.mark.parametrize("width", [256, 12], ids=str)
def test_parts_of_a_row_are_off_alike(width: int) -> None:
    """Where they are whole pieces apart, a warp branches on what all its vectors are off by."""
    x, y = drawn(3, 2053, torch.bfloat16, 1), torch.zeros(3)
    text = run(sum_parts, [y, x, 2053, 2053, 4, width], 3)
    if width == 256:
        assert "OneOffset" in text
    want = x[: 3 * 2053].view(3, 2053).float().sum(1)
    assert torch.equal(y, want)
