"""Loops, branches, while, early return and expansion: carried values, types, and results."""

from __future__ import annotations

import numpy as np
import pytest

import tiledsl.language as tl
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TileError
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import While


def value(run, kernel, *args, **constants) -> float:
    """What a kernel stores in element 0 of its first argument."""
    out = np.full(64, -99, np.float64)
    run(kernel, out, *args, **constants)
    return out[0]


# ---------------------------------------------------------------------- for
def ranges(out: tl.Tensor, lower, upper, STEP: tl.constexpr):
    total = 0
    count = 0
    for i in range(lower, upper, STEP):
        total += i
        count += 1
    out.store(0, total * 100 + count)


@pytest.mark.parametrize(
    "bounds", [(0, 5, 1), (2, 11, 3), (5, 5, 1), (7, 2, 1), (9, 0, -2), (0, 3, -1), (-4, 4, 2)]
)
def test_range(run, bounds: tuple[int, int, int]) -> None:
    want = sum(range(*bounds)) * 100 + len(range(*bounds))
    assert value(run, ranges, bounds[0], bounds[1], STEP=bounds[2]) == want


def bound_types(out: tl.Tensor, n):
    total = n * 0
    for i in tl.range(0, n, num_stages=3, loop_unroll_factor=2, flatten=True):
        total += i
    out.store(0, total)


def test_the_loop_variable_takes_the_type_of_the_bounds(lower, run) -> None:
    (loop,) = lower(bound_types, np.zeros(1), 3).find(For)
    assert [str(a.type) for a in loop.body.args] == ["i32", "i32"]
    assert loop.unroll == 2
    (loop,) = lower(bound_types, np.zeros(1), 2**40).find(For)
    assert [str(a.type) for a in loop.body.args] == ["i64", "i64"]
    assert value(run, bound_types, 5) == 10


def weak_numbers(out: tl.Tensor, s, wide):
    a = 0
    b = 1.0
    c = 0
    d = 0
    e = True
    for i in range(3):
        a += i
        b = b * 2
        c += s
        d += wide
        e = e & (i < 2)
    out.store(0, a + b + c + d)
    out.store(1, e)


def test_numbers_become_values_of_the_type_they_need(lower, run) -> None:
    wide = np.int64(2**33)
    (loop,) = lower(weak_numbers, np.zeros(2), 0.5, wide).find(For)
    assert [str(r.type) for r in loop.results] == ["i32", "f32", "f32", "i64", "i1"]
    assert [r.name for r in loop.results] == ["a", "b", "c", "d", "e"]
    assert value(run, weak_numbers, 0.5, wide) == np.float32(3 + 8 + 1.5 + 3 * 2.0**33)


def only_what_is_needed(out: tl.Tensor, n):
    scratch = 5
    kept = 0
    for i in range(n):
        scratch = i * 2
        kept = kept + scratch
    out.store(0, kept)


def test_temporaries_are_not_carried(lower) -> None:
    (loop,) = lower(only_what_is_needed, np.zeros(1), 3).find(For)
    assert [r.name for r in loop.results] == ["kept"]


def reused_name(out: tl.Tensor, v: tl.Tensor):
    x = v.load(0, 8)
    y = x * 1.0
    for i in range(3):
        x = v.load(i, 4)
        y += 1.0
    out.store(0, y)


def test_a_temporary_may_change_its_type(run) -> None:
    assert value(run, reused_name, np.ones(16, np.float32)) == 4


def read_before_assigned(out: tl.Tensor, n):
    last = -1
    previous = -2
    for i in range(n):
        previous = last
        last = i
    out.store(0, previous)


@pytest.mark.parametrize(("n", "want"), [(0, -2), (1, -1), (4, 2)])
def test_values_pass_from_iteration_to_iteration(run, n: int, want: int) -> None:
    assert value(run, read_before_assigned, n) == want


def tuples(out: tl.Tensor, n):
    state = (0, 1)
    for _ in range(n):
        state = (state[1], state[0] + state[1])
    out.store(0, state[0])


def test_tuples_are_carried(run) -> None:
    assert value(run, tuples, 10) == 55


def constants_in_dead_branches(out: tl.Tensor, n, WIDE: tl.constexpr):
    width = 4
    mask = None
    total = tl.zeros((4,), tl.float32)
    for _ in range(n):
        if WIDE:
            width = 8
            mask = 1
        total += tl.arange(0, width)
        if mask is not None:
            total = total * mask
    out.store((0, 0), tl.trans(total[:, None]))


def test_a_constant_stays_one_when_its_branch_is_dead(run) -> None:
    out = np.zeros((1, 4))
    run(constants_in_dead_branches, out, 3, WIDE=False)
    assert out.tolist() == [[0, 3, 6, 9]]


def changed_in_branch(out: tl.Tensor, n):
    best = 0
    for i in range(n):
        if i % 3 == 2:
            best = i
    out.store(0, best)


def test_a_constant_changed_in_a_branch_is_carried(run) -> None:
    assert value(run, changed_in_branch, 10) == 8


def nested(out: tl.Tensor, n):
    total = 0
    for i in range(n):
        for j in range(i):
            total += j
            for k in range(0, j, 2):
                total += 100 * k
    out.store(0, total)


def test_nested_loops(run) -> None:
    want = sum(j + 100 * sum(range(0, j, 2)) for i in range(6) for j in range(i))
    assert value(run, nested, 6) == want


# ---------------------------------------------------------------------- expansion
def expanded(out: tl.Tensor, N: tl.constexpr):
    total = 0
    for i in tl.static_range(N):
        if i == 1:
            continue
        if i == 5:
            break
        total += tl.arange(0, i + 1).shape[0] * 10
    for x, y in ((1, 2), (3, 4)):
        total += x * y
    for i, x in enumerate((5, 6)):
        total += i * x
    for x in zip((1, 2), (3, 4), strict=True):
        total += x[0] * x[1]
    for i in (tl.static_range if N <= 8 else range)(2):
        total += len((0,) * i)
    out.store(0, total)


def test_static_loops(run, opcodes, lower) -> None:
    assert "control.for" not in opcodes(lower(expanded, np.zeros(1), N=8))
    assert value(run, expanded, N=8) == (1 + 3 + 4 + 5) * 10 + 14 + 6 + 11 + 1


# ---------------------------------------------------------------------- if
def branches(out: tl.Tensor, n):
    x = 1
    y = 2.0
    if n > 10:
        x = n
        z = 3
    elif n > 5:
        y = 7
        z = n
    else:
        z = 0
    out.store(0, x + 100 * y + 10000 * z)


@pytest.mark.parametrize(("n", "want"), [(3, 201), (6, 60701), (11, 30211)])
def test_if_elif_else(run, n: int, want: int) -> None:
    assert value(run, branches, n) == want


def test_if_yields_what_differs(lower) -> None:
    graph = lower(branches, np.zeros(1), 3)
    outer = graph.find(If)[0]
    assert {r.name: str(r.type) for r in outer.results} == {"x": "i32", "z": "i32", "y": "f32"}


def same_in_both(out: tl.Tensor, n):
    if n > 0:
        width = 4
        out.store(1, 1.0)
    else:
        width = 4
    out.store(0, tl.arange(0, width).shape[0])


def test_an_equal_constant_stays_one(run, lower) -> None:
    assert value(run, same_in_both, 1) == 4
    assert lower(same_in_both, np.zeros(2), 1).find(If)[0].results == ()


def integer_condition(out: tl.Tensor, n):
    x = 0
    if n:
        x = 1
    if n and not (n == 7):  # noqa: SIM201
        x += 2
    out.store(0, x)


@pytest.mark.parametrize(("n", "want"), [(0, 0), (7, 1), (-1, 3)])
def test_conditions_are_compared_with_zero(run, n: int, want: int) -> None:
    assert value(run, integer_condition, n) == want


def widened(out: tl.Tensor, n, wide):
    x = n
    if n > 0:
        x = wide
    out.store(0, x)


def test_integers_of_two_widths_meet(run) -> None:
    assert value(run, widened, 1, np.int64(2**40)) == 2**40
    assert value(run, widened, -1, np.int64(2**40)) == -1


def tile_in_branch(out: tl.Tensor, v: tl.Tensor, n):
    x = v.load(0, 4)
    if n > 0:
        for i in range(n):
            x = x + i
    out.store(0, x)


def test_a_loop_in_a_branch(run) -> None:
    assert value(run, tile_in_branch, np.ones(4, np.float32), 4) == 7
    assert value(run, tile_in_branch, np.ones(4, np.float32), -1) == 1


# ---------------------------------------------------------------------- while
def collatz(out: tl.Tensor, n):
    steps = 0
    while n != 1 and steps < 100:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    out.store(0, steps)


def test_while(run, lower) -> None:
    assert value(run, collatz, 6) == 8
    assert value(run, collatz, 1) == 0
    (loop,) = lower(collatz, np.zeros(1), 6).find(While)
    assert [r.name for r in loop.results] == ["n", "steps"]


def while_false(out: tl.Tensor, N: tl.constexpr):
    x = 1
    while N > 100:
        x = 2
    out.store(0, x)


def test_a_while_that_never_runs_leaves_nothing(run, lower, opcodes) -> None:
    assert value(run, while_false, N=4) == 1
    assert "control.while" not in opcodes(lower(while_false, np.zeros(1), N=4))


# ---------------------------------------------------------------------- return
def early(out: tl.Tensor, n):
    if n < 0:
        return
    out.store(0, 1)
    if n > 5:
        out.store(0, 2)
        if n > 10:
            return
        out.store(0, 3)
    elif n == 5:
        return
    out.store(0, 4)


@pytest.mark.parametrize(("n", "want"), [(-1, -99), (1, 4), (5, 1), (6, 4), (11, 2)])
def test_early_return(run, n: int, want: int) -> None:
    assert value(run, early, n) == want


def pick(x, y):
    if x > y:
        return x, 1
    if x < y:
        return y, 2
    return x, 3


def helper_with_returns(out: tl.Tensor, x, y):
    big, which = pick(x, y)
    out.store(0, big * 10 + which)


@pytest.mark.parametrize(("x", "y", "want"), [(3, 2, 31), (2, 3, 32), (2, 2, 23)])
def test_helper_that_returns_early(run, x: int, y: int, want: int) -> None:
    assert value(run, helper_with_returns, x, y) == want


def dead_return(out: tl.Tensor, n, EARLY: tl.constexpr):
    x = 0
    if n > 0:
        x = 1
        if EARLY:
            return
    for i in range(n):
        x += i
    out.store(0, x)


def test_a_return_that_is_never_reached_duplicates_nothing(run, lower) -> None:
    assert len(lower(dead_return, np.zeros(1), 3, EARLY=False).find(For)) == 1
    assert value(run, dead_return, 3, EARLY=False) == 4
    assert value(run, dead_return, 3, EARLY=True) == -99
    assert value(run, dead_return, -3, EARLY=True) == 0


def constant_return(out: tl.Tensor, N: tl.constexpr):
    for i in tl.static_range(4):
        if i == N:
            out.store(0, i)
            return
    out.store(0, 100)


def test_return_in_an_expanded_loop(run) -> None:
    assert value(run, constant_return, N=2) == 2
    assert value(run, constant_return, N=9) == 100


def mixed_returns(out: tl.Tensor, x):
    out.store(0, returns_two_kinds(x))


def returns_two_kinds(x):
    if x > 0:
        return x
    return x, x


def return_in_static_loop(out: tl.Tensor, x):
    for i in tl.static_range(4):
        if x == i:
            return
    out.store(0, 1)


def raises_at_run_time(out: tl.Tensor, x):
    if x > 0:
        raise ValueError("x")


def raises_in_dead_branch(out: tl.Tensor, N: tl.constexpr):
    if N > 100:
        raise ValueError(f"N is {N}")
    assert N > 0, "N must be positive"
    out.store(0, N)


@pytest.mark.parametrize("kernel", [mixed_returns, return_in_static_loop, raises_at_run_time])
def test_faulty_exits(lower, kernel) -> None:
    with pytest.raises(TileError):
        lower(kernel, np.zeros(1), 3)


def test_raise_and_assert_at_compile_time(run, lower) -> None:
    assert value(run, raises_in_dead_branch, N=4) == 4
    with pytest.raises(TileError, match="ValueError: N is 200"):
        lower(raises_in_dead_branch, np.zeros(1), N=200)
    with pytest.raises(TileError, match="assertion failed: N must be positive"):
        lower(raises_in_dead_branch, np.zeros(1), N=0)


def continues(out: tl.Tensor, n):
    for i in range(n):
        if i == 2:
            continue
        out.store(0, i)


def test_continue_at_run_time_is_refused(lower) -> None:
    with pytest.raises(SyntaxNotSupported, match="continue is supported only"):
        lower(continues, np.zeros(1), 3)
