"""Operands that a load role copies, on the GPU: rows by index, experts, convolutions, odd strides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.copy_kernels import conv
from tests.copy_kernels import conv_args
from tests.copy_kernels import fused_moe
from tests.copy_kernels import moe_args
from tests.plane_kernels import conv_planes
from tests.plane_kernels import conv_planes_args
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import gathered_want
from tests.ring_kernels import strided_args
from tests.ring_kernels import strided_matmul
from tests.ring_kernels import strided_want

pytestmark = pytest.mark.gpu

FORMS = [
    {},
    {"warp_specialize": True},
    {"warp_specialize": False},
    {"warp_specialize": True, "num_stages": 2},
    {"num_consumers": 2, "ping_pong": False},
]


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    want = want.to(got.device)
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2 * float(want.abs().max()))


@pytest.mark.parametrize("options", FORMS, ids=str)
@pytest.mark.parametrize("tile", [(128, 256, 64), (128, 128, 64), (192, 192, 64)], ids=str)
def test_gathered_rows(tile: tuple[int, int, int], options: dict[str, Any]) -> None:
    if tile[0] == 192 and ("num_consumers" in options or not options.get("warp_specialize", True)):
        return  # three warpgroups share 192 rows, and no single role holds the sums
    args = gathered_args(1000, 776, 1096, tile, device="cuda")
    for _ in range(3):
        args[3].fill_(float("nan"))
        gathered_matmul[(-(-1000 // tile[0]), -(-776 // tile[1]))](*args, **options)
        close(args[3], gathered_want(args))


@pytest.mark.parametrize("K", [8, 64, 101, 1000], ids=str)
def test_few_trips(K: int) -> None:
    args = gathered_args(130, 64, K, (64, 64, 64), device="cuda", dtype=torch.float16, pad=-K % 8)
    gathered_matmul[(3, 1)](*args, warp_specialize=True)
    close(args[3], gathered_want(args))


@pytest.mark.parametrize("K", [100, 102], ids=str)
def test_both_operands(K: int) -> None:
    args = strided_args(140, 136, K, (64, 64, 32), device="cuda")
    strided_matmul[(3, 3)](*args, warp_specialize=True)
    close(args[2], strided_want(args))


@pytest.mark.parametrize("options", FORMS[:4], ids=str)
@pytest.mark.parametrize("tile", [(128, 256, 64), (64, 64, 64)], ids=str)
def test_experts(tile: tuple[int, int, int], options: dict[str, Any]) -> None:
    args, want, grid = moe_args(300, 5, 264, 328, tile, device="cuda")
    fused_moe[grid](*args, **options)
    close(args[2], want)


@pytest.mark.parametrize("options", FORMS[:4], ids=str)
@pytest.mark.parametrize("tile", [(128, 128, 64), (64, 64, 64)], ids=str)
def test_convolution(tile: tuple[int, int, int], options: dict[str, Any]) -> None:
    args, want, grid = conv_args(3, 13, 11, 72, 136, tile, device="cuda")
    conv[grid](*args, **options)
    close(args[2], want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("tile", [(128, 64, 32), (64, 128, 16), (128, 128, 64)], ids=str)
def test_planes(tile: tuple[int, int, int], dtype: torch.dtype) -> None:
    """Elements a plane apart, loaded one by one an iteration ahead."""
    args, want, grid = conv_planes_args(3, (13, 11), (72, 136), tile, dtype=dtype, device="cuda")
    conv_planes[grid](*args)
    close(args[2], want)
