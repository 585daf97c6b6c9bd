// smem.cuh - shared, distributed shared and global memory accesses, matrix load and store, cp.async.
// Shared memory is named by 32-bit addresses of the shared window. T is a type of 1, 2, 4 or 8 bytes;
// the vector forms take T of 4 bytes. All accesses are weak (no order) unless stated.
#pragma once
#include "tiledsl/math.cuh"
#include "tiledsl/reduce.cuh"
#include "tiledsl/regs.cuh"
#include "tiledsl/types.cuh"

namespace tdsl {

// cvta.to.shared: address of a __shared__ object in the shared window. Thread. ISA: cvta.
TDSL_FN u32 smem_addr(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// ------------------------------------------------------------------ matrix load and store
// stmatrix.sync.aligned.m8n8.x{1,2,4}.shared.b16: lanes 8 i .. 8 i + 7 give the row addresses of matrix i
// (16-byte rows); register i is this lane's pair of matrix i. Warp, converged. ISA: stmatrix.
TDSL_FN void stmatrix_x1(u32 addr, u32 a) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(addr), "r"(a) : "memory");
}
TDSL_FN void stmatrix_x2(u32 addr, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(addr), "r"(a), "r"(b) : "memory");
}
TDSL_FN void stmatrix_x4(u32 addr, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// stmatrix .trans: each 8x8 matrix is stored transposed. Warp, converged. ISA: stmatrix.
TDSL_FN void stmatrix_x1_trans(u32 addr, u32 a) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(addr), "r"(a) : "memory");
}
TDSL_FN void stmatrix_x2_trans(u32 addr, u32 a, u32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
               ::"r"(addr), "r"(a), "r"(b) : "memory");
}
TDSL_FN void stmatrix_x4_trans(u32 addr, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// ldmatrix.sync.aligned.m8n8.x{1,2,4}.shared.b16: the reverse of stmatrix. Warp, converged. ISA: ldmatrix.
TDSL_FN void ldmatrix_x1(u32 addr, u32& a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(addr) : "memory");
}
TDSL_FN void ldmatrix_x2(u32 addr, u32& a, u32& b) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(addr) : "memory");
}
TDSL_FN void ldmatrix_x4(u32 addr, u32& a, u32& b, u32& c, u32& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(addr) : "memory");
}
// ldmatrix .trans: each 8x8 matrix is loaded transposed. Warp, converged. ISA: ldmatrix.
TDSL_FN void ldmatrix_x1_trans(u32 addr, u32& a) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];" : "=r"(a) : "r"(addr) : "memory");
}
TDSL_FN void ldmatrix_x2_trans(u32 addr, u32& a, u32& b) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(a), "=r"(b) : "r"(addr) : "memory");
}
TDSL_FN void ldmatrix_x4_trans(u32 addr, u32& a, u32& b, u32& c, u32& d) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(addr) : "memory");
}

// ------------------------------------------------------------------ shared memory
// ld.shared.b{8,16,32,64}. Thread. ISA: ld.
template <class T> TDSL_FN T ld_shared(u32 addr) {
  if constexpr (sizeof(T) == 1) {
    u32 r;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(r) : "r"(addr) : "memory");
    return bits_as<T>((u8)r);
  } else if constexpr (sizeof(T) == 2) {
    u16 r;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(r) : "r"(addr) : "memory");
    return bits_as<T>(r);
  } else if constexpr (sizeof(T) == 4) {
    u32 r;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(r) : "r"(addr) : "memory");
    return bits_as<T>(r);
  } else {
    u64 r;
    asm volatile("ld.shared.b64 %0, [%1];" : "=l"(r) : "r"(addr) : "memory");
    return bits_as<T>(r);
  }
}
// st.shared.b{8,16,32,64}. Thread. ISA: st.
template <class T> TDSL_FN void st_shared(u32 addr, T v) {
  if constexpr (sizeof(T) == 1) {
    asm volatile("st.shared.u8 [%0], %1;" ::"r"(addr), "r"((u32)bits_as<u8>(v)) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(addr), "h"(bits_as<u16>(v)) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(addr), "r"(bits_as<u32>(v)) : "memory");
  } else {
    asm volatile("st.shared.b64 [%0], %1;" ::"r"(addr), "l"(bits_as<u64>(v)) : "memory");
  }
}
// ld.shared.v2.b32 (8 bytes, aligned to 8) and .v4.b32 (16 bytes, aligned to 16). Thread. ISA: ld.
template <class T> TDSL_FN void ld_shared_v2(u32 addr, T& a, T& b) {
  u32 r0, r1;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(r0), "=r"(r1) : "r"(addr) : "memory");
  a = bits_as<T>(r0), b = bits_as<T>(r1);
}
template <class T> TDSL_FN void ld_shared_v4(u32 addr, T& a, T& b, T& c, T& d) {
  u32 r0, r1, r2, r3;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(addr) : "memory");
  a = bits_as<T>(r0), b = bits_as<T>(r1), c = bits_as<T>(r2), d = bits_as<T>(r3);
}
// st.shared.v2.b32 and .v4.b32. Thread. ISA: st.
template <class T> TDSL_FN void st_shared_v2(u32 addr, T a, T b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(addr), "r"(bits_as<u32>(a)), "r"(bits_as<u32>(b)) : "memory");
}
template <class T> TDSL_FN void st_shared_v4(u32 addr, T a, T b, T c, T d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(bits_as<u32>(a)), "r"(bits_as<u32>(b)),
               "r"(bits_as<u32>(c)), "r"(bits_as<u32>(d)) : "memory");
}

// As floats: an array that NVVM finds read as words is one of words, and accumulators are then moved between a wgmma
// and its wait (C7517).
TDSL_FN void st_floats(u32 addr, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(addr), "f"(a), "f"(b) : "memory");
}
TDSL_FN void st_floats(u32 addr, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// Four i32 of a slot, the same in every thread: one load, so that whoever has one of them has them all. The compiler
// is told that those of the mask UNIFORM are equal in the warp; a mere shuffle that only a shift follows does not tell
// ptxas (13.5). Not negative, or SIGNED: those pass a maximum over the warp. Warp, converged.
struct Scalars { i32 a, b, c, d; };
template <int UNIFORM, bool SIGNED = false> TDSL_FN Scalars read_scalars(u32 addr) {
  Scalars x;
  ld_shared_v4<i32>(addr, x.a, x.b, x.c, x.d);
  if constexpr (SIGNED) {
    if constexpr (UNIFORM & 1) x.a = warp_max(x.a);
    if constexpr (UNIFORM & 2) x.b = warp_max(x.b);
    if constexpr (UNIFORM & 4) x.c = warp_max(x.c);
    if constexpr (UNIFORM & 8) x.d = warp_max(x.d);
    return x;
  }
  if constexpr (UNIFORM & 1) x.a = uniform(x.a);
  if constexpr (UNIFORM & 2) x.b = max_num(uniform(x.b), 0);
  if constexpr (UNIFORM & 4) x.c = max_num(uniform(x.c), 0);
  if constexpr (UNIFORM & 8) x.d = max_num(uniform(x.d), 0);
  return x;
}

// Zeros from line `first` on in BOXES boxes of LINES lines of 128 bytes each. Warpgroup.
template <int BOXES, int LINES> TDSL_FN void clear_lines(u32 addr, int first) {
#pragma unroll 1
  for (u32 i = 8 * (u32)first + (threadIdx.x & 127u); i < 8 * LINES; i += 128) {
#pragma unroll
    for (int box = 0; box < BOXES; ++box) st_shared_v4<u32>(addr + box * (LINES * 128) + 16 * i, 0u, 0u, 0u, 0u);
  }
}

// ------------------------------------------------------------------ distributed shared memory
// mapa.shared::cluster.u32: the address of `addr` in block `cta` of the cluster. Thread. ISA: mapa.
TDSL_FN u32 mapa(u32 addr, u32 cta) {
  u32 r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(cta));
  return r;
}
// ld.shared::cluster.b32 from block `cta`, which must not have exited. Thread. ISA: ld, mapa.
template <class T> TDSL_FN T ld_dsmem(u32 addr, u32 cta) {
  static_assert(sizeof(T) == 4, "4-byte elements");
  u32 r;
  asm volatile("ld.shared::cluster.b32 %0, [%1];" : "=r"(r) : "r"(mapa(addr, cta)) : "memory");
  return bits_as<T>(r);
}
// ld.shared::cluster.v4.b32, aligned to 16. Thread. ISA: ld, mapa.
template <class T> TDSL_FN void ld_dsmem_v4(u32 addr, u32 cta, T& a, T& b, T& c, T& d) {
  u32 r0, r1, r2, r3;
  asm volatile("ld.shared::cluster.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(mapa(addr, cta)) : "memory");
  a = bits_as<T>(r0), b = bits_as<T>(r1), c = bits_as<T>(r2), d = bits_as<T>(r3);
}
// st.shared::cluster.b{8,16,32,64} to an address that mapa gave; its block must have started. Thread. ISA: st.
template <class T> TDSL_FN void st_shared_cluster(u32 addr, T v) {
  if constexpr (sizeof(T) == 1) {
    asm volatile("st.shared::cluster.u8 [%0], %1;" ::"r"(addr), "r"((u32)bits_as<u8>(v)) : "memory");
  } else if constexpr (sizeof(T) == 2) {
    asm volatile("st.shared::cluster.b16 [%0], %1;" ::"r"(addr), "h"(bits_as<u16>(v)) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(addr), "r"(bits_as<u32>(v)) : "memory");
  } else {
    asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(addr), "l"(bits_as<u64>(v)) : "memory");
  }
}
// st.shared::cluster.b32 to block `cta`, which must have started. Thread. ISA: st, mapa.
template <class T> TDSL_FN void st_dsmem(u32 addr, u32 cta, T v) {
  static_assert(sizeof(T) == 4, "4-byte elements");
  asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(mapa(addr, cta)), "r"(bits_as<u32>(v)) : "memory");
}
// st.shared::cluster.v4.b32, aligned to 16. Thread. ISA: st, mapa.
template <class T> TDSL_FN void st_dsmem_v4(u32 addr, u32 cta, T a, T b, T c, T d) {
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(mapa(addr, cta)), "r"(bits_as<u32>(a)),
               "r"(bits_as<u32>(b)), "r"(bits_as<u32>(c)), "r"(bits_as<u32>(d)) : "memory");
}
// Asynchronous remote store of 4 or 8 bytes to an address that mapa gave, which completes on mbarrier `bar`, mapped to
// the same block. Thread. ISA: st.async.
template <class T> TDSL_FN void st_async(u32 addr, u32 bar, T v) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "st.async moves words");
  if constexpr (sizeof(T) == 4) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %2, [%1];" ::"r"(addr),
                 "r"(bar), "r"(bits_as<u32>(v)) : "memory");
  } else {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %2, [%1];" ::"r"(addr),
                 "r"(bar), "l"(bits_as<u64>(v)) : "memory");
  }
}
// Asynchronous remote store of 16 bytes that completes on mbarrier `bar` of block `cta` (both addresses are of this
// block's window, mapped to the other's). Thread. ISA: st.async.
template <class T> TDSL_FN void st_async_v4(u32 addr, u32 bar, u32 cta, T a, T b, T c, T d) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(
                   mapa(addr, cta)), "r"(mapa(bar, cta)), "r"(bits_as<u32>(a)), "r"(bits_as<u32>(b)),
               "r"(bits_as<u32>(c)), "r"(bits_as<u32>(d)) : "memory");
}

// ------------------------------------------------------------------ global memory
// ld.global.v2.b32 and .v4.b32, aligned to 8 and 16. Thread. ISA: ld.
template <class T> TDSL_FN void ld_global_v2(const void* p, T& a, T& b) {
  u32 r0, r1;
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(r0), "=r"(r1) : "l"(p) : "memory");
  a = bits_as<T>(r0), b = bits_as<T>(r1);
}
template <class T> TDSL_FN void ld_global_v4(const void* p, T& a, T& b, T& c, T& d) {
  u32 r0, r1, r2, r3;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "l"(p) : "memory");
  a = bits_as<T>(r0), b = bits_as<T>(r1), c = bits_as<T>(r2), d = bits_as<T>(r3);
}
// ld.global.L1::no_allocate.v2/.v4.b32: for data read once. Thread. ISA: ld.
template <class T> TDSL_FN void ld_global_stream_v2(const void* p, T& a, T& b) {
  u32 r0, r1;
  asm volatile("ld.global.L1::no_allocate.v2.b32 {%0, %1}, [%2];" : "=r"(r0), "=r"(r1) : "l"(p) : "memory");
  a = bits_as<T>(r0), b = bits_as<T>(r1);
}
template <class T> TDSL_FN void ld_global_stream_v4(const void* p, T& a, T& b, T& c, T& d) {
  u32 r0, r1, r2, r3;
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "l"(p) : "memory");
  a = bits_as<T>(r0), b = bits_as<T>(r1), c = bits_as<T>(r2), d = bits_as<T>(r3);
}
// ld.global.nc.L1::no_allocate.v4.b32: only for data that nobody writes during the kernel. Thread. ISA: ld.global.nc.
template <class T> TDSL_FN void ld_global_nc_v4(const void* p, T& a, T& b, T& c, T& d) {
  u32 r0, r1, r2, r3;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "l"(p));
  a = bits_as<T>(r0), b = bits_as<T>(r1), c = bits_as<T>(r2), d = bits_as<T>(r3);
}
// st.global.v2.b32 and .v4.b32, aligned to 8 and 16. Thread. ISA: st.
template <class T> TDSL_FN void st_global_v2(void* p, T a, T b) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(bits_as<u32>(a)), "r"(bits_as<u32>(b)) : "memory");
}
template <class T> TDSL_FN void st_global_v4(void* p, T a, T b, T c, T d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(bits_as<u32>(a)), "r"(bits_as<u32>(b)),
               "r"(bits_as<u32>(c)), "r"(bits_as<u32>(d)) : "memory");
}
// st.global.L1::no_allocate.v2/.v4.b32: for data not read again by this block. Thread. ISA: st.
template <class T> TDSL_FN void st_global_stream_v2(void* p, T a, T b) {
  asm volatile("st.global.L1::no_allocate.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(bits_as<u32>(a)),
               "r"(bits_as<u32>(b)) : "memory");
}
template <class T> TDSL_FN void st_global_stream_v4(void* p, T a, T b, T c, T d) {
  asm volatile("st.global.L1::no_allocate.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(bits_as<u32>(a)),
               "r"(bits_as<u32>(b)), "r"(bits_as<u32>(c)), "r"(bits_as<u32>(d)) : "memory");
}

// ------------------------------------------------------------------ cp.async
// cp.async.ca (4 and 8 bytes) / .cg (16 bytes): global to shared, aligned to BYTES; a generic-proxy write
// that wgmma and TMA see only after fence_async_smem. Thread. ISA: cp.async.
template <int BYTES> TDSL_FN void cp_async(u32 dst, const void* src) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(BYTES) : "memory");
  }
}
// As cp_async, but reads the first `bytes` bytes alone and writes zeros for the rest. Thread. ISA: cp.async.
template <int BYTES> TDSL_FN void cp_async_part(u32 dst, const void* src, u32 bytes) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async moves 4, 8 or 16 bytes");
  if constexpr (BYTES == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(BYTES), "r"(bytes)
                 : "memory");
  }
}
// As cp_async, but writes zeros and reads nothing where `valid` is false. Thread. ISA: cp.async.
template <int BYTES> TDSL_FN void cp_async_zfill(u32 dst, const void* src, bool valid) {
  cp_async_part<BYTES>(dst, src, valid ? BYTES : 0);
}
// cp.async.commit_group: closes this thread's group. Thread. ISA: cp.async.commit_group.
TDSL_FN void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// cp.async.wait_group N: at most N groups of this thread pending; others need a barrier after it. Thread.
template <int N> TDSL_FN void cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

}  // namespace tdsl
