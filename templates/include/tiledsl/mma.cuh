// mma.cuh - accumulators: parts of the register array, and sums over the blocks of a cluster.
#pragma once
#include "tiledsl/mbarrier.cuh"
#include "tiledsl/regs.cuh"
#include "tiledsl/smem.cuh"
#include "tiledsl/types.cuh"
#include "tiledsl/wgmma.cuh"

namespace tdsl {

// Registers [R m, R (m + 1)) of an accumulator; `m` constant after unrolling. Thread.
template <int R, class T, int N> TDSL_FN T (&part(T (&acc)[N], int m))[R] {
  static_assert(N % R == 0, "an accumulator has whole parts");
  return *reinterpret_cast<T(*)[R]>(&acc[R * m]);
}

// Arrival on the mbarrier at the same offset in block `cta` of the cluster, default semantics: the slot it frees was
// only read, so nothing has to be published and the costly release.cluster fence is left out. Thread.
// ISA: mbarrier.arrive, mapa.
TDSL_FN void mbarrier_arrive_remote(u32 bar, u32 cta) {
  TDSL_UNLESS_STALLED
  asm volatile("{\n.reg .b32 ra;\nmapa.shared::cluster.u32 ra, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [ra];\n}" ::"r"(bar), "r"(cta) : "memory");
}

// Sums `acc` over the S blocks of a cluster in rank order; true in the block that owns the result of warpgroup
// `index` (block index % S). The others send their part to the owner's `buffer`: for each warpgroup that it owns
// (index / S), (S - 1) senders in rank order x N / 4 x 128 threads x 4 floats. The owner's mbarrier index / S, which
// expects all these bytes once, tells when they are there. Warpgroup. ISA: st.async, mbarrier.try_wait.
template <int S, int N> TDSL_FN bool cluster_reduce(float (&acc)[N], u32 buffer, u32 barriers, u32 index, u32 rank,
                                                        u32 site = 0) {
  static_assert(N % 4 == 0, "four registers a store");
  const u32 owner = index % S, bar = barriers + index / S * 8;
  const u32 own = buffer + index / S * ((S - 1) * N * 512) + thread_in_group() * 16;
  if (owner != rank) {
    const u32 there = own + (rank - (rank > owner)) * (N * 512);
#ifdef TDSL_DEBUG
    if (has_stalled()) return false;
#endif
#pragma unroll
    for (int r = 0; r < N; r += 4)
      st_async_v4(there + r * 512, bar, owner, acc[r], acc[r + 1], acc[r + 2], acc[r + 3]);
    return false;
  }
  mbarrier_wait_cluster(bar, 0, 0, site);
#ifdef TDSL_DEBUG
  if (has_stalled()) return true;
#endif
#pragma unroll
  for (int r = 0; r < N; r += 4) {
    float mine[4] = {acc[r], acc[r + 1], acc[r + 2], acc[r + 3]}, sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (u32 q = 0; q < S; ++q) {
      float part[4] = {mine[0], mine[1], mine[2], mine[3]};
      if (q != rank) ld_shared_v4(own + (q - (q > rank)) * (N * 512) + r * 512, part[0], part[1], part[2], part[3]);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += part[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[r + i] = sum[i];
  }
  return true;
}

}  // namespace tdsl
