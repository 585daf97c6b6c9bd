"""Matmuls that unpack 4-bit weights in their loops, on the GPU: tiles, parts of K, types."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unpacked_kernels import interleaved_args
from tests.unpacked_kernels import interleaved_want
from tests.unpacked_kernels import interleaved_words
from tests.unpacked_kernels import joined_args
from tests.unpacked_kernels import joined_halves
from tests.unpacked_kernels import joined_want
from tests.unpacked_kernels import shifted_args
from tests.unpacked_kernels import shifted_want
from tests.unpacked_kernels import shifted_words

pytestmark = pytest.mark.gpu


def on_gpu(args: list[Any]) -> list[Any]:
    return [a.cuda() if isinstance(a, torch.Tensor) else a for a in args]


def close(got: torch.Tensor, want: torch.Tensor, rtol: float) -> None:
    torch.testing.assert_close(got.float(), want, rtol=rtol, atol=rtol * float(want.abs().max()))


@pytest.mark.parametrize("num_stages", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("M", "blocks", "split"),
    [(200, (64, 64, 32), 1), (16, (16, 32, 128), 4), (33, (32, 128, 64), 2)],
    ids=str,
)
def test_shifted_words(
    M: int, blocks: tuple[int, int, int], split: int, dtype: Any, num_stages: int
) -> None:
    args = on_gpu(shifted_args(M, 256, 1024, blocks, split, dtype))
    grid = (-(-M // blocks[0]) * (256 // blocks[1]), split)
    shifted_words[grid](*args, num_stages=num_stages)
    close(args[4].sum(0), shifted_want(args), 5e-3 if dtype == torch.float16 else 2e-2)


@pytest.mark.parametrize("num_warps", [4, 8])
@pytest.mark.parametrize("K", [64, 512, 1040])
def test_joined_halves(K: int, num_warps: int) -> None:
    args = on_gpu(joined_args(200, 256, K, (128, 128, 64 if K % 64 == 0 else 16)))
    joined_halves[(2, 2)](*args, num_warps=num_warps)
    close(args[2], joined_want(args), 5e-3)


@pytest.mark.parametrize("out", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("blocks", [(32, 32, 32), (16, 64, 64), (64, 128, 64)], ids=str)
def test_interleaved_words(blocks: tuple[int, int, int], out: Any) -> None:
    args = on_gpu(interleaved_args(70, 256, 1024, blocks, out))
    interleaved_words[(-(-70 // blocks[0]), 256 // blocks[1])](*args)
    close(args[4], interleaved_want(args), 5e-3 if out == torch.float32 else 4e-2)
