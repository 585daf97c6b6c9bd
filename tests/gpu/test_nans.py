"""Sorts and extrema of NaNs of both signs give the interpreter's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.emulation.test_emulated_nans import F32
from tests.emulation.test_emulated_nans import F64
from tests.emulation.test_emulated_nans import NANS
from tests.emulation.test_emulated_nans import bits
from tests.emulation.test_emulated_nans import extrema
from tests.emulation.test_emulated_nans import first_few
from tests.emulation.test_emulated_nans import ordered
from tests.emulation.test_emulated_nans import values

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", NANS, ids=str)
def test_the_device_gives_the_bits_of_the_interpreter(dtype: torch.dtype) -> None:
    M, N = 8, 200
    x = values(dtype, M, N)
    wide = F64 if dtype is F64 else F32
    found = []
    for device in ("cpu", "cuda"):
        given = x.to(device)
        up, down, few = torch.zeros_like(given), torch.zeros_like(given), given[:, :8].clone()
        at = torch.zeros(4, M, dtype=torch.int32, device=device)
        best = torch.zeros(2, M, dtype=wide, device=device)
        ordered[(1,)](given, up, M, N, False)
        ordered[(1,)](given, down, M, N, True)
        first_few[(1,)](given, few, M, N, 8)
        extrema[(1,)](given, at, best, M, N)
        found.append([t.cpu() for t in (up, down, few, at, best)])
    *orders, (want, got) = zip(*found, strict=True)
    for x, y in orders:
        np.testing.assert_array_equal(bits(y), bits(x))
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
