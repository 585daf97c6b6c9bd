"""Costs around a kernel: launches, the start of a process, a cold compile, tuning.

    python3 tests/bench/bench_launch.py [--only launch start tune sweep] [--rounds 200] [--seconds 900]

Launches: all contenders in one process, in turn, tiny tensors; the host's time for a block of 100 calls,
without the wait for the GPU after it; medians over rounds. Starts: fresh processes with an empty and with
a filled cache folder; the CUDA context is torch's and is made first. Tuning: fresh processes as well. The
sweep tunes the matmul for the shapes of bench_matmul.py, as many as fit its seconds, and compares the
default choice with the best.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

MARK = "@launch "
BLOCK_CALLS = 100
N = 1024
SHAPES = [
    (4096, 4096, 4096),
    (2048, 2048, 2048),
    (8192, 8192, 2048),
    (128, 4096, 4096),
    (16, 8192, 8192),
    (4104, 4104, 4104),
    (4096, 14336, 4096),
    *((8192, 8192, k) for k in (512, 1024, 4096, 8192, 16384)),
]
RUNS = 5
SECONDS = "TILEDSL_BENCH_SECONDS"


def define() -> dict:
    """The kernels; only this imports tiledsl, whose import is timed."""
    import tiledsl
    import tiledsl.language as tl

    # fmt: off
    @tiledsl.jit
    def add(x, y, o, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(o + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

    @tiledsl.jit
    def many(x0, x1, x2, x3, x4, x5, x6, x7, x8, o, n0, n1, n2, n3, n4, n5, n6, a, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        s = tl.load(x0 + i, mask=i < n0) + tl.load(x1 + i, mask=i < n1) + tl.load(x2 + i, mask=i < n2)
        s += tl.load(x3 + i, mask=i < n3) + tl.load(x4 + i, mask=i < n4) + tl.load(x5 + i, mask=i < n5)
        s += tl.load(x6 + i, mask=i < n6) + tl.load(x7 + i, mask=i < n0) + tl.load(x8 + i, mask=i < n0)
        tl.store(o + i, s * a, mask=i < n0)

    @tiledsl.jit
    def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
               BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
        m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
        c.store((m, n), acc)

    @tiledsl.jit
    def two_maps(a: tl.Tensor, b: tl.Tensor, o, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
        m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
        at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
        tl.store(o + at, acc)
    # fmt: on
    return {"add": add, "many": many, "matmul": matmul, "two_maps": two_maps}


def tiles(m: int, n: int) -> Callable:
    """The grid of a matmul."""
    return lambda meta: (-(-m // meta["BM"]), -(-n // meta["BN"]))


def matrices(m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """Operands and an output."""
    a, b = (torch.randn(*s, device="cuda").bfloat16() for s in ((m, k), (k, n)))
    return a, b, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


# ---------------------------------------------------------------------- launches
def contenders() -> dict[str, Callable[[], object]]:
    """What is launched, by name; each once, and checked."""
    from tiledsl.codegen.module import TensorMapParam

    kernels = define()
    add, many, two = kernels["add"], kernels["many"], kernels["two_maps"]
    x, y, o, total = (torch.randn(N, device="cuda") for _ in range(4))
    xs = [torch.randn(N, device="cuda") for _ in range(9)]
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = xs
    a, b, c = matrices(128, 128, 128)
    flat = torch.empty(128 * 128, device="cuda")
    grid, one = (1,), (1, 1)
    found = {
        "torch.add(out=)": lambda: torch.add(x, y, out=o),
        "add, 3 tensors": lambda: add[grid](x, y, o, N, 1024),
        "add, keywords": lambda: add[grid](x, y, o, N, BLOCK=1024, num_warps=4),
        "19 arguments": lambda: many[grid](
            x0, x1, x2, x3, x4, x5, x6, x7, x8, total, N, N, N, N, N, N, N, 0.5, 1024
        ),
        "19, from a list": lambda: many[grid](*xs, total, N, N, N, N, N, N, N, 0.5, 1024),
        "2 tensor maps": lambda: two[one](a, b, flat, 128, 128, 64),
        "3 tensor maps": lambda: kernels["matmul"][tiles(128, 128)](a, b, c),
    }
    for launch in found.values():
        launch()
    torch.testing.assert_close(o, x + y)
    torch.testing.assert_close(flat.view(128, 128), a.float() @ b.float(), rtol=2e-2, atol=1e-1)
    program = next(iter(two._programs.values()))
    maps = sum(isinstance(p, TensorMapParam) for p in program.module.params)
    assert maps == 2, f"{maps} tensor maps"
    handle = add.bind(x, y, o, N, 1024, grid=grid)
    found["bind handle"] = handle
    found["raw cuda.bindings"] = raw_launch(next(iter(add._programs.values())), x, y, o)
    found.update(triton_add(x, y, o))
    return found


def raw_launch(program, x, y, o) -> Callable[[], object]:
    """The same kernel through cuda.bindings, everything prepared."""
    from cuda.bindings import driver as cuda

    launcher = program.launcher
    frame = launcher.packer.frame()
    launcher.packer.pack(frame, {"x": x, "y": y, "o": o, "n": N}, (1, 1, 1))
    function, module = launcher.load(0).kernel.function, launcher.module
    stream, address = torch.cuda.current_stream().cuda_stream, frame.address
    threads, smem, launch = module.num_threads, module.smem_bytes, cuda.cuLaunchKernel
    keep = (frame, x, y, o)
    return lambda _keep=keep: launch(function, 1, 1, 1, threads, 1, 1, smem, stream, address, 0)


def triton_add(x, y, o) -> dict[str, Callable[[], object]]:
    """Triton's launch of the same add, where it can be imported."""
    try:
        from tests.bench.triton_add import add
    except ImportError:
        return {}
    grid = (1,)
    add[grid](x, y, o, N, BLOCK=1024)
    return {"Triton, 3 tensors": lambda: add[grid](x, y, o, N, BLOCK=1024)}


def time_launches(rounds: int) -> dict[str, float]:
    """Median microseconds of a call, the GPU's time not counted."""
    found = contenders()
    times: dict[str, list[float]] = {name: [] for name in found}
    for r in range(rounds + 5):
        order = list(found) if r % 2 else list(found)[::-1]
        for name in order:
            launch = found[name]
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(BLOCK_CALLS):
                launch()
            seconds = time.perf_counter() - start
            if r >= 5:
                times[name].append(seconds / BLOCK_CALLS * 1e6)
    return {name: statistics.median(t) for name, t in times.items()}


def report_launches(rounds: int) -> None:
    """Prints the table of launches with the bars."""
    t = time_launches(rounds)
    base, triton = t["torch.add(out=)"], t.get("Triton, 3 tensors")
    bars = {
        "add, 3 tensors": base,
        "19 arguments": 1.3 * base,
        "2 tensor maps": 1.5 * base,
        "bind handle": t["raw cuda.bindings"] + 1.0,
    }
    print("launch, host time           us    bar")
    for name, value in t.items():
        bar = bars.get(name)
        verdict = "" if bar is None else f"{bar:7.2f}  {'ok' if value <= bar else 'MISSED'}"
        print(f"  {name:22} {value:7.2f} {verdict}")
    print(f"  19 arguments / 3 tensors {t['19 arguments'] / t['add, 3 tensors']:.2f}")
    if triton:
        print(f"  Triton / ours {triton / t['add, 3 tensors']:.2f} (bar 2.0)")


# ---------------------------------------------------------------------- processes
def child(task: str, folder: str, *, cpus: int | None = None) -> dict:
    """Runs a task of this file in a fresh process."""
    env = {**os.environ, "TILEDSL_CACHE_DIR": folder}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # modules and templates are compiled once
    prefix = [] if cpus is None else ["taskset", "-c", f"0-{cpus - 1}"]
    command = [*prefix, sys.executable, str(Path(__file__)), "--child", task]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=1000
    )
    lines = [n for n in done.stdout.splitlines() if n.startswith(MARK)]
    if not lines:
        raise SystemExit(f"{task} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return json.loads(lines[-1][len(MARK) :])


def start_task() -> dict:
    """From `import tiledsl` to the end of the first matmul."""
    a, b, c = matrices(512, 512, 512)
    torch.cuda.synchronize()
    start = time.perf_counter()
    matmul = define()["matmul"]
    imported = time.perf_counter()
    matmul[tiles(512, 512)](a, b, c)
    torch.cuda.synchronize()
    end = time.perf_counter()
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=1.0)
    program = next(iter(matmul._programs.values()))
    nvrtc = program.compiled.seconds if program.origin == "compiled" else 0.0
    found = {"import": imported - start, "first": end - imported, "total": end - start}
    return {**found, "nvrtc": nvrtc, "origin": program.origin}


def compile_task() -> dict:
    """A cold compile of the matmul with everything imported: another kernel was compiled before."""
    kernels = define()
    x = torch.empty(N, device="meta")
    kernels["add"].compile(x, x, x, N, 1024, grid=(1,))
    a = torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16)
    start = time.perf_counter()
    made = kernels["matmul"].compile(a, a, a, grid=tiles(4096, 4096))
    total = time.perf_counter() - start
    return {"total": total, "nvrtc": made.compiled.seconds}


def tune_task() -> dict:
    """Tuning of one matmul from nothing, or from the timings on disk."""
    import tiledsl

    tuned = tiledsl.autotune()(define()["matmul"])
    a, b, c = matrices(4096, 4096, 4096)
    torch.cuda.synchronize()
    start = time.perf_counter()
    tuned[tiles(4096, 4096)](a, b, c)
    torch.cuda.synchronize()
    return {
        "total": time.perf_counter() - start,
        "tuning": tuned.bench_time,
        "candidates": len(tuned.configs_timings),
        "best": str(tuned.best_config),
    }


def sweep_task() -> dict:
    """Default against best, shape by shape until the time is over."""
    import tiledsl

    kernel = define()["matmul"]
    rows: list = []
    end = time.perf_counter() + float(os.environ[SECONDS])
    for m, n, k in SHAPES:
        if time.perf_counter() > end:
            break
        tuned = tiledsl.autotune()(kernel)
        tuned[tiles(m, n)](*matrices(m, n, k))
        times = {repr(c): t for c, t in tuned.configs_timings.items()}
        default = times[repr(tiledsl.Config({}))]
        rows.append([(m, n, k), default, min(times.values()), repr(tuned.best_config)])
    return {"rows": rows}


def report_start(folder: str) -> None:
    """Prints cold and warm starts.

    The first process of a fresh checkout also compiles Python files, as an installer does.
    """
    fresh = child("start", str(Path(folder) / "fresh"))
    cold = child("start", folder)
    warm = [child("start", folder) for _ in range(RUNS)]
    assert all(run["origin"] == "disk" for run in warm), warm
    middle = {k: statistics.median(r[k] for r in warm) for k in ("import", "first", "total")}
    print(
        f"warm start {middle['total']:.3f} s (import {middle['import']:.3f}, first launch "
        f"{middle['first']:.3f}); bar 0.35; cold {cold['total']:.2f} s, NVRTC {cold['nvrtc']:.2f}; "
        f"the process before {fresh['total']:.2f} s"
    )
    folders = [str(Path(folder) / f"cold{at}") for at in range(3)]
    runs = sorted((child("compile", f) for f in folders), key=lambda r: r["total"])
    print(
        f"cold compile of the matmul {runs[1]['total']:.3f} s, NVRTC {runs[1]['nvrtc']:.3f}; bar 0.7"
    )


def report_tuning(folder: str) -> None:
    """Prints the first and the second process that tunes."""
    first = child("tune", folder, cpus=min(16, os.cpu_count() or 1))
    second = child("tune", folder)
    print(
        f"tuning a matmul {first['total']:.1f} s, {first['candidates']} candidates (bar 30), best "
        f"{first['best'] or 'the default'}; second process {second['tuning']:.3f} s in the tuner, "
        f"{second['total']:.3f} s to the end of the launch"
    )


def report_sweep(folder: str) -> None:
    """Prints what the default choice loses against tuning."""
    print("default against tuned (bar 1.05)")
    for shape, default, best, config in child("sweep", folder)["rows"]:
        ratio = default / best
        verdict = "ok" if ratio <= 1.05 else "MISSED"
        print(
            f"  {'x'.join(map(str, shape)):18} {default:8.4f} ms {ratio:6.3f} {verdict:6} {config}"
        )


TASKS = {"start": start_task, "compile": compile_task, "tune": tune_task, "sweep": sweep_task}
PARTS = ("launch", "start", "tune", "sweep")


def main() -> None:
    """Runs the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--child", choices=TASKS)
    parser.add_argument("--seconds", type=float, default=900, help="of the sweep")
    options = parser.parse_args()
    os.environ.setdefault(SECONDS, str(options.seconds))
    if options.child:
        print(MARK + json.dumps(TASKS[options.child]()), flush=True)
        return
    if not torch.cuda.is_available():
        raise SystemExit("needs a GPU; tests/unit/runtime/bench_launch.py times the Python part")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {os.cpu_count()} CPUs")
    if "launch" in options.only:
        report_launches(options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        parts = {"start": report_start, "tune": report_tuning, "sweep": report_sweep}
        for name, report in parts.items():
            if name in options.only:
                report(str(Path(folder) / name))


if __name__ == "__main__":
    main()
