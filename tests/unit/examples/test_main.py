"""Every example runs as a program and ends without an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(p.name for p in (ROOT / "examples").glob("*.py"))
# These share a process: most of their time would be imports.
SMALL = {
    "cross_entropy.py", "dropout.py", "histogram.py", "norms.py", "reductions.py", "rope.py",
    "softmax.py", "swiglu.py", "top_k.py", "transpose.py",
}  # fmt: skip
FAMILY = {
    "batched_matmul.py", "block_scaled_matmul.py", "fp8_attention.py", "fp8_matmul.py", "fused_epilogues.py",
    "grouped_list.py", "grouped_matmul.py", "norm_matmul.py", "weight_only.py",
}  # fmt: skip
RUN = "import runpy, sys\nfor path in sys.argv[1:]: runpy.run_path(path, run_name='__main__')"


def output(*command: str | Path) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *command],
        check=False,
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", [n for n in EXAMPLES if n not in SMALL | FAMILY])
def test_runs(name):
    assert "relative error" in output(ROOT / "examples" / name)


@pytest.mark.nvrtc
def test_matmul_family_runs():
    paths = [ROOT / "examples" / name for name in EXAMPLES if name in FAMILY]
    assert len(paths) == len(FAMILY)
    assert output("-c", RUN, *paths).count("relative error") >= len(paths)


def test_small_ones_run():
    paths = [ROOT / "examples" / name for name in EXAMPLES if name in SMALL]
    assert len(paths) == len(SMALL)
    assert output("-c", RUN, *paths).count("relative error") >= len(paths)
