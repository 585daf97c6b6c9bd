"""Builtins, Python's functions, inlined helpers, and what a kernel captures."""

from __future__ import annotations

import enum
import math
from types import SimpleNamespace

import numpy as np
import pytest

import tiledsl.language as tl
from tiledsl.errors import NameUnresolved
from tiledsl.errors import SyntaxNotSupported
from tiledsl.errors import TileError
from tiledsl.errors import TypeMismatch
from tiledsl.ir.ops.control import For

SCALE = 3
WRAPPED = tl.constexpr(5)
PAIR = (2, (3.5, tl.float32))
CALLS = []


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


def first(out, default=7.0, *, shift=0):
    """A helper with defaults and keywords."""
    x = out.load(0, 4)
    return x * 0.0 + default + shift


def twice(f, x):
    return f(f(x))


def increment(x):
    return x + 1


def two(x):
    return x, x * 2


def variadic(*xs):
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total


def only_effect(out, x):
    out.store(1, x)


# ---------------------------------------------------------------------- helpers
def uses_helpers(out: tl.Tensor):
    out.store(0, first(out))
    x = first(out, 1, shift=2)
    a, b = two(x)
    out.store(0, twice(increment, a) + b + variadic(x, x, x))
    only_effect(out, 5.0)


def test_helpers_are_inlined(run, opcodes) -> None:
    out = np.zeros(4, np.float32)
    run(uses_helpers, out)
    assert out.tolist() == [20, 5, 20, 20]


def helper_location(v: tl.Tensor):
    v.store(0, increment(v.load(0, 4)))


def test_ops_of_helpers_know_their_caller(lower) -> None:
    graph = lower(helper_location, np.zeros(4, np.float32))
    (op,) = [op for op in graph.walk() if op.opcode == "elementwise.add"]
    assert op.loc is not None
    assert op.loc.function == "increment"
    assert op.loc.caller is not None
    assert op.loc.caller.function == "helper_location"
    assert op.loc.caller.line == helper_location.__code__.co_firstlineno + 1
    (store,) = [op for op in graph.walk() if op.opcode == "memory.store"]
    assert store.loc is not None
    assert store.loc.caller is None


def jitted_helper(v: tl.Tensor):
    v.store(0, JITTED(v.load(0, 4)))


JITTED = SimpleNamespace(fn=increment)


def test_jit_objects_are_called_through_their_function(run) -> None:
    out = np.ones(4, np.float32)
    run(jitted_helper, out)
    assert out.tolist() == [2] * 4
    run(SimpleNamespace(fn=jitted_helper), out)
    assert out.tolist() == [3] * 4


def passed_function(out: tl.Tensor, ACT: tl.constexpr):
    x = out.load(0, 4)
    if ACT is not None:
        x = ACT(x)
    out.store(0, x)


def test_functions_are_arguments(run) -> None:
    out = np.ones(4, np.float32)
    run(passed_function, out, ACT=increment)
    run(passed_function, out, ACT=None)
    run(passed_function, out, ACT=tl.exp2)
    assert out.tolist() == [4] * 4


def recursive(n):
    return recursive(n - 1)


def calls_recursive(out: tl.Tensor, n):
    out.store(0, recursive(n))


def test_recursion_is_refused(lower) -> None:
    with pytest.raises(SyntaxNotSupported, match="recursive -> recursive"):
        lower(calls_recursive, np.zeros(1), 3)


def constexpr_parameter(x, n: tl.constexpr):
    return x + n


def passes_value_for_constexpr(out: tl.Tensor, n):
    out.store(0, constexpr_parameter(n, n))


def test_a_value_may_pass_through_a_constexpr_parameter(run) -> None:
    out = np.zeros(1, np.int32)
    run(passes_value_for_constexpr, out, 4)
    assert out[0] == 8


# ---------------------------------------------------------------------- the host's functions
def power_of_two_at_least(n):
    """Ordinary Python, run at compile time."""
    p = 1
    while p < n:
        p *= 2
    return p


def raises(n):
    raise ValueError(f"bad {n}")


def host_functions(out: tl.Tensor, N: tl.constexpr):
    out.store(0, power_of_two_at_least(N))
    out.store(1, math.sqrt(N * N))
    out.store(
        2,
        int(7.9)
        + float("2.5")
        + len((1, 2))
        + sum((1, 2))
        + round(2.6)
        + abs(-3)
        + max(1, N)
        + min((4, 2)),
    )
    out.store(3, tl.cdiv(N, 4) + tl.constexpr(2) + len(str(N)))


def test_host_functions_run_at_compile_time(run) -> None:
    out = np.zeros(4, np.float32)
    run(host_functions, out, N=10)
    assert out.tolist() == [16, 10, 7 + 2.5 + 2 + 3 + 3 + 3 + 10 + 2, 7]


def host_error(out: tl.Tensor):
    out.store(0, raises(3))


def test_errors_of_host_functions_keep_their_text(lower) -> None:
    with pytest.raises(TypeMismatch, match="ValueError: bad 3"):
        lower(host_error, np.zeros(1))


def converts_value(out: tl.Tensor, n):
    out.store(0, float(n))


def test_python_conversions_take_constants_only(lower) -> None:
    with pytest.raises(TypeMismatch, match=r"float\(\) takes compile-time values only") as caught:
        lower(converts_value, np.zeros(1), 3)
    assert caught.value.hint == "write x.to(tl.float32)"


def mixed_python_functions(out: tl.Tensor, n):
    out.store(0, min(n, 4) + max(n, 2, 3) + sum((n, 1, n)))
    for i, x in reversed(tuple(enumerate((n, 2)))):
        out.store(1 + i, x)


def test_python_functions_on_values(run) -> None:
    out = np.zeros(3, np.int32)
    run(mixed_python_functions, out, 7)
    assert out.tolist() == [4 + 7 + 15, 7, 2]


# ---------------------------------------------------------------------- captures
def captures(out: tl.Tensor, MODE: tl.constexpr):
    out.store(0, SCALE + WRAPPED + PAIR[0] + PAIR[1][0])
    tl.static_assert(
        PAIR[1][1] == tl.float32
        and MODE is Mode.FAST
        and MODE == Mode.FAST
        and MODE.value == "fast"
    )
    tl.static_assert(WRAPPED.value == 5)


def test_globals_are_captured_by_value(run) -> None:
    out = np.zeros(1, np.float32)
    graph = run(captures, out, MODE=Mode.FAST)
    assert out[0] == 3 + 5 + 2 + 3.5
    found = graph.facts["captures"]
    assert found["captures", "SCALE"] == 3
    assert found["captures", "WRAPPED"] == 5


def make_kernel(width, op, dtype):
    def kernel(out: tl.Tensor):
        out.store(0, op(tl.full((width,), 2.0, dtype)))

    return kernel


def test_closures_are_captured(run, lower) -> None:
    out = np.zeros(4, np.float32)
    run(make_kernel(4, tl.exp2, tl.float32), out)
    assert out.tolist() == [4] * 4
    kernel = make_kernel(8, increment, tl.float16)
    assert "tile<8xf16>" in {str(r.type) for op in lower(kernel, out).walk() for r in op.results}


def mutable_capture(out: tl.Tensor):
    out.store(0, CALLS[0])


def missing_capture(out: tl.Tensor):
    out.store(0, tl.zeros((4,), tl.float23))


def python_only(out: tl.Tensor):
    open("x")  # noqa: SIM115


def test_captures_that_are_refused(lower) -> None:
    with pytest.raises(TypeMismatch, match="IndexError"):
        lower(mutable_capture, np.zeros(1))
    with pytest.raises(NameUnresolved, match=r"the language has no tl\.float23") as caught:
        lower(missing_capture, np.zeros(1))
    assert "float32" in (caught.value.hint or "")
    with pytest.raises(NameUnresolved, match="Python's 'open'"):
        lower(python_only, np.zeros(1))


class Settings:
    WIDTH = 4


def class_attribute(out: tl.Tensor):
    out.store(0, Settings.WIDTH + len(Settings.__name__))


def test_attributes_of_classes_are_captured(run) -> None:
    out = np.zeros(1, np.float32)
    graph = run(class_attribute, out)
    assert out[0] == 12
    assert graph.facts["captures"]["Settings", "WIDTH"] == 4


def wrong_counts(out: tl.Tensor):
    out.store(0, len())
    out.store(0, min())
    out.store(0, tuple(zip((1,), (1, 2), strict=True)))
    out.store(0, isinstance(out))
    out.store(0, enumerate(3))
    out.store(0, math.sqrt("x"))


def test_wrong_arguments_of_python_functions(lower) -> None:
    with pytest.raises(TypeMismatch) as caught:
        lower(wrong_counts, np.zeros(1))
    assert len(caught.value.notes) == 5


# ---------------------------------------------------------------------- statements with messages
def prints(out: tl.Tensor, N: tl.constexpr):
    x = out.load(0, 4)
    tl.static_print("N is", N, x, f"{N=} {N:>3} {x.dtype} {x}")
    print("done", sep="")


def test_static_print(lower, capsys) -> None:
    lower(prints, np.zeros(4, np.float32), N=8)
    assert capsys.readouterr().out == "N is 8 <tile<4xf32>> N=8   8 f32 <tile<4xf32>>\ndone\n"


def static_assert_at_run_time(out: tl.Tensor, n):
    tl.static_assert(n > 0)


def test_static_assert_wants_constants(lower) -> None:
    with pytest.raises(TypeMismatch, match="must be known at compile time"):
        lower(static_assert_at_run_time, np.zeros(1), 3)


def unused_hints(out: tl.Tensor, n):
    m = tl.multiple_of(n, 8)
    tl.assume(m > 0)
    tl.debug_barrier()
    for _ in tl.range(tl.max_contiguous(m, 8), loop_unroll_factor=None):
        out.store(0, m)


def test_hints_change_nothing(run, lower) -> None:
    out = np.zeros(1, np.float32)
    run(unused_hints, out, 16)
    assert out[0] == 16
    assert lower(unused_hints, out, 16).find(For)[0].unroll == 1


# ---------------------------------------------------------------------- outside a kernel
def test_builtins_outside_a_kernel() -> None:
    assert tl.cdiv(7, 2) == 4
    assert tl.cdiv(-7, 2) == -3
    with pytest.raises(TileError, match=r"tl\.exp\(\) was called outside a kernel") as caught:
        tl.exp(1.0)
    assert "@tiledsl.jit" in str(caught.value)
    with pytest.raises(TileError, match="annotation"):
        tl.Tensor()


def test_builtins_describe_themselves() -> None:
    import inspect

    assert repr(tl.exp) == "<builtin tl.exp>"
    assert tl.exp.__doc__ == "e**x, elementwise."
    assert list(inspect.signature(tl.program_id).parameters) == ["axis"]


def test_language_exports_are_documented() -> None:
    assert len(set(tl.__all__)) == len(tl.__all__)
    for name in tl.__all__:
        assert getattr(tl, name).__doc__


def test_triton_names_have_hints(lower) -> None:
    from tiledsl.frontend.unsupported import missing_name

    error = missing_name("atomic_store", "tl.atomic_store", tl)
    assert isinstance(error, SyntaxNotSupported)
    assert error.hint
