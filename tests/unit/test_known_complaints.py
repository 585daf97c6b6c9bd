"""What users of tile compilers complain of most: silent wrong values, and errors that do not help.

Small kernels, in the interpreter and where it matters as emitted text on the CPU; or an error that names
the argument, the line and what would be right.
"""

from __future__ import annotations

import shutil
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tiledsl import emulate
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.errors import LaunchError
from tiledsl.errors import ScheduleError
from tiledsl.errors import TileError
from tiledsl.report import render_report
from tiledsl.runtime.interop import from_numpy

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.float32
RNG = np.random.default_rng(4)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def first(kernel: Any, *arguments: Any, grid: Any, **options: Any) -> Kernel:
    return next(modules(kernel.request_for(arguments, options, grid)[1]))


def both(kernel: Any, arguments: dict[str, Any], out: str, grid: tuple[int, ...], **options: Any):
    """What the interpreter and the emitted text make of an output."""
    given = {n: from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}
    result = from_numpy(arguments[out].copy())
    kernel[grid](*[result if n == out else v for n, v in given.items()], **options)
    made = first(kernel, *given.values(), grid=grid, **options)
    got = arguments[out].copy()
    plain = {n: v for n, v in arguments.items() if n not in made.constants}
    emulate.run(made.module, {**plain, out: got}, grid)
    return result.float().numpy(), got.astype(F32)


@tiledsl.jit
def copy(x: tl.Tensor, o: tl.Tensor, B: tl.constexpr = 32):
    m, n = tl.program_id(0) * B, tl.program_id(1) * B
    o.store((m, n), x.load((m, n), (B, B)))


def test_addresses_beyond_32_bits() -> None:
    huge = torch.empty(70_000, 70_000, device="meta", dtype=torch.bfloat16)
    text = first(copy, huge, huge, grid=(2188, 2188)).module.source
    assert "i64" in text
    assert "(int)x_stride" not in text


@needs_compiler
@pytest.mark.parametrize("view", ["transposed", "every second column", "rows apart"])
def test_views_are_read_as_views(view: str) -> None:
    base = RNG.standard_normal((64, 128)).astype(F32)
    x = {
        "transposed": base[:, :64].T,
        "every second column": base[:, ::2],
        "rows apart": base[:, :50],
    }[view]
    interpreted, emitted = both(copy, {"x": x, "o": np.zeros(x.shape, F32)}, "o", (2, 2))
    assert (interpreted == x).all()
    assert (emitted == x).all()


@needs_compiler
def test_a_masked_load_without_other_gives_zeros() -> None:
    @tiledsl.jit
    def kernel(x, o, n):
        i = tl.arange(0, 64)
        o_ = tl.sum(tl.load(x + i, mask=i < n), 0)
        tl.store(o, o_)

    x = np.full(64, np.nan, F32)
    x[:10] = 2
    interpreted, emitted = both(kernel, {"x": x, "o": np.zeros(1, F32), "n": 10}, "o", (1,))
    assert interpreted[0] == emitted[0] == 20


@needs_compiler
def test_nans_in_maxima_follow_one_rule_everywhere() -> None:
    @tiledsl.jit
    def kernel(x, o):
        v = tl.load(x + tl.arange(0, 32))
        tl.store(o, tl.max(v, 0))
        tl.store(o + 1, tl.max(tl.maximum(v, 0.5), 0))
        tl.store(o + 2, tl.max(tl.maximum(v, 0.5, propagate_nan=tl.PropagateNan.ALL), 0))
        swapped = tl.maximum(0.5, v)
        tl.store(o + 3, tl.sum(tl.where(swapped == tl.maximum(v, 0.5), 0.0, 1.0), 0))

    x = np.linspace(-1, 3, 32).astype(F32)
    x[7] = np.nan
    interpreted, emitted = both(kernel, {"x": x, "o": np.zeros(4, F32)}, "o", (1,))
    np.testing.assert_array_equal(interpreted, emitted)
    assert interpreted[0] == 3
    assert interpreted[1] == 3
    assert interpreted[3] == 0, "the order of operands does not matter"


def test_a_tensor_that_bulk_copies_cannot_read_is_named() -> None:
    a = torch.empty(256, 200 + 3, device="meta", dtype=torch.bfloat16)[:, :200]
    b = torch.empty(200, 128, device="meta", dtype=torch.bfloat16)
    c = torch.empty(256, 128, device="meta", dtype=torch.bfloat16)
    report = render_report(first(matmul, a, b, c, grid=grid_of(256, 128), BM=128, BN=128))
    assert "no legal tensor map" in report
    assert "matmul_kernels.py" in report.partition("declined")[2]


def test_a_descriptor_that_is_made_in_a_loop() -> None:
    @tiledsl.jit
    def kernel(a, b, c, K, BK: tl.constexpr = 64):
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, K, BK):
            x = tl.make_tensor_descriptor(a, [64, K], [K, 1], [64, BK])
            y = tl.make_tensor_descriptor(b, [K, 64], [64, 1], [BK, 64])
            acc = tl.dot(x.load([0, k]), y.load([k, 0]), acc)
        i = tl.arange(0, 64)
        tl.store(c + i[:, None] * 64 + i[None, :], acc)

    a, b = (torch.randn(s).to(torch.bfloat16) for s in ((64, 256), (256, 64)))
    c = torch.empty(64, 64)
    kernel[(1,)](a, b, c, 256, num_stages=3)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=1e-2)
    made = first(kernel, a, b, c, 256, grid=(1,), num_stages=3)
    assert made.certificate is None or made.certificate.failure == ""


@pytest.mark.parametrize("N", [8, 24, 48, 80, 96, 112])
def test_tiles_need_not_be_powers_of_two(N: int) -> None:
    a, b = (torch.randn(s).to(torch.bfloat16) for s in ((64, 64), (64, N)))
    c = torch.empty(64, N)
    matmul[(1, 1)](a, b, c, BM=64, BN=N, BK=64)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=1e-2)
    made = first(matmul, a, b, c, grid=(1, 1), BM=64, BN=N, BK=64)
    assert made.certificate is not None
    assert made.certificate.failure == ""


def test_a_shape_that_no_instruction_has() -> None:
    """No instruction has 40 rows or 20 columns: padded in a single role, and right."""
    a, b = RNG.standard_normal((40, 64)).astype(BF16), RNG.standard_normal((64, 20)).astype(BF16)
    arguments = {"a": a, "b": b, "c": np.zeros((40, 20), F32)}
    given = [from_numpy(v) for v in arguments.values()]
    made = first(matmul, *given, grid=(1, 1), BM=40, BN=20, BK=64)
    assert "matmul_kernels.py" in render_report(made).partition("declined")[2]
    want = a.astype(F32) @ b.astype(F32)
    matmul[(1, 1)](*given, BM=40, BN=20, BK=64)
    np.testing.assert_allclose(given[2].numpy(), want, rtol=1e-2, atol=1e-2)


def test_a_kernel_may_have_the_name_of_a_device_function() -> None:
    @tiledsl.jit
    def Packed(x, o):
        i = tl.arange(0, 32)
        tl.store(o + i, tl.load(x + i).to(tl.bfloat16))

    x, o = torch.empty(32, device="meta"), torch.empty(32, device="meta", dtype=torch.bfloat16)
    made = Packed.compile(x, o, grid=(1,))
    assert made.module.name == "Packed_kernel"


def test_roles_that_are_asked_for_and_cannot_be() -> None:
    x = torch.empty(256, 256, device="meta", dtype=torch.float32)
    with pytest.raises(ScheduleError, match=r"warp_specialize=True.*no dot"):
        first(copy, x, x, grid=(8, 8), warp_specialize=True)


@pytest.mark.parametrize("order", [0, 1])
def test_two_products_into_one_accumulator_in_any_order(order: int) -> None:
    @tiledsl.jit
    def kernel(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, ORDER: tl.constexpr):
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], 128):
            if ORDER:
                x, y = a.load((0, k), (64, 64)), a.load((0, k + 64), (64, 64))
                u, v = b.load((k, 0), (64, 64)), b.load((k + 64, 0), (64, 64))
            else:
                v, u = b.load((k + 64, 0), (64, 64)), b.load((k, 0), (64, 64))
                y, x = a.load((0, k + 64), (64, 64)), a.load((0, k), (64, 64))
            acc = tl.dot(x, u, acc)
            acc = tl.dot(y, v, acc)
        c.store((0, 0), acc)

    a, b = (torch.randn(s).to(torch.bfloat16) for s in ((64, 384), (384, 64)))
    c = torch.empty(64, 64)
    kernel[(1,)](a, b, c, order)
    torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=1e-2)
    made = first(kernel, a, b, c, order, grid=(1,))
    assert made.certificate is not None
    assert made.certificate.failure == ""


def test_f32_products_are_f32_products() -> None:
    a, b = torch.randn(64, 256), torch.randn(256, 64)
    c = torch.empty(64, 64)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        matmul[(1, 1)](a, b, c, BM=64, BN=64, BK=32)
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(c, (a.double() @ b.double()).float(), rtol=1e-5, atol=1e-4)


def test_fp8_sums_are_kept_in_f32() -> None:
    """Many equal products: a narrow accumulator would stop growing."""
    a = torch.full((64, 2048), 1.0).to(torch.float8_e4m3fn)
    b = torch.full((2048, 64), 1.0).to(torch.float8_e4m3fn)
    c = torch.empty(64, 64)
    matmul[(1, 1)](a, b, c, BM=64, BN=64, BK=128)
    assert (c == 2048).all()
    text = first(matmul, a, b, c, grid=(1, 1), BM=64, BN=64, BK=128).module.source
    assert "f32_e4m3" in text


@needs_compiler
def test_small_floats_are_added_atomically() -> None:
    @tiledsl.jit
    def kernel(o, B: tl.constexpr = 32):
        tl.atomic_add(o + tl.arange(0, B), 1.0)

    interpreted, emitted = both(kernel, {"o": np.zeros(32, BF16)}, "o", (5,))
    assert (interpreted == 5).all()
    assert (emitted == 5).all()


def test_nothing_to_do_is_no_error() -> None:
    empty = torch.empty(0, 64)
    copy[(0, 2)](empty, empty)
    copy[(1, 2)](empty, empty)
    out = torch.full((64, 64), 7.0)
    matmul[(1, 1)](torch.empty(64, 0), torch.empty(0, 64), out, BM=64, BN=64, BK=32)
    assert (out == 0).all()


def test_wrong_arguments_are_named() -> None:
    x = torch.zeros(64, 64)
    with pytest.raises(LaunchError, match="argument x: expected a tensor"):
        copy[(1, 1)](3, x)
    with pytest.raises(TileError, match=r"rank|dimension|offsets"):
        copy[(1, 1)](torch.zeros(64), x)
    with pytest.raises(LaunchError, match="num_stage"):
        copy[(1, 1)](x, x, num_stage=3)


def test_an_argument_may_be_absent() -> None:
    @tiledsl.jit
    def kernel(x, bias, o):
        i = tl.arange(0, 32)
        v = tl.load(x + i)
        if bias is not None:
            v += tl.load(bias + i)
        tl.store(o + i, v)

    x, o = torch.ones(32), torch.empty(32)
    kernel[(1,)](x, None, o)
    assert (o == 1).all()
    kernel[(1,)](x, x, o)
    assert (o == 2).all()


@pytest.mark.parametrize(("option", "want"), [("zero", 0.0), ("nan", float("nan"))])
def test_the_padding_of_a_block_is_what_it_says(option: str, want: float) -> None:
    @tiledsl.jit
    def kernel(x, o, OPTION: tl.constexpr):
        p = tl.make_block_ptr(x, (10,), (1,), (0,), (16,), (0,))
        v = tl.load(p, boundary_check=(0,), padding_option=OPTION)
        tl.store(o + tl.arange(0, 16), v)

    o = torch.full((16,), 5.0)
    kernel[(1,)](torch.ones(10), o, option)
    assert (o[:10] == 1).all()
    torch.testing.assert_close(o[10:], torch.full((6,), want), equal_nan=True)


def test_a_tensor_is_no_constexpr() -> None:
    out = torch.zeros(32, 32)
    for launch in (copy[(1, 1)], copy.report):
        options = {"grid": (1, 1)} if launch == copy.report else {}
        with pytest.raises(LaunchError, match=r"'B' is a tl\.constexpr, got a tensor") as caught:
            launch(out, out, torch.tensor(32), **options)
        assert "pass B.item()" in str(caught.value)


@tiledsl.jit
def ones_below(o, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(o + i, 1.0, mask=i < n)


def test_a_tensor_for_a_number_is_refused_where_it_is_compared() -> None:
    with pytest.raises(TileError, match=r"pass n\.item\(\), or read it with tl\.load\(n\)"):
        ones_below[(1,)](torch.zeros(64), torch.tensor(5), B=64)
