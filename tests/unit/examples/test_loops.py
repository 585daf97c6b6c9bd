"""The other examples of loops with several dots, in the interpreter against fp64."""

from __future__ import annotations

import pytest
import torch

from examples import back_to_back
from examples import gated_mlp
from examples import linear_attention

BF16, FP16 = torch.bfloat16, torch.float16
DTYPES = pytest.mark.parametrize("dtype", [BF16, FP16], ids=["bf16", "fp16"])
LIMITS = {BF16: 4e-3, FP16: 1e-3}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@DTYPES
@pytest.mark.parametrize("shape", [(128, 128, 64), (1, 130, 200), (200, 8, 40)], ids=str)
def test_gated_mlp(shape, dtype):
    assert gated_mlp.run(*shape, "cpu", dtype) <= LIMITS[dtype]


@DTYPES
@pytest.mark.parametrize("name", ["relu", "identity"])
@pytest.mark.parametrize("shape", [(2, 128, 128, 64, 64), (1, 70, 200, 128, 96)], ids=str)
def test_back_to_back(shape, name, dtype):
    between = getattr(back_to_back, name)
    assert back_to_back.run(shape, "cpu", between, dtype) <= LIMITS[dtype]


@DTYPES
@pytest.mark.parametrize(
    "shape", [(1, 2, 64, 64, 64), (2, 1, 150, 64, 128), (1, 1, 70, 160, 80)], ids=str
)
def test_linear_attention(shape, dtype):
    assert linear_attention.run(shape, "cpu", dtype) <= 1.5 * LIMITS[dtype]
