"""Tuning with a clock of our own: pruning, hooks, timings on disk, capture, heuristics."""

from __future__ import annotations

import math
import pickle
import sys
import threading
import time

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tiledsl import tuner as tuner_module
from tiledsl.errors import LaunchError
from tiledsl.errors import TypeMismatch
from tiledsl.progress import Progress
from tiledsl.runtime import timing
from tiledsl.runtime import tunings
from tiledsl.tools.tensor_descriptor import TensorDescriptor

N = 1024


@tiledsl.jit
def scale(x, o, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = True):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(o + i, tl.load(x + i) * 2)
    else:
        tl.store(o + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@tiledsl.jit
def matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
           BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):  # fmt: skip
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)


CONFIGS = [tiledsl.Config({"BLOCK": b}, num_warps=w) for b, w in ((64, 2), (128, 4), (256, 8))]


def grid(meta):
    return (tl.cdiv(N, meta["BLOCK"]),)


@pytest.fixture
def fake(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEDSL_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(timing, "device_text", lambda _: "a GPU")
    monkeypatch.setattr(timing, "is_capturing", lambda _: False)
    for kernel in (scale, matmul, shift):
        kernel.forget()
    return fake_driver.install(monkeypatch)


class Clock:
    """Times launches by the threads and grid that reach the driver."""

    def __init__(self, fake, cost):
        self.fake, self.cost, self.calls = fake, cost, 0

    def __call__(self, fn, quantiles):
        self.calls += 1
        before = len(self.fake.launches)
        fn()
        (launch,) = self.fake.launches[before:]
        return [self.cost(launch)] * 3


def pair():
    return torch.ones(N), torch.zeros(N)


def test_the_fastest_is_chosen_once_per_key(fake):
    clock = Clock(fake, lambda launch: 1000 + abs(launch.threads - 128))
    tuned = tiledsl.autotune(CONFIGS, key=["n"], do_bench=clock)(scale)
    x, o = pair()
    for _ in range(2):
        tuned[grid](x, o, N)
    assert tuned.best_config is CONFIGS[1]
    assert clock.calls == 6  # a first look and a timing of each
    assert fake.launches[-1].grid == (8, 1, 1)
    tuned[grid](x, o, N * 2)
    assert clock.calls == 12
    assert len(tuned.cache) == 2


def test_a_second_process_finds_the_timings_and_times_what_is_new(fake):
    x, o = pair()
    clock = Clock(fake, lambda launch: launch.threads)
    tiledsl.autotune(CONFIGS[1:], key=["n"], do_bench=clock)(scale)[grid](x, o, N)
    clock.calls = 0
    again = tiledsl.autotune(CONFIGS, key=["n"], do_bench=clock)(scale)
    again[grid](x, o, N)
    assert clock.calls == 2
    assert again.best_config is CONFIGS[0]


def test_one_tunes_while_others_wait(fake):
    order = []
    inside, done = threading.Event(), threading.Event()

    def other():
        inside.wait(10)
        with tunings.tuning("key", 10):
            order.append(("second", tunings.read_timings("key")))
        done.set()

    worker = threading.Thread(target=other)
    worker.start()
    with tunings.tuning("key", 10):
        inside.set()
        assert not done.wait(0.3)
        tunings.add_timings("key", {"a": 1.0}, {})
        tunings.add_timings("key", {"b": math.inf}, {})
        order.append("first")
    worker.join()
    assert order == ["first", ("second", {"a": 1.0, "b": math.inf})]
    with tunings.tuning("key", 10):
        start = time.monotonic()
        with tunings.tuning("key", 0.1):  # gives up waiting, and tunes beside the other
            assert time.monotonic() - start < 5


def test_hopeless_candidates_are_looked_at_once(fake):
    clock = Clock(fake, lambda launch: 1 if launch.threads == 64 else 100)
    x, o = pair()
    tuned = tiledsl.autotune(CONFIGS, key=["n"], do_bench=clock)(scale)
    tuned[grid](x, o, N)
    assert clock.calls == 4
    assert tuned.configs_timings[CONFIGS[2]] == 100


def test_candidates_that_fail_lose(fake):
    bad = tiledsl.Config({"BLOCK": 64}, num_consumers=2)
    x, o = pair()
    tuned = tiledsl.autotune([bad, CONFIGS[0]], key=["n"], do_bench=Clock(fake, lambda _: 1))(scale)
    tuned[grid](x, o, N)
    assert tuned.best_config is CONFIGS[0]
    assert math.isinf(tuned.configs_timings[bad])
    with pytest.raises(LaunchError, match="none of 2 candidates"):
        tiledsl.autotune([bad, bad], key=[], do_bench=Clock(fake, lambda _: 1))(scale)[grid](
            x, o, N
        )


def test_pruning(fake):
    seen = []

    def early(configs, named, **kwargs):
        seen.append((named["n"], named["x"].shape, sorted(kwargs)))
        return configs[1:]

    x, o = pair()
    by = {"early_config_prune": early, "perf_model": lambda BLOCK, **_: -BLOCK, "top_k": 1 / 3}
    tuned = tiledsl.autotune(CONFIGS, ["n"], by, do_bench=Clock(fake, lambda _: 1))(scale)
    tuned[grid](x, o, N, EVEN=False)
    assert tuned.best_config is CONFIGS[2]
    assert seen == [(N, (N,), ["EVEN"])]
    by = {"early_config_prune": lambda *_, **__: []}
    with pytest.raises(LaunchError, match="left no candidate"):
        tiledsl.autotune(CONFIGS, [], by, do_bench=Clock(fake, lambda _: 1))(scale)[grid](x, o, N)


def test_reset_restore_and_hooks(fake):
    x, o = pair()
    events = []
    configs = [
        tiledsl.Config({"BLOCK": b}, pre_hook=lambda named: events.append(named["BLOCK"]))
        for b in (64, 128)
    ]

    def bench(fn, quantiles):
        assert not o.any()
        x.fill_(5)
        o.fill_(5)
        fn()
        return 1.0

    tuned = tiledsl.autotune(
        configs,
        key=["n"],
        reset_to_zero=["o"],
        restore_value=["x"],
        pre_hook=lambda named, reset_only: events.append(("pre", reset_only)),
        post_hook=lambda named, fault: events.append(("post", fault)),
        do_bench=bench,
    )(scale)
    tuned[grid](x, o, N)
    assert x.eq(1).all()
    assert not o.any()
    assert events[:3] == [64, ("pre", False), ("post", None)]
    assert events[-1] == 64


def test_nothing_is_tuned_under_capture_or_on_the_cpu(fake, monkeypatch):
    x, o = pair()
    tuned = tiledsl.autotune(CONFIGS, key=["n"])(scale)
    monkeypatch.setattr(timing, "is_capturing", lambda _: True)
    with pytest.warns(UserWarning, match="nothing can be tuned while a graph is captured"):
        tuned[grid](x, o, N)
    assert [launch.threads for launch in fake.launches] == [64]
    assert tuned.cache == {}
    monkeypatch.undo()
    scale.forget()
    tuned[grid](x, o, N)
    assert torch.equal(o, 2 * x)


def test_candidates_of_the_cost_model(fake):
    a, b, c = (torch.zeros(512, 512, dtype=torch.bfloat16) for _ in range(3))
    clock = Clock(fake, lambda launch: launch.threads + launch.grid[0])
    tuned = tiledsl.autotune(do_bench=clock)(matmul)
    tuned[lambda meta: (tl.cdiv(512, meta["BM"]), tl.cdiv(512, meta["BN"]))](a, b, c)
    assert len(tuned.configs_timings) > 3
    assert any("num_consumers" in config.options for config in tuned.configs_timings)
    assert all(t < math.inf for t in tuned.configs_timings.values())


def test_heuristics_and_autotune_stack_either_way(fake):
    x, o = pair()
    even = {"EVEN": lambda args: args["n"] % args["BLOCK"] == 0}
    clock = Clock(fake, lambda launch: launch.threads)
    inside = tiledsl.autotune(CONFIGS[:2], ["n"], do_bench=clock)(tiledsl.heuristics(even)(scale))
    before = len(scale.history)
    inside[grid](x, o, N - 7)
    inside[grid](x, o, N)
    assert {item.facts["EVEN"] for item in scale.history[before:]} == {"True", "False"}
    outside = tiledsl.heuristics({"EVEN": lambda args: args["n"] > 0})(
        tiledsl.autotune(CONFIGS[:2], ["n"], do_bench=clock)(scale)
    )
    outside[grid](x, o, N)
    outside.bind(x, o, N, grid=(16,))()
    assert outside.fn.best_config is CONFIGS[0]
    assert "scale(" in outside.cuda(x, o, N)
    assert outside.fn.fn is scale


def test_tiles_tuned_for_a_function_are_none_for_numbers(fake):
    """The tuner gives values in place of `tl.auto`; a grid of numbers cannot follow them."""
    x, o = pair()
    tuned = tiledsl.autotune(do_bench=Clock(fake, lambda launch: launch.threads))(scale)
    auto = {"BLOCK": tl.auto(64, 128)}
    for _ in range(2):
        tuned[grid](x, o, N, **auto)
    assert tuned.best_config.kwargs == {"BLOCK": 64}
    assert type(tuned.best_config.kwargs["BLOCK"]) is int
    launched = len(fake.launches)
    for _ in range(2):
        with pytest.raises(LaunchError, match="BLOCK is picked by the compiler"):
            tuned[(8,)](x, o, N, **auto)
    with pytest.raises(LaunchError, match="BLOCK is picked by the compiler"):
        tuned.bind(x, o, N, grid=(8,), **auto)
    tuned.bind(x, o, N, grid=grid, **auto)()
    assert len(fake.launches) == launched + 1


def test_the_model_finds_candidates_under_heuristics(fake):
    """Constants that have no default but that of a function."""

    @tiledsl.heuristics({"EVEN": lambda args: args["n"] % 128 == 0})
    @tiledsl.jit
    def even(x, o, n, EVEN: tl.constexpr, BLOCK: tl.constexpr = tl.auto(64, 128)):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(o + i, tl.load(x + i, mask=EVEN or i < n) * 2, mask=i < n)

    tuned = tiledsl.autotune(do_bench=Clock(fake, lambda launch: launch.threads))(even)
    tuned[grid](*pair(), N)
    assert tuned.best_config.kwargs == {"BLOCK": 64}
    with pytest.raises(LaunchError, match="BLOCK is picked by the compiler"):
        tuned[(8,)](*pair(), N)


def test_heuristics_give_launch_options(fake):
    warps = tiledsl.heuristics(
        {"EVEN": lambda args: args["n"] > 0, "num_warps": lambda args: 8 if args["n"] > 9 else 2}
    )(scale)
    x, o = pair()
    warps[grid](x, o, N, BLOCK=128)
    assert "__launch_bounds__(256" in warps.cuda(x, o, N, BLOCK=128)
    config = tiledsl.Config({"BLOCK": 128, "EVEN": False, "num_warps": 8})
    tuned = tiledsl.autotune([config], key=["n"])(scale)
    tuned[grid](x, o, N)
    assert "__launch_bounds__(256" in tuned.cuda(x, o, N)


def test_mistakes_are_found_when_decorating():
    with pytest.warns(UserWarning, match="key names 'm', which is no parameter of scale") as caught:
        tiledsl.autotune(CONFIGS, key=["m"])(scale)
    assert caught[0].filename == __file__
    with pytest.raises(TypeMismatch, match="configs names 'BLOK'"):
        tiledsl.autotune([tiledsl.Config({"BLOK": 1})], key=["n"])(scale)
    with pytest.raises(TypeMismatch, match="has no 'prune'"):
        tiledsl.autotune(CONFIGS, ["n"], {"prune": 1})
    with pytest.raises(TypeMismatch, match="'M' is no parameter"):
        tiledsl.heuristics({"M": lambda _: 1})(scale)
    with pytest.raises(LaunchError, match="'warps' is no launch option"):
        tiledsl.Config({}, warps=3)


def test_values_of_candidates_given_at_launch_are_refused(fake):
    tuned = tiledsl.autotune(CONFIGS, key=["n"], do_bench=Clock(fake, lambda _: 1))(scale)
    with pytest.raises(LaunchError, match="BLOCK: given at launch and by the tuner's"):
        tuned[grid](*pair(), N, BLOCK=64)


def test_config_reads_as_pruning_functions_expect():
    config = tiledsl.Config({"BLOCK": 64}, num_stages=5)
    assert (config.num_warps, config.num_stages, config.num_ctas) == (4, 5, 1)
    assert config.all_kwargs() == {"BLOCK": 64, "num_stages": 5}
    assert str(config) == "BLOCK: 64, num_stages: 5"
    assert config == tiledsl.Config({"BLOCK": 64}, num_stages=5)
    assert pickle.loads(pickle.dumps(config)) == config


def test_stages_are_a_hint():
    @tiledsl.jit
    def product(x, y, o, K, B: tl.constexpr):
        i, j = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
        acc = tl.zeros((B, B), tl.float32)
        for k in range(0, K, B):
            acc = tl.dot(tl.load(x + i * K + k + j), tl.load(y + (k + i) * B + j), acc)
        tl.store(o + i * B + j, acc)

    x, y = torch.zeros(64, 256, dtype=torch.float16), torch.zeros(256, 64, dtype=torch.float16)
    product.prepare((x, y, torch.zeros(64, 64), 256), {"B": 64, "num_stages": 90}, (1,))
    wide = [torch.zeros(128, 128, dtype=torch.bfloat16) for _ in range(3)]
    matmul.prepare(tuple(wide), {"num_stages": 90, "BM": 128, "BN": 128}, (1, 1))


def test_progress_shows_on_a_terminal_only(capsys, monkeypatch):
    bar = Progress("k", "timing", 4, end=time.monotonic() + 100)
    bar.show(1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bar.show(1, 0.25)
    assert "k: timing [#####               ] 1/4, best 0.25 ms, " in capsys.readouterr().err
    bar.clear()
    assert capsys.readouterr().err == "\r\x1b[K"


def test_candidates_are_compiled_by_other_processes(fake, tmp_path, monkeypatch):
    """This process finds the programs on disk; without a disk it compiles them itself."""
    monkeypatch.setattr(tuner_module, "cpus", lambda: 2)
    x, o = pair()
    tuned = tiledsl.autotune(CONFIGS, ["n"], do_bench=Clock(fake, lambda launch: launch.threads))
    tuned(scale)[grid](x, o, N)
    assert [item.origin for item in scale.history] == ["disk"] * 3
    scale.forget()
    monkeypatch.setenv("TILEDSL_CACHE_DIR", "off")
    tuned(scale)[grid](x, o, N)
    assert [item.origin for item in scale.history] == ["compiled"] * 3


def test_the_budget_ends_the_race(fake):
    """Something is always looked at; what was not is left to another process."""
    clock = Clock(fake, lambda launch: launch.threads)
    tuned = tiledsl.autotune(CONFIGS, key=["n"], do_bench=clock, budget=0.0)(scale)
    tuned[grid](*pair(), N)
    assert clock.calls == 1
    assert tuned.best_config is CONFIGS[0]
    assert list(tuned.configs_timings) == CONFIGS[:1]
    again = tiledsl.autotune(CONFIGS, key=["n"], do_bench=clock)(scale)
    again[grid](*pair(), N)
    assert clock.calls == 1 + 4
    assert set(again.configs_timings) == set(CONFIGS)


def test_do_bench_without_a_gpu():
    assert tiledsl.testing.do_bench(lambda: None, rep=1) >= 0
    assert len(tiledsl.testing.do_bench(lambda: None, rep=1, quantiles=[0.5, 0.2, 0.8])) == 3
    assert tiledsl.testing.do_bench(lambda: None, rep=1, return_mode="all")
    with pytest.raises(LaunchError, match="return_mode"):
        tiledsl.testing.do_bench(lambda: None, return_mode="mode")
    tiledsl.testing.assert_close([1.0], torch.tensor([1.001]))
    with pytest.raises(AssertionError):
        tiledsl.testing.assert_close([1.0], [1.1])


# ---------------------------------------------------------------------- descriptors
@tiledsl.jit
def shift(src, dst, n):
    m, k = tl.program_id(0) * src.block_shape[0], tl.program_id(1) * src.block_shape[1]
    if m < src.shape[0] and n > 0:
        dst.store([m, k], src.load([m, k]) + n)


def test_descriptors_in_the_interpreter_and_compiled():
    x = torch.arange(48.0).reshape(6, 8)
    out = torch.zeros(8, 16)
    src = TensorDescriptor.from_tensor(x, [4, 8], padding="nan")
    dst = TensorDescriptor(out, [7, 8], [16, 1], [4, 8])
    shift[(2, 1)](src, dst, 1)
    assert torch.equal(out[:6, :8], x + 1)
    assert out[6, :8].isnan().all()
    assert not out[7].any()
    assert not out[:, 8:].any()
    assert "TensorMap" in shift.cuda(src, dst, 1) or "src" in shift.cuda(src, dst, 1)


def test_descriptors_take_the_fast_path(fake, monkeypatch):
    x, out = torch.zeros(8, 8), torch.zeros(8, 8)
    src, dst = (TensorDescriptor.from_tensor(t, [4, 8]) for t in (x, out))
    before = len(shift.history)
    shift[(2, 1)](src, dst, 1)
    with monkeypatch.context() as patch:
        patch.setattr(shift, "_launch", lambda *_: pytest.fail("slow path"))
        shift[(2, 1)](src, dst, 1)
    src.block_shape = dst.block_shape = [8, 8]
    shift[(1, 1)](src, dst, 1)
    assert len(shift.history) == before + 2


def test_bad_descriptors():
    x = torch.zeros(4, 4)
    with pytest.raises(LaunchError, match="same rank"):
        TensorDescriptor.from_tensor(x, [4])
    with pytest.raises(LaunchError, match="positive ints"):
        TensorDescriptor.from_tensor(x, [4, 0])
    with pytest.raises(LaunchError, match="none of zero, nan"):
        TensorDescriptor.from_tensor(x, [4, 4], padding="one")


def test_reports_are_tables(tmp_path, capsys):
    by_size = tiledsl.testing.Benchmark(
        ["M", "N"], [2, (3, 4)], "way", ["sum", "product"], ["Sum", "Product"], "sizes", {"by": 10}
    )

    @tiledsl.testing.perf_report(by_size)
    def measured(M, N, way, by, more=0):
        return (M + N if way == "sum" else M * N * by + more), 0.0, 1.0

    want = [["M", "N", "Sum", "Product"], ["2", "2", "4.000000", "41.000000"]]
    want.append(["3", "4", "7.000000", "121.000000"])
    assert measured.run(print_data=True, save_path=tmp_path / "made", more=1) == [want]
    assert capsys.readouterr().out.splitlines()[2] == "2  2  4.000000   41.000000"
    assert (tmp_path / "made" / "sizes.csv").read_text().startswith("M,N,Sum,Product\n2,2,")
