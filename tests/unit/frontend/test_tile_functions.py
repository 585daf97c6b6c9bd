"""Reductions, scans, shape functions, sorts, random numbers and library functions against torch and known values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.gpu import tile_kernels
from tests.gpu.tile_kernels import Case
from tests.gpu.tile_kernels import values
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.library import LIBRARY
from tiledsl.language.extra import libdevice
from tiledsl.language.extra.cuda import libdevice as cuda_libdevice

NAN, INF = float("nan"), float("inf")


def interpreted(case: Case) -> list[torch.Tensor]:
    args = case.fresh()
    case.kernel[case.grid](*args, **case.constants)
    return args


def along(function: Any, x: torch.Tensor, axis: int | None) -> torch.Tensor:
    return function(x.reshape(-1), 0) if axis is None else function(x, axis)


WANTED = {
    "sum": lambda x, a: x.sum(a),
    "max": lambda x, a: x.amax(a),
    "min": lambda x, a: x.amin(a),
    "argmax": lambda x, a: x.argmax(a),
    "argmin": lambda x, a: x.argmin(a),
    "prod": lambda x, a: x.prod(a),
    "max+index": lambda x, a: x.amax(a) * 1000 + x.argmax(a),
    "variance": lambda x, a: x.var(a, correction=0) + x.mean(a),
    "sum_kept": lambda x, a: x.sum(a),
    "xor": lambda x, a: torch.tensor(np.bitwise_xor.reduce(x.numpy(), axis=a)),
    "or": lambda x, a: torch.tensor(np.bitwise_or.reduce(x.numpy(), axis=a)),
}
SMALL = [
    c
    for c in tile_kernels.reduction_cases()
    if c.constants.get("N", 0) <= 300 and "3d" not in c.name
]


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_reductions(case: Case) -> None:
    x, got = interpreted(case)
    name = case.name.split("-")[0]
    exact = name in ("xor", "or", "argmax", "argmin", "max+index")
    wide = x if name in ("xor", "or") else x.double() if x.dtype.is_floating_point else x.long()
    if name == "prod" and not x.dtype.is_floating_point:
        wide = x
    want = along(WANTED[name], wide, case.constants["AXIS"])
    if name in ("argmax", "argmin", "max+index"):
        values_, picked = x.double(), got.reshape(-1).long()
        want_value = along(
            WANTED["max" if "max" in name else "min"], values_, case.constants["AXIS"]
        )
        axis = case.constants["AXIS"]
        flat = (
            values_.reshape(1, -1)
            if axis is None
            else values_.movedim(axis, -1).reshape(-1, x.shape[axis])
        )
        if name != "max+index":
            assert torch.equal(flat.gather(1, picked[:, None])[:, 0], want_value.reshape(-1))
        return
    if name == "prod" and x.dtype == torch.int32:
        want = want.to(torch.int32)
    tol = 0 if exact or not x.dtype.is_floating_point else 2e-2 if x.element_size() == 2 else 1e-4
    torch.testing.assert_close(
        got.double().reshape(-1), want.double().reshape(-1), rtol=tol, atol=tol * 50
    )


@tiledsl.jit
def extremes(x: tl.Tensor, o: tl.Tensor):
    t = x.load((0, 0), (4, 4))
    o.store((0, 0), tl.max(t, 1))
    o.store((1, 0), tl.min(t, 1))
    o.store((2, 0), tl.argmax(t, 1))
    o.store((3, 0), t.argmin(1, keep_dims=True).reshape((4,)))
    best, at = t.max(axis=0, return_indices=True)
    o.store((4, 0), best)
    o.store((5, 0), at)
    o.store((6, 0), tl.sum(t, 1))


def test_extremes_ignore_nan_and_ties_go_left() -> None:
    x = torch.tensor([[1, 3, 3, 0], [NAN, -1, -1, NAN], [NAN] * 4, [-INF, -INF, -INF, -INF]])
    o = torch.empty(7, 4)
    extremes[1](x, o)
    assert o[0].tolist()[:2] == [3, -1]
    assert math.isnan(o[0, 2])
    assert o[0, 3] == -INF
    assert o[1].tolist()[:2] == [0, -1]
    assert o[2, 0] == 1
    assert o[2, 3] == 0
    assert o[3, 0] == 3
    assert torch.isnan(o[6]).tolist() == [False, True, True, False]


@tiledsl.jit
def dtypes_of(x: tl.Tensor, o: tl.Tensor, F: tl.constexpr, DT: tl.constexpr, WANT: tl.constexpr):
    t = x.load(0, 8).to(DT)
    r = F(t, 0)
    tl.static_assert(r.dtype == WANT, f"{r.dtype}")
    o.store(0, r.to(tl.float32))


@pytest.mark.parametrize(
    ("function", "dtype", "want"),
    [
        (tl.sum, tl.float16, tl.float16), (tl.sum, tl.bfloat16, tl.bfloat16), (tl.sum, tl.int8, tl.int32),
        (tl.sum, tl.uint8, tl.uint32), (tl.sum, tl.int1, tl.uint32), (tl.sum, tl.int64, tl.int64),
        (tl.max, tl.float16, tl.float32), (tl.max, tl.int8, tl.int32), (tl.max, tl.uint64, tl.uint64),
        (tl.min, tl.bfloat16, tl.float32), (tl.argmax, tl.float16, tl.int32), (tl.cumsum, tl.int1, tl.uint32),
        (tl.cumsum, tl.float16, tl.float16), (tl.cumprod, tl.int16, tl.int32), (tl.xor_sum, tl.uint8, tl.uint8),
    ],
)  # fmt: skip
def test_result_dtypes(function: Any, dtype: tl.dtype, want: tl.dtype) -> None:
    dtypes_of[1](torch.ones(8), torch.zeros(8), function, dtype, want)


@pytest.mark.parametrize("case", tile_kernels.scan_cases(((7, 5), (3, 257), (1, 1))), ids=str)
def test_scans(case: Case) -> None:
    x, got = interpreted(case)
    axis, reverse, name = case.constants["AXIS"], case.constants["REV"], case.name.split("-")[0]
    wide = x.double() if x.dtype.is_floating_point else x.long()
    rows = (wide.flip(axis) if reverse else wide).movedim(axis, 0)
    if name == "cumsum":
        want = rows.cumsum(0)
    elif name == "cumprod":
        want = (1 + rows * 0.01).cumprod(0)
    elif name == "max":
        want = rows.cummax(0).values
    else:
        out, h = [], torch.zeros_like(rows[0])
        for row in rows:
            h = row * 0.3 * h + row
            out.append(h)
        want = torch.stack(out)
    want = want.movedim(0, axis)
    want = want.flip(axis) if reverse else want
    tol = 0 if not x.dtype.is_floating_point else 3e-2 if x.element_size() == 2 else 1e-4
    torch.testing.assert_close(got.double(), want.double(), rtol=tol, atol=tol * 10)


MOVED = {
    "reshape": lambda x: x,
    "trans": lambda x: x.t(),
    "flip": lambda x: x.flip(0, 1),
    "cat1": lambda x: torch.cat([x, x + x], 1),
    "cat0": lambda x: torch.cat([x, x.flip(1)], 0),
    "interleave": lambda x: torch.stack([x, x.flip(1)], -1),
    "split": lambda x: x.reshape(x.shape[0], -1, 2).flip(-1),
    "permute": lambda x: x.reshape(x.shape[0], -1, 4).permute(2, 0, 1),
    "gather": lambda x: x.gather(
        1, (torch.arange(len(x))[:, None] * 7 + torch.arange(2 * x.shape[1]) * 3) % x.shape[1]
    ),
    "gather0": lambda x: x.gather(
        0, (torch.arange(5)[:, None] * 7 + torch.arange(x.shape[1])) % len(x)
    ),
}


@pytest.mark.parametrize("case", tile_kernels.move_cases(((16, 64), (33, 12), (1, 256))), ids=str)
def test_moves(case: Case) -> None:
    x, got = interpreted(case)
    want = MOVED[case.name.split("-")[0]](x)
    assert torch.equal(got, want.reshape(got.shape))


@pytest.mark.parametrize(
    "case", [c for c in tile_kernels.order_cases() if c.name.startswith("sort")], ids=str
)
def test_sorts(case: Case) -> None:
    x, got = interpreted(case)
    wide = x.double() if x.dtype.is_floating_point else x.long()
    descending = case.constants["DESC"]
    want = wide.sort(1, descending=descending).values[:, : got.shape[1]]
    torch.testing.assert_close(got.to(wide.dtype), want, rtol=0, atol=0, equal_nan=True)


def test_merge_and_histogram() -> None:
    for case in tile_kernels.order_cases():
        if case.name == "merge":
            x, got = interpreted(case)
            assert torch.equal(got, torch.cat([x, x], 1).sort(1).values)
        elif case.name.startswith("histogram"):
            x, got = interpreted(case)
            bins = len(got)
            for part, value in ((x, got // 1000), (x[::3], got % 1000)):
                wide = part.long()
                kept = wide[(wide >= 0) & (wide < bins)]
                assert torch.equal(torch.bincount(kept, minlength=bins).int(), value)


@tiledsl.jit
def whole(x: tl.Tensor, o: tl.Tensor):
    t = x.load((0, 0), (4, 8))
    s = tl.sum(t) + t.max() + tl.softmax(t, 1).sum() + tl.softmax(t).sum(0).max()
    a, b = tl.split(tl.join(s, s * 2))
    i, j = tl.swizzle2d(tl.program_id(0) + 3, tl.program_id(0) + 1, 4, 4, 2)
    c, d = tl.broadcast(t, tl.arange(0, 8))
    e = tl.zeros_like(t) + c * 0 + d
    o.store(0, a + b + tl.squeeze(tl.unsqueeze(e, 0), 0).sum() + i * 100 + j)


def test_scalars_and_compositions() -> None:
    x, o = torch.randn(4, 8), torch.zeros(1)
    whole[1](x, o)
    s = x.sum() + x.max() + 4 + 8 / 8 * x.softmax(0).sum(0).max()
    ij = 3 * 4 + 1
    group, rest = ij // 8, ij % 8
    i, j = group * 2 + rest % 2, rest // 2
    torch.testing.assert_close(o[0], s * 3 + 4 * 28 + i * 100 + j, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------- random numbers
@tiledsl.jit
def words(o: tl.Tensor, seed, C: tl.constexpr):
    zero = tl.zeros((4,), tl.uint32)
    found = tl.philox(seed, zero + C, zero + C, zero + C, zero + C)
    for n in tl.static_range(4):
        o.store((n, 0), found[n].to(tl.int64))


@pytest.mark.parametrize(
    ("seed", "counter", "want"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, 0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_philox_known_answers(seed: int, counter: int, want: tuple[int, ...]) -> None:
    """Vectors of Random123, philox4x32 with 10 rounds."""
    o = torch.zeros(4, 4, dtype=torch.int64)
    words[1](o, seed, counter)
    assert tuple(o[:, 0].tolist()) == want


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox-4x32-10 in Python."""
    c, k, mask = list(counter), list(key), 2**32 - 1
    for _ in range(10):
        high_a, low_a = divmod(0xD2511F53 * c[0], 2**32)
        high_b, low_b = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high_b ^ c[1] ^ k[0], low_b, high_a ^ c[3] ^ k[1], low_a]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


@tiledsl.jit
def uniform(o: tl.Tensor, p: tl.Tensor, seed):
    at = tl.arange(0, 64)
    o.store(0, tl.rand(seed, at))
    p.store(0, tl.rand(seed, at.to(tl.int64) + (5 << 32)))


def test_rand_is_bit_exact() -> None:
    seed = 0x123456789ABCDEF
    o, p = torch.zeros(64), torch.zeros(64)
    uniform[1](o, p, seed)
    key = [seed & (2**32 - 1), seed >> 32]
    for high, got in ((0, o), (5, p)):
        for n in range(64):
            word = philox([n, high, 0, 0], key)[0]
            signed = word - 2**32 if word >= 2**31 else word
            scaled = np.float32(~signed if signed < 0 else signed) * np.float32(4.6566127342e-10)
            assert got[n].item() == scaled
    assert o.min() >= 0
    assert o.max() < 1


@tiledsl.jit
def normal(o: tl.Tensor, p: tl.Tensor):
    at = tl.arange(0, 4096)
    o.store(0, tl.randn(7, at))
    a, b, c, d = tl.randn4x(7, at)
    p.store(0, a + b + c + d)


def test_randn_is_normal() -> None:
    o, p = torch.zeros(4096), torch.zeros(4096)
    normal[1](o, p)
    assert abs(o.mean()) < 0.05
    assert abs(o.std() - 1) < 0.05
    assert abs(p.std() - 2) < 0.1


# ---------------------------------------------------------------------- library
@tiledsl.jit
def several(x: tl.Tensor, o: tl.Tensor):
    t = x.load(0, 64)
    o.store((0, 0), libdevice.log1p(tl.abs(t)) + tl.math.log1p(0.0))
    o.store((1, 0), tl.math.pow(tl.abs(t), 2.5))
    o.store((2, 0), tl.extra.cuda.libdevice.rint(t))
    o.store((3, 0), cuda_libdevice.copysign(t, -1.0))
    o.store((4, 0), libdevice.isnan(t).to(tl.float32) + libdevice.finitef(t))
    o.store((5, 0), libdevice.atan2(t, 2.0))
    o.store((6, 0), libdevice.round(t))
    o.store((7, 0), tl.fdiv(t, 3.0) + tl.div_rn(t, 3.0) + tl.sqrt_rn(tl.abs(t)))
    o.store((8, 0), libdevice.pow(t, 2))
    o.store((9, 0), libdevice.fast_tanhf(t) + libdevice.expm1(t.to(tl.float16)).to(tl.float32) * 0)


def test_library_functions() -> None:
    x = torch.randn(64) * 3
    x[:3] = torch.tensor([0.5, -2.5, 1.5])
    o = torch.zeros(10, 64)
    several[1](x, o)
    halves = torch.sign(x) * (x.abs() + 0.5).floor()
    wanted = [
        torch.log1p(x.abs()), x.abs() ** 2.5, x.round(), -x.abs(), torch.ones(64), torch.atan2(x, torch.tensor(2.0)),
        halves, x / 3 * 2 + x.abs().sqrt(), x * x, x.tanh(),
    ]  # fmt: skip
    for got, want in zip(o, wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(LIBRARY))
def test_library_rows_compute_what_they_say(name: str) -> None:
    function = LIBRARY[name]
    assert function.name == name
    rng = np.random.default_rng(1)
    for signature in function.signatures:
        assert len(signature.args) == function.arity
        args = [
            rng.uniform(0.1, 0.9, 8).astype(d.numpy)
            if d.is_float
            else rng.integers(0, 5, 8).astype(d.numpy)
            for d in signature.args
        ]
        with np.errstate(all="ignore"):
            got = np.asarray(function.compute(*args)).astype(signature.result.numpy)
        assert got.shape == (8,)


def test_directed_rounding_and_integer_rows() -> None:
    x, y = np.float32([1, -1, 2]), np.float32([3, 3, 3])
    down, up = LIBRARY["div_rd"].compute(x, y), LIBRARY["div_ru"].compute(x, y)
    exact = x.astype(np.float64) / y
    assert (down <= exact).all()
    assert (up >= exact).all()
    assert (up == np.nextafter(down, np.float32(INF))).all()
    high = LIBRARY["mulhi"].compute(np.array([2**62, -(2**62)]), np.array([4, 4]))
    assert high.tolist() == [1, -1]
    assert LIBRARY["clz"].compute(np.int32([1, 0, -1])).tolist() == [31, 32, 0]
    assert LIBRARY["ffs"].compute(np.int32([0, 8])).tolist() == [0, 4]
    assert LIBRARY["brev"].compute(np.uint32([1])).tolist() == [2**31]
    permuted = LIBRARY["byte_perm"].compute(
        *(np.uint32([v]) for v in (0x33221100, 0x77665544, 0xFE10))
    )
    assert permuted.tolist() == [0x77661100]  # three bits of each selector count


# ---------------------------------------------------------------------- dtypes
@tiledsl.jit
def facts(o: tl.Tensor, DT: tl.constexpr):
    tl.static_assert(
        DT.primitive_bitwidth == 16 and DT.is_floating() and DT.is_fp16() and not DT.is_int()
    )
    tl.static_assert(DT.tiny < 1e-4 and DT.scalar == tl.float16)
    tl.static_assert(tl.get_int_dtype(DT.primitive_bitwidth, True) == tl.int16)
    tl.static_assert(tl.get_int_dtype(64, False) == tl.uint64)
    t = tl.full((4,), 1.5, DT)
    tl.static_assert(t.type.scalar == DT and t.type.element_ty == DT)
    o.store(0, t.to(tl.int16, bitcast=True).to(tl.int32))


def test_dtype_facts_and_bitcasts() -> None:
    o = torch.zeros(4, dtype=torch.int32)
    facts[1](o, tl.float16)
    assert o.tolist() == [0x3E00] * 4


# ---------------------------------------------------------------------- errors
def bad_axis(x: tl.Tensor, o: tl.Tensor):
    o.store(0, tl.sum(x.load(0, 8), 1))


def bad_count(a, b):
    return a, b


def combine_returns_two(x: tl.Tensor, o: tl.Tensor):
    o.store(0, tl.reduce(x.load(0, 8), 0, bad_count))


def branching(a, b):
    if a > b:
        c = a
    else:
        c = b
    return c


def combine_branches(x: tl.Tensor, o: tl.Tensor):
    o.store(0, tl.reduce(x.load(0, 8), 0, branching))


def sort_axis(x: tl.Tensor, o: tl.Tensor):
    o.store((0, 0), tl.sort(x.load(0, 8).reshape(4, 2), 0))


def log_of_int(x: tl.Tensor, o: tl.Tensor):
    o.store(0, libdevice.log1p(x.load(0, 8).to(tl.int32)))


@pytest.mark.parametrize(
    ("kernel", "error", "text"),
    [
        (bad_axis, TypeMismatch, r"sum\(\): axis must be in -1..0, got 1"),
        (combine_returns_two, TypeMismatch, "the combine function returns 2 values, expected 1"),
        (combine_branches, VerifyError, "a combine function may only compute on its arguments"),
        (sort_axis, TypeMismatch, "only the last axis can be sorted"),
        (log_of_int, TypeMismatch, r"log1p\(\): got \(tl.int32\), expected \(tl.float32\)"),
    ],
)
def test_errors_name_the_fault(kernel: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        tiledsl.jit(kernel)[1](torch.zeros(8), torch.zeros(8))


def test_values_helper_is_deterministic() -> None:
    assert torch.equal(values(torch.float32, 3, 4), values(torch.float32, 3, 4))
