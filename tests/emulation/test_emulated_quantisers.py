"""Trees of selects between the numbers of intervals, which are counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.runtime.interop import numpy_view

LIMITS = (-0.8480964004993439, -0.34, -0.0, 0.25, 0.3893125355243683, 1e30)
INF, NAN = float("inf"), float("nan")


@tiledsl.jit
def rising(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    high = tl.where(v > 0.3893125355243683, tl.where(v > 1e30, 9, 8), tl.where(0.25 < v, 7, 6))  # noqa: SIM300
    low = tl.where(v > -0.8480964004993439, tl.where(v > -0.34, 5, 4), 3)
    tl.store(y + at, tl.where(v > -0.0, high, low).to(tl.uint8), mask=at < n)


@tiledsl.jit
def falling(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    high = tl.where(v <= 0.25, 5, tl.where(v <= 0.3893125355243683, 4, tl.where(v <= 1e30, 3, 2)))
    low = tl.where(v <= -0.34, tl.where(v <= -0.8480964004993439, 8, 7), 6)
    tl.store(y + at, tl.where(v <= -0.0, low, high).to(tl.uint8), mask=at < n)


@pytest.mark.parametrize("kernel", [rising, falling], ids=["rising", "falling"])
def test_values_at_and_beside_each_limit(kernel: tiledsl.JitFunction) -> None:
    edges = np.array([*LIMITS, 0.0], np.float32)
    sides = [np.nextafter(edges, np.float32(s)) for s in (-np.inf, np.inf)]
    x = torch.from_numpy(np.concatenate([edges, *sides, [INF, -INF, NAN, -NAN, 3e38]]).astype("f"))
    n = len(x)
    y, want = torch.zeros(n, dtype=torch.uint8), torch.zeros(n, dtype=torch.uint8)
    kernel[(1,)](x, want, n, 64)
    made, runtime = compiled(kernel, [x, y, n, 64], grid=(1,))
    assert made.module.source.count("count_steps<") == 1
    arrays = {k: numpy_view(v) if isinstance(v, torch.Tensor) else v for k, v in runtime.items()}
    emulate.run(made.module, arrays, (1,))
    assert torch.equal(y, want)
    over = (x.numpy()[:, None] > np.array(LIMITS, np.float32)).sum(1)
    below = (x.numpy()[:, None] <= np.array(LIMITS, np.float32)).sum(1)
    np.testing.assert_array_equal(y, 3 + over if kernel is rising else 2 + below)
