"""Reference semantics of ops, run through the interpreter, against numpy, torch and values worked out by hand."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.unit.ir.harness import run_op
from tests.unit.ir.harness import same_bits
from tiledsl import dtypes
from tiledsl.dtypes import DType
from tiledsl.ir.op import Op
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tile

BF16 = ml_dtypes.bfloat16
NAN = float("nan")
INF = float("inf")


def floats(values: list[float], dtype: DType = dtypes.float32) -> np.ndarray:
    return np.array(values, dtype=np.float32).astype(dtype.numpy)


@pytest.mark.parametrize(
    ("cls", "torch_op"),
    [(ew.Add, torch.add), (ew.Sub, torch.sub), (ew.Mul, torch.mul), (ew.Div, torch.div)],
)
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16], ids=str)
def test_small_floats_round_once_per_op(cls: type[Op], torch_op: object, dtype: DType) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(512).astype(np.float32).astype(dtype.numpy) for _ in range(2))
    kind = torch.bfloat16 if dtype is dtypes.bfloat16 else torch.float16
    ta, tb = (torch.tensor(x.astype(np.float32)).to(kind) for x in (a, b))
    want = torch_op(ta, tb).float().numpy().astype(dtype.numpy)  # type: ignore[operator]
    assert same_bits(run_op(cls, a, b), want)


@pytest.mark.parametrize("a", [7, -7, 0, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("b", [2, -2, 3, -3, 1, -1, 2**31 - 1, -(2**31)])
def test_integer_division_truncates(a: int, b: int) -> None:
    x, y = np.array([a], np.int32), np.array([b], np.int32)
    quotient = math.trunc(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
    wrapped = (quotient + 2**31) % 2**32 - 2**31
    assert run_op(ew.FloorDiv, x, y)[0] == wrapped
    assert run_op(ew.Mod, x, y)[0] == a - quotient * b


def test_division_by_zero_and_unsigned() -> None:
    x, zero = np.array([5, -5], np.int32), np.zeros(2, np.int32)
    assert run_op(ew.FloorDiv, x, zero).tolist() == [0, 0]
    assert run_op(ew.Mod, x, zero).tolist() == [0, 0]
    big = np.array([2**32 - 1, 2**31], np.uint32)
    assert run_op(ew.FloorDiv, big, np.array([2, 3], np.uint32)).tolist() == [2**31 - 1, 2**31 // 3]
    assert run_op(ew.Mod, big, np.array([10, 7], np.uint32)).tolist() == [
        (2**32 - 1) % 10,
        2**31 % 7,
    ]
    wide = np.array([2**63 - 1, -(2**63)], np.int64)
    assert run_op(ew.FloorDiv, wide, np.array([10, 3], np.int64)).tolist() == [
        (2**63 - 1) // 10, -(2**63 // 3),
    ]  # fmt: skip


def test_float_mod_has_the_sign_of_the_dividend() -> None:
    got = run_op(ew.Mod, floats([5.5, -5.5, 5.5]), floats([2, 2, -2]))
    assert got.tolist() == [1.5, -1.5, 1.5]


def test_integers_wrap() -> None:
    top = np.array([2**31 - 1], np.int32)
    assert run_op(ew.Add, top, np.array([1], np.int32))[0] == -(2**31)
    assert run_op(ew.Mul, top, top)[0] == 1
    assert run_op(ew.Neg, np.array([-(2**31)], np.int32))[0] == -(2**31)
    assert run_op(ew.Abs, np.array([-(2**31), -3], np.int32)).tolist() == [-(2**31), 3]
    assert run_op(ew.Sub, np.array([0], np.uint8), np.array([1], np.uint8))[0] == 255


@pytest.mark.parametrize(("cls", "pick"), [(ew.Min, min), (ew.Max, max)])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_min_max_and_nan(cls: type[Op], pick: object, dtype: DType) -> None:
    a, b = floats([1, NAN, 2, NAN, INF], dtype), floats([3, 4, NAN, NAN, -INF], dtype)
    want = floats([pick(1, 3), 4, 2, NAN, pick(INF, -INF)], dtype)  # type: ignore[operator]
    assert same_bits(run_op(cls, a, b), want)
    want = floats([pick(1, 3), NAN, NAN, NAN, pick(INF, -INF)], dtype)  # type: ignore[operator]
    assert same_bits(run_op(cls, a, b, propagate_nan=True), want)


@pytest.mark.parametrize("predicate", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_with_nan(predicate: str) -> None:
    a, b = floats([1, NAN, 2, 2]), floats([NAN, NAN, 2, 3])
    want = getattr(torch, predicate)(torch.tensor(a), torch.tensor(b)).numpy()
    assert run_op(ew.Compare, a, b, predicate=predicate).tolist() == want.tolist()


def test_shifts() -> None:
    a = np.array([-8, -8, 5, -1, -1, 1], np.int32)
    b = np.array([1, 31, 40, 32, -1, 31], np.int32)
    assert run_op(ew.Shr, a, b).tolist() == [-4, -1, 0, -1, -1, 0]
    assert run_op(ew.Shl, a, b).tolist() == [-16, 0, 0, 0, 0, -(2**31)]
    u, by = np.array([2**31, 255], np.uint32), np.array([31, 32], np.uint32)
    assert run_op(ew.Shr, u, by).tolist() == [1, 0]


def test_bits_and_bools() -> None:
    a, b = np.array([True, True, False]), np.array([True, False, False])
    assert run_op(ew.And, a, b).tolist() == [True, False, False]
    assert run_op(ew.Or, a, b).tolist() == [True, True, False]
    assert run_op(ew.Xor, a, b).tolist() == [False, True, False]
    assert run_op(ew.Not, a).tolist() == [False, False, True]
    assert run_op(ew.Not, np.array([0, 5], np.int32)).tolist() == [-1, -6]
    ones = run_op(ew.Bitcast, floats([1.0, -0.0]), dtype=dtypes.int32)
    assert ones.tolist() == [0x3F800000, -(2**31)]


def cast(values: np.ndarray, dtype: DType) -> np.ndarray:
    return run_op(ew.Cast, values, dtype=dtype)


def test_casts_from_float_to_int_saturate() -> None:
    x = floats([1.9, -1.9, 3e9, -3e9, NAN, INF, -INF])
    limits = [1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1, -(2**31)]
    assert cast(x, dtypes.int32).tolist() == limits
    assert cast(x, dtypes.uint8).tolist() == [1, 0, 255, 0, 0, 255, 0]
    assert cast(floats([1e20, -1e20]), dtypes.int64).tolist() == [2**63 - 1, -(2**63)]
    assert cast(floats([1e20]), dtypes.uint64).tolist() == [2**64 - 1]


def test_casts_between_floats() -> None:
    x = floats([1 + 2**-8, 1 + 3 * 2**-8, 3.4e38])
    assert cast(x, dtypes.bfloat16).astype(np.float32).tolist() == [1.0, 1 + 2**-6, INF]
    big = floats([500, -1e6, INF, NAN, 1.0625])
    e4m3 = cast(big, dtypes.float8e4nv).astype(np.float32)
    assert same_bits(e4m3, floats([448, -448, 448, NAN, 1.0]))
    e5m2 = cast(floats([1e6, -INF]), dtypes.float8e5).astype(np.float32)
    assert e5m2.tolist() == [57344, -57344]
    assert cast(floats([1e6]), dtypes.float16).astype(np.float32).tolist() == [INF]


def test_casts_between_ints_and_bools() -> None:
    assert cast(np.array([300, -1], np.int32), dtypes.uint8).tolist() == [44, 255]
    assert cast(np.array([-1], np.int8), dtypes.int64).tolist() == [-1]
    assert cast(np.array([255], np.uint8), dtypes.int8).tolist() == [-1]
    assert cast(floats([0.0, -0.0, 0.5, NAN]), dtypes.int1).tolist() == [False, False, True, True]
    assert cast(np.array([True, False]), dtypes.float32).tolist() == [1.0, 0.0]


UNARY = {
    ew.Exp: torch.exp, ew.Exp2: torch.exp2, ew.Log: torch.log, ew.Log2: torch.log2,
    ew.Sqrt: torch.sqrt, ew.Rsqrt: torch.rsqrt, ew.Sin: torch.sin, ew.Cos: torch.cos,
    ew.Tanh: torch.tanh, ew.Erf: torch.erf, ew.Floor: torch.floor, ew.Ceil: torch.ceil,
    ew.Neg: torch.neg, ew.Abs: torch.abs,
}  # fmt: skip


@pytest.mark.parametrize("cls", UNARY, ids=lambda cls: cls.opcode)
def test_functions_agree_with_torch(cls: type[Op]) -> None:
    x = np.abs(np.random.default_rng(2).standard_normal(256)).astype(np.float32) + 0.1
    want = UNARY[cls](torch.tensor(x)).numpy()
    np.testing.assert_allclose(run_op(cls, x), want, rtol=1e-6, atol=1e-7)
    narrow = run_op(cls, x.astype(BF16))
    wide = UNARY[cls](torch.tensor(x).to(torch.bfloat16)).float().numpy()
    np.testing.assert_allclose(narrow.astype(np.float32), wide, rtol=2**-7)


def test_fma_rounds_once() -> None:
    a = floats([1 + 2**-12])
    got = run_op(ew.Fma, a, a, floats([-1.0]))
    assert got[0] == np.float32(2**-11 + 2**-24)
    assert (a * a - 1)[0] != got[0]


def test_select() -> None:
    c = np.array([True, False])
    assert run_op(ew.Select, c, floats([1, NAN]), floats([NAN, 2])).tolist() == [1, 2]


def test_shape_ops() -> None:
    x = np.arange(24, dtype=np.int32).reshape(4, 6)
    np.testing.assert_array_equal(run_op(tile.Transpose, x), x.T)
    np.testing.assert_array_equal(run_op(tile.Reshape, x, shape=(3, 8)), x.reshape(3, 8))
    np.testing.assert_array_equal(run_op(tile.ExpandDims, x, axis=1), x[:, None, :])
    row = x[:1]
    np.testing.assert_array_equal(run_op(tile.Broadcast, row, shape=(5, 6)), np.repeat(row, 5, 0))
    np.testing.assert_array_equal(run_op(tile.Arange, start=-3, end=5), np.arange(-3, 5))


def test_dot() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((16, 32)).astype(BF16), rng.standard_normal((32, 24)).astype(BF16)
    acc = rng.standard_normal((16, 24)).astype(np.float32)
    want = acc + a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(run_op(mma.Dot, a, b, acc), want, rtol=1e-5, atol=1e-5)
    i = rng.integers(-128, 128, (16, 32), dtype=np.int8)
    zero = np.zeros((16, 16), np.int32)
    got = run_op(mma.Dot, i, np.ascontiguousarray(i.T), zero)
    np.testing.assert_array_equal(got, i.astype(np.int32) @ i.T.astype(np.int32))
