"""The matmul family's examples in the interpreter, against fp64."""

from __future__ import annotations

import pytest
import torch

from examples import block_scaled_matmul
from examples import fp8_matmul

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SHAPES = [(128, 128, 128), (1, 136, 272), (70, 200, 400)]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("limit", [None, fp8_matmul.FAST])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_fp8_matmul(shape, limit):
    assert fp8_matmul.run(*shape, "cpu", limit=limit) <= 2e-3


@pytest.mark.parametrize("dtypes", [(E5M2, E4M3), (E5M2, E5M2)], ids=["mixed", "e5m2"])
def test_fp8_rows_and_columns(dtypes):
    assert fp8_matmul.run(70, 200, 400, "cpu", rowwise=True, dtypes=dtypes) <= 2e-3


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_block_scaled_matmul(shape):
    assert block_scaled_matmul.run(*shape, "cpu") <= 2e-3
