"""Loads that come through rings: the emitted text on the CPU, with every depth, and what stays as it is.

In the emulation a copy of a thread lands at any time up to its wait, and what it will overwrite is lost at once; wgmma
may read only what a fence made visible.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.harness import replaced
from tests.ring_kernels import gathered_args
from tests.ring_kernels import gathered_matmul
from tests.ring_kernels import gathered_want
from tests.ring_kernels import narrow_args
from tests.ring_kernels import narrow_matmul
from tests.ring_kernels import narrow_want
from tests.ring_kernels import paged_args
from tests.ring_kernels import paged_decode
from tests.ring_kernels import paged_want
from tests.ring_kernels import ring_kernel
from tests.ring_kernels import scaled_args
from tests.ring_kernels import scaled_matmul
from tests.ring_kernels import scaled_want
from tests.ring_kernels import seeded
from tests.ring_kernels import strided_args
from tests.ring_kernels import strided_matmul
from tests.ring_kernels import strided_want
from tests.ring_kernels import tensor_matmul
from tiledsl import emulate
from tiledsl.emulate.errors import EmulationFault
from tiledsl.runtime.interop import numpy_view


def run(
    kernel: Any, args: list[Any], grid: tuple[int, ...], seed: int = 0, **options: Any
) -> list[str]:
    """Runs the emitted text on the arguments; its notes."""
    made, runtime = ring_kernel(kernel, args, **options)
    execute(made.module, runtime, grid, seed)
    return made.notes


def execute(module: Any, runtime: dict[str, Any], grid: tuple[int, ...], seed: int = 0) -> None:
    arrays = {n: numpy_view(v) if isinstance(v, torch.Tensor) else v for n, v in runtime.items()}
    emulate.run(module, arrays, (*grid, *[1] * (3 - len(grid))), seed=seed, seconds=120.0)


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("columns", [32, 64, 224])
def test_one_slot_less_for_small_tiles(columns: int) -> None:
    """Copies go to the slot that was just read; loops of one iteration, two and seven."""
    args = narrow_args(40, columns, (32, 16, 32))
    made, runtime = ring_kernel(narrow_matmul, args, grid=(2000, 1, 1), num_warps=4, num_stages=3)
    execute(made.module, runtime, (2,), seed=columns)
    close(args[2], narrow_want(args))
    assert any("slot that was just read" in note for note in made.notes)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5])
def test_depths(num_stages: int) -> None:
    """Of 1 the compiler chooses it, and takes more than 3."""
    args = gathered_args(70, 64, 200, (64, 64, 32))
    notes = run(gathered_matmul, args, (2, 1), seed=num_stages, num_stages=num_stages)
    close(args[3], gathered_want(args))
    assert any(f"{num_stages} slots" in n for n in notes) == (num_stages > 1)
    assert any("one product in flight" in n for n in notes) == (num_stages not in (2, 3))


@pytest.mark.parametrize("K", [0, 8, 64, 128, 136])
def test_trips(K: int) -> None:
    """None, fewer than the ring has slots, and a last one that a mask cuts."""
    args = gathered_args(64, 64, K, (64, 64, 64), pad=8)
    run(gathered_matmul, args, (1, 1))
    close(args[3], gathered_want(args))


def test_masks_that_cut_copies() -> None:
    """Rows are aligned and their ends are not: a copy takes the elements before the end alone."""
    args = gathered_args(64, 64, 101, (64, 64, 64), pad=3)
    notes = run(gathered_matmul, args, (1, 1))
    close(args[3], gathered_want(args))
    assert sum("16 bytes at once" in n for n in notes) == 2


@pytest.mark.parametrize("seed", [1, 2])
def test_pages(seed: int) -> None:
    """Addresses come from a table that the loop reads; weights are staged, values read as they lie."""
    args = paged_args(2, 16, 64, 16, 70)
    notes = run(paged_decode, args, (2,), seed)
    close(args[4], paged_want(args))
    assert any("the indexes in their addresses one more" in n for n in notes)
    assert sum("read by the tensor core" in n for n in notes) == 2


@pytest.mark.parametrize(
    ("dtype", "K", "copied"),
    [
        (torch.bfloat16, 100, "8 bytes at once"),
        (torch.bfloat16, 102, "4 bytes at once"),
        (torch.bfloat16, 97, "2 bytes side by side are aligned, a copy takes 4"),
        (torch.int8, 100, "4 bytes at once"),
    ],
    ids=str,
)
def test_strides(dtype: torch.dtype, K: int, copied: str) -> None:
    args = strided_args(70, 72, K, (64, 64, 32), dtype=dtype)
    notes = run(strided_matmul, args, (2, 2))
    close(args[2], strided_want(args))
    assert sum(copied in note for note in notes) == 2, notes


FAULTS = {
    "no wait": ("cp_async_wait<1>();", "", "while a copy into it is in flight"),
    "no fence": ("fence_async_smem();", "", "without fence.proxy.async"),
    "no barrier": ("(?m)fence_async_smem\\(\\);\n *block_sync\\(\\);", "fence_async_smem();", "."),
    "product still reads": (
        "wgmma_wait<1>();",
        "wgmma_wait<2>();",
        "while a wgmma in flight reads it",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str) -> None:
    """The emulation does tell: each of these orders is needed."""
    old, new, message = FAULTS[fault]
    args = gathered_args(64, 64, 256, (64, 64, 32))
    made, runtime = ring_kernel(gathered_matmul, args, num_stages=4)
    module = replaced(made.module, old, new)

    def all_seeds() -> None:
        for seed in range(4):
            execute(module, runtime, (1, 1), seed)
            close(args[3], gathered_want(args))

    with pytest.raises((EmulationFault, AssertionError), match=message):
        all_seeds()


def test_scales_come_with_their_blocks() -> None:
    """Columns of floats by 4-byte copies; the tensor core reads the parts of K that are summed in f32."""
    args = scaled_args(60, 136, 320, (64, 128, 128))
    notes = run(scaled_matmul, args, (1, 2))
    torch.testing.assert_close(
        args[5], scaled_want(args), rtol=1e-3, atol=1e-3 * float(args[5].abs().max())
    )
    assert sum("16 bytes at once" in n and "tensor core" in n for n in notes) == 2
    assert sum("4 bytes at once" in n and "into registers" in n for n in notes) == 2


@pytest.mark.parametrize(
    ("shape", "copied"),
    [((16, 72, 104), 2), ((70, 72, 97), 1), ((70, 61, 96), 1)],
    ids=["few rows", "odd rows of A", "odd rows of B"],
)
def test_blocks_of_tensors(shape: tuple[int, int, int], copied: int) -> None:
    """What a single role loads of tensors comes through rings too, where TMA could take it."""
    M, N, K = shape
    a, b, c = seeded(M, K), seeded(K, N, seed=1), torch.full((M, N), float("nan"))
    notes = run(tensor_matmul, [a, b, c, 32, 64, 64], (-(-M // 32), -(-N // 64)))
    close(c, a.float() @ b.float())
    assert sum("through cp.async, 16 bytes" in n for n in notes) == copied


@tiledsl.jit
def linked(a_ptr, next_ptr, b_ptr, c_ptr, seen_ptr, first, last, start, BK: tl.constexpr):
    """Blocks of A that a list links; every other link counts, and each is written down."""
    m, k = tl.arange(0, 64), tl.arange(0, BK)
    acc = tl.zeros((64, 64), tl.float32)
    block = start
    for at in range(first, last, 2):
        a = tl.load(a_ptr + block * 64 * BK + m[:, None] * BK + k[None, :])
        b = tl.load(b_ptr + (at * BK + k)[:, None] * 64 + m[None, :])
        acc = tl.dot(a, b, acc)
        tl.store(seen_ptr + at, block)
        block = tl.load(next_ptr + tl.load(next_ptr + block))
    tl.store(c_ptr + m[:, None] * 64 + m[None, :], acc)


@pytest.mark.parametrize("bounds", [(1, 8), (3, 3), (5, 6)], ids=str)
def test_lists(bounds: tuple[int, int]) -> None:
    """The address of an iteration follows from what the one before it loaded."""
    first, last = bounds
    a, b = torch.randn(9, 64, 32).bfloat16(), torch.randn(8 * 32, 64).bfloat16()
    link = torch.tensor([3, 0, 8, 5, 1, 7, 2, 4, 6], dtype=torch.int64)
    got, seen = torch.full((64, 64), float("nan")), torch.full((8,), -1, dtype=torch.int64)
    notes = run(linked, [a, link, b, got, seen, first, last, 4, 32], (1,), seed=3)
    want, block = torch.zeros(64, 64), 4
    for at in range(first, last, 2):
        want += a[block].float() @ b[at * 32 : at * 32 + 32].float()
        assert seen[at] == block
        block = int(link[link[block]])
    close(got, want)
    assert any("the indexes in their addresses one more" in n for n in notes)


# ---------------------------------------------------------------------- what stays
@tiledsl.jit
def in_place(a_ptr, b_ptr, K, ORDERED: tl.constexpr, BK: tl.constexpr):
    """Blocks of A are made one after the other, each from the one before."""
    m, k = tl.arange(0, 64), tl.arange(0, BK)
    b = tl.load(b_ptr + k[:, None] * BK + k[None, :])
    for at in range(BK, K, BK):
        before = tl.load(a_ptr + m[:, None] * K + (at - BK + k)[None, :])
        here = a_ptr + m[:, None] * K + (at + k)[None, :]
        tl.store(here, tl.dot(before, b).to(tl.bfloat16))
        if ORDERED:
            tl.debug_barrier()


@tiledsl.jit
def filled(a_ptr, b_ptr, c_ptr, K, FILL: tl.constexpr, BK: tl.constexpr):
    """What lies beyond the end is FILL."""
    m = tl.arange(0, 64)
    acc = tl.zeros((64, 64), tl.float32)
    for at in range(0, K, BK):
        k = at + tl.arange(0, BK)
        rows = tl.load(b_ptr + k, mask=k < K, other=0)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :], mask=k[None, :] < K, other=FILL)
        b = tl.load(a_ptr + rows[:, None] * K + m[None, :], mask=(k < K)[:, None], other=FILL)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * 64 + m[None, :], acc)


@tiledsl.jit
def chased(a_ptr, index_ptr, b_ptr, c_ptr, n, BK: tl.constexpr):
    """Which rows come next follows from the product; columns do from what is loaded."""
    m, k = tl.arange(0, 64), tl.arange(0, BK)
    acc = tl.zeros((64, 64), tl.float32)
    row = 0
    for _ in range(n):
        rows = tl.load(index_ptr + row + m)
        a = tl.load(a_ptr + rows[:, None] * BK + k[None, :])
        acc = tl.dot(a, tl.load(b_ptr + k[:, None] * 64 + m[None, :]), acc)
        row += (tl.sum(tl.sum(acc, 1), 0) > 0).to(tl.int32)
    tl.store(c_ptr + m[:, None] * 64 + m[None, :], acc)


def test_what_the_loop_writes_is_loaded_in_order() -> None:
    a, b = torch.randn(64, 128).bfloat16(), (torch.randn(32, 32) / 8).bfloat16()
    want = [a[:, :32]]
    for _ in range(3):
        want.append((want[-1].float() @ b.float()).bfloat16())
    notes = run(in_place, [a, b, 128, True, 32], (1,))
    close(a, torch.cat(want, 1).float())
    assert any("the loop has a barrier" in n for n in notes)
    unordered = ring_kernel(in_place, [a, b, 128, False, 32])[0]
    assert any("the loop may write what it loads" in n for n in unordered.notes)


@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_what_lies_outside(fill: float) -> None:
    """Copies fill with zeros only. The rows of B are named by an index that is loaded in the loop."""
    K = 72
    a, index = torch.randn(K, K).bfloat16(), torch.randperm(K).to(torch.int32)
    got = torch.full((64, 64), float("nan"))
    notes = run(filled, [a, index, got, K, fill, 64], (1,))
    x, y = torch.full((64, 128), fill), torch.full((128, 64), fill)
    x[:, :K], y[:K] = a[:64].float(), a[index.long(), :64].float()
    close(got, x @ y)
    assert any("`other` is not 0" in n for n in notes) == bool(fill)
    assert sum("through cp.async" in n for n in notes) == (0 if fill else 2)


def test_rows_that_a_product_names() -> None:
    a, b = torch.randn(70, 32).bfloat16(), torch.randn(32, 64).bfloat16()
    got, index = torch.empty(64, 64), torch.randperm(70).to(torch.int32)
    notes = run(chased, [a, index, b, got, 4, 32], (1,))
    want, row = torch.zeros(64, 64), 0
    for _ in range(4):
        want += a[index[row : row + 64].long()].float() @ b.float()
        row += int(want.sum() > 0)
    close(got, want)
    assert any("a is not copied ahead of its iteration: addresses depend on" in n for n in notes)


@tiledsl.jit
def far_matmul(a, b, c, start, end, STEP: tl.constexpr, K: tl.constexpr):
    """Iteration i of a loop with huge steps takes block i of K."""
    rows, cols, ks = tl.arange(0, 64), tl.arange(0, 64), tl.arange(0, 32)
    acc = tl.zeros((64, 64), tl.float32)
    at = 0
    for _ in range(start, end, STEP):
        x = tl.load(a + rows[:, None] * K + at + ks[None, :])
        y = tl.load(b + (at + ks)[:, None] * 64 + cols[None, :])
        acc += tl.dot(x, y)
        at += 32
    tl.store(c + rows[:, None] * 64 + cols[None, :], acc)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [(-1610612736, 1610612736, 2**30), (-(2**31), 0, 2**29), (-(2**30), 2**30 + 5, 2**29)],
)
def test_lengths_that_do_not_fit_the_loop_variable(start: int, end: int, step: int) -> None:
    trips = len(range(start, end, step))
    K = 32 * trips
    a, b = (torch.randint(-2, 3, s).to(torch.bfloat16) for s in ((64, K), (K, 64)))
    c = torch.full((64, 64), float("nan"))
    notes = run(far_matmul, [a, b, c, start, end, step, K], (1, 1))
    assert any("slots" in n for n in notes)
    assert torch.equal(c, a.float() @ b.float())


@pytest.mark.parametrize(("width", "copied"), [(132, 8), (130, 4), (131, 0)])
def test_rows_of_tensors(width: int, copied: int) -> None:
    """The distance of a tensor's rows says how wide the copies of its blocks are."""
    M, N = 70, 64
    a, b = torch.randn(M, width).bfloat16(), torch.randn(width, N).bfloat16()
    c = torch.full((M, N), float("nan"))
    notes = run(tensor_matmul, [a, b, c, 64, 64, 64], (2, 1))
    close(c, a.float() @ b.float())
    wanted = f"a through cp.async, {copied} bytes" if copied else "a is not copied ahead"
    assert any(wanted in note for note in notes), notes
