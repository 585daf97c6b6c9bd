"""NaNs of both signs in sorts, the first elements of rows, and reductions that give an index."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl import emulate
from tiledsl.compiler import modules
from tiledsl.runtime.interop import numpy_view

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
NANS = {
    F32: (0x7FC00000, 0x7F800001, 0x7FFFFFFF),
    F64: (0x7FF8 << 48, (0x7FF0 << 48) + 1, (1 << 63) - 1),
    F16: (0x7E00, 0x7C01, 0x7FFF),
    BF16: (0x7FC0, 0x7F81, 0x7FFF),
    E4: (0x7F,),
    E5: (0x7E, 0x7D, 0x7F),
}
"""Bits of NaNs of each dtype, without their sign."""


@tiledsl.jit
def ordered(x: tl.Tensor, o: tl.Tensor, M: tl.constexpr, N: tl.constexpr, DESC: tl.constexpr):
    o.store((0, 0), tl.sort(x.load((0, 0), (M, N)), 1, DESC))


@tiledsl.jit
def first_few(x: tl.Tensor, o: tl.Tensor, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    o.store((0, 0), tl.topk(x.load((0, 0), (M, N)), K, 1))


# fmt: off
@tiledsl.jit
def extrema(x: tl.Tensor, at: tl.Tensor, best: tl.Tensor, M: tl.constexpr, N: tl.constexpr):
    tile = x.load((0, 0), (M, N))
    at.store((0, 0), tl.argmax(tile, 1)[None, :])
    at.store((1, 0), tl.argmin(tile, 1)[None, :])
    high, where_high = tl.max(tile, 1, return_indices=True)
    low, where_low = tl.min(tile, 1, return_indices=True)
    at.store((2, 0), where_high[None, :])
    at.store((3, 0), where_low[None, :])
    best.store((0, 0), high[None, :].to(best.dtype))
    best.store((1, 0), low[None, :].to(best.dtype))
# fmt: on


def bits(x: torch.Tensor) -> np.ndarray:
    return numpy_view(x).view(f"u{x.element_size()}")


def values(dtype: torch.dtype, M: int, N: int) -> torch.Tensor:
    """Numbers, zeros, infinities and NaNs, each of both signs."""
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.standard_normal((M, N)) * 4).to(dtype)
    raw, top = bits(x), 1 << (8 * x.element_size() - 1)
    infinity = torch.tensor([1e30]).to(dtype)  # of e4m3 the largest number
    for item in (0, int(bits(infinity)[0]), *NANS[dtype]):
        for sign in (0, top):
            raw[rng.random((M, N)) < 0.04] = item | sign
    return x


def emulated(kernel: tiledsl.JitFunction, args: dict[str, torch.Tensor], **options: object) -> None:
    _, request = kernel.request_for(tuple(args.values()), options, (1,))
    made = next(modules(request))
    emulate.run(made.module, {n: numpy_view(v, n) for n, v in args.items()}, (1,), seed=1)


@pytest.mark.parametrize("dtype", NANS, ids=str)
@pytest.mark.parametrize("descending", [True, False], ids=["down", "up"])
@pytest.mark.parametrize("N", [64, 50])
def test_rows_are_sorted_to_the_same_bits(dtype: torch.dtype, N: int, *, descending: bool) -> None:
    x = values(dtype, 4, N)
    got, want = torch.zeros_like(x), torch.zeros_like(x)
    ordered[(1,)](x, want, 4, N, descending)
    emulated(ordered, {"x": x, "o": got}, M=4, N=N, DESC=descending, num_warps=4)
    np.testing.assert_array_equal(bits(got), bits(want))
    exact = x.double().sort(1, descending).values  # for which a NaN of either sign is the largest
    assert torch.equal(want.double().nan_to_num(1e9), exact.nan_to_num(1e9))
    top = 1 << (8 * x.element_size() - 1)
    assert not (bits(want)[want.double().isnan().numpy()] & top).any()


@pytest.mark.parametrize("dtype", NANS, ids=str)
def test_few_of_a_row_are_the_same_bits(dtype: torch.dtype) -> None:
    x = values(dtype, 3, 512)
    got, want = (torch.zeros(3, 8, dtype=dtype) for _ in range(2))
    first_few[(1,)](x, want, 3, 512, 8)
    emulated(first_few, {"x": x, "o": got}, M=3, N=512, K=8, num_warps=4)
    np.testing.assert_array_equal(bits(got), bits(want))
    assert want.double().isnan().all()


@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("dtype", NANS, ids=str)
@pytest.mark.parametrize("N", [64, 50])
def test_extrema_are_those_of_the_numbers(dtype: torch.dtype, N: int, warps: int) -> None:
    M = 16
    x = values(dtype, M, N)
    raw, nan = bits(x), NANS[dtype][0]
    raw[0], raw[1], raw[2] = nan, nan, nan  # no number, one of them
    raw[1, 17], raw[2, N - 1] = 0, 0
    wide = F64 if dtype is F64 else F32
    made = [
        {"at": torch.zeros(4, M, dtype=torch.int32), "best": torch.zeros(2, M, dtype=wide)}
        for _ in range(2)
    ]
    extrema[(1,)](x, *made[0].values(), M, N)
    emulated(extrema, {"x": x, **made[1]}, M=M, N=N, num_warps=warps)
    assert torch.equal(made[0]["at"], made[1]["at"])
    torch.testing.assert_close(made[0]["best"], made[1]["best"], rtol=0, atol=0, equal_nan=True)
    numbers = x.double()
    for row, (fill, pick) in enumerate(((-np.inf, np.argmax), (np.inf, np.argmin))):
        # A stable order: numbers first, then the extremum, then the place.
        filled = numbers.nan_to_num(fill, np.inf, -np.inf).numpy()
        ends = [i for i in range(M) if not np.isinf(filled[i, pick(filled[i])]) or i == 0]
        at = made[0]["at"][row].numpy()
        np.testing.assert_array_equal(at[ends], pick(filled, 1)[ends])
    assert made[0]["best"][:, 0].isnan().all()
    assert made[0]["at"][:, 1].eq(17).all()


@tiledsl.jit
def first_of_all(
    x: tl.Tensor, at: tl.Tensor, best: tl.Tensor, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr
):
    """Along the first, the second and the last dimension, and of all elements."""
    tile = x.load((0, 0), (A * B, C)).reshape(A, B, C)
    for axis in tl.static_range(3):
        high, place = tl.max(tile, axis, return_indices=True)
        at.store((2 * axis, 0), tl.reshape(place, (1, A * B * C // tile.shape[axis])))
        at.store(
            (2 * axis + 1, 0), tl.reshape(tl.argmin(tile, axis), (1, A * B * C // tile.shape[axis]))
        )
        best.store((axis, 0), tl.reshape(high, (1, A * B * C // tile.shape[axis])).to(best.dtype))
    flat = tl.reshape(tile, (1, A * B * C))
    at.store((6, 0), tl.argmax(flat, 1)[None, :])
    at.store((7, 0), tl.argmin(flat, 1)[None, :])


@pytest.mark.parametrize("warps", [1, 8])
@pytest.mark.parametrize("dtype", [F32, F64, BF16, torch.int32, torch.int64], ids=str)
def test_of_equal_elements_the_first_is_chosen(dtype: torch.dtype, warps: int) -> None:
    """Few values, zeros of both signs among them."""
    A, B, C = 4, 8, 64
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.choice([-2.0, -1.0, -0.0, 0.0], (A * B, C))).to(dtype)
    wide = {BF16: F32}.get(dtype, dtype)
    made = [
        {"at": torch.zeros(8, A * B * C // 4, dtype=torch.int32),
         "best": torch.zeros(3, A * B * C // 4, dtype=wide)}
        for _ in range(2)
    ]  # fmt: skip
    first_of_all[(1,)](x, *made[0].values(), A, B, C)
    emulated(first_of_all, {"x": x, **made[1]}, A=A, B=B, C=C, num_warps=warps)
    assert torch.equal(made[0]["at"], made[1]["at"])
    np.testing.assert_array_equal(bits(made[0]["best"]), bits(made[1]["best"]))
    along = x.double().numpy().reshape(A, B, C)
    for axis in range(3):
        want = np.stack([along.argmax(axis).ravel(), along.argmin(axis).ravel()])
        np.testing.assert_array_equal(made[0]["at"][2 * axis : 2 * axis + 2, : want.shape[1]], want)


@tiledsl.jit
def chosen(x: tl.Tensor, y: tl.Tensor, o: tl.Tensor, N: tl.constexpr):
    """One of two elements, one or a constant, one of three, and one of other bits."""
    a, b, odd = x.load((0,), (N,)), y.load((0,), (N,)), tl.arange(0, N) % 2 == 1
    few = tl.arange(0, N) < 5
    o.store((0, 0), tl.where(odd, a, b)[None, :])
    o.store((1, 0), tl.where(odd, a, 0.0)[None, :])
    o.store((2, 0), tl.where(few, 1.0, tl.where(odd, a, b))[None, :])
    raw = tl.int16 if a.dtype.primitive_bitwidth == 16 else tl.int8
    o.store((3, 0), (a.to(raw, bitcast=True) ^ 1).to(a.dtype, bitcast=True)[None, :])


@pytest.mark.parametrize("N", [16, 256])
@pytest.mark.parametrize("dtype", [F16, BF16, E4, E5], ids=str)
def test_elements_that_are_chosen_keep_their_bits(dtype: torch.dtype, N: int) -> None:
    """NaNs, and infinities of e5m2, which conversions make its largest number."""
    x, y = values(dtype, 2, N)
    if dtype is E5:
        bits(x)[::3], bits(y)[1::3] = 0x7C, 0xFC
    got, want = (torch.zeros(4, N).to(dtype) for _ in range(2))
    chosen[(1,)](x, y, want, N)
    emulated(chosen, {"x": x, "y": y, "o": got}, N=N, num_warps=1)
    np.testing.assert_array_equal(bits(got), bits(want))
    odd = np.arange(N) % 2 == 1
    np.testing.assert_array_equal(bits(want)[0], np.where(odd, bits(x), bits(y)))
    np.testing.assert_array_equal(bits(want)[3], bits(x) ^ 1)


@tiledsl.jit
def passed_on(x, raw, o, n, B: tl.constexpr):
    """Single elements: stored, spread, chosen from, carried by a loop and made under a condition."""
    pid, at = tl.program_id(0), tl.arange(0, B)
    one, two = tl.load(x + pid), tl.load(x + pid + 1)
    tl.store(o + pid, one)
    tl.store(o + 8 + pid, tl.where(pid > 1, one, two))
    tl.store(o + 16 + pid * B + at, tl.broadcast_to(two, (B,)))
    tl.store(o + 16 + (4 + pid) * B + at, tl.where(at % 2 == 0, one, tl.load(x + at)))
    last = two
    for i in range(n):
        if i > 0:
            last = tl.load(raw + i).to(x.dtype.element_ty, bitcast=True)
    tl.store(o + 16 + (8 + pid) * B + at, tl.where(at > pid, last, one))


@pytest.mark.parametrize("dtype", [F16, BF16, E4, E5], ids=str)
def test_single_elements_keep_their_bits(dtype: torch.dtype) -> None:
    N, few = 32, NANS[dtype][-1]
    x = values(dtype, 1, N)[0]
    bits(x)[:5] = few, 1, few ^ (few + 1), 0, few
    if dtype is E5:
        bits(x)[1:4:2] = 0x7C
    raw = torch.ones(4).to(dtype).view(torch.int16 if dtype.itemsize == 2 else torch.int8)
    got, want = (torch.zeros(16 + 12 * N).to(dtype) for _ in range(2))
    passed_on[(4,)](x, raw, want, 3, N)
    _, request = passed_on.request_for((x, raw, got, 3, N), {}, (4,))
    arrays = {"x": numpy_view(x), "raw": numpy_view(raw), "o": numpy_view(got), "n": 3}
    emulate.run(next(modules(request)).module, arrays, (4,))
    np.testing.assert_array_equal(bits(got), bits(want))
    np.testing.assert_array_equal(bits(want)[:4], bits(x)[:4])
