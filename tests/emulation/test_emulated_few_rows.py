"""Tiles of as many rows, or columns, as there are: any multiple of 8."""

from __future__ import annotations

import pytest

from tests.emulation.matmuls import Problem
from tests.emulation.matmuls import check


@pytest.mark.parametrize("rows", [24, 40, 56])
@pytest.mark.parametrize("split", [1, 2])
def test_few_rows(rows: int, split: int) -> None:
    made = check(Problem(rows - 3, 136, 328, order="NTN"), BM=rows, BN=64, BK=128, split_k=split)
    assert made.plan.swapped


@pytest.mark.parametrize("columns", [24, 40, 56])
@pytest.mark.parametrize("split", [1, 2])
def test_few_columns(columns: int, split: int) -> None:
    made = check(
        Problem(136, columns - 3, 328, order="NTN"), BM=64, BN=columns, BK=64, split_k=split
    )
    assert not made.plan.swapped
