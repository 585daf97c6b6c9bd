"""Kernels as Triton's users write them, on the GPU against torch."""

from __future__ import annotations

import pytest
import torch

from tests.triton_style.cases import Case
from tests.triton_style.cases import check
from tests.triton_style.cases import copied
from tests.triton_style.cases import launch
from tests.triton_style.cases import moved
from tests.triton_style.cases import seeded
from tests.triton_style.kernels import CASES
from tests.triton_style.matmuls import SIZES
from tests.triton_style.matmuls import grouped_matmul

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(case: Case) -> None:
    args = case.make()
    want = case.want(*copied(args))
    there = moved(args, "cuda")
    launch(case, there)
    torch.cuda.synchronize()
    check(case, there, want)


def test_addresses_in_memory() -> None:
    pairs = [(seeded(m, k).half().cuda(), seeded(k, n).half().cuda()) for m, n, k in SIZES]
    outputs = [torch.zeros(m, n, dtype=torch.float16, device="cuda") for m, n, _ in SIZES]
    tables = [
        torch.tensor([t.data_ptr() for t in ts], device="cuda")
        for ts in ([a for a, _ in pairs], [b for _, b in pairs], outputs)
    ]
    sizes = torch.tensor(SIZES, dtype=torch.int32, device="cuda").flatten()
    strides = torch.tensor([(k, n, n) for _, n, k in SIZES], dtype=torch.int32, device="cuda")
    grouped_matmul[(4,)](*tables, sizes, strides.flatten(), len(SIZES), 4, 32, 32, 32)
    for (a, b), c in zip(pairs, outputs, strict=True):
        torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=1e-2, atol=1e-2)
