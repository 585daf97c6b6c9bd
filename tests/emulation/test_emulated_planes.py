"""Convolutions whose elements are loaded one by one, an iteration ahead: the emitted text on the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.emulation.harness import replaced
from tests.emulation.test_emulated_copies import execute
from tests.plane_kernels import conv_planes
from tests.plane_kernels import conv_planes_args
from tests.plane_kernels import planes_to_rows
from tests.ring_kernels import ring_kernel
from tiledsl.emulate.errors import EmulationFault


def made_for(
    *given: Any, **more: Any
) -> tuple[Any, dict[str, Any], Any, torch.Tensor, tuple[int, int]]:
    args, want, grid = conv_planes_args(*given, **more)
    made, runtime = ring_kernel(conv_planes, args, grid=(*grid, 1))
    return made, runtime, args[2], want, grid


@pytest.mark.parametrize(
    ("channels", "tile"),
    [((32, 64), (64, 64, 32)), ((20, 40), (128, 64, 32)), ((33, 130), (64, 128, 16))],
    ids=str,
)
@pytest.mark.parametrize("taps", [1, 3])
def test_convolution(channels: tuple[int, int], tile: tuple[int, int, int], taps: int) -> None:
    made, runtime, got, want, grid = made_for(2, (7, 9), channels, tile, taps=taps)
    assert any("before the product of each" in note for note in made.notes)
    execute(made.module, runtime, grid, seed=taps)
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2)


def test_floats_are_copied() -> None:
    """Elements of four bytes come through rings."""
    made, runtime, got, want, grid = made_for(
        2, (7, 9), (32, 64), (64, 64, 32), dtype=torch.float32
    )
    assert "cp_async" in made.module.source or "copy_lane" in made.module.source
    execute(made.module, runtime, grid, seed=3)
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_operands_are_met_before_they_are_overwritten() -> None:
    """Without the barrier behind a product, a warp may write what another still multiplies."""
    made, runtime, *_, grid = made_for(1, (8, 8), (96, 64), (64, 64, 32), taps=1)
    text = made.module.source
    loop = text[text.index("wgmma_wait<0>();") :]
    assert "block_sync();" in loop[: loop.index("}")]
    broken = replaced(made.module, "fence_async_smem();\n", "")

    def run_all() -> None:
        for seed in range(20):
            execute(broken, runtime, grid, seed=seed)

    with pytest.raises(EmulationFault):
        run_all()


@pytest.mark.parametrize("in_planes", [True, False])
@pytest.mark.parametrize("tile", [(128, 32), (32, 64), (16, 16)], ids=str)
def test_moves(tile: tuple[int, int], *, in_planes: bool) -> None:
    x = torch.randn((3, 24, 35)).to(torch.float16)
    y = torch.full((3, 35, 24), float("nan"), dtype=torch.float16)
    strides = (24 * 35, 35, 1) if in_planes else (24 * 35, 1, 24)
    args = [x, y, 3, 24, 35, *strides, *tile]
    grid = (-(-105 // tile[0]), -(-24 // tile[1]))
    made, runtime = ring_kernel(planes_to_rows, args, num_warps=4, grid=(*grid, 1))
    execute(made.module, runtime, grid, seed=2)
    planes = x if in_planes else x.view(3, 35, 24).transpose(1, 2)
    torch.testing.assert_close(y, planes.transpose(1, 2).contiguous(), rtol=0, atol=0)
