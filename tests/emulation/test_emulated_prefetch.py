"""Kernels that fetch boxes into L2 first: right values, and every box fetched is one that its block loads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.emulation.harness import kernel
from tests.emulation.harness import launch
from tests.emulation.harness import pointer
from tests.emulation.harness import tensor_map
from tests.emulation.matmuls import Problem
from tests.emulation.matmuls import check
from tests.emulation.matmuls import compiled
from tests.emulation.matmuls import matmul_kernel
from tests.emulation.matmuls import run_matmul
from tests.emulation.matmuls import tensor
from tests.unit.ws.test_prefetch import batched
from tests.unit.ws.test_prefetch import bounded
from tests.unit.ws.test_prefetch import carried
from tiledsl import dtypes as dt
from tiledsl import emulate

ROWS = {"BM": 16, "BN": 64}
STRUCTURES = {
    "persistent": {**ROWS, "BK": 128, "persistent": True, "cluster": 1, "prefetch": 3},
    "long slots": {**ROWS, "BK": 256, "cluster": 1, "prefetch": 2, "num_stages": 2},
    "one shot": {**ROWS, "BK": 64, "persistent": False, "split_k": 1, "prefetch": 4},
    "split K": {**ROWS, "BK": 64, "split_k": 2, "prefetch": 3},
    "cluster over the edge": {**ROWS, "BK": 64, "cluster": 2, "prefetch": 3},
    "not swapped": {"BM": 64, "BN": 64, "BK": 64, "split_k": 1, "prefetch": 3, "num_consumers": 1},
}
SIZES = {
    "ragged": (13, 136, 328),
    "shorter than what is fetched": (16, 200, 72),
    "more tiles than blocks": (16, 520, 200),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", STRUCTURES)
def test_values_and_boxes(name: str, size: str) -> None:
    options = STRUCTURES[name]
    made = check(Problem(*SIZES[size], order="NTN"), seeds=(0, 3), **options)
    assert made.plan.prefetch == options["prefetch"]
    assert made.module.source.count("tma_prefetch(&b_map") == -(-int(options["BK"]) // 64)


def test_more_programs_than_run_at_once() -> None:
    """The first ones alone fetch ahead."""
    made = check(Problem(16, 64 * 134, 136, order="NTN"), **STRUCTURES["one shot"])
    assert made.plan.prefetch_programs == 132
    assert "if ((int)blockIdx.y < 132) {" in made.module.source


def test_the_rows_may_stream_as_well() -> None:
    made = check(Problem(200, 16, 136), BM=64, BN=16, BK=64, split_k=1, prefetch=3)
    assert "tma_prefetch(&a_map" in made.module.source


@pytest.mark.parametrize("split", [1, 2])
def test_batches(split: int) -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((3, 16, 200), (3, 200, 136)))
    c = np.full((3, 16, 136), np.nan, np.float16)
    options = {"split_k": split, "prefetch": 2}
    made = compiled(batched, tuple(map(tensor, (a, b, c))), (1, 3, 3), **options)
    emulate.run(made.module, {"a": a, "b": b, "c": c}, (1, 3, 3))
    assert made.plan.prefetch == 2
    assert np.array_equal(c, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16))


def test_a_carried_coordinate() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((16, 200), (200, 136)))
    c = np.full((16, 136), np.nan, np.float16)
    made = compiled(carried, tuple(map(tensor, (a, b, c))), (1, 3), split_k=1, prefetch=3)
    emulate.run(made.module, {"a": a, "b": b, "c": c}, (1, 3))
    assert np.array_equal(c, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16))


@pytest.mark.parametrize("bounds", [(64, 64), (128, 64), (0, 64), (64, 192)], ids=str)
@pytest.mark.parametrize("split", [1, 2])
def test_bounds_of_a_launch(split: int, bounds: tuple[int, int]) -> None:
    """The loop may have no iteration, or fewer than are fetched."""
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((16, 192), (192, 136)))
    c = np.full((16, 136), np.nan, np.float16)
    lower, upper = bounds
    args = (*map(tensor, (a, b, c)), 64, 192)
    made = compiled(bounded, args, (1, 3), split_k=split, prefetch=3)
    given = {"a": a, "b": b, "c": c, "lower": lower, "upper": upper}
    emulate.run(made.module, given, (1, 3))
    want = a[:, lower:upper].astype(np.float32) @ b[lower:upper].astype(np.float32)
    assert made.plan.prefetch == 3
    assert np.array_equal(c, want.astype(np.float16))


def test_no_k_at_all() -> None:
    check(Problem(16, 128, 0, order="NTN"), BM=16, BN=64, BK=64)


# ---------------------------------------------------------------------- the check can fail
WRONG = {
    "another column": ("tma_prefetch(&b_map, k_1,", "tma_prefetch(&b_map, k_1 + 8,"),
    "past the end": ("k_1 < t_1; k_1 += 64) {", "k_1 < 384; k_1 += 64) {"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_box_that_is_never_loaded_is_found(name: str) -> None:
    problem = Problem(16, 128, 200, order="NTN")
    made = matmul_kernel(problem, **ROWS, BK=64, split_k=1, cluster=1, prefetch=6)
    old, new = WRONG[name]
    assert made.module.source.count(old) == 1
    edited = replace(made.module, source=made.module.source.replace(old, new))
    with pytest.raises(emulate.EmulationFault, match="without a load of the box"):
        run_matmul(problem, made, module=edited)


def test_a_map_of_another_rank_is_found() -> None:
    body = "if (threadIdx.x == 0) tma_prefetch(&x_map, 0, 0, 0);"
    params = (tensor_map("x", dt.bfloat16, (64, 8), 128), pointer("out", dt.uint8))
    x, out = np.zeros((8, 64), dt.bfloat16.numpy), np.zeros(1, np.uint8)
    with pytest.raises(emulate.EmulationFault, match="3 coordinates for a map of rank 2"):
        launch(kernel(body, params, smem_bytes=1024), {"x": x, "out": out})
