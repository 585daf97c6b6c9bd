"""Boxes fetched into L2 before the wait for the kernel before: when, which, and what is refused."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.conftest import Golden
from tests.unit.ws.kernels import attention_request
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import matmul_request
from tests.unit.ws.kernels import meta
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.errors import LaunchError
from tiledsl.errors import ScheduleError
from tiledsl.ir.op import Op
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import tma
from tiledsl.ws.plan import Plan
from tiledsl.ws.simulate import simulate
from tiledsl.ws.streamed import LEAST_BYTES
from tiledsl.ws.streamed import MOST_BYTES
from tiledsl.ws.streamed import SHARE

BF16 = ml_dtypes.bfloat16
GOLDEN = Path(__file__).parents[2] / "golden" / "kernels"


# fmt: off
@tiledsl.jit
def batched(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
            BM: tl.constexpr = 16, BN: tl.constexpr = 64, BK: tl.constexpr = 64):
    z, n = tl.program_id(2), tl.program_id(1) * BN
    m = tl.program_id(0) * BM
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[2], BK):
        acc = tl.dot(a.load((z, m, k), (1, BM, BK)).reshape(BM, BK),
                     b.load((z, k, n), (1, BK, BN)).reshape(BK, BN), acc)
    c.store((z, m, n), acc.reshape(1, BM, BN))


@tiledsl.jit
def carried(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
            BM: tl.constexpr = 16, BN: tl.constexpr = 64, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    at = 0
    for _ in range(0, tl.cdiv(a.shape[1], BK)):
        acc = tl.dot(a.load((m, at), (BM, BK)), b.load((at, n), (BK, BN)), acc)
        at += BK
    c.store((m, n), acc)


@tiledsl.jit
def bounded(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, lower, upper,
            BM: tl.constexpr = 16, BN: tl.constexpr = 64, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(lower, upper, BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)


@tiledsl.jit
def looked_up(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, starts,
              BM: tl.constexpr = 16, BN: tl.constexpr = 64, BK: tl.constexpr = 64):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    start = tl.load(starts + tl.program_id(1))
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((start + k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


def request_of(kernel, args, grid, **options):
    return kernel.request_for(args, options, grid)[1]


def columns(N: int):
    return lambda c: (1, tl.cdiv(N, c["BN"]))


def before_the_wait(kernel: Kernel) -> list[tma.PrefetchBox]:
    """The prefetches of a kernel, all of which stand before the wait."""
    assert kernel.machine is not None
    ops: list[Op] = list(kernel.machine.walk())
    (wait,) = [i for i, o in enumerate(ops) if isinstance(o, barrier.GridDependency)]
    found = [o for o in ops if isinstance(o, tma.PrefetchBox)]
    assert all(ops.index(o) < wait for o in found)
    return found


def plan_of(kernel: Kernel) -> Plan:
    assert isinstance(kernel.plan, Plan)
    assert kernel.certificate is not None
    assert kernel.certificate.proved, kernel.certificate.failure
    return kernel.plan


# ---------------------------------------------------------------------- the compiler's choice
@pytest.mark.parametrize("shape", [(16, 8192, 8192), (64, 8192, 8192), (16, 4096, 8192)], ids=str)
def test_a_kernel_bound_by_hbm_fetches_its_stream_ahead(shape: tuple[int, int, int]) -> None:
    kernel = first(matmul_request(*shape))
    plan = plan_of(kernel)
    streamed = int(kernel.constants["BN"]) * int(kernel.constants["BK"]) * 2
    own = int(kernel.constants["BN"]) * shape[2] * 2 // plan.split_k
    expected = min(MOST_BYTES, LEAST_BYTES + own // SHARE) // streamed
    assert plan.prefetch == min(expected, plan.num_stages - 1) > 0
    assert f"prefetch {plan.prefetch}" in plan.describe()
    maps = {o.map.name for o in before_the_wait(kernel)}
    assert maps == {"b_map"}


@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (4096, 4096, 4096)], ids=str)
def test_a_kernel_bound_by_the_tensor_core_does_not(shape: tuple[int, int, int]) -> None:
    kernel = first(matmul_request(*shape))
    assert plan_of(kernel).prefetch == 0
    assert not before_the_wait(kernel)
    assert "prefetch" not in kernel.plan.describe()


def test_a_second_wave_of_a_plain_grid_does_not() -> None:
    request = matmul_request(16, 64 * 300, 8192, BM=16, BN=64, persistent=False, split_k=1)
    kernel = first(request)
    assert plan_of(kernel).prefetch_programs == 132
    assert "if ((int)blockIdx.y < 132)" in kernel.module.source
    assert before_the_wait(kernel)


def test_programs_along_two_axes_are_counted_in_the_order_of_the_grid() -> None:
    a, b, c = (
        torch.empty(s, device="meta", dtype=torch.bfloat16)
        for s in ((4, 16, 4096), (4, 4096, 8192), (4, 16, 8192))
    )
    grid = lambda m: (1, tl.cdiv(8192, m["BN"]), 4)  # noqa: E731
    kernel = first(request_of(batched, (a, b, c), grid, persistent=False))
    assert plan_of(kernel).prefetch_programs == 132
    assert "(int)blockIdx.y + (int)blockIdx.z * grid_1" in kernel.module.source


def test_two_ctas_of_an_sm_share_what_is_fetched() -> None:
    request = matmul_request(16, 64 * 300, 8192, BM=16, BN=64, BK=64, persistent=False,
                             split_k=1, num_stages=9)  # fmt: skip
    plan = plan_of(first(request))
    assert (plan.prefetch, plan.prefetch_programs) == (MOST_BYTES // 2 // 8192, 264)


@pytest.mark.parametrize(("K", "count"), [(1024, 2), (4096, 4)])
def test_a_stream_that_hbm_does_not_bound_fetches_half_as_much(K: int, count: int) -> None:
    """A program reads 64 KB and 256 KB: 40 KB and 64 KB if HBM bounded it."""
    request = matmul_request(128, 4096, K, BM=128, BN=64, BK=64, split_k=2, swap_operands=False)
    assert plan_of(first(request)).prefetch == count


# ---------------------------------------------------------------------- which boxes
STRUCTURES = {
    "persistent": {"persistent": True},
    "one shot": {"persistent": False, "split_k": 1},
    "split K": {"split_k": 2},
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_kind_of_grid(name: str) -> None:
    kernel = first(matmul_request(16, 4096, 4096, BM=16, BN=64, prefetch=2, **STRUCTURES[name]))
    assert plan_of(kernel).prefetch == 2
    assert before_the_wait(kernel)


def test_text(golden: Golden) -> None:
    kernel = first(matmul_request(16, 8192, 8192, BM=16, BN=64, BK=128, prefetch=3))
    text = kernel.module.source
    end = text.index("grid_dependency_wait();\n") + len("grid_dependency_wait();\n")
    golden(text[text.rindex("block_sync();", 0, end) : end], GOLDEN / "prefetch_part.cu")


def test_a_batch_of_products() -> None:
    a, b = (
        torch.empty(s, device="meta", dtype=torch.bfloat16) for s in ((4, 16, 512), (4, 512, 1024))
    )
    c = torch.empty((4, 16, 1024), device="meta", dtype=torch.bfloat16)
    grid = lambda m: (1, tl.cdiv(1024, m["BN"]), 4)  # noqa: E731
    options = {"prefetch": 2, "cluster": 1, "persistent": True}
    kernel = first(request_of(batched, (a, b, c), grid, **options))
    assert plan_of(kernel).prefetch == 2
    assert all(len(o.coords) == 3 for o in before_the_wait(kernel))
    assert "tma_prefetch(&b_map, n_1, k_1, program_1.axis_2)" in kernel.module.source


def test_a_carried_coordinate_is_carried_along() -> None:
    args = (meta(16, 4096), meta(4096, 4096), meta(16, 4096))
    kernel = first(request_of(carried, args, columns(4096), prefetch=3, split_k=1, cluster=1))
    assert plan_of(kernel).prefetch == 3
    part = kernel.module.source.partition("grid_dependency_wait")[0]
    assert "tma_prefetch(&b_map, n_1, at_1)" in part
    assert "const int at_2 = at_1 + 64" in part
    assert "at_1 = at_2" in part


def looked_up_request(**options):
    starts = torch.empty(64, device="meta", dtype=torch.int32)
    args = (meta(16, 4096), meta(8192, 4096), meta(16, 4096), starts)
    return request_of(looked_up, args, columns(4096), **options)


def test_a_coordinate_from_memory_is_not_known_before_the_wait() -> None:
    kernel = first(looked_up_request())
    if not isinstance(kernel.plan, Plan):
        pytest.fail(f"not specialised: {[str(d) for d in kernel.declined]}")
    assert kernel.plan.prefetch == 0
    assert not before_the_wait(kernel)
    (note,) = [n for n in kernel.notes if "nothing is fetched" in n]
    assert "test_prefetch.py:" in note
    assert "a coordinate comes from" in note


def test_and_cannot_be_asked_for() -> None:
    with pytest.raises(ScheduleError, match="prefetch=2: a coordinate comes from"):
        list(modules(looked_up_request(prefetch=2)))


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_simulator_takes_it_for_no_access(name: str) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, s).astype(np.float32) for s in ((16, 200), (200, 136)))
    c = np.full((16, 136), np.nan, np.float32)
    arrays = {"a": a.astype(BF16), "b": b.astype(BF16), "c": c}
    options = {"BM": 16, "BN": 64, "prefetch": 2, **STRUCTURES[name]}
    kernel = first(matmul_request(16, 136, 200, out=torch.float32, **options))
    assert kernel.machine is not None
    for seed in range(3):
        c.fill(np.nan)
        simulate(kernel.machine, arrays, (1, 3, 1), seed=seed)
        assert np.array_equal(c, a @ b)


# ---------------------------------------------------------------------- launch options
@pytest.mark.parametrize("count", [0, 1, 4])
def test_an_option_is_what_the_plan_says(count: int) -> None:
    kernel = first(matmul_request(16, 8192, 8192, prefetch=count))
    assert plan_of(kernel).prefetch == count
    assert bool(before_the_wait(kernel)) == bool(count)


def test_no_stream_no_prefetch() -> None:
    with pytest.raises(ScheduleError, match="no operand is read by one program alone") as caught:
        first(matmul_request(8192, 8192, 8192, prefetch=2))
    assert "prefetch=0" in (caught.value.hint or "")
    assert plan_of(first(matmul_request(8192, 8192, 8192, prefetch=0))).prefetch == 0


def test_another_option_at_fault_is_named() -> None:
    with pytest.raises(ScheduleError, match="split_k must be 1, 2 or 4, got 3"):
        first(matmul_request(16, 8192, 8192, prefetch=2, split_k=3))


def test_a_single_role_has_none() -> None:
    with pytest.raises(ScheduleError, match=r"prefetch=2: .*no legal tensor map"):
        first(matmul_request(16, 512, 512, pad=1, prefetch=2))


def test_a_loop_that_is_no_accumulation_takes_none() -> None:
    with pytest.raises(ScheduleError, match="no plain accumulation takes no prefetch"):
        list(modules(attention_request(prefetch=2)))


@pytest.mark.parametrize("value", [-1, True, 1.5, "2"])
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(LaunchError, match="prefetch must be an int that is not negative"):
        matmul_request(16, 512, 512, prefetch=value)
