"""The generated matmul kernels, all structures, on small ragged sizes: right values on every schedule tried."""

from __future__ import annotations

import pytest

from tests.emulation.matmuls import F16
from tests.emulation.matmuls import F32
from tests.emulation.matmuls import Problem
from tests.emulation.matmuls import check
from tests.emulation.matmuls import is_right
from tests.emulation.matmuls import matmul_kernel
from tests.emulation.matmuls import run_matmul
from tiledsl.ws.plan import Plan
from tiledsl.ws.single_plan import SinglePlan

STRUCTURES = {
    "ping-pong, cluster": {"BM": 128, "BN": 192, "ping_pong": True, "cluster": 2},
    "ping-pong": {"BM": 128, "BN": 128, "ping_pong": True, "cluster": 1},
    "cooperative, deferred": {
        "BM": 128,
        "BN": 256,
        "num_consumers": 2,
        "ping_pong": False,
        "cluster": 1,
    },
    "cooperative, cluster": {
        "BM": 128,
        "BN": 192,
        "num_consumers": 2,
        "ping_pong": False,
        "cluster": 2,
    },
    "cooperative, columns": {"BM": 64, "BN": 256, "num_consumers": 2, "ping_pong": False},
    "three consumers": {"BM": 192, "BN": 128, "num_consumers": 3, "cluster": 2},
    "one consumer": {"BM": 128, "BN": 128, "num_consumers": 1},
    "split K": {"BM": 128, "BN": 64, "split_k": 2},
    "swapped": {"BM": 16, "BN": 128, "swap_operands": True},
    "plain grid": {"BM": 128, "BN": 128, "persistent": False},
    "single role": {"BM": 64, "BN": 64, "warp_specialize": False},
}
SHALLOW = {
    "ping-pong": {**STRUCTURES["ping-pong"], "num_stages": 2, "mma_depth": 2},
    "cooperative": {**STRUCTURES["cooperative, cluster"], "num_stages": 2, "mma_depth": 2},
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_ragged_sizes(name: str) -> None:
    """Several tiles per block, all three extents ragged, a cluster that hangs over the edge."""
    options = STRUCTURES[name]
    kernel = check(Problem(296, 136, 200), seeds=(0, 1, 2, 3), **options)
    assert isinstance(kernel.plan, Plan) == (name != "single role")


@pytest.mark.parametrize("order", ["NTN", "TNN", "TTN", "NNT"])
@pytest.mark.parametrize("name", STRUCTURES)
def test_orders_of_the_operands(name: str, order: str) -> None:
    check(Problem(264, 200, 136, order=order), seeds=(0, 5), **STRUCTURES[name])


@pytest.mark.parametrize("name", STRUCTURES)
def test_other_element_types(name: str) -> None:
    check(Problem(136, 264, 328, F16, F16), seeds=(0, 6), **STRUCTURES[name])
    check(Problem(200, 264, 72, out_dtype=F32), seeds=(0, 7), **STRUCTURES[name])
    check(Problem(136, 200, 72, F16, F32, "NTT"), seeds=(0, 7), **STRUCTURES[name])


@pytest.mark.parametrize("K", [8, 64, 72])
@pytest.mark.parametrize("name", STRUCTURES)
def test_short_loops(name: str, K: int) -> None:
    check(Problem(136, 72, K), seeds=(0, 8), **STRUCTURES[name])


def test_an_empty_loop_gives_zeros() -> None:
    """No tensor map describes an empty tensor, so that the kernel has a single role."""
    kernel = check(Problem(136, 72, 0), BM=128, BN=64)
    assert isinstance(kernel.plan, SinglePlan)


@pytest.mark.parametrize("name", SHALLOW)
def test_shallow_rings(name: str) -> None:
    check(Problem(392, 264, 456), seeds=(0, 9, 10, 11), **SHALLOW[name])


def test_a_ring_of_one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """No launch option asks for one; little shared memory may leave no more."""
    monkeypatch.setattr("tiledsl.ws.planner.MAX_STAGES", 1)
    options = {**STRUCTURES["one consumer"], "mma_depth": 1}
    kernel = check(Problem(392, 264, 456), seeds=(0, 9, 10, 11), **options)
    assert isinstance(kernel.plan, Plan)
    assert kernel.plan.num_stages == 1


@pytest.mark.parametrize(("M", "N", "K"), [(7, 129, 64), (130, 67, 129), (3, 1, 1), (129, 8, 7)])
def test_sizes_that_tma_cannot_read(M: int, N: int, K: int) -> None:
    check(Problem(M, N, K), seeds=(0, 12), BM=64, BN=64)


@pytest.mark.parametrize("name", ["ping-pong, cluster", "one consumer"])
def test_blocks_side_by_side(name: str) -> None:
    problem, options = Problem(264, 264, 72), STRUCTURES[name]
    kernel = matmul_kernel(problem, **options)
    for seed in (0, 14):
        assert is_right(
            problem, run_matmul(problem, kernel, seed=seed, num_ctas_resident=8, num_sms=8)
        )


@pytest.mark.parametrize("name", ["ping-pong, cluster", "cooperative, deferred", "split K"])
def test_many_tiles_per_block(name: str) -> None:
    check(Problem(520, 520, 192), seeds=(0, 13), **STRUCTURES[name])
