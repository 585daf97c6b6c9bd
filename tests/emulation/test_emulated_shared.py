"""Shared memory: matrix load and store by the documented maps, cluster accesses, cp.async, bounds."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulation.harness import kernel
from tests.emulation.harness import launch
from tests.emulation.harness import pointer
from tiledsl import dtypes as dt
from tiledsl import emulate

WORDS = (pointer("out", dt.uint32),)


def words(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint32)


def matrices(count: int) -> np.ndarray:
    """`count` 8x8 matrices, every element another."""
    return np.arange(count * 64, dtype=np.uint16).reshape(count, 8, 8)


@pytest.mark.parametrize("seed", [0, 1])
def test_stmatrix_and_ldmatrix_follow_the_documented_map(seed: int) -> None:
    """Lane l holds elements (l / 4, 2 (l % 4)) and the next one; `.trans` swaps row and column."""
    body = """
  const u32 lane = lane_id(), row = smem + (lane % 8) * 16 + lane / 8 * 128;
  u32 r[4], s[4];
  for (int m = 0; m < 4; ++m) r[m] = (m * 64 + lane / 4 * 8 + lane % 4 * 2) * 65537u + 65536u;
  stmatrix_x4(row, r[0], r[1], r[2], r[3]);
  warp_sync();
  for (int i = 0; i < 4; ++i) out[lane * 4 + i] = ld_shared<u32>(smem + lane * 16 + i * 4);
  ldmatrix_x4_trans(row, s[0], s[1], s[2], s[3]);
  for (int m = 0; m < 4; ++m) out[128 + lane * 4 + m] = s[m];
  warp_sync();
  stmatrix_x2_trans(row, r[0], r[1]);
  warp_sync();
  ldmatrix_x1(row, s[0]);
  out[256 + lane] = s[0];
  ldmatrix_x2(row, s[0], s[1]);
  out[288 + lane] = s[1];
"""
    out = words(320)
    launch(kernel(body, WORDS, smem_bytes=512), {"out": out}, seed=seed)
    all4 = matrices(4)
    np.testing.assert_array_equal(out[:128].view(np.uint16), all4.ravel())
    lane = np.arange(32)
    i, j = lane // 4, lane % 4 * 2
    for m in range(4):
        low, high = all4[m].T[i, j], all4[m].T[i, j + 1]
        np.testing.assert_array_equal(
            out[128:256].reshape(32, 4)[:, m], low + (high.astype(np.uint32) << 16)
        )
    for m, got in enumerate((out[256:288], out[288:320])):
        low, high = all4[m].T[i, j], all4[m].T[i, j + 1]
        np.testing.assert_array_equal(got, low + (high.astype(np.uint32) << 16))


def test_scalars_and_vectors() -> None:
    body = """
  const u32 at = smem + threadIdx.x * 16;
  st_shared_v4(at, threadIdx.x, 1u, 2u, 3u);
  st_shared<u8>(at + 4, 0xab);
  st_shared<u16>(at + 6, 0x1234);
  u32 a, b, c, d;
  ld_shared_v4(at, a, b, c, d);
  out[threadIdx.x * 3] = b, out[threadIdx.x * 3 + 1] = (u32)ld_shared<u64>(at) + (u32)(ld_shared<u64>(at + 8) >> 32);
  ld_shared_v2(at + 8, a, b);
  out[threadIdx.x * 3 + 2] = a * 256 + ld_shared<u8>(at + 4) + 0 * b;"""
    out = words(32, 3)
    launch(kernel(body, WORDS, smem_bytes=512), {"out": out})
    t = np.arange(32)
    want = np.stack([0x123400AB + 0 * t, t + 3, 2 * 256 + 0xAB + 0 * t], 1)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("seed", range(4))
def test_a_block_writes_into_another(seed: int) -> None:
    """st.async brings its bytes to the other block's mbarrier; cluster stores and loads go both ways."""
    body = """
  const u32 rank = cluster_rank(), lane = lane_id();
  if (threadIdx.x == 0) {
    mbarrier_init(smem, 1);
    mbarrier_init_fence();
  }
  cluster_sync();
  if (threadIdx.x == 0) mbarrier_expect_tx(smem, 512);
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
      :: "r"(mapa(smem + 512 + lane * 16, rank ^ 1)), "r"(rank), "r"(lane), "r"(7u), "r"(9u), "r"(mapa(smem, rank ^ 1)) : "memory");
  mbarrier_wait_cluster(smem, 0);
  u32 a, b, c, d;
  ld_shared_v4(smem + 512 + (31 - lane) * 16, a, b, c, d);
  st_dsmem(smem + 128 + lane * 4, rank ^ 1, a * 1000 + b);
  cluster_sync();
  out[blockIdx.x * 32 + lane] = ld_shared<u32>(smem + 128 + lane * 4) + ld_dsmem<u32>(smem + 128 + lane * 4, rank ^ 1);
  cluster_sync();"""
    out = words(2, 32)
    launch(kernel(body, WORDS, smem_bytes=1024, cluster=2), {"out": out}, seed=seed)
    want = 1000 + 2 * (31 - np.arange(32))
    np.testing.assert_array_equal(out, np.stack([want, want]))


@pytest.mark.parametrize("seed", range(4))
def test_cp_async_lands_by_its_wait(seed: int) -> None:
    body = """
  const u32 at = smem + 64 + threadIdx.x * 16;
  if (threadIdx.x == 0) { mbarrier_init(smem, 32); mbarrier_init_fence(); }
  block_sync();
  cp_async<16>(at, x + threadIdx.x * 4);
  cp_async_commit();
  cp_async_zfill<4>(at + 1024, x + threadIdx.x, threadIdx.x % 2);
  cp_async_commit();
  cp_async_wait<1>();
  out[threadIdx.x] = ld_shared<u32>(at + 12);
  mbarrier_arrive_cp_async(smem);
  mbarrier_wait(smem, 0);
  out[32 + threadIdx.x] = ld_shared<u32>(smem + 64 + (threadIdx.x ^ 1) * 16 + 1024);"""
    out, x = words(64), np.arange(128, dtype=np.uint32)
    launch(
        kernel(body, (pointer("x", dt.uint32), *WORDS), smem_bytes=2048),
        {"x": x, "out": out},
        seed=seed,
    )
    t = np.arange(32)
    np.testing.assert_array_equal(out[:32], 4 * t + 3)
    np.testing.assert_array_equal(out[32:], np.where((t ^ 1) % 2, t ^ 1, 0))


FAULTS = {
    r"store out of bounds: smem \+ 512, 4 bytes; the block has 512": "st_shared(smem + 512, 1);",
    r"load out of bounds: smem \+ -4": "ld_shared<u32>(smem - 4);",
    "store of 8 bytes to": "st_shared(smem + 4, 1ull);",
    "ldmatrix: row address": "u32 a; ldmatrix_x1(smem + 8, a);",
    "an address of the own block is needed": "ld_shared<u32>(mapa(smem, 0));",
    "load of smem .* while a copy into it is in flight": "cp_async<4>(smem + lane_id() * 4, out); ld_shared<u32>(smem + lane_id() * 4);",
    "a global access of 16 bytes": "u32 a, b, c, d; ld_global_v4(out + 1, a, b, c, d);",
}


@pytest.mark.parametrize("text", FAULTS)
def test_misuse_is_reported(text: str) -> None:
    with pytest.raises(emulate.EmulationFault, match=text):
        launch(kernel(FAULTS[text], WORDS, smem_bytes=512), {"out": words(64)})


def test_access_to_a_block_that_has_left_is_reported() -> None:
    body = "cluster_sync(); if (cluster_rank() == 0) return; for (int i = 0; i < 9; ++i) __nanosleep(1); ld_dsmem<u32>(smem, 0);"
    with pytest.raises(emulate.EmulationFault, match="block rank 0, which has left the kernel"):
        launch(kernel(body, WORDS, smem_bytes=512, cluster=2), {"out": words(1)})
