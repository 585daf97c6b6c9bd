"""What a report begins with, and what it shows of loops of either kind."""

from __future__ import annotations

import pytest
import torch

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
