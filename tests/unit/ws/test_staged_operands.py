"""Operands that consumers compute and hand to wgmma through shared memory, and loaded tiles that
tile math reads: plans, proofs, simulation, seeded faults."""

from __future__ import annotations

import functools
import pickle
import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from examples.linear_attention import linear_attention_kernel
from tests.emulation.matmuls import compiled
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import meta
from tests.unit.ws.kernels import tile_graph_of
from tiledsl.compiled import Kernel
from tiledsl.compiled import Request
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.role import Role
from tiledsl.runtime.interop import from_numpy
from tiledsl.ws.check import check
from tiledsl.ws.flow import analyze_flow
from tiledsl.ws.plan import Plan
from tiledsl.ws.simulate import simulate

BF16 = np.dtype(ml_dtypes.bfloat16)
sys.setrecursionlimit(100_000)


# fmt: off
@tiledsl.jit
def weighted(x: tl.Tensor, y: tl.Tensor, w: tl.Tensor, o: tl.Tensor, BM: tl.constexpr = 128,
             BK: tl.constexpr = 64, LEFT: tl.constexpr = False):
    """The sum over k of x[:, k] relu(y w)[k], or of its transpose; BM rows."""
    m = tl.program_id(0) * BM
    weights = w.load((0, 0), (64, 128))
    acc = tl.zeros((BM, 128), tl.float32)
    for k in range(0, x.shape[1], BK):
        made = tl.maximum(tl.dot(y.load((k, 0), (BK, 64)), weights), 0.0).to(x.dtype)
        if LEFT:
            acc = tl.dot(tl.trans(made), x.load((m, k), (BM, BK)).T, acc)
        else:
            acc = tl.dot(x.load((m, k), (BM, BK)), made, acc)
    o.store((m, 0), acc)
# fmt: on


def weighted_request(**options) -> Request:
    args = (meta(256, 512), meta(512, 64), meta(64, 128), meta(256, 128))
    return weighted.request_for(args, options, (2,))[1]


@functools.cache
def linear(D: int, C: int) -> tuple[Kernel, dict[str, np.ndarray], np.ndarray]:
    B, H, L = 1, 2, 150
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((B, H, L, D)).astype(BF16) for _ in range(3))
    decay = np.linspace(0.9, 1, H, dtype=np.float32)
    args = {"q": q, "k": k, "v": v, "o": np.zeros_like(q), "rates": np.log2(decay)}
    kernel = compiled(
        linear_attention_kernel, tuple(map(from_numpy, args.values())), (H, B), D=D, DV=D, C=C
    )
    ahead = np.arange(L)[:, None] - np.arange(L)[None, :]
    fade = np.where(ahead >= 0, decay[:, None, None].astype(float) ** np.maximum(ahead, 0), 0.0)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    return kernel, args, (wide[0] @ wide[1].swapaxes(2, 3) * fade) @ wide[2]


def copy_of(D: int = 64, C: int = 64) -> TileGraph:
    return pickle.loads(pickle.dumps(linear(D, C)[0].machine))


def operand_ops(graph: TileGraph, cls) -> list:
    """Ops of a class in the block of each write of an operand."""
    writes = [w for w in graph.find(smem.Write) if w.is_shared]
    assert writes
    return [o for w in writes for o in w.parent.ops if isinstance(o, cls)]


def test_what_is_staged_and_what_is_read() -> None:
    kernel, _, _ = linear(64, 64)
    assert isinstance(kernel.plan, Plan)
    (loop,) = analyze_flow(tile_graph_of(linear_request())).loops
    assert [len(d.staged) for d in loop.dots] == [0, 1, 0, 0]
    assert [d.register_a for d in loop.dots] == [False, False, True, True]
    assert len(loop.math) == 2, "keys and their transpose feed tile math"
    assert {b.name for b in kernel.smem.blocks if b.name.endswith("operand")} == {"operand operand"}


def linear_request() -> Request:
    _, args, _ = linear(64, 64)
    values = tuple(map(from_numpy, args.values()))
    return linear_attention_kernel.request_for(values, {"D": 64, "DV": 64, "C": 64}, (2, 1))[1]


@pytest.mark.parametrize("left", [False, True], ids=["right", "transposed left"])
def test_sides(left: bool) -> None:
    request = weighted_request(LEFT=left, BM=128, BK=128)
    (loop,) = analyze_flow(tile_graph_of(request)).loops
    (item,) = loop.dots[1].staged
    assert (item.side, item.is_transposed) == ((0, True) if left else (1, False))
    made = first(request)
    assert isinstance(made.plan, Plan), made.notes
    assert made.certificate.proved, made.certificate.failure


def test_other_dtypes_are_declined_with_the_reason() -> None:
    graph = tile_graph_of(weighted_request())
    (dot,) = [d for d in graph.find(mma.Dot) if d.a.type.shape == (128, 64)]
    for v in (dot.a, dot.b):
        graph.set_type(v, replace(v.type, dtype=tl.int8))
    (reason,) = [str(d) for d in analyze_flow(graph).declined][:1]
    assert "operand b of the dot is computed, and is int8" in reason or "8" in reason


@pytest.mark.parametrize(("D", "C"), [(64, 64), (128, 128)], ids=str)
def test_simulation(D: int, C: int) -> None:
    kernel, args, want = linear(D, C)
    assert kernel.plan.num_consumers == C // 64
    assert kernel.certificate.proved, kernel.certificate.failure
    results = []
    for seed in range(2):
        given = {**args, "o": np.full(args["o"].shape, np.nan, BF16)}
        simulate(kernel.machine, given, (2, 1, 1), seed=seed)
        results.append(given["o"])
    error = np.linalg.norm(results[0].astype(np.float64) - want) / np.linalg.norm(want)
    assert error < 6e-3
    np.testing.assert_array_equal(*results)


def test_barriers_count_all_consumers() -> None:
    graph = copy_of(128, 128)
    syncs = [s for s in operand_ops(graph, barrier.NamedSync) if s.index is None]
    assert {s.num_threads for s in syncs} == {256}
    used = [s.base for s in graph.find(barrier.NamedSync) if s.index is not None]
    assert {s.base for s in syncs}.isdisjoint(range(min(used), max(used) + 2))


@functools.cache
def _weighted_machine(rows: int) -> bytes:
    made = first(weighted_request(BM=rows, BK=rows))
    assert made.plan.num_consumers == rows // 64
    assert made.plan.num_stages > 1
    return pickle.dumps(made.machine)


@pytest.mark.parametrize("rows", [64, 128])
@pytest.mark.parametrize("at", [-2, 1, 2], ids=["barrier before", "fence", "barrier after"])
def test_each_barrier_and_fence_is_needed(rows: int, at: int) -> None:
    """Warps of one warpgroup need the barriers as well: each has waited for its own wgmma only."""
    broken: TileGraph = pickle.loads(_weighted_machine(rows))
    assert check(broken).proved
    for write in [w for w in broken.find(smem.Write) if w.is_shared]:
        ops = write.parent.ops
        op = ops[ops.index(write) + at]
        assert isinstance(op, barrier.AsyncFence if at == 1 else barrier.NamedSync)
        ops.remove(op)
    assert not check(broken).proved


def test_a_write_under_the_wgmma_that_reads_is_refused() -> None:
    broken = copy_of()
    (write,) = [w for w in broken.find(smem.Write) if w.is_shared]
    ops = write.parent.ops
    issue = next(o for o in ops if isinstance(o, mma.Issue) and o.b is write.smem)
    ops.remove(write)
    ops.insert(ops.index(issue) + 2, write)
    assert "ordering" in check(broken).failure or "fences" in check(broken).failure


def test_a_read_whose_values_may_be_on_their_way_is_refused() -> None:
    broken = copy_of()
    (read,) = broken.find(smem.Read)
    assert read.scratch is not None
    read.scratch = None
    assert "may still be read" in check(broken).failure


def test_release_before_the_read_is_refused() -> None:
    broken = copy_of()
    (read,) = broken.find(smem.Read)
    ops = read.parent.ops
    release = next(o for o in ops[ops.index(read) :] if isinstance(o, barrier.Arrive))
    cursor = ops[ops.index(release) + 1]
    for op in (release, cursor):
        ops.remove(op)
        ops.insert(ops.index(read), op)
    assert not check(broken).proved


def test_operands_of_two_roles_lie_apart() -> None:
    kernel, _, _ = linear(64, 64)
    (_, consumer) = kernel.machine.find(Role)
    assert not any(isinstance(o, smem.Stage) for o in consumer.body.walk()), "lowered"
