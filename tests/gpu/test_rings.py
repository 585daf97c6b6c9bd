"""Loads that come through rings on the GPU: gathered rows, odd strides, pages; every depth."""

from __future__ import annotations

import pytest
import torch

from tests.emulation.test_emulated_short_loops import check as check_chunk
from tests.emulation.test_emulated_short_loops import chunk
from tests.emulation.test_emulated_short_loops import chunk_args
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import gathered_want
from tests.ring_kernels import paged_args
from tests.ring_kernels import paged_decode
from tests.ring_kernels import paged_want
from tests.ring_kernels import scaled_args
from tests.ring_kernels import scaled_matmul
from tests.ring_kernels import scaled_want
from tests.ring_kernels import seeded
from tests.ring_kernels import strided_args
from tests.ring_kernels import strided_matmul
from tests.ring_kernels import strided_want
from tests.ring_kernels import tensor_matmul

pytestmark = pytest.mark.gpu


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2 * float(want.abs().max()))


@pytest.mark.parametrize("num_stages", [None, 1, 2, 3, 4, 6])
@pytest.mark.parametrize("tile", [(128, 128, 64), (64, 256, 32), (32, 64, 128)], ids=str)
def test_gathered_rows(tile: tuple[int, int, int], num_stages: int | None) -> None:
    args = gathered_args(300, 520, 712, tile, device="cuda")
    options = {} if num_stages is None else {"num_stages": num_stages}
    gathered_matmul[(-(-300 // tile[0]), -(-520 // tile[1]))](*args, **options)
    close(args[3], gathered_want(args))


@pytest.mark.parametrize(("K", "pad"), [(8, 0), (64, 8), (72, 0), (101, 3), (1000, 0)], ids=str)
def test_few_trips(K: int, pad: int) -> None:
    args = gathered_args(130, 64, K, (64, 64, 64), device="cuda", dtype=torch.float16, pad=pad)
    gathered_matmul[(3, 1)](*args)
    close(args[3], gathered_want(args))


@pytest.mark.parametrize("K", [32, 64, 72, 96, 128, 256], ids=str)
@pytest.mark.parametrize("num_stages", [None, 2, 3], ids=str)
def test_short_loops(K: int, num_stages: int | None) -> None:
    """All copies start before the loop; products are stored as rows of floats."""
    made = chunk_args(1000, K, 64)
    args = [a.cuda() if isinstance(a, torch.Tensor) else a for a in made]
    options = {} if num_stages is None else {"num_stages": num_stages}
    chunk[(16,)](*args, num_warps=4, warp_specialize=False, **options)
    check_chunk([a.cpu() if isinstance(a, torch.Tensor) else a for a in args])


@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize(
    "shape", [(16, 128, 16, 1000), (64, 64, 64, 333), (16, 64, 32, 1)], ids=str
)
def test_pages(shape: tuple[int, int, int, int], num_warps: int) -> None:
    args = paged_args(5, *shape, device="cuda")
    paged_decode[(5,)](*args, num_warps=num_warps)
    close(args[4], paged_want(args))


@pytest.mark.parametrize("K", [128, 640, 1000], ids=str)
def test_scales(K: int) -> None:
    args = scaled_args(200, 300, K, (64, 128, 128), device="cuda")
    scaled_matmul[(4, 3)](*args)
    want = scaled_want(args)
    torch.testing.assert_close(args[5], want, rtol=1e-2, atol=1e-2 * float(want.abs().max()))


@pytest.mark.parametrize("shape", [(16, 256, 512), (100, 72, 97), (64, 61, 96)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_blocks_of_tensors(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    M, N, K = shape
    a, b = seeded(M, K, dtype=dtype).cuda(), seeded(K, N, dtype=dtype, seed=1).cuda()
    c = torch.full((M, N), float("nan"), device="cuda", dtype=dtype)
    tensor_matmul[(-(-M // 32), -(-N // 64))](a, b, c, 32, 64, 64, warp_specialize=False)
    close(c, a.float() @ b.float())


@pytest.mark.parametrize("K", [96, 100, 102, 97, 101], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8], ids=str)
def test_strides(K: int, dtype: torch.dtype) -> None:
    args = strided_args(140, 136, K, (64, 64, 32), device="cuda", dtype=dtype)
    strided_matmul[(3, 3)](*args)
    close(args[2], strided_want(args))
