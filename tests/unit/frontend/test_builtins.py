"""Every function of the language: its values in the interpreter and the types it gives."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import tiledsl.language as tl
from tiledsl.errors import TypeMismatch
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.ops.mma import Dot

MATH = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "erf": np.vectorize(math.erf), "floor": np.floor, "ceil": np.ceil, "abs": np.abs,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


def apply(x: tl.Tensor, out: tl.Tensor, F: tl.constexpr):
    out.store(0, F(x.load(0, 16)))


@pytest.mark.parametrize("name", sorted(MATH))
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_math(run, name: str, dtype: type) -> None:
    x = np.linspace(0.1, 6.1, 16).astype(dtype)
    out = np.empty(16, dtype)
    run(apply, x, out, F=getattr(tl, name))
    rtol = {2: 1e-2, 4: 1e-5, 8: 1e-9}[np.dtype(dtype).itemsize]
    np.testing.assert_allclose(out.astype(float), MATH[name](x.astype(float)), rtol=rtol, atol=rtol)


def as_methods(x: tl.Tensor, out: tl.Tensor):
    a = x.load(0, 16)
    out.store(
        0, a.exp().log().to(tl.float32).reshape(4, 4).T.reshape((16,)).cast(tl.float32).ravel()
    )


def test_methods_mirror_functions(run) -> None:
    x, out = np.arange(16, dtype=np.float32), np.empty(16, np.float32)
    run(as_methods, x, out)
    np.testing.assert_allclose(out, x.reshape(4, 4).T.ravel(), rtol=1e-6)


def of_numbers(out: tl.Tensor):
    out.store(0, tl.exp(1) + tl.sqrt(4.0) + tl.maximum(1, 2) + tl.abs(-3) + tl.sigmoid(0))


def test_numbers_are_accepted(run) -> None:
    out = np.empty(1, np.float64)
    run(of_numbers, out)
    np.testing.assert_allclose(out[0], np.float32(math.e) + 2 + 2 + 3 + 0.5, rtol=1e-6)


def choices(x: tl.Tensor, y: tl.Tensor, out: tl.Tensor):
    a, b = x.load(0, 8), y.load(0, 8)
    out.store((0, 0), tl.maximum(a, b))
    out.store((1, 0), tl.minimum(a, b))
    out.store((2, 0), tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL))
    out.store((3, 0), tl.clamp(a, -1, 1.5))
    out.store((4, 0), tl.clamp(a, min=-1, max=1.5, propagate_nan=tl.PropagateNan.ALL))
    out.store((5, 0), tl.where(a > 0, a, 0))
    out.store((6, 0), tl.where(a, 1, b))
    out.store((7, 0), tl.where(x.shape[0] > 4, a, b))
    out.store((8, 0), tl.fma(a, b, 1))


def test_choices(run) -> None:
    x = np.array([1, -2, np.nan, 0, 3, -0.5, 2, np.nan], np.float32)
    y = np.array([0, 5, 1, np.nan, 2, -1, 2, np.nan], np.float32)
    out = np.empty((9, 8), np.float32)
    run(choices, x, y, out)
    with np.errstate(invalid="ignore"):
        rows = [np.fmax(x, y), np.fmin(x, y), np.maximum(x, y), np.fmin(np.fmax(x, -1), 1.5), np.clip(x, -1, 1.5),
                np.where(x > 0, x, 0), np.where(x != 0, 1, y), x, x * y + 1]  # fmt: skip
    np.testing.assert_array_equal(out, np.array(rows, np.float32))


def where_dtype(x: tl.Tensor, out: tl.Tensor):
    a = x.load(0, 4)
    tl.static_assert(tl.where(a > 0, a, 0.0).dtype == tl.float16)
    tl.static_assert(tl.where(a > 0, a, tl.zeros((4,), tl.float32)).dtype == tl.float32)
    tl.static_assert(tl.where(a[:, None] > 0, 1, a[None, :]).shape == (4, 4))
    tl.static_assert(tl.where(a > 0, 1, 0).dtype == tl.int32)
    tl.static_assert(tl.maximum(a, 1.0).dtype == tl.float16)


def test_where_promotes_as_plus(lower) -> None:
    lower(where_dtype, np.zeros(4, np.float16), np.zeros(4, np.float16))


def makers(out: tl.Tensor, s):
    out.store((0, 0), tl.zeros((8,), tl.float32) + tl.zeros([8], tl.int32))
    out.store((1, 0), tl.full((8,), 2, tl.float32))
    out.store((2, 0), tl.full([8], s, tl.int32))
    out.store((3, 0), tl.arange(3, 11))
    out.store(
        (4, 0), tl.zeros_like(tl.arange(0, 8)) + tl.full_like(tl.arange(0, 8), 1.0, tl.float32)
    )
    out.store((5, 0), tl.broadcast_to(s, (8,)))
    out.store((6, 0), tl.broadcast_to(tl.arange(0, 1), 8))
    out.store((7, 0), tl.zeros([], tl.float32) + tl.full([], 3, tl.float32) + tl.arange(0, 8))
    out.store((8, 0), tl.full((8,), 7.0, tl.int32))


def test_makers(run) -> None:
    out = np.empty((9, 8), np.float32)
    run(makers, out, 2.5)
    i = np.arange(8)
    rows = [0 * i, 0 * i + 2, 0 * i + 2, i + 3, 0 * i + 1, 0 * i + 2.5, 0 * i, i + 3, 0 * i + 7]
    np.testing.assert_array_equal(out, np.array(rows, np.float32))


def shapes(x: tl.Tensor, out: tl.Tensor):
    a = x.load((0, 0, 0), (2, 3, 4))
    tl.static_assert(tl.trans(a).shape == (2, 4, 3))
    tl.static_assert(tl.trans(a, 2, 0, 1).shape == (4, 2, 3))
    tl.static_assert(a.trans((1, 0, 2)).shape == (3, 2, 4))
    tl.static_assert(tl.permute(a, (-1, 0, 1)).shape == (4, 2, 3))
    tl.static_assert(tl.permute(a, 0, 1, 2).shape == (2, 3, 4))
    tl.static_assert(
        tl.reshape(a, 6, 4).shape == (6, 4)
        and tl.reshape(a, (24,), can_reorder=True).shape == (24,)
    )
    tl.static_assert(
        tl.expand_dims(a, 0).shape == (1, 2, 3, 4) and a.expand_dims(-1).shape == (2, 3, 4, 1)
    )
    tl.static_assert(tl.expand_dims(a, (0, 2)).shape == (1, 2, 1, 3, 4))
    tl.static_assert(a.view(4, 6).broadcast_to(4, 6).shape == (4, 6))
    out.store((0, 0, 0), tl.permute(a, (2, 0, 1)))


def test_shapes(run) -> None:
    x, out = np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.empty((4, 2, 3), np.float32)
    run(shapes, x, out)
    np.testing.assert_array_equal(out, x.transpose(2, 0, 1))


def casts(x: tl.Tensor, out: tl.Tensor):
    a = x.load(0, 4)
    out.store((0, 0), a.to(tl.int32))
    out.store((1, 0), a.to(tl.int32, bitcast=True).to(tl.float32, bitcast=True))
    out.store((2, 0), a.to(tl.float8e4nv, fp_downcast_rounding="rtne"))
    out.store((3, 0), tl.cast(a, tl.int1))
    out.store((4, 0), tl.cast(2.75, tl.int32) + tl.zeros((4,), tl.int32))
    tl.static_assert(a.to(a.dtype).dtype == tl.float32)


def test_casts(run) -> None:
    x, out = np.array([-1.7, 0, 500, 2.5], np.float32), np.empty((5, 4), np.float32)
    run(casts, x, out)
    np.testing.assert_array_equal(
        out, [[-1, 0, 500, 2], x, [-1.75, 0, 448, 2.5], [1, 0, 1, 1], [2, 2, 2, 2]]
    )


def cast_up(x: tl.Tensor):
    x.store(0, x.load(0, 4).to(tl.float16, fp_downcast_rounding="rtp"))


def test_other_roundings_are_refused(lower) -> None:
    with pytest.raises(TypeMismatch, match="must be 'rtne' or 'rtz'"):
        lower(cast_up, np.zeros(4, np.float32))


# ---------------------------------------------------------------------- the grid
def grid_ids(out: tl.Tensor):
    x, y, z = tl.program_id(0), tl.program_id(axis=1), tl.program_id(2)
    n = tl.num_programs(0) * tl.num_programs(1) * tl.num_programs(2)
    out.store((z, y, x), x + 10 * y + 100 * z + 1000 * n)


def test_grid(run) -> None:
    out = np.zeros((2, 3, 4), np.int32)
    run(grid_ids, out, grid=(4, 3, 2))
    z, y, x = np.meshgrid(range(2), range(3), range(4), indexing="ij")
    np.testing.assert_array_equal(out, x + 10 * y + 100 * z + 24000)


def run_time_cdiv(out: tl.Tensor, n, d):
    out.store(0, tl.cdiv(n, 8))
    out.store(1, tl.cdiv(n, d))
    out.store(2, tl.cdiv(17, 4))


def test_cdiv(run) -> None:
    out = np.zeros(3, np.int32)
    run(run_time_cdiv, out, 17, 5)
    assert out.tolist() == [3, 4, 5]


# ---------------------------------------------------------------------- loads and stores
def blocks(x: tl.Tensor, out: tl.Tensor, n):
    i = tl.program_id(0)
    a = x.load((i * 2, n), (2, 4), other=-1)
    b = x.load([i * 2, 0], [2, 4])
    out.store((i * 2, 0), a + b)


def test_blocks(run, lower) -> None:
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    out = np.zeros((3, 4), np.float32)
    run(blocks, x, out, 3, grid=(2, 1, 1))
    shifted = np.full((3, 4), -1, np.float32)
    shifted[:, :2] = x[:, 3:]
    np.testing.assert_array_equal(out, shifted + x[:, :4])
    load = lower(blocks, x, out, 3).find(Load)[0]
    assert load.other is not None
    assert load.block_shape == (2, 4)


def batches(x: tl.Tensor, out: tl.Tensor):
    z = tl.program_id(2)
    tile = x.load((z, 0, 0), (4, 4))
    tl.static_assert(tile.shape == (4, 4))
    out.store((z, 0, 0), tile.T)


def test_leading_dimensions_may_be_left_out(run, lower) -> None:
    x, out = np.arange(48, dtype=np.float32).reshape(3, 4, 4), np.zeros((3, 4, 4), np.float32)
    run(batches, x, out, grid=(1, 1, 3))
    np.testing.assert_array_equal(out, x.transpose(0, 2, 1))
    graph = lower(batches, x, out)
    (load,), (store,) = graph.find(Load), graph.find(Store)
    assert (load.block_shape, load.squeeze) == ((1, 4, 4), (0,))
    assert (store.block_shape, store.squeeze) == ((1, 4, 4), (0,))


def scalar_store(out: tl.Tensor, n):
    out.store((n, 1), 2.5)
    out.store((0, n), n)


def test_scalars_are_stored_as_one_element(run) -> None:
    out = np.zeros((3, 3), np.float16)
    run(scalar_store, out, 2)
    assert out.tolist() == [[0, 0, 2], [0, 0, 0], [0, 2.5, 0]]


# ---------------------------------------------------------------------- dot
def dots(
    a: tl.Tensor,
    b: tl.Tensor,
    out: tl.Tensor,
    PRECISION: tl.constexpr,
    TF32: tl.constexpr,
    DTYPE: tl.constexpr,
):
    x, y = a.load((0, 0), (16, 16)), b.load((0, 0), (16, 16))
    z = tl.dot(x, y, input_precision=PRECISION, allow_tf32=TF32, out_dtype=DTYPE)
    tl.static_assert(DTYPE is None or z.dtype == DTYPE)
    out.store((0, 0), tl.dot(x, y, acc=z, max_num_imprecise_acc=0))


@pytest.mark.parametrize(
    ("dtype", "precision", "tf32", "want"),
    [
        (np.float32, None, None, ""),
        (np.float32, "tf32x3", None, "tf32x3"),
        (np.float32, None, True, "tf32"),
        (np.float32, None, False, "ieee"),
        (np.float16, "tf32", True, ""),
    ],
)
def test_dot_precision(
    lower, dtype: type, precision: str | None, tf32: bool | None, want: str
) -> None:
    a = np.zeros((16, 16), dtype)
    graph = lower(
        dots, a, a, np.zeros((16, 16), np.float32), PRECISION=precision, TF32=tf32, DTYPE=None
    )
    assert graph.find(Dot)[0].precision == want


@pytest.mark.parametrize("out_dtype", [None, tl.float32, tl.float16])
def test_dot_values(run, out_dtype) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 4, (2, 16, 16)).astype(np.float16)
    out = np.empty((16, 16), np.float32)
    run(dots, a, b, out, PRECISION=None, TF32=None, DTYPE=out_dtype)
    np.testing.assert_array_equal(out, 2 * (a.astype(float) @ b.astype(float)))


def test_int8_dot_gives_int32(run) -> None:
    a = np.full((16, 16), 100, np.int8)
    out = np.empty((16, 16), np.int32)
    run(dots, a, a, out, PRECISION=None, TF32=None, DTYPE=None)
    assert (out == 2 * 16 * 10000).all()


def test_dot_refuses_unknown_precisions(lower) -> None:
    a = np.zeros((16, 16), np.float32)
    with pytest.raises(TypeMismatch, match="input_precision must be one of"):
        lower(dots, a, a, a, PRECISION="fp8", TF32=None, DTYPE=None)
