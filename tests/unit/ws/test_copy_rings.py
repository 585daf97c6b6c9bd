"""What the report says of loads through rings: which, how wide, how deep, and why others stay."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.copy_kernels import changing_rows
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import narrow_args
from tests.ring_kernels import narrow_matmul
from tests.ring_kernels import paged_args
from tests.ring_kernels import paged_decode
from tests.ring_kernels import ring_kernel
from tests.ring_kernels import strided_args
from tests.ring_kernels import strided_matmul
from tests.triton_style import matmuls
from tiledsl.compiled import Kernel
from tiledsl.errors import ScheduleError


def lines(made: Kernel) -> list[str]:
    """Notes on copies, without the names of files and lines."""
    notes = [re.sub(r"^\S+: ", "", n) for n in made.notes]
    return [n for n in notes if "cop" in n or "cp.async" in n]


def meta(args: list[Any]) -> list[Any]:
    return [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]


def test_gathered_rows() -> None:
    made, _ = ring_kernel(gathered_matmul, gathered_args(256, 256, 256, (128, 128, 64)))
    assert lines(made) == [
        "a through cp.async, 16 bytes at once, 3 slots of 16384 bytes, read by the tensor core",
        "b through cp.async, 16 bytes at once, 3 slots of 16384 bytes, read by the tensor core",
        "copies 2 iterations ahead",
    ]
    assert made.plan.describe() == "single role, 8 warps, stages 3"
    assert "__launch_bounds__(256, 2)" in made.module.source


def test_pages() -> None:
    made, _ = ring_kernel(paged_decode, paged_args(1, 16, 128, 64, 100), grid=(1, 1, 1))
    assert lines(made) == [
        "k through cp.async, 16 bytes at once, 6 slots of 16384 bytes, read by the tensor core",
        "v through cp.async, 16 bytes at once, 6 slots of 16384 bytes, read by the tensor core",
        "copies 5 iterations ahead, the indexes in their addresses one more",
    ]


def test_odd_strides_stay() -> None:
    made, _ = ring_kernel(strided_matmul, strided_args(64, 64, 97, (64, 64, 32)))
    reason = (
        "is not copied ahead of its iteration: 2 bytes side by side are aligned, a copy takes 4"
    )
    assert lines(made) == [f"a {reason}", f"b {reason}"]


def test_as_deep_as_shared_memory_is() -> None:
    args = gathered_args(256, 256, 512, (128, 256, 64))
    made, _ = ring_kernel(gathered_matmul, args, num_stages=8)
    assert "rings of 8 slots: 4 fit, 49152 bytes each" in made.notes
    assert made.smem.end_bytes == 4 * 49152  # warps exchange rows where the rings were


def test_two_ctas_of_an_sm() -> None:
    """Fewer slots, where two CTAs then share an SM; not where each has its own anyway."""
    args = gathered_args(256, 256, 512, (64, 128, 64))
    for grid, slots in (((32, 32, 1), 4), ((11, 12, 1), 6)):
        made, _ = ring_kernel(gathered_matmul, args, grid=grid)
        assert made.plan.describe() == f"single role, 4 warps, stages {slots}"
        assert made.smem.end_bytes == slots * 24576


@pytest.mark.parametrize(
    ("block", "grid", "is_late"),
    [
        ((32, 16, 32), (2048, 1, 1), True),
        ((32, 16, 32), (500, 1, 1), False),
        ((64, 64, 64), (4096, 1, 1), False),
    ],
    ids=["small tiles", "few programs", "enough bytes"],
)
def test_small_tiles_take_one_slot_less(
    block: tuple[int, int, int], grid: tuple[int, int, int], *, is_late: bool
) -> None:
    """Where more CTAs then share an SM, the launch has as many, and few bytes are on their way."""
    args = narrow_args(256, 4096, block)
    made, _ = ring_kernel(narrow_matmul, args, grid=grid, num_warps=4, num_stages=3)
    assert any("slot that was just read" in line for line in made.notes) == is_late
    assert made.plan.describe() == f"single role, 4 warps, stages {3 - is_late}"


def test_rings_are_preferred_to_roles() -> None:
    """Where threads copy all that the loop loads, and a load role would wait for indexes."""
    args = meta([*gathered_args(256, 256, 256, (128, 128, 64))[:7], 128, 128, 64])
    report = changing_rows.report(*args, grid=(2, 2))
    assert "warp_specialize: threads copy what the loop loads" in report
    assert "has no ring" not in changing_rows.report(*args, grid=(2, 2), num_stages=3)
    report = strided_matmul.report(*meta(strided_args(256, 256, 97, (128, 128, 64))), grid=(2, 2))
    assert "consumers" in report
    assert "a is not copied ahead of its iteration: 2 bytes side by side are aligned" in report


def test_roles_that_are_asked_for() -> None:
    args = meta([*gathered_args(256, 256, 256, (128, 128, 64))[:7], 128, 128, 64])
    assert "2 consumers" in changing_rows.report(*args, grid=(2, 2), num_consumers=2)
    with pytest.raises(ScheduleError):
        changing_rows.report(*args, grid=(2, 2), swap_operands=True)


def test_indexes_that_outputs_need_too() -> None:
    """Rows that are gathered and scattered by one index: the copies lie as memory does all the same."""
    (case,) = [c for c in matmuls.CASES if c.name == "fused_moe"]
    given = dict(zip(case.kernel.description.names, case.make(), strict=False)) | case.keywords
    args = [given[name] for name in case.kernel.description.names]
    made, _ = ring_kernel(case.kernel, args)
    assert sum("16 bytes at once" in n for n in made.notes) == 2


def test_what_a_loop_does_not_change_is_staged_once() -> None:
    """The queries; weights are staged in each iteration."""
    made, _ = ring_kernel(paged_decode, paged_args(1, 16, 64, 16, 100))
    names = [b.name for b in made.smem.blocks]
    assert names.count("dot operand kept") == 1
    before, loop = made.module.source.split("for (int page_1 = 0")
    assert "q_1" in before
    assert "q_1" not in loop


@tiledsl.jit
def short(a, rows, b, c, K: tl.constexpr, BK: tl.constexpr):
    at, k = tl.arange(0, 64), tl.arange(0, BK)
    row = tl.load(rows + at)
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(0, K, BK):
        x = tl.load(a + row[:, None] * K + i + k[None, :])
        acc = tl.dot(x, tl.load(b + (i + k[:, None]) * 64 + at[None, :]), acc)
    tl.store(c + at[:, None] * 64 + at[None, :], acc)


def test_slots_that_are_not_what_was_asked_for() -> None:
    """The plan says how many the rings have, and a note why."""
    args = gathered_args(256, 256, 256, (128, 128, 64))
    made, _ = ring_kernel(gathered_matmul, args, num_stages=1)
    assert made.plan.describe() == "single role, 8 warps, stages 3"
    why = "copies ahead of a dot take two slots and more"
    assert f"num_stages=1 leaves the depth to the compiler: {why}" in made.notes
    floats = [torch.empty(n, device="meta", dtype=torch.bfloat16) for n in (1 << 16, 1 << 14)]
    rows = torch.empty(64, device="meta", dtype=torch.int32)
    given = (floats[0], rows, floats[1], torch.empty(4096, device="meta"))
    text = short.report(*given, 192, 64, grid=(1,), num_stages=5, warp_specialize=False)
    assert re.search(r"plan: single role, \d warps, stages 3\n", text)
    assert re.search(r"test_copy_rings.py:\d+: 3 slots instead of 5: one for each iteration", text)
    assert "3 slots of 8192 bytes" in text
