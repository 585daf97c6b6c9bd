"""Launches through guards and entries, with a driver that records them."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError

SCALE = 2
N = 4096


@pytest.fixture
def fake(monkeypatch):
    copy.forget()
    return fake_driver.install(monkeypatch)


def make_add(**options):
    @tiledsl.jit(**options)
    def add(x, y, o, n, BLOCK: tl.constexpr = 256):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        s = tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n)
        tl.store(o + i, s * SCALE, mask=i < n)

    return add


@tiledsl.jit
def copy(a: tl.Tensor, b: tl.Tensor, B: tl.constexpr = 64):
    m, n = tl.program_id(0) * B, tl.program_id(1) * B
    b.store((m, n), a.load((m, n), (B, B)))


def tensors(count=3, n=N, dtype=torch.float32):
    return [torch.zeros(n, dtype=dtype) for _ in range(count)]


def test_second_launch_takes_the_fast_path(fake, monkeypatch):
    add, (x, y, o) = make_add(), tensors()
    add[(4,)](x, y, o, N)
    monkeypatch.setattr(add, "_launch", lambda *_: pytest.fail("slow path"))
    add[(5, 2)](x, y, o, n=N)
    add[lambda meta: (tl.cdiv(N, meta["BLOCK"]),)](x, y, o, N, BLOCK=256)
    add[[7]](y, x, o, N)
    assert [launch.grid for launch in fake.launches] == [
        (4, 1, 1),
        (5, 2, 1),
        (16, 1, 1),
        (7, 1, 1),
    ]
    assert {launch.stream for launch in fake.launches} == {7}
    last = fake.launches[-1]
    assert [last.value(i) for i in range(3)] == [t.data_ptr() for t in (y, x, o)]
    assert last.value(3, ctypes.c_int32) == N


def test_other_values_share_a_program_and_other_facts_do_not(fake):
    add, (x, y, o) = make_add(), tensors()
    for n in (N, N - 16, N + 160):
        add[(4,)](x, y, o, n)
    assert len(add.history) == 1
    add[(4,)](x, y, o, N - 1)
    assert len(add.history) == 2
    add[(4,)](x[1:], y, o, N)
    add[(4,)](x, y, o, N, BLOCK=128)
    add[(4,)](x, y, o, N, num_warps=8)
    add[(4,)](*tensors(dtype=torch.float16), N)
    assert len(add.history) == 6
    text = add.explain_recompiles()
    for part in ("first of the kernel", "multiple of 16", "align 16> -> ", "BLOCK: 256 -> 128"):
        assert part in text
    assert "num_warps: not given -> 8" in text


def test_integers_of_more_than_32_bits(fake):
    add, (x, y, o) = make_add(), tensors()
    add[(4,)](x, y, o, N)
    add[(4,)](x, y, o, 2**32)
    assert fake.launches[-1].value(3, ctypes.c_int64) == 2**32
    add[(4,)](x, y, o, N)
    add[(4,)](x, y, o, 2**33)
    assert fake.launches[-1].value(3, ctypes.c_int64) == 2**33
    assert len(add.history) == 2


def test_kinds_that_change_between_calls(fake):
    @tiledsl.jit
    def scale(x, bias, o, a, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        v = tl.load(x + i) * a
        if bias is not None:
            v += tl.load(bias + i)
        tl.store(o + i, v)

    x, bias, o = tensors()
    for given in (bias, None, bias, None):
        for a in (2, 1.5, 1):
            scale[(1,)](x, given, o, a, 64)
    assert len(scale.history) == 6
    assert len(fake.launches) == 12


def test_a_changed_global_makes_a_new_program(fake, monkeypatch):
    add, (x, y, o) = make_add(), tensors()
    add[(4,)](x, y, o, N)
    source = next(iter(add._programs.values())).module.source
    monkeypatch.setitem(globals(), "SCALE", 3)
    add[(4,)](x, y, o, N)
    assert len(add.history) == 2
    assert list(add._programs.values())[1].module.source != source
    assert "captured value changed" in add.explain_recompiles()


def in_threads(*jobs):
    """Runs the jobs at the same time; each launches once, and all launches overlap."""
    workers = [threading.Thread(target=job) for job in jobs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def test_launches_at_the_same_time_have_their_own_buffers(fake):
    add, (x, y, o) = make_add(), tensors()
    add[(4,)](x, y, o, N)
    seen, meet = {}, threading.Barrier(3)

    def inside(launched):
        meet.wait(timeout=20)
        seen[launched.grid[0]] = launched.value(3, ctypes.c_int32)
        meet.wait(timeout=20)

    fake.inside = inside
    in_threads(*(lambda k=k: add[(k,)](x, y, o, 16 * k) for k in (1, 2, 3)))
    assert seen == {1: 16, 2: 32, 3: 48}
    assert len({launch.address for launch in fake.launches[1:]}) == 3
    assert len(add.history) == 1


def test_a_launch_inside_another_has_its_own_buffer(fake):
    add, (x, y, o) = make_add(), tensors()
    add[(4,)](x, y, o, N)

    def inside(launched):  # as a finalizer may do it, in the midst of a launch
        if launched.grid[0] == 1:
            add[(2,)](y, y, y, 32)
        assert launched.value(3, ctypes.c_int32) == 16 * launched.grid[0]

    fake.inside = inside
    add[(1,)](x, y, o, 16)
    assert [launch.grid[0] for launch in fake.launches] == [4, 2, 1]


def test_a_handle_in_threads_launches_on_each_ones_stream(fake):
    add, (x, y, o) = make_add(), tensors()
    handle = add.bind(x, y, o, N, grid=(4,))
    streams, meet = threading.local(), threading.Barrier(2)

    def job(stream):
        streams.own = stream
        handle()

    handle.__call__.__globals__["stream_of"] = lambda _: streams.own
    fake.inside = lambda _: meet.wait(timeout=20)
    in_threads(lambda: job(5), lambda: job(6))
    assert sorted(launch.stream for launch in fake.launches) == [5, 6]


def test_launch_in_a_thread_without_a_context(fake):
    add, (x, y, o) = make_add(), tensors()
    add[(4,)](x, y, o, N)
    fake.statuses[:] = [201]
    add[(4,)](x, y, o, N)
    assert len(fake.launches) == 2
    fake.device = 1
    add[(4,)](x, y, o, N)
    assert len(fake.launches) == 3
    fake.device, fake.statuses[:] = 0, [719]
    with pytest.raises(LaunchError, match="launch kernel add, grid"):
        add[(4,)](x, y, o, N)


def test_empty_grids_launch_nothing(fake):
    add, (x, y, o) = make_add(), tensors()
    for grid in ((0,), (1, 0), lambda _: (0,)):
        add[grid](x, y, o, N)
        add[grid](x, y, o, N)
        add.bind(x, y, o, N, grid=grid)()
    assert fake.launches == []


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("grid", "args", "options", "text"),
    [
        ((1,), (), {}, "missing a required argument"),
        ((1,), (1, 2, 3, 4, 5, 6), {}, "too many positional|takes 5 arguments, got 6"),
        ((1,), (1, 2, 3, 4), {"nmu_warps": 4}, "unexpected keyword argument 'nmu_warps'"),
        ((1,), (1, 2, 3, 4), {"num_warps": "4"}, "num_warps must be a positive int"),
        ((-1,), None, {}, "negative"),
        ((1, 2, 3, 4), None, {}, "one to three ints"),
        (("a",), None, {}, "one to three ints"),
        (1.5, None, {}, "one to three ints"),
        ((1,), (None, "x", 3, 4), {}, "argument y: expected a tensor or scalar, got str"),
        ((1,), (None, (1, 2), 3, 4), {}, r"got tuple(.*\n)+.*declare `y: tl.TensorList`"),
    ],
)
def test_bad_calls(fake, warm, grid, args, options, text):
    add, (x, y, o) = make_add(), tensors()
    if warm:
        add[(4,)](x, y, o, N)
    given = (x, y, o, N) if args is None else args
    with pytest.raises(LaunchError, match=text):
        add[grid](*given, **options)


def test_grid_functions_read_arguments(fake):
    add, (x, y, o) = make_add(), tensors()
    grid = lambda meta: (tl.cdiv(meta["n"], meta["BLOCK"]),)  # noqa: E731
    add[grid](x, y, o, N)
    add[grid](x, y, o, N * 2)
    assert [launch.grid[0] for launch in fake.launches] == [16, 32]


def test_options_of_other_compilers_are_accepted(fake):
    add, (x, y, o) = make_add(), tensors()
    add[(4,)](x, y, o, N, num_ctas=1, waves_per_eu=2, enable_fp_fusion=False, num_stages=4)
    add[(4,)](x, y, o, N, enable_fp_fusion=True)
    assert len(fake.launches) == 2
    assert "enable_fp_fusion" in add.explain_recompiles()


def test_parameters_named_like_internals(fake):
    @tiledsl.jit
    def odd(grid, values, options, self, BLOCK: tl.constexpr):
        tl.store(grid + tl.arange(0, BLOCK), tl.load(values + tl.arange(0, BLOCK)) + options + self)

    x, y = tensors(2)
    for _ in range(2):
        odd[(1,)](x, y, 3, 4, BLOCK=32)
    assert len(fake.launches) == 2


def test_parameters_named_like_facts_and_builtins(fake, monkeypatch):
    @tiledsl.jit
    def odd(x, p_x, v_p_x, tuple, int, entry, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(x + i, tl.load(p_x + i) + tl.load(tuple + i) + v_p_x + int + entry)

    x, y, z = tensors()
    odd[(1,)](x, y, 3, z, 4, 5, BLOCK=32)
    monkeypatch.setattr(odd, "_launch", lambda *_: pytest.fail("slow path"))
    odd[(1,)](z, x, 19, y, 20, 21, BLOCK=32)
    last = fake.launches[-1]
    assert [last.value(i) for i in (0, 1, 3)] == [t.data_ptr() for t in (z, x, y)]
    assert [last.value(i, ctypes.c_int32) for i in (2, 4, 5)] == [19, 20, 21]


def test_calls_in_turn_find_their_programs(fake, monkeypatch):
    add, halves = make_add(), tensors(dtype=torch.float16)
    calls = [(*tensors(), N), (*halves, N), (*tensors(), N - 1), (*tensors(), N, 128)]
    for call in calls:
        add[(4,)](*call)
    monkeypatch.setattr(add, "_launch", lambda *_: pytest.fail("slow path"))
    for call in calls * 2:
        add[(4,)](*call)
        first, again = fake.launches[len(fake.launches) - len(calls) - 1], fake.launches[-1]
        assert (first.name, first.threads) == (again.name, again.threads)
        assert again.value(0) == call[0].data_ptr()
    functions = [launch.function for launch in fake.launches]
    assert len(set(functions[:4])) == 4
    assert functions == functions[:4] * 3


def test_a_constant_that_is_equal_but_of_another_class(fake):
    add, (x, y, o) = make_add(), tensors()
    for block in (256, 256.0, 256):
        try:
            add[(4,)](x, y, o, N, block)
        except TileError:
            assert block.__class__ is float
    assert len(fake.launches) == 2


def test_one_device_is_always_current(monkeypatch):
    copy.forget()
    fake = fake_driver.install(monkeypatch, one_device=True)
    fake.device = 1  # not asked for
    add, (x, y, o) = make_add(), tensors()
    add[(4,)](x, y, o, N)
    add.bind(x, y, o, N, grid=(4,))()
    monkeypatch.setattr(tiledsl.runtime.driver, "on_device", lambda _: pytest.fail("switched"))
    add[(4,)](x, y, o, N)
    assert len(fake.launches) == 3


def test_contradictory_declarations():
    for name in ("BLOCK", "missing"):
        with pytest.warns(UserWarning, match=f"do_not_specialize names '{name}', which is"):
            make_add(do_not_specialize=[name, "n"])
    add = make_add(do_not_specialize=["n"])
    assert add.arg_names == ["x", "y", "o", "n", "BLOCK"]
    assert add.src.startswith("def add(x")
    assert add.__globals__ is globals()


def test_do_not_specialize(fake):
    add, (x, y, o) = make_add(do_not_specialize=["n"]), tensors()
    for n in (1, 16, 17):
        add[(4,)](x, y, o, n)
    assert len(add.history) == 1


def test_handle_launches_and_guards_its_memory(fake):
    add, (x, y, o) = make_add(), tensors()
    handle = add.bind(x, y, o, N, grid=(4,))
    handle()
    fake.stream = 9
    handle()
    assert [launch.stream for launch in fake.launches] == [7, 9]
    assert fake.launches[0].value(0) == x.data_ptr()
    assert handle.grid == (4, 1, 1)
    x.resize_(8)
    with pytest.raises(LaunchError, match="argument x has other memory or extents"):
        handle()
    y.untyped_storage().resize_(0)
    with pytest.raises(LaunchError, match="argument x, y has other memory"):
        handle()


def test_handle_recovers_a_missing_context(fake):
    add, (x, y, o) = make_add(), tensors()
    handle = add.bind(x, y, o, N, grid=(4,))
    fake.statuses[:] = [201]
    handle()
    fake.device = 1
    handle()
    assert len(fake.launches) == 2


def test_handle_on_cpu_tensors():
    add, (x, y, o) = make_add(), tensors(n=256)
    x += 1
    add.bind(x, y, o, 256, grid=(1,))()
    assert torch.equal(o, x * SCALE)


def test_arrays_of_other_libraries():
    add, (x, y, _) = make_add(), tensors(n=256)
    out = np.zeros(256, np.float32)
    add[(1,)](x.numpy() + 1, y, out, 256)
    assert (out == SCALE).all()
    with pytest.raises(LaunchError, match="argument o: a ndarray that cannot be shared"):
        add[(1,)](x, y, np.zeros(256, "U4"), 256)
