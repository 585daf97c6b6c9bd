// debug.cuh - debug builds: what a wait that is given up leaves for the host.
#pragma once
#include "tiledsl/types.cuh"

#ifdef TDSL_DEBUG
namespace tdsl {

// A wait that was given up. site: its number in the host's table, 0: none; count: ring steps before it.
struct StallRecord { u32 site, parity, count, waited_us; };
// What one launch leaves. stalled: 1 + the index of the first block of the cluster of the thread that gave up
// first, 0: all is well; warp: 32 * rank + warp of that thread; records: of the warps of that cluster. The host sets
// budget_us, the longest wait.
struct StallState {
  u32 stalled, warp, budget_us, unused;
  StallRecord records[8 * 32];
};

}  // namespace tdsl

__device__ tdsl::StallState tdsl_stall = {0, 0, 2000000, 0};

namespace tdsl {

// Whether a wait of this launch was given up: then all are, no copy is issued, and nobody arrives. Thread.
TDSL_FN bool has_stalled() { return *(volatile u32*)&tdsl_stall.stalled != 0; }
// mov %globaltimer: nanoseconds. Thread. ISA: Special Registers.
TDSL_FN u64 global_timer() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}
// Tells the host of a wait that is given up, and everybody else to give up. Thread.
TDSL_FN void note_stall(u32 site, u32 parity, u32 count, u64 waited_ns) {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const u32 block = 1 + blockIdx.x - rank + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const u32 warp = (rank & 7u) * 32u + (threadIdx.x >> 5);
  const u32 first = atomicCAS(&tdsl_stall.stalled, 0u, block);
  if (first == 0) tdsl_stall.warp = warp;
  if (first != 0 && first != block) return;
  StallRecord& record = tdsl_stall.records[warp];
  record.parity = parity;
  record.count = count;
  record.waited_us = (u32)(waited_ns / 1000);
  record.site = site;
}

// How long one wait has lasted. All members: thread.
struct Patience {
  u64 start;
  TDSL_FN Patience() : start(0) {}
  // Whether the wait is given up. Asked before every look at the barrier; never traps.
  TDSL_FN bool is_over(u32 site, u32 parity, u32 count) {
    const u64 now = global_timer();
    if (start == 0) {
      start = now;
      return has_stalled();
    }
    const bool ends = has_stalled();
    if (!ends && now - start <= 1000ull * *(volatile u32*)&tdsl_stall.budget_us) return false;
    note_stall(site, parity, count, now - start);
    return true;
  }
};

}  // namespace tdsl
#endif
