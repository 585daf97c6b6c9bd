"""Blocks that bulk copies cannot take: rows that end between 16 bytes, starts between or before them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import F32
from tests.emulation.matmuls import compiled
from tests.emulation.matmuls import tensor
from tests.emulation.test_emulated_kernels import same_as_interpreter
from tiledsl import emulate
from tiledsl.compiled import Kernel

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
RNG = np.random.default_rng(5)


# fmt: off
@tiledsl.jit
def shifted(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, K, at_k, at_n,
            BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load((m, k + at_k), (BM, BK)), b.load((k + at_k, n), (BK, BN)), acc)
    c.store((m, n + at_n), acc)


@tiledsl.jit
def stated(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, K, at_k, at_n,
           BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    at_k = tl.multiple_of(at_k, 8)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load((m, k + at_k), (BM, BK)), b.load((k + at_k, n), (BK, BN)), acc)
    c.store((m, n + at_n), acc)


@tiledsl.jit
def raised(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, K, at_k, at_n, at_m: tl.constexpr,
           BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m - at_m, n), acc)
# fmt: on


def run(
    M: int,
    N: int,
    *,
    out: np.dtype = BF16,
    pitch: int = 0,
    is_turned: bool = False,
    at_k: int = 0,
    at_n: int = 0,
    kernel=shifted,
    **options: int,
) -> Kernel:
    """Compiles for tensors of these extents, runs the emulation, compares; gaps are its guards."""
    K, width = 96, 128
    a, b = (RNG.standard_normal(s).astype(BF16) for s in ((M, width), (width, -(-N // 8) * 8)))
    b = b[:, :N]
    rows, columns = (N, M) if is_turned else (M, N)
    c = np.full((rows, pitch or columns), np.nan, out)[:, :columns]
    c = c.T if is_turned else c
    grid = (-(-M // options["BM"]), -(-N // options["BN"]), 1)
    args = (tensor(a), tensor(b), tensor(c), K, at_k, at_n)
    made = compiled(kernel, args, grid, **options)
    values = {"a": a, "b": b, "c": c, "K": K, "at_k": at_k, "at_n": at_n}
    span = a.astype(np.float64)[:, at_k : at_k + 128] @ b.astype(np.float64)[at_k : at_k + 128]
    low, high = max(0, at_n), N + min(0, at_n)
    want = span[:, low - at_n : high - at_n]
    emulate.run(made.module, values, grid, seed=3)
    got = c.astype(np.float64)
    assert np.isnan(got[:, :low]).all()
    assert np.isnan(got[:, high:]).all()
    scale = 2.0**-3 if out == E4M3 else 2.0**-7
    assert (np.abs(got[:, low:high] - want) <= scale * np.abs(want) + 0.25).all()
    return made


@pytest.mark.parametrize(
    ("N", "pitch", "out"), [(81, 88, BF16), (100, 104, BF16), (70, 72, F32), (200, 208, E4M3)]
)
def test_rows_of_a_slice_that_end_between_16_bytes(N: int, pitch: int, out: np.dtype) -> None:
    """The store leaves what lies beside the slice as it was."""
    made = run(130, N, out=out, pitch=pitch, BM=64, BN=128)
    assert made.certificate is not None
    assert any("rows end between multiples of 16 bytes" in note for note in made.notes)


def test_columns_of_a_slice_that_end_between_16_bytes() -> None:
    run(129, 64, pitch=136, is_turned=True, BM=128, BN=64)


def test_a_part_of_8_bytes_over() -> None:
    run(64, 272, out=E4M3, BM=64, BN=136)


@pytest.mark.parametrize("at_n", [1, 4, -3])
def test_stores_that_start_anywhere(at_n: int) -> None:
    made = run(64, 192, at_n=at_n, BM=64, BN=64)
    assert any("a block may start" in note for note in made.notes)


def test_stores_that_start_before_a_row() -> None:
    """Sixteen divides the start, and nothing says that it is not negative."""
    run(64, 192, at_n=-16, BM=64, BN=64)


@pytest.mark.parametrize("at_k", [1, 4])
def test_loads_that_start_anywhere(at_k: int) -> None:
    made = run(64, 64, at_k=at_k, BM=64, BN=64)
    assert any(
        f"a block may start at any multiple of {2 * at_k} bytes" in d.reason for d in made.declined
    )


# fmt: off
@tiledsl.jit
def widened(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Operands of 8 bits that are widened before the product."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        y = b.load((k, n), (BK, BN)).to(tl.bfloat16)
        acc = tl.dot(a.load((m, k), (BM, BK)), y, acc)
    c.store((m, n), acc)
# fmt: on


def test_loads_of_tiles_whose_rows_end_between_16_bytes() -> None:
    """Tiles of 136 bytes a row: the second one starts at 136, where no bulk copy does."""
    x, y = RNG.standard_normal((64, 64)).astype(BF16), RNG.standard_normal((64, 272)).astype(E4M3)
    args = {"a": x, "b": y, "c": np.zeros((64, 272), BF16)}
    same_as_interpreter(widened, args, ("c",), (1, 2), BM=64, BN=136, BK=32)


def test_loads_that_start_at_16_bytes_stay_bulk_copies() -> None:
    """A multiple of 16 as an argument, or what the kernel states."""
    assert run(64, 64, at_k=16, BM=64, BN=64).certificate is not None
    assert run(64, 64, at_k=8, BM=64, BN=64, kernel=stated).certificate is not None


@pytest.mark.parametrize("at_m", [1, 8, 13, 64, 100])
def test_stores_that_start_before_the_tensor(at_m: int) -> None:
    """Line by line, from the tensor's first one on."""
    M, N, K = 150, 72, 64
    a, b = (RNG.standard_normal(s).astype(BF16) for s in ((M, K), (K, N)))
    c = np.full((M, N), np.nan, F32)
    grid = (3, 1, 1)
    args = (tensor(a), tensor(b), tensor(c), K, 0, 0)
    made = compiled(raised, args, grid, at_m=at_m, BM=64, BN=72)
    assert made.certificate is not None
    assert "tma_store_rows" in made.module.source
    emulate.run(made.module, {"a": a, "b": b, "c": c, "K": K, "at_k": 0, "at_n": 0}, grid)
    want = (a.astype(np.float64) @ b.astype(np.float64))[at_m:]
    np.testing.assert_allclose(c[: M - at_m], want, atol=1e-3)
    last = min(M, 192 - at_m)  # rows of zeros, from tiles that reach beyond the operands
    assert (c[M - at_m : last] == 0).all()
    assert np.isnan(c[last:]).all()


# fmt: off
@tiledsl.jit
def moving(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, x, y, BK: tl.constexpr = 64):
    for _ in range(0, 2):
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load((0, k), (64, BK)), b.load((k, 0), (BK, 64)), acc)
        c.store((0, x), acc)
        x = x + 68


@tiledsl.jit
def turned_about(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, x, y, BK: tl.constexpr = 64):
    q = ((tl.program_id(0) + 1) // y) * 16
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((0, k), (64, BK)), b.load((k, 0), (BK, 64)), acc)
    c.store((0, x + q), acc)


@tiledsl.jit
def unsigned(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, x, y, BK: tl.constexpr = 64):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((0, k), (64, BK)), b.load((k, 0), (BK, 64)), acc)
    c.store((0, x.to(tl.uint32).to(tl.int32)), acc)
    c.store((0, y.to(tl.uint32)), acc)


@tiledsl.jit
def far(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, x, y, BK: tl.constexpr = 64):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((0, k + x.to(tl.uint32)), (64, BK)), b.load((k, 0), (BK, 64)), acc)
    c.store((0, y), acc)


@tiledsl.jit
def backwards(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, x, y, BK: tl.constexpr = 64):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((0, k // x), (64, BK)), b.load((k // x, 0), (BK, 64)), acc)
    c.store((0, y), acc)
# fmt: on


@pytest.mark.parametrize(
    ("kernel", "x", "y"),
    [
        (moving, 16, 0),  # what a loop carries has the name of an argument, not its divisors
        (moving, 64, 0),
        (turned_about, 0, -1),  # a quotient below 0
        (turned_about, 16, 2),
        (unsigned, -16, 2**31 - 16),  # numbers over 2**31 - 1 and the same bits as signed ones
        (far, -16, 0),
        (backwards, -1, 0),
        (backwards, 2, 0),
    ],
)
def test_starts_of_any_sign(kernel, x: int, y: int) -> None:
    a, b, c = (RNG.standard_normal(s).astype(BF16) for s in ((64, 128), (128, 64), (64, 224)))
    args = {"a": a, "b": b, "c": c, "x": x, "y": y}
    same_as_interpreter(kernel, args, ("c",), (1, 1, 1), tolerance=1e-2)
