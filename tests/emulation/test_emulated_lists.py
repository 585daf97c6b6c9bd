"""Lists of tensors: the emitted kernels run in the emulation, for problems of all sizes at once."""

from __future__ import annotations

import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from examples.grouped_list import grid_of
from examples.grouped_list import grouped_list
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import F32
from tests.emulation.matmuls import tensor
from tiledsl import emulate
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.ir.ops.role import Role
from tiledsl.jit import normalize_grid
from tiledsl.ws.plan import Plan
from tiledsl.ws.simulate import simulate

RNG = np.random.default_rng(0)
Lists = dict[str, list[np.ndarray]]


def compiled(kernel, lists: Lists, grid, **options: object) -> Kernel:
    """The first choice of the compiler."""
    tensors = [[tensor(x) for x in arrays] for arrays in lists.values()]
    call = kernel._bind(tensors, options)
    sig, _ = kernel._signature(call)
    return next(iter(modules(kernel._request(call, sig, grid, call.constants))))


def run(kernel, lists: Lists, grid, seed: int, planned=None, **options: object) -> Kernel:
    """planned: the grid that the plan is for, where it is another one."""
    made = compiled(kernel, lists, planned or grid, **options)
    args = {f"{name}_{i}": x for name, arrays in lists.items() for i, x in enumerate(arrays)}
    emulate.run(made.module, args, normalize_grid(grid, made.constants), seed=seed)
    return made


def whole(*shape: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact."""
    return RNG.integers(-2, 3, shape).astype(BF16)


SHAPES = [(130, 136, 72), (0, 64, 64), (1, 200, 80), (70, 8, 264), (64, 72, 0), (140, 64, 8)]
PLANS = {
    "deferred": {"BM": 128, "BN": 128, "BK": 64, "num_consumers": 2},
    "one consumer": {"BM": 64, "BN": 64, "BK": 64, "num_consumers": 1, "persistent": True},
    "swapped": {"BM": 16, "BN": 64, "BK": 64, "swap_operands": True, "persistent": True},
    "a CTA for each tile": {"BM": 64, "BN": 64, "BK": 64},
    "single role": {"BM": 64, "BN": 64, "BK": 32, "warp_specialize": False},
}


@pytest.mark.parametrize("name", PLANS)
def test_problems_of_all_sizes(name: str) -> None:
    """Empty problems, one without K, edges that are ragged: tiles that no CTA has twice."""
    for seed in (0, 1):
        lists: Lists = {
            "a": [whole(m, k) for m, _, k in SHAPES],
            "b": [whole(n, k).T for _, n, k in SHAPES],
            "c": [np.full((m, n), np.nan, BF16) for m, n, _ in SHAPES],
        }
        many = (lambda _: (400,)) if name == "deferred" else None
        made = run(grouped_list, lists, grid_of(SHAPES), seed, many, **PLANS[name])
        assert isinstance(made.plan, Plan) == (name != "single role")
        if isinstance(made.plan, Plan):
            assert made.certificate is not None
            assert made.certificate.proved
            assert made.plan.deferred == (name == "deferred")
            assert ("is_stored" in made.module.source) == (name == "deferred")
            assert made.plan.dynamic == (name != "a CTA for each tile")
            assert "Table<TensorMap, 6> a_maps" in made.module.source
        for x, y, z in zip(*lists.values(), strict=True):
            want = (x.astype(F32) @ y.astype(F32)).astype(BF16)
            np.testing.assert_array_equal(z.astype(F32), want.astype(F32))


# fmt: off
@tiledsl.jit
def added(a: tl.TensorList, b: tl.TensorList, old: tl.TensorList, c: tl.TensorList, BM: tl.constexpr = 128,
          BN: tl.constexpr = 192, BK: tl.constexpr = 64):
    """c[g] = a[g] @ b[g] + old[g] for all g."""
    tile = tl.program_id(0)
    group, first, start = 0, 0, 0
    for g in range(0, len(a)):
        tiles = tl.cdiv(a[g].shape[0], BM)
        is_here = (tile >= start) & (tile < start + tiles)
        group, first = tl.where(is_here, g, group), tl.where(is_here, start, first)
        start += tiles
    m = (tile - first) * BM
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a[group].shape[1], BK):
        acc = tl.dot(a[group].load((m, k), (BM, BK)), b[group].load((k, 0), (BK, BN)), acc)
    c[group].store((m, 0), acc + old[group].load((m, 0), (BM, BN)).to(tl.float32))
# fmt: on


def test_three_roles_in_the_load_warpgroup() -> None:
    """Threads of three warps load operands, load for the epilogue, and search."""
    sizes = (130, 0, 260, 1)
    lists: Lists = {
        "a": [whole(m, 136) for m in sizes],
        "b": [whole(192, 136).T for _ in sizes],
        "old": [whole(m, 192) for m in sizes],
        "c": [np.full((m, 192), np.nan, BF16) for m in sizes],
    }
    made = run(added, lists, (6,), 0, (400,))
    assert made.machine is not None
    roles = [r.name for r in made.machine.find(Role)]
    assert roles == ["producer", "epilogue loads", "search", "consumer"]
    assert made.certificate is not None
    assert made.certificate.proved
    for x, y, z, c in zip(*lists.values(), strict=True):
        want = (x.astype(F32) @ y.astype(F32) + z.astype(F32)).astype(BF16)
        np.testing.assert_array_equal(c.astype(F32), want.astype(F32))


def test_the_simulator_agrees() -> None:
    shapes = SHAPES[:4]
    lists: Lists = {
        "a": [whole(m, k) for m, _, k in shapes],
        "b": [whole(n, k).T for _, n, k in shapes],
        "c": [np.full((m, n), np.nan, BF16) for m, n, _ in shapes],
    }
    made = compiled(grouped_list, lists, grid_of(shapes), **PLANS["one consumer"])
    assert made.machine is not None
    args = {f"{name}_{i}": x for name, arrays in lists.items() for i, x in enumerate(arrays)}
    simulate(made.machine, args, normalize_grid(grid_of(shapes), made.constants))
    for x, y, z in zip(*lists.values(), strict=True):
        np.testing.assert_array_equal(z.astype(F32), (x.astype(F32) @ y.astype(F32)).astype(BF16))


# fmt: off
@tiledsl.jit
def scaled(x: tl.TensorList, y: tl.TensorList, B: tl.constexpr = 64):
    """Each tensor times its number; the last one also by a constant index."""
    g, at = tl.program_id(1), tl.program_id(0) * B
    y[g].store((at,), x[g].load((at,), (B,)) * g + x[len(x) - 1].load((0,), (1,)))
# fmt: on


def test_lists_without_a_dot() -> None:
    sizes = (70, 0, 1, 200)
    lists: Lists = {
        "x": [RNG.standard_normal(n).astype(F32)[::1] for n in sizes],
        "y": [np.full(n, np.nan, F32) for n in sizes],
    }
    run(scaled, lists, (4, 4, 1), 0)
    for g, (x, y) in enumerate(zip(*lists.values(), strict=True)):
        np.testing.assert_array_equal(y, x * F32.type(g) + lists["x"][3][0])


def test_tensors_without_a_tensor_map() -> None:
    """One tensor that TMA cannot read sends all of them another way."""
    lists: Lists = {
        "a": [whole(70, 64), whole(70, 65)[:, 1:]],
        "b": [whole(64, 64).T, whole(64, 64).T],
        "c": [np.full((70, 64), np.nan, BF16) for _ in range(2)],
    }
    made = run(grouped_list, lists, grid_of([(70, 64, 64)] * 2), 0, BM=64, BN=64, BK=64)
    assert not isinstance(made.plan, Plan)
    for x, y, z in zip(*lists.values(), strict=True):
        np.testing.assert_array_equal(z.astype(F32), x.astype(F32) @ y.astype(F32))


def test_rows_of_one_problem_that_end_between_16_bytes() -> None:
    """Its store leaves what lies beside the slice as it was, whatever the first problem's rows are."""
    shapes = [(64, 64, 64), (40, 100, 64)]
    wide = [np.full((m, n + 8 + -n % 8), 7, BF16) for m, n, _ in shapes]
    lists = {
        "a": [whole(m, k) for m, _, k in shapes],
        "b": [whole(n, k).T for _, n, k in shapes],
        "c": [x[:, :n] for x, (_, n, _) in zip(wide, shapes, strict=True)],
    }
    run(grouped_list, lists, grid_of(shapes), 0, BM=64, BN=64, BK=64)
    for x, a, b, (_, n, _) in zip(wide, lists["a"], lists["b"], shapes, strict=True):
        assert (x[:, n:] == 7).all()
        assert (x[:, :n].astype(np.float64) == a.astype(np.float64) @ b.astype(np.float64)).all()
