"""Reductions, scans, shape ops, sorts, dots and library functions on the GPU against the interpreter."""

from __future__ import annotations

import os

import pytest
import torch

from tests.gpu import library_kernels
from tests.gpu import tile_kernels
from tests.gpu.tile_kernels import Case

pytestmark = pytest.mark.gpu

# A run of all of them takes minutes.
EVERY = 1 if os.environ.get("TILEDSL_ALL_CASES") else 4
CASES = [
    *tile_kernels.reduction_cases()[::EVERY],
    *tile_kernels.reduction_cases(((16, 64), (3, 257)), warps=(1, 2, 8, 16))[:: 2 * EVERY],
    *tile_kernels.loop_cases(),
    *tile_kernels.scan_cases()[::EVERY],
    *tile_kernels.move_cases()[::EVERY],
    *tile_kernels.order_cases()[::EVERY],
    *tile_kernels.dot_cases(),
]


def compare(case: Case) -> None:
    """One launch on the GPU and one in the interpreter."""
    want = case.fresh()
    case.kernel[case.grid](*want, **case.constants)
    got = case.fresh("cuda")
    case.kernel[case.grid](*got, **case.constants, num_warps=case.num_warps)
    for i in case.outs:
        a, b = got[i].double().cpu(), want[i].double()
        finite = b[b.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=0, atol=case.tol * max(1.0, scale), equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_the_interpreter(case: Case) -> None:
    compare(case)


def test_random_numbers() -> None:
    want, got = (
        torch.zeros(4, 1000, dtype=torch.float64),
        torch.zeros(4, 1000, dtype=torch.float64, device="cuda"),
    )
    for seed in (0, 1234567890123):
        tile_kernels.noise[1](want, seed, 1000)
        tile_kernels.noise[1](got, seed, 1000)
        exact = [0, 2, 3]
        assert torch.equal(got.cpu()[exact], want[exact])
        torch.testing.assert_close(got.cpu()[1], want[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("group", library_kernels.groups(), ids=str)
def test_library(group: library_kernels.Group) -> None:
    library_kernels.check(group)


def test_inline_assembly() -> None:
    x = torch.randn(1024, device="cuda")
    words = torch.randint(0, 255, (1024,), dtype=torch.uint8, device="cuda")
    powers, sums = torch.empty_like(x), torch.empty_like(words)
    library_kernels.assembly[1](x, words, powers, sums)
    torch.testing.assert_close(powers, torch.exp2(x), rtol=1e-5, atol=1e-6)
    assert torch.equal(sums, words ^ 0x55)
