"""Kernels with pointers on the GPU: the list of the interpreter, large addresses, speed of copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.pointer_kernels import CASES
from tests.pointer_kernels import Case
from tests.pointer_kernels import check
from tests.pointer_kernels import copy_2d
from tests.pointer_kernels import matmul
from tests.pointer_kernels import pointer_table
from tests.pointer_kernels import vector_add

pytestmark = pytest.mark.gpu


def on_gpu(x: Any) -> Any:
    """A copy on the GPU with the strides and the offset of the original."""
    if not isinstance(x, torch.Tensor):
        return x
    storage = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage()).cuda()
    return storage.as_strided(x.shape, x.stride(), x.storage_offset())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernel(case: Case) -> None:
    args = case.make()
    want = case.want(*args)
    there = [on_gpu(x) for x in args]
    case.kernel[case.grid](*there, **case.options)
    torch.cuda.synchronize()
    check(case, there, want)


NAMED = {case.name: case for case in CASES}


@pytest.mark.parametrize("num_warps", [1, 2, 8, 16])
@pytest.mark.parametrize(
    "name",
    ["vector_add_1000_float16_1", "copy_2d_rows", "rows_and_columns", "tickets", "transpose"],
)
def test_numbers_of_warps(name: str, num_warps: int) -> None:
    case = NAMED[name]
    args = case.make()
    want = case.want(*args)
    there = [on_gpu(x) for x in args]
    case.kernel[case.grid](*there, num_warps=num_warps)
    torch.cuda.synchronize()
    check(case, there, want)


def test_table_of_pointers() -> None:
    xs = [torch.arange(10.0, device="cuda") + 100 * i for i in range(3)]
    table = torch.tensor([x.data_ptr() for x in xs], device="cuda")
    out = torch.zeros(3, 10, device="cuda")
    pointer_table[(3,)](table, out, 10, 16)
    assert torch.equal(out, 2 * torch.stack(xs))


def test_more_elements_than_int32_counts() -> None:
    """Rows and strides are int32 and their product is not."""
    rows, columns = 70000, 32768
    x = torch.zeros(rows, columns, dtype=torch.int8, device="cuda")
    out = torch.zeros(64, columns, dtype=torch.int8, device="cuda")
    x[-64:] = torch.randint(-99, 99, (64, columns), dtype=torch.int8, device="cuda")
    far = x[-64:]
    copy_2d[(2, columns // 128)](far, out, 64, columns, *far.stride(), *out.stride(), 32, 128)
    assert torch.equal(out, far)

    copy_rows[(rows // 8,)](x, out, rows, columns, rows - 64, 8, 1024)
    assert torch.equal(out, far)


@tiledsl.jit
def copy_rows(x_ptr, out_ptr, M, stride, first, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    wanted = (rows[:, None] >= first) & (rows[:, None] < M)
    for start in range(0, stride, BN):
        at = rows[:, None] * stride + start + cols[None, :]
        x = tl.load(x_ptr + at, mask=wanted)
        tl.store(out_ptr + (rows[:, None] - first) * stride + start + cols[None, :], x, mask=wanted)


@pytest.mark.parametrize("mnk", [(4096, 4096, 4096), (1000, 520, 264), (8, 4096, 512)], ids=str)
@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_matmul(order: str, mnk: tuple[int, int, int]) -> None:
    """The tutorial's kernel, unchanged."""
    m, n, k = mnk
    a = torch.randn(*((m, k) if order[0] == "N" else (k, m)), device="cuda").half()
    b = torch.randn(*((k, n) if order[1] == "N" else (n, k)), device="cuda").half()
    a, b = (x.t() if o == "T" else x for x, o in zip((a, b), order, strict=True))
    c = torch.full((m, n), float("nan"), dtype=torch.float16, device="cuda")
    strides = (*a.stride(), *b.stride(), *c.stride())
    grid = (triton_cdiv(m, 128) * triton_cdiv(n, 128),)
    matmul[grid](a, b, c, m, n, k, *strides, 128, 128, 64, 8)
    want = a.float() @ b.float()
    assert ((c.float() - want).norm() / want.norm()).item() < 1e-3


def test_matmul_with_awkward_strides() -> None:
    """Strides of 0 and of no multiple of 16 bytes take the way without tensor maps."""
    a = torch.randn(1, 64, device="cuda").half().expand(128, 64)
    b = torch.randn(64, 131, device="cuda").half()[:, :130]
    c = torch.zeros(128, 130, dtype=torch.float16, device="cuda")
    strides = (*a.stride(), *b.stride(), *c.stride())
    matmul[(6,)](a, b, c, 128, 130, 64, *strides, 64, 64, 64, 2)
    torch.testing.assert_close(c, a @ b, rtol=1e-2, atol=1e-2)


@pytest.mark.slow
def test_matmul_is_as_fast_as_with_tensors(record_property: Any) -> None:
    """Ratio to the tensor-parameter form of the same tiles."""
    n = 8192
    a, b, c = (torch.randn(n, n, device="cuda").half() for _ in range(3))
    grid = (triton_cdiv(n, 128) * triton_cdiv(n, 256),)
    strides = (*a.stride(), *b.stride(), *c.stride())
    pointers = time_ms(lambda: matmul[grid](a, b, c, n, n, n, *strides, 128, 256, 64, 8))
    grid_2 = (triton_cdiv(n, 128), triton_cdiv(n, 256))
    tensors = time_ms(lambda: tensor_matmul[grid_2](a, b, c, 128, 256, 64))
    record_property("ratio", tensors / pointers)
    print(
        f"matmul {n}: pointers {pointers:.3f} ms, tensors {tensors:.3f} ms, {tensors / pointers:.3f}"
    )
    assert tensors / pointers > 0.9


@tiledsl.jit
def tensor_matmul(
    a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)


def triton_cdiv(x: int, y: int) -> int:
    return -(-x // y)


def time_ms(run: Any) -> float:
    """Median of 20 launches."""
    for _ in range(5):
        run()
    times: list[float] = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


@pytest.mark.slow
@pytest.mark.parametrize("n", [1 << 28, (1 << 28) + 3])
@pytest.mark.parametrize("block", [1024, 4096])
def test_vector_add_is_as_fast_as_a_copy(n: int, block: int, record_property: Any) -> None:
    """Three streams take 1.5 times the time of a copy's two."""
    x, y, out = (torch.empty(n, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    grid = (-(-n // block),)
    ours = time_ms(lambda: vector_add[grid](x, y, out, n, block))
    floor = 1.5 * time_ms(lambda: out.copy_(x))
    record_property("ratio", floor / ours)
    print(
        f"vector_add n={n} block={block}: {ours:.3f} ms, floor {floor:.3f} ms, {floor / ours:.3f}"
    )
    assert floor / ours > 0.9
