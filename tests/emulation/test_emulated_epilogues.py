"""Tiles that only the epilogue reads come through a channel of their own: plans, text, results, faults."""

from __future__ import annotations

import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from tests.emulation.harness import replaced
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import compiled
from tests.emulation.matmuls import tensor
from tests.gpu.matmul_kernels import grid_of
from tiledsl import emulate
from tiledsl.codegen.module import KernelModule
from tiledsl.compiled import Kernel
from tiledsl.emulate.errors import EmulationFault
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops.role import Role
from tiledsl.jit import normalize_grid
from tiledsl.ws.check import check
from tiledsl.ws.plan import Plan
from tiledsl.ws.simulate import simulate

RNG = np.random.default_rng(0)
M, N, K = 200, 264, 136


# fmt: off
@tiledsl.jit
def mixed(a: tl.Tensor, b: tl.Tensor, old: tl.Tensor, gate: tl.Tensor, out: tl.Tensor,
          BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):
    """out = (a @ b + old) * gate."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    acc += old.load((m, n), (BM, BN)).to(tl.float32)
    out.store((m, n), acc * gate.load((m, n), (BM, BN)).to(tl.float32))
# fmt: on


def whole(*shape: int) -> np.ndarray:
    """Small whole numbers, whose sums and products are exact."""
    return RNG.integers(-2, 3, shape).astype(BF16)


def arguments() -> dict[str, np.ndarray]:
    return {
        "a": whole(M, K), "b": whole(N, K).T, "old": whole(M, N), "gate": whole(M, N),
        "out": np.full((M, N), np.nan, BF16),
    }  # fmt: skip


def made_for(**options: object) -> Kernel:
    """A kernel of its own each time: tests break it."""
    tensors = tuple(tensor(v) for v in arguments().values())
    return compiled(mixed, tensors, grid_of(M, N), **options)


def is_right(module: KernelModule, made: Kernel, seed: int) -> bool:
    """Whether a run gives exactly the result; a fault of the emulation is no result."""
    args = arguments()
    try:
        emulate.run(module, args, normalize_grid(grid_of(M, N), made.constants), seed=seed)
    except EmulationFault:
        return False
    return has_result(args)


def has_result(args: dict[str, np.ndarray]) -> bool:
    """Whether the output is exactly what the numbers give."""
    wide = {k: v.astype(np.float32) for k, v in args.items()}
    want = (wide["a"] @ wide["b"] + wide["old"]) * wide["gate"]
    return bool((wide["out"] == want.astype(BF16).astype(np.float32)).all())


PLANS = {
    "ping-pong": {"BM": 128, "BN": 128, "ping_pong": True, "cluster": 1},
    "ping-pong, chunks overlap": {"BM": 128, "BN": 144, "ping_pong": True, "cluster": 1},
    "cluster": {"BM": 128, "BN": 128, "ping_pong": True, "cluster": 2},
    "cooperative": {"BM": 128, "BN": 128, "num_consumers": 2, "ping_pong": False, "cluster": 1},
    "one consumer": {"BM": 64, "BN": 128, "num_consumers": 1, "cluster": 1},
    "plain grid": {"BM": 128, "BN": 128, "num_consumers": 2, "persistent": False, "cluster": 1},
}


@pytest.mark.parametrize("name", PLANS)
def test_a_role_loads_for_the_epilogue(name: str) -> None:
    made = made_for(**PLANS[name])
    assert isinstance(made.plan, Plan)
    assert made.plan.epilogue_slots > 0
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure
    assert "- epilogue loads" in made.module.source
    assert "load_vector" not in made.module.source
    assert all(is_right(made.module, made, seed) for seed in (0, 1))


def test_the_simulator_agrees() -> None:
    made, args = made_for(**PLANS["ping-pong, chunks overlap"]), arguments()
    assert made.machine is not None
    simulate(made.machine, args, normalize_grid(grid_of(M, N), made.constants))
    assert has_result(args)


def test_consumers_load_what_no_channel_takes() -> None:
    """Chunks that do not start at a multiple of 16 columns, and tiles that are swapped."""
    for options in ({"BM": 128, "BN": 136}, {"BM": 16, "BN": 128, "swap_operands": True}):
        made = made_for(**options)
        assert isinstance(made.plan, Plan)
        assert not made.plan.epilogue_slots


MUTATIONS = {
    "no release": (barrier.Arrive, "empty"),
    "no wait for a chunk": (barrier.MbarrierWait, "full"),
    "no wait for a free slot": (barrier.MbarrierWait, "empty"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_proof_sees_what_is_missing(name: str) -> None:
    kind, which = MUTATIONS[name]
    made = made_for(**PLANS["ping-pong"])
    graph = made.machine
    assert graph is not None
    found = [o for o in graph.find(kind) if o.operands[0].name == f"old_gate_{which}"]
    graph.erase(found[0])
    assert not check(graph).proved


def test_turns_keep_waits_within_a_phase() -> None:
    """Without the order of the warpgroups' epilogues a wait could be two phases ahead."""
    made = made_for(**PLANS["ping-pong"])
    graph = made.machine
    assert graph is not None
    base = max(o.base for o in graph.find(barrier.NamedSync))
    for kind in (barrier.NamedSync, barrier.NamedArrive):
        for op in [o for o in graph.find(kind) if o.base == base]:
            graph.erase(op)
    failed = check(graph)
    assert not failed.proved
    assert "phase" in failed.failure


def test_a_missing_wait_shows_in_the_emulation() -> None:
    made = made_for(**PLANS["cooperative"])
    assert len(made.machine.find(Role)) == 3  # type: ignore[union-attr]
    broken = replaced(made.module, r"(?m)^ *mbarrier_wait\(old_gate_full.*\n", "")
    assert not all(is_right(broken, made, seed) for seed in range(3))
