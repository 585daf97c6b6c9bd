"""The same request gives the same bytes in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = """
import hashlib
from tests.unit.codegen import machine_graphs as mg
from tests.unit.ws.kernels import *
from tiledsl.codegen.kernel import emit_kernel

for graph in (mg.vector_add, mg.ping_pong_gemm, mg.cooperative_gemm):
    print(hashlib.sha256(emit_kernel(graph()).source.encode()).hexdigest())
for request in (
    matmul_request(8192, 8192, 512), matmul_request(128, 4096, 4096),
    epilogue_request(512, 512, 512), attention_request(),
):
    kernel = first(request)
    text = kernel.module.source + kernel.plan.describe() + kernel.smem.table() + str(kernel.notes)
    print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_hash_seeds_do_not_reach_the_output() -> None:
    seen = set()
    for seed in ("0", "1"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        run = [sys.executable, "-c", PROGRAM]
        seen.add(subprocess.run(run, env=env, cwd=ROOT, check=True, capture_output=True).stdout)
    assert len(seen) == 1
    assert len(seen.pop().split()) == 7
