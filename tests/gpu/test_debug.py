"""Debug builds on the GPU: broken kernels raise PipelineStall, and the process goes on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tests.gpu.stalling import CASES
from tests.gpu.stalling import problem
from tiledsl.errors import LaunchError

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("case", CASES)
def test_a_broken_kernel_says_who_waits_for_what(case: str) -> None:
    """In a process of its own, which would end here if its context did."""
    command = [sys.executable, "-m", "tests.gpu.stalling", case]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert report["edits"] > 0
    assert len(report["waits"]) == 2, f"no stall: {report}"
    role, kind, channel = CASES[case][4]
    told = [report["error"], *report["notes"]]
    what = "named barrier" if kind == "named" else f"{kind} slot of channel {channel} "
    assert any(re.search(rf"{role} \(.*\) waited for .*{what}", text) for text in told), told
    assert ".py:" in report["error"]
    assert report["debug"], "the debug build of the good kernel is wrong"
    assert report["delay"], "the build with delays is wrong"
    assert report["plain"], "the plain build is wrong"


@pytest.mark.parametrize("name", ["matmul", "attention"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_delays_change_no_result(name: str, seed: int) -> None:
    kernel, arguments, grid, options, (out, right) = problem(name)
    kernel[grid](*arguments, **options)
    want = out.clone()
    for build in ({"delay": seed}, {"delay": seed + 100, "debug": True}):
        out.fill_(float("nan"))
        kernel[grid](*arguments, **options, **build)
        torch.cuda.synchronize()
        assert torch.equal(out, want)
    assert right()


@pytest.mark.parametrize(
    "structure", [{"ping_pong": True}, {"cluster": 2}, {"split_k": 2}], ids=str
)
def test_delays_in_other_structures(structure: dict[str, object]) -> None:
    M, N, K = 512, 640, 1000
    a, b = (torch.randn(s, device="cuda").to(torch.bfloat16) for s in ((M, K), (K, N)))
    c = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    for seed in range(1, 9):
        c.fill_(float("nan"))
        matmul[grid_of(M, N)](a, b, c, BM=128, BN=128, delay=seed, **structure)
        torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=0.5)


def test_a_debug_build_is_not_captured() -> None:
    kernel, arguments, grid, options, _ = problem("matmul")
    kernel[grid](*arguments, debug=True, **options)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(LaunchError, match="cannot capture"), torch.cuda.graph(graph):
        kernel[grid](*arguments, debug=True, **options)


def test_a_handle_of_a_debug_build() -> None:
    kernel, arguments, grid, options, (out, right) = problem("matmul")
    handle = kernel.bind(*arguments, grid=grid, debug=True, **options)
    out.fill_(float("nan"))
    handle()
    assert right()
