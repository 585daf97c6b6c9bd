// tma.cuh - tensor (TMA) and bulk copies. Coordinates are in elements, innermost first, and may be
// outside the tensor: loads fill zeros (and still count the full box), stores and reductions clip.
// All functions: one thread, and the same thread for a commit and its waits.
#pragma once
#include "tiledsl/types.cuh"

namespace tdsl {

// prefetch.tensormap: brings the descriptor into its cache, once per map at kernel start. Thread. ISA: prefetch.
TDSL_FN void tma_prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"((u64)map) : "memory");
}
// createpolicy.fractional.L2: cache policy for the hinted forms; data read once / often / no preference.
// Thread. ISA: createpolicy.
TDSL_FN u64 policy_evict_first() {
  u64 p;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
  return p;
}
TDSL_FN u64 policy_evict_last() {
  u64 p;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(p));
  return p;
}
TDSL_FN u64 policy_evict_normal() {
  u64 p;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(p));
  return p;
}

// ------------------------------------------------------------------ tensor loads
// cp.async.bulk.tensor.{1..5}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes: one box into
// this block's shared memory at `dst` (128-byte aligned); completes on `bar`, whose acquire makes it visible. Thread.
// ISA: cp.async.bulk.tensor.
TDSL_FN void tma_load(u32 dst, const TensorMap* map, u32 bar, i32 c0) {
  asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3}], [%2];"
               ::"r"(dst), "l"((u64)map), "r"(bar), "r"(c0) : "memory");
}
TDSL_FN void tma_load(u32 dst, const TensorMap* map, u32 bar, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4}], [%2];"
               ::"r"(dst), "l"((u64)map), "r"(bar), "r"(c0), "r"(c1) : "memory");
}
TDSL_FN void tma_load(u32 dst, const TensorMap* map, u32 bar, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5}], [%2];"
               ::"r"(dst), "l"((u64)map), "r"(bar), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
TDSL_FN void tma_load(u32 dst, const TensorMap* map, u32 bar, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5, %6}], [%2];"
               ::"r"(dst), "l"((u64)map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
TDSL_FN void tma_load(u32 dst, const TensorMap* map, u32 bar, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
               " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];"
               ::"r"(dst), "l"((u64)map), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// As tma_load with .L2::cache_hint. Thread. ISA: cp.async.bulk.tensor.
TDSL_FN void tma_load_hint(u32 dst, const TensorMap* map, u32 bar, u64 policy, i32 c0) {
  asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
               " [%0], [%1, {%4}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "l"(policy), "r"(c0) : "memory");
}
TDSL_FN void tma_load_hint(u32 dst, const TensorMap* map, u32 bar, u64 policy, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
               " [%0], [%1, {%4, %5}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "l"(policy), "r"(c0), "r"(c1) : "memory");
}
TDSL_FN void tma_load_hint(u32 dst, const TensorMap* map, u32 bar, u64 policy, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
               " [%0], [%1, {%4, %5, %6}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "l"(policy), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
TDSL_FN void tma_load_hint(u32 dst, const TensorMap* map, u32 bar, u64 policy,
                           i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
               " [%0], [%1, {%4, %5, %6, %7}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "l"(policy),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
TDSL_FN void tma_load_hint(u32 dst, const TensorMap* map, u32 bar, u64 policy,
                           i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
               " [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "l"(policy),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// As tma_load with .multicast::cluster: the box and its bytes reach the same offsets of `dst` and
// `bar` in every block of `mask`; each of them expects the bytes itself. Thread. ISA: cp.async.bulk.tensor.
TDSL_FN void tma_load_multicast(u32 dst, const TensorMap* map, u32 bar, u16 mask, i32 c0) {
  asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%4}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask), "r"(c0) : "memory");
}
TDSL_FN void tma_load_multicast(u32 dst, const TensorMap* map, u32 bar, u16 mask, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%4, %5}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask), "r"(c0), "r"(c1) : "memory");
}
TDSL_FN void tma_load_multicast(u32 dst, const TensorMap* map, u32 bar, u16 mask, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%4, %5, %6}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
TDSL_FN void tma_load_multicast(u32 dst, const TensorMap* map, u32 bar, u16 mask,
                                i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%4, %5, %6, %7}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
TDSL_FN void tma_load_multicast(u32 dst, const TensorMap* map, u32 bar, u16 mask,
                                i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1, {%4, %5, %6, %7, %8}], [%2], %3;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// As tma_load_multicast with .L2::cache_hint. Thread. ISA: cp.async.bulk.tensor.
TDSL_FN void tma_load_multicast_hint(u32 dst, const TensorMap* map, u32 bar, u16 mask, u64 policy, i32 c0) {
  asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
               " [%0], [%1, {%5}], [%2], %3, %4;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask), "l"(policy), "r"(c0) : "memory");
}
TDSL_FN void tma_load_multicast_hint(u32 dst, const TensorMap* map, u32 bar, u16 mask, u64 policy,
                                     i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
               " [%0], [%1, {%5, %6}], [%2], %3, %4;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask), "l"(policy), "r"(c0), "r"(c1) : "memory");
}
TDSL_FN void tma_load_multicast_hint(u32 dst, const TensorMap* map, u32 bar, u16 mask, u64 policy,
                                     i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
               " [%0], [%1, {%5, %6, %7}], [%2], %3, %4;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask), "l"(policy),
                 "r"(c0), "r"(c1), "r"(c2) : "memory");
}
TDSL_FN void tma_load_multicast_hint(u32 dst, const TensorMap* map, u32 bar, u16 mask, u64 policy,
                                     i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
               " [%0], [%1, {%5, %6, %7, %8}], [%2], %3, %4;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask), "l"(policy),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
TDSL_FN void tma_load_multicast_hint(u32 dst, const TensorMap* map, u32 bar, u16 mask, u64 policy,
                                     i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile"
               ".mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
               " [%0], [%1, {%5, %6, %7, %8, %9}], [%2], %3, %4;"
               ::"r"(dst), "l"((u64)map), "r"(bar), "h"(mask), "l"(policy),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// cp.async.bulk.prefetch.tensor.{1..5}d.L2.global.tile: one box into the L2 cache. Thread.
// ISA: cp.async.bulk.prefetch.tensor.
TDSL_FN void tma_prefetch(const TensorMap* map, i32 c0) {
  asm volatile("cp.async.bulk.prefetch.tensor.1d.L2.global.tile"
               " [%0, {%1}];"
               ::"l"((u64)map), "r"(c0) : "memory");
}
TDSL_FN void tma_prefetch(const TensorMap* map, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile"
               " [%0, {%1, %2}];"
               ::"l"((u64)map), "r"(c0), "r"(c1) : "memory");
}
TDSL_FN void tma_prefetch(const TensorMap* map, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.tile"
               " [%0, {%1, %2, %3}];"
               ::"l"((u64)map), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
TDSL_FN void tma_prefetch(const TensorMap* map, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile"
               " [%0, {%1, %2, %3, %4}];"
               ::"l"((u64)map), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
TDSL_FN void tma_prefetch(const TensorMap* map, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global.tile"
               " [%0, {%1, %2, %3, %4, %5}];"
               ::"l"((u64)map), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// ------------------------------------------------------------------ tensor stores
// cp.async.bulk.tensor.{1..5}d.global.shared::cta.tile.bulk_group: one box from shared memory. The
// writers of `src` did fence_async_smem and a barrier before. Thread. ISA: cp.async.bulk.tensor.
TDSL_FN void tma_store(const TensorMap* map, u32 src, i32 c0) {
  asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group"
               " [%0, {%2}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0) : "memory");
}
TDSL_FN void tma_store(const TensorMap* map, u32 src, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
               " [%0, {%2, %3}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0), "r"(c1) : "memory");
}
TDSL_FN void tma_store(const TensorMap* map, u32 src, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group"
               " [%0, {%2, %3, %4}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
TDSL_FN void tma_store(const TensorMap* map, u32 src, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group"
               " [%0, {%2, %3, %4, %5}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
TDSL_FN void tma_store(const TensorMap* map, u32 src, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group"
               " [%0, {%2, %3, %4, %5, %6}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// The first `rows` of the ROWS lines of 128 bytes of a box, but those before the tensor: whole, or in boxes
// of 8 lines and of 1 line, whose lines run along coordinate 1. Thread.
template <int ROWS, typename... Outer>
TDSL_FN void tma_store_rows(int rows, const TensorMap* map, const TensorMap* eight, const TensorMap* one,
                            u32 src, i32 c0, i32 c1, Outer... outer) {
  if (rows >= ROWS && c1 >= 0) {
    tma_store(map, src, c0, c1, outer...);
    return;
  }
  rows = rows < ROWS ? rows : ROWS;
  int at = c1 < 0 ? -c1 : 0;  // a store that starts before its tensor is an illegal instruction
  for (; at < rows && at % 8; ++at) tma_store(one, src + at * 128u, c0, c1 + at, outer...);
  for (; at + 8 <= rows; at += 8) tma_store(eight, src + at * 128u, c0, c1 + at, outer...);
  for (; at < rows; ++at) tma_store(one, src + at * 128u, c0, c1 + at, outer...);
}

// As tma_store with .L2::cache_hint. Thread. ISA: cp.async.bulk.tensor.
TDSL_FN void tma_store_hint(const TensorMap* map, u32 src, u64 policy, i32 c0) {
  asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group.L2::cache_hint"
               " [%0, {%3}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy), "r"(c0) : "memory");
}
TDSL_FN void tma_store_hint(const TensorMap* map, u32 src, u64 policy, i32 c0, i32 c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint"
               " [%0, {%3, %4}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy), "r"(c0), "r"(c1) : "memory");
}
TDSL_FN void tma_store_hint(const TensorMap* map, u32 src, u64 policy, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group.L2::cache_hint"
               " [%0, {%3, %4, %5}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
TDSL_FN void tma_store_hint(const TensorMap* map, u32 src, u64 policy, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group.L2::cache_hint"
               " [%0, {%3, %4, %5, %6}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
TDSL_FN void tma_store_hint(const TensorMap* map, u32 src, u64 policy,
                            i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group.L2::cache_hint"
               " [%0, {%3, %4, %5, %6, %7}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// cp.reduce.async.bulk.tensor.{1..5}d.global.shared::cta.add.tile.bulk_group: adds a box to global
// memory, each element atomically (relaxed.gpu), in the map's type. Thread. ISA: cp.reduce.async.bulk.tensor.
TDSL_FN void tma_reduce_add(const TensorMap* map, u32 src, i32 c0) {
  asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group"
               " [%0, {%2}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0) : "memory");
}
TDSL_FN void tma_reduce_add(const TensorMap* map, u32 src, i32 c0, i32 c1) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
               " [%0, {%2, %3}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0), "r"(c1) : "memory");
}
TDSL_FN void tma_reduce_add(const TensorMap* map, u32 src, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group"
               " [%0, {%2, %3, %4}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
TDSL_FN void tma_reduce_add(const TensorMap* map, u32 src, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group"
               " [%0, {%2, %3, %4, %5}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
TDSL_FN void tma_reduce_add(const TensorMap* map, u32 src, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group"
               " [%0, {%2, %3, %4, %5, %6}], [%1];"
               ::"l"((u64)map), "r"(src), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// As tma_reduce_add with .L2::cache_hint. Thread. ISA: cp.reduce.async.bulk.tensor.
TDSL_FN void tma_reduce_add_hint(const TensorMap* map, u32 src, u64 policy, i32 c0) {
  asm volatile("cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group.L2::cache_hint"
               " [%0, {%3}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy), "r"(c0) : "memory");
}
TDSL_FN void tma_reduce_add_hint(const TensorMap* map, u32 src, u64 policy, i32 c0, i32 c1) {
  asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group.L2::cache_hint"
               " [%0, {%3, %4}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy), "r"(c0), "r"(c1) : "memory");
}
TDSL_FN void tma_reduce_add_hint(const TensorMap* map, u32 src, u64 policy, i32 c0, i32 c1, i32 c2) {
  asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group.L2::cache_hint"
               " [%0, {%3, %4, %5}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy), "r"(c0), "r"(c1), "r"(c2) : "memory");
}
TDSL_FN void tma_reduce_add_hint(const TensorMap* map, u32 src, u64 policy, i32 c0, i32 c1, i32 c2, i32 c3) {
  asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group.L2::cache_hint"
               " [%0, {%3, %4, %5, %6}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
TDSL_FN void tma_reduce_add_hint(const TensorMap* map, u32 src, u64 policy,
                                 i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  asm volatile("cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group.L2::cache_hint"
               " [%0, {%3, %4, %5, %6, %7}], [%1], %2;"
               ::"l"((u64)map), "r"(src), "l"(policy),
                 "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4) : "memory");
}

// cp.async.bulk.commit_group: closes this thread's group of stores and reductions. Thread.
// ISA: cp.async.bulk.commit_group.
TDSL_FN void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// cp.async.bulk.wait_group.read N: at most N groups still read shared memory, so it may be overwritten.
// Thread. ISA: cp.async.bulk.wait_group.
template <int N> TDSL_FN void tma_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory"); }
// cp.async.bulk.wait_group N: all but N groups are complete, writes visible to this thread. Thread.
// ISA: cp.async.bulk.wait_group.
template <int N> TDSL_FN void tma_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory"); }

// ------------------------------------------------------------------ one-dimensional bulk copies
// Addresses and sizes are multiples of 16 bytes.

// cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes. Thread. ISA: cp.async.bulk.
TDSL_FN void bulk_load(u32 dst, const void* src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}
// As bulk_load with .L2::cache_hint. Thread. ISA: cp.async.bulk.
TDSL_FN void bulk_load_hint(u32 dst, const void* src, u32 bytes, u32 bar, u64 policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
               " [%0], [%1], %2, [%3], %4;"
               ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(policy) : "memory");
}
// As bulk_load with .multicast::cluster, to every block of `mask`. Thread. ISA: cp.async.bulk.
TDSL_FN void bulk_load_multicast(u32 dst, const void* src, u32 bytes, u32 bar, u16 mask) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
               " [%0], [%1], %2, [%3], %4;"
               ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "h"(mask) : "memory");
}
// cp.async.bulk.shared::cluster.shared::cta: pushes shared memory to another block; `dst` and `bar` are
// cluster addresses (mapa) of that block. Thread. ISA: cp.async.bulk.
TDSL_FN void bulk_push(u32 dst, u32 src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(dst), "r"(src), "r"(bytes), "r"(bar) : "memory");
}
// cp.async.bulk.global.shared::cta.bulk_group; commit and wait as tma_store. Thread. ISA: cp.async.bulk.
TDSL_FN void bulk_store(void* dst, u32 src, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
// cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{f32,f64,u32,s32,u64,noftz.f16,noftz.bf16}: adds
// each element atomically (relaxed.gpu). Thread. ISA: cp.reduce.async.bulk.
TDSL_FN void bulk_reduce_add(float* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
               ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
TDSL_FN void bulk_reduce_add(double* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f64 [%0], [%1], %2;"
               ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
TDSL_FN void bulk_reduce_add(u32* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;"
               ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
TDSL_FN void bulk_reduce_add(i32* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;"
               ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
TDSL_FN void bulk_reduce_add(u64* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u64 [%0], [%1], %2;"
               ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
TDSL_FN void bulk_reduce_add(f16* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%0], [%1], %2;"
               ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
TDSL_FN void bulk_reduce_add(bf16* dst, u32 src, u32 bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;"
               ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}
// As bulk_reduce_add for float, with .L2::cache_hint. Thread. ISA: cp.reduce.async.bulk.
TDSL_FN void bulk_reduce_add_hint(float* dst, u32 src, u32 bytes, u64 policy) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%0], [%1], %2, %3;"
               ::"l"(dst), "r"(src), "r"(bytes), "l"(policy) : "memory");
}
// cp.async.bulk.prefetch.L2.global. Thread. ISA: cp.async.bulk.prefetch.
TDSL_FN void bulk_prefetch(const void* src, u32 bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory");
}

}  // namespace tdsl
