"""Reductions, scans, moves, sorts and dots of the emitted text on the CPU, against the interpreter."""

from __future__ import annotations

import inspect
import os

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.gpu import tile_kernels
from tests.gpu.tile_kernels import Case
from tiledsl import emulate
from tiledsl.codegen.module import KernelModule
from tiledsl.compiler import modules
from tiledsl.runtime.interop import numpy_view
from tiledsl.runtime.signature import signature

# A run of all of them takes minutes.
EVERY = 1 if os.environ.get("TILEDSL_ALL_CASES") else 12
CASES = tile_kernels.all_cases()[::EVERY]


def emitted(case: Case) -> KernelModule:
    """The text of the case's kernel; NVRTC does not see it."""
    call = case.kernel._bind(case.args, {**case.constants, "num_warps": case.num_warps})
    sig, _ = signature(call.runtime)
    return next(iter(modules(case.kernel._request(call, sig, case.grid, call.constants)))).module


def wanted(case: Case) -> list[torch.Tensor]:
    """The arguments after a run of the interpreter."""
    args = case.fresh()
    case.kernel[case.grid](*args, **case.constants)
    return args


def emulated(case: Case, seed: int) -> list[torch.Tensor]:
    """The arguments after a run of the emitted text."""
    args = case.fresh()
    names = [n for n in inspect.signature(case.kernel.fn).parameters if n not in case.constants]
    arrays = {n: numpy_view(a, n) for n, a in zip(names, args, strict=True)}
    emulate.run(emitted(case), arrays, case.grid, seed=seed)
    return args


def check(case: Case, got: list[torch.Tensor]) -> None:
    """Compares outputs with the interpreter's."""
    want = wanted(case)
    for i in case.outs:
        a, b = got[i].double().cpu(), want[i].double()
        finite = b[b.isfinite()]
        scale = float(finite.abs().max()) if finite.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=0, atol=case.tol * max(1.0, scale), equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_emitted_text_agrees_with_the_interpreter(case: Case) -> None:
    check(case, emulated(case, seed=1))


@tiledsl.jit
def turned(x: tl.Tensor, y: tl.Tensor):
    at, to = tl.program_id(0) * 32, tl.program_id(1) * 64
    y.store((to, at), tl.trans(x.load((at, to), (32, 64))))


@pytest.mark.parametrize("shape", [(32, 64), (45, 70)], ids=str)
def test_a_transposed_block_is_written_along_its_rows(shape: tuple[int, int]) -> None:
    """Its layout is exchanged through shared memory for the store."""
    x = torch.rand(shape).to(torch.bfloat16)
    y = torch.full(shape[::-1], -1.0, dtype=torch.bfloat16)
    case = Case("turned", turned, (x, y), (1,), {}, (2, 2, 1))
    module = emitted(case)
    assert "store_vector<8>" in module.source
    assert ".pack2(" not in module.source, "elements are converted on the way"
    arrays = {"x": numpy_view(x, "x"), "y": numpy_view(y, "y")}
    emulate.run(module, arrays, case.grid)
    assert torch.equal(y, x.t())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(45, 70), (7, 67), (96, 64)], ids=str)
def test_rows_at_odd_addresses_are_stored_in_pieces(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """Aligned pieces are cut out of shared memory; ends of rows, and of the tensor, by element."""
    M, N = shape
    x, memory = torch.rand(shape).to(dtype), torch.full((M * N + 12,), -1.0, dtype=dtype)
    y = memory[3 : 3 + M * N].view(N, M)
    grid = (-(-M // 32), -(-N // 64), 1)
    case = Case("turned", turned, (x, y), (1,), {}, grid)
    module = emitted(case)
    assert ("store_rows<" in module.source) == (dtype == torch.bfloat16)
    arrays = {"x": numpy_view(x, "x"), "y": numpy_view(y, "y")}
    emulate.run(module, arrays, grid)
    assert torch.equal(y, x.t())
    assert (memory[:3] == -1).all()
    assert (memory[3 + M * N :] == -1).all()


@tiledsl.jit
def turned_below(x: tl.Tensor, y: tl.Tensor, r, i):
    y.store((r, i), tl.trans(x.load((0, 0), (32, 64))))


def test_arguments_may_be_called_as_the_row_is() -> None:
    """The text that finds a row must not hide them."""
    x, y = torch.rand(32, 64).to(torch.bfloat16), torch.full((67, 37), -1.0, dtype=torch.bfloat16)
    case = Case("turned_below", turned_below, (x, y, 3, 5), (1,), {}, (1, 1, 1))
    module = emitted(case)
    assert "store_rows<" in module.source
    arrays = {"x": numpy_view(x, "x"), "y": numpy_view(y, "y"), "r": 3, "i": 5}
    emulate.run(module, arrays, case.grid)
    assert torch.equal(y[3:, 5:], x.t())
    assert (y[:3] == -1).all()
    assert (y[:, :5] == -1).all()


@tiledsl.jit
def copied_rows(x: tl.Tensor, y: tl.Tensor, place):
    at = tl.load(place)
    y.store((at, 0), x.load((at, 0), (16, 64)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int64], ids=str)
def test_rows_may_be_counted_in_few_bits(dtype: torch.dtype) -> None:
    """The tensor's end is compared with them, and needs more."""
    x = torch.rand(40192, 64)
    y, place = torch.zeros_like(x), torch.tensor([3], dtype=dtype)
    case = Case("copied_rows", copied_rows, (x, y, place), (1,), {}, (1, 1, 1))
    arrays = {"x": numpy_view(x, "x"), "y": numpy_view(y, "y"), "place": numpy_view(place, "place")}
    emulate.run(emitted(case), arrays, case.grid)
    assert torch.equal(y[3:19], x[3:19])
    assert not y[:3].any()
    assert not y[19:].any()
