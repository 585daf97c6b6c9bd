"""Proofs of loops whose bounds are products, differences or minima of extents and arguments."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.unit.ws.kernels import first

S = 2048


@tiledsl.jit
def persistent(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    pid, count = tl.program_id(0), tl.num_programs(0)
    rows, columns = tl.cdiv(a.shape[0], 128), tl.cdiv(b.shape[1], 128)
    for t in range(pid, rows * columns, count):
        m, n = (t // columns) * 128, (t % columns) * 128
        acc = tl.zeros((128, 128), tl.float32)
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a.load((m, k), (128, 64)), b.load((k, n), (64, 128)), acc)
        c.store((m, n), acc)


@tiledsl.jit
def between(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, low, high):
    m, n = tl.program_id(0) * 128, tl.program_id(1) * 128
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(low * 64, high * 64, 64):
        acc = tl.dot(a.load((m, k), (128, 64)), b.load((k, n), (64, 128)), acc)
    c.store((m, n), acc)


@tiledsl.jit
def shares(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    m, n, z = tl.program_id(0) * 128, tl.program_id(1) * 128, tl.program_id(2)
    blocks = tl.cdiv(a.shape[1], 64)
    share = tl.cdiv(blocks, tl.num_programs(2))
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(z * share, tl.minimum((z + 1) * share, blocks)):
        acc = tl.dot(a.load((m, k * 64), (128, 64)), b.load((k * 64, n), (64, 128)), acc)
    c.store((z, m, n), acc)


CASES = {
    "persistent": (persistent, (), (132,), 3),
    "between": (between, (0, 32), (16, 16), 2),
    "shares": (shares, (), (16, 16, 3), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_every_loop_shows_that_it_repeats(name: str) -> None:
    kernel, more, grid, loops = CASES[name]
    a, b = (torch.empty(S, S, device="meta", dtype=torch.bfloat16) for _ in range(2))
    shape = (3, S, S) if name == "shares" else (S, S)
    c = torch.empty(shape, device="meta", dtype=torch.bfloat16)
    made = kernel.compile(a, b, c, *more, grid=grid)
    assert made.certificate.proved
    # The loop over the chunks of a deferred store has two trips in every launch.
    found = [line for line in made.certificate.steady if "at most 2 trips" not in line]
    assert len(found) == loops
    assert all("each trip repeats the one before" in line for line in found)


@tiledsl.jit
def triangle(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, K, AXIS: tl.constexpr, BM: tl.constexpr):
    """Trips grow with the place of the tile along an axis of the grid."""
    pids = (tl.program_id(0), tl.program_id(1))
    m, n = pids[0] * BM, pids[1] * 64
    acc = tl.zeros((BM, 64), tl.float32)
    for i in range(0, tl.cdiv(tl.minimum(K, (m if AXIS == 0 else n) + BM), 64)):
        acc = tl.dot(a.load((m, i * 64), (BM, 64)), b.load((i * 64, n), (64, 64)), acc)
    c.store((m, n), acc)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("rows", [16, 64])
def test_trips_that_grow_along_the_grid(rows: int, persistent: bool, axis: int) -> None:
    """Tiles near its corner run for a trip or none; the launches lie where they run for many."""
    tensors = [torch.empty(S, S, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    options = {"AXIS": axis, "BM": rows, "persistent": persistent}
    made = first(triangle.request_for((*tensors, S), options, (S // rows, S // 64))[1])
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure
    loops = [line for line in made.certificate.steady if "over tiles" not in line]
    assert len(loops) == 1
    assert "each trip repeats the one before" in loops[0]


@tiledsl.jit
def ladder(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, AXIS: tl.constexpr):
    """As many trips as its place along an axis, and then some more: no extent limits them."""
    pids = (tl.program_id(0), tl.program_id(1), tl.program_id(2))
    m, n = pids[AXIS] * 128, pids[(AXIS + 1) % 3] * 64
    acc = tl.zeros((128, 64), tl.float32)
    for k in range(0, m, 64):
        scores = tl.dot(a.load((m, k), (128, 64)), b.load((k, n), (64, 64)))
        acc = tl.dot(scores.to(tl.bfloat16), b.load((k, n), (64, 64)), acc)
    for k in range(m, tl.minimum(m + 128, a.shape[1]), 64):
        scores = tl.dot(a.load((m, k), (128, 64)), b.load((k, n), (64, 64)))
        acc = tl.dot(scores.to(tl.bfloat16), b.load((k, n), (64, 64)), acc)
    c.store((m, n), acc)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_tiles_of_equal_trips_lie_along_another_axis(axis: int) -> None:
    """Else each tile has more trips than the one before, and their state never repeats."""
    tensors = [torch.empty(S, S, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    grid = [S // 64 if d == (axis + 1) % 3 else 1 for d in range(3)]
    grid[axis] = S // 128
    made = first(ladder.request_for(tuple(tensors), {"AXIS": axis}, tuple(grid))[1])
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure
    assert any("over tiles" in line and "repeats" in line for line in made.certificate.steady)
