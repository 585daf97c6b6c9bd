"""Kernels with pointers compile without spills, and access memory in vectors where that is proven."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from tests.emulation.test_emulated_pointers import compiled
from tests.pointer_kernels import CASES
from tests.pointer_kernels import Case
from tests.pointer_kernels import copy_2d
from tests.pointer_kernels import histogram
from tests.pointer_kernels import matmul
from tests.pointer_kernels import split_sum
from tests.pointer_kernels import transpose
from tests.pointer_kernels import vector_add
from tiledsl.runtime.nvrtc import compile_module
from tiledsl.runtime.nvrtc import ptx_of
from tiledsl.ws.plan import Plan

pytestmark = pytest.mark.nvrtc
SEEN: set[str] = set()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel_compiles(case: Case) -> None:
    made, _ = compiled(case.kernel, case.make())
    result = compile_module(made.module)
    assert result.spill_bytes == 0
    assert result.stack_bytes == 0


def accesses(kernel: Any, args: list[Any], **options: Any) -> list[str]:
    """Global accesses of the PTX in order."""
    made, _ = compiled(kernel, args, **options)
    return re.findall(r"((?:ld|st|red|atom)\.[\w.:]*global[\w.:]*)", ptx_of(made.module))


def tensors(*shape: int, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    return [torch.empty(*shape, dtype=dtype, device="meta") for _ in range(count)]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64], ids=str
)
def test_aligned_vectors(dtype: torch.dtype) -> None:
    """Two 16-byte loads of each input in flight before anything else."""
    block = 128 * 2 * 16 // dtype.itemsize
    args = [*tensors(1 << 20, dtype=dtype, count=3), 1 << 20, block]
    found = accesses(vector_add, args, num_warps=4)
    assert found == ["ld.global.v4.b32"] * 4 + ["st.global.v4.b32"] * 2


def test_ragged_length_keeps_vectors() -> None:
    """Vectors that the mask cuts are read whole, and written by element."""
    found = accesses(
        vector_add, [*tensors(1001, dtype=torch.float32, count=3), 1001, 512], num_warps=4
    )
    assert [kind for kind in found if kind.startswith("ld")] == ["ld.global.v4.b32"] * 2
    assert found.count("st.global.v4.b32") == 1
    assert found.count("st.global.b32") == 4


def test_odd_addresses_are_read_by_element() -> None:
    x, y, out = (t[1:] for t in tensors(1025, dtype=torch.float16, count=3))
    found = accesses(vector_add, [x, y, out, 1024, 512], num_warps=4)
    assert set(found) == {"ld.global.u16", "st.global.u16"}


def test_both_sides_of_a_transposition_are_vectors() -> None:
    x, out = tensors(1024, 1024, dtype=torch.float32, count=2)
    assert set(accesses(transpose, [x, out, 1024, 1024, 64])) == {
        "ld.global.v4.b32",
        "st.global.v4.b32",
    }


def test_columns_are_read_along_their_stride() -> None:
    x = torch.empty(512, 1024, dtype=torch.float16, device="meta").t()
    out = torch.empty(512, 1024, dtype=torch.float16, device="meta").t()
    args = [x, out, *x.shape, *x.stride(), *out.stride(), 64, 64]
    assert set(accesses(copy_2d, args)) == {"ld.global.v4.b32", "st.global.v4.b32"}


def test_reductions_without_results() -> None:
    x, out = tensors(3, 1024, dtype=torch.bfloat16, count=2)
    found = accesses(split_sum, [x, out[0], 1024, 1024], num_warps=4)
    assert "red.relaxed.gpu.global.add.noftz.v4.bf16x2" in found
    x, h = (
        torch.empty(1024, dtype=torch.int32, device="meta"),
        torch.empty(64, dtype=torch.int32, device="meta"),
    )
    assert "red.relaxed.gpu.global.add.u32" in accesses(histogram, [x, h, 1024, 256])


@pytest.mark.parametrize("order", ["NN", "TN", "NT"])
def test_matmul_has_no_pointers_left(order: str) -> None:
    """TMA loads and stores, roles, no spills, no serialised wgmma."""
    a, b, c = tensors(4096, 4096, dtype=torch.bfloat16, count=3)
    a, b = (x.t() if o == "T" else x for x, o in zip((a, b), order, strict=True))
    strides = (*a.stride(), *b.stride(), *c.stride())
    args = [a, b, c, 4096, 4096, 4096, *strides, 128, 256, 64, 8]
    made, _ = compiled(matmul, args, best=True, grid=(512, 1, 1))
    result = compile_module(made.module)
    assert isinstance(made.plan, Plan)
    assert result.spill_bytes == 0
    assert not result.serialized
    ptx = ptx_of(made.module)
    assert "cp.async.bulk.tensor" in ptx
    assert not re.search(r"(?:ld|st)\.global", ptx)
