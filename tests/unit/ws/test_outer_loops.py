"""Tiles that the compiler picks for kernels that go from tile to tile by themselves."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tiledsl.compiler import modules
from tiledsl.lowering import device_graph
from tiledsl.ws.outer_loops import Extent
from tiledsl.ws.outer_loops import extent_of
from tiledsl.ws.select import choose


@tiledsl.jit
def persistent(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
               BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):  # fmt: skip
    tl.static_assert(BM >= 16)
    wide = tl.cdiv(c.shape[1], BN)
    for t in range(tl.program_id(0), tl.cdiv(c.shape[0], BM) * wide, tl.num_programs(0)):
        m, n = t // wide * BM, t % wide * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
        c.store((m, n), acc)


@tiledsl.jit
def unrolled(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, COUNT: tl.constexpr,
             BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):  # fmt: skip
    """A loop around the product that is as long whatever the tile."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    for t in range(COUNT):
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, a.shape[1], BK):
            acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
        c.store((m, n + t * c.shape[1]), acc)


def made(kernel, grid, M, N, K, **constants):
    x = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in ((M, K), (K, N), (M, N))]
    return choose(kernel.request_for(x, constants, grid)[1], device_graph)


@pytest.mark.parametrize("side", [4096, 8192])
def test_small_tiles_are_more_tiles(side):
    """They looked like less work: the number of tiles was taken for that of the probe's."""
    few = lambda meta: (  # noqa: E731
        min(132, tl.cdiv(side, meta["BM"]) * tl.cdiv(side, meta["BN"])),
    )
    for grid in ((132,), few):
        M, N, _ = made(persistent, grid, side, side, 1024).items[0].tile
        assert M * N >= 128 * 128
    given = made(persistent, (132,), side, side, 1024, BM=64)
    assert given.items[0].tile[1] >= 128


def test_few_rows_take_few():
    """All of a tile of 64 rows is used, and of 8 rows there would be eight times as many."""
    assert made(persistent, (132,), 64, 4096, 4096).items[0].tile[0] in (16, 32, 64)


def test_loops_that_run_as_often_whatever_the_tile():
    grid = lambda meta: (tl.cdiv(1024, meta["BM"]), tl.cdiv(1024, meta["BN"]))  # noqa: E731
    once = made(unrolled, grid, 1024, 1024, 512, COUNT=1).items[0]
    four = made(unrolled, grid, 1024, 1024, 512, COUNT=4).items[0]
    assert four.tile[0] * four.tile[1] >= 64 * 64
    assert four.cost.clocks > 2 * once.cost.clocks


@pytest.mark.parametrize("rows", [1, 8, 64, 100, 127, 128, 129, 200, 1000, 4096])
@pytest.mark.parametrize(("small", "large"), [(8, 128), (16, 192), (64, 256)])
def test_rows_by_how_many_tiles_they_are(rows, small, large):
    few, many = -(-rows // large), -(-rows // small)
    found = extent_of(many / few, small, large)
    assert -(-found // small) / -(-found // large) == pytest.approx(many / few)
    extent = Extent(found, large, frozenset((0,)))
    assert extent.scale(large) == 1
    assert extent.scale(small) == pytest.approx(many / few)


@pytest.mark.parametrize("options", [{}, {"persistent": True}, {"persistent": False}], ids=str)
def test_loops_by_the_number_of_programs_are_proved(options):
    """In a launch without programs their step would be 0, but no CTA comes to them."""
    x = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in ((200, 256), (256, 192))]
    x.append(torch.empty(200, 192, device="meta", dtype=torch.bfloat16))
    given = {"BM": 64, "BN": 64, "BK": 64, **options}
    certificate = next(modules(persistent.request_for(x, given, (2,))[1])).certificate
    assert certificate is not None
    assert certificate.proved, certificate.failure
