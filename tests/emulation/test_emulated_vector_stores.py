"""Accumulators stored by an index: rows of vectors that a warp's lanes exchange, in the emitted text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.emulation.harness import replaced
from tests.emulation.test_emulated_rings import execute
from tests.ring_kernels import copied_kernel
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import gathered_want
from tests.ring_kernels import ring_kernel
from tests.ring_kernels import seeded
from tiledsl import emulate
from tiledsl.codegen.module import KernelModule
from tiledsl.emulate.errors import EmulationFault
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.warp_rows import warp_rows
from tiledsl.runtime.interop import numpy_view


# fmt: off
@triton.jit
def scattered(a_ptr, rows_ptr, b_ptr, c_ptr, M, N, K, stride, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C[rows] = A[rows] @ B."""
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    rows = tl.load(rows_ptr + m, mask=m < M, other=0)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, K, BK):
        a = tl.load(a_ptr + rows[:, None] * K + i + k[None, :], mask=(m < M)[:, None] & (i + k < K)[None, :], other=0.0)
        b = tl.load(b_ptr + (i + k)[:, None] * N + n[None, :], mask=(i + k < K)[:, None] & (n < N)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    where = c_ptr + rows[:, None] * stride + n[None, :]
    tl.store(where, acc.to(c_ptr.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])
# fmt: on


def run(
    make: Any,
    tile: tuple[int, int, int],
    N: int,
    *,
    pad: int = 0,
    dtype: torch.dtype,
    out: torch.dtype | None = None,
    **options: Any,
) -> str:
    """Runs the kernel; returns its text."""
    M, K = tile[0] + 40, 2 * tile[2]
    a, rows = gathered_args(M, 8, K, tile)[:2]
    a, b = a.to(dtype), seeded(K, N, dtype=dtype, seed=1)
    c = torch.full((len(a), N + pad), 7.0).to(out or dtype)
    args = [a, rows, b, c, M, N, K, N + pad, *tile]
    made, runtime = make(scattered, args, grid=(2, -(-N // tile[1]), 1), **options)
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (2, -(-N // tile[1]), 1), seed=N)
    want = torch.full((len(a), N + pad), 7.0)
    want[rows.long(), :N] = a[rows.long()].float() @ b.float()
    torch.testing.assert_close(c.float(), want, rtol=2e-2, atol=5e-2)
    return made.module.source


@pytest.mark.parametrize(
    ("tile", "N", "options"),
    [
        ((64, 64, 32), 64, {}),
        ((128, 128, 32), 200, {"num_consumers": 1}),
        ((128, 128, 32), 120, {"num_consumers": 2, "ping_pong": False}),
        ((64, 32, 32), 32, {}),
        ((64, 80, 32), 80, {}),
        ((64, 16, 32), 16, {}),
        ((64, 256, 32), 256, {"num_consumers": 2, "ping_pong": False}),
    ],
    ids=str,
)
def test_a_load_role(tile: tuple[int, int, int], N: int, options: dict[str, Any]) -> None:
    text = run(copied_kernel, tile, N, dtype=torch.bfloat16, **options)
    assert "rows_in_warp<" in text
    assert "store_lanes<" in text


@pytest.mark.parametrize("num_warps", [4, 8], ids=str)
def test_rings(num_warps: int) -> None:
    text = run(ring_kernel, (128, 64, 32), 64, pad=8, dtype=torch.float16, num_warps=num_warps)
    assert "rows_in_warp<" in text


@pytest.mark.parametrize("N", [256, 128, 64, 32, 16])
def test_floats(N: int) -> None:
    """Rows of sums as they are: lines of 128 bytes, 64 of narrow tiles."""
    tile = (64, N, 32)
    text = run(ring_kernel, tile, N, dtype=torch.bfloat16, out=torch.float32, num_stages=3)
    assert f"rows_in_warp<{N // 2}, {min(8, N // 4)}>" in text
    assert "store_lanes<" in text


def test_rows_lie_where_rings_were() -> None:
    """Each warp writes them when all have met behind the loop: others may still read the last slot."""
    args = gathered_args(64, 256, 96, (64, 256, 32))
    args[3] = args[3].float()
    made, runtime = ring_kernel(gathered_matmul, args, num_stages=2, num_warps=8)
    assert "const u32 scratch_1 = smem_base + 0;" in made.module.source
    end = "(?m)cp_async_wait<0>\\(\\);\n *block_sync\\(\\);"

    def all_seeds(module: KernelModule) -> None:
        for seed in range(8):
            execute(module, runtime, (1, 1), seed)
            torch.testing.assert_close(args[3], gathered_want(args), rtol=2e-2, atol=2e-2)

    all_seeds(made.module)
    with pytest.raises((EmulationFault, AssertionError)):
        all_seeds(replaced(made.module, end, "cp_async_wait<0>();"))


def test_rows_that_are_aligned_to_less() -> None:
    """Vectors of 8 bytes, and such as the mask cuts."""
    run(copied_kernel, (64, 64, 32), 64, pad=4, dtype=torch.float16)
    run(copied_kernel, (64, 64, 32), 56, pad=8, dtype=torch.float16)


def places(layout: Layout) -> list[set[tuple[int, ...]]]:
    """The elements that each warp holds."""
    coords = layout.coords().reshape(layout.num_warps, -1, layout.rank)
    return [{tuple(int(n) for n in c) for c in warp} for warp in coords]


@pytest.mark.parametrize(
    ("shape", "groups", "split"),
    [((64, 16), 1, 0), ((128, 128), 1, 0), ((128, 96), 2, 0), ((64, 256), 2, 1), ((192, 80), 3, 0)],
    ids=str,
)
@pytest.mark.parametrize("size", [2, 4])
def test_warps_keep_their_rows(shape: tuple[int, int], groups: int, split: int, size: int) -> None:
    acc = mma_accumulator(*shape, groups, split=split)
    made = warp_rows(acc, size)
    assert made is not None
    assert places(made.layout) == places(acc)
    assert (np.diff(made.layout.coords()[:, :, : 16 // size, 1], axis=2) == 1).all()


def test_what_has_no_rows() -> None:
    assert warp_rows(mma_accumulator(64, 8), 2) is None
    assert warp_rows(mma_accumulator(64, 24), 2) is None
    assert warp_rows(mma_accumulator(64, 64).transpose((1, 0)), 2) is None
    assert warp_rows(mma_accumulator(64, 64), 1) is None
