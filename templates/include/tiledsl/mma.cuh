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
  asm volatile("{\n.reg .b32 ra;\nmapa.shared::cluster.u32 ra, %0, %1;\n"
               "mbarrier.arrive.shared::cluster.b64 _, [ra];\n}" ::"r"(bar), "r"(cta) : "memory");
}

// Sums `acc` over the S blocks of a cluster in rank order; true in the block that owns the result of warpgroup
// `index` (block index % S). `buffer` holds what this block receives: for each warpgroup that it owns (index / S),
// (S - 1) senders in rank order x N registers x 128 threads, 4 bytes each. All threads of the cluster take part in
// the cluster barrier inside. Warpgroup. ISA: st.shared::cluster, barrier.cluster.
template <int S, int N> TDSL_FN bool cluster_reduce(float (&acc)[N], u32 buffer, u32 index, u32 rank) {
  const u32 owner = index % S;
  const u32 own = buffer + (index / S * (S - 1) * N * 128 + thread_in_group()) * 4;
  if (owner != rank) {
    const u32 there = own + (rank - (rank > owner)) * (N * 512);
#pragma unroll
    for (int r = 0; r < N; ++r) st_dsmem(there + r * 512, owner, acc[r]);
  }
  cluster_sync();
  if (owner != rank) return false;
#pragma unroll
  for (int r = 0; r < N; ++r) {
    float sum = 0.0f;
#pragma unroll
    for (u32 q = 0; q < S; ++q) {
      const u32 slot = q - (q > rank);
      const float v = q == rank ? acc[r] : ld_shared<float>(own + slot * (N * 512) + r * 512);
      sum = q ? sum + v : v;
    }
    acc[r] = sum;
  }
  return true;
}

}  // namespace tdsl
