"""mbarriers: phases, parities, counts of arrivals and bytes; misuse is reported."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulation.harness import kernel
from tests.emulation.harness import launch
from tests.emulation.harness import pointer
from tiledsl import dtypes as dt
from tiledsl import emulate

OUT = (pointer("out", dt.int32),)
INIT = """
  if (threadIdx.x == 0) {
    mbarrier_init(smem, COUNT);
    mbarrier_init(smem + 8, 1);
    mbarrier_init_fence();
  }
  block_sync();
"""


def probe(body: str, count: int = 1, *, threads: int = 64, cluster: int = 1):
    init = INIT.replace("COUNT", str(count))
    if cluster > 1:
        init = init.replace("block_sync", "cluster_sync")
    return kernel(init + body, OUT, threads=threads, smem_bytes=1024, cluster=cluster)


def ints(*shape: int) -> np.ndarray:
    return np.full(shape, -1, np.int32)


def test_parities_of_a_fresh_and_of_a_used_barrier() -> None:
    body = """
  if (threadIdx.x == 0) {
    for (int phase = 0; phase < 4; ++phase) {
      out[2 * phase] = mbarrier_try_wait(smem, (phase & 1) ^ 1);
      mbarrier_arrive(smem);
      mbarrier_arrive(smem);
      out[2 * phase + 1] = mbarrier_try_wait(smem, phase & 1);
    }
  }"""
    out = ints(8)
    launch(probe(body, 2), {"out": out})
    assert (out == 1).all()


def test_a_try_wait_may_come_back_without_success() -> None:
    """One thread polls a barrier that only its own later arrival completes."""
    body = """
  if (threadIdx.x == 0) {
    out[0] = mbarrier_try_wait(smem, 0);
    mbarrier_arrive(smem);
    out[1] = mbarrier_try_wait(smem, 0);
  }"""
    out = ints(2)
    launch(probe(body), {"out": out})
    assert out.tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(8))
def test_a_ring_of_one_producer_and_one_consumer(seed: int) -> None:
    body = """
  const u32 full = smem + 64, empty = smem + 96, data = smem + 256, lane = lane_id();
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 3; ++i) mbarrier_init(full + 8 * i, 32), mbarrier_init(empty + 8 * i, 1);
    mbarrier_init_fence();
  }
  block_sync();
  Cursor<3> at;
  i32 sum = 0;
  if (warp_id() == 0) {
    for (int n = 0; n < 10; ++n, at.next()) {
      mbarrier_wait(empty + 8 * at.slot, at.parity ^ 1);
      st_shared(data + at.slot * 128 + lane * 4, (i32)(n * n + lane));
      mbarrier_arrive(full + 8 * at.slot);
    }
  } else {
    for (int n = 0; n < 10; ++n, at.next()) {
      mbarrier_wait(full + 8 * at.slot, at.parity);
      sum += ld_shared<i32>(data + at.slot * 128 + (lane ^ 7) * 4);
      warp_sync();
      if (lane == 0) mbarrier_arrive(empty + 8 * at.slot);
    }
    out[lane] = sum;
  }"""
    out = ints(32)
    launch(probe(body), {"out": out}, seed=seed)
    np.testing.assert_array_equal(out, 285 + 10 * (np.arange(32) ^ 7))


@pytest.mark.parametrize("seed", range(4))
def test_arrivals_from_the_other_blocks_of_a_cluster(seed: int) -> None:
    body = """
  if (threadIdx.x < 2) mbarrier_arrive_cluster(smem, threadIdx.x);
  mbarrier_wait_cluster(smem, 0);
  cluster_sync();
  if (threadIdx.x == 0) out[blockIdx.x] = mbarrier_try_wait(smem, 0);"""
    out = ints(2)
    launch(probe(body, 2, cluster=2), {"out": out}, seed=seed)
    assert out.tolist() == [1, 1]


@pytest.mark.parametrize("seed", range(4))
def test_bytes_may_come_before_they_are_expected(seed: int) -> None:
    """A phase completes when arrivals and bytes are both there, in whatever order."""
    params = (pointer("x", dt.int32), *OUT)
    body = (
        INIT.replace("COUNT", "2")
        + """
  if (threadIdx.x == 0) {
    bulk_load(smem + 512, x, 256, smem);
    mbarrier_arrive(smem);
    mbarrier_expect_tx(smem, 256);
  }
  mbarrier_wait(smem, 0);
  out[threadIdx.x] = ld_shared<i32>(smem + 512 + threadIdx.x * 4);"""
    )
    out, x = ints(64), np.arange(64, dtype=np.int32)
    launch(kernel(body, params, threads=64, smem_bytes=1024), {"x": x, "out": out}, seed=seed)
    np.testing.assert_array_equal(out, x)


FAULTS = {
    "counts 1 arrivals and has had them all": "if (threadIdx.x == 0) { mbarrier_expect_tx(smem, 64); mbarrier_arrive(smem); }",
    "no initialised mbarrier": "if (threadIdx.x == 0) mbarrier_arrive(smem + 16);",
    "which is one already": "if (threadIdx.x == 0) mbarrier_init(smem, 1);",
    "a count of 0": "if (threadIdx.x == 0) mbarrier_init(smem + 16, 0);",
    r"its initialisation was not published": (
        "if (threadIdx.x == 0) mbarrier_init(smem + 16, 1); block_sync(); if (threadIdx.x == 33) mbarrier_arrive(smem + 16);"
    ),
    "at most 1048575": "if (threadIdx.x == 0) mbarrier_expect_tx(smem, 1 << 20);",
    "which is an mbarrier": "if (threadIdx.x == 0) st_shared(smem + 8, 1);",
    r"wait for smem \+ 0 .*parity 0 \(phase 0 is open: 1 of 1 arrivals missing, 0 bytes": "mbarrier_wait(smem, 0);",
    "32 bytes missing": "if (threadIdx.x == 0) mbarrier_expect_tx(smem, 32); mbarrier_wait(smem, 0);",
    "mapa to block 1 of a cluster of 1": "mbarrier_arrive_cluster(smem, 1);",
}


@pytest.mark.parametrize("text", FAULTS)
def test_misuse_is_reported(text: str) -> None:
    with pytest.raises(emulate.EmulationFault, match=text):
        launch(probe(FAULTS[text]), {"out": ints(1)})


def test_a_waiter_left_two_phases_behind_is_reported() -> None:
    """The second phase completes before a thread of the first has looked: its wait by parity would hang."""
    body = """
  if (threadIdx.x < 32) mbarrier_wait(smem, 0);
  else if (threadIdx.x == 32) { mbarrier_arrive(smem); mbarrier_arrive(smem); }"""
    with pytest.raises(emulate.EmulationFault, match="a wait by parity would miss it"):
        launch(probe(body), {"out": ints(1)})


def test_the_place_of_a_fault_is_the_kernels_line() -> None:
    body = "// gemm.py:31  acc = tl.dot(a, b)\n  if (threadIdx.x == 5) mbarrier_arrive(smem + 24);"
    with pytest.raises(emulate.EmulationFault) as caught:
        launch(probe(body), {"out": ints(1)})
    text = str(caught.value)
    assert "block 0,0,0 thread 5 (warp 0, lane 5)" in text
    assert (
        "if (threadIdx.x == 5) mbarrier_arrive(smem + 24);  (gemm.py:31: acc = tl.dot(a, b))"
        in text
    )
