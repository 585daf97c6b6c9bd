"""The generated text of kernels with pointers, on the CPU: values, vectors, masks, locks under many interleavings."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.pointer_kernels import CASES
from tests.pointer_kernels import Case
from tests.pointer_kernels import check
from tests.pointer_kernels import pointer_table
from tiledsl import emulate
from tiledsl.compiler import Kernel
from tiledsl.compiler import Request
from tiledsl.compiler import modules
from tiledsl.ir.specs import Spec
from tiledsl.runtime.interop import numpy_view
from tiledsl.runtime.signature import signature
from tiledsl.ws.select import Launch


def compiled(kernel: Any, args: list[Any], **options: Any) -> tuple[Kernel, dict[str, Any]]:
    """The single-role kernel for arguments in order, and the run-time arguments by name."""
    names = kernel.description.names
    constexprs = {p.name for p in kernel.description.parameters if p.is_constexpr}
    given = dict(zip(names, args, strict=True))
    runtime = {n: v for n, v in given.items() if n not in constexprs}
    constants = {n: v for n, v in given.items() if n in constexprs}
    found, _ = signature(runtime, pointers=names)
    specs: dict[str, Spec] = dict(zip(found.names, found.specs, strict=True))
    request = Request(kernel.fn, specs, constants, Launch(), num_warps=options.get("num_warps"))
    return list(modules(request))[-1], runtime


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


def test_table_of_pointers() -> None:
    xs = [torch.arange(10.0) + 100 * i for i in range(3)]
    args = [torch.tensor([x.data_ptr() for x in xs]), torch.zeros(3, 10), 10, 16]
    emulated(Case("table", pointer_table, list, (3,), lambda *_: {}), args)
    assert torch.equal(args[1], 2 * torch.stack(xs))
