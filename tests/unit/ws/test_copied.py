"""Operands that a load role copies: which they are, why others are not, what the report says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl as triton
import tiledsl.language as tl
from tests.copy_kernels import changing_rows
from tests.copy_kernels import conv
from tests.copy_kernels import conv_args
from tests.copy_kernels import fused_moe
from tests.copy_kernels import moe_args
from tests.ring_kernels import copied_kernel
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import gathered_want
from tests.ring_kernels import ring_kernel
from tests.ring_kernels import scaled_args
from tests.ring_kernels import scaled_matmul
from tests.ring_kernels import strided_args
from tests.ring_kernels import strided_matmul
from tiledsl.codegen.module import TensorMapParam
from tiledsl.report import render_report
from tiledsl.simulator import simulate


# fmt: off
@triton.jit
def in_place(a_ptr, rows_ptr, b_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The result replaces what was loaded."""
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    rows = tl.load(rows_ptr + m)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for i in range(0, K, BK):
        a = tl.load(a_ptr + rows[:, None] * K + i + k[None, :])
        b = tl.load(b_ptr + (i + k[:, None]) * N + n[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(a_ptr + rows[:, None] * K + n[None, :], acc.to(tl.bfloat16))
# fmt: on


def meta(args: list[Any]) -> list[Any]:
    return [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]


def test_plan_and_report() -> None:
    made, _ = copied_kernel(gathered_matmul, gathered_args(4096, 4096, 4096, (128, 256, 64)))
    assert made.plan.describe() == (
        "2 consumers cooperative, stages 4, mma_depth 1, persistent, raster group 16, "
        "deferred paced epilogue, operands copied by threads, registers 56/224"
    )
    text = render_report(made)
    assert "producer: warpgroup 0, its threads copy, one issues the loads, setmaxnreg 56" in text
    assert "(a 128x64 copied by threads, b 64x256): 49152 bytes a slot, depth 4" in text
    assert made.certificate is not None
    assert made.certificate.proved
    source = made.module.source
    assert "4 mbarriers of 129 arrivals" in source
    assert source.count("mbarrier_arrive_cp_async(") == 1


def test_slots_and_order_where_L2_is_the_bound() -> None:
    """Small tiles have no more slots than L2 fills, and are visited so that it gives the least."""
    for tile, stages, group in (((64, 64, 64), 8, 11), ((64, 128, 64), 6, 16)):
        made, _ = copied_kernel(gathered_matmul, gathered_args(4096, 4096, 4096, tile))
        assert f"stages {stages}, " in made.plan.describe()
        assert f"raster group {group}, deferred" in made.plan.describe()
        assert made.certificate is not None
        assert made.certificate.proved
        asked, _ = copied_kernel(
            gathered_matmul, gathered_args(4096, 4096, 4096, tile), num_stages=stages + 1
        )
        assert f"stages {stages + 1}, " in asked.plan.describe()


def test_one_stage_leaves_the_depth_to_the_compiler() -> None:
    args = gathered_args(4096, 4096, 4096, (64, 64, 64))
    made, _ = copied_kernel(gathered_matmul, args, num_stages=1)
    assert made.plan == copied_kernel(gathered_matmul, args)[0].plan
    assert any(n.startswith("num_stages=1 leaves the depth to the comp") for n in made.notes)


def test_stages_beside_warps_are_of_one_of_several_programs() -> None:
    """By themselves 8 slots, which L2 fills; many more fit."""
    args = gathered_args(4096, 4096, 4096, (64, 64, 64))
    for stages, slots in ((2, 8), (3, 8), (9, 9)):
        made, _ = copied_kernel(gathered_matmul, args, num_warps=4, num_stages=stages)
        assert f"stages {slots}, " in made.plan.describe()


def test_columns_that_wrap_around_beside_other_masks() -> None:
    """The weights of experts come in boxes: what lies beyond the last column is stored nowhere."""
    args, _, grid = moe_args(512, 4, 512, 512, (128, 128, 64))
    made, _ = copied_kernel(fused_moe, args, grid=(*grid, 1))
    assert "tma_load(b_1, &b_ptr_view_map" in made.module.source
    assert made.module.source.count("copy_lane<8>(") == 1


@triton.jit
def scattered(a: tl.Tensor, b: tl.Tensor, rows, c, N, BM: tl.constexpr = 128):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * 128
    acc = tl.zeros((BM, 128), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc = tl.dot(a.load((m, k), (BM, 64)), b.load((k, n), (64, 128)), acc)
    row = tl.load(rows + m + tl.arange(0, BM))
    tl.store(c + row[:, None] * N + n + tl.arange(0, 128)[None, :], acc.to(tl.bfloat16))


def test_a_ring_that_gives_way_to_exchanges_is_as_deep_as_the_plan_says() -> None:
    x = torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16)
    rows = torch.empty(4096, device="meta", dtype=torch.int32)
    text = scattered.report(x, x, rows, x, 4096, grid=(32, 32), num_stages=7)
    assert re.findall(r"ring +\d+ bytes +(\d+) slots of [\dx]+ bf16", text) == ["6", "6"]
    assert ", stages 6, " in text
    assert "bytes a slot, depth 6; feeds" in text
    assert "rings of 6 slots instead of 7: exchanges between threads take the room" in text
    assert "num_stages=7: 6 slots fit and are used" in text


def texts_of_convolutions(channels: int) -> Iterator[tuple[str, str]]:
    """The text of a convolution, whole and from its loop on: a load role copies, and in rings."""
    args, _, grid = conv_args(1, 8, 8, channels, 64, (64, 64, 64))
    for kernel in (copied_kernel, ring_kernel):
        made, _ = kernel(conv, args, grid=(*grid, 1))
        text = made.module.source
        yield text, text[text.index("for (int i_1 = 0; i_1 <") :]


def test_divisions_are_made_once() -> None:
    """The places of a convolution's rows are found in front of its loop."""
    for text, loop in texts_of_convolutions(channels=64):
        assert "q_1[i] = " in text
        assert "mod_or_zero<int>(rows" not in loop


def test_what_only_decides_for_a_single_role() -> None:
    """Copies of both operands by one warpgroup take longer than the products."""
    args = meta(strided_args(4096, 4096, 1028, (128, 128, 64)))
    report = strided_matmul.report(*args, grid=(32, 32))
    assert "plan: single role" in report
    assert "the threads of a load role copy too slowly" in report


def test_addresses_in_two_parts() -> None:
    """Of a convolution's rows the threads keep pointers; an iteration has one offset for all copies."""
    for text, loop in texts_of_convolutions(channels=64):
        moved = re.search(r"bf16\* const t_\d+ = (x_\d+)\[i / 8\] \+ \(t_\d+ \+ ", loop)
        assert moved is not None
        assert f"bf16* {moved[1]}[" in text


def test_quotients_of_the_loop_variable_are_counted() -> None:
    for _, loop in texts_of_convolutions(channels=128):
        assert "div_or_zero<int>(i_1" not in loop
        assert re.search(r"rs_\d = t_\d+ \? \(rs_\d \+ t_\d+\) : rs_\d;", loop)


def test_weights_of_a_convolution_are_a_box() -> None:
    """Its outer stride is the product of two arguments."""
    args, _, grid = conv_args(2, 8, 8, 64, 64, (64, 64, 64))
    made, _ = copied_kernel(conv, args, grid=(*grid, 1))
    maps = {p.name: p for p in made.module.params if isinstance(p, TensorMapParam)}
    assert maps["w_ptr_view_map"].strides == ("C*OC", "OC", 1)
    assert maps["y_ptr_view_map"].shape == ("B*P*Q", "OC")


def test_without_bulk_loads_only_threads_arrive() -> None:
    made, _ = copied_kernel(strided_matmul, strided_args(140, 136, 100, (64, 64, 32)))
    assert "mbarriers of 128 arrivals" in made.module.source
    assert "mbarrier_expect_tx" not in made.module.source


def test_loads_of_indexes_are_no_loads_of_the_epilogue() -> None:
    made, _ = copied_kernel(gathered_matmul, gathered_args(4096, 4096, 4096, (128, 256, 64)))
    assert made.analysis is not None
    assert made.analysis.epilogue_loads == ()
    args, _, grid = moe_args(512, 4, 512, 512, (128, 128, 64))
    made, _ = copied_kernel(fused_moe, args, grid=(*grid, 1))
    assert made.analysis is not None
    assert made.analysis.epilogue_loads, "the rows' numbers are needed for what is stored"


@pytest.mark.parametrize("tile", [(64, 64, 64), (128, 64, 32)], ids=str)
def test_simulated_rows(tile: tuple[int, int, int]) -> None:
    args = gathered_args(130, 72, 200, tile)
    made, runtime = copied_kernel(gathered_matmul, args)
    for seed in range(3):
        args[3].fill_(float("nan"))
        simulate(made, runtime, (-(-130 // tile[0]), 2), seed=seed)
        torch.testing.assert_close(args[3].float(), gathered_want(args), rtol=2e-2, atol=2e-2)


def test_simulated_experts_and_convolution() -> None:
    args, want, grid = moe_args(70, 3, 64, 128, (64, 64, 64))
    made, runtime = copied_kernel(fused_moe, args, grid=(*grid, 1))
    simulate(made, runtime, grid)
    torch.testing.assert_close(args[2].float(), want, rtol=2e-2, atol=2e-2)
    args, want, grid = conv_args(1, 8, 8, 64, 64, (64, 64, 64))
    made, runtime = copied_kernel(conv, args, grid=(*grid, 1))
    simulate(made, runtime, grid)
    np.testing.assert_allclose(args[2].float().numpy(), want.numpy(), rtol=2e-2, atol=0.2)


@pytest.mark.parametrize(
    ("kernel", "args", "reason"),
    [
        (scaled_matmul, scaled_args(64, 64, 256, (64, 64, 128)), "what feeds no dot"),
        (strided_matmul, strided_args(64, 64, 97, (64, 64, 32)), "a copy takes 4"),
        (
            changing_rows,
            [*gathered_args(64, 64, 128, (64, 64, 64))[:7], 64, 64, 64],
            "an index in its address is loaded in the loop",
        ),
        (
            in_place,
            [*gathered_args(64, 64, 128, (64, 64, 64))[:3], 64, 64, 128, 64, 64, 64],
            "the kernel also stores through the pointer it loads from|may store to what",
        ),
        (
            gathered_matmul,
            gathered_args(64, 64, 128, (64, 64, 8)),
            "32 bytes of K at once|a multiple of",
        ),
    ],
    ids=["scales", "odd rows", "changing rows", "in place", "few columns"],
)
def test_reasons(kernel: Any, args: list[Any], reason: str) -> None:
    text = kernel.report(*meta(args), grid=(2, 1))
    assert "operands copied by threads" not in text
    assert re.search(reason, text), text
