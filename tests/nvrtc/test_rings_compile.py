"""Kernels whose threads copy: nothing spills, no wgmma waits for the one before it, copies are as wide as they say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.copy_kernels import conv
from tests.copy_kernels import conv_args
from tests.copy_kernels import fused_moe
from tests.copy_kernels import moe_args
from tests.plane_kernels import conv_planes
from tests.plane_kernels import conv_planes_args
from tests.ring_kernels import copied_kernel
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import paged_args
from tests.ring_kernels import paged_decode
from tests.ring_kernels import ring_kernel
from tests.ring_kernels import strided_args
from tests.ring_kernels import strided_matmul
from tests.unpacked_kernels import interleaved_args
from tests.unpacked_kernels import interleaved_words
from tests.unpacked_kernels import joined_args
from tests.unpacked_kernels import joined_halves
from tests.unpacked_kernels import shifted_args
from tests.unpacked_kernels import shifted_words
from tiledsl.runtime.cache import KERNELS
from tiledsl.runtime.nvrtc import ptx_of
from tiledsl.target import HOPPER
from tiledsl.ws.single_plan import FEW_SPILLS_BYTES

pytestmark = pytest.mark.nvrtc

WIDE = "cp.async.cg.shared.global"


@pytest.mark.parametrize(
    ("kernel", "args", "copy"),
    [
        (gathered_matmul, gathered_args(64, 64, 64, (128, 128, 64)), WIDE),
        (gathered_matmul, gathered_args(64, 64, 64, (128, 256, 64)), WIDE),
        (paged_decode, paged_args(1, 16, 128, 64, 10), WIDE),
        (paged_decode, paged_args(1, 64, 128, 64, 10), WIDE),
        (strided_matmul, strided_args(8, 8, 100, (128, 128, 64)), "cp.async.ca.shared.global"),
        (shifted_words, shifted_args(64, 64, 512, (64, 64, 32)), WIDE),
        (shifted_words, shifted_args(16, 64, 512, (16, 32, 128)), WIDE),
        (joined_halves, joined_args(64, 128, 128, (128, 128, 64)), WIDE),
        (interleaved_words, interleaved_args(16, 64, 256, (32, 32, 32)), WIDE),
    ],
    ids=[
        "rows128",
        "rows256",
        "pages16",
        "pages64",
        "strides",
        "shifted",
        "warps",
        "joined",
        "interleaved",
    ],
)
def test_log_is_clean(kernel: Any, args: list[Any], copy: str) -> None:
    made, _ = ring_kernel(kernel, args)
    compiled = KERNELS.get(made.module, HOPPER, options=())
    assert not compiled.serialized
    assert not compiled.spill_bytes
    ptx = ptx_of(made.module)
    assert f"{copy} " in ptx
    assert (WIDE in ptx) == (copy == WIDE)


@pytest.mark.parametrize(
    ("kernel", "args"),
    [
        (gathered_matmul, gathered_args(64, 64, 64, (128, 256, 64))),
        (gathered_matmul, gathered_args(64, 64, 64, (128, 128, 64))),
        (gathered_matmul, gathered_args(64, 64, 64, (192, 192, 64))),
        (strided_matmul, strided_args(8, 8, 100, (128, 128, 64))),
        (fused_moe, moe_args(64, 2, 256, 64, (128, 256, 64))[0]),
        (conv, conv_args(1, 8, 8, 64, 128, (128, 128, 64))[0]),
    ],
    ids=["rows256", "rows128", "rows192", "strides", "experts", "convolution"],
)
def test_load_role_that_copies(kernel: Any, args: list[Any]) -> None:
    made, _ = copied_kernel(kernel, args)
    compiled = KERNELS.get(made.module, HOPPER, options=())
    assert not compiled.serialized
    assert not compiled.spill_bytes
    assert "cp.async.mbarrier.arrive.noinc" in ptx_of(made.module)


def test_single_elements_ahead() -> None:
    """Three CTAs share an SM; the loop of one spills nothing."""
    args, _, grid = conv_planes_args(4, (28, 28), (128, 64), (128, 64, 32))
    made, _ = ring_kernel(conv_planes, args, grid=(*grid, 1))
    compiled = KERNELS.get(made.module, HOPPER, options=())
    assert not compiled.serialized
    assert compiled.spill_bytes <= FEW_SPILLS_BYTES
