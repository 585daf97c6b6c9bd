"""Matmuls under every legal combination of launch options, each launched five times for the same bits.

See test_matmul.py for how to run these in isolation.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch

from tests.gpu.guarded import BF16
from tests.gpu.guarded import FP32
from tests.gpu.guarded import SEED
from tests.gpu.guarded import Guarded
from tests.gpu.guarded import random_input
from tests.gpu.matmul_kernels import DEVICE
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tests.gpu.matmul_kernels import run
from tiledsl.errors import ScheduleError
from tiledsl.errors import TileError

pytestmark = pytest.mark.gpu
SMEM_BYTES = 232448
ORDERS = {"NN": ("row", "row"), "NT": ("row", "col"), "TN": ("col", "row"), "TT": ("col", "col")}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(SEED)


STRUCTURES = {
    "coop1": {"num_consumers": 1, "ping_pong": False},
    "coop2": {"num_consumers": 2, "ping_pong": False},
    "coop3": {"num_consumers": 3, "ping_pong": False},
    "pingpong": {"num_consumers": 2, "ping_pong": True},
}
MODES = {
    "persistent": {"persistent": True, "cluster": 1},
    "cluster2": {"persistent": True, "cluster": 2},
    "oneshot": {"persistent": False, "split_k": 1},
    "splitk": {"split_k": 2},
}
SWEEP_TILES = {
    # The shapes of the fast kernels, and smaller ones that leave room for five slots.
    "coop1": [(128, 128), (64, 256)],
    "coop2": [(128, 256), (128, 160), (256, 128)],
    "coop3": [(192, 176), (192, 80)],
    "pingpong": [(128, 192), (64, 160)],
}
SPLIT_TILES = {
    "coop1": [(64, 64), (128, 128)],
    "coop2": [(128, 64), (128, 128)],
    "coop3": [(192, 64)],
}
SWEEP_SWAPPED = {
    "coop1": [(16, 64), (48, 128)],
    "coop2": [(48, 128), (64 - 8, 256)],
    "coop3": [(48, 192)],
    "pingpong": [(80, 128)],
}


@dataclass(frozen=True)
class Setting:
    """A structure, a mode, a tile: one row of the sweep."""

    structure: str
    mode: str
    tile: tuple[int, int]
    swapped: bool = False

    @property
    def options(self) -> dict[str, object]:
        swap = {"swap_operands": True} if self.swapped else {}
        return {
            **STRUCTURES[self.structure],
            **MODES[self.mode],
            **swap,
            "BM": self.tile[0],
            "BN": self.tile[1],
        }

    def __str__(self) -> str:
        name = f"{self.structure}-{self.mode}-{self.tile[0]}x{self.tile[1]}"
        return name + "-swapped" if self.swapped else name

    def fits(self, num_stages: int, mma_depth: int) -> bool:
        """Whether a bf16 kernel of 64 K elements a slot has room: the ring, one staging chunk, the reduction."""
        bm, bn = self.tile
        if self.swapped:
            bm, bn = bn, bm
        groups = STRUCTURES[self.structure]["num_consumers"]
        rows = (
            bm * 2
            if self.structure == "pingpong"
            else bm
            if bm % (64 * groups) == 0
            else bm * groups
        )
        reduction = bm * bn * 4 if self.mode == "splitk" else 0
        total = num_stages * (bm + bn) * 128 + rows * 128 + reduction + 1024
        return mma_depth <= num_stages and total <= SMEM_BYTES


def settings(
    tiles: dict[str, list[tuple[int, int]]], *, swapped: bool = False, first: bool = False
):
    out = []
    for structure, mode in itertools.product(STRUCTURES, MODES):
        if structure == "pingpong" and mode in ("oneshot", "splitk"):
            continue
        chosen = SPLIT_TILES if mode == "splitk" and not swapped else tiles
        listed = chosen[structure][:1] if first else chosen[structure]
        out += [Setting(structure, mode, tile, swapped) for tile in listed]
    return out


SWEEP = settings(SWEEP_TILES)
SWAPPED = settings(SWEEP_SWAPPED, swapped=True)
BRIEF = settings(SWEEP_TILES, first=True) + settings(SWEEP_SWAPPED, swapped=True, first=True)
DEPTHS = [(s, p) for s in (2, 3, 4, 5) for p in (1, 2)]


def sweep_cases(*, fitting: bool):
    for setting, (stages, depth) in itertools.product(SWEEP + SWAPPED, DEPTHS):
        if setting.fits(stages, depth) is fitting:
            yield pytest.param(setting, stages, depth, id=f"{setting}-s{stages}-p{depth}")


@pytest.mark.parametrize(("setting", "num_stages", "mma_depth"), sweep_cases(fitting=True))
def test_overrides(setting, num_stages, mma_depth):
    """A ragged shape, and one whose loop has a single slot."""
    depths = {"num_stages": num_stages, "mma_depth": mma_depth}
    for k in (1096, 64):
        run(
            1000,
            1048,
            k,
            layouts=("row", "col", "row"),
            repeats=5,
            specialized=True,
            **depths,
            **setting.options,
        )


def refusal(setting: Setting, shape: tuple[int, int, int], out: str, out_dtype: torch.dtype) -> str:
    """Why a kernel cannot have this structure; empty when it must."""
    _, n, k = shape
    if k == 0:
        return "no legal tensor map"  # Of operands without elements.
    staged = out != "odd" and n * out_dtype.itemsize % 16 == 0
    if setting.structure == "pingpong" and setting.tile == (128, 192) and not staged:
        # 192 accumulators of a thread leave no registers for the addresses of single elements.
        return "no legal plan has these values together"
    return ""


def run_or_refuse(
    setting: Setting,
    shape: tuple[int, int, int],
    out: str = "row",
    out_dtype: torch.dtype = BF16,
) -> None:
    """Runs a matmul in the structure asked for, or checks that an error says why there is none."""
    layouts = ("row", "col", out)
    reason = refusal(setting, shape, out, out_dtype)
    if not reason:
        options = {"repeats": 3, "specialized": True, **setting.options}
        run(*shape, layouts=layouts, out_dtype=out_dtype, **options)
        return
    m, n, k = shape
    a = random_input(layouts[0], (m, k), BF16, DEVICE)
    b = random_input(layouts[1], (k, n), BF16, DEVICE)
    guarded = Guarded.output(out, (m, n), out_dtype, DEVICE)
    with pytest.raises(ScheduleError, match=reason):
        matmul[grid_of(m, n)](a, b, guarded.view, **setting.options)
    torch.cuda.synchronize()
    assert guarded.is_untouched()


@pytest.mark.parametrize("order", ["NN", "TN", "TT"])
@pytest.mark.parametrize("setting", BRIEF, ids=str)
def test_overrides_orders(setting, order):
    run(
        1000,
        1048,
        328,
        layouts=(*ORDERS[order], "row"),
        repeats=3,
        specialized=True,
        **setting.options,
    )


@pytest.mark.parametrize(
    ("out", "out_dtype"), [("row", FP32), ("col", BF16), ("odd", BF16)], ids=["fp32", "col", "odd"]
)
@pytest.mark.parametrize("setting", BRIEF, ids=str)
def test_overrides_outputs(setting, out, out_dtype):
    run_or_refuse(setting, (1000, 1048, 328), out, out_dtype)


@pytest.mark.parametrize(
    "shape",
    [(100, 90, 200), (300, 88, 448), (300, 704, 0), (1000, 1048, 40), (1000, 2104, 128)],
    ids=str,
)
@pytest.mark.parametrize("setting", BRIEF, ids=str)
def test_overrides_small_grids_and_loops(setting, shape):
    run_or_refuse(setting, shape)


@pytest.mark.parametrize("k", [0, 40, 64, 1096])
@pytest.mark.parametrize("tile", [(64, 64), (128, 128), (128, 256)], ids=str)
def test_single_role(tile, k):
    run(1000, 1048, k, BM=tile[0], BN=tile[1], warp_specialize=False, repeats=5)


@pytest.mark.parametrize(
    "options",
    [
        {"swap_operands": True},
        {"num_consumers": 1},
        {"num_consumers": 3},
        {"ping_pong": True},
        {"ping_pong": False},
        {"persistent": False},
        {"cluster": 1},
        {"cluster": 2},
        {"cluster": 4},
        {"split_k": 2},
        {"split_k": 4},
        {"num_stages": 3},
        {"mma_depth": 2},
        {"raster_group": 1},
        {"raster_group": 3},
        {"raster_group": 64},
        {"warp_specialize": True},
        {"warp_specialize": False},
    ],
    ids=str,
)
def test_one_override(options):
    """A single override leaves a choice that the compiler can complete."""
    run(1000, 1048, 1096, layouts=("row", "col", "row"), repeats=3, **options)


REFUSED = [
    {"num_stages": 2, "mma_depth": 3},
    {"num_consumers": 4},
    {"ping_pong": True, "persistent": False},
    {"cluster": 3},
]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_refused_overrides_write_nothing(options):
    a = random_input("row", (256, 256), BF16, DEVICE)
    b = random_input("col", (256, 256), BF16, DEVICE)
    out = Guarded.output("row", (256, 256), BF16, DEVICE)
    with pytest.raises(TileError, match=next(iter(options))):
        matmul[grid_of(256, 256)](a, b, out.view, **options)
    torch.cuda.synchronize()
    assert out.is_untouched()
