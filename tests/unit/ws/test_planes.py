"""Gathers of single elements: their indexes lie as they do, are found once, and come an iteration ahead."""

from __future__ import annotations

import re

import pytest
import torch

from tests.plane_kernels import conv_planes
from tests.plane_kernels import conv_planes_args
from tests.plane_kernels import planes_to_rows
from tests.ring_kernels import ring_kernel
from tiledsl.compiled import Kernel
from tiledsl.ws.single_plan import SinglePlan


def made_for(tile: tuple[int, int, int], channels: tuple[int, int] = (64, 64)) -> Kernel:
    args, _, grid = conv_planes_args(4, (28, 28), channels, tile)
    return ring_kernel(conv_planes, args, grid=(*grid, 1))[0]


def loop_of(text: str) -> str:
    """The body of the only loop that multiplies."""
    end = text.index("wgmma_wait<0>();")
    return text[text.rindex("\n    for (int ", 0, end) : end]


def test_indexes_are_not_exchanged() -> None:
    made = made_for((128, 64, 32))
    assert not [note for note in made.notes if "converted" in note]
    assert "exchange_at" not in made.module.source


def test_divisions_are_done_once_for_each_row() -> None:
    """The store and the loads each find the rows of their own layout, none for each element."""
    text = made_for((128, 64, 32)).module.source
    for found in re.finditer(r"\b(?:div|mod)_or_zero<", text):
        around = re.findall(
            r"for \(int i = 0; i < (\d+); \+\+i\)|auto at_\d+ = \[&\]", text[: found.start()]
        )
        assert around[-1] in ("1", "4"), text[found.start() - 300 : found.end() + 80]
    assert "_or_zero<" not in loop_of(text)


def test_loads_stand_behind_the_barrier_and_are_written_in_vectors() -> None:
    loop = loop_of(made_for((128, 64, 32)).module.source)
    places = [
        loop.index(what) for what in ("write_shared<8", "block_sync", "load_lanes<", "wgmma_fence")
    ]
    assert places == sorted(places)
    assert "write_shared<1" not in loop


@pytest.mark.parametrize(("tile", "blocks"), [((128, 64, 32), 3), ((64, 64, 32), 4)])
def test_blocks(tile: tuple[int, int, int], blocks: int) -> None:
    plan = made_for(tile).plan
    assert isinstance(plan, SinglePlan)
    assert plan.min_blocks == blocks


def test_too_many_registers() -> None:
    made = made_for((128, 256, 64))
    assert any("registers of a thread are taken, the loads take" in note for note in made.notes)


def test_masks_are_asked_once_for_a_run() -> None:
    """Channels come in sixteens, as a thread has them: one comparison serves all."""
    loop = loop_of(made_for((128, 64, 32)).module.source)
    weights = loop[loop.rindex("auto at_") :]
    compared = next(line for line in weights.splitlines() if "add_wrap" in line and "at_1" in line)
    assert "+ i" not in compared


def test_strides_are_multiplied_by_the_thread_and_the_register() -> None:
    loop = loop_of(made_for((128, 64, 32)).module.source)
    assert re.search(r"\(i64\)at_1_\d+ \* \w+ \+ \w+ \+ \(i64\)\(i\) \* ", loop)


@pytest.mark.parametrize("tile", [(128, 32), (32, 64)], ids=str)
def test_rows_of_moves_are_found_once(tile: tuple[int, int]) -> None:
    """Without a dot too: a thread divides once for each row it has, not for each element."""
    x = torch.empty((4, 24, 36), dtype=torch.float16, device="meta")
    text = planes_to_rows.cuda(x, x, 4, 24, 36, 24 * 36, 36, 1, *tile, num_warps=4, grid=(2, 1))
    inside = [part.split("};")[0] for part in text.split("auto at_")[1:]]
    assert inside
    assert "_or_zero<" in text
    assert not any("_or_zero<" in part for part in inside)
