// wgmma.cuh - shared-memory matrix descriptors and the ordering of warpgroup matrix multiply.
// The multiply itself is generated once per shape into the kernel's prelude.
#pragma once
#include "tiledsl/types.cuh"

namespace tdsl {

// Descriptor from its fields; SWIZZLE is 128, 64 or 32 bytes. `addr` must be warp-uniform and a multiple
// of 16; every swizzle atom (8 rows of SWIZZLE bytes) starts at a multiple of its size.
// Thread. ISA: Asynchronous Warpgroup Level Matrix Instructions: Matrix Descriptor Format.
template <int SWIZZLE> TDSL_FN u64 smem_desc(u32 addr, u32 leading_bytes, u32 stride_bytes) {
  static_assert(SWIZZLE == 128 || SWIZZLE == 64 || SWIZZLE == 32, "swizzle of 32, 64 or 128 bytes");
  constexpr u64 mode = SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3;
  return mode << 62 | (u64)(stride_bytes >> 4) << 32 | (u64)(leading_bytes >> 4) << 16 |
         (u64)((addr & 0x3ffffu) >> 4);
}
// K-major operand: rows of SWIZZLE bytes along K, packed; 8-row atoms follow each other. The next K step
// inside a row is 32 bytes on. Thread. ISA: Strides, Matrix Descriptor Format.
template <int SWIZZLE = 128> TDSL_FN u64 smem_desc_k(u32 addr) {
  return smem_desc<SWIZZLE>(addr, 16, 8 * SWIZZLE);
}
// MN-major operand of a 16-bit type: chunks SWIZZLE bytes wide along M or N, one row per K, packed;
// `chunk_bytes` from one chunk to the next (unused when the operand is one chunk wide). The next K step
// (16 rows) is 16 * SWIZZLE bytes on. Thread. ISA: Strides, Matrix Descriptor Format.
template <int SWIZZLE = 128> TDSL_FN u64 smem_desc_mn(u32 addr, u32 chunk_bytes) {
  return smem_desc<SWIZZLE>(addr, chunk_bytes, 8 * SWIZZLE);
}
// The descriptor `bytes` (a multiple of 16) further on; cannot carry out of the address field. Thread.
TDSL_FN u64 smem_desc_add(u64 desc, u32 bytes) { return desc + (bytes >> 4); }

// wgmma.fence.sync.aligned: before the first wgmma, and whenever accumulator or A registers were touched.
// Warpgroup. ISA: wgmma.fence.
TDSL_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// wgmma.commit_group.sync.aligned: closes the group of the wgmma issued so far. Warpgroup. ISA: wgmma.commit_group.
TDSL_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// wgmma.wait_group.sync.aligned N: until at most N groups are pending; only then may their accumulators
// be read and their operands overwritten. Warpgroup. ISA: wgmma.wait_group.
template <int N> TDSL_FN void wgmma_wait() {
  static_assert(N >= 0 && N <= 7, "at most 7 groups pending");
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keeps the computation of x above the next wgmma.wait_group, which ptxas would move it across: a store of x to
// `scratch` if it is huge (a test for a sign or NaN may be proved false and dropped). Thread.
template <int N> TDSL_FN void pin(const float (&x)[N], u32 scratch) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    asm volatile("{\n.reg .pred p;\nsetp.gt.f32 p, %0, 0f7F000000;\n@p st.shared.f32 [%1], %0;\n}" ::"f"(x[i]),
                 "r"(scratch)
                 : "memory");
}

}  // namespace tdsl
