"""What automatic warp specialisation is known to get wrong, a small kernel each.

Each kernel runs in the interpreter and, where it is specialised, as its roles in the simulator, against
numpy; or it is refused or declined with a reason that names the line.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.gpu.matmul_kernels import grid_of
from tests.gpu.matmul_kernels import matmul
from tests.unit.ws.machine_kernels import attention
from tests.unit.ws.machine_kernels import copy_of
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.errors import ScheduleError
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import smem
from tiledsl.ir.ops import tma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import TileType
from tiledsl.report import render_report
from tiledsl.runtime.interop import from_numpy
from tiledsl.target import HOPPER
from tiledsl.ws.check import check
from tiledsl.ws.plan import Plan
from tiledsl.ws.simulate import simulate

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.float32
RNG = np.random.default_rng(11)
SMALL = {"BM": 64, "BN": 64, "BK": 64}


def array(*shape: int, pad: int = 0) -> np.ndarray:
    """bf16 values; rows `pad` elements further apart."""
    made = RNG.standard_normal((*shape[:-1], shape[-1] + pad)).astype(BF16)
    return made[..., : shape[-1]] if pad else made


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(F32) @ b.astype(F32)


def run(
    kernel: Any,
    arguments: dict[str, Any],
    out: str,
    want: np.ndarray,
    grid: Any,
    *,
    specialised: bool = True,
    interpreted: bool = True,
    seeds: tuple[int, ...] = (1,),
    **options: Any,
) -> Kernel:
    """Compiles, simulates the roles and interprets; compares both with `want`."""
    given = {n: from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in arguments.items()}
    made = compiled(kernel, tuple(given.values()), grid, **options)
    plain = {k: v for k, v in arguments.items() if k not in made.constants}
    assert isinstance(made.plan, Plan) == specialised, render_report(made)
    user = grid(made.constants) if callable(grid) else grid
    if specialised:
        assert made.certificate is not None
        assert made.certificate.failure == ""
        assert made.machine is not None
        for seed in seeds:
            result = np.full(arguments[out].shape, np.nan, arguments[out].dtype)
            simulate(made.machine, {**plain, out: result}, (*user, 1, 1)[:3], seed=seed)
            close(result, want)
    if interpreted:
        result = from_numpy(np.full(arguments[out].shape, np.nan, arguments[out].dtype))
        values = [result if n == out else v for n, v in given.items()]
        kernel[user](*values, **{k: v for k, v in options.items() if k in ("BM", "BN", "BK")})
        close(result.float().numpy(), want)
    return made


def compiled(kernel: Any, arguments: tuple[Any, ...], grid: Any, **options: Any) -> Kernel:
    """The first choice of the compiler, before NVRTC sees it."""
    return next(modules(kernel.request_for(arguments, options, grid)[1]))


def close(got: np.ndarray, want: np.ndarray) -> None:
    wrong = np.abs(got.astype(F32) - want)
    bound = 0.02 * np.abs(want) + 0.02 * np.abs(want).max(initial=1.0)
    assert (wrong <= bound).all(), f"{int((~(wrong <= bound)).sum())} of {want.size} are wrong"


def matmul_case(M: int, N: int, K: int, *, pad: int = 0, **options: Any) -> Kernel:
    a, b = array(M, K, pad=pad), array(K, N, pad=pad)
    c = np.zeros((M, N), BF16)
    return run(
        matmul, {"a": a, "b": b, "c": c}, "c", product(a, b), grid_of(M, N),
        **{**SMALL, "cluster": 1, "split_k": 1, **options},
    )  # fmt: skip


def ops_of(made: Kernel, cls: type) -> list[Any]:
    assert made.machine is not None
    return made.machine.find(cls)


# ---------------------------------------------------------------------- rings and counts
def test_a_slot_is_kept_while_a_wgmma_in_flight_reads_it() -> None:
    made = matmul_case(64, 128, 64 * 5, mma_depth=2, num_stages=2)
    assert made.plan.mma_depth == 2


def test_a_ring_may_be_too_shallow_for_what_is_in_flight() -> None:
    with pytest.raises(ScheduleError, match="mma_depth=3 needs as many slots, num_stages is 2"):
        matmul_case(64, 64, 64 * 3, num_stages=2, mma_depth=3)


def test_a_ring_of_one_slot_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tiledsl.ws.planner.MAX_STAGES", 1)
    assert matmul_case(64, 64, 64 * 3, mma_depth=1).plan.num_stages == 1


def test_the_count_of_a_ring_goes_on_from_tile_to_tile() -> None:
    """Five trips in a ring of three: each tile starts at another slot."""
    matmul_case(192, 128, 64 * 5, num_stages=3, persistent=True)


def test_two_slots_an_iteration() -> None:
    @tiledsl.jit
    def kernel(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], 128):
            acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
            acc = tl.dot(a.load((0, k + 64), (64, 64)), b.load((k + 64, 0), (64, 64)), acc)
        c.store((0, 0), acc)

    a, b = array(64, 384), array(384, 64)
    run(kernel, {"a": a, "b": b, "c": np.zeros((64, 64), BF16)}, "c", product(a, b), (1,))


def test_a_loop_of_one_trip() -> None:
    matmul_case(64, 128, 64, num_stages=3)
    matmul_case(128, 128, 64, num_stages=3, ping_pong=True, persistent=True)


@pytest.mark.parametrize("trips", [0, 1, 2, 4])
def test_a_number_of_trips_that_is_known_at_launch(trips: int) -> None:
    @tiledsl.jit
    def kernel(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, count):
        m = tl.program_id(0) * 64
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, count * 64, 64):
            acc = tl.dot(a.load((m, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
        c.store((m, 0), acc)

    a, b = array(192, 256), array(256, 64)
    want = product(a[:, : 64 * trips], b[: 64 * trips])
    arguments = {"a": a, "b": b, "c": np.zeros((192, 64), BF16), "count": trips}
    run(kernel, arguments, "c", want, (3,), num_stages=3)


def test_the_first_block_of_a_causal_loop_may_be_empty() -> None:
    @tiledsl.jit
    def kernel(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
        m = tl.program_id(0) * 64
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, m, 64):
            acc = tl.dot(a.load((m, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
        c.store((m, 0), acc)

    a, b = array(192, 192), array(192, 64)
    blocks = np.kron(np.tril(np.ones((3, 3)), -1), np.ones((64, 64)))
    want = (a.astype(F32) * blocks) @ b.astype(F32)
    run(kernel, {"a": a, "b": b, "c": np.zeros((192, 64), BF16)}, "c", want, (3,))


# ---------------------------------------------------------------------- loads of all kinds
def test_rows_that_a_bulk_copy_cannot_read() -> None:
    """A pitch that is no multiple of 16 bytes: a single role, and the report says so."""
    a, b = array(64, 192, pad=3), array(192, 64)
    arguments = {"a": a, "b": b, "c": np.zeros((64, 64), BF16)}
    made = run(matmul, arguments, "c", product(a, b), grid_of(64, 64), specialised=False, **SMALL)
    assert "matmul_kernels.py" in render_report(made).partition("declined")[2]


def test_loads_of_two_kinds_in_one_loop() -> None:
    @tiledsl.jit
    def kernel(a: tl.Tensor, b: tl.Tensor, scale, c: tl.Tensor):
        rows = tl.arange(0, 64)
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], 64):
            factor = tl.load(scale + k // 64 * 64 + rows)
            acc += tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64))) * factor[:, None]
        c.store((0, 0), acc)

    a, b = array(64, 192), array(192, 64)
    scale = RNG.standard_normal(192).astype(F32)
    want = sum(
        product(a[:, k : k + 64], b[k : k + 64]) * scale[k : k + 64, None] for k in (0, 64, 128)
    )
    arguments = {"a": a, "b": b, "scale": scale, "c": np.zeros((64, 64), BF16)}
    given = {n: from_numpy(v) for n, v in arguments.items()}
    made = compiled(kernel, tuple(given.values()), (1,))
    run(
        kernel, arguments, "c", want, (1,),
        specialised=isinstance(made.plan, Plan),
    )  # fmt: skip
    assert isinstance(made.plan, Plan) or "test_failure_classes.py" in render_report(made)


def test_pointers_and_a_dot() -> None:
    @tiledsl.jit
    def kernel(a, b, c, K, sa, sb, sc, BK: tl.constexpr = 64):
        rows, cols, inner = tl.arange(0, 64), tl.arange(0, 64), tl.arange(0, BK)
        x = a + rows[:, None] * sa + inner[None, :]
        y = b + inner[:, None] * sb + cols[None, :]
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            left = tl.load(x, mask=inner[None, :] < K - k * BK, other=0.0)
            right = tl.load(y, mask=inner[:, None] < K - k * BK, other=0.0)
            acc = tl.dot(left, right, acc)
            x += BK
            y += BK * sb
        tl.store(c + rows[:, None] * sc + cols[None, :], acc.to(tl.bfloat16))

    a, b = array(64, 200), array(200, 64)
    c = np.zeros((64, 64), BF16)
    given = (from_numpy(a), from_numpy(b), from_numpy(c), 200, 200, 64, 64)
    kernel[(1,)](*given)
    close(c, product(a, b))
    made = compiled(kernel, given, (1,))
    assert isinstance(made.plan, Plan), render_report(made)
    assert made.certificate is not None
    assert made.certificate.failure == ""


# ---------------------------------------------------------------------- control flow
def test_loops_one_after_the_other() -> None:
    @tiledsl.jit
    def kernel(a: tl.Tensor, b: tl.Tensor, d: tl.Tensor, c: tl.Tensor):
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a.load((0, k), (64, 64)), d.load((k, 0), (64, 64)), acc)
        c.store((0, 0), acc)

    a, b, d = array(64, 192), array(192, 64), array(192, 64)
    want = product(a, b) + product(a, d)
    run(kernel, {"a": a, "b": b, "d": d, "c": np.zeros((64, 64), BF16)}, "c", want, (1,))


@tiledsl.jit
def in_a_while(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, count):
    tile = tl.program_id(0)
    while tile < count:
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a.load((tile * 64, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
        c.store((tile * 64, 0), acc)
        tile += tl.num_programs(0)


@tiledsl.jit
def in_a_branch(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, flag):
    acc = tl.zeros((64, 64), tl.float32)
    if flag > 0:
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
    c.store((0, 0), acc)


@tiledsl.jit
def around_a_copy(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, wanted):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, a.shape[1], 64):
        if tl.load(wanted + k // 64) != 0:
            acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
    c.store((0, 0), acc)


@pytest.mark.parametrize(
    ("kernel", "rows", "extra", "keep"),
    [
        (in_a_while, 192, {"count": 3}, (1, 1, 1)),
        (in_a_branch, 64, {"flag": 1}, (1, 1, 1)),
        (in_a_branch, 64, {"flag": 0}, (0, 0, 0)),
        (around_a_copy, 64, {"wanted": np.array([1, 0, 1], np.int32)}, (1, 0, 1)),
    ],
    ids=["in a while", "in a branch", "in a branch not taken", "a condition around the copies"],
)
def test_loops_inside_other_control_flow(
    kernel: Any, rows: int, extra: dict[str, Any], keep: tuple[int, ...]
) -> None:
    """Specialised or declined with a line, and right either way."""
    a, b = array(rows, 192), array(192, 64)
    want = product(a * np.repeat(keep, 64).astype(BF16), b)
    arguments = {"a": a, "b": b, "c": np.zeros((rows, 64), BF16), **extra}
    given = tuple(from_numpy(v) if isinstance(v, np.ndarray) else v for v in arguments.values())
    grid = (2,) if kernel is in_a_while else (1,)
    made = compiled(kernel, given, grid)
    roles = isinstance(made.plan, Plan)
    assert roles or "test_failure_classes.py:" in render_report(made).partition("declined")[2]
    run(kernel, arguments, "c", want, grid, specialised=roles)


def test_side_effects_happen_once() -> None:
    """A counter that is drawn from in the kernel is not drawn from by every role."""

    @tiledsl.jit
    def kernel(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, counter):
        tile = tl.atomic_add(counter, 1)
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a.load((tile * 64, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
        c.store((tile * 64, 0), acc)

    a, b, counter = array(192, 128), array(128, 64), np.zeros(1, np.int32)
    arguments = {"a": a, "b": b, "c": np.zeros((192, 64), BF16), "counter": counter}
    made = run(kernel, arguments, "c", product(a, b), (3,), specialised=False)
    assert counter[0] == 3
    assert made.module.source.count("atomic") >= 1
    assert "test_failure_classes.py:" in render_report(made).partition("declined")[2]


# ---------------------------------------------------------------------- several warpgroups
def test_warpgroups_that_share_an_operand_all_give_it_back() -> None:
    made = matmul_case(128, 64, 64 * 5, BM=128, num_consumers=2, ping_pong=False, num_stages=2)
    (empty,) = [o for o in ops_of(made, barrier.MbarrierArray) if o.result.name.endswith("_empty")]
    assert empty.arrivals == 8, "one arrival of each warp of both warpgroups"


def test_a_wait_for_wgmma_orders_only_the_own_warpgroup() -> None:
    """Two warpgroups at different speeds read one slot: simulated under several orders."""
    a, b = array(128, 256), array(256, 64)
    run(
        matmul, {"a": a, "b": b, "c": np.zeros((128, 64), BF16)}, "c", product(a, b),
        grid_of(128, 64), seeds=(1, 2, 3), BM=128, BN=64, BK=64, num_consumers=2,
        ping_pong=False, num_stages=2, cluster=1, split_k=1, interpreted=False,
    )  # fmt: skip


def spans(made: Kernel) -> list[tuple[int, int, str]]:
    out = [
        (o.offset_bytes, o.offset_bytes + o.slots * o.type_.bytes, o.result.name)
        for o in ops_of(made, smem.Buffer)
    ]
    return out + [
        (o.offset_bytes, o.offset_bytes + 8 * o.depth, o.result.name)
        for o in ops_of(made, barrier.MbarrierArray)
    ]


def test_staging_rings_and_barriers_lie_apart() -> None:
    made = matmul_case(256, 64, 64 * 3, num_stages=3, persistent=True)
    places = sorted(spans(made))
    assert all(a[1] <= b[0] for a, b in pairwise(places)), places
    assert {"stage"} <= {name for _, _, name in places}


def test_more_chunks_of_a_store_than_staging_slots() -> None:
    made = matmul_case(64, 256, 128, BN=256, num_stages=2, persistent=True)
    stage = next(o for o in ops_of(made, smem.Buffer) if o.result.name == "stage")
    assert len(ops_of(made, tma.Store)) > stage.slots
    assert all(o.pending < stage.slots for o in ops_of(made, tma.StoreWait))


def test_warpgroups_have_staging_of_their_own() -> None:
    made = matmul_case(128, 128, 64 * 3, num_stages=2, ping_pong=True, persistent=True)
    stage = next(o for o in ops_of(made, smem.Buffer) if o.result.name == "stage")
    assert stage.slots >= 2
    slots = [o for o in ops_of(made, smem.Slot) if o.buffer is stage.result]
    assert all(o.group is not None for o in slots)


def test_a_store_and_its_wait_stand_in_one_role() -> None:
    made = matmul_case(64, 64, 128)
    assert made.machine is not None
    stores = {
        r.name for r in made.machine.find(Role) for o in r.body.walk() if isinstance(o, tma.Store)
    }
    waits = {
        r.name
        for r in made.machine.find(Role)
        for o in r.body.walk()
        if isinstance(o, tma.StoreWait)
    }
    assert stores == waits == {"consumer"}


def test_a_softmax_stays_in_the_role_of_its_dots() -> None:
    graph = copy_of("attention")
    arrays = {o.result.name for o in graph.find(barrier.MbarrierArray)}
    channels = {name.rpartition("_")[0] for name in arrays}
    assert channels == {"x", "y", "z", "tiles"}, "loads and tile numbers, no tile math"


# ---------------------------------------------------------------------- budgets
def test_shared_memory_counts_barriers_and_staging() -> None:
    tensors = [torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    for BM, BN in ((128, 128), (128, 256), (256, 128)):
        made = compiled(matmul, tuple(tensors), grid_of(4096, 4096), BM=BM, BN=BN)
        assert max(end for _, end, _ in spans(made)) <= made.module.smem_bytes
        assert made.module.smem_bytes <= HOPPER.smem_bytes
    made = compiled(matmul, tuple(tensors), grid_of(4096, 4096), BM=128, BN=256, num_stages=9)
    assert made.module.smem_bytes <= HOPPER.smem_bytes


def test_register_budgets_are_legal() -> None:
    tensors = [torch.empty(4096, 4096, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    for options in ({"BM": 128, "BN": 256}, {"BM": 256, "BN": 128}, {"BM": 128, "BN": 128}):
        made = compiled(matmul, tuple(tensors), grid_of(4096, 4096), **options)
        roles = ops_of(made, Role)
        budgets = [r.registers for r in roles]
        assert all(n == 0 or (n % 8 == 0 and 24 <= n <= 240) for n in budgets), budgets
        assert sum(r.registers * 128 * r.num_warpgroups for r in roles) <= HOPPER.registers_per_sm
        assert all(budgets) or not any(budgets)


def test_a_tile_that_two_warpgroups_cannot_share() -> None:
    matmul_case(64, 64, 128)
    with pytest.raises(ScheduleError, match=r"launch options.*num_consumers"):
        matmul_case(64, 64, 128, num_consumers=2, ping_pong=False)


# ---------------------------------------------------------------------- dots and values
def test_an_accumulator_of_two_products() -> None:
    @tiledsl.jit
    def kernel(x: tl.Tensor, y: tl.Tensor, a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
        acc = tl.dot(x.load((0, 0), (64, 64)), y.load((0, 0), (64, 64)))
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
        c.store((0, 0), acc)

    x, y, a, b = array(64, 64), array(64, 64), array(64, 192), array(192, 64)
    arguments = {"x": x, "y": y, "a": a, "b": b, "c": np.zeros((64, 64), BF16)}
    want = product(x, y) + product(a, b)
    given = tuple(map(from_numpy, arguments.values()))
    roles = isinstance(compiled(kernel, given, (1,)).plan, Plan)
    made = run(kernel, arguments, "c", want, (1,), specialised=roles)
    assert roles or "test_failure_classes.py:" in render_report(made)


def test_each_role_carries_only_its_own_values() -> None:
    graph = copy_of("attention")
    producer = next(r for r in graph.find(Role) if r.single_thread)
    loops = [o for o in producer.body.walk() if isinstance(o, For)]
    assert loops
    assert not any(isinstance(v.type, TileType) for loop in loops for v in loop.carried)


def test_writes_by_threads_reach_the_copy_engine_through_a_fence() -> None:
    graph = copy_of("ping-pong")
    for op in graph.find(barrier.AsyncFence):
        op.parent.ops.remove(op)
    assert check(graph).failure.startswith("fences")


@pytest.mark.parametrize("kind", ["softmax", "f32 dot"])
def test_loops_without_a_tensor_core_dot(kind: str) -> None:
    @tiledsl.jit
    def softmax(x: tl.Tensor, c: tl.Tensor):
        row = tl.program_id(0)
        v = x.load((row, 0), (1, 128)).to(tl.float32)
        p = tl.exp(v - tl.max(v, 1)[:, None])
        c.store((row, 0), p / tl.sum(p, 1)[:, None])

    if kind == "softmax":
        x = array(4, 128)
        e = np.exp(x.astype(F32) - x.astype(F32).max(1, keepdims=True))
        arguments = {"x": x, "c": np.zeros((4, 128), BF16)}
        run(softmax, arguments, "c", e / e.sum(1, keepdims=True), (4,), specialised=False)
        return
    a, b = (RNG.standard_normal(s).astype(F32) for s in ((64, 96), (96, 64)))
    arguments = {"a": a, "b": b, "c": np.zeros((64, 64), F32)}
    made = run(
        matmul, arguments, "c", a @ b, grid_of(64, 64), specialised=False, BM=64, BN=64, BK=32
    )
    assert "declined:" in render_report(made)


def test_what_follows_the_loop_is_kept() -> None:
    @tiledsl.jit
    def kernel(a: tl.Tensor, b: tl.Tensor, bias: tl.Tensor, c: tl.Tensor):
        acc = tl.zeros((64, 64), tl.float32)
        for k in range(0, a.shape[1], 64):
            acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
        acc = acc * 0.5 + bias.load((0,), (64,)).to(tl.float32)
        c.store((0, 0), tl.maximum(acc, 0.0))

    a, b, bias = array(64, 128), array(128, 64), array(64)
    want = np.maximum(product(a, b) * 0.5 + bias.astype(F32), 0)
    arguments = {"a": a, "b": b, "bias": bias, "c": np.zeros((64, 64), BF16)}
    run(kernel, arguments, "c", want, (1,))


# ---------------------------------------------------------------------- barriers
def test_barriers_are_initialised_once_and_never_reused() -> None:
    for name in ("ping-pong", "split-K", "attention"):
        graph = copy_of(name)
        arrays = graph.find(barrier.MbarrierArray)
        inits = [o.barriers for o in graph.find(barrier.MbarrierInit)]
        assert len(set(inits)) == len(inits) == len(arrays)


def test_ping_pong_starts_with_a_turn_and_stays_within_the_named_barriers() -> None:
    graph = copy_of("ping-pong")
    used = [*graph.find(barrier.NamedSync), *graph.find(barrier.NamedArrive)]
    assert all(0 < o.base < HOPPER.named_barriers for o in used)
    first = graph.find(barrier.NamedArrive)[0]
    first.parent.ops.remove(first)
    assert check(graph).failure.startswith(("liveness", "named barriers"))


@pytest.mark.parametrize("structure", [{"ping_pong": True}, {"BM": 128, "num_consumers": 2, "ping_pong": False}, {"swap_operands": True}], ids=["ping-pong", "cooperative", "swapped"])  # fmt: skip
def test_tiles_that_hang_over_the_edge(structure: dict[str, Any]) -> None:
    matmul_case(129, 72, 104, num_stages=2, **structure)


def test_attention_of_odd_lengths() -> None:
    B, H, L, D = 1, 1, 200, 64
    q, k, v = (array(B, H, L, D) for _ in range(3))
    s = np.einsum("bhqd,bhkd->bhqk", q.astype(F32), k.astype(F32)) * D**-0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    want = np.einsum("bhqk,bhkd->bhqd", p / p.sum(-1, keepdims=True), v.astype(F32))
    arguments = {"q": q, "k": k, "v": v, "o": np.zeros((B, H, L, D), BF16)}
    constants: dict[str, Any] = {"scale": D**-0.5, "CAUSAL": False, "D": D}
    run(attention, {**arguments, **constants}, "o", want, (2, 1, 1), interpreted=False)
