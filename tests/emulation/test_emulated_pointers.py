"""The generated text of kernels with pointers, on the CPU: values, vectors, masks, locks under many interleavings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.dropout import seeded_dropout
from tests.emulation.matmuls import compiled as choice
from tests.pointer_kernels import CASES
from tests.pointer_kernels import Case
from tests.pointer_kernels import check
from tests.pointer_kernels import matmul
from tests.pointer_kernels import matmul_args
from tests.pointer_kernels import pointer_table
from tests.pointer_kernels import seeded
from tests.ring_kernels import strided_matmul
from tiledsl import emulate
from tiledsl import simulator
from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.compiler import modules
from tiledsl.ir.specs import Spec
from tiledsl.runtime.interop import numpy_view
from tiledsl.runtime.signature import signature
from tiledsl.ws.launch import Launch
from tiledsl.ws.overrides import Overrides
from tiledsl.ws.plan import Plan


def compiled(
    kernel: Any, args: list[Any], *, best: bool = False, **options: Any
) -> tuple[Kernel, dict[str, Any]]:
    """The single-role (or the best) kernel for arguments in order, and the run-time ones by name."""
    names = kernel.description.names
    constexprs = {p.name for p in kernel.description.parameters if p.is_constexpr}
    given = dict(zip(names, args, strict=True))
    runtime = {n: v for n, v in given.items() if n not in constexprs}
    constants = {n: v for n, v in given.items() if n in constexprs}
    found, _ = signature(runtime, pointers=names)
    specs: dict[str, Spec] = dict(zip(found.names, found.specs, strict=True))
    launch = Launch(runtime, lambda _: options.get("grid", (32, 32, 1)))
    overrides = Overrides(options.get("num_warps"), persistent=options.get("persistent"))
    request = Request(kernel.fn, specs, constants, launch, overrides)
    made = modules(request)
    return (next(made) if best else list(made)[-1]), runtime


def emulated(case: Case, args: list[Any], seed: int = 0, **options: Any) -> None:
    made, runtime = compiled(case.kernel, args, **options)
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, case.grid, seed=seed, seconds=120.0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(case: Case) -> None:
    args = case.make()
    want = case.want(*args)
    emulated(case, args)
    check(case, args, want)


NAMED = {case.name: case for case in CASES}


@pytest.mark.parametrize("name", ["tickets", "locked_sum", "swap_tile", "transpose", "histogram"])
@pytest.mark.parametrize("seed", range(1, 4))
def test_interleavings(name: str, seed: int) -> None:
    case = NAMED[name]
    args = case.make()
    want = case.want(*args)
    emulated(case, args, seed)
    check(case, args, want)


@pytest.mark.parametrize("num_warps", [1, 2, 8])
@pytest.mark.parametrize(
    "name", ["vector_add_1000_float16_1", "copy_2d_rows", "rows_and_columns", "tickets"]
)
def test_numbers_of_warps(name: str, num_warps: int) -> None:
    case = NAMED[name]
    args = case.make()
    want = case.want(*args)
    emulated(case, args, num_warps=num_warps)
    check(case, args, want)


MATMULS = {
    "rows": (lambda: (half(200, 136), half(136, 264)), (64, 128, 64)),
    "columns": (lambda: (half(136, 200).t(), half(264, 136).t()), (128, 128, 64)),
    "short steps": (lambda: (half(136, 72), half(72, 136)), (64, 64, 32)),
    "one row": (lambda: (half(8, 72), half(72, 136)), (64, 64, 64)),
    "odd output": (lambda: (half(72, 72), half(133, 72).t()), (64, 64, 64)),
}  # fmt: skip


def half(*shape: int) -> torch.Tensor:
    return seeded(*shape, dtype=torch.float16)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", MATMULS)
def test_matmul_is_specialised(name: str, seed: int) -> None:
    """The tutorial's kernel runs with TMA, roles and wgmma: its pointers are tensors."""
    make, blocks = MATMULS[name]
    a, b = make()
    args = matmul_args(a, b, *blocks, 2)
    grid = (-(-a.shape[0] // blocks[0]) * -(-b.shape[1] // blocks[1]), 1, 1)
    made, runtime = compiled(matmul, args, best=True, grid=grid)
    assert isinstance(made.plan, Plan), made.declined
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, grid, seed=seed, seconds=120.0)
    torch.testing.assert_close(args[2], (a.float() @ b.float()).half(), rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("name", ["attention_full", "attention_causal"])
def test_attention_is_specialised(name: str) -> None:
    """Four strides, batches and heads in the base: three tensors of rank 4."""
    case = NAMED[name]
    args = case.make()
    want = case.want(*args)
    grid = (case.grid[0], case.grid[1], 1)
    made, runtime = compiled(case.kernel, args, best=True, grid=grid)
    assert isinstance(made.plan, Plan), made.declined
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, grid, seconds=120.0)
    check(case, args, want)


def test_table_of_pointers() -> None:
    xs = [torch.arange(10.0) + 100 * i for i in range(3)]
    args = [torch.tensor([x.data_ptr() for x in xs]), torch.zeros(3, 10), 10, 16]
    emulated(Case("table", pointer_table, list, (3,), lambda *_: {}), args)
    assert torch.equal(args[1], 2 * torch.stack(xs))


@tiledsl.jit
def filled(y, x, n, stride, B: tl.constexpr):
    at = tl.arange(0, B)
    row = tl.program_id(0)
    values = tl.load(x + row * stride + at, mask=at < n, other=at % 11)
    tl.store(y + row * B + at, values)


@pytest.mark.parametrize("n", [100, 101])
@pytest.mark.parametrize("stride", [256, 251])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32], ids=str)
def test_what_a_load_is_filled_with_varies_inside_of_vectors(
    dtype: torch.dtype, stride: int, n: int
) -> None:
    x, y = torch.full((1024,), -3).to(dtype), torch.zeros(512, dtype=dtype)
    made, runtime = compiled(filled, [y, x, n, stride, 256], best=True)
    emulate.run(
        made.module,
        {k: numpy_view(v) if isinstance(v, torch.Tensor) else v for k, v in runtime.items()},
        (2, 1, 1),
        seconds=120.0,
    )
    at = torch.arange(256)
    assert torch.equal(y, torch.where(at < n, -3, at % 11).to(dtype).repeat(2))


@tiledsl.jit
def nothing(y):
    pass


@tiledsl.jit
def no_trips(y, B: tl.constexpr, N: tl.constexpr):
    for t in range(0, N, B):
        tl.store(y + t + tl.arange(0, B), 1.0)


@pytest.mark.parametrize(
    ("kernel", "more"), [(nothing, ()), (no_trips, (64, 0))], ids=["pass", "no trips"]
)
def test_kernels_without_a_statement(kernel: Any, more: tuple[int, ...]) -> None:
    y = torch.zeros(64)
    made, runtime = compiled(kernel, [y, *more], best=True)
    emulate.run(made.module, {"y": numpy_view(runtime["y"])}, (1, 1, 1), seconds=120.0)
    assert not y.any()


@pytest.mark.parametrize(("M", "N", "K"), [(0, 64, 64), (-5, 64, 64), (64, 0, 64), (64, 64, 0)])
def test_an_extent_of_0_leaves_out_everything(M: int, N: int, K: int) -> None:
    """A tensor map has no extent of 0, and one of 1 would take a row or column."""
    a, b = (seeded(64, 64, dtype=torch.bfloat16) for _ in range(2))
    c = torch.full((64, 64), -7.0)
    args = [a, b, c, M, N, K, 64, 64, 64, 64, 64, 64]
    made = choice(strided_matmul, tuple(args), (1, 1))
    runtime = dict(zip(strided_matmul.description.names, args[:9], strict=False))
    simulator.emulate(made, runtime, (1, 1))
    assert torch.equal(c, torch.full((64, 64), 0.0 if K == 0 else -7.0))


def test_four_random_numbers_of_a_call_stay_with_their_thread() -> None:
    """What is joined is the vector of its neighbours, however the digits of both layouts are cut."""
    x = torch.randn(4096).to(torch.bfloat16)
    args = [x, torch.empty_like(x), 4000, 1 << 30, 2.0, 42, 2048]
    made, _ = compiled(seeded_dropout, args, num_warps=4)
    assert "write_shared" not in made.module.source


@tiledsl.jit
def hinted(x, y, N, ROWS: tl.constexpr, COLS: tl.constexpr):
    rows, cols = tl.arange(0, ROWS), tl.arange(0, COLS)
    at = tl.max_contiguous(
        tl.multiple_of((rows // 2)[:, None] * N, (1, 1)) + cols[None, :], (1, COLS)
    )
    tl.store(y + rows[:, None] * COLS + cols[None, :], tl.load(x + at))


def test_hints_of_two_dimensions() -> None:
    """A number for each dimension says nothing of the single elements that a loop computes."""
    x, y = torch.randn(8, 40), torch.empty(16, 32)
    made, runtime = compiled(hinted, [x, y, 40, 16, 32], grid=(1, 1, 1))
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(made.module, arrays, (1, 1, 1), seconds=60.0)
    assert torch.equal(y, x[:, :32].repeat_interleave(2, 0))
