"""Real processes: compiling at once, killed on the way; tuning at once; forks under threads; DDP, FSDP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
JOBS = ("distributed", "compile_at_once", "tune_at_once", "fork_under_threads")


def test_processes(tmp_path):
    env = {
        **os.environ,
        "TILEDSL_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "tests.unit.runtime.process_jobs", *JOBS]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(JOBS)
