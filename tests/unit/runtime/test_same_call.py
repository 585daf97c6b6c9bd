"""Calls that look like the one before, and are not: by equal constants, zeros, lists, settings."""

from __future__ import annotations

import ctypes
import importlib
import math
import struct
import threading
import types

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tiledsl.errors import LaunchError
from tiledsl.runtime import params
from tiledsl.runtime.closure import closure_of
from tiledsl.runtime.told import changes_within
from tiledsl.runtime.told import compared
from tiledsl.runtime.told import is_fixed
from tiledsl.runtime.told import told

jit_module = importlib.import_module("tiledsl.jit")

FACTORS = [2, 3]
NESTED = ("a", [2])
WRAPPED = tl.constexpr(2)
FOLDER = types.ModuleType("folder")
FOLDER.inner = types.ModuleType("inner")
FOLDER.inner.FACTOR = 2
n = 0
i = 0


@pytest.fixture
def fake(monkeypatch):
    return fake_driver.install(monkeypatch)


@tiledsl.jit
def scaled(x, y, T: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(y + at, (tl.load(x + at) * T[0]).to(tl.float32) / 4)


@tiledsl.jit
def filled(y, Z: tl.constexpr, B: tl.constexpr):
    tl.store(y + tl.arange(0, B), tl.zeros((B,), tl.float32) + Z)


@tiledsl.jit
def copy(x, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n), mask=i < n)


@tiledsl.jit
def product(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, alpha, B: tl.constexpr):
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, a.shape[1], B):
        acc = tl.dot(a.load((0, k), (B, B)), b.load((k, 0), (B, B)), acc)
    c.store((0, 0), acc * alpha)


@tiledsl.jit
def widened(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, B: tl.constexpr):
    left, right = a.load((0, 0), (B, B)).to(tl.float32), b.load((0, 0), (B, B)).to(tl.float32)
    c.store((0, 0), tl.dot(left, right))


@tiledsl.jit
def by_list(x, y, B: tl.constexpr):
    at = tl.arange(0, B)
    factor = FACTORS[0] + NESTED[1][0] + WRAPPED + FOLDER.inner.FACTOR
    tl.store(y + at, tl.load(x + at) * factor)


def halves():
    return [torch.zeros(64, 64, dtype=torch.float16) for _ in range(3)]


# ---------------------------------------------------------------------- constants
def test_constants_that_are_equal_within_a_tuple(fake):
    scaled.forget()
    x, y = torch.zeros(64, dtype=torch.int32), torch.zeros(64)
    given = [(2, 3), (2.0, 3.0), (True, 3), (1, 3), (1.0, 3.0), (2, 3), (True, 3)]
    for values in given * 2:
        scaled[(1,)](x, y, values, 64)
    functions = [launch.function for launch in fake.launches]
    assert len(scaled.history) == len(set(functions)) == 5
    assert functions[:7] == functions[7:]
    assert functions[0] == functions[5]


def test_zeros_of_both_signs_and_nan_as_constants(fake):
    filled.forget()
    for value in (0.0, -0.0, 0.0, math.nan, 0, -0.0, float("nan")):
        filled[(1,)](torch.zeros(64), value, 64)
    functions = [launch.function for launch in fake.launches]
    assert len(filled.history) == len(set(functions)) == 4
    assert functions[0] == functions[2]
    assert functions[1] == functions[5]
    assert functions[3] == functions[6]


def test_a_list_as_constant_may_change(fake):
    scaled.forget()
    x, y, values = torch.zeros(64, dtype=torch.int32), torch.zeros(64), [2, 3]
    for first in (2, 2, 5, 2):
        values[0] = first
        scaled[(1,)](x, y, values, 64)
    functions = [launch.function for launch in fake.launches]
    assert functions[0] == functions[1] == functions[3] != functions[2]


def test_what_tells_constants_apart():
    same = [(1, 1), ((1, "a"), (1, "a")), (math.nan, float("nan")), (tl.constexpr(3), 3)]
    other = [
        (1, True), (1, 1.0), (0.0, -0.0), (((2,), 1), ((2.0,), 1)), ([1], (1,)), ({1: 0}, {1: 0.0}),
        (torch.float16, "torch.float16"), (tl.float32, tl.float16), (tl.exp, tl.log),
        (complex(0, 0.0), complex(0, -0.0)), (tl.constexpr(1), tl.constexpr(True)),
    ]  # fmt: skip
    assert all(told(a) == told(b) for a, b in same)
    assert not any(told(a) == told(b) for a, b in other)
    assert all(hash(told(value)) is not None for pair in (*same, *other) for value in pair)
    for value in (1, 0.0, "a", None, (1, ("b",)), tl.float16, tl.exp, copy, tl.auto):
        assert is_fixed(value)
        assert not list(changes_within(value))
    for value in ([1], (1, [2]), {1: 2}, tl.constexpr(3), types.SimpleNamespace(a=1)):
        assert not is_fixed(value)
    assert [compared(v) for v in (1, 2.5, True, 0.0, math.nan, (1,))] == [
        int, float, bool, None, None, None,
    ]  # fmt: skip


def test_a_function_as_constant_whose_global_changes(fake, monkeypatch):
    from tests.unit.runtime.manifest_kernels import scale  # a module with a kernel of its own

    assert scale.cache_key == scale.cache_key

    @tiledsl.jit
    def applied(x, y, F: tl.constexpr, B: tl.constexpr):
        at = tl.arange(0, B)
        tl.store(y + at, F(tl.load(x + at)))

    x, y = torch.zeros(64), torch.zeros(64)
    for factor in (1, 1, 7):
        monkeypatch.setitem(globals(), "i", factor)
        applied[(1,)](x, y, times_i, 64)
    functions = [launch.function for launch in fake.launches]
    assert functions[0] == functions[1] != functions[2]


@tiledsl.jit
def times_i(value):
    return value * i


# ---------------------------------------------------------------------- numbers of a launch
def test_a_float_that_changes_its_sign_at_zero(fake, monkeypatch):
    """Where the parameters hold tensor maps, they are packed when a number changed."""
    product.forget()
    monkeypatch.setattr(params, "encoder", lambda _: lambda *_key: b"m" * 128)
    args = halves()
    for alpha in (0.0, -0.0, 0.0, 1.0, -0.0, math.nan):
        product[(1,)](*args, alpha, 64)
        names = [
            getattr(p, "arg", "") for p in next(iter(product._programs.values())).module.params
        ]
        bits = fake.launches[-1].value(names.index("alpha"), ctypes.c_uint32)
        assert struct.pack("<I", bits) == struct.pack("<f", alpha)


def test_floats_of_kernels_with_dots_make_no_programs(fake, monkeypatch):
    product.forget()
    args = halves()
    product[(1,)](*args, 0.5, 64)
    monkeypatch.setattr(product, "_launch", lambda *_: pytest.fail("slow path"))
    names = [getattr(p, "arg", "") for p in next(iter(product._programs.values())).module.params]
    for alpha in (0.25, 3.0, math.inf):
        product[(1,)](*args, alpha, 64)
        bits = fake.launches[-1].value(names.index("alpha"), ctypes.c_uint32)
        assert struct.pack("<I", bits) == struct.pack("<f", alpha)


def test_a_number_that_changes_its_class(fake):
    @tiledsl.jit
    def add(x, y, a, B: tl.constexpr):
        at = tl.arange(0, B)
        tl.store(y + at, tl.load(x + at) + a)

    for a in (1, True, 1.0, 2, True, 1.0, 1):
        add[(1,)](torch.zeros(64), torch.zeros(64), a, 64)
    one, true, real, _, again, real_again, last = (launch.function for launch in fake.launches)
    assert len({one, true, real}) == 3
    assert (true, real, one) == (again, real_again, last)


# ---------------------------------------------------------------------- grids
def test_a_grid_of_a_tensor_that_changes(fake):
    copy.forget()
    grid, x, y = torch.tensor(4), torch.zeros(4096), torch.zeros(4096)
    for count in (4, 8, 8, 2):
        grid.fill_(count)
        copy[(grid,)](x, y, 1000, 64)
        copy[grid](x, y, 1000, 64)
        copy[[grid, 3]](x, y, 1000, 64)
    counts = [launch.grid for launch in fake.launches]
    assert counts[::3] == counts[1::3] == [(c, 1, 1) for c in (4, 8, 8, 2)]
    assert counts[2::3] == [(c, 3, 1) for c in (4, 8, 8, 2)]


def test_a_grid_function_reads_all_arguments(fake, monkeypatch):
    copy.forget()
    x, y = torch.zeros(4096), torch.zeros(4096)

    def reads_tensor(meta):
        return tl.cdiv(meta["x"].numel(), meta["B"]), meta["n"] // 500

    copy[reads_tensor](x, y, 1000, 64)
    copy[(1,)](x, y, 1000, 128)
    monkeypatch.setattr(copy, "_launch", lambda *_: pytest.fail("slow path"))
    copy[reads_tensor](x[:2048], y, 1000, 64)
    copy[reads_tensor](x, y, 3000, 64)  # another number, as odd as the first
    assert [launch.grid for launch in fake.launches] == [
        (64, 2, 1), (1, 1, 1), (32, 2, 1), (64, 6, 1),
    ]  # fmt: skip


@pytest.mark.parametrize("warm", [False, True])
def test_a_grid_function_that_reads_what_there_is_not(fake, warm):
    copy.forget()
    x, y = torch.zeros(4096), torch.zeros(4096)
    if warm:
        copy[(1,)](x, y, 1000, 64)
    with pytest.raises(LaunchError, match=r"copy\(\): the grid function reads 'X'"):
        copy[lambda meta: (meta["X"].numel(),)](x, y, 1000, 64)
    with pytest.raises(LaunchError, match=r"copy\(\): the grid function failed"):
        copy[lambda meta: (meta["B"] + "1",)](x, y, 1000, 64)


# ---------------------------------------------------------------------- what is captured
@pytest.mark.parametrize(
    "change",
    [
        lambda: FACTORS.__setitem__(0, 5),
        lambda: FACTORS.__setitem__(0, 2.0),
        lambda: NESTED[1].append(4),
        lambda: setattr(WRAPPED, "value", 4),
        lambda: setattr(FOLDER, "inner", types.SimpleNamespace(FACTOR=4)),
        lambda: setattr(FOLDER.inner, "FACTOR", 4),
    ],
    ids=["list", "equal", "in a tuple", "constexpr", "module", "in a module"],
)
def test_captured_values_that_change_in_place(fake, monkeypatch, change):
    by_list.forget()
    for name, value in (("FACTORS", [2, 3]), ("NESTED", ("a", [2])), ("WRAPPED", tl.constexpr(2))):
        monkeypatch.setitem(globals(), name, value)
    inner = types.ModuleType("inner")
    inner.FACTOR = 2
    monkeypatch.setattr(FOLDER, "inner", inner)
    x, y = torch.zeros(64), torch.zeros(64)
    digest = by_list.cache_key
    by_list[(1,)](x, y, 64)
    by_list[(1,)](x, y, 64)
    change()
    assert by_list.cache_key != digest
    if isinstance(FOLDER.inner, types.ModuleType):
        by_list[(1,)](x, y, 64)
        assert fake.launches[-1].function != fake.launches[0].function
    assert fake.launches[0].function == fake.launches[1].function


def test_names_of_a_kernel_s_own_are_not_captured(fake, monkeypatch):
    copy.forget()
    x, y = torch.zeros(4096), torch.zeros(4096)
    for value in range(3):
        monkeypatch.setitem(globals(), "n", value)  # as the parameter
        monkeypatch.setitem(globals(), "i", value)  # as the variable
        copy[(4,)](x, y, 200, 64)
    assert len(copy.history) == 1


def test_names_are_those_that_python_reads_from_the_module():
    i_of = lambda fn: {name for _, name, _ in closure_of(fn).watched}  # noqa: E731

    def own(x, n):
        i = x.n
        return [n * FACTORS[0] for n in range(i)]

    def outside(x):
        total = tuple(i for i in range(3))
        return x.FACTORS + total + i

    def later(x: FACTORS = NESTED):
        return x

    @pytest.mark.filterwarnings(WRAPPED and "ignore")
    def decorated(x):
        return x

    assert i_of(own) >= {"FACTORS"}
    assert not i_of(own) & {"n", "i"}
    assert "i" in i_of(outside)
    assert "FACTORS" not in i_of(outside)
    assert "FACTORS" in i_of(later)
    assert "WRAPPED" not in i_of(decorated)


# ---------------------------------------------------------------------- settings
def test_f32_precision_where_no_argument_is_f32(fake):
    widened.forget()
    args = halves()
    try:
        for setting in ("highest", "highest", "high", "highest"):
            torch.set_float32_matmul_precision(setting)
            widened[(1,)](*args, 64)
    finally:
        torch.set_float32_matmul_precision("highest")
    functions = [launch.function for launch in fake.launches]
    assert functions[0] == functions[1] == functions[3] != functions[2]


def test_products_of_halves_do_not_watch_the_precision(fake, monkeypatch):
    product.forget()
    monkeypatch.setattr(jit_module, "precision_watched", lambda: pytest.fail("watched"))
    product[(1,)](*halves(), 1.0, 64)


# ---------------------------------------------------------------------- plans of other shapes
def planned(rows, grid):
    a = torch.zeros(rows, 256, dtype=torch.float16)
    b, c = torch.zeros(256, 64, dtype=torch.float16), torch.zeros(rows, 64, dtype=torch.float16)
    product[grid](a, b, c, 1.0, 64)


def test_a_grid_function_that_fails_leaves_no_half_of_a_plan(fake, monkeypatch):
    product.forget()
    planned(512, (8,))
    ctas = jit_module._ctas_of

    def fails(*_):
        raise ValueError("the user's")

    monkeypatch.setattr(jit_module, "_ctas_of", fails)
    with pytest.raises(ValueError, match="the user's"):
        planned(1024, (16,))
    monkeypatch.setattr(jit_module, "_ctas_of", ctas)
    monkeypatch.setattr("tiledsl.stand_ins.EXACT_PLANS", 1)
    planned(1040, (17,))
    planned(520, (9,))  # takes a plan that is there
    assert len(fake.launches) == 3


def test_plans_that_another_thread_adds(fake, monkeypatch):
    """The plans are looked through while one is added."""
    product.forget()
    planned(512, (8,))
    monkeypatch.setattr("tiledsl.stand_ins.EXACT_PLANS", 1)
    suits = jit_module._suits

    def adding(*given):
        worker = threading.Thread(
            target=lambda: [plans.update({((9, 9), i): found}) for i in range(50)]
        )
        for plans in product._planned.values():
            found = next(iter(plans.values()))
            worker.start()
            worker.join()
        return suits(*given)

    monkeypatch.setattr(jit_module, "_suits", adding)
    planned(520, (8,))
    assert len(fake.launches) == 2
