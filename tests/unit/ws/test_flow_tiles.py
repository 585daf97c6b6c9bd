"""Tile sizes that kernels with flow loops leave to the compiler."""

from __future__ import annotations

import re

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples import norm_matmul
from tests.unit.ws.kernels import first
from tiledsl.compiled import Kernel
from tiledsl.errors import ScheduleError
from tiledsl.ws.single_plan import SinglePlan


# fmt: off
@tiledsl.jit
def heads(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, CAUSAL: tl.constexpr,
          D: tl.constexpr, BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto):
    m, h = tl.program_id(0) * BM, tl.program_id(1)
    rows, cols = m + tl.arange(0, BM), tl.arange(0, BN)
    x = q.load((h, m, 0), (1, BM, D)).reshape((BM, D))
    top = tl.full((BM,), -float("inf"), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = k.shape[1]
    if CAUSAL:
        end = min(end, m + BM)
    for n in range(0, end, BN):
        s = tl.dot(x, tl.trans(k.load((h, n, 0), (1, BN, D)).reshape((BN, D))))
        s = tl.where(rows[:, None] >= (n + cols)[None, :], s, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        z = v.load((h, n, 0), (1, BN, D)).reshape((BN, D))
        acc = tl.dot(p.to(v.dtype), z, acc * tl.exp2(top - new)[:, None])
        top = new
    o.store((h, m, 0), acc.reshape((1, BM, D)))
# fmt: on


def chosen(L: int, D: int, causal: bool = True, H: int = 64, **options) -> Kernel:
    """The first choice for H heads of L tokens."""
    x = torch.empty(H, L, D, dtype=torch.bfloat16, device="meta")
    grid = lambda c: (tl.cdiv(L, c["BM"]), H)  # noqa: E731
    return first(heads.request_for((x, x, x, x, causal, D), options, grid)[1])


def tile(kernel: Kernel) -> tuple[int, int]:
    assert kernel.plan is not None
    return kernel.constants["BM"], kernel.constants["BN"]


def test_wide_heads_take_two_warpgroups() -> None:
    kernel = chosen(4096, 128)
    assert tile(kernel) == (128, 128)
    assert kernel.plan.num_consumers == 2


def test_narrow_heads_take_three_warpgroups_of_long_sequences() -> None:
    kernel = chosen(4096, 64)
    assert tile(kernel)[0] == 192
    assert kernel.plan.num_consumers == 3


def test_few_rows_take_one_warpgroup() -> None:
    assert tile(chosen(64, 64, H=8))[0] == 64


def test_tiles_that_do_not_fit_the_registers_are_passed_over() -> None:
    assert tile(chosen(2048, 256)) == (128, 64)


def test_a_given_tile_stays() -> None:
    assert tile(chosen(4096, 64, BM=128)) == (128, 128)


def test_choices_are_kept_to() -> None:
    assert tile(chosen(4096, 64, BN=tl.auto(64)))[1] == 64


def test_without_specialisation_a_single_role_kernel_comes_out() -> None:
    assert isinstance(chosen(4096, 64, warp_specialize=False).plan, SinglePlan)


def test_warpgroups_share_out_the_rows_evenly() -> None:
    kernel = chosen(4096, 64, BM=256, BN=64)
    assert kernel.plan.num_consumers == 2


@pytest.mark.parametrize("option", [{"cluster": 2}, {"split_k": 2}, {"mma_depth": 2}], ids=str)
def test_options_that_do_not_go_with_the_loop_are_refused(option: dict[str, object]) -> None:
    with pytest.raises(ScheduleError, match=f"takes no {next(iter(option))}"):
        chosen(4096, 64, BM=128, BN=64, **option)


@pytest.mark.parametrize(
    ("tile", "option", "turns"),
    [
        ((192, 128), {}, True),
        ((192, 128), {"ping_pong": False}, False),
        ((128, 128), {}, False),
        ((128, 128), {"ping_pong": True}, True),
    ],
    ids=str,
)
def test_warpgroups_take_turns_on_the_tensor_core(
    tile: tuple[int, int], option: dict[str, bool], *, turns: bool
) -> None:
    kernel = chosen(4096, 64, BM=tile[0], BN=tile[1], **option)
    assert kernel.plan.turns is turns
    text = kernel.module.source
    # One turn is given away before the first tile, one in each copy of the loop.
    assert text.count("named_barrier_arrive(") == (3 if turns else 0)


def test_one_warpgroup_has_no_turns() -> None:
    with pytest.raises(ScheduleError, match="ping_pong: there is one consumer warpgroup"):
        chosen(4096, 64, BM=64, BN=64, ping_pong=True)


def test_each_warpgroup_masks_what_its_rows_need() -> None:
    kernel = chosen(4096, 64, BM=192, BN=64)
    # Where the part without masks ends, from the first row of the warpgroup.
    assert re.search(r"\(-62\) \+ .*\) \+ warpgroup_\d \* 64;", kernel.module.source)


def test_rings_keep_two_slots() -> None:
    """Columns that leave room for one slot only are not taken: nothing would load under a dot."""
    kernel = chosen(4096, 256)
    assert tile(kernel) == (128, 64)
    assert kernel.plan.num_stages >= 2
    kernel = chosen(4096, 160)
    assert kernel.plan.num_stages >= 2
    assert tile(kernel) == (128, 96), "between the widest and the narrowest columns"


def test_more_slots_than_fit_are_a_hint() -> None:
    kernel = chosen(4096, 128, BM=128, BN=128, num_stages=3)
    assert kernel.plan.num_stages == 2
    assert "num_stages=3: 2 slots fit and are used" in kernel.notes


def test_one_stage_leaves_the_depth_to_the_compiler() -> None:
    kernel = chosen(4096, 128, num_stages=1)
    assert kernel.plan == chosen(4096, 128).plan
    assert any(n.startswith("num_stages=1 leaves the depth to the comp") for n in kernel.notes)


def test_stages_beside_warps_are_of_one_of_several_programs() -> None:
    """A loop has at most the four slots that it has by itself."""
    for stages, slots in ((2, 4), (3, 3), (4, 4), (6, 4)):
        tiles = {"BM": 128, "BN": 64}
        kernel = chosen(4096, 128, num_warps=4, num_stages=stages, **tiles)
        assert kernel.plan.num_stages == slots
    assert chosen(4096, 128, num_stages=2, **tiles).plan.num_stages == 2


def test_the_raster_group_that_is_asked_for() -> None:
    assert chosen(4096, 128, raster_group=4).plan.raster_group == 4
    other = chosen(4096, 128, causal=False, raster_group=4)
    assert any("raster_group is ignored" in note for note in other.notes)


@pytest.mark.parametrize("shape", [(8192, 8192), (1024, 4096)])
def test_programs_of_a_product_are_visited_in_groups(shape):
    """Programs side by side share what they load, as in plans of bare products."""
    m, n = shape
    x, w, out = (
        torch.empty(s, device="meta", dtype=torch.bfloat16) for s in ((m, 512), (n, 512), shape)
    )
    grid = norm_matmul.grid_of(m, n)
    kernel = norm_matmul.norm_matmul
    made = kernel.compile(x, w.t(), out, 1e-6, grid=grid, BM=128, BN=256, BK=64)
    assert made.plan.raster_group == 16
    made = kernel.compile(x, w.t(), out, 1e-6, grid=grid, BM=128, BN=256, BK=64, raster_group=4)
    assert made.plan.raster_group == 4
