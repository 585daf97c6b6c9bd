"""Which programs CTAs stay for, with how many warps, and what is fetched ahead."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tiledsl.compiled import Kernel
from tiledsl.ws.single_plan import Limits
from tiledsl.ws.single_plan import SinglePlan

BF16, F32 = torch.bfloat16, torch.float32
LONG, SHORT = 65536, 4096


@tiledsl.jit
def centre(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row + at, value - tl.sum(value, axis=0) / n, mask=at < n)


@tiledsl.jit
def centre_of_two_axes(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = (tl.program_id(0) + tl.program_id(1)) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row + at, value - tl.sum(value, axis=0) / n, mask=at < n)


@tiledsl.jit
def centre_and_count(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    total = tl.sum(value, axis=0)
    tl.atomic_add(y + tl.program_id(0), total.to(y.dtype.element_ty))
    tl.store(y + row + at, value - total / n, mask=at < n)


@tiledsl.jit
def centre_of_place(x, y, n, BLOCK: tl.constexpr):
    """The row is read from memory."""
    at = tl.arange(0, BLOCK)
    row = tl.load(y + tl.program_id(0)).to(tl.int32) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(x + row + at, value - tl.sum(value, axis=0) / n, mask=at < n)


@tiledsl.jit
def centre_twice(x, y, n, BLOCK: tl.constexpr):
    """Reads again what it has written."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(y + row + at, value - tl.sum(value, axis=0) / n, mask=at < n)
    again = tl.load(y + row + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(x + row + at, again * again, mask=at < n)


@tiledsl.jit
def centre_with_weight(x, y, n, BLOCK: tl.constexpr):
    """Row 0 of y is a weight that all programs read."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    total = tl.sum(value, axis=0)
    weight = tl.load(y + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(x + row + at, (value - total / n) * weight, mask=at < n)


def made(
    kernel: Any, block: int = LONG, dtype: torch.dtype = BF16, odd: int = 0, **options: Any
) -> Kernel:
    n = block - odd
    x, y = (torch.empty(4, n, dtype=dtype, device="meta") for _ in range(2))
    found, _ = compiled(kernel, [x, y, n, block], grid=(4, 1, 1), **options)
    return found


def plan_of(kernel: Kernel) -> SinglePlan:
    assert isinstance(kernel.plan, SinglePlan)
    return kernel.plan


def test_long_rows_stay() -> None:
    """Programs that clusters share; the grid has as many clusters as fit."""
    kernel = made(centre)
    assert plan_of(kernel).stays
    assert "stays for the next program" in kernel.plan.describe()
    assert kernel.module.grid.mode == "persistent"
    assert kernel.module.grid.split_k == kernel.module.cluster_size == 4
    assert "draw_program<4>" in kernel.module.source


def test_short_rows_stay_when_asked() -> None:
    assert not plan_of(made(centre, SHORT)).stays
    kernel = made(centre, SHORT, persistent=True)
    assert plan_of(kernel).stays
    assert kernel.module.cluster_size == 1


@tiledsl.jit
def centre_with_weights(x, y, z, n, BLOCK: tl.constexpr):
    """Rows 0 of y and of z are weights that all programs read."""
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=0.0).to(tl.float32)
    total = tl.sum(value, axis=0)
    weight = tl.load(y + at, mask=at < n, other=0.0).to(tl.float32)
    weight += tl.load(z + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(x + row + at, (value - total / n) * weight, mask=at < n)


@pytest.mark.parametrize(
    ("row", "weight", "weights", "stays"),
    [
        (BF16, BF16, 1, False),
        (BF16, BF16, 2, True),
        (BF16, F32, 1, True),
        (F32, BF16, 2, False),
        (F32, F32, 2, False),
    ],
)
def test_short_rows_stay_where_most_is_shared(
    row: torch.dtype, weight: torch.dtype, weights: int, *, stays: bool
) -> None:
    """Weights of more bytes an element than the row has, unless CTAs of f32 rows hide them."""
    x = torch.empty(4, SHORT, dtype=row, device="meta")
    w = torch.empty(SHORT, dtype=weight, device="meta")
    kernel = centre_with_weights if weights == 2 else centre_with_weight
    found, _ = compiled(kernel, [x, *[w] * weights, SHORT, SHORT])
    assert plan_of(found).stays == stays


def test_rows_of_two_ctas_an_sm_stay_where_most_is_shared() -> None:
    x, w = (torch.empty(s, 2 * SHORT, device="meta") for s in (4, 1))
    found, _ = compiled(centre_with_weights, [x, w, w, 2 * SHORT, 2 * SHORT])
    plan = plan_of(found)
    assert (plan.num_ctas, plan.min_blocks, plan.stays) == (1, 2, True)


@tiledsl.jit
def softmax(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * n
    value = tl.load(x + row + at, mask=at < n, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row + at, value / tl.sum(value, axis=0), mask=at < n)


@pytest.mark.parametrize(
    ("kernel", "block", "dtype", "warps", "stays"),
    [
        (softmax, 8192, BF16, 8, False),
        (softmax, 16384, BF16, 16, True),
        (softmax, 8192, F32, 16, True),
        (centre, 16384, BF16, 16, True),
        (centre, 8192, BF16, 8, False),
        (centre_with_weights, 8192, BF16, 8, True),
    ],
)
def test_sixteen_warps(
    kernel: Any, block: int, dtype: torch.dtype, warps: int, *, stays: bool
) -> None:
    """Rows that fill eight warps twice."""
    x, w = torch.empty(4, block, dtype=dtype), torch.empty(block, dtype=dtype)
    tensors = [x, w, w] if kernel is centre_with_weights else [x, x]
    plan = plan_of(compiled(kernel, [*tensors, block, block])[0])
    assert (plan.num_warps, plan.num_ctas, plan.stays) == (warps, 1, stays)
    left = plan_of(compiled(kernel, [*tensors, block, block], persistent=False)[0])
    assert not left.stays


def test_long_rows_leave_when_asked() -> None:
    kernel = made(centre, persistent=False)
    assert not plan_of(kernel).stays
    assert kernel.module.grid.mode == "plain"


def test_the_report_says_whether_the_option_is_followed() -> None:
    x = torch.empty(4, SHORT, dtype=BF16, device="meta")
    followed = centre.report(x, x, SHORT, SHORT, grid=(4,), persistent=True)
    assert "stays for the next program" in followed
    assert "is ignored" not in followed
    ignored = centre_and_count.report(x, x, SHORT, SHORT, grid=(4,), persistent=True)
    assert "persistent=True is ignored" in ignored


@pytest.mark.parametrize("kernel", [centre_of_two_axes, centre_and_count])
def test_programs_that_cannot_stay(kernel: Any) -> None:
    """A grid of two axes, and programs that others hear of."""
    assert not plan_of(made(kernel, persistent=True)).stays


def test_addresses_that_are_loaded_are_not_fetched() -> None:
    kernel = made(centre_of_place)
    assert not plan_of(kernel).stays
    assert any("addresses depend on what the program computes" in n for n in kernel.notes)


def test_what_a_program_wrote_is_not_fetched() -> None:
    kernel = made(centre_twice)
    assert plan_of(kernel).stays
    assert any("the program may write it" in n for n in kernel.notes)
    assert kernel.module.source.count("cp_async_commit") == 2  # x, for the first and the next row


@pytest.mark.parametrize("odd", [0, 15])
def test_what_all_programs_read_is_fetched_once(odd: int) -> None:
    kernel = made(centre_with_weight, odd=odd)
    source = kernel.module.source
    loop = source[source.index("while (true)") :]
    # Rows at odd addresses are turned: lines before what warps hold of the weight come as well.
    assert source.count("cp_async_commit") == 4 + bool(odd)
    assert loop.count("cp_async_commit") == loop.count("cp_async_wait") == 2
    assert loop.index("reduce_") < loop.rindex(
        "cp_async_wait"
    )  # the first row does not wait for it
    assert ("read_segment" if odd else "load_filled") in loop
    assert ("fetch_shifted" in loop) == bool(odd)


def test_what_does_not_fit_is_loaded() -> None:
    """A row of f32 and its weight do not fit in shared memory together."""
    kernel = made(centre_with_weight, 8 * LONG, F32, num_warps=32)
    assert any("bytes, " in n and "are left" in n for n in kernel.notes)


@pytest.mark.parametrize(
    ("block", "dtype", "warps", "ctas", "blocks"),
    [
        (16384, BF16, 16, 1, 2),
        (65536, F32, 8, 8, 2),
        (131072, F32, 8, 8, 1),
        (131072, BF16, 8, 8, 2),  # 64 elements of a thread, in 32 registers
    ],
)
def test_warps(block: int, dtype: torch.dtype, warps: int, ctas: int, blocks: int) -> None:
    """Eight in clusters, where one or two CTAs on an SM have enough under way."""
    plan = plan_of(made(centre, block, dtype))
    assert (plan.num_warps, plan.num_ctas, plan.min_blocks) == (warps, ctas, blocks)


def test_after_spills() -> None:
    """First threads hold fewer elements, then fewer CTAs are on an SM."""
    wide = SinglePlan(8, min_blocks=2)
    limits = Limits().after(wide)
    assert limits == Limits(wide=False)
    assert limits.after(SinglePlan(16, min_blocks=2)) == Limits(1, wide=False)
    assert not SinglePlan(16, min_blocks=2).is_last(100)
    assert SinglePlan(16, min_blocks=2).is_last(8)
    assert SinglePlan(16, min_blocks=1).is_last(100)


@tiledsl.jit
def by_blocks(x: tl.Tensor, o: tl.Tensor, N: tl.constexpr):
    row = tl.program_id(0)
    values = x.load((row, 0), (1, N)).to(tl.float32)
    o.store((row, 0), (values - tl.sum(values, 1)[:, None] / N).to(o.dtype))


def test_why_ctas_do_not_stay_though_they_were_asked_to() -> None:
    x = torch.empty(64, 1024, device="meta")
    made = by_blocks.compile(x, x, 1024, grid=64, persistent=True)
    want = "CTAs do not stay for the next program: it loads or stores blocks of tensors"
    assert any(note.startswith(want) for note in made.notes)
    assert want not in by_blocks.report(x, x, 1024, grid=64)
