"""Sums in f16 on the tensor core: plans, and the emitted kernels against the interpreter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tiledsl
import tiledsl.language as tl
from tests.emulation.test_emulated_kernels import same_as_interpreter
from tests.gpu.matmul_kernels import grid_of
from tiledsl.ir.ops import mma

F16, E4M3 = np.dtype(np.float16), np.dtype(ml_dtypes.float8_e4m3fn)
RNG = np.random.default_rng(0)


# fmt: off
@tiledsl.jit
def half_matmul(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr = tl.auto,
                BN: tl.constexpr = tl.auto, BK: tl.constexpr = tl.auto):
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float16)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc, out_dtype=tl.float16)
    c.store((m, n), acc)


@tiledsl.jit
def half_parts(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, BM: tl.constexpr = 128,
               BN: tl.constexpr = 64, BK: tl.constexpr = 64):
    """Each block of K in f16, the sum of the blocks in f32."""
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        x, y = a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN))
        acc += tl.dot(x, y, out_dtype=tl.float16)
    c.store((m, n), acc)
# fmt: on


def arguments(M: int, N: int, K: int, dtype: np.dtype = F16) -> dict[str, np.ndarray]:
    a, b = (RNG.integers(-2, 3, shape).astype(dtype) for shape in ((M, K), (N, K)))
    return {"a": a, "b": b.T, "c": np.full((M, N), np.nan, F16)}


PLANS = {
    "ping-pong": {"BM": 64, "BN": 136, "ping_pong": True, "cluster": 1},
    "deferred": {"BM": 128, "BN": 128, "num_consumers": 2, "ping_pong": False, "cluster": 1},
    "two accumulator blocks": {"BM": 256, "BN": 256, "BK": 64},
    "swapped": {"BM": 16, "BN": 64, "swap_operands": True},
    "single role": {"BM": 64, "BN": 64, "warp_specialize": False},
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("dtype", [F16, E4M3], ids=["f16", "e4m3"])
def test_half_sums(name: str, dtype: np.dtype) -> None:
    """Products of small whole numbers, whose sums f16 holds: any difference is a mistake."""
    M, N, K = 136, 264, 144
    same_as_interpreter(
        half_matmul, arguments(M, N, K, dtype), ("c",), grid_of(M, N), **PLANS[name]
    )


def test_parts_in_half() -> None:
    M, N, K = 136, 72, 200
    same_as_interpreter(half_parts, arguments(M, N, K), ("c",), grid_of(M, N))


def test_sums_are_in_the_dtype_that_is_asked_for() -> None:
    """The accumulators of the emitted kernel have f16, and take half of the registers."""
    import torch

    meta = [torch.empty(4096, 4096, device="meta", dtype=torch.float16) for _ in range(3)]
    made = half_matmul.compile(
        meta[0], meta[1].t(), meta[2], grid=grid_of(4096, 4096), BM=256, BN=256
    )
    assert made.machine is not None
    issues: list[mma.Issue] = made.machine.find(mma.Issue)
    assert {str(i.acc.type.dtype) for i in issues} == {"f16"}
    assert made.compiled is not None
    assert not made.compiled.spill_bytes
    assert made.certificate is not None
    assert made.certificate.proved
    with pytest.raises(tiledsl.TileError, match="partial sums in f32 only"):
        half_matmul.compile(*meta, grid=grid_of(4096, 4096), split_k=2)
