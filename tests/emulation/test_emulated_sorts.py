"""Sorts, and the few first elements of rows that are found without sorting the rest."""

from __future__ import annotations

import pytest
import torch

from tests.emulation.test_emulated_tiles import check
from tests.emulation.test_emulated_tiles import emitted
from tests.emulation.test_emulated_tiles import emulated
from tests.gpu.tile_kernels import Case
from tests.gpu.tile_kernels import sorted_rows

# Rows, elements of a row, how many of them, dtype, warps.
FEW = [
    (1, 1000, 5, torch.float32, 4),  # padded; one lane keeps eight keys
    (6, 100, 1, torch.int32, 4),  # more rows than warps
    (3, 8, 4, torch.float32, 1),  # fewer keys than lanes
    (16, 128, 4, torch.float32, 2),  # a warp holds many rows
]
# The same where what each warp holds is of one row.
HELD = [
    (1, 1024, 8, torch.int64, 4),  # four warps share a row
    (1, 1024, 8, torch.int64, 1),
    (2, 2048, 16, torch.bfloat16, 8),
    (4, 512, 1, torch.float32, 4),
    (8, 128, 4, torch.float32, 2),  # a warp holds several rows
]


def case_of(
    rows: int, width: int, count: int, dtype: torch.dtype, warps: int, most: int = 300
) -> Case:
    """Distinct and equal elements of both signs."""
    x = torch.randint(-most, most, (rows, width)).to(dtype)
    o = torch.zeros(rows, count, dtype=dtype)
    constants = {"M": rows, "N": width, "K": count, "DESC": True}
    return Case("few", sorted_rows, (x, o), (1,), constants, (1, 1, 1), num_warps=warps)


@pytest.mark.parametrize("wanted", FEW, ids=str)
def test_few_of_a_row(wanted: tuple[int, int, int, torch.dtype, int]) -> None:
    case = case_of(*wanted)
    assert "first_of_rows<" in emitted(case).source
    check(case, emulated(case, seed=1))


@pytest.mark.parametrize("most", [1, 9, 20000], ids="up to {}".format)
@pytest.mark.parametrize("wanted", HELD, ids=str)
def test_few_of_a_row_that_a_warp_holds(
    wanted: tuple[int, int, int, torch.dtype, int], most: int
) -> None:
    """Of elements that are mostly equal, many do not exceed the bound."""
    case = case_of(*wanted, most)
    assert "first_of_registers<" in emitted(case).source
    check(case, emulated(case, seed=1))


@pytest.mark.parametrize("wanted", [(1, 512, 100, torch.int32, 4), (4, 32, 31, torch.int32, 2)])
def test_many_of_a_row_are_sorted(wanted: tuple[int, int, int, torch.dtype, int]) -> None:
    """Steps inside of a warp's keys wait for the warp only."""
    case = case_of(*wanted)
    assert "sort_rows<" in emitted(case).source
    check(case, emulated(case, seed=1))
