// watch.cuh - debug builds: named barriers that can be given up, leaving loops together; random delays.
#pragma once
#include "tiledsl/mbarrier.cuh"
#include "tiledsl/regs.cuh"
#include "tiledsl/smem.cuh"
#include "tiledsl/tma.cuh"

namespace tdsl {

#ifdef TDSL_DEBUG
// The named barriers of a block as mbarriers, since bar.sync cannot be given up: one at base + 8 * id, which
// counts warps. A thread takes part in every round of a barrier that it uses. All members: warp.
struct NamedBarriers {
  u32 base, parities;
  TDSL_FN NamedBarriers(u32 first) : base(first), parities(0) {}
  TDSL_FN void arrive(u32 id) {
    warp_sync();
    if (lane_id() == 0) mbarrier_arrive(base + 8 * id);
    parities ^= 1u << id;
  }
  TDSL_FN void sync(u32 id, u32 site) {
    const u32 parity = parities >> id & 1u;
    arrive(id);
    mbarrier_wait(base + 8 * id, parity, id, site);
  }
};

// Whether `threads` threads leave a loop because a wait was given up: all of them or none. vote: 4 bytes of
// shared memory, zero at first; id: a named barrier. Warps.
TDSL_FN bool leave_together(u32 vote, u32 id, u32 threads) {
  if (has_stalled()) st_shared<u32>(vote, 1u);
  named_barrier_sync(id, threads);
  const bool leaves = ld_shared<u32>(vote) != 0;
  named_barrier_sync(id, threads);
  return leaves;
}

// Whether an assertion holds in all threads of the block; if not, the block ends. vote: as above. Block.
TDSL_FN bool all_hold(bool holds, u32 vote, u32 site) {
  if (!holds) {
    st_shared<u32>(vote, 1u);
    note_stall(site, 0, 0, 0);
  }
  block_sync();
  const bool fails = ld_shared<u32>(vote) != 0;
  if (fails) tma_wait_read<0>();           // of tiles before
  block_sync();
  return !fails;
}

// After a stall, lets copies in flight land before the block ends. Thread.
TDSL_FN void settle() {
  if (!has_stalled()) return;
  const u64 start = global_timer();
  while (global_timer() - start < 100000) __nanosleep(1000);
}
#endif

// Delays at random, the same in all lanes of a warp, to widen the windows of races. All members: thread.
struct Jitter {
  u32 state;
  TDSL_FN Jitter(u32 seed) : state((seed * 0x9e3779b9u) ^ ((threadIdx.x >> 5) * 0x85ebca6bu)) {
    state ^= (blockIdx.x + 1) * 0xc2b2ae35u;
  }
  // One time in four up to 2 us, one in 64 up to 16 us.
  TDSL_FN void pause() {
    state = state * 1664525u + 1013904223u;
    if ((state >> 30) == 0) __nanosleep((state >> 26 & 15u) ? state >> 12 & 0x7ffu : state >> 10 & 0x3fffu);
  }
};

}  // namespace tdsl
