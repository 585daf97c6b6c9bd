"""Operators, dtypes, broadcasting, conditions and subscripts: types in the graph and values when run."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tiledsl.language as tl
from tiledsl import dtypes
from tiledsl.errors import TypeMismatch
from tiledsl.frontend.lower_ast import lower_function
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import spec
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

FLOAT = {"x": 1.5, "y": -2.25}


# ---------------------------------------------------------------------- dtypes
def add(x, y, out: tl.Tensor):
    out.store(0, x + y)


def subtract(x, y, out: tl.Tensor):
    out.store(0, x - y)


def divide(x, y, out: tl.Tensor):
    out.store(0, x / y)


def modulo(x, y, out: tl.Tensor):
    out.store(0, x % y)


def floor_divide(x, y, out: tl.Tensor):
    out.store(0, x // y)


def shift_right(x, y, out: tl.Tensor):
    out.store(0, x >> y)


def bit_and(x, y, out: tl.Tensor):
    out.store(0, x & y)


def result_dtype(stored, fn, x: str, y: object) -> str:
    """The dtype of `x op y`; y is a dtype's name, or a number of the source."""
    specs = {"x": ScalarSpec(dtypes.BY_NAME[x]), "out": spec(dtypes.float32, 1)}
    if isinstance(y, str):
        specs["y"] = ScalarSpec(dtypes.BY_NAME[y])
        graph = lower_function(fn, specs, {})
    else:
        graph = lower_function(fn, specs, {"y": y})
    store = graph.find(type(graph.body.ops[-1]))[-1]
    value = store.value
    while value.defining_op is not None and value.defining_op.opcode in ("tile.splat",):
        value = value.defining_op.operands[0]
    if value.defining_op is not None and value.defining_op.opcode == "elementwise.cast":
        value = value.defining_op.operands[0]
    return str(value.type)


@pytest.mark.parametrize(
    ("fn", "x", "y", "want"),
    [
        (add, "i32", "i32", "i32"),
        (add, "i32", "i64", "i64"),
        (add, "i32", "u32", "u32"),
        (add, "i64", "u32", "i64"),
        (add, "f16", "f32", "f32"),
        (add, "f16", "bf16", "f16"),
        (add, "bf16", "i32", "f32"),
        (add, "bf16", "e4m3", "f32"),
        (add, "f16", "i64", "f16"),
        (add, "i1", 2**31, "u32"),
        (add, "bf16", "bf16", "bf16"),
        (add, "f64", "f32", "f64"),
        (add, "i1", "f16", "f16"),
        (add, "f16", 2.5, "f16"),
        (add, "bf16", 1, "bf16"),
        (add, "i64", 1, "i64"),
        (add, "u8", 1, "u8"),
        (add, "i32", 0.5, "f32"),
        (add, "i64", 0.5, "f32"),
        (add, "i1", 1, "i32"),
        (add, "i32", True, "i32"),
        (add, "f32", 1e300, "f32"),
        (divide, "i32", "i32", "f32"),
        (divide, "i64", 2, "f32"),
        (divide, "f16", 2, "f32"),
        (divide, "bf16", "bf16", "f32"),
        (divide, "f64", 2, "f64"),
        (modulo, "i32", 3, "i32"),
        (modulo, "f16", "f16", "f32"),
        (floor_divide, "i64", "i32", "i64"),
        (floor_divide, "u32", 7, "u32"),
        (shift_right, "i32", 3, "i32"),
        (shift_right, "i32", "u32", "i32"),
        (shift_right, "u32", "i32", "u32"),
        (bit_and, "i32", 7, "i32"),
        (bit_and, "i1", "i1", "i1"),
        (bit_and, "u8", "i32", "i32"),
    ],
)
def test_result_dtype(stored, fn, x: str, y: object, want: str) -> None:
    assert result_dtype(stored, fn, x, y) == want


@pytest.mark.parametrize(
    ("fn", "x", "y"),
    [
        (floor_divide, "f32", 2),
        (floor_divide, "i32", "f16"),
        (floor_divide, "i32", "u32"),
        (modulo, "u32", "i32"),
        (bit_and, "f32", "i32"),
        (shift_right, "f16", 1),
        (add, "u8", -1),
        (add, "u8", 256),
        (add, "i32", 2**31),
    ],
)
def test_operands_that_do_not_fit(stored, fn, x: str, y: object) -> None:
    with pytest.raises(TypeMismatch):
        result_dtype(stored, fn, x, y)


# ---------------------------------------------------------------------- values
def arithmetic(x: tl.Tensor, y: tl.Tensor, out: tl.Tensor):
    a, b = x.load(0, 8), y.load(0, 8)
    out.store((0, 0), a + b)
    out.store((1, 0), a - b)
    out.store((2, 0), a * b)
    out.store((3, 0), a / b)
    out.store((4, 0), a % b)
    out.store((5, 0), -a)
    out.store((6, 0), +b)
    out.store((7, 0), abs(a))
    out.store((8, 0), min(a, b))
    out.store((9, 0), max(a, b, 1))


def test_arithmetic(run) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 8)).astype(np.float32) * 5
    out = np.empty((10, 8), np.float32)
    run(arithmetic, x, y, out)
    rows = [
        x + y,
        x - y,
        x * y,
        x / y,
        np.fmod(x, y),
        -x,
        y,
        abs(x),
        np.minimum(x, y),
        np.maximum(np.maximum(x, y), 1),
    ]
    np.testing.assert_array_equal(out, np.array(rows))


def integers(x: tl.Tensor, y: tl.Tensor, out: tl.Tensor):
    a, b = x.load(0, 8), y.load(0, 8)
    out.store((0, 0), a // b)
    out.store((1, 0), a % b)
    out.store((2, 0), a & b)
    out.store((3, 0), a | b)
    out.store((4, 0), a ^ b)
    out.store((5, 0), a << 2)
    out.store((6, 0), a >> 1)
    out.store((7, 0), ~a)


def test_integers_truncate_toward_zero(run) -> None:
    x = np.array([7, -7, 7, -7, 0, 100, -100, 5], np.int32)
    y = np.array([2, 2, -2, -2, 3, 7, 7, 5], np.int32)
    out = np.empty((8, 8), np.int32)
    run(integers, x, y, out)
    q = np.trunc(x / y).astype(np.int32)
    np.testing.assert_array_equal(
        out, np.array([q, x - q * y, x & y, x | y, x ^ y, x << 2, x >> 1, ~x])
    )


def on_constants(out: tl.Tensor):
    out.store(0, -7 // 2)
    out.store(1, -7 % 3)
    out.store(2, 2**10)
    out.store(3, 7 / 2)


def test_constants_follow_python(run) -> None:
    out = np.empty(4, np.float32)
    run(on_constants, out)
    np.testing.assert_array_equal(out, [-4, 2, 1024, 3.5])


def unsigned_shift(x: tl.Tensor, out: tl.Tensor):
    out.store(0, x.load(0, 4) >> 1)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_shift_right_follows_the_left_operand(run, dtype: type) -> None:
    x = np.array([-8, -1, 5, 0], np.int32).view(dtype)
    out = np.empty(4, dtype)
    run(unsigned_shift, x, out)
    np.testing.assert_array_equal(out, x >> np.array(1, dtype))


# ---------------------------------------------------------------------- comparisons and conditions
def comparisons(x: tl.Tensor, out: tl.Tensor, s):
    a = x.load(0, 8)
    out.store((0, 0), a > 0)
    out.store((1, 0), -1 <= a < s)
    out.store((2, 0), a == a)  # noqa: PLR0124
    out.store((3, 0), a != a)  # noqa: PLR0124
    out.store((4, 0), a > 0 and a < 2)
    out.store((5, 0), a > 0 or a < -2)
    out.store((6, 0), not a)
    out.store((7, 0), (a > 0) & (a < 2) | ~(a < 3))


def test_comparisons(run) -> None:
    x = np.array([-3, -1, -0.5, 0, 1, 1.5, 4, np.nan], np.float32)
    out = np.empty((8, 8), np.float32)
    run(comparisons, x, out, 1.25)
    with np.errstate(invalid="ignore"):
        rows = [x > 0, (x >= -1) & (x < 1.25), ~np.isnan(x), np.isnan(x), (x > 0) & (x < 2), (x > 0) | (x < -2), x == 0,
                (x > 0) & (x < 2) | ~(x < 3)]  # fmt: skip
    np.testing.assert_array_equal(out, np.array(rows, np.float32))


def bools(x: tl.Tensor, out: tl.Tensor):
    a, b = x.load(0, 4) > 0, x.load(4, 4) > 0
    out.store((0, 0), a + b)
    out.store((1, 0), a * b)
    out.store((2, 0), a.to(tl.int32) + b)


def test_bools_count_as_one_bit(run) -> None:
    x = np.array([1, 1, 0, 0, 1, 0, 1, 0], np.float32)
    out = np.empty((3, 4), np.float32)
    run(bools, x, out)
    np.testing.assert_array_equal(out, [[0, 1, 1, 0], [1, 0, 0, 0], [2, 1, 1, 0]])


def compile_time_conditions(out: tl.Tensor, bias, MODE: tl.constexpr, N: tl.constexpr):
    value = 0
    if bias is not None and bias.shape[0] > 0:
        value += 1
    if MODE == "sum" or unknown_name:  # noqa: F821 - not evaluated
        value += 10
    if MODE in ("max", "sum") and MODE is not None:
        value += 100
    if not N:
        value += 1000
    if 0 < N < 8:
        value += 10000
    if out.dtype == tl.float32 and out.dtype is tl.float32 and out.dtype != tl.float16:
        value += 100000
    out.store(0, value)


def test_compile_time_conditions(run) -> None:
    out = np.empty(1, np.float32)
    run(compile_time_conditions, out, None, MODE="sum", N=0)
    assert out[0] == 101110
    run(compile_time_conditions, out, None, MODE="sum", N=4)
    assert out[0] == 110110


def ternaries(x: tl.Tensor, out: tl.Tensor, n, FLAG: tl.constexpr):
    a = x.load(0, 4)
    out.store((0, 0), a if FLAG else missing)  # noqa: F821 - not evaluated
    out.store((1, 0), a if n > 2 else -a)
    s, t = (n, 1) if n > 2 else (0, 2)
    out.store((2, 0), tl.zeros((4,), tl.int32) + s + 10 * t)


@pytest.mark.parametrize("n", [1, 5])
def test_ternaries(run, opcodes, n: int) -> None:
    x = np.arange(4, dtype=np.float32)
    out = np.empty((3, 4), np.float32)
    graph = run(ternaries, x, out, n, FLAG=True)
    assert opcodes(graph).count("elementwise.select") == 3
    np.testing.assert_array_equal(out, [x, x if n > 2 else -x, [n + 10 if n > 2 else 20] * 4])


# ---------------------------------------------------------------------- shapes
def subscripts(x: tl.Tensor, out: tl.Tensor):
    a = x.load(0, 4)
    b = a[:, None] * 10 + a[None, :]
    tl.static_assert(b.shape == (4, 4))
    tl.static_assert(a[None, :, None].shape == (1, 4, 1))
    tl.static_assert(a[:].shape == (4,))
    shape = b.shape[:-1] + (2,)  # noqa: RUF005
    tl.static_assert(shape == (4, 2) and shape[-1] == 2 and len(shape) == 2)
    tl.static_assert((1.0 + x.shape[0])[None, None].shape == (1, 1))
    out.store((0, 0), b)


def test_subscripts(run) -> None:
    x = np.arange(4, dtype=np.float32)
    out = np.empty((4, 4), np.float32)
    run(subscripts, x, out)
    np.testing.assert_array_equal(out, x[:, None] * 10 + x)


def ranks(x: tl.Tensor, v: tl.Tensor, out: tl.Tensor):
    out.store((0, 0), x.load((0, 0), (4, 8)) + v.load(0, 8))


def test_leading_axes_are_added(run, opcodes) -> None:
    x, v = np.ones((4, 8), np.float32), np.arange(8, dtype=np.float32)
    out = np.empty((4, 8), np.float32)
    graph = run(ranks, x, v, out)
    made = [name for name in opcodes(graph) if name.startswith("tile.")]
    assert made == ["tile.expand_dims", "tile.broadcast"]
    np.testing.assert_array_equal(out, x + v)


def tensor_attributes(x: tl.Tensor, out: tl.Tensor):
    M, N = x.shape
    tl.static_assert(x.ndim == 2 and x.dtype == tl.bfloat16 and len(x.strides) == 2)
    out.store(0, M * 1000 + N)
    out.store(1, x.stride(0) * 1000 + x.stride(-1))
    out.store(2, x.shape[-1] + x.strides[0])


def test_tensor_attributes(run, opcodes) -> None:
    x = np.zeros((3, 5), ml_dtypes.bfloat16)
    out = np.empty(3, np.int64)
    graph = run(tensor_attributes, x, out)
    assert out.tolist() == [3005, 5001, 10]
    assert graph.find(type(graph.body.ops[0]))[0].results[0].name == "M"


def value_attributes(x: tl.Tensor, out: tl.Tensor):
    a = x.load((0, 0), (4, 8))
    tl.static_assert(a.shape[0] == 4 and a.ndim == 2 and a.numel == 32 and a.dtype == x.dtype)
    tl.static_assert(a.T.shape == (8, 4) and a.dtype.is_floating() and not a.dtype.is_int())
    tl.static_assert(a.dtype.primitive_bitwidth == 32 and tl.int8.itemsize == 1)
    n = x.shape[0]
    tl.static_assert(n.dtype == tl.int32 and n.shape == () and isinstance(n, tl.tensor))
    tl.static_assert(isinstance(4, tl.constexpr) and not isinstance(a, tl.constexpr))
    out.store((0, 0), a.to(tl.float16).exp().T)


def test_value_attributes(lower, stored) -> None:
    x, out = np.zeros((4, 8), np.float32), np.zeros((8, 4), np.float32)
    assert stored(lower(value_attributes, x, out)).type == TileType((8, 4), dtypes.float16)


def number_methods(out: tl.Tensor):
    low, three = float("-inf"), 3
    out.store(0, tl.maximum(low.to(tl.float32), three.to(tl.float32)))
    out.store(1, (2.25).exp2().to(tl.float16).to(tl.float32))


def test_methods_of_numbers(run) -> None:
    """Triton makes a scalar of a number that a variable holds."""
    out = np.empty(2, np.float32)
    run(number_methods, out)
    np.testing.assert_allclose(out, [3.0, np.exp2(2.25)], rtol=1e-3)


def scalar_names(x: tl.Tensor, n):
    y = n
    z = n + 1
    x.store(0, y + z)


def test_names_stay_with_their_first_variable(lower) -> None:
    graph = lower(scalar_names, np.zeros(4, np.int32), 3)
    assert [a.name for a in graph.args] == ["x", "n"]
    assert "z" in {r.name for op in graph.walk() for r in op.results}
    assert graph.args[1].type == ScalarType(dtypes.int32)
