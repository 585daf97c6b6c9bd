"""Proofs of loops that begin or end at loaded numbers, and of parts that few launches reach."""

from __future__ import annotations

import pickle

import pytest
import torch

import tiledsl
import tiledsl.language as tl
from examples.attention import varlen_kernel
from tests.unit.ws.kernels import first
from tests.unit.ws.kernels import meta
from tests.unit.ws.mutations import MUTATIONS
from tests.unit.ws.mutations import apply
from tests.unit.ws.mutations import sites
from tiledsl.compiled import Kernel
from tiledsl.ws.check import check
from tiledsl.ws.check_machine import RULES
from tiledsl.ws.check_points import units_of_trips
from tiledsl.ws.check_program import LaunchPoint
from tiledsl.ws.check_program import cut_down
from tiledsl.ws.check_program import loaded_factors

S = 2048
FAULTS = {
    "drop a release",
    "drop the wait for a full slot",
    "drop an expect_tx",
    "one trip more in the producer",
}


@tiledsl.jit
def ranges(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, starts, KIND: tl.constexpr):
    """Products over ranges of rows, as loaded, or as far as there are rows."""
    m, n, g = tl.program_id(0) * 128, tl.program_id(1) * 128, tl.program_id(2)
    begin, end = tl.load(starts + g), tl.load(starts + g + 1)
    if KIND == "rest":
        end = a.shape[0]
    if KIND == "cut":
        end = tl.minimum(end, a.shape[0])
    acc = tl.zeros((128, 128), tl.float32)
    for k in range(begin, end, 64):
        acc = tl.dot(a.load((k, m), (64, 128)).T, b.load((k, n), (64, 128)), acc)
    c.store((g, m, n), acc)


def made_of(kind: str) -> Kernel:
    starts = torch.empty(4, device="meta", dtype=torch.int32)
    a, b, c = meta(S, S), meta(S, S), torch.empty(3, S, S, device="meta", dtype=torch.bfloat16)
    return first(ranges.request_for((a, b, c, starts), {"KIND": kind}, (16, 16, 3))[1])


@pytest.mark.parametrize("kind", ["both", "rest", "cut"])
def test_ranges_that_begin_at_a_loaded_number_are_entered(kind: str) -> None:
    made = made_of(kind)
    assert made.certificate is not None
    assert made.certificate.failure == ""
    loops = [line for line in made.certificate.steady if "each trip repeats" in line]
    assert len(loops) == 2


def test_faults_of_a_range_with_a_loaded_begin_are_refused() -> None:
    """Those of the loop: a launch in which it never runs would show none of them."""
    made = made_of("cut").machine
    assert made is not None
    data = pickle.dumps(made)
    refused: set[str] = set()
    for mutation in [m for m in MUTATIONS if m.name in FAULTS]:
        for site in sites(made, mutation):
            graph = pickle.loads(data)
            apply(graph, mutation, site)
            assert not check(graph).proved
            refused.add(mutation.name)
    assert refused == FAULTS


def test_loaded_numbers_are_told_apart() -> None:
    code = cut_down(made_of("cut").machine, RULES)
    factors = sorted(set(loaded_factors(code).values()))
    assert factors == [1, 2]
    assert [LaunchPoint(64, (1, 1, 1)).loaded_of(f) for f in factors] == [64, 128]
    assert [LaunchPoint(64, (1, 1, 1), loaded=8).loaded_of(f) for f in factors] == [8, 16]


@tiledsl.jit
def behind_the_first(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, N, K):
    """A loop of all rows of tiles but the first, which may have no trips."""
    tiles = tl.cdiv(N, 64)
    m, n = tl.program_id(0) // tiles, tl.program_id(0) % tiles
    acc = tl.zeros((64, 64), tl.float32)
    if m > 0:
        for k in range(0, tl.cdiv(K, 64)):
            acc = tl.dot(
                a.load((m * 64, k * 64), (64, 64)), b.load((k * 64, n * 64), (64, 64)), acc
            )
    c.store((m * 64, n * 64), acc)


@tiledsl.jit
def one_more(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor, K):
    """A loop that has no trips for arguments below 0 alone."""
    m, n = tl.program_id(0) * 64, tl.program_id(1) * 64
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(-1, tl.cdiv(K, 64)):
        acc = tl.dot(a.load((m, k * 64), (64, 64)), b.load((k * 64, n), (64, 64)), acc)
    c.store((m, n), acc)


@tiledsl.jit
def always_one(a: tl.Tensor, b: tl.Tensor, c: tl.Tensor):
    """A loop that has a trip whatever the extent."""
    m, n = tl.program_id(0) * 64, tl.program_id(1) * 64
    acc = tl.zeros((64, 64), tl.float32)
    for k in range(-1, tl.cdiv(a.shape[1], 64)):
        acc = tl.dot(a.load((m, k * 64), (64, 64)), b.load((k * 64, n), (64, 64)), acc)
    c.store((m, n), acc)


@pytest.mark.parametrize(
    ("kernel", "more"), [(behind_the_first, (S, S)), (one_more, (S,)), (always_one, ())]
)
def test_trips_that_few_launches_have(kernel: tiledsl.JitFunction, more: tuple[int, ...]) -> None:
    """Extents of 0 beside others, arguments below 0; what no launch does needs none."""
    grid = (32 * 32,) if kernel is behind_the_first else (32, 32)
    made = first(kernel.request_for((meta(S, S), meta(S, S), meta(S, S), *more), {}, grid)[1])
    assert made.certificate is not None
    assert made.certificate.failure == ""


@tiledsl.jit
def window(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, W):
    """Attention whose window may end within a block: the part without masks has a trip or none."""
    m = tl.program_id(0) * 64
    rows, lanes = m + tl.arange(0, 64), tl.arange(0, 128)
    x = q.load((m, 0), (64, 64))
    top, total = tl.full((64,), -1e6, tl.float32), tl.zeros((64,), tl.float32)
    acc = tl.zeros((64, 64), tl.float32)
    for n in range(tl.maximum(0, m - W + 1) // 128 * 128, k.shape[0], 128):
        s = tl.dot(x, tl.trans(k.load((n, 0), (128, 64))))
        seen = (n + lanes < k.shape[0])[None, :] & (rows[:, None] - W < (n + lanes)[None, :])
        s = tl.where(seen, s, -30000.0)
        new = tl.maximum(top, tl.max(s, 1))
        p, fade = tl.exp2(s - new[:, None]), tl.exp2(top - new)
        total, top = total * fade + tl.sum(p, 1), new
        acc = tl.dot(p.to(v.dtype), v.load((n, 0), (128, 64)), acc * fade[:, None])
    o.store((m, 0), acc / total[:, None])


# fmt: off
@tiledsl.jit
def both_sides(q: tl.Tensor, k: tl.Tensor, v: tl.Tensor, o: tl.Tensor, W, CAUSAL: tl.constexpr,
               BM: tl.constexpr, BN: tl.constexpr):
    """Attention within a window: tiles that lie far behind the last key have no trips."""
    m = tl.program_id(0) * BM
    rows, lanes = m + tl.arange(0, BM), tl.arange(0, BN)
    x = q.load((m, 0), (BM, 64))
    top, total = tl.full((BM,), -1e6, tl.float32), tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, 64), tl.float32)
    end = min(k.shape[0], m + BM if CAUSAL else m + BM + W)
    for n in range(tl.maximum(0, m - W + 1) // BN * BN, end, BN):
        s = tl.dot(x, tl.trans(k.load((n, 0), (BN, 64))))
        seen = (n + lanes < k.shape[0])[None, :] & (rows[:, None] - W < (n + lanes)[None, :])
        seen = seen & (rows[:, None] + (1 if CAUSAL else W) > (n + lanes)[None, :])
        s = tl.where(seen, s, -30000.0)
        new = tl.maximum(top, tl.max(s, 1))
        p, fade = tl.exp2(s - new[:, None]), tl.exp2(top - new)
        total, top = total * fade + tl.sum(p, 1), new
        acc = tl.dot(p.to(v.dtype), v.load((n, 0), (BN, 64)), acc * fade[:, None])
    o.store((m, 0), acc / total[:, None])
# fmt: on


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("tile", [(64, 64), (128, 16)], ids=str)
def test_windows_behind_whose_end_tiles_lie(tile: tuple[int, int], causal: bool) -> None:
    tensors = [meta(S, 64) for _ in range(4)]
    options, grid = {"num_stages": 2}, (-(-S // tile[0]),)
    made = first(both_sides.request_for((*tensors, 100, causal, *tile), options, grid)[1])
    assert made.certificate is not None
    assert made.certificate.failure == ""


@pytest.mark.parametrize("persistent", [False, True])
def test_parts_of_a_loop_by_a_window_are_entered(persistent: bool) -> None:
    tensors = [meta(S, 64) for _ in range(4)]
    made = first(window.request_for((*tensors, 100), {"persistent": persistent}, (32,))[1])
    assert made.certificate is not None
    assert made.certificate.failure == ""


def test_what_is_left_of_an_extent_does_not_grow_with_it() -> None:
    """Blocks of 48 leave one or two of extents that are powers of two: no step of that length."""
    x, o = (torch.empty(4, 700, 64, device="meta", dtype=torch.bfloat16) for _ in range(2))
    starts, lse = (
        torch.empty(5, device="meta", dtype=torch.int32),
        torch.empty(4, 700, device="meta"),
    )
    heads = [t.unsqueeze(0) for t in (x, x, x, o)]
    args = (*heads, o.transpose(0, 1), lse, x, starts, starts, 0.1, True, 0, None, 1)
    sizes = {"BM": 128, "BN": 48, "D": 64, "DV": 64}
    made = first(varlen_kernel.request_for(args, {**sizes, "fast_math": True}, (6, 4, 4))[1])
    code = cut_down(made.machine, RULES)
    assert units_of_trips(code) == (48, {})
    assert made.certificate is not None
    assert made.certificate.failure == ""
