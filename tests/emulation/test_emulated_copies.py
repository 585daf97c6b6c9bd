"""Operands that a load role copies: the emitted text on the CPU, with faults put into it.

In the emulation a copy of a thread lands at any time up to its arrival, and what it will overwrite is lost at once;
wgmma may read only what a fence made visible.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.copy_kernels import conv
from tests.copy_kernels import conv_args
from tests.copy_kernels import fused_moe
from tests.copy_kernels import moe_args
from tests.emulation.harness import replaced
from tests.ring_kernels import copied_kernel
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import gathered_want
from tests.ring_kernels import strided_args
from tests.ring_kernels import strided_matmul
from tests.ring_kernels import strided_want
from tiledsl import emulate
from tiledsl.emulate.errors import EmulationFault
from tiledsl.runtime.interop import numpy_view


def execute(module: Any, runtime: dict[str, Any], grid: tuple[int, int], seed: int = 0) -> None:
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(module, arrays, (*grid, 1), seed=seed, seconds=120.0)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "tile", [(64, 64, 64), (128, 64, 32), (128, 128, 64), (192, 64, 64), (128, 64, 128)], ids=str
)
@pytest.mark.parametrize("num_stages", [None, 1, 2], ids=str)
def test_gathered_rows(tile: tuple[int, int, int], num_stages: int | None) -> None:
    args = gathered_args(200, 136, 328, tile)
    options = {} if num_stages is None else {"num_stages": num_stages}
    made, runtime = copied_kernel(gathered_matmul, args, **options)
    execute(made.module, runtime, (-(-200 // tile[0]), -(-136 // tile[1])), seed=sum(tile))
    close(args[3], gathered_want(args))


@pytest.mark.parametrize(("K", "pad"), [(8, 0), (72, 0), (101, 3), (256, 8)], ids=str)
def test_few_trips(K: int, pad: int) -> None:
    args = gathered_args(130, 64, K, (64, 64, 64), dtype=torch.float16, pad=pad)
    made, runtime = copied_kernel(gathered_matmul, args)
    execute(made.module, runtime, (3, 1), seed=K)
    close(args[3], gathered_want(args))


@pytest.mark.parametrize("K", [100, 102], ids=str)
def test_both_operands(K: int) -> None:
    """Rows that begin at multiples of 8 and 4 bytes, which no tensor map takes."""
    args = strided_args(140, 136, K, (64, 64, 32))
    made, runtime = copied_kernel(strided_matmul, args)
    execute(made.module, runtime, (3, 3), seed=K)
    close(args[2], strided_want(args))


@pytest.mark.parametrize("weighted", [True, False])
def test_experts(*, weighted: bool) -> None:
    args, want, grid = moe_args(90, 4, 128, 192, (64, 64, 64), weighted=weighted)
    made, runtime = copied_kernel(fused_moe, args, grid=(*grid, 1))
    execute(made.module, runtime, grid, seed=int(weighted))
    close(args[2], want)


def test_convolution() -> None:
    args, want, grid = conv_args(2, 9, 10, 72, 72, (64, 64, 64))
    made, runtime = copied_kernel(conv, args, grid=(*grid, 1))
    execute(made.module, runtime, grid, seed=5)
    torch.testing.assert_close(args[2].float(), want, rtol=2e-2, atol=0.2)


FAULTS = {
    "no fence": ("without fence.proxy.async", "fence_async_smem();\n", ""),
    "an arrival at once": (
        "without fence.proxy.async|in flight", "mbarrier_arrive_cp_async(", "mbarrier_arrive("
    ),
    "a warp tells nobody": (
        "deadlock", "mbarrier_arrive_cp_async(", "if (warp != 1) mbarrier_arrive_cp_async("
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    what, old, new = FAULTS[name]
    args = gathered_args(64, 64, 256, (64, 64, 64))
    made, runtime = copied_kernel(gathered_matmul, args)
    broken = replaced(made.module, old, new)

    def run_all() -> None:
        for seed in range(20):
            execute(broken, runtime, (1, 1), seed=seed)

    with pytest.raises(EmulationFault, match=what):
        run_all()
