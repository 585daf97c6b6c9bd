"""Loops whose products are added up outside of the tensor core: plans, order, proof, refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.block_scaled_matmul import block_scaled_matmul
from examples.block_scaled_matmul import grid_of
from examples.block_scaled_matmul import meta_arguments
from examples.fp8_matmul import FAST
from examples.fp8_matmul import fp8_matmul
from tests.unit.ws.kernels import first
from tests.unit.ws.mutations import MUTATIONS
from tests.unit.ws.mutations import apply
from tests.unit.ws.mutations import sites
from tiledsl.compiled import Kernel
from tiledsl.errors import ScheduleError
from tiledsl.ir.op import Op
from tiledsl.ir.ops import aref
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.role import Role
from tiledsl.ir.parser import parse_graph
from tiledsl.report import render_report
from tiledsl.target import HOPPER
from tiledsl.ws.check import check
from tiledsl.ws.cost import BLOCK_CLOCKS
from tiledsl.ws.cost import Problem
from tiledsl.ws.cost import vector_clocks
from tiledsl.ws.plan import Plan
from tiledsl.ws.simulate import simulate

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
BF16 = np.dtype(ml_dtypes.bfloat16)


# fmt: off
@tiledsl.jit
def fading(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(0, a.shape[1], 128):
        acc = acc * 0.5 + tl.dot(a.load((0, k), (128, 128)), b.load((k, 0), (128, 128)))
    c.store((0, 0), acc)


@tiledsl.jit
def stored_parts(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    for k in range(0, a.shape[1], 128):
        c.store((0, k), tl.dot(a.load((0, k), (128, 128)), b.load((k, 0), (128, 128))))


@tiledsl.jit
def added(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    acc = tl.zeros((128, 256), tl.float32)
    for k in range(0, a.shape[1], 64):
        acc += tl.dot(a.load((0, k), (128, 64)), b.load((k, 0), (64, 256)))
    c.store((0, 0), acc)
# fmt: on


def arguments(m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    a, b = (torch.empty(x, k, device="meta", dtype=torch.float8_e4m3fn) for x in (m, n))
    return a, b.t(), torch.empty(m, n, device="meta", dtype=torch.bfloat16)


def fp8(m: int, n: int, k: int, *, limit: int | None = None, sms: int = 132, **options) -> Kernel:
    args = (*arguments(m, n, k), 1.0, limit)
    request = fp8_matmul.request_for(args, options, grid_of(m, n))[1]
    return first(replace(request, target=replace(HOPPER, num_sms=sms)))


def scaled(m: int, n: int, k: int, dump: Path | None = None, **options) -> Kernel:
    args = meta_arguments(m, n, k)
    request = block_scaled_matmul.request_for(args, options, grid_of(m, n))[1]
    return first(replace(request, dump=dump))


def consumer(kernel: Kernel) -> list[Op]:
    assert kernel.machine is not None
    (role,) = [r for r in kernel.machine.find(Role) if not r.single_thread]
    return list(role.body.walk())


def loops_of(ops: list[Op]) -> list[list[Op]]:
    """Bodies of the loops that start wgmmas."""
    bodies = [op.body.ops for op in ops if isinstance(op, For)]
    return [b for b in bodies if any(isinstance(o, mma.Issue) for o in b)]


@pytest.mark.parametrize("K", [512, 4096])
def test_sums_of_the_tensor_core_take_turns(K: int) -> None:
    kernel = fp8(8192, 8192, K, limit=FAST)
    assert isinstance(kernel.plan, Plan)
    assert (kernel.constants["BM"], kernel.constants["BN"]) == (128, 192)
    assert (kernel.plan.ping_pong, kernel.plan.cluster_size) == (True, 2)


@pytest.mark.parametrize(
    "shape", [(8192, 8192, 512), (8192, 8192, 4096), (4096, 4096, 4096)], ids=str
)
def test_f32_sums_are_made_by_warpgroups_at_one_tile(shape: tuple[int, int, int]) -> None:
    plan = fp8(*shape).plan
    assert isinstance(plan, Plan)
    assert not plan.ping_pong
    assert plan.num_consumers > 1
    assert plan.mma_depth == 1


def test_three_warpgroups_make_f32_sums_of_large_products() -> None:
    for kernel in (fp8(8192, 8192, 4096), scaled(8192, 8192, 4096)):
        plan = kernel.plan
        assert isinstance(plan, Plan)
        assert (kernel.constants["BM"], kernel.constants["BN"]) == (192, 128)
        assert (plan.num_consumers, plan.turns, plan.cluster_size) == (3, True, 1)
        assert kernel.certificate is not None
        assert kernel.certificate.proved


@pytest.mark.parametrize("M", [1, 16, 64])
def test_few_rows_with_f32_sums(M: int) -> None:
    kernel = fp8(M, 8192, 8192)
    assert isinstance(kernel.plan, Plan)
    assert kernel.plan.swapped == (M < 64)
    assert (kernel.constants["BN"], kernel.plan.num_consumers, kernel.plan.split_k) == (64, 1, 1)
    assert kernel.plan.prefetch * kernel.constants["BK"] >= 1280
    assert kernel.certificate is not None
    assert kernel.certificate.proved


def test_a_block_of_two_parts_starts_two_products() -> None:
    for body in loops_of(consumer(fp8(256, 256, 1024, BM=128, BN=128, BK=256))):
        issues = [o for o in body if isinstance(o, mma.Issue)]
        assert [(o.first_K, o.count_K) for o in issues] == [(0, 128), (128, 128)]
        assert [o.pending for o in body if isinstance(o, mma.Wait)] == [1, 0]


def test_the_slot_goes_back_before_the_products_are_added() -> None:
    (body,) = loops_of(consumer(fp8(256, 256, 1024, BM=128, BN=128)))
    kinds = [o.opcode for o in body]
    assert kinds.index("mma.wait") < kinds.index("barrier.arrive") < kinds.index("tile.map")


def partitioned(path: Path) -> tuple[Role, list[Op]]:
    """The load role of a dumped kernel, and the body of the consumers' loop."""
    graph = parse_graph((path / "20_partition.tir").read_text(encoding="utf-8"))
    (role,) = [r for r in graph.find(Role) if not r.single_thread]
    (body,) = loops_of(list(role.body.walk()))
    return next(r for r in graph.find(Role) if r.single_thread), body


@pytest.mark.parametrize("turns", [True, False])
def test_scales_come_in_the_slots_of_the_operands(turns: bool, tmp_path: Path) -> None:
    """Those who take turns read them under their products, others in front of them."""
    kernel = scaled(256, 512, 1024, tmp_path, BM=128, BN=128, ping_pong=turns)
    producer, body = partitioned(tmp_path)
    (put,) = [o for o in producer.body.walk() if isinstance(o, aref.Put)]
    shapes = [o.block_shape for o in put.body.ops if isinstance(o, Load)]
    assert shapes == [(128, 128), (128, 128), (1, 128), (1, 32)], "boxes of 128 bytes or more"
    assert not any(isinstance(o, Load) for o in body)
    reads = [body.index(o) for o in body if isinstance(o, smem.Read)]
    issue, wait = (
        next(i for i, o in enumerate(body) if isinstance(o, k)) for k in (mma.Issue, mma.Wait)
    )
    assert len(reads) == 2
    assert all(issue < i < wait if turns else i < issue for i in reads)
    assert len(body[-1].operands) == 1, "the loop carries the sums alone"
    assert kernel.certificate is not None
    assert kernel.certificate.proved


@pytest.mark.parametrize("shape", [(64, 7168), (512, 7168), (4096, 512)], ids=str)
def test_slots_with_scales_fit(shape: tuple[int, int]) -> None:
    for options in ({}, {"BM": 128, "BN": 128}, {"BM": 64, "BN": 64}):
        kernel = scaled(*shape, 2048, **options)
        assert not [n for n in kernel.notes if "given up" in n]
        assert ", sb 32)" in render_report(kernel).partition("channels:")[2].splitlines()[1]


def test_few_rows_with_scales_take_a_warpgroup_that_streams_64_columns() -> None:
    """64 x 64 with 32 KB fetched ahead 5.75 us, 64 x 128 with K in two parts 6.84 (H200)."""
    kernel = scaled(64, 7168, 2048)
    plan = kernel.plan
    assert isinstance(plan, Plan)
    assert kernel.constants["BN"] == 64
    assert (plan.split_k, plan.num_consumers, plan.persistent) == (1, 1, False)
    assert plan.prefetch >= 4


def test_a_warpgroup_alone_starts_the_products_of_two_iterations(tmp_path: Path) -> None:
    """Their scales are read in front of them, and tested behind them."""
    kernel = scaled(64, 7168, 2048, tmp_path)
    assert isinstance(kernel.plan, Plan)
    assert (kernel.plan.num_consumers, kernel.plan.mma_depth) == (1, 2)
    graph = parse_graph((tmp_path / "20_partition.tir").read_text(encoding="utf-8"))
    (role,) = [r for r in graph.find(Role) if not r.single_thread]
    (body,) = loops_of(list(role.body.walk()))
    kinds = (aref.Get, mma.Issue, mma.Wait, smem.Read, smem.Arrived, aref.Consumed)
    order = [type(o).__name__ for o in body if isinstance(o, kinds)]
    start, end = ["Get", "Read", "Read", "Issue"], ["Wait", "Arrived", "Consumed"]
    assert order == [*start, *start, *end, *end]
    assert [o.pending for o in body if isinstance(o, mma.Wait)] == [1, 0]
    issues = [o for o in role.body.walk() if isinstance(o, mma.Issue)]
    assert len(issues) == 3, "an iteration that has no other to go with"
    assert kernel.certificate is not None
    assert kernel.certificate.proved


def test_a_slot_that_goes_back_before_its_scales_have_arrived_is_found() -> None:
    for shape in ((64, 7168, 2048), (512, 7168, 2048)):
        kernel = scaled(*shape)
        assert kernel.machine is not None
        arrived = next(o for o in consumer(kernel) if isinstance(o, smem.Arrived))
        kernel.machine.erase(arrived)
        assert check(kernel.machine).failure.startswith("ordering")


def test_one_chunk_is_staged_in_one_buffer() -> None:
    """The other one would take the room of a slot."""
    for options, buffers in (
        ({"BN": 64}, 1),
        ({"BN": 128}, 2),
        ({"BN": 64, "persistent": True}, 2),
    ):
        plan = scaled(128, 7168, 2048, BM=128, split_k=1, **options).plan
        assert isinstance(plan, Plan)
        assert plan.store_buffers == buffers, options


def test_scales_without_a_tensor_map_are_loaded_an_iteration_ahead(tmp_path: Path) -> None:
    scaled(254, 256, 1024, tmp_path, BN=128)
    _, body = partitioned(tmp_path)
    loads = [o for o in body if isinstance(o, Load)]
    waits = [o for o in body if isinstance(o, mma.Wait)]
    assert len(loads) == 2
    assert all(body.index(o) < body.index(waits[0]) for o in loads)
    carried = body[-1].operands
    assert all(o.result in carried for o in loads)


@pytest.mark.parametrize(
    ("BN", "loops"), [(128, 1), (64, 1), (112, 7), (224, 4), (96, 3), (144, 8)], ids=str
)
def test_a_loop_for_each_place_of_the_end_of_a_block(BN: int, loops: int, tmp_path: Path) -> None:
    """Those in which the same columns take the same scales are one."""
    kernel = scaled(512, 7168, 2048, tmp_path, BM=128, BN=BN)
    assert len(loops_of(consumer(kernel))) == loops
    assert "count_below" not in kernel.module.source
    for limit in re.findall(r"< (.*)\) \? sb", kernel.module.source):
        assert int(limit) in range(16, 256, 16), "known where the kernel is compiled"
    graph = parse_graph((tmp_path / "20_partition.tir").read_text(encoding="utf-8"))
    puts = [o for o in graph.walk() if isinstance(o, aref.Put)]
    shapes = [o.block_shape for o in puts[0].body.ops if isinstance(o, Load)]
    assert shapes == [(128, 128), (128, BN), (1, 128), (1, 32)], "one box of scales for all blocks"
    assert kernel.certificate is not None
    assert kernel.certificate.proved
    assert not [line for line in kernel.certificate.steady if "at most" in line]


@pytest.mark.parametrize(
    "options", [{"BM": 128, "BN": 224}, {"BM": 64, "BN": 112, "split_k": 2}], ids=str
)
@pytest.mark.parametrize(
    "name",
    ["drop a release", "drop the wait for a full slot", "release before the wait for the wgmma"],
)  # fmt: skip
def test_a_fault_in_one_of_the_loops_is_found(name: str, options: dict[str, int]) -> None:
    """Whichever tiles run it."""
    machine = scaled(512, 7168, 2048, **options).machine
    assert machine is not None
    (mutation,) = [m for m in MUTATIONS if m.name == name]
    found = sites(machine, mutation)
    assert len(found) >= 4
    for site in found:
        faulty = machine.clone()
        apply(faulty, mutation, site)
        assert not check(faulty).proved, site


@pytest.mark.parametrize(
    ("M", "K", "tile"),
    [
        (64, 2048, (64, 64)), (64, 4096, (64, 64)), (64, 7168, (64, 64)),
        (128, 2048, (128, 112)), (128, 4096, (128, 112)), (128, 7168, (128, 112)),
        (512, 2048, (128, 224)), (1024, 2048, (128, 224)),
        (2048, 2048, (192, 128)), (4096, 2048, (192, 128)),
    ],
    ids=str,
)  # fmt: skip
def test_tiles_of_scaled_products(M: int, K: int, tile: tuple[int, int]) -> None:
    """As measured: columns in several blocks where fewer waves or columns outweigh their scales."""
    kernel = scaled(M, 7168, K)
    assert (kernel.constants["BM"], kernel.constants["BN"]) == tile
    assert isinstance(kernel.plan, Plan)
    assert kernel.plan.split_k == (2 if M == 128 else 1)


def test_blocks_of_a_tile_cost_nothing_where_slots_come_late() -> None:
    """Only where the larger operand comes from HBM, and no element chooses its scale."""
    made = scaled(128, 7168, 4096).plan
    assert isinstance(made, Plan)
    plan = replace(made, split=0, swapped=False)
    p = Problem((1, 64, 1), 32, (128, 112, 128), 1, True, 1 << 25, 1 << 20, True)
    p = replace(p, adds=1, reads_vectors=True)
    cut = replace(p, cuts_blocks=True)
    assert vector_clocks(plan, cut, 0.0) == vector_clocks(plan, p, 0.0) + BLOCK_CLOCKS / 2
    assert vector_clocks(plan, cut, BLOCK_CLOCKS) == vector_clocks(plan, p, 0.0)
    for other, problem in ((plan, replace(cut, rereads=3)), (replace(plan, split=1), cut)):
        assert vector_clocks(other, problem, BLOCK_CLOCKS) == vector_clocks(other, problem, 0.0)
    assert vector_clocks(plan, replace(cut, reads_vectors=False), 0.0) == 0


def test_sums_and_products_of_224_registers_make_one_wave() -> None:
    for kernel in (fp8(512, 7168, 2048), scaled(512, 7168, 2048)):
        plan, cost = kernel.plan, kernel.cost
        assert isinstance(plan, Plan)
        assert cost is not None
        assert cost.waves == 1
        assert (plan.producer_registers, plan.consumer_registers) == (24, 240)
        assert kernel.certificate is not None
        assert kernel.certificate.proved


# fmt: off
@tiledsl.jit
def in_blocks(a: tl.Tensor, b: tl.Tensor, scales: tl.Tensor, c: tl.Tensor, SPELLING: tl.constexpr,
              BM: tl.constexpr = 128, BN: tl.constexpr = 112):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    columns = n + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], 128):
        product = tl.dot(a.load((m, k), (BM, 128)), b.load((k, n), (128, BN)))
        if SPELLING == "difference":
            scale = tl.gather(scales.load((k // 128, n // 128), (2,)), columns // 128 - n // 128, 0)
        elif SPELLING == "limit":
            first = scales.load((k // 128, n // 128), (1,))
            then = scales.load((k // 128, n // 128 + 1), (1,))
            scale = tl.where(tl.arange(0, BN) < 128 - n % 128, first, then)
        elif SPELLING == "with the remainder itself":
            first = scales.load((k // 128, n // 128), (1,))
            then = scales.load((k // 128, n // 128 + 1), (1,))
            scale = tl.where(tl.arange(0, BN) < 128 - n % 128, first, then) * (n % 128)
        else:
            scale = tl.gather(scales.load((k // 128, n // 128), (2,)), columns // 128 % 2, 0)
        acc += product * scale[None, :]
    c.store((m, n), acc)
# fmt: on


@pytest.mark.parametrize(
    ("spelling", "loops"),
    [("difference", 7), ("limit", 7), ("with the remainder itself", 8), ("parity", 1)],
    ids=str,
)
def test_spellings_of_a_scale_for_each_block(spelling: str, loops: int) -> None:
    a, b, c = arguments(256, 1024, 1024)
    request = in_blocks.request_for(
        (a, b, torch.empty(8, 8, device="meta"), c, spelling), {}, grid_of(256, 1024)
    )[1]
    kernel = first(request)
    assert len(loops_of(consumer(kernel))) == loops
    assert kernel.certificate is not None
    assert kernel.certificate.proved


@pytest.mark.parametrize("more", [{"mma_depth": 3}, {"mma_depth": 2, "num_consumers": 2}])
def test_more_groups_in_flight_are_refused(more: dict[str, int]) -> None:
    with pytest.raises(ScheduleError, match="added up outside of the tensor core"):
        fp8(4096, 4096, 4096, **more)


@pytest.mark.parametrize(
    ("BM", "asked", "turns"),
    [(192, None, True), (192, False, False), (128, None, False), (128, True, True)],
)
def test_products_start_in_turns(BM: int, asked: bool | None, turns: bool) -> None:
    kernel = fp8(4096, 4096, 4096, BM=BM, BN=112, ping_pong=asked)
    assert kernel.plan.turns == turns
    assert kernel.certificate is not None
    assert kernel.certificate.proved
    for body in loops_of(consumer(kernel)):
        kinds = [o.opcode for o in body]
        order = [
            kinds.index(k)
            for k in ("barrier.named_sync", "mma.issue", "barrier.named_arrive")
            if k in kinds
        ]
        assert len(order) == (3 if turns else 1)
        assert order == sorted(order)


@pytest.mark.parametrize(
    ("options", "turns"),
    [
        ({"BM": 192, "BN": 128}, True),
        ({"BM": 128, "BN": 128}, True),
        ({"BM": 128, "BN": 128, "ping_pong": False}, False),
        ({"BM": 64, "BN": 128}, False),
        ({"BM": 128, "BN": 128, "split_k": 2}, False),
        ({"BM": 32, "BN": 128}, False),
    ],
    ids=str,
)
def test_scaled_products_start_in_turns(options: dict[str, object], turns: bool) -> None:
    """Two warpgroups as well where they share out the rows of whole loops."""
    kernel = scaled(1024, 7168, 2048, **options)
    assert isinstance(kernel.plan, Plan)
    assert kernel.plan.turns == turns
    assert kernel.certificate is not None
    assert kernel.certificate.proved


def test_two_that_wait_for_slots_take_no_turns() -> None:
    """128 x 7168 x 7168: 23.5 us in turns, 17.8 as they can (H200)."""
    plan = scaled(128, 7168, 7168, BM=128, BN=64).plan
    assert isinstance(plan, Plan)
    assert (plan.num_consumers, plan.turns) == (2, False)


@pytest.mark.parametrize("K", [2048, 4096])
def test_tiles_that_fill_the_sms_may_lie_in_two_blocks(K: int) -> None:
    """256 x 7168, 128 CTAs of 112 columns beside 112 of 128: 0.94 to 0.95 of the time (H200)."""
    kernel = scaled(256, 7168, K)
    assert (kernel.constants["BM"], kernel.constants["BN"]) == (128, 112)
    assert isinstance(kernel.plan, Plan)
    assert not kernel.plan.turns, "they wait for slots"


def test_two_in_turns_store_their_result_at_once() -> None:
    two, free, three = (
        fp8(4096, 4096, 4096, BM=m, BN=112, ping_pong=turns).plan
        for m, turns in ((128, True), (128, False), (192, True))
    )
    assert (two.deferred, free.deferred, three.deferred) == (False, True, True)
    assert not scaled(512, 7168, 2048).plan.deferred


def test_only_sums_are_split() -> None:
    assert scaled(64, 1024, 4096, split_k=2).plan.split_k == 2
    request = fading.request_for(arguments(128, 128, 1024), {"split_k": 2}, (1,))[1]
    with pytest.raises(ScheduleError, match="split_k=2"):
        first(request)
    request = fading.request_for(arguments(128, 128, 1024), {}, (1,))[1]
    assert isinstance(first(request).plan, Plan)


def test_products_that_are_only_added_are_sums_of_the_tensor_core() -> None:
    """Two tiles of 128 x 256 in registers would not fit two warpgroups."""
    a, b, c = (
        torch.empty(s, device="meta", dtype=torch.bfloat16)
        for s in ((128, 512), (512, 256), (128, 256))
    )
    kernel = first(added.request_for((a, b, c), {}, (1,))[1])
    assert kernel.plan.describe().startswith("2 consumers cooperative")
    assert kernel.analysis is not None
    assert not kernel.analysis.loops[0].partial


def test_a_loop_that_stores_its_products_is_left_to_other_forms() -> None:
    args = (*arguments(128, 128, 1024)[:2], torch.empty(128, 1024, device="meta"))
    kernel = first(stored_parts.request_for(args, {}, (1,))[1])
    assert isinstance(kernel.plan, Plan)
    assert kernel.plan.dynamic, "a loop of its own schedule"


@pytest.mark.parametrize(
    ("options", "K"),
    [
        ({"BM": 128, "BN": 128}, 1040),
        ({"BM": 64, "BN": 128, "split_k": 2}, 1040),
        *(({"BM": 64, "BN": 64, "num_consumers": 1, "mma_depth": 2}, K) for K in (128, 1024, 1040)),
    ],
    ids=str,
)
@pytest.mark.parametrize("M", [136, 138])
def test_simulation_scales_blocks(M: int, options: dict[str, int], K: int) -> None:
    """With scales in the slots, and without (rows of 138 scales are no multiple of 16 bytes)."""
    N = 512
    kernel = scaled(M, N, K, **options)
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((x, K)).astype(E4M3) for x in (M, N))
    sa, sb = (rng.random((-(-K // 128), x), dtype=np.float32) + 0.5 for x in (M, N // 128))
    wide = a.astype(np.float64) * np.repeat(sa.T, 128, 1)[:, :K]
    want = wide @ (b.astype(np.float64) * np.repeat(np.repeat(sb.T, 128, 0), 128, 1)[:, :K]).T
    grid = (*grid_of(M, N)(kernel.constants), 1)
    c = np.full((M, N), np.nan, BF16)
    assert kernel.machine is not None
    simulate(kernel.machine, {"a": a, "b": b.T, "sa": sa, "sb": sb, "c": c}, grid, seed=1)
    assert np.abs(c.astype(np.float64) - want).max() <= 2.0**-7 * np.abs(want).max()


OPTIONS = {
    "cooperative": {"BM": 128, "BN": 128, "cluster": 1},
    "two parts": {"BM": 128, "BN": 64, "BK": 256, "cluster": 1},
    "split": {"BM": 64, "BN": 128, "split_k": 2},
    "two iterations": {"BM": 64, "BN": 64, "BK": 128, "mma_depth": 2, "cluster": 1},
    "two iterations, split": {"BM": 64, "BN": 64, "BK": 128, "mma_depth": 2, "split_k": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_simulation_gives_the_result(name: str) -> None:
    M, N, K = (64, 128, 1040) if "split" in name else (136, 128, 400)
    kernel = fp8(M, N, K, sms=2, **OPTIONS[name])
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((x, K)).astype(E4M3) for x in (M, N))
    want = a.astype(np.float64) @ b.T.astype(np.float64)
    grid = (*grid_of(M, N)(kernel.constants), 1)
    for seed in (0, 1):
        c = np.full((M, N), np.nan, BF16)
        assert kernel.machine is not None
        simulate(kernel.machine, {"a": a, "b": b.T, "c": c, "scale": 1.0}, grid, seed=seed)
        assert np.abs(c.astype(np.float64) - want).max() <= 2.0**-7 * np.abs(want).max()


def test_a_slot_that_is_never_given_back_is_found() -> None:
    kernel = fp8(256, 256, 1024, BM=128, BN=128)
    assert kernel.machine is not None
    arrive = next(o for o in consumer(kernel) if isinstance(o, barrier.Arrive))
    kernel.machine.erase(arrive)
    assert not check(kernel.machine).proved


def test_a_product_that_starts_without_its_fence_is_found() -> None:
    kernel = fp8(256, 256, 1024, BM=128, BN=128, BK=256)
    assert kernel.machine is not None
    fences = [o for o in consumer(kernel) if isinstance(o, mma.Fence)]
    kernel.machine.erase(fences[-1])
    assert check(kernel.machine).failure.startswith("fences")
