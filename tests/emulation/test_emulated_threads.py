"""Warps, named barriers, block and cluster barriers; what stalls is reported."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulation.harness import kernel
from tests.emulation.harness import launch
from tests.emulation.harness import pointer
from tiledsl import dtypes as dt
from tiledsl import emulate

SEEDS = range(6)
OUT = (pointer("out", dt.int32),)


def ints(*shape: int) -> np.ndarray:
    return np.full(shape, -1, np.int32)


@pytest.fixture(scope="module")
def warp_functions():
    body = """
  const u32 t = threadIdx.x, lane = lane_id();
  i32* o = out + t * 12;
  o[0] = shfl_xor((i32)t, 5), o[1] = shfl_idx((i32)t, (int)(lane / 2)), o[2] = shfl_up((i32)t, 3);
  o[3] = shfl_down((i32)t, 3), o[4] = (i32)uniform(t), o[5] = warp_add((i32)lane), o[6] = warp_max((i32)lane - 40);
  o[7] = warp_min(lane + 7u), o[8] = (i32)warp_ballot(lane % 3 == 0), o[9] = warp_any(lane == 31), o[10] = warp_all(lane < 31);
  o[11] = elect_one();
"""
    return kernel(body, OUT, threads=64)


@pytest.mark.parametrize("seed", SEEDS)
def test_warp_functions(warp_functions, seed: int) -> None:
    out = ints(64, 12)
    launch(warp_functions, {"out": out}, seed=seed)
    t = np.arange(64)
    lane, first = t % 32, t // 32 * 32
    want = [
        t ^ 5,
        first + lane // 2,
        np.where(lane >= 3, t - 3, t),
        np.where(lane <= 28, t + 3, t),
        first,
    ]
    want += [
        496 + 0 * t,
        -9 + 0 * t,
        7 + 0 * t,
        sum(1 << i for i in range(0, 32, 3)) + 0 * t,
        1 + 0 * t,
        0 * t,
    ]
    np.testing.assert_array_equal(out[:, :11], np.stack(want, 1).astype(np.int32))
    assert [out[w * 32 : w * 32 + 32, 11].sum() for w in range(2)] == [1, 1]


def test_wide_values_are_shuffled_whole() -> None:
    module = kernel(
        "out[threadIdx.x] = shfl_xor((i64)threadIdx.x << 40, 1);", (pointer("out", dt.int64),)
    )
    out = np.zeros(32, np.int64)
    launch(module, {"out": out})
    np.testing.assert_array_equal(out, (np.arange(32) ^ 1) << 40)


@pytest.mark.parametrize("seed", SEEDS)
def test_named_barriers_hand_over(seed: int) -> None:
    """One warp produces, the other consumes; each arrives on the other's barrier."""
    body = """
  const u32 lane = lane_id();
  i32 sum = 0;
  if (warp_id() == 0) {
    for (int i = 0; i < 5; ++i) {
      named_barrier_sync(1, 64);
      st_shared(smem + lane * 4, (i32)(i * 100 + lane));
      named_barrier_arrive(2, 64);
    }
  } else {
    named_barrier_arrive(1, 64);
    for (int i = 0; i < 5; ++i) {
      named_barrier_sync(2, 64);
      sum += ld_shared<i32>(smem + (lane ^ 1) * 4);
      if (i < 4) named_barrier_arrive(1, 64);
    }
    out[lane] = sum;
  }"""
    out = ints(32)
    launch(kernel(body, OUT, threads=64, smem_bytes=128), {"out": out}, seed=seed)
    np.testing.assert_array_equal(out, 1000 + 5 * (np.arange(32) ^ 1))


@pytest.mark.parametrize("seed", SEEDS)
def test_blocks_and_clusters(seed: int) -> None:
    body = """
  const u32 rank = cluster_rank(), other = rank ^ 1;
  st_shared(smem + threadIdx.x * 4, (i32)(blockIdx.x * 1000 + threadIdx.x));
  cluster_sync();
  out[blockIdx.x * 64 + threadIdx.x] = ld_dsmem<i32>(smem + (threadIdx.x ^ 33) * 4, other);
  cluster_arrive();
  cluster_wait();"""
    out = ints(6, 64)
    module = kernel(body, OUT, threads=64, smem_bytes=256, cluster=2)
    launch(module, {"out": out}, (6,), seed)
    block, t = np.arange(6)[:, None], np.arange(64)[None, :]
    np.testing.assert_array_equal(out, (block ^ 1) * 1000 + (t ^ 33))


def test_the_grid_has_three_axes() -> None:
    body = "if (threadIdx.x == 0) out[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] = blockDim.x;"
    out = ints(2, 3, 4)
    launch(kernel(body, OUT), {"out": out}, (4, 3, 2))
    assert (out == 32).all()


STALLS = {
    "__syncthreads": ("if (threadIdx.x < 40) block_sync(); else named_barrier_sync(3, 64);", 64),
    r"bar\.sync 3 \(24 of 64": ("if (threadIdx.x < 24) named_barrier_sync(3, 64);", 64),
    "other lanes in shfl.sync": (
        "if (threadIdx.x < 24) uniform(threadIdx.x); else named_barrier_sync(3, 64);",
        64,
    ),
    r"barrier\.cluster \(32 of 64": (
        "if (threadIdx.x < 32) cluster_sync(); else named_barrier_sync(3, 64);",
        64,
    ),
}


@pytest.mark.parametrize("text", STALLS)
def test_a_stall_says_who_waits_where(text: str) -> None:
    body, threads = STALLS[text]
    with pytest.raises(emulate.EmulationFault, match=f"(?s)deadlock.*{text}"):
        launch(kernel(body, OUT, threads=threads), {"out": ints(1)})


FAULTS = {
    "a warp is divided": "if (lane_id() < 16) uniform(1); else warp_sync();",
    "left the kernel": "if (lane_id() < 16) return; warp_sync();",
    "others are there with a count of 32": "named_barrier_arrive(4, threadIdx.x < 32 ? 32u * (1 + (lane_id() == 31)) : 64);",
    "arrives twice in one round": "named_barrier_arrive(4, 64); named_barrier_arrive(4, 64);",
    "must be a multiple of 32": "named_barrier_sync(4, 40);",
    "barrier 16 does not exist": "named_barrier_sync(16, 64);",
    "arrive twice without a wait": "cluster_arrive(); cluster_arrive();",
    "wait without an arrive": "cluster_wait();",
}


@pytest.mark.parametrize("text", FAULTS)
def test_misuse_is_reported(text: str) -> None:
    with pytest.raises(emulate.EmulationFault, match=text):
        launch(kernel(FAULTS[text], OUT, threads=64), {"out": ints(1)})


def test_a_bad_global_address_is_reported() -> None:
    with pytest.raises(emulate.EmulationFault, match=r"outside every argument(?s:.*)thread 3"):
        launch(kernel("if (threadIdx.x == 3) *(volatile i32*)64 = 1;", OUT), {"out": ints(1)})
    with pytest.raises(
        emulate.EmulationFault,
        match="bytes outside argument out were written, the first at byte 16",
    ):
        launch(kernel("if (threadIdx.x == 3) out[4] = 1;", OUT), {"out": ints(4)})
    gaps = ints(4, 8)[:, :6]
    with pytest.raises(emulate.EmulationFault, match="first at byte 24"):
        launch(kernel("if (threadIdx.x == 3) out[6] = 1;", OUT), {"out": gaps})


def test_an_endless_loop_is_given_up() -> None:
    module = kernel("volatile int go = 1; while (go) {}", OUT)
    with pytest.raises(emulate.EmulationFault, match="ran too long"):
        emulate.run(module, {"out": ints(1)}, (1,), seconds=0.3)
