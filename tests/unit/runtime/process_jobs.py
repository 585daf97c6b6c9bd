"""What `test_processes.py` runs in processes of their own: `python -m tests.unit.runtime.process_jobs JOB`.

One process imports torch and forks the others, which are as separate as any and start at once.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tiledsl.runtime import timing
from tiledsl.runtime.store import store

N = 256


class Patch:
    """As much of pytest's monkeypatch as the fake driver needs."""

    def setattr(self, owner: object, name: str, value: object) -> None:
        setattr(owner, name, value)


@tiledsl.jit
def axpy(x, y, o, a, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, a * tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@tiledsl.jit
def busy(x, o, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.load(x + i))


@tiledsl.op(
    "tiledsl_processes::axpy",
    out={"o": "x"},
    backward=lambda saved, grad: {"x": grad * saved.a, "y": grad},
)
def axpy_op(x: torch.Tensor, y: torch.Tensor, a: float, o: torch.Tensor) -> None:
    axpy[(tl.cdiv(x.numel(), 64),)](x, y, o, a, x.numel(), BLOCK=64)


def fake() -> fake_driver.FakeDriver:
    """From now on launches go to a driver that records them, in this process and its forks."""
    axpy.forget()
    return fake_driver.install(Patch())


def launch(block: int = 64) -> str:
    """Launches with the faked driver; where the program came from."""
    x, y, o = (torch.zeros(N) for _ in range(3))
    axpy[(tl.cdiv(N, block),)](x, y, o, 2.0, N, BLOCK=block)
    return axpy.history[-1].origin


def fork(job: Callable[[], object]) -> int:
    """A process that runs a job; its status is 0 where that raised nothing."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        job()
        status = 0
    except BaseException as fault:
        print(f"{type(fault).__name__}: {fault}", flush=True)
    finally:
        os._exit(status)


def wait(children: list[int]) -> list[int]:
    """Their statuses; minus the signal for those that were killed."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


# ---------------------------------------------------------------------- jobs
def compile_at_once() -> None:
    """16 processes compile one kernel; some are killed on the way, at times of their own."""
    fake()
    launch(block=32)  # so that the compiler is there, and each of them only compiles
    random.seed(0)
    start = time.monotonic() + 0.2

    def job() -> None:
        time.sleep(max(0.0, start - time.monotonic()))
        assert launch() in ("compiled", "disk")

    children = [fork(job) for _ in range(16)]
    for child in children[::4]:
        time.sleep(random.random() * 0.3)
        os.kill(child, signal.SIGKILL)
    statuses = wait(children)
    assert [s for at, s in enumerate(statuses) if at % 4] == [0] * 12, statuses
    assert set(statuses[::4]) <= {0, -9}, statuses
    assert store().verify() == []
    assert wait([fork(lambda: check_origin("disk"))]) == [0]
    assert not [p for p in store().folder.iterdir() if p.suffix not in (".tdsl", "")]


def check_origin(origin: str) -> None:
    """Fails where a launch has to compile."""
    axpy.forget()
    found = launch()
    assert found == origin, found


def tune_at_once() -> None:
    """Four processes tune one key: one measures, the others wait for what it found."""
    driver = fake()
    timing.device_text = lambda _: "a GPU"
    timing.is_capturing = lambda _: False
    folder = Path(tempfile.mkdtemp())

    def clock(fn: Callable[[], object], quantiles: object) -> list[float]:
        before = len(driver.launches)
        fn()
        (folder / f"{os.getpid()}-{before}-{time.monotonic_ns()}").touch()
        time.sleep(0.05)
        return [float(driver.launches[-1].grid[0])] * 3

    def job() -> None:
        configs = [tiledsl.Config({"BLOCK": b}) for b in (32, 64, 128)]
        tuned = tiledsl.autotune(configs, ["n"], do_bench=clock)(axpy)
        x, y, o = (torch.zeros(N) for _ in range(3))
        tuned[lambda meta: (tl.cdiv(N, meta["BLOCK"]),)](x, y, o, 2.0, N)
        assert tuned.best_config is configs[2]

    assert wait([fork(job) for _ in range(4)]) == [0] * 4
    measured = {path.name.partition("-")[0] for path in folder.iterdir()}
    assert len(measured) == 1, measured


def fork_under_threads() -> None:
    """Forks while a thread compiles and launches; the children launch too."""
    fake()
    launch()
    done = threading.Event()

    def work() -> None:
        x = torch.zeros(64)
        while not done.is_set():
            busy.forget()
            busy[(1,)](x, x, 64)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        statuses = wait([fork(lambda: check_origin("disk")) for _ in range(8)])
    finally:
        done.set()
        thread.join()
    assert statuses == [0] * 8, statuses


class Layer(torch.nn.Module):
    """A layer on the operator, with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(N))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return axpy_op(self.weight, x, 3.0)


def train(rank: int, meeting: str) -> None:
    """A step of DDP and of FSDP, compiled as one graph, on the interpreter."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo", meeting, rank=rank, world_size=2)
    x = torch.full((N,), float(rank))
    model = DistributedDataParallel(Layer())
    compiled = torch.compile(model.module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), 3.0 + x)
    out = model(x)
    (out * (rank + 1)).sum().backward()
    torch.testing.assert_close(model.module.weight.grad, torch.full((N,), 3.0 * 1.5))
    sharded = fully_shard(Layer(), mesh=init_device_mesh("cpu", (2,)))
    (sharded(x) * (rank + 1)).sum().backward()
    torch.testing.assert_close(sharded.weight.grad.full_tensor(), torch.full((N,), 3.0 * 1.5))
    dist.destroy_process_group()


def distributed() -> None:
    """Two ranks, joined by gloo, in the interpreter: the first job, for no driver is faked yet."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        assert wait([fork(lambda rank=rank: train(rank, meeting)) for rank in range(2)]) == [0, 0]


JOBS = {f.__name__: f for f in (distributed, compile_at_once, tune_at_once, fork_under_threads)}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        started = time.perf_counter()
        JOBS[name]()
        print(f"{name} {time.perf_counter() - started:.1f} s", flush=True)
