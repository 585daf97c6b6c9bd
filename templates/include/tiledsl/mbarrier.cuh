// mbarrier.cuh - mbarriers by shared-memory address, ring cursors, named and cluster barriers.
#pragma once
#include "tiledsl/debug.cuh"
#include "tiledsl/types.cuh"

// In a debug build nobody arrives once a wait was given up.
#ifdef TDSL_DEBUG
#define TDSL_UNLESS_STALLED if (has_stalled()) return;
#else
#define TDSL_UNLESS_STALLED
#endif

namespace tdsl {

// ------------------------------------------------------------------ mbarrier
// mbarrier.init.shared::cta.b64: `count` arrivals complete a phase. Thread. ISA: mbarrier.init.
TDSL_FN void mbarrier_init(u32 bar, u32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
// fence.mbarrier_init.release.cluster: after the inits, before the block or cluster barrier that
// publishes them. Thread that initialised. ISA: membar/fence.
TDSL_FN void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// mbarrier.inval.shared::cta.b64: the memory may be reused afterwards. Thread. ISA: mbarrier.inval.
TDSL_FN void mbarrier_inval(u32 bar) { asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }
// mbarrier.arrive.expect_tx: one arrival, and `bytes` more to come; release.cta. Thread. ISA: mbarrier.arrive.
TDSL_FN void mbarrier_expect_tx(u32 bar, u32 bytes) {
  TDSL_UNLESS_STALLED
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// mbarrier.expect_tx.relaxed.cta: `bytes` more to come, no arrival. Thread. ISA: mbarrier.expect_tx.
TDSL_FN void mbarrier_expect_tx_only(u32 bar, u32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
// mbarrier.arrive.shared::cta.b64: one arrival; release.cta. Thread. ISA: mbarrier.arrive.
TDSL_FN void mbarrier_arrive(u32 bar) {
  TDSL_UNLESS_STALLED
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
// mapa + mbarrier.arrive.release.cluster.shared::cluster: one arrival on the barrier at the same offset
// in block `cta` of the cluster (the own rank is allowed). Thread. ISA: mbarrier.arrive, mapa.
TDSL_FN void mbarrier_arrive_cluster(u32 bar, u32 cta) {
  TDSL_UNLESS_STALLED
  asm volatile("{\n.reg .b32 ra;\nmapa.shared::cluster.u32 ra, %0, %1;\n"
               "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [ra];\n}" ::"r"(bar), "r"(cta) : "memory");
}
// cp.async.mbarrier.arrive.noinc: arrives once the thread's earlier cp.async have landed. Thread.
// ISA: cp.async.mbarrier.arrive.
TDSL_FN void mbarrier_arrive_cp_async(u32 bar) {
  TDSL_UNLESS_STALLED
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
// mbarrier.try_wait.parity: has the phase of this parity completed? May suspend a bounded time;
// acquire.cta when true. Thread or converged warp. ISA: mbarrier.try_wait.
TDSL_FN bool mbarrier_try_wait(u32 bar, u32 parity) {
  u32 ok;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  return ok != 0;
}
// As mbarrier_try_wait with acquire.cluster: after arrivals from other blocks that publish data of theirs.
TDSL_FN bool mbarrier_try_wait_cluster(u32 bar, u32 parity) {
  u32 ok;
  asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
               "selp.u32 %0, 1, 0, p;\n}" : "=r"(ok) : "r"(bar), "r"(parity) : "memory");
  return ok != 0;
}

// Loops on mbarrier_try_wait until the phase of this parity has completed; acquire.cta. A fresh barrier
// passes parity 1 at once. A debug build gives up in the end: site, count say where it stood. Thread or
// converged warp. ISA: mbarrier.try_wait.
TDSL_FN void mbarrier_wait(u32 bar, u32 parity, u32 count = 0, u32 site = 0) {
#ifdef TDSL_DEBUG
  Patience patience;
  while (!patience.is_over(site, parity, count) && !mbarrier_try_wait(bar, parity)) {}
#else
  while (!mbarrier_try_wait(bar, parity)) {}
#endif
}
// As mbarrier_wait, acquire.cluster.
TDSL_FN void mbarrier_wait_cluster(u32 bar, u32 parity, u32 count = 0, u32 site = 0) {
#ifdef TDSL_DEBUG
  Patience patience;
  while (!patience.is_over(site, parity, count) && !mbarrier_try_wait_cluster(bar, parity)) {}
#else
  while (!mbarrier_try_wait_cluster(bar, parity)) {}
#endif
}

// Position of one role in a ring of D slots: slot = n % D and parity = (n / D) & 1 after n steps. A
// consumer waits with `parity`, a producer waits for free slots with `parity ^ 1`.
template <int D> struct Cursor {
  u32 slot, parity;
#ifdef TDSL_DEBUG
  u32 count = 0;                           // n
#endif
  TDSL_FN Cursor() : slot(0), parity(0) {}
  // One step on. Thread.
  TDSL_FN void next() {
#ifdef TDSL_DEBUG
    ++count;
#endif
    if constexpr (D == 1) {
      parity ^= 1u;
    } else if constexpr (D == 2) {
      slot ^= 1u;
      parity ^= slot ^ 1u;
    } else if (++slot == D) {
      slot = 0;
      parity ^= 1u;
    }
  }
  // n steps on. Thread.
  TDSL_FN void skip(u32 n) {
#ifdef TDSL_DEBUG
    count += n;
#endif
    const u32 s = slot + n;
    parity ^= (s / D) & 1u;
    slot = s % D;
  }
};

// ------------------------------------------------------------------ named barriers
// bar.sync id, threads: waits until `threads` (a multiple of 32) have arrived or synced; orders memory
// among them. Warp. Id 0 is block_sync. ISA: bar, barrier.
TDSL_FN void named_barrier_sync(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// bar.arrive id, threads: counts the warp and goes on; releases its earlier accesses. Warp. ISA: bar, barrier.
TDSL_FN void named_barrier_arrive(u32 id, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The thread stands still for so many clocks; it orders nothing. A sleep lasts up to the next power of two of
// nanoseconds, so that only short ones go by the clock. Thread. ISA: nanosleep, mov %clock64.
TDSL_FN void pause_thread(u32 clocks) {
  const u64 start = (u64)clock64();
  while ((u64)clock64() - start < clocks) __nanosleep(256);
}

// ------------------------------------------------------------------ cluster
// mov %cluster_ctarank: rank of this block in its cluster. Thread. ISA: Special Registers.
TDSL_FN u32 cluster_rank() {
  u32 r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// mov %cluster_nctarank: blocks in the cluster. Thread. ISA: Special Registers.
TDSL_FN u32 cluster_size() {
  u32 r;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(r));
  return r;
}
// barrier.cluster.arrive.release.aligned. All threads of the cluster, warps converged. ISA: barrier.cluster.
TDSL_FN void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// barrier.cluster.arrive.relaxed.aligned: no memory order. Warps converged. ISA: barrier.cluster.
TDSL_FN void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
// barrier.cluster.wait.acquire.aligned. All threads of the cluster, warps converged. ISA: barrier.cluster.
TDSL_FN void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// barrier.cluster arrive.release + wait.acquire, unaligned form: also valid after divergent code.
// All threads of the cluster. ISA: barrier.cluster.
TDSL_FN void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

}  // namespace tdsl
