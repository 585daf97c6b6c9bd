"""Rows at addresses that are aligned for an element only, on the GPU: what is written, and what is left alone."""

from __future__ import annotations

import pytest
import torch

from examples.transpose import transpose_kernel
from tests.emulation.test_emulated_shifted import copy_rows
from tests.emulation.test_emulated_shifted import move_blocks

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize(
    ("rows", "n", "ROWS"), [(77, 301, 2), (50, 2043, 1), (9, 16391, 1), (5, 50257, 1)]
)
def test_rows(rows: int, n: int, ROWS: int, dtype: torch.dtype, kind: int) -> None:
    BLOCK, pad = 1 << n.bit_length(), 5
    x = torch.randint(-9, 9, (rows * n + 3,), device="cuda").to(dtype)[3:]
    y = torch.randint(-9, 9, (rows * (n + pad) + 1,), device="cuda").to(dtype)[1:]
    cols = torch.arange(BLOCK, device="cuda")
    inside = (cols < n) & ((cols < 9) | (cols % 7 != 3) | (kind == 0))
    written = (inside | (cols < 3))[:n]
    want = y.clone().view(rows, n + pad)
    read = torch.where(inside[:n], x.view(rows, n), torch.tensor(5, device="cuda").to(dtype))
    want[:, :n] = torch.where(written, read, want[:, :n])
    copy_rows[(-(-rows // ROWS),)](y, x, n + pad, n, rows, n, ROWS, BLOCK, kind)
    torch.testing.assert_close(y, want.view(-1), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("B", [32, 64, 128])
def test_blocks(B: int, dtype: torch.dtype) -> None:
    x = torch.randn(1003, 777, device="cuda").to(dtype)
    y = torch.full((777, 1003), float("nan"), device="cuda", dtype=dtype)
    move_blocks[(-(-1006 // B), -(-782 // B))](x, y, B, B)
    torch.testing.assert_close(y, x.t(), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(6103, 520), (129, 1000), (64, 77)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_transposed_to_odd_rows(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """Pieces of rows out of shared memory; nothing is written beside them."""
    M, N = shape
    x = torch.randn(shape, device="cuda").to(dtype)
    memory = torch.full((M * N + 40,), -7.0, device="cuda", dtype=dtype)
    y = memory[5 : 5 + M * N].view(N, M)
    for rows, columns in ((128, 64), (64, 64), (32, 128)):
        memory.fill_(-7.0)
        grid = (-(-M // rows), -(-N // columns))
        transpose_kernel[grid](x, y, rows, columns)
        assert torch.equal(y, x.t())
        assert (memory[:5] == -7).all()
        assert (memory[5 + M * N :] == -7).all()
