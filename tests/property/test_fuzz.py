"""The fuzzer: a slice of its kernels with a fixed seed, kernels that once failed, and its own parts."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.compiler import modules
from tiledsl.fuzz import device
from tiledsl.fuzz import levels
from tiledsl.fuzz.case import Argument
from tiledsl.fuzz.case import Case
from tiledsl.fuzz.case import allocate
from tiledsl.fuzz.case import differences
from tiledsl.fuzz.case import expected
from tiledsl.fuzz.command import Tally
from tiledsl.fuzz.generate import FAMILIES
from tiledsl.fuzz.generate import generate
from tiledsl.fuzz.levels import run_case
from tiledsl.fuzz.outcome import Finding
from tiledsl.fuzz.outcome import Levels
from tiledsl.fuzz.outcome import TooLong
from tiledsl.fuzz.outcome import limited
from tiledsl.fuzz.pool import Config
from tiledsl.fuzz.pool import Worker
from tiledsl.fuzz.replay import save
from tiledsl.fuzz.shrink import shrink
from tiledsl.fuzz.worker import LAUNCHING
from tiledsl.jit import JitFunction
from tiledsl.runtime.interop import from_numpy
from tiledsl.ws.check import Obligation

SLICE = range(40)
EMULATED = (0, 11)
"""Kernels of the slice that are specialised, and small."""
LEVELS = Levels(plans=2)

MATMUL = """\
def kernel(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), tl.exp(-tl.abs(acc)))
"""


def matmul(**changes) -> Case:
    made = Case(
        "matmul", "products", MATMUL,
        (Argument("a", ("M", "K"), "bfloat16"), Argument("b", ("K", "N"), "bfloat16", "col"),
         Argument("c", ("M", "N"), "bfloat16", "pitch", "out")),
        {}, {"BM": 64, "BN": 32, "BK": 32}, {"M": 72, "N": 40, "K": 96},
        ("cdiv(M, BM)", "cdiv(N, BN)"),
    )  # fmt: skip
    return replace(made, **changes)


@pytest.mark.parametrize("number", SLICE)
def test_slice(number: int) -> None:
    out = run_case(generate(0, number), LEVELS)
    assert out.findings == []


@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler"
)
@pytest.mark.parametrize("number", EMULATED)
def test_emitted_text_of_the_slice(number: int) -> None:
    out = run_case(generate(0, number), replace(LEVELS, plans=1, emulation=1.0))
    assert out.findings == []
    assert out.specialised == 1
    assert out.compared["emulation"] == 2


# ---------------------------------------------------------------------- kernels that once failed
POINTED = """\
def kernel(s: tl.Tensor, a, b, c, M, N, K, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    rows, cols, ks = m + tl.arange(0, BM), n + tl.arange(0, BN), tl.arange(0, BK)
    acc = s.load((m, n), (BM, BN))
    for k in range(0, tl.minimum(K, n + BN), BK):
        x = tl.load(a + rows[:, None] * K + (k + ks)[None, :], mask=(rows[:, None] < M) & ((k + ks)[None, :] < K))
        y = tl.load(b + (k + ks)[:, None] * N + cols[None, :], mask=((k + ks)[:, None] < K) & (cols[None, :] < N))
        acc = tl.dot(x, y, acc)
    tl.store(c + rows[:, None] * sc + cols[None, :], acc, mask=(rows[:, None] < M) & (cols[None, :] < N))
"""


def test_pointers_that_stay_pointers_are_simulated() -> None:
    made = Case(
        "pointed", "pointers", POINTED,
        (Argument("s", ("M", "N"), "float32", "odd"), Argument("a", ("M", "K"), "float16", pointer=True),
         Argument("b", ("K", "N"), "float16", pointer=True),
         Argument("c", ("M", "N"), "float32", "odd", "out", pointer=True)),
        {"M": "M", "N": "N", "K": "K", "sc": "c.stride(0)"}, {"BM": 64, "BN": 64, "BK": 32},
        {"M": 100, "N": 72, "K": 64}, ("cdiv(M, BM)", "cdiv(N, BN)"),
    )  # fmt: skip
    out = run_case(made, LEVELS)
    assert out.findings == []
    assert out.compared["simulation"] >= 1


CAUSAL = """\
def kernel(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    m = tl.program_id(0) * BM
    rows, lanes = m + tl.arange(0, BM), tl.arange(0, BN)
    x = q.load((m, 0), (BM, D))
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, tl.minimum(k.shape[0], m + BM), BN):
        s = tl.dot(x, tl.trans(k.load((n, 0), (BN, D))))
        seen = (n + lanes < k.shape[0])[None, :] & (rows[:, None] >= (n + lanes)[None, :])
        s = tl.where(seen, s, 0.0)
        acc = tl.dot(s.to(v.dtype), v.load((n, 0), (BN, D)), acc)
    o.store((m, 0), acc)
"""


def test_warpgroups_store_their_own_rows_in_simulations() -> None:
    """Each computes what its rows need, and writes from registers."""
    tensors = [Argument(n, ("M", "D"), "bfloat16", scale=0.5) for n in "qkv"]
    made = Case(
        "causal", "flow", CAUSAL, (*tensors, Argument("o", ("M", "D"), "float32", "shifted", "out")),
        {}, {"BM": 192, "BN": 16, "D": 32}, {"M": 192}, ("cdiv(M, BM)",), {"num_consumers": 3},
    )  # fmt: skip
    out = run_case(made, LEVELS)
    assert out.findings == []
    assert out.compared["simulation"] >= 1


# ---------------------------------------------------------------------- its own parts
def test_kernels_are_those_of_their_seed_in_every_process() -> None:
    text = "from tiledsl.fuzz.generate import generate; print(repr(generate(5, 7)))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == repr(generate(5, 7))
    assert generate(5, 7) != generate(5, 8)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_can_be_asked_for(family: str) -> None:
    assert generate(1, 0, family).family == family


def test_options_and_texts_can_be_asked_for() -> None:
    assert "split_k" in generate(1, 0, "split_k").options
    assert "cumsum" in generate(1, 0, "cumsum").source


def interpreted(case: Case) -> dict[str, np.ndarray]:
    runner = levels.Runner(case, LEVELS)
    runner.reference()
    runner.interpreter()
    return runner.interpreted


def test_wrong_results_and_stray_writes_are_found() -> None:
    case = matmul()
    want, got = expected(case), interpreted(case)
    assert differences(case, got, want) == []
    at = allocate(case)["c"].offset
    for place, text in ((at + 3, "[0, 3]"), (at - 1, "guard")):
        wrong = {**got, "c": got["c"].copy()}
        wrong["c"][place] *= 1.03
        (found,) = differences(case, wrong, want)
        assert found.count == 1
        assert text in found.text


def test_an_iteration_left_out_is_found() -> None:
    case = matmul()
    other = replace(case, source=MATMUL.replace("range(0, ", "range(BK, "))
    assert differences(case, interpreted(other), expected(case))


def test_refusals_are_no_findings_and_other_exceptions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = run_case(matmul(options={"cluster": 3}), LEVELS)
    assert "cluster" in refused.refused
    assert refused.findings == []
    wrong = run_case(matmul(source=MATMUL.replace("tl.exp(", "tl.cumprod(")), LEVELS)
    assert "cumprod" in wrong.findings[0].text

    def broken(*_: object, **__: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr(levels, "simulate", broken)
    assert run_case(matmul(), LEVELS).findings[0].kind == "crash: simulation"


def test_shrinking_keeps_what_fails() -> None:
    case = generate(1, 0, "cumsum")
    small = shrink(case, lambda c: "cumsum" in c.source, 20.0)
    assert "cumsum" in small.source
    assert small.options == {}
    assert len(small.source.splitlines()) <= 6


def test_reproducers_hold_the_case(tmp_path: Path) -> None:
    case = generate(1, 3)
    path = save(case, Finding("differs: device", "two\nlines"), tmp_path, gpu=True)
    names: dict[str, object] = {"__name__": "reproducer"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    assert names["CASE"] == case


def test_a_worker_answers_and_one_that_is_late_is_ended() -> None:
    worker = Worker(Config(0, "", LEVELS, 60.0))
    try:
        made = worker.ask(repr(matmul()))
        assert made is not None
        assert made.findings == []
        assert made.compared["interpreter"] == 1
        worker.config = Config(0, "", LEVELS, 0.01)
        late = worker.ask(repr(matmul(sizes={"M": 640, "N": 640, "K": 960})))
        assert late is not None
        assert late.findings[0].kind == "hang: process"
        assert worker.process is None
    finally:
        worker.stop()


def test_devices_launch_twice_and_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """With tensors of the CPU in the device's place."""
    flats = []

    def copied(flat: np.ndarray):
        flats.append(from_numpy(flat.copy()))
        return flats[-1]

    monkeypatch.setattr(device, "to_device", copied)
    out = run_case(matmul(), Levels(simulation=False, device=True))
    assert out.findings == []
    assert out.compared == {"interpreter": 1, "device": 1}
    assert len(flats) == 6


class StandIn:
    """A compiled program of CTAs that walk over tiles, whose launches the interpreter runs."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.certificate = ""
        self.module = SimpleNamespace(grid=SimpleNamespace(mode="persistent"))
        self.launcher = self
        self.loaded = SimpleNamespace(resident_clusters=132)
        self.residents: list[int] = []

    def load(self, device_index: int) -> SimpleNamespace:
        assert device_index == 0
        return self.loaded

    def launch(self, args: dict, grid: tuple[int, ...], device_index: int, stream: int) -> None:
        assert (grid, device_index, stream) == (self.case.grid3, 0, 0)
        self.residents.append(self.loaded.resident_clusters)
        self.case.kernel[grid](**args, **self.case.constants)


def test_ctas_that_walk_over_tiles_are_few_in_the_second_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = matmul(sizes={"M": 200, "N": 70, "K": 64}, seed=6)
    program = StandIn(case)
    stages: list[str] = []
    monkeypatch.setattr(device, "to_device", lambda flat: from_numpy(flat.copy()))
    monkeypatch.setattr(device, "device_index", lambda _: 0)
    monkeypatch.setattr(JitFunction, "prepare", lambda *_: program)
    wanted = Levels(simulation=False, device=True)
    out = run_case(case, wanted, lambda: stages.append("launching"))
    assert out.findings == []
    assert program.residents == [1 + 6 % device.FEW]
    assert program.loaded.resident_clusters == 132
    assert out.walked
    assert out.stayed
    assert stages == ["launching"]


def test_a_plan_that_is_not_proved_is_simulated_and_not_emulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Roles may wait for each other in it for ever; the compiler takes another one."""
    emulated: list[int] = []
    failed = Obligation("liveness", proved=False, argument="no thread can go on")

    def refused(request: Request) -> Iterator[Kernel]:
        for kernel in modules(request):
            assert kernel.certificate is not None
            kernel.certificate.obligations.append(failed)
            yield kernel

    for made, want in ((modules, [0]), (refused, [])):
        runner = levels.Runner(matmul(), Levels(emulation=1.0))
        monkeypatch.setattr(levels, "modules", made)
        monkeypatch.setattr(runner, "emulation", lambda _: emulated.append(0))
        runner.run()
        assert runner.out.findings == []
        assert emulated == want
        emulated.clear()
    assert runner.out.unproved[0] == "liveness: no thread can go on"


def test_a_compile_that_takes_long_is_a_finding_of_its_own() -> None:
    runner = levels.Runner(matmul(), LEVELS)
    runner.took(levels.COMPILE_SECONDS)
    assert runner.out.findings == []
    runner.took(levels.COMPILE_SECONDS + 11)
    assert runner.out.findings == [Finding("compile", "took 31 s of processor time")]
    tally = Tally()
    tally.add(3, runner.out)
    assert "0 mismatches, 1 slow compiles, 0 crashes" in tally.closing(0, 1.0)


class Silent:
    """A worker process that says no more than it has said."""

    def __init__(self) -> None:
        self.stdin = io.StringIO()
        self.stdout = None

    def poll(self) -> int:
        return 0

    def wait(self, seconds: float) -> int:
        assert seconds > 0
        return 0


@pytest.mark.parametrize(
    ("said", "kind", "seconds"),
    [([], "hang: process", 1), ([LAUNCHING], "hang: device", 2)],
    ids=["compiling", "launching"],
)
def test_compiling_is_not_timed_as_a_launch(said: list[str], kind: str, seconds: int) -> None:
    worker = Worker(Config(0, "", LEVELS, 1.0, launch_timeout=2.0))
    worker.process = Silent()
    for line in said:
        worker._put(worker.lines, line)
    made = worker.ask("7")
    assert made is not None
    assert made.findings == [Finding(kind, f"no end after {seconds} s")]


@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler"
)
def test_rows_stay_for_the_next_one() -> None:
    drawn = [generate(0, n, "long_rows") for n in range(8)]
    made = [run_case(case, replace(LEVELS, plans=1)) for case in drawn]
    assert sum(m.stayed for m in made) >= 3
    assert not any(m.findings for m in made)
    case = next(c for c, m in zip(drawn, made, strict=True) if m.stayed and c.grid3[0] > 4)
    emulated = run_case(case, replace(LEVELS, plans=1, emulation=1.0))
    assert emulated.findings == []
    assert emulated.compared["emulation"] == 2


def test_lists_are_taken_apart_where_memory_is_compared() -> None:
    case = generate(1, 1, "lists")
    names = [a.name for a in case.arguments]
    assert "c_0" in names
    assert set(case.joined(dict.fromkeys(names, 0))) == {"a", "b", "c"}
    out = run_case(case, LEVELS)
    assert out.findings == []
    assert out.compared["interpreter"] == 1


def spin() -> None:
    while True:
        pass


def test_levels_on_the_cpu_are_timed_by_what_they_compute() -> None:
    """A machine that is busy with other things makes no finding."""
    with limited(0.05):
        time.sleep(0.2)
    with pytest.raises(TooLong), limited(0.05, wall=True):
        time.sleep(0.2)
    with pytest.raises(TooLong), limited(0.05):
        spin()
