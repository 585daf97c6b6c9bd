"""Sums of rows of loaded tiles are made beside the products of an accumulating loop."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.norm_matmul import grid_of
from examples.norm_matmul import norm_matmul
from tiledsl.compiler import modules
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import smem
from tiledsl.simulator import simulate
from tiledsl.ws.check import check
from tiledsl.ws.plan import Plan


# fmt: off
@tiledsl.jit
def scaled_by_maximum(x: tl.Tensor, w: tl.Tensor, out: tl.Tensor, BM: tl.constexpr = 128,
                    BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    """A row's largest element is found beside the product, like a sum."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc, top = tl.zeros((BM, BN), tl.float32), tl.zeros((BM,), tl.float32)
    for k in range(0, x.shape[1], BK):
        tile = x.load((m, k), (BM, BK))
        acc = tl.dot(tile, w.load((k, n), (BK, BN)), acc)
        top = tl.maximum(top, tl.max(tl.abs(tile.to(tl.float32)), axis=1))
    out.store((m, n), acc / top[:, None])


@tiledsl.jit
def scaled_by_state(x: tl.Tensor, w: tl.Tensor, out: tl.Tensor, BM: tl.constexpr = 128,
                    BN: tl.constexpr = 128, BK: tl.constexpr = 64):
    """What is carried is more than a sum: such a loop is scheduled as a flow."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc, state = tl.zeros((BM, BN), tl.float32), tl.zeros((BM,), tl.float32)
    for k in range(0, x.shape[1], BK):
        tile = x.load((m, k), (BM, BK))
        acc = tl.dot(tile, w.load((k, n), (BK, BN)), acc)
        state = 0.5 * state + tl.sum(tile.to(tl.float32), axis=1)
    out.store((m, n), acc * state[:, None])


@tiledsl.jit
def beside_transposes(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, o: tl.Tensor, WHICH: tl.constexpr,
                      BM: tl.constexpr = 64, BN: tl.constexpr = 64, BK: tl.constexpr = 64):
    """Products and other math read the transpose of a tile."""
    m = tl.program_id(0) * BM
    acc, rows = tl.zeros((BM, BN), tl.float32), tl.zeros((BM,), tl.float32)
    for k in range(0, a.shape[0], BK):
        x, y = tl.trans(a.load((k, m), (BK, BM))), tl.trans(b.load((0, k), (BN, BK)))
        if WHICH == "sum of a":
            rows += tl.sum(x.to(tl.float32), axis=1)
        elif WHICH == "extremum of a":
            rows = tl.maximum(rows, tl.max(x.to(tl.float32), axis=1))
        else:
            rows += tl.sum(tl.sum(y.to(tl.float32), axis=1)) + tl.zeros((BM,), tl.float32)
        acc = tl.dot(x, y, acc)
    c.store((m, 0), acc)
    o.store((m,), rows)
# fmt: on


def tensors(m: int, n: int, k: int) -> list[torch.Tensor]:
    made = [torch.empty(s, device="meta", dtype=torch.bfloat16) for s in ((m, k), (n, k), (m, n))]
    return [made[0], made[1].t(), made[2]]


@pytest.mark.parametrize(
    "options",
    [
        {"BM": 128, "BN": 192, "ping_pong": True, "cluster": 2},
        {"BM": 128, "BN": 192, "num_consumers": 2, "ping_pong": False},
        {"BM": 192, "BN": 128, "num_consumers": 3},
    ],
    ids=str,
)
def test_plans_of_plain_products_are_open_to_them(options):
    made = norm_matmul.compile(
        *tensors(4096, 4096, 1024), 1e-6, grid=grid_of(4096, 4096), **options
    )
    assert isinstance(made.plan, Plan)
    assert made.plan.deferred or made.plan.ping_pong
    assert made.certificate is not None
    assert made.certificate.proved
    assert made.compiled is not None
    assert not made.compiled.spill_bytes


def test_the_proof_needs_the_values_before_the_release():
    made = norm_matmul.compile(
        *tensors(4096, 4096, 1024), 1e-6, grid=grid_of(4096, 4096), ping_pong=True
    )
    graph = made.machine
    assert graph is not None
    (read,) = graph.find(smem.Read)
    assert check(graph).proved
    graph.replace_op(read, read.rebuild({}, scratch=None))
    assert not check(graph).proved
    assert graph.find(barrier.Arrive)


@pytest.mark.parametrize("option", [{"swap_operands": True, "BM": 64, "BN": 64}, {"split_k": 2}])
def test_what_does_not_go_with_them_is_refused(option):
    with pytest.raises(tiledsl.TileError, match="launch options"):
        norm_matmul.compile(*tensors(128, 1024, 4096), 1e-6, grid=grid_of(128, 1024), **option)


def test_the_schedule_of_a_flow_comes_first():
    """Its slots are short blocks of K, and its programs are visited in groups as those of a product."""
    made = norm_matmul.compile(*tensors(8192, 8192, 4096), 1e-6, grid=grid_of(8192, 8192))
    assert any("schedule of the loop" in note for note in made.notes)
    assert made.constants == {"BM": 128, "BN": 256, "BK": 64}
    assert made.plan.num_stages == 4
    assert made.plan.raster_group == 16


def test_rows_are_read_apart_from_the_wgmmas_of_shared_tiles():
    """ptxas mixes both otherwise; one warpgroup alone has nothing else to hide them under."""
    args, grid = tensors(8192, 8192, 4096), grid_of(8192, 8192)
    made = norm_matmul.compile(*args, 1e-6, grid=grid, num_consumers=2, ping_pong=False)
    assert "if (always_1) {" in made.module.source
    assert made.certificate is not None
    assert made.certificate.proved
    made = norm_matmul.compile(*args, 1e-6, grid=grid, ping_pong=True)
    assert "always" not in made.module.source


def test_extrema_are_found_beside_products():
    made = scaled_by_maximum.compile(*tensors(1024, 1024, 1024), grid=(8, 8), num_consumers=2)
    assert made.certificate is not None
    assert made.certificate.proved
    assert made.analysis is not None
    assert made.analysis.loops[0].beside


def test_other_loops_are_flows():
    report = scaled_by_state.report(*tensors(1024, 1024, 1024), grid=(8, 8))
    assert "schedule of the loop" in report


@pytest.mark.parametrize("which", ["sum of a", "extremum of a", "sum of b"])
def test_transposes_of_operands_that_other_math_reads(which):
    """They stay tiles for that, and are no mere views of shared memory."""

    def arguments() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        a, b = (torch.randint(-2, 3, s).bfloat16() for s in ((192, 128), (64, 192)))
        return {"a": a, "b": b, "c": torch.empty(128, 64), "o": torch.empty(128)}

    want, got = arguments(), arguments()
    beside_transposes[(2,)](*want.values(), which)
    given = {"WHICH": which, "warp_specialize": True}
    made = next(modules(beside_transposes.request_for(tuple(got.values()), given, (2,))[1]))
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure
    simulate(made, got, (2,))
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=0)
