"""The matmul family's examples in the interpreter, against fp64."""

from __future__ import annotations

import pytest
import torch

from examples import block_scaled_matmul
from examples import fp8_matmul
from examples import grouped_matmul

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


@pytest.mark.parametrize("sizes", [[128, 128], [0, 1, 200, 0, 131], [5]], ids=str)
def test_grouped_matmul(sizes):
    assert grouped_matmul.run(sizes, 136, 72, "cpu") <= 4e-3


@pytest.mark.parametrize(
    ("ends", "message"),
    [([0, 9, 5, 20], "ascend"), ([0, 5, 9, 21], "at most 20"), ([0, 20], "4 offsets")],
    ids=str,
)
def test_offsets_that_fit_nothing_are_refused(ends, message):
    x, w = torch.zeros(20, 16), torch.zeros(3, 16, 8)
    with pytest.raises(ValueError, match=message):
        grouped_matmul.grouped(x, w, torch.tensor(ends, dtype=torch.int32))
