"""Left operands that are made of a loaded tile in registers, in the plans of plain products."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from examples.weight_only import tiles
from examples.weight_only import weight_only
from examples.weight_only import weight_only_groups
from examples.weight_only import weight_only_int4
from tests.emulation.matmuls import compiled
from tests.emulation.matmuls import tensor
from tests.emulation.test_emulated_kernels import same_as_interpreter

BF16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(11)
TOLERANCE = 2.0**-7


# fmt: off
@tiledsl.jit
def masked(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, low, BM: tl.constexpr = 128,
           BN: tl.constexpr = 64, BK: tl.constexpr = 64):
    """Math on 16-bit elements, with a scalar."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        x = a.load((m, k), (BM, BK)).to(tl.float32)
        acc = tl.dot(tl.maximum(x * 3.0 - 1.0, low).to(b.dtype), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
# fmt: on


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(BF16)


def nothing(m: int, n: int) -> np.ndarray:
    return np.full((m, n), np.nan, BF16)


PLANS = [
    {"BN": 64, "BM": 16},
    {"BN": 128, "BM": 16, "split_k": 2},
    {"BN": 128, "BM": 40, "split_k": 2, "num_consumers": 1},
    {"BN": 64, "BM": 16, "split_k": 4},
    {"BN": 192, "BM": 24, "num_consumers": 3, "persistent": True},
    {"BN": 128, "BM": 40, "ping_pong": False, "cluster": 2},
]


@pytest.mark.parametrize("options", PLANS, ids=str)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_weights_in_every_plan(kind: str, options: dict[str, object]) -> None:
    M, N, K = 40, 328, 1040
    columns = K if kind == "int8" else 5 * 128
    args = {
        "w": RNG.integers(-128, 128, (N, columns)).astype(np.int8), "x": normal(M, K),
        "scales": RNG.random(N, dtype=np.float32), "out": nothing(M, N),
    }  # fmt: skip
    kernel = weight_only if kind == "int8" else weight_only_int4
    same_as_interpreter(kernel, args, ("out",), tiles(M, N), tolerance=TOLERANCE, **options)


def test_two_ctas_on_an_sm() -> None:
    """More programs than half of the SMs: each is shared out by two CTAs of one warpgroup."""
    M, N, K = 8, 67 * 64, 1040
    args = {
        "w": RNG.integers(-128, 128, (N, K)).astype(np.int8), "x": normal(M, K),
        "scales": RNG.random(N, dtype=np.float32), "out": nothing(M, N),
    }  # fmt: skip
    options = {"BN": 64, "BM": 8, "BK": 128, "split_k": 2}
    tensors = tuple(tensor(v) for v in args.values())
    assert compiled(weight_only, tensors, tiles(M, N), **options).plan.ctas_per_sm == 2
    same_as_interpreter(weight_only, args, ("out",), tiles(M, N), tolerance=TOLERANCE, **options)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BF16, np.dtype(np.float16)], ids=str)
@pytest.mark.parametrize("shape", [(40, 136, 520), (16, 128, 1024)], ids=str)
def test_scales_of_groups(shape: tuple[int, int, int], dtype: np.dtype) -> None:
    M, N, K = shape
    groups = -(-K // 256)
    args = {
        "w": RNG.integers(-128, 128, (N, groups * 128)).astype(np.int8), "x": normal(M, K),
        "scales": RNG.random((2 * groups, N)).astype(dtype), "out": nothing(M, N),
    }  # fmt: skip
    same_as_interpreter(weight_only_groups, args, ("out",), tiles(M, N), tolerance=TOLERANCE)


@pytest.mark.parametrize("options", [{}, {"BM": 64}, {"split_k": 2}], ids=str)
def test_math_on_16_bit_elements(options: dict[str, object]) -> None:
    M, N, K = 200, 72, 536
    args = {"a": normal(M, K), "b": normal(N, K).T, "c": nothing(M, N), "low": -0.5}

    def grid(meta):
        return tl.cdiv(M, meta["BM"]), tl.cdiv(N, meta["BN"])

    same_as_interpreter(masked, args, ("c",), grid, tolerance=TOLERANCE, **options)
