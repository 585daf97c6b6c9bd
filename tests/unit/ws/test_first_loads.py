"""What is fetched into L2 while the kernel before ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_pointers import compiled
from tests.emulation.test_emulated_tiles import emitted
from tests.emulation.test_emulated_tiles import emulated
from tests.gpu.tile_kernels import Case
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import ring_kernel
from tiledsl import emulate
from tiledsl.compiled import Kernel
from tiledsl.runtime.interop import numpy_view

BLOCK = 4096


@tiledsl.jit
def scaled(x, w, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0)
    value = tl.load(x + row * n + at, mask=at < n, other=0.0)
    total = tl.sum(value * value, axis=0)
    weight = tl.load(w + at, mask=at < n, other=0.0)
    tl.store(y + row * n + at, value * weight / total, mask=at < n)


@tiledsl.jit
def of_two_axes(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(1) * 2 + tl.program_id(0)
    tl.store(y + row * n + at, tl.load(x + row * n + at))


@tiledsl.jit
def of_places(x, places, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(places + tl.program_id(0))
    tl.store(y + row * n + at, tl.load(x + row * n + at))


def arguments(n: int) -> list[Any]:
    torch.manual_seed(0)
    x, w = torch.randn(3, n), torch.randn(n)
    return [x, w, torch.full_like(x, float("nan")), n, BLOCK]


def made(kernel: Any, args: list[Any], **options: Any) -> tuple[Kernel, dict[str, Any]]:
    return compiled(kernel, args, grid=(3, 1, 1), **{"persistent": False, **options})


def prefetches(source: str, *, stays: bool = False) -> list[str]:
    """Calls before the wait for the kernel before; behind it there is one for CTAs that stay."""
    before, _, after = source.partition("grid_dependency_wait")
    assert after.count("prefetch_lanes<") == stays
    return [line.strip() for line in before.splitlines() if "prefetch_lanes<" in line]


def test_rows_of_the_first_programs_are_asked_for() -> None:
    """The row, and not the weight; of programs that have a place from the beginning."""
    kernel, _ = made(scaled, arguments(BLOCK))
    (call,) = prefetches(kernel.module.source)
    assert call.startswith("if (first_1) prefetch_lanes<")
    # Of eight CTAs on an SM that load 16 KB each, two ask.
    assert "const bool first_1 = (int)blockIdx.x < 264;" in kernel.module.source


def test_programs_that_stay_ask_for_their_first_row() -> None:
    kernel, _ = made(scaled, arguments(BLOCK), persistent=True)
    assert len(prefetches(kernel.module.source, stays=True)) == 1
    assert "first_tile<1>()" in kernel.module.source.partition("prefetch_lanes<")[0]


def test_programs_that_stay_ask_for_half_of_their_second_row() -> None:
    """Behind the copies of the first one, before those of what all share."""
    kernel, _ = made(scaled, arguments(BLOCK), persistent=True)
    source = kernel.module.source
    marks = ("fetch_lanes<16,", "prefetch_lanes<8,", "fetch_filled<16,", "while (true)")
    after = source[source.index("grid_dependency_wait") :]
    places = [after.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "following_1 < grid_0" in after[: places[1]]


def test_rows_at_odd_addresses_are_not_asked_for_twice() -> None:
    kernel, _ = made(scaled, arguments(4001), persistent=True)
    assert prefetches(kernel.module.source)


@tiledsl.jit
def shares(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(x + at)
    tl.store(y + at, row / tl.sum(row, axis=0))


def starts_late(kernel: Kernel) -> bool:
    """Whether the next kernel may start only behind the loads of rows."""
    text = kernel.module.source.partition("using namespace")[2]
    wait, load = text.index("grid_dependency_wait"), text.index(" load_lanes<")
    start = text.index("grid_launch_dependents")
    assert start < wait < load or wait < load < start < text.index("reduce_registers")
    return wait < start


@pytest.mark.parametrize(
    ("block", "is_late"), [(1024, False), (2048, True), (4096, True), (8192, False)]
)
def test_the_next_kernel_starts_behind_rows_of_8_to_32_kilobytes(
    block: int, *, is_late: bool
) -> None:
    x = torch.randn(3, block)
    kernel, _ = made(shares, [x, torch.empty_like(x), block])
    assert starts_late(kernel) == is_late


def test_the_next_kernel_does_not_wait_for_rows_that_masks_cut() -> None:
    assert not starts_late(made(scaled, arguments(BLOCK - 8))[0])


@tiledsl.jit
def looked_up(x, places, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.load(places + tl.program_id(0)) * n + at)
    tl.store(y + tl.program_id(0) * n + at, row / tl.sum(row, axis=0))


def test_the_next_kernel_waits_for_no_load_whose_place_is_loaded() -> None:
    x, places = torch.empty(8, BLOCK), torch.zeros(8, dtype=torch.int32)
    kernel, _ = made(looked_up, [x, places, torch.empty(8, BLOCK), BLOCK, BLOCK])
    assert not starts_late(kernel)


def test_rows_whose_place_is_loaded_are_not_asked_for() -> None:
    x, y = torch.empty(8, BLOCK), torch.empty(8, BLOCK)
    places = torch.zeros(8, dtype=torch.int32)
    kernel, _ = made(of_places, [x, places, y, BLOCK, BLOCK])
    assert not prefetches(kernel.module.source)


def test_programs_of_two_axes_are_counted_as_the_grid_is() -> None:
    x, y = torch.empty(8, BLOCK), torch.empty(8, BLOCK)
    kernel, _ = made(of_two_axes, [x, y, BLOCK, BLOCK])
    assert len(prefetches(kernel.module.source)) == 1
    assert "(int)blockIdx.y * grid_0 + (int)blockIdx.x;" in kernel.module.source


@tiledsl.jit
def transposed(x: tl.Tensor, y: tl.Tensor, B: tl.constexpr):
    m, n = tl.program_id(0) * B, tl.program_id(1) * B
    y.store((n, m), tl.trans(x.load((m, n), (B, B))))


@pytest.mark.parametrize("shape", [(100, 72), (99, 71)])
def test_blocks_of_tensors_are_asked_for(shape: tuple[int, int]) -> None:
    """The tile, and the neighbour's columns where rows are stored by sectors."""
    x, y = torch.randn(shape), torch.full(shape[::-1], float("nan"))
    case = Case("transposed", transposed, (x, y), (1,), {"B": 32}, (4, 3, 1))
    before, _, after = emitted(case).source.partition("grid_dependency_wait")
    assert before.count("prefetch_block<float, 32, 32,") == 1
    assert "prefetch_block<" not in after
    assert torch.equal(emulated(case, seed=1)[1], x.t())


@pytest.mark.parametrize("n", [BLOCK, 3000, 4001])
@pytest.mark.parametrize("persistent", [False, True])
def test_values(n: int, *, persistent: bool) -> None:
    """Rows whose vectors are whole, and at odd addresses."""
    args = arguments(n)
    kernel, runtime = made(scaled, args, persistent=persistent)
    assert prefetches(kernel.module.source, stays=persistent and n != 4001)
    arrays = {k: numpy_view(v) if isinstance(v, torch.Tensor) else v for k, v in runtime.items()}
    emulate.run(kernel.module, arrays, (3, 1, 1), num_sms=1, seconds=60.0)
    x, w, y = args[:3]
    torch.testing.assert_close(y, x * w / x.square().sum(1, keepdim=True), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("grid", "is_late"), [((2, 2), True), ((132, 1), True), ((133, 1), False)])
def test_few_programs_with_dots_let_the_next_kernel_start_behind_their_loop(
    grid: tuple[int, int], is_late: bool
) -> None:
    """CTAs of it that wait would keep those of this kernel from SMs of their own."""
    args = gathered_args(64, 64, 256, (64, 64, 32))
    made, _ = ring_kernel(gathered_matmul, args, grid=(*grid, 1))
    text = made.module.source
    assert text.count("grid_launch_dependents") == 1
    assert (text.index("grid_launch_dependents") > text.index("for (int k_")) == is_late
    assert text.index("grid_dependency_wait") < text.index("for (int k_")
