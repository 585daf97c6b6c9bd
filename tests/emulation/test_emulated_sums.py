"""Sums of one program side by side meet in one exchange; those that need one another do not."""

from __future__ import annotations

import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl import emulate
from tiledsl.runtime.interop import numpy_view


@tiledsl.jit
def moments(x, out, n_rows, n_cols, CENTRED: tl.constexpr, BLOCK: tl.constexpr):
    """Sum and sum of squares of rows, and the number of positive elements."""
    cols = tl.arange(0, BLOCK)
    for row in range(tl.program_id(0), n_rows, tl.num_programs(0)):
        value = tl.load(x + row * n_cols + cols, mask=cols < n_cols, other=0.0)
        first = tl.sum(value, axis=0)
        if CENTRED:
            value = tl.where(cols < n_cols, value - first / n_cols, 0.0)
        tl.store(out + row * 3, first)
        tl.store(out + row * 3 + 1, tl.sum(value * value, axis=0))
        tl.store(out + row * 3 + 2, tl.sum((value > 0).to(tl.int32), axis=0).to(tl.float32))


def run(centred: bool) -> str:
    rows, cols = 5, 500
    x, out = torch.randn(rows, cols), torch.full((rows, 3), float("nan"))
    made, runtime = compiled(
        moments, [x, out, rows, cols, centred, 512], grid=(2, 1, 1), num_warps=4
    )
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (2, 1, 1), seconds=60.0)
    y = x - x.mean(1, keepdim=True) if centred else x
    want = torch.stack([x.sum(1), (y * y).sum(1), (y > 0).sum(1).float()], 1)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-4)
    return made.module.source


def test_sums_side_by_side() -> None:
    text = run(False)
    assert "Tuple<float, float, int>" in text or "Tuple<float, int, float>" in text
    assert text.count("put_partials<") == 1


def test_sums_that_need_another() -> None:
    text = run(True)
    assert text.count("put_partials<") == 2
    assert "Tuple<float, int>" in text
