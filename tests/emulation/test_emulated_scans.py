"""Scans along rows: a thread's elements lie side by side, and only totals are exchanged."""

from __future__ import annotations

import pytest
import torch

from tests.emulation.test_emulated_tiles import check
from tests.emulation.test_emulated_tiles import emitted
from tests.emulation.test_emulated_tiles import emulated
from tests.gpu.tile_kernels import Case
from tests.gpu.tile_kernels import recurrence
from tests.gpu.tile_kernels import scan_rank2

SHAPES = [(64, 64, 8), (64, 64, 1), (128, 48, 16), (33, 100, 4), (96, 8, 2), (256, 4, 4)]


@pytest.mark.parametrize("reverse", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pairs_along_rows(shape: tuple[int, int, int], *, reverse: bool) -> None:
    M, N, warps = shape
    x, o = torch.rand(M, N), torch.zeros(M, N)
    constants = {"F": recurrence, "AXIS": 0, "REV": reverse, "M": M, "N": N}
    case = Case("pairs", scan_rank2, (x, o), (1,), constants, (1, 1, 1), num_warps=warps, tol=1e-5)
    text = emitted(case).source
    levels = [line for line in text.splitlines() if "scan_1." in line]
    is_run = N >= 8 and 4 * 32 * warps < M * N  # rows of a sector; more than a vector each
    assert (".registers<" in levels[0]) == is_run
    check(case, emulated(case, seed=1))
