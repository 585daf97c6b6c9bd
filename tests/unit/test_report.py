"""What a report begins with, and what it shows of loops of either kind."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tests.unit.ws.machine_kernels import case
from tiledsl.report import render_report


def test_a_report_without_a_grid_says_so_first(tmp_path) -> None:
    args = [torch.empty(512, 512, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    first, second = matmul.report(*args).splitlines()[:2]
    assert first == "kernel matmul"
    assert second.startswith("remark: no grid was given (grid=...): a plan for 32 x 32 programs")
    assert "remark:" not in matmul.report(*args, grid=grid_of(512, 512))
    path = tmp_path / "matmul.cu"
    path.write_text(matmul.cuda(*args))
    edited = matmul.with_cuda(path)
    assert edited.report(*args).splitlines()[1] == second
    assert "remark:" not in edited.report(*args, grid=grid_of(512, 512))


@pytest.mark.parametrize("name", ["cooperative", "attention"])
def test_loops_of_both_kinds_show_channels_and_what_is_expected(name: str) -> None:
    lines = render_report(case(name).kernel).splitlines()
    at = lines.index("channels:") + 1
    channels = [line for line in lines[at:] if line.startswith("  (")]
    (expected,) = [line for line in lines if line.startswith("expected: ")]
    if name == "cooperative":
        assert len(channels) == 1
        assert "depth 3; feeds the dot(s) of the loop at matmul_kernels.py" in channels[0]
        assert " us, bound by " in expected
        return
    assert [c.partition(":")[0] for c in channels] == ["  (x 128x64)", "  (y 64x64)", "  (z 64x64)"]
    assert all("bytes a slot, depth" in c for c in channels)
    assert all("loaded at machine_kernels.py:" in c for c in channels)
    assert "clocks an iteration, with the schedule of each loop in the notes" in expected
    assert any("schedule of the loop at machine_kernels.py" in line for line in lines)


@tiledsl.jit
def computed_operands(a, b, c, stride, BM: tl.constexpr, BK: tl.constexpr):
    m, k = tl.arange(0, BM), tl.arange(0, BK)
    acc = tl.zeros((BM, BM), tl.float32)
    for start in range(0, 1024, BK):
        x = tl.load(a + m[:, None] * stride + (start + k)[None, :])
        y = tl.load(b + (start + k)[:, None] + m[None, :] * stride)
        acc = tl.dot(tl.exp(x).to(tl.bfloat16), tl.exp(y).to(tl.bfloat16), acc)
    tl.store(c + m[:, None] * BM + m[None, :], acc)


def test_roles_that_hand_nothing_over_say_so() -> None:
    """Rows of stride 0 have no tensor map, and computed operands no copy of threads."""
    a, b = (torch.empty(1024, device="meta", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty(128, 128, device="meta")
    made = computed_operands.report(a, b, c, 0, 128, 64, grid=(8,), num_consumers=2)
    lines = made.splitlines()
    assert lines[lines.index("channels:") + 1].startswith("  none: no operand of a dot")
    (producer,) = [line for line in lines if line.startswith("  producer: ")]
    assert "draws the tiles, nothing is loaded for the consumers" in producer
    with pytest.raises(tiledsl.errors.ScheduleError, match="nothing to copy for a role"):
        computed_operands.report(a, b, c, 0, 128, 64, grid=(8,), num_consumers=2, persistent=False)


@tiledsl.jit
def sums_of_exponentials(x, y, N, BLOCK: tl.constexpr):
    row, total = tl.program_id(0), 0.0
    for start in range(0, N, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.exp(tl.load(x + row * N + at, mask=at < N, other=0.0)))
    tl.store(y + row, total)


def test_rings_of_tiles_without_a_name_have_that_of_the_argument() -> None:
    x, y = torch.empty(4096, 8192, device="meta"), torch.empty(4096, device="meta")
    report = sums_of_exponentials.report(x, y, 8192, 1024, grid=(4096,))
    assert "  ring of x  " in report
    assert report.endswith("\n")
    assert not report.endswith("\n\n")
