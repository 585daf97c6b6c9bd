"""Effects and orders of specialised kernels: clusters, split-K, atomics, repeated stores, lanes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiledsl
import tiledsl.language as tl
from tests.emulation.matmuls import BF16
from tests.emulation.matmuls import F32
from tests.emulation.recorded import Launch
from tests.emulation.recorded import both
from tests.emulation.recorded import distance
from tests.emulation.test_emulated_kernels import same_as_interpreter
from tests.gpu.matmul_kernels import grid_of
from tiledsl.errors import ScheduleError

RNG = np.random.default_rng(5)
TOLERANCE = 2.0**-7


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(BF16)


def nothing(*shape: int, dtype: np.dtype = BF16) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


def matrices(M: int, N: int, K: int) -> dict[str, np.ndarray]:
    return {"a": normal(M, K), "b": normal(N, K).T}


@tiledsl.jit
def row_maxima(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, AXIS: tl.constexpr,
               BM: tl.constexpr = 64, BN: tl.constexpr = 128, BK: tl.constexpr = 64):  # fmt: skip
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc - tl.max(acc, AXIS, keep_dims=True))


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_a_long_sum(axis: int) -> None:
    """Split-K would be the choice, but no warpgroup has all of the sums then."""
    args = {**matrices(64, 256, 2048), "c": nothing(64, 256)}
    same_as_interpreter(row_maxima, args, ("c",), grid_of(64, 256), tolerance=TOLERANCE, AXIS=axis)
    with pytest.raises(ScheduleError, match="an epilogue that works element by element"):
        same_as_interpreter(row_maxima, args, ("c",), grid_of(64, 256), AXIS=axis, split_k=2)


@tiledsl.jit
def counted(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, count, s,
            BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):  # fmt: skip
    x, y = tl.program_id(0), tl.program_id(1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((x * BM, k), (BM, BK)), b.load((k, y * BN), (BK, BN)), acc)
    c.store((x * BM, y * BN), acc)
    tl.atomic_add(count, 1)
    tl.store(s + x * tl.num_programs(1) + y, tl.max(acc))


@pytest.mark.parametrize("shape", [(384, 384, 128), (64, 128, 2048)], ids=str)
def test_pointers_and_atomics_are_those_of_the_programs_of_the_grid(
    shape: tuple[int, int, int],
) -> None:
    """Clusters pad the grid, and under split-K each program is several CTAs."""
    M, N, K = shape
    programs = -(-M // 128) * -(-N // 128)
    args = {
        **matrices(M, N, K), "c": nothing(M, N), "count": np.zeros(1, np.int32),
        "s": nothing(programs, dtype=F32),
    }  # fmt: skip
    same_as_interpreter(counted, args, ("c", "count", "s"), grid_of(M, N), tolerance=TOLERANCE)
    with pytest.raises(ScheduleError, match="beyond the grid"):
        same_as_interpreter(counted, args, ("c",), grid_of(M, N), cluster=2)


@tiledsl.jit
def twice(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
          BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):  # fmt: skip
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
    c.store((m, n), acc)
    c.store((m, n), tl.max(acc, 1)[:, None])


@tiledsl.jit
def again(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor,
          BM: tl.constexpr = 128, BN: tl.constexpr = 128, BK: tl.constexpr = 64):  # fmt: skip
    m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, a.shape[1], BK):
        acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
        c.store((m, n), acc)


@pytest.mark.parametrize("kernel", [twice, again], ids=["twice", "in the loop"])
def test_the_last_store_stays(kernel) -> None:
    args = {**matrices(136, 136, 200), "c": nothing(136, 136)}
    same_as_interpreter(kernel, args, ("c",), grid_of(136, 136), tolerance=TOLERANCE)
    with pytest.raises(ScheduleError, match="may store to the same elements twice"):
        same_as_interpreter(kernel, args, ("c",), grid_of(136, 136), num_consumers=2)


@tiledsl.jit
def masked_columns(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, end: tl.int32):
    m = tl.program_id(0) * 64
    x = q.load((m, 0), (64, 64))
    acc = tl.zeros((64, 64), tl.float32)
    for n in range(0, k.shape[0], 64):
        inside = (tl.arange(0, 64) < end)[None, :]
        y = tl.where(inside, k.load((n, 0), (64, 64)), 0.0)
        s = tl.dot(x, tl.trans(y))
        acc = tl.dot((s * 0.1).to(tl.bfloat16), v.load((n, 0), (64, 64)), acc)
    o.store((m, 0), acc)


def test_lanes_read_a_slot_before_it_is_given_back() -> None:
    args = {"q": normal(64, 64), "k": normal(310, 64), "v": normal(310, 64),
            "o": nothing(64, 64, dtype=F32), "end": 40}  # fmt: skip
    same_as_interpreter(masked_columns, args, ("o",), (1,), tolerance=TOLERANCE)


@tiledsl.jit
def masked_by_limits(q: tl.Tensor, k: tl.Tensor, o: tl.Tensor, limit: tl.int32):
    x = q.load((0, 0), (64, 64))
    acc = tl.zeros((64,), tl.float32)
    for n in range(0, k.shape[0], 64):
        s = tl.dot(x, tl.trans(k.load((n, 0), (64, 64))))
        seen = (n + tl.arange(0, 64))[None, :] <= limit
        acc += tl.sum(tl.where(seen, s, 0.0), 1)
    o.store((0,), acc)


@pytest.mark.parametrize("limit", [-(2**31), -(2**31) + 40, -1, 70, 2**31 - 2**17])
def test_limits_at_the_ends_of_int32(limit: int) -> None:
    """The range without masks is worked out with what lies beyond."""
    args = {"q": normal(64, 64), "k": normal(200, 64), "o": nothing(64, dtype=F32), "limit": limit}
    same_as_interpreter(masked_by_limits, args, ("o",), (1,), tolerance=2.0**-12)


@tiledsl.jit
def limited(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    m, n = tl.program_id(0) * 64, tl.program_id(1) * 24
    acc = tl.full((64, 24), 3, tl.float32)
    if m + n < 100:
        for k in range(0, min(a.shape[0], m + 64), 32):
            y = tl.trans(b.load((n, k), (24, 32)))
            y = tl.where((k + tl.arange(0, 32))[:, None] < 40, y, 0)
            acc = tl.dot(tl.trans(a.load((k, m), (32, 64))), y, acc)
    c.store((m, n), acc)


def test_transposed_operands_with_a_limit() -> None:
    """The right operand is computed from a tile that comes through registers."""
    args = {"a": normal(160, 136), "b": normal(48, 160), "c": nothing(136, 48)}
    same_as_interpreter(limited, args, ("c",), (3, 2), tolerance=TOLERANCE)


@tiledsl.jit
def idle(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(0, 0, 64):
        acc = tl.dot(a.load((0, k), (64, 64)), b.load((k, 0), (64, 64)), acc)
        acc = acc * 2.0
    c.store((0, 0), acc)


@pytest.mark.parametrize("options", [{}, {"persistent": False}], ids=str)
def test_loops_that_never_run(options: dict[str, bool]) -> None:
    args = {**matrices(64, 64, 64), "c": nothing(64, 64)}
    same_as_interpreter(idle, args, ("c",), (1,), **options)


@tiledsl.jit
def best_shares(x, shares, n, K: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """The K largest of a row, stored one by one, loaded as a tile, and divided by their sum."""
    row, at, lane = tl.program_id(0), tl.arange(0, BLOCK), tl.arange(0, LANES)
    left = tl.load(x + row * n + at, mask=at < n, other=0.0)
    total = 0.0
    for i in range(K):
        best, place = tl.max(left, 0, return_indices=True)
        tl.store(shares + row * K + i, best)
        total += best
        left = tl.where(at == place, 0.0, left)
    best = tl.load(shares + row * K + lane, mask=lane < K)
    tl.store(shares + row * K + lane, best / total, mask=lane < K)


@pytest.mark.parametrize("warps", [1, 4])
def test_scalars_that_were_stored_are_loaded_as_a_tile(warps: int) -> None:
    x = torch.from_numpy(RNG.random((6, 90)).astype(np.float32))
    args = (x, torch.full((6, 5), float("nan")), 90, 5, 8, 128)
    want = x.topk(5, 1).values.double()
    want = (want / want.sum(1, keepdim=True)).numpy()
    launch = Launch(best_shares, (6,), args, {"num_warps": warps})
    for name, interpreted, got in both(launch, lambda *_: None, seeds=(1, 2)):
        if name == "shares":
            assert distance(want, interpreted) < 1e-6
            assert distance(want, got) < 1e-6
