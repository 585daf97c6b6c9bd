"""Offsets of groups that fit nothing: no store outside of the result, and a debug build names them."""

from __future__ import annotations

import numpy as np
import pytest

from examples.block_scaled_matmul import block_scaled_matmul
from examples.grouped_matmul import first_tiles
from examples.grouped_matmul import grouped_matmul
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import compiled
from tests.emulation.matmuls import tensor
from tiledsl import emulate
from tiledsl.errors import LaunchError
from tiledsl.errors import TileError

G, N, K, T, GUARD = 3, 72, 72, 200, 64
RNG = np.random.default_rng(0)
BAD = {
    "out of order": ([0, 130, 60, 200], "group offsets have to ascend"),
    "beyond the rows": ([0, 130, 200, 450], "group offsets lie beyond the rows of x"),
    "negative": ([-140, 20, 130, 200], "group offsets have to ascend from 0"),
}
PLANS = {"roles": {"BN": 64, "split_k": 1}, "single role": {"BN": 64, "warp_specialize": False}}


def arguments(offsets: list[int]) -> tuple[dict[str, object], np.ndarray]:
    """Arguments, and the memory behind c, whose last rows are not c's."""
    ends = np.asarray(offsets, np.int32)
    tiles = np.maximum(0, -(-np.diff(ends) // 128))
    memory = np.full((GUARD + T + GUARD, N), np.nan, BF16)
    args = {
        "x": RNG.standard_normal((T, K)).astype(BF16),
        "w": RNG.standard_normal((G, K, N)).astype(BF16),
        "offsets": ends,
        "starts": np.cumsum([0, *tiles]).astype(np.int32),
        "c": memory[GUARD : GUARD + T],
    }
    return args, memory


def run(name: str, **options: object) -> np.ndarray:
    args, memory = arguments(BAD[name][0])
    grid = (T // 128 + G + 4, -(-N // 64), 1)
    made = compiled(
        grouped_matmul, tuple(tensor(v) for v in args.values()), grid, G=G, STEPS=2, **options
    )
    emulate.run(made.module, args, grid)
    return memory


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("name", BAD)
def test_nothing_is_written_outside(name: str, plan: str) -> None:
    memory = run(name, **PLANS[plan]).astype(np.float32)
    assert np.isnan(memory[:GUARD]).all()
    assert np.isnan(memory[GUARD + T :]).all()


@pytest.mark.parametrize("name", ["beyond the rows", "negative"])
def test_a_debug_build_names_them(name: str) -> None:
    with pytest.raises(TileError, match=BAD[name][1]):
        run(name, BN=64, debug=True)


def test_the_launch_that_counts_tiles_names_groups_of_negative_size() -> None:
    offsets, message = BAD["out of order"]
    args = {"offsets": np.asarray(offsets, np.int32), "starts": np.zeros(G + 1, np.int32)}
    tensors = tuple(tensor(v) for v in args.values())
    made = compiled(first_tiles, tensors, (1, 1, 1), P=4, debug=True)
    with pytest.raises(TileError, match=message):
        emulate.run(made.module, args, (1, 1, 1))
    with pytest.raises(TileError, match=message):
        first_tiles[(1,)](*tensors, 4)


def test_shapes_are_refused_before_the_launch() -> None:
    args, _ = arguments([0, 70, 70, 200])
    tensors = [tensor(v) for v in args.values()]
    grid = lambda meta: (T // 128 + G, -(-N // meta["BN"]))  # noqa: E731
    with pytest.raises(LaunchError, match=r"x \[T, K\] and w \[G, K, N\] \(3 == 4 does not hold\)"):
        grouped_matmul[grid](*tensors, 4, 2)
    tensors[-1] = tensors[-1][:-1]
    with pytest.raises(LaunchError, match=r"c \[T, N\] \(199 == 200 does not hold\)"):
        grouped_matmul[grid](*tensors, G, 2)


def test_scales_of_another_shape_are_refused_before_the_launch() -> None:
    import torch

    a, b = (torch.zeros(n, 256).to(torch.float8_e4m3fn) for n in (70, 200))
    c = torch.empty(70, 200, dtype=torch.bfloat16)
    grid = (1, 2)
    with pytest.raises(LaunchError, match=r"sa \[K / 128, M\] \(70 == 2 does not hold\)"):
        block_scaled_matmul[grid](a, b.t(), torch.ones(70, 2), torch.ones(2, 2), c, BN=128)
    with pytest.raises(LaunchError, match=r"sb .*\(1 == 2 does not hold\)"):
        block_scaled_matmul[grid](a, b.t(), torch.ones(2, 70), torch.ones(1, 2), c, BN=128)
