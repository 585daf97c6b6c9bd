"""Kernels with reductions, scans, moves, sorts, dots and library functions compile without spills."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_long_maps import noise
from tests.emulation.test_emulated_long_maps import waves
from tests.gpu import library_kernels
from tests.gpu import tile_kernels
from tests.gpu.tile_kernels import Case
from tests.unit.ws.test_single_warps import larger_sum
from tiledsl.ws.single_plan import SinglePlan

pytestmark = pytest.mark.nvrtc

SHAPES = ((16, 64), (33, 100))
ONE_EACH = library_kernels.COUNT // 32
"""Warps of which each lane has an element, so that the text of each function is there once."""
CASES = [
    *tile_kernels.reduction_cases(SHAPES)[::7],
    *tile_kernels.loop_cases(),
    *tile_kernels.scan_cases(SHAPES)[::5],
    *tile_kernels.move_cases(SHAPES)[::3],
    *tile_kernels.order_cases()[::6],
    *tile_kernels.dot_cases()[::2],
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_spills(case: Case) -> None:
    kernel = case.kernel.compile(
        *case.args, grid=case.grid, num_warps=case.num_warps, **case.constants
    )
    made = kernel.compiled
    assert made is not None
    assert made.spill_bytes == 0
    assert not made.serialized
    assert kernel.module.smem_bytes == kernel.smem.end_bytes


def test_rows_that_fill_the_registers_are_read_a_few_vectors_at_a_time() -> None:
    """128 elements a thread of rows at any address, two registers for each on its way."""
    x = torch.empty(128, 32, device="meta")[:, :30]
    kernel = tile_kernels.softmax_rows.compile(x, x, M=128, N=32, grid=(1,), num_warps=1)
    assert "load_shifted" in kernel.module.source
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes == 0


# fmt: off
@tiledsl.jit
def copy_blocks(x: tl.Tensor, y: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    y.store((m, n), x.load((m, n), (BM, BN)))
# fmt: on


@pytest.mark.parametrize(("dtype", "most"), [(torch.bfloat16, 64), (torch.int8, 40)], ids=str)
def test_blocks_at_any_address_are_short(dtype: torch.dtype, most: int) -> None:
    """16 and 8 vectors of a thread, read and written shifted: `most` KiB of cubin.

    With masks that were asked for every element, it was twice and three times that; ten such loads
    took half a minute.
    """
    x = torch.empty(300, 1001, dtype=dtype, device="meta")[:, :999]
    kernel = copy_blocks.compile(x, x, BM=128, BN=128, grid=(3, 8), num_warps=4)
    assert kernel.module.source.count("_shifted<") == 2
    assert kernel.compiled is not None
    assert not kernel.compiled.spill_bytes
    assert len(kernel.compiled.cubin) < most * 1024


@pytest.mark.parametrize("group", library_kernels.groups(40), ids=str)
def test_library_functions(group: library_kernels.Group) -> None:
    kernel = library_kernels.KERNELS[len(group.kinds)]
    made = kernel.compile(*group.args(), **group.constants(), num_warps=ONE_EACH)
    assert made.compiled is not None


# fmt: off
@tiledsl.jit
def matmul_softmax(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((i, k), (BM, BK)), b.load((k, j), (BK, BN)), acc)
    e = tl.exp(acc - tl.max(acc, 1)[:, None])
    c.store((i, j), e / tl.sum(e, 1)[:, None])
# fmt: on


@pytest.mark.parametrize(
    "options",
    [
        {"BM": 128, "BN": 64, "ping_pong": True, "num_consumers": 2},
        {"BM": 64, "BN": 256, "num_consumers": 2, "ping_pong": False},
        {"BM": 64, "BN": 128, "num_consumers": 1},
    ],
    ids=str,
)
def test_row_reductions_in_a_specialised_epilogue(options: dict[str, object]) -> None:
    a, b = torch.zeros(512, 256, dtype=torch.bfloat16), torch.zeros(256, 512, dtype=torch.bfloat16)
    kernel = matmul_softmax.compile(a, b, torch.zeros(512, 512), grid=(8, 8), BK=64, **options)
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes == 0
    assert "roles" in kernel.plan.describe() or "consumers" in kernel.plan.describe()


def test_warps_of_a_single_role_hold_all_sums() -> None:
    """Two sums of 96 registers in four warps left none for operands, and took NVRTC 20 s."""
    a, b, c = torch.empty(3, 167, 168, dtype=torch.bfloat16, device="meta")
    kernel = larger_sum.compile(
        a, b, a, b, c, BM=128, BN=96, BK=80, grid=(2, 2), warp_specialize=False
    )
    assert isinstance(kernel.plan, SinglePlan)
    assert kernel.plan.num_warps == 8
    assert kernel.compiled is not None
    assert kernel.compiled.spill_bytes == 0


@pytest.mark.parametrize("kernel", [waves, noise], ids=["waves", "noise"])
def test_long_maps_are_short_text(kernel) -> None:
    """256 sines, cosines or random numbers of a thread, in 15 s and 500 KiB when unrolled."""
    x = torch.empty(64, 128, device="meta")
    made = kernel.compile(x, x, M=64, N=128, grid=(1,), num_warps=1).compiled
    assert made is not None
    assert len(made.cubin) < 160 * 1024
