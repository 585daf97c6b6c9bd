"""What makes a new program and what does not: batch sizes, ones, many shapes."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.runtime import fake_driver
from tests.unit.runtime.manifest_kernels import matmul
from tiledsl.frontend.factors import factors_of
from tiledsl.frontend.limits import limits_of
from tiledsl.stand_ins import EXACT_PLANS
from tiledsl.stand_ins import MAX_PLANS
from tiledsl.stand_ins import keeps_rounds
from tiledsl.stand_ins import stand_in


@tiledsl.jit
def rows(x, o, batch, length, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    if row < batch:
        v = tl.load(x + row * stride + i, mask=i < length)
        tl.store(o + row * stride + i, v + tl.cdiv(batch, 2), mask=i < length)


@tiledsl.jit
def copy(a: tl.Tensor, b: tl.Tensor, B: tl.constexpr = 64):
    m, n = tl.program_id(0) * B, tl.program_id(1) * B
    b.store((m, n), a.load((m, n), (B, B)))


@pytest.fixture
def fake(monkeypatch):
    for kernel in (rows, copy, matmul):
        kernel.forget()
    yield fake_driver.install(monkeypatch)
    matmul.forget()


def launch_rows(batch, length=64, stride=64, dtype=torch.float32):
    x = torch.zeros(4096, dtype=dtype)
    rows[(max(1, batch),)](x, x, batch, length, stride, BLOCK=64)


def test_a_new_batch_size_or_a_one_needs_no_program(fake):
    for batch in (3, 1, 5, 7, 1, 9):
        launch_rows(batch)
    launch_rows(7, length=1)
    launch_rows(1, length=1)
    assert [item.origin for item in rows.history] == ["compiled"] * 2  # 64 and 1 as length
    assert "length: scalar<i32, multiple of 16, = 64> -> scalar<i32>" in rows.explain_recompiles()


def test_a_factor_of_one_is_known_and_named(fake):
    launch_rows(3)
    launch_rows(3, stride=1)
    assert len(rows.history) == 2
    assert "stride: scalar<i32, multiple of 16> -> scalar<i32, = 1>" in rows.explain_recompiles()
    launch_rows(3, stride=1, dtype=torch.float16)
    line = rows.explain_recompiles().splitlines()[3]
    assert "x: pointer<f32" in line
    assert "stride" not in line


def test_a_length_that_fills_its_index_is_known(fake):
    """Any other length, longer ones too, has one program; so has a length that is not looked at."""
    for length in (64, 48, 32, 64, 128):
        launch_rows(3, length)
    assert len(rows.history) == 2
    plain = tiledsl.jit(do_not_specialize=["length"])(rows.fn)
    x = torch.zeros(4096)
    for length in (64, 48, 33):
        plain[(3,)](x, x, 3, length, 64, BLOCK=64)
    assert len(plain.history) == 1


@tiledsl.jit
def two_indexes(x, o, n, m, B: tl.constexpr = 64, C: tl.constexpr = 32):
    i = tl.arange(0, B)
    j = tl.arange(0, C)
    tl.store(o + i, tl.load(x + i, mask=i < n), mask=i < n)
    tl.store(o + j, tl.load(x + j, mask=j < n), mask=(j < m) & (j < n))


def test_lengths_that_fill_different_indexes_have_different_programs(fake):
    two_indexes.forget()
    x = torch.zeros(4096)
    used = {}
    for constants in ({}, {"B": 128}, {"B": 32, "C": 64}):
        for n, m in itertools.product((64, 32, 48, 128), (32, 64)):
            for length in (64, n):
                two_indexes[(1,)](x, x, length, m, **constants)
            call = two_indexes._bind((x, x, n, m), constants)
            known = (str(two_indexes._signature(call)[0]), *call.constants.values())
            used.setdefault(fake.launches[-1].function, set()).add(known)
    assert [len(found) for found in used.values()] == [1] * len(used)


def test_which_lengths_fill_an_index(fake):
    def kernel(a, b, c, d, e, f, g, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr):
        rows = tl.program_id(0) * B + tl.arange(0, B)
        cols = tl.arange(0, C)[None, :]
        later = tl.arange(1, C)
        twice = tl.arange(0, D)
        twice = twice + d
        e = e + 1
        mask = (cols < a) & (b > cols) & (rows < c) & (later < c) & (twice < d) & (cols < e)
        tl.store(f + cols, cols, mask=mask & (tl.arange(0, D) <= a) & (cols + 1 < g))

    found = limits_of(kernel, tuple("abcdefg"), ("B", "C", "D"))
    assert found == {"a": ("C", "D"), "b": ("C",)}


def test_lengths_that_are_all_of_a_mask_in_a_loop_stay_arguments(fake):
    def kernel(a, b, c, d, e, o, n, B: tl.constexpr):
        cols = tl.arange(0, B)
        inside = cols < a
        first = tl.load(o + cols, mask=cols < e)
        for i in tl.range(n):
            tl.store(o + cols, first, mask=inside)
            tl.store(o + i + cols, i, mask=cols < b)
            tl.store(o + i + cols, i, mask=(cols < c) & (cols + i < n))
        for _ in tl.static_range(2):
            tl.store(o + cols, 1, mask=cols < d)

    assert limits_of(kernel, tuple("abcden"), ("B",)) == dict.fromkeys("cde", ("B",))


def test_where_a_one_matters(fake):
    def kernel(a, b, c, d, e, f, g, h):
        for i in tl.range(0, a, b):
            if i < c and d == 1:
                tl.store(e + i * f, min(g, 3) + helper(h))

    def helper(x):
        return x

    found = factors_of(kernel)
    assert [name for name in "abcdefgh" if name in found] == ["d", "f", "h"]
    made = {}
    exec("def nowhere(x): return x", made)
    assert factors_of(made["nowhere"]) is None


def test_without_dots_extents_do_not_matter(fake):
    for m in (128, 64, 200, 1):
        a, b = torch.zeros(m, 128), torch.zeros(m, 128)
        copy[(tl.cdiv(m, 64), 2)](a, b)
    assert len(copy.history) == 1
    assert [launch.grid[0] for launch in fake.launches] == [2, 1, 4, 1]


def test_the_number_of_plans_is_bounded(fake, monkeypatch):
    built = []
    build = type(matmul).build

    def counted(self, call, sig, grid):
        built.append(tuple(call.runtime["a"].shape))
        return build(self, call, sig, grid) if len(built) == 1 else next(iter(first.values()))

    monkeypatch.setattr(type(matmul), "build", counted)
    first = matmul._programs
    memory = torch.empty(16000 * 256, dtype=torch.bfloat16)
    numbers = random.Random(0)
    for m in (numbers.randrange(1, 2000) * 8 for _ in range(400)):
        a, b, c = (memory[: p * q].view(p, q) for p, q in ((m, 128), (128, 256), (m, 256)))
        matmul[lambda meta, m=m: (tl.cdiv(m, meta["BM"]), tl.cdiv(256, meta["BN"]))](a, b, c)
    assert EXACT_PLANS <= len(built) <= MAX_PLANS
    assert len(fake.launches) == 400
    assert len(matmul.history) == len(built)


def test_a_close_shape_whose_ctas_need_one_more_round_is_planned(fake, monkeypatch):
    built = []
    build = type(matmul).build

    def counted(self, call, sig, grid):
        built.append(call.runtime["a"].shape[0])
        return build(self, call, sig, grid) if len(built) == 1 else next(iter(first.values()))

    monkeypatch.setattr(type(matmul), "build", counted)
    matmul.forget()
    first = matmul._programs
    memory = torch.empty(2400 * 256, dtype=torch.bfloat16)

    def run(m):
        a, b, c = (memory[: p * q].view(p, q) for p, q in ((m, 128), (128, 256), (m, 256)))
        matmul[(tl.cdiv(m, 64), 4)](a, b, c, BM=64, BN=64)

    for at in range(EXACT_PLANS):
        run(1920 - 8 * at)  # at most 120 CTAs
    run(2112)  # 132
    assert len(built) == EXACT_PLANS
    run(2368)  # 148, of 132 SMs
    assert built[EXACT_PLANS:] == [2368]


def test_a_plan_of_one_round_is_not_taken_for_two():
    assert keeps_rounds(128, 132, 132)
    assert not keeps_rounds(128, 148, 132)
    assert keeps_rounds(128, 148, 264)
    assert keeps_rounds(1320, 1330, 132)
    assert keeps_rounds(148, 128, 132)
    assert keeps_rounds(0, 100, 132)


def test_the_nearest_plan_stands_in():
    planned = {((n, 64), (n, 1, 1)): n for n in range(100, 100 * (EXACT_PLANS + 1), 100)}
    few = dict(list(planned.items())[:-1])
    assert stand_in(few, ((110, 64), (110, 1, 1))) is None
    assert stand_in(few, ((110, 64), (110, 1, 1)), always=True) == 100
    assert stand_in(planned, ((560, 64), (560, 1, 1))) == 600
    assert stand_in(planned, ((16000, 64), (16000, 1, 1))) is None
    assert stand_in(planned, ((560, 4096), (560, 1, 1))) is None
    assert stand_in(planned, ((500, None), (500, 1, 1))) is None
    assert stand_in({}, (), always=True) is None
    suits = lambda key: key[0][0] != 600  # noqa: E731
    assert stand_in(planned, ((560, 64), (560, 1, 1)), suits=suits) == 500
    assert stand_in(planned, ((560, 64), (560, 1, 1)), suits=lambda _: False) is None
    planned |= {((n, n), (1, 1, 1)): n for n in range(1, MAX_PLANS)}
    assert stand_in(planned, ((160000, 64), (160000, 1, 1))) == 1600
