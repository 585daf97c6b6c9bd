"""Long epilogues in place of the sums: a loop over the chunks of a stored tile, whose registers move down."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import compiled
from tests.emulation.matmuls import tensor
from tests.gpu.matmul_kernels import grid_of
from tiledsl import emulate
from tiledsl.compiled import Kernel
from tiledsl.compiler import modules
from tiledsl.ir.layout import mma_accumulator
from tiledsl.ir.layout import register_shift
from tiledsl.ir.ops.tile import Shift
from tiledsl.jit import normalize_grid
from tiledsl.ws.plan import Plan
from tiledsl.ws.simulate import simulate

RNG = np.random.default_rng(0)
M, N, K = 200, 424, 136


# fmt: off
@tiledsl.jit
def layer(a: tl.Tensor, b: tl.Tensor, bias: tl.Tensor, old: tl.Tensor, out: tl.Tensor, scale: tl.float32,
          LONG: tl.constexpr = True,
          BM: tl.constexpr = tl.auto, BN: tl.constexpr = tl.auto, BK: tl.constexpr = 64):
    """out = gelu(a @ b * scale + bias), of every third column -gelu, plus a tile of another dtype."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    x = acc * scale + bias.load((n,), (BN,)).to(tl.float32)
    if LONG:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    third = (n + tl.arange(0, BN)) % 3 == 0
    out.store((m, n), tl.where(third[None, :], -x, x) + old.load((m, n), (BM, BN)))
# fmt: on


def arguments() -> dict[str, object]:
    return {
        "a": RNG.integers(-2, 3, (M, K)).astype(BF16), "b": RNG.integers(-2, 3, (N, K)).astype(BF16).T,
        "bias": RNG.standard_normal(N).astype(BF16), "old": RNG.standard_normal((M, N)).astype(np.float32),
        "out": np.full((M, N), np.nan, BF16), "scale": 0.05,
    }  # fmt: skip


def made_for(args: dict[str, object], **options: object) -> Kernel:
    tensors = tuple(tensor(v) if isinstance(v, np.ndarray) else v for v in args.values())
    return compiled(layer, tensors, grid_of(M, N), **options)


def check_result(args: dict[str, object]) -> None:
    wide = {k: np.asarray(v).astype(np.float64) for k, v in args.items()}
    x = wide["a"] @ wide["b"] * 0.05 + wide["bias"]
    y = 0.5 * x * (1 + np.vectorize(math.erf)(x * 0.5**0.5))
    want = np.where(np.arange(N) % 3 == 0, -y, y) + wide["old"]
    np.testing.assert_allclose(wide["out"], want, rtol=2**-8, atol=1e-5)


PLANS = {
    "ping-pong": {"BM": 128, "BN": 192, "ping_pong": True, "cluster": 1},
    "cluster": {"BM": 128, "BN": 192, "ping_pong": True, "cluster": 2},
}


@pytest.mark.parametrize("name", PLANS)
def test_chunks_share_one_copy_of_the_code(name: str) -> None:
    args = arguments()
    made = made_for(args, **PLANS[name])
    assert isinstance(made.plan, Plan)
    assert made.plan.in_place
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure
    assert made.module.source.count("erf_absolute") == 4  # a quarter of a chunk each
    assert made.machine is not None
    assert len(made.machine.find(Shift)) == 1
    grid = normalize_grid(grid_of(M, N), made.constants)
    emulate.run(made.module, args, grid, seed=1)
    check_result(args)


@pytest.mark.parametrize(("columns", "chunks"), [(128, 4), (192, 6)])
def test_any_number_of_chunks_is_proved(columns: int, chunks: int) -> None:
    """A CTA for each tile, whose first chunk finds all slabs free: four do not repeat each other."""
    args = arguments() | {"out": np.full((M, N), np.nan, np.float32)}
    tensors = [tensor(v) if isinstance(v, np.ndarray) else v for v in args.values()]
    options = {"BM": 64, "BN": columns, "num_consumers": 1, "persistent": False, "num_stages": 2}
    call = layer._bind(tensors, options)
    request = layer._request(call, layer._signature(call)[0], grid_of(M, N), call.constants)
    made = next(k for k in modules(request) if k.machine is not None and k.machine.find(Shift))
    assert made.certificate is not None
    assert made.certificate.proved, made.certificate.failure
    assert made.machine is not None
    assert made.machine.find(Shift)[0].distance == columns // chunks
    emulate.run(made.module, args, normalize_grid(grid_of(M, N), made.constants))
    check_result(args)


def test_the_simulator_agrees() -> None:
    args = arguments()
    made = made_for(args, **PLANS["ping-pong"])
    assert made.machine is not None
    simulate(made.machine, args, normalize_grid(grid_of(M, N), made.constants))
    check_result(args)


def test_a_last_chunk_that_overlaps_is_not_rolled() -> None:
    made = made_for(arguments(), BM=128, BN=176, ping_pong=True, cluster=1)
    assert made.machine is not None
    assert not made.machine.find(Shift)


def test_how_far_registers_lie_apart() -> None:
    """128 x 192 sums of a warpgroup: blocks of 64 rows have 96 registers, 64 columns 32 of them."""
    layout = mma_accumulator(128, 192, 1)
    assert register_shift(layout, (128, 192), 1, 64) == 32
    assert register_shift(layout, (128, 192), 1, 8) == 4
    assert register_shift(layout, (128, 192), 1, 1) is None
    assert register_shift(layout, (128, 192), 0, 64) == 96
