"""Two GPUs of one host: any device from any thread, nothing on the other one.

python -m pytest -q tests/gpu/test_two_gpus.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.errors import LaunchError

ROOT = Path(__file__).parents[2]
N = 1 << 16

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


# fmt: off
@tiledsl.jit
def scaled(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, 2 * tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@tiledsl.jit
def product(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
            BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


def by_block(meta):
    return (tl.cdiv(N, meta["BLOCK"]),)


def by_tile(meta):
    return tl.cdiv(512, meta["BM"]), tl.cdiv(512, meta["BN"])


def vectors(device):
    x, y = torch.randn(N, device=device), torch.randn(N, device=device)
    return x, y, torch.zeros_like(x)


def matrices(device):
    a, b = (torch.randn(512, 512, device=device).bfloat16() for _ in range(2))
    return a, b, torch.zeros_like(a)


def launch_and_check(device):
    x, y, o = vectors(device)
    scaled[by_block](x, y, o, N, BLOCK=1024)
    torch.testing.assert_close(o, 2 * x + y)
    a, b, c = matrices(device)
    product[by_tile](a, b, c)
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=1.0)


@pytest.fixture(autouse=True)
def first_device():
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)


def test_devices_in_turn_while_the_first_one_is_current():
    for kernel in (scaled, product):
        kernel.forget()
    for device in ("cuda:1", "cuda:0", "cuda:1", "cuda:0"):
        launch_and_check(device)
        assert torch.cuda.current_device() == 0


def test_threads_on_both_devices_at_once():
    """Some with the device of their tensors current, some with the other one, some new to CUDA."""
    start = threading.Barrier(8)

    def work(at):
        start.wait(60)
        if at % 4 < 2:
            torch.cuda.set_device(at % 2)
        for _ in range(20):
            launch_and_check(f"cuda:{at % 2}")
        return at

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


@pytest.mark.parametrize("warm", [False, True])
def test_tensors_of_two_devices_are_refused(warm):
    x, y, o = vectors("cuda:1")
    a, b, c = matrices("cuda:1")
    for kernel in (scaled, product):
        kernel.forget()
    if warm:
        launch_and_check("cuda:0")
        launch_and_check("cuda:1")
    with pytest.raises(LaunchError, match="argument o is on cuda:0 but argument x is on cuda:1"):
        scaled[by_block](x, y, o.to("cuda:0"), N, BLOCK=1024)
    with pytest.raises(LaunchError, match="argument b is on cuda:0 but argument a is on cuda:1"):
        product[by_tile](a, b.to("cuda:0"), c)
    with pytest.raises(LaunchError, match="argument y is on cpu but argument x is on cuda:1"):
        scaled[by_block](x, y.cpu(), o, N, BLOCK=1024)


def test_handles_and_streams_are_those_of_the_tensors():
    x, y, o = vectors("cuda:1")
    a, b, c = matrices("cuda:1")
    add = scaled.bind(x, y, o, N, BLOCK=1024, grid=by_block)
    multiply = product.bind(a, b, c, grid=by_tile)
    for current in (0, 1):
        with torch.cuda.device(current), torch.cuda.stream(torch.cuda.Stream(device=1)):
            x.add_(1.0)
            a.mul_(0.5)
            add()
            multiply()
            torch.testing.assert_close(o, 2 * x + y)
            torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=1.0)


def test_a_graph_on_the_second_device():
    launch_and_check("cuda:1")
    x, y, o = vectors("cuda:1")
    a, b, c = matrices("cuda:1")
    with torch.cuda.device(1):
        graph = torch.cuda.CUDAGraph()
        # Without a stream torch captures on one of the device that captured first.
        with torch.cuda.graph(graph, stream=torch.cuda.Stream("cuda:1")):
            scaled[by_block](x, y, o, N, BLOCK=1024)
            product[by_tile](a, b, c)
        x.fill_(3.0)
        a.fill_(0.25)
        graph.replay()
        torch.testing.assert_close(o, 2 * x + y)
        torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=1.0)


def test_tuning_times_the_device_of_the_tensors(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    configs = [tiledsl.Config({"BLOCK": 256}), tiledsl.Config({"BLOCK": 1024})]
    tuned = tiledsl.autotune(configs, ["n"], warmup=1, rep=5)(scaled)
    x, y, o = vectors("cuda:1")
    tuned[by_block](x, y, o, N)
    torch.testing.assert_close(o, 2 * x + y)
    assert all(0.0005 < ms < 1.0 for ms in tuned.configs_timings.values()), tuned.configs_timings


CONTEXTS = """
import torch
from cuda.bindings import driver
from tests.gpu import test_two_gpus as t

def active(device):
    return int(driver.cuDevicePrimaryCtxGetState(device)[2])

torch.cuda.init()
with torch.cuda.device(1):
    torch.ones(4, device="cuda:1").sum().item()
before = active(0)
with torch.cuda.device(1):
    t.launch_and_check("cuda:1")
    torch.cuda.synchronize(1)
print("before", before, "after", active(0), "second", active(1))
"""


def run(*command):
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=90, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_launch_leaves_the_other_device_alone():
    """It makes no context there."""
    assert run("-c", CONTEXTS).strip() in (
        "before 0 after 0 second 1",
        "before 1 after 1 second 1",  # torch made one
    )


def test_a_tensor_parallel_layer():
    lines = run("examples/tensor_parallel.py").splitlines()
    shown = sorted(line for line in lines if line.startswith("rank"))
    assert [line.split(":")[0] for line in shown] == [f"rank {r} of 2 on cuda" for r in (0, 1)]
