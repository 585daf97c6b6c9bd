"""Which plan the cost model takes for the benchmark's shapes, and what becomes of launch options."""

from __future__ import annotations

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples import matmul as example
from tests.gpu.matmul_kernels import matmul
from tests.unit.ws.kernels import FP32
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import matmul_request
from tests.unit.ws.kernels import meta
from tiledsl.errors import ResourceError
from tiledsl.errors import ScheduleError
from tiledsl.target import HOPPER
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.plan import Plan


def plan_for(M: int, N: int, K: int, **options: object) -> tuple[dict[str, object], Plan]:
    kernel = first(matmul_request(M, N, K, **options))
    assert isinstance(kernel.plan, Plan), [str(d) for d in kernel.declined]
    return kernel.constants, kernel.plan


# Shape, tile, ping-pong, CTAs of a cluster: measured on the H200 (docs/performance.md).
CHOICES = [
    ((8192, 8192, 512), (128, 192), True, 2),
    ((8192, 8192, 16384), (128, 192), True, 2),
    ((4096, 4096, 4096), (128, 256), False, 1),
    ((2048, 2048, 2048), (128, 256), False, 1),
    ((4096, 14336, 4096), (128, 256), False, 1),
]


@pytest.mark.parametrize(("shape", "tile", "ping_pong", "cluster"), CHOICES)
def test_benchmark_shapes(
    shape: tuple[int, int, int], tile: tuple[int, int], ping_pong: bool, cluster: int
) -> None:
    constants, plan = plan_for(*shape)
    assert (constants["BM"], constants["BN"]) == tile
    assert (plan.ping_pong, plan.cluster_size, plan.num_consumers) == (ping_pong, cluster, 2)
    assert plan.persistent == (shape != (2048, 2048, 2048))  # a program for each CTA there
    assert plan.l2_promotion_bytes == 256
    assert plan.num_stages >= 4


@tiledsl.jit
def two_products(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, d: tl.Tensor, o: tl.Tensor):
    m, n = tl.program_id(0) * 64, tl.program_id(1) * 64
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(0, a.shape[0], 1):
        x = tl.dot(a.load((i, m, 0), (64, 128)), tl.trans(b.load((i, n, 0), (64, 128))))
        acc += x * tl.dot(c.load((i, m, 0), (64, 128)), tl.trans(d.load((i, n, 0), (64, 128))))
    o.store((m, n), acc)


def test_rings_have_room_for_every_operand() -> None:
    """Two products of four operands: the first plan fits into shared memory."""
    a, b = (torch.empty(8, n, 128, dtype=torch.bfloat16, device="meta") for n in (512, 1024))
    o = torch.empty(512, 1024, dtype=torch.bfloat16, device="meta")
    made = first(two_products.request_for((a, b, a, b, o), {}, (8, 16))[1])
    assert isinstance(made.plan, Plan), [*made.notes, *made.declined]
    assert not [n for n in made.notes if "given up" in n], made.notes
    assert made.plan.num_stages == 3


def test_few_rows_share_the_k_loop() -> None:
    _, plan = plan_for(128, 4096, 4096)
    assert plan.split_k > 1
    assert plan.split_k == plan.cluster_size


def test_rows_below_an_instruction_swap_the_operands() -> None:
    constants, plan = plan_for(16, 8192, 8192)
    assert plan.swapped
    assert constants["BM"] == 16


# Shape, tile, parts of K: measured on the H200 (docs/performance.md).
STREAMS = [
    ((1, 8192, 8192), (8, 64, 256), 1),
    ((16, 8192, 8192), (16, 64, 256), 1),
    ((32, 8192, 8192), (32, 64, 128), 1),
    ((48, 4096, 4096), (48, 64, 128), 2),
    ((64, 8192, 8192), (64, 128, 128), 2),
    ((48, 28672, 8192), (64, 224, 128), 1),
]


def stream_plan(M: int, N: int, K: int) -> tuple[dict[str, object], Plan]:
    """Of the README's matmul, with any tile; columns of the right operand are contiguous."""
    args = (meta(M, K), meta(N, K).t(), meta(M, N))
    grid = lambda c: (tl.cdiv(M, c["BM"]), tl.cdiv(N, c["BN"]))  # noqa: E731
    kernel = first(example.matmul.request_for(args, {}, grid)[1])
    assert isinstance(kernel.plan, Plan), [str(d) for d in kernel.declined]
    return kernel.constants, kernel.plan


@pytest.mark.parametrize(("shape", "tile", "split"), STREAMS, ids=str)
def test_few_rows_stream_the_other_operand(
    shape: tuple[int, int, int], tile: tuple[int, int, int], split: int
) -> None:
    constants, plan = stream_plan(*shape)
    assert (constants["BM"], constants["BN"], constants["BK"]) == tile
    assert (plan.split_k, plan.persistent, plan.l2_promotion_bytes) == (split, False, 128)
    assert 0 < plan.prefetch < plan.num_stages


@pytest.mark.parametrize(("rows", "tile"), [(20, 24), (33, 40), (48, 48), (57, 64), (64, 64)])
def test_one_tile_takes_few_rows_as_they_are(rows: int, tile: int) -> None:
    assert stream_plan(rows, 8192, 8192)[0]["BM"] == tile


def test_programs_that_run_at_once_have_a_cta_each() -> None:
    assert not plan_for(2048, 2048, 2048, BM=128, BN=256)[1].persistent
    assert plan_for(2048, 2048, 2048, BM=128, BN=256, raster_group=4)[1].persistent
    assert plan_for(4096, 4096, 4096, BM=128, BN=256)[1].persistent


HONOURED = [
    {"num_stages": 3},
    {"mma_depth": 2},
    {"num_consumers": 1},
    {"num_consumers": 3},
    {"ping_pong": True},
    {"ping_pong": False},
    {"persistent": False},
    {"persistent": True},
    {"cluster": 1},
    {"cluster": 2},
    {"split_k": 1},
    {"split_k": 2},
    {"raster_group": 4},
    {"swap_operands": True},
    {"swap_operands": False},
    {"num_stages": 3, "mma_depth": 2, "ping_pong": True, "cluster": 2},
]
FIELD = {"cluster": "cluster_size", "swap_operands": "swapped"}


@pytest.mark.parametrize("options", HONOURED, ids=str)
def test_an_option_is_what_the_plan_says(options: dict[str, object]) -> None:
    _, plan = plan_for(4096, 4096, 4096, **options)
    assert {k: getattr(plan, FIELD.get(k, k)) for k in options} == options


@pytest.mark.parametrize("options", [{}, {"mma_depth": 2}, {"ping_pong": True}], ids=str)
def test_one_stage_leaves_the_depth_to_the_compiler(options: dict[str, object]) -> None:
    kernel = first(matmul_request(4096, 4096, 4096, num_stages=1, **options))
    assert kernel.plan == plan_for(4096, 4096, 4096, **options)[1]
    why = "roles that share one slot cannot overlap"
    assert f"num_stages=1 leaves the depth to the compiler: {why}" in kernel.notes


# Tile, num_stages beside num_warps=4, slots; 17, 13, 6 and 4 fit.
PROGRAMS = [
    ((64, 64, 32), 3, 15),
    ((64, 64, 32), 9, 9),
    ((64, 64, 64), 4, 12),
    ((64, 64, 64), 12, 12),
    ((64, 64, 64), 30, 13),
    ((128, 128, 64), 3, 6),
    ((128, 256, 64), 3, 3),
]


@pytest.mark.parametrize(("tile", "stages", "slots"), PROGRAMS, ids=str)
def test_stages_beside_warps_are_of_one_of_several_programs(
    tile: tuple[int, int, int], stages: int, slots: int
) -> None:
    options = {**dict(zip(("BM", "BN", "BK"), tile, strict=True)), "num_warps": 4}
    kernel = first(matmul_request(4096, 4096, 4096, num_stages=stages, **options))
    assert isinstance(kernel.plan, Plan)
    assert kernel.plan.num_stages == slots
    why = f"beside num_warps=4 is of one of several programs on an SM: {slots} slots"
    notes = [n for n in kernel.notes if n.startswith("num_stages")]
    few = [f"num_stages={stages}: {slots} slots fit and are used"]
    many = [f"num_stages={stages} {why}"]
    assert notes == (few if slots < stages else many if slots > stages else [])


def test_stages_beside_warps_leave_the_plan_as_it_is_where_their_multiple_is_what_fits() -> None:
    tile = {"BM": 128, "BN": 128, "BK": 64}
    asked = plan_for(4096, 4096, 4096, **tile, num_warps=4, num_stages=2)[1]
    assert asked == plan_for(4096, 4096, 4096, **tile)[1]
    assert asked == plan_for(4096, 4096, 4096, **tile, num_warps=4)[1]


def test_products_in_flight_are_more_than_the_stages_of_one_program() -> None:
    _, plan = plan_for(4096, 4096, 4096, num_warps=4, num_stages=2, mma_depth=3)
    assert plan.mma_depth == 3
    assert plan.num_stages >= 4


def test_the_single_role_on_request() -> None:
    kernel = first(matmul_request(4096, 4096, 4096, warp_specialize=False))
    assert not isinstance(kernel.plan, Plan)
    assert "switched off by the launch option" in str(kernel.declined[0])


STRUCTURAL = [
    {"ping_pong": True},
    {"num_consumers": 2},
    {"mma_depth": 2},
    {"cluster": 2},
    {"split_k": 2},
    {"swap_operands": True},
    {"warp_specialize": True},
]


@pytest.mark.parametrize("options", STRUCTURAL, ids=str)
def test_structure_of_a_kernel_without_tensor_maps_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ScheduleError, match="no legal tensor map") as caught:
        first(matmul_request(512, 512, 512, pad=1, **options))
    (name,) = options
    assert f"{name}={options[name]}" in caught.value.message
    assert caught.value.loc is not None
    assert "tl.dot" in caught.value.loc.text


@pytest.mark.parametrize("options", [{}, {"persistent": True}, {"cluster": 1}, {"split_k": 1}])
def test_such_a_kernel_runs_in_a_single_role(options: dict[str, object]) -> None:
    kernel = first(matmul_request(512, 512, 512, pad=1, **options))
    assert not isinstance(kernel.plan, Plan)
    assert any("no legal tensor map" in d.reason for d in kernel.declined)


def test_a_plan_fits_the_registers_and_the_shared_memory() -> None:
    for out in (FP32, None):
        options = {"out": out} if out else {}
        kernel = first(matmul_request(4096, 4096, 4096, **options))
        plan = kernel.plan
        assert isinstance(plan, Plan)
        asked = plan.producer_registers + plan.num_consumers * plan.consumer_registers
        assert 128 * asked <= 65536
        assert kernel.smem.end_bytes <= HOPPER.smem_bytes


def test_a_budget_that_does_not_fit_prints_its_table() -> None:
    plan = SmemPlan()
    assert plan.take("a_ring", 200_000, hint="use fewer stages") == 0
    assert plan.take("staging", 50_000, detail="2 chunks") == 200_704
    with pytest.raises(ResourceError, match="needs 250704 bytes") as caught:
        plan.check(HOPPER)
    lines = caught.value.message.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["a_ring", "200000"],
        ["staging", "50000"],
        ["total", "250704"],
    ]
    assert caught.value.hint == "use fewer stages"


# ---------------------------------------------------------------------- what a loop carries
def carried(BM: int = 16) -> tuple[object, ...]:
    a, b, c = (
        torch.empty(shape, device="meta", dtype=torch.bfloat16)
        for shape in ((BM, 4096), (4096, 4096), (BM, 4096))
    )
    return a, b.t(), c


@tiledsl.jit
def carries_its_place(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr = 16):
    n = tl.program_id(0) * 64
    acc = tl.zeros((BM, 64), tl.float32)
    at = 0
    for _ in range(0, tl.cdiv(a.shape[1], 64)):
        acc = tl.dot(a.load((0, at), (BM, 64)), b.load((at, n), (64, 64)), acc)
        at += 64
    c.store((0, n), acc)


@pytest.mark.parametrize("rows", [16, 64])
def test_a_loop_that_carries_its_place_is_not_split(rows: int) -> None:
    kernel = carries_its_place.compile(*carried(rows), BM=rows, grid=(64,))
    assert kernel.plan.split_k == 1
    with pytest.raises(ScheduleError, match="split_k needs a loop that carries nothing but sums"):
        carries_its_place.compile(*carried(rows), BM=rows, grid=(64,), split_k=2)


def test_clusters_do_not_lie_along_an_axis_of_one_program() -> None:
    for rows, columns in ((16, 1024), (16, 4096), (128, 4096)):
        constants, plan = plan_for(rows, columns, 4096)
        if plan.cluster_size > 1 and plan.split_k == 1:
            extents = -(-rows // constants["BM"]), -(-columns // constants["BN"])
            assert extents[plan.cluster_axis] > 1
    assert plan_for(16, 4096, 4096, cluster=2)[1].cluster_size == 2


def test_a_cluster_that_is_asked_for_is_no_split_of_k() -> None:
    for cluster in (1, 2):
        _, plan = plan_for(128, 4096, 4096, cluster=cluster)
        assert (plan.cluster_size, plan.split_k) == (cluster, 1)
    _, both = plan_for(128, 4096, 4096, cluster=2, split_k=2)
    assert both.split_k == 2


@pytest.mark.parametrize("tile", [{}, {"BM": 128, "BN": 128, "BK": 64}], ids=["auto", "given"])
def test_8_bit_operands_that_do_not_lie_along_k(tile: dict[str, int]) -> None:
    a, b = (torch.empty(512, 512, device="meta", dtype=torch.float8_e4m3fn) for _ in range(2))
    c = torch.empty(512, 512, device="meta", dtype=torch.bfloat16)
    grid = lambda t: (tl.cdiv(512, t["BM"]), tl.cdiv(512, t["BN"]))  # noqa: E731
    kernel = matmul.compile(a, b, c, grid=grid, **tile)
    (declined,) = kernel.declined
    assert (
        "along K only, and the tensor is contiguous along N; give it transposed in memory"
        in str(declined)
    )
    with pytest.raises(ScheduleError, match="along K only") as caught:
        matmul.compile(a, b, c, grid=grid, warp_specialize=True, **tile)
    assert caught.value.loc is not None


def test_a_raster_group_without_a_walk_is_noted() -> None:
    kernel = first(matmul_request(128, 4096, 4096, raster_group=4, split_k=2))
    assert any("raster_group is ignored" in note for note in kernel.notes)
