"""Tiles whose rows go on in the next program's: stored so that no sector of memory has two writers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import emulate
from tiledsl.compiler import modules
from tiledsl.runtime.interop import numpy_view
from tiledsl.runtime.signature import signature

BF16, F32 = torch.bfloat16, torch.float32


@tiledsl.jit
def turned(x: tl.Tensor, y: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr):
    at, to = tl.program_id(0) * BM, tl.program_id(1) * BN
    y.store((to, at), tl.trans(x.load((at, to), (BM, BN))))


@tiledsl.jit
def turned_sums(x: tl.Tensor, z: tl.Tensor, y: tl.Tensor, first, c):
    """Two matrices; rows of the grid's axis 1 go on, from a column of the user's on."""
    at, to = tl.program_id(1) * 64 + first, tl.program_id(0) * 64
    a = x.load((at, to), (64, 64)).to(tl.float32)
    b = z.load((at - first, to), (64, 64)).to(tl.float32)
    y.store((to, at), tl.trans(a * c + tl.exp(b)).to(tl.bfloat16))


@tiledsl.jit
def turned_planes(x: tl.Tensor, y: tl.Tensor):
    at, to, p = tl.program_id(0) * 64, tl.program_id(1) * 64, tl.program_id(2)
    tile = x.load((p, at, to), (1, 64, 64)).reshape(64, 64)
    y.store((p, to, at), tl.trans(tile).reshape(1, 64, 64))


@tiledsl.jit
def stays(x: tl.Tensor, y: tl.Tensor):
    """Each program stores two tiles."""
    to = tl.program_id(1) * 64
    for i in range(2):
        at = (tl.program_id(0) * 2 + i) * 64
        y.store((to, at), tl.trans(x.load((at, to), (64, 64))))


@tiledsl.jit
def gap(x: tl.Tensor, y: tl.Tensor):
    """Tiles of 64 columns, 128 apart."""
    at, to = tl.program_id(0) * 128, tl.program_id(1) * 64
    y.store((to, at), tl.trans(x.load((at, to), (64, 64))))


@tiledsl.jit
def marked(x: tl.Tensor, y: tl.Tensor):
    """Each program adds its number."""
    at, to = tl.program_id(0) * 64, tl.program_id(1) * 64
    tile = tl.trans(x.load((at, to), (64, 64))).to(tl.float32)
    y.store((to, at), (tile + tl.program_id(0)).to(tl.bfloat16))


@tiledsl.jit
def mended(x: tl.Tensor, y: tl.Tensor):
    """The first column of a tile is stored once more."""
    at, to = tl.program_id(0) * 64, tl.program_id(1) * 64
    y.store((to, at), tl.trans(x.load((at, to), (64, 64))))
    y.store((to, at), tl.full((64, 1), 2.0, tl.bfloat16))


@tiledsl.jit
def same_tensor(x: tl.Tensor):
    at, to = tl.program_id(0) * 64, tl.program_id(1) * 64
    x.store((to, at), tl.trans(x.load((at, to), (64, 64))))


def place(rows: int, cols: int, dtype: torch.dtype, off: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix `off` elements behind an aligned address, and the memory around it, poisoned."""
    memory = torch.full((rows * cols + 96,), -1.0, dtype=dtype)
    start = off - memory.data_ptr() // memory.itemsize % 16 + 32
    return memory[start : start + rows * cols].view(rows, cols), memory


def run(kernel: Any, args: dict[str, Any], grid: tuple[int, int, int], **constants: int) -> str:
    """Runs the emitted text; returns it."""
    call = kernel._bind(tuple(args.values()), constants)
    sig, _ = signature(call.runtime)
    module = next(iter(modules(kernel._request(call, sig, grid, call.constants)))).module
    arrays = {k: numpy_view(v, k) if isinstance(v, torch.Tensor) else v for k, v in args.items()}
    emulate.run(module, arrays, grid, seed=3)
    return module.source


def untouched(memory: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether nothing around a matrix was written."""
    before = y.storage_offset()
    rest = (memory[:before], memory[before + y.numel() :])
    return all(bool((part == -1).all()) for part in rest)


SHAPES = [(150, 130, 1), (128, 70, 5), (333, 64, 0), (65, 64, 15), (63, 64, 8), (131, 72, 16)]


@pytest.mark.parametrize(("M", "N", "off"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_rows_of_neighbours_meet_at_sectors(M: int, N: int, off: int, dtype: torch.dtype) -> None:
    """Of any width and address: the first row of a tile, its end, and that of the tensor."""
    x = torch.rand(M, N).to(dtype)
    y, memory = place(N, M, dtype, off)
    source = run(turned, {"x": x, "y": y}, (-(-M // 64), -(-N // 64), 1), BM=64, BN=64)
    assert "store_sectors<" in source
    assert torch.equal(y, x.t())
    assert untouched(memory, y)


@pytest.mark.parametrize(
    ("BM", "BN"), [(128, 64), (64, 128), (256, 32), (512, 32), (32, 64)], ids=str
)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_tiles_of_any_size(BM: int, BN: int, dtype: torch.dtype) -> None:
    """Warps share rows or the pieces of a row; short rows are stored as before."""
    M, N = 2 * BM + 37, BN + 8
    x = torch.rand(M, N).to(dtype)
    y, memory = place(N, M, dtype, 3)
    source = run(turned, {"x": x, "y": y}, (-(-M // BM), -(-N // BN), 1), BM=BM, BN=BN)
    assert ("store_sectors<" in source) == (BM * y.itemsize >= 128)
    assert torch.equal(y, x.t())
    assert untouched(memory, y)


def test_a_grid_that_ends_before_the_tensor_stores_no_further() -> None:
    x = torch.rand(300, 64).to(BF16)
    y, memory = place(64, 300, BF16, 3)
    assert "store_sectors<" in run(turned, {"x": x, "y": y}, (3, 1, 1), BM=64, BN=64)
    assert torch.equal(y[:, :192], x.t()[:, :192])
    assert (y[:, 192:] == -1).all()
    assert untouched(memory, y)


@pytest.mark.parametrize("first", [0, 5, -7, -70], ids=str)
def test_neighbours_compute_what_they_share(first: int) -> None:
    """Sums of loads that begin at different columns; blocks may begin before the tensor."""
    x, z = torch.rand(301, 80).to(BF16), torch.rand(301, 80).to(BF16)
    y, memory = place(80, 301, BF16, 9)
    args = {"x": x, "z": z, "y": y, "first": first, "c": 0.5}
    assert "store_sectors<" in run(turned_sums, args, (2, 6, 1))
    a = torch.zeros(384, 80)
    low, high = max(first, 0), min(301, first + 384)
    a[low - first : high - first] = x[low:high].float() * 0.5
    b = torch.zeros(384, 80)
    b[:301] = z.float()
    want = (a + b.exp()).to(BF16).t()[:, low - first : high - first]
    torch.testing.assert_close(y[:, low:high].float(), want.float(), rtol=1e-2, atol=1e-2)
    assert (y[:, :low] == -1).all()
    assert (y[:, high:] == -1).all()
    assert untouched(memory, y)


def test_planes_of_a_tensor() -> None:
    x = torch.rand(2, 130, 72).to(BF16)
    flat, memory = place(2 * 72, 130, BF16, 1)
    y = flat.view(2, 72, 130)
    run(turned_planes, {"x": x, "y": y}, (3, 2, 2))
    assert torch.equal(y, x.transpose(1, 2))
    assert untouched(memory, flat)


@pytest.mark.parametrize(
    ("kernel", "grid"),
    [(stays, (2, 1, 1)), (gap, (2, 1, 1)), (marked, (4, 1, 1)), (mended, (4, 1, 1))],
)
def test_programs_that_do_not_go_on_store_their_own_tile(kernel: Any, grid: Any) -> None:
    """In a loop, with gaps, with values of its own, or of which one stores a part once more."""
    x = torch.rand(250, 64).to(BF16)
    y, memory = place(64, 250, BF16, 3)
    source = run(kernel, {"x": x, "y": y}, grid)
    assert "store_sectors<" not in source
    assert "store_rows<" in source
    assert untouched(memory, y)


def test_a_tensor_that_is_also_written_is_not_read_twice() -> None:
    x = torch.rand(64, 65).to(BF16)
    want = x[:64, :64].t().clone()
    assert "store_sectors<" not in run(same_tensor, {"x": x}, (1, 1, 1))
    assert torch.equal(x[:64, :64], want)
