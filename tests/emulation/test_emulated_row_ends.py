"""Operands without a mask along their rows, in tiles narrower than a line of shared memory: nothing behind a tensor is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.codegen.module import TensorMapParam
from tiledsl.codegen.params import UNBOUNDED
from tiledsl.emulate.errors import EmulationFault
from tiledsl.simulator import emulate
from tiledsl.simulator import simulate


@tiledsl.jit
def even(
    a, b, c, M, N, K, sa, sb, sc,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn, rk = tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    pa = a + rm[:, None] * sa + rk[None, :]
    if TURNED:
        pb = b + rn[None, :] * sb + rk[:, None]
    else:
        pb = b + rk[:, None] * sb + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, tl.cdiv(K, BK)):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += BK
        pb += BK if TURNED else BK * sb
    tl.store(c + rm[:, None] * sc + rn[None, :], acc.to(tl.float16))


@tiledsl.jit
def experts(
    info, counts, index, x, w, out, N, K, topk, stride_index, stride_x, stride_expert, stride_w, stride_out,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Each program a block of rows of one expert; programs without one end at once."""
    block, n = tl.program_id(0), tl.program_id(1)
    expert = tl.load(info + block * 2)
    if expert == -1:
        return
    first = tl.load(info + block * 2 + 1)
    rows = first * BM + tl.arange(0, BM)
    inside = rows < tl.load(counts + expert)
    row = tl.load(index + expert * stride_index + rows, mask=inside, other=0)
    cols, k = (n * BN + tl.arange(0, BN)) % N, tl.arange(0, BK)
    px = x + (row // topk)[:, None] * stride_x + k[None, :]
    pw = w + stride_expert * expert + k[:, None] + cols[None, :] * stride_w
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc += tl.dot(tl.load(px, mask=inside[:, None], other=0.0), tl.load(pw))
        px += BK
        pw += BK
    to = n * BN + tl.arange(0, BN)
    mask = inside[:, None] & (to[None, :] < N)
    tl.store(out + row[:, None] * stride_out + to[None, :], acc.to(out.dtype.element_ty), mask=mask)


def widths(kernel: Any) -> list[tuple[int | str, ...]]:
    return [p.shape for p in kernel.module.params if isinstance(p, TensorMapParam)]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tile", [(64, 64, 32), (64, 32, 16), (64, 96, 64), (128, 64, 64)], ids=str)
def test_products_without_masks(tile: tuple[int, int, int], turned: bool) -> None:
    M, N, K = 128, 192, 128
    a, b = torch.randn(M, K).half(), torch.randn(K, N).half()
    c, w = torch.zeros(M, N).half(), b.T.contiguous() if turned else b
    args = (a, w, c, M, N, K, K, w.stride(0), N, *tile, turned)
    grid = (M // tile[0], N // tile[1])
    kernel = even.compile(*args, grid=grid)
    assert len(widths(kernel)) >= 2
    emulate(kernel, args, grid, seed=sum(tile))
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("turned", [False, True])
def test_rows_of_one_piece_are_simulated(turned: bool) -> None:
    """Pieces are as far apart as the rows that they are cut from."""
    M, N, K = 128, 96, 160
    a, b = torch.randn(M, K).half(), torch.randn(K, N).half()
    c, w = torch.zeros(M, N).half(), b.T.contiguous() if turned else b
    args = (a, w, c, M, N, K, K, w.stride(0), N, 64, 96, 160 if turned else 32, turned)
    kernel = even.compile(*args, grid=(2, 1))
    assert max(map(len, widths(kernel))) == 3
    simulate(kernel, args, (2, 1), seed=4)
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("grid", [(1, 3), (3, 1)], ids=str)
def test_clusters_with_a_program_beyond_the_grid(grid: tuple[int, int]) -> None:
    """Nothing bounds its loads: they are those of the last program."""
    M, N, K = 128 * grid[0], 64 * grid[1], 128
    a, b, c = torch.randn(M, K).half(), torch.randn(K, N).half(), torch.zeros(M, N).half()
    args = (a, b, c, M, N, K, K, N, N, 128, 64, 64, False)
    kernel = even.compile(*args, grid=grid, cluster=2)
    assert kernel.module.cluster_size == 2
    for seed in range(3):
        emulate(kernel, args, grid, seed=seed)
        torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("options", [{}, {"num_stages": 1}, {"warp_specialize": False}], ids=str)
def test_experts(options: dict[str, Any]) -> None:
    """One of them has no rows; the last one's weights end with the tensor."""
    E, N, K, BM, topk, tokens = 4, 128, 128, 64, 2, 40
    x, w = torch.randn(tokens, K).bfloat16(), torch.randn(E, N, K).bfloat16() * 0.1
    expert = torch.tensor([0, 2, 3])[torch.arange(tokens * topk) % 3]
    counts = torch.bincount(expert, minlength=E)
    index = torch.zeros(E, tokens * topk, dtype=torch.int32)
    for e in range(E):
        index[e, : counts[e]] = (expert == e).nonzero().flatten().int()
    blocks = [(e, m) for e, n in enumerate(counts.tolist()) for m in range(-(-n // BM))]
    info = torch.tensor([(-1, 0), *blocks, (-1, 0), (-1, 0)], dtype=torch.int32)
    out = torch.zeros(tokens * topk, N, dtype=torch.bfloat16)
    args = (
        info, counts.int(), index, x, w, out, N, K, topk, tokens * topk, K, N * K, K, N, BM, 64, 32,
    )  # fmt: skip
    grid = (len(info), N // 64)
    kernel = experts.compile(*args, grid=grid, **options)
    assert widths(kernel) == ([] if "warp_specialize" in options else [(UNBOUNDED, UNBOUNDED, "N")])
    emulate(kernel, args, grid, seed=5)
    want = torch.stack([x[i // topk].float() @ w[e].float().T for i, e in enumerate(expert)])
    torch.testing.assert_close(out.float(), want, rtol=2e-2, atol=2e-2)


def test_a_tensor_map_that_reads_behind_a_tensor() -> None:
    """As a kernel does that is told of more columns than there are."""
    a, b, c = torch.zeros(64, 128).half(), torch.zeros(64, 64).half(), torch.zeros(64, 64).half()
    args = (a[:, :64], b, c, 64, 64, 128, 128, 64, 64, 64, 64, 64, False)
    kernel = even.compile(*args, grid=(1, 1))
    with pytest.raises(EmulationFault, match=r"of argument b, which has 8192.*\n.*tma_load"):
        emulate(kernel, (a, b, *args[2:]), (1, 1))
