"""Runs one broken kernel in a debug build, then the good one; a process of its own, for test_debug.

    python -m tests.gpu.stalling CASE

Prints one line of JSON: what PipelineStall said, whether the launches after it were right, and how
long the broken one took.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tests.unit.ws.machine_kernels import attention
from tiledsl.errors import PipelineStall

SECONDS = "0.25"
END_SECONDS = 50
"""The process ends by then, whatever its kernels do and whoever waits for it."""
LINE = r"(?m)^ *"
PING_PONG = {"BM": 128, "BN": 128, "ping_pong": True, "cluster": 1, "num_stages": 3}
RELEASE = LINE + r"if \(lane .*mbarrier_arrive.*_empty_1.*\n"

# name: kernel, options, pattern, replacement (everywhere), who then waits for what
CASES: dict[str, tuple[str, dict[str, Any], str, str, tuple[str, str, str]]] = {
    "ping-pong, no release": (
        "matmul", PING_PONG, RELEASE, "", ("producer", "empty", "a_b")),
    "ping-pong, no turn is passed on": (
        "matmul", PING_PONG, LINE + r"named_barriers\.arrive\(.*\n", "", ("consumer", "named", "")),
    "cluster, no release": (
        "matmul", {**PING_PONG, "cluster": 2}, RELEASE, "", ("producer", "empty", "a_b")),
    "cooperative, flipped parity": (
        "matmul", {"BM": 128, "BN": 128, "num_consumers": 2, "ping_pong": False, "cluster": 1,
                   "num_stages": 3},
        r"a_b_at_1\.parity \^ 1,", "a_b_at_1.parity,", ("producer", "empty", "a_b")),
    "split-K, too many bytes": (
        "matmul", {"BM": 128, "BN": 128, "split_k": 2, "num_stages": 3},
        r"mbarrier_expect_tx\((a_b.*), (\d+)\);", r"mbarrier_expect_tx(\1, \2 + 16);",
        ("consumer", "full", "a_b")),
    "attention, no release of K": (
        "attention", {}, LINE + r"if \(lane .*mbarrier_arrive.*y_empty_1.*\n", "",
        ("producer", "empty", "y")),
    "attention, no tile is told": (
        "attention", {}, LINE + r"mbarrier_arrive\(tiles_full_1.*\n", "",
        ("consumer", "full", "tiles")),
}  # fmt: skip


def problem(name: str) -> tuple[Any, tuple[Any, ...], Any, dict[str, Any], Any]:
    """Kernel, arguments, grid, options, and a function that tells whether the result is right."""
    torch.manual_seed(3)
    new = lambda *s: torch.randn(*s, device="cuda").to(torch.bfloat16)  # noqa: E731
    if name == "matmul":
        M, N, K = 1024, 1024, 1024
        a, b, c = new(M, K), new(K, N), new(M, N)
        want = a.float() @ b.float()
        right = lambda: bool(((c.float() - want).abs() <= 0.5).all())  # noqa: E731
        return matmul, (a, b, c), grid_of(M, N), {}, (c, right)
    B, H, L, D = 2, 8, 1000, 64
    q, k, v, o = (new(B, H, L, D) for _ in range(4))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v).float()
    right = lambda: bool(((o.float() - want).abs() <= 0.03).all())  # noqa: E731
    arguments = (q, k, v, o, D**-0.5, False, D)
    return attention, arguments, (-(-L // 128), H, B), {"fast_math": True}, (o, right)


def main(case: str) -> dict[str, Any]:
    """What came of a case."""
    name, options, old, new, _ = CASES[case]
    kernel, arguments, grid, more, (out, right) = problem(name)
    options = {**options, **more}
    text = kernel.cuda(*arguments, grid=grid, debug=True, **options)
    broken, count = re.subn(old, new, text)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken.cu"
        path.write_text(broken)
        edited = kernel.with_cuda(path)[grid]
        report: dict[str, Any] = {"edits": count, "waits": []}
        for _ in range(2):  # a second stall starts with a clean slate
            start = time.perf_counter()
            try:
                edited(*arguments, debug=True, **options)
            except PipelineStall as stall:
                notes = [n.message for n in stall.notes]
                report["error"], report["notes"] = str(stall), notes
                report["waits"].append([stall.role, stall.kind, stall.channel])
                report["slot"], report["count"] = stall.slot, stall.count
            report["seconds"] = time.perf_counter() - start
    for key, build in (("debug", {"debug": True}), ("delay", {"delay": 5}), ("plain", {})):
        out.fill_(float("nan"))
        kernel[grid](*arguments, **options, **build)
        torch.cuda.synchronize()
        report[key] = right()
    return report


if __name__ == "__main__":
    faulthandler.dump_traceback_later(END_SECONDS, exit=True)
    os.environ["TILEDSL_DEBUG_SECONDS"] = SECONDS
    print(json.dumps(main(sys.argv[1])))
