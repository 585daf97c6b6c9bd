"""Programs of several short rows: how many warps have them, what is stored at once, what is asked for early."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples import norms
from examples import softmax
from tiledsl import emulate
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.runtime.interop import numpy_view
from tiledsl.ws.single_plan import SinglePlan

BF16, F32 = torch.bfloat16, torch.float32


@tiledsl.jit
def scaled(
    x, w, y, total, n_rows, n, BEFORE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    mask = (rows < n_rows) & (cols < n)
    value = tl.load(x + rows * n + cols, mask=mask, other=0.0)
    sums = tl.sum(value, axis=1, keep_dims=True)
    tl.store(total + rows, sums, mask=rows < n_rows)
    if BEFORE:  # A program changes what it loads next.
        tl.store(w + cols, (cols * 2).to(tl.float32), mask=cols < n)
    weight = tl.load(w + cols, mask=cols < n, other=0.0)
    tl.store(y + rows * n + cols, value * weight, mask=mask)


@tiledsl.jit
def scale_right_behind(x, w, y, total, n_rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    at = rows[:, None] * n + cols[None, :]
    mask = (rows < n_rows)[:, None] & (cols < n)[None, :]
    value = tl.load(x + at, mask=mask, other=0)
    weight = tl.load(w + cols, mask=cols < n, other=0)
    sums = tl.sum(value, axis=1)
    tl.store(total + rows, sums, mask=rows < n_rows)
    tl.store(y + at, value * weight[None, :], mask=mask)


def norm_of(
    m: int, n: int, dtype: torch.dtype, *, centred: bool = True, **options: Any
) -> tuple[Kernel, dict[str, Any]]:
    """The kernel for m rows, and its tensors by name."""
    torch.manual_seed(0)
    block = tiledsl.next_power_of_2(n)
    rows = norms.rows_per_program(n, dtype.itemsize)
    x, w, b = (torch.randn(s, dtype=dtype) for s in ((m, n), (n,), (n,)))
    mean, rstd = (torch.full((m,), float("nan")) for _ in range(2))
    y = torch.full_like(x, float("nan"))
    args = (x, y, w, b, mean, rstd, n, m, n, 1e-5, centred, rows, block)
    _, request = norms.norm_forward.request_for(args, options, (-(-m // rows),))
    names = ("x_ptr", "y_ptr", "w_ptr", "b_ptr", "mean_ptr", "rstd_ptr")
    tensors = dict(zip(names, args, strict=False))
    scalars = {"x_stride": n, "n_rows": m, "n_cols": n, "eps": 1e-5}
    return list(modules(request))[-1], {**tensors, **scalars}


def emulated(kernel: Kernel, runtime: dict[str, Any], grid: int) -> None:
    arrays = {k: numpy_view(v) if isinstance(v, torch.Tensor) else v for k, v in runtime.items()}
    emulate.run(kernel.module, arrays, (grid, 1, 1), num_sms=2, seconds=60.0)


def plan_of(kernel: Kernel) -> SinglePlan:
    assert isinstance(kernel.plan, SinglePlan)
    return kernel.plan


@pytest.mark.parametrize(
    ("n", "dtype"), [(256, BF16), (256, F32), (512, BF16), (512, F32), (1024, BF16)]
)
def test_a_warp_has_four_kilobytes(n: int, dtype: torch.dtype) -> None:
    """Its lanes store four results, or two, of rows side by side at once; weights come first."""
    kernel, _ = norm_of(64, n, dtype)
    assert plan_of(kernel).num_warps == plan_of(kernel).min_blocks == 4
    assert not plan_of(kernel).stays
    text, rows = kernel.module.source, 4 if n * dtype.itemsize <= 1024 else 2
    assert text.count(f"store_lanes<{rows}, {rows}, Store>") == 2
    assert text.index("w_ptr + ") < text.index("reduce_registers") < text.index("mean_ptr + ")


def test_loads_come_before_what_ptxas_moves_nothing_across() -> None:
    """Else it keeps loads of some rows back until others are reduced."""
    text = norm_of(64, 256, BF16, centred=False)[0].module.source
    marks = (
        "dependency_wait();",
        "load_lanes<16,",
        "launch_dependents();",
        "reduce_registers",
    )
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def test_longer_rows_and_rows_alone_have_eight_warps() -> None:
    """Also where nothing but the rows is stored, or the user says how many."""
    assert plan_of(norm_of(64, 2048, BF16)[0]).num_warps == 8
    assert plan_of(norm_of(64, 1024, F32)[0]).num_warps == 8
    kernel, _ = norm_of(64, 512, F32, num_warps=8)
    assert plan_of(kernel).num_warps == 8
    assert kernel.module.source.index("reduce_registers") < kernel.module.source.index("w_ptr + ")
    x = torch.empty(64, 256)
    args = (x, x, 256, 256, 64, 256, 16, 256)
    _, request = softmax.softmax_kernel.request_for(args, {}, (4,))
    assert plan_of(list(modules(request))[-1]).num_warps == 8


@pytest.mark.parametrize("warps", [None, 1, 8])
@pytest.mark.parametrize(("m", "n"), [(32, 256), (37, 250), (5, 509), (2, 130), (9, 1001)])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_values(m: int, n: int, dtype: torch.dtype, warps: int | None) -> None:
    """Whole programs, and rows and columns that end inside of vectors."""
    kernel, runtime = norm_of(m, n, dtype, **({} if warps is None else {"num_warps": warps}))
    rows = norms.rows_per_program(n, dtype.itemsize)
    emulated(kernel, runtime, -(-m // rows))
    x, w, b = (runtime[k].double() for k in ("x_ptr", "w_ptr", "b_ptr"))
    want = torch.nn.functional.layer_norm(x, (n,), w, b, 1e-5)
    limit = 1e-5 if dtype is F32 else 2e-2
    torch.testing.assert_close(runtime["y_ptr"].double(), want, rtol=limit, atol=limit)
    torch.testing.assert_close(runtime["mean_ptr"].double(), x.mean(1), rtol=1e-4, atol=1e-5)
    rstd = (x.var(1, correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(runtime["rstd_ptr"].double(), rstd, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("before", [False, True])
def test_what_a_program_stores_is_not_asked_for_before(*, before: bool) -> None:
    m, n = 21, 256
    x, w = torch.randn(m, n), torch.randn(n)
    y, total = torch.full_like(x, float("nan")), torch.full((m,), float("nan"))
    args = (x, w, y, total, m, n, before, 16, 256)
    _, request = scaled.request_for(args, {}, (2,))
    kernel = list(modules(request))[-1]
    text = kernel.module.source
    is_early = text.index("w + (i64)") < text.index("reduce_registers")
    assert is_early != before
    names = ("x", "w", "y", "total", "n_rows", "n")
    emulated(kernel, dict(zip(names, args, strict=False)), 2)
    weight = torch.arange(n) * 2.0 if before else w
    torch.testing.assert_close(y, x * weight)
    torch.testing.assert_close(total, x.sum(1), rtol=1e-4, atol=1e-4)


def test_what_is_asked_for_right_behind_the_rows_stays_there() -> None:
    x, y = (torch.empty(4096, 256, device="meta") for _ in range(2))
    w, total = (torch.empty(size, device="meta") for size in (256, 4096))
    text = scale_right_behind.cuda(x, w, y, total, 4096, 256, ROWS=16, BLOCK=256, grid=(256,))
    places = [text.index(part) for part in ("(value_1, ", "(weight_1, ", "(sums_1, ")]
    assert places == sorted(places)
