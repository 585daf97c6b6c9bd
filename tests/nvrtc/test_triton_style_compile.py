"""Kernels as Triton's users write them compile, without spills where they fit; all of them with `-m slow`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.triton_style.cases import Case
from tests.triton_style.kernels import CASES
from tests.triton_style.matmuls import SIZES
from tests.triton_style.matmuls import grouped_matmul

pytestmark = pytest.mark.nvrtc
QUICK = (
    "cross_entropy_softcap", "fused_moe", "layer_norm_bwd", "matmul_int4", "paged_decode",
    "selective_scan", "syntax_sums", "unpack_bytes",
)  # fmt: skip


def chosen() -> list[Any]:
    """Every case; those that are not quick are slow."""
    return [
        pytest.param(c, id=c.name, marks=[] if c.name in QUICK else [pytest.mark.slow])
        for c in CASES
    ]


@pytest.mark.parametrize("case", chosen())
def test_kernel_compiles(case: Case) -> None:
    made = case.kernel.compile(*case.make(), grid=case.grid, **case.keywords)
    assert made.compiled is not None
    assert made.compiled.spill_bytes == 0


def test_addresses_in_memory() -> None:
    """Kernels that read pointers from memory have no values on a CPU."""
    table = torch.empty(len(SIZES), dtype=torch.int64, device="meta")
    sizes = torch.empty(3 * len(SIZES), dtype=torch.int32, device="meta")
    args = [table, table, table, sizes, sizes, len(SIZES), 4, 32, 32, 32]
    made = grouped_matmul.compile(*args, grid=(4,))
    assert made.compiled.spill_bytes == 0
