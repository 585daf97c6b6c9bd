// regs.cuh - thread identity, register budgets, pins and packed register tiles.
// Thread blocks are one-dimensional.
#pragma once
#include "tiledsl/types.cuh"

namespace tdsl {

// ------------------------------------------------------------------ identity
// shfl.sync.idx from lane 0: tells the compiler that a value is equal in the warp. Warp, converged.
template <class T> TDSL_FN T uniform(T v) { return __shfl_sync(0xffffffffu, v, 0); }
// Lane in the warp, 0..31. Thread. ISA: Special Registers: %tid.
TDSL_FN u32 lane_id() { return threadIdx.x & 31u; }
// Warp in the block, warp-uniform. Warp, converged.
TDSL_FN u32 warp_id() { return uniform((u32)threadIdx.x >> 5); }
// Warp in the warpgroup, 0..3, warp-uniform. Warp, converged.
TDSL_FN u32 warp_in_group() { return uniform(((u32)threadIdx.x >> 5) & 3u); }
// Warpgroup in the block, warp-uniform. Warp, converged.
TDSL_FN u32 warpgroup_id() { return uniform((u32)threadIdx.x >> 7); }
// Thread in the warpgroup, 0..127. Thread.
TDSL_FN u32 thread_in_group() { return threadIdx.x & 127u; }
// elect.sync: true in exactly one lane, the same one each time. Warp, converged. ISA: elect.sync.
TDSL_FN bool elect_one() {
  u32 p;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(p));
  return p != 0;
}
// bar.warp.sync of the full warp; orders memory accesses among its lanes. Warp. ISA: bar.warp.sync.
TDSL_FN void warp_sync() { __syncwarp(); }
// bar.sync 0: all threads of the block; orders their memory accesses. Block. ISA: bar, barrier.
TDSL_FN void block_sync() { __syncthreads(); }

// ------------------------------------------------------------------ register budget
// setmaxnreg.dec: gives registers back, N = 24..256 in steps of 8. Warpgroup. ISA: setmaxnreg.
template <int N> TDSL_FN void reg_dec() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
// setmaxnreg.inc: blocks until N registers a thread are free. Warpgroup. ISA: setmaxnreg.
template <int N> TDSL_FN void reg_inc() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// ------------------------------------------------------------------ pins
// Empty asm: no access of these registers moves across it. Emit it over accumulators before the first
// wgmma_fence of a batch and after the wgmma_wait that completes them, and over A registers. Thread.
template <int N> TDSL_FN void keep(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> TDSL_FN void keep(u32 (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
template <int N> TDSL_FN void keep(i32 (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
template <class T, int M, int N> TDSL_FN void keep(T (&d)[M][N]) {
#pragma unroll
  for (int i = 0; i < M; ++i) keep(d[i]);
}

// ------------------------------------------------------------------ packed register tiles
template <class T> struct packed_value { using type = float; };   // what get() returns
template <> struct packed_value<i8> { using type = i32; };
template <> struct packed_value<u8> { using type = i32; };
template <> struct packed_value<i16> { using type = i32; };
template <> struct packed_value<u16> { using type = i32; };

template <class T> struct packed_float { static constexpr bool value = true; };
template <> struct packed_float<i8> { static constexpr bool value = false; };
template <> struct packed_float<u8> { static constexpr bool value = false; };
template <> struct packed_float<i16> { static constexpr bool value = false; };
template <> struct packed_float<u16> { static constexpr bool value = false; };

// The four consecutive words w[4 j .. 4 j + 3], the A operand of one wgmma; `j` constant after unrolling.
template <int N> TDSL_FN u32 (&quad(u32 (&w)[N], int j))[4] {
  return *reinterpret_cast<u32(*)[4]>(&w[4 * j]);
}

// N elements of an 8- or 16-bit type held in 32-bit registers, element 0 in the low bits of w[0]. Every
// index must be a constant after unrolling, or the tile goes to local memory. All members: thread.
template <class T, int N> struct Packed {
  static_assert(sizeof(T) == 1 || sizeof(T) == 2, "a packed tile holds 8- or 16-bit elements");
  using Value = typename packed_value<T>::type;
  static constexpr int PER = 4 / sizeof(T);
  static constexpr int WORDS = (N * (int)sizeof(T) + 3) / 4;
  static constexpr bool FLOAT = packed_float<T>::value;
  u32 w[WORDS];

  // Element i as float, or as i32 for integer types. Prefer get2 where both neighbours are wanted.
  TDSL_FN Value get(int i) const {
    const u32 shift = (i % PER) * (32 / PER), raw = w[i / PER] >> shift;
    if constexpr (FLOAT) {
      if constexpr (sizeof(T) == 2) return to_float(T{(u16)raw});
      else return to_float(T{(u8)raw});
    } else {
      return (i32)(T)raw;
    }
  }
  // Replaces element i (nearest even; fp8 saturates; integers keep the low bits).
  TDSL_FN void set(int i, Value v) {
    u32 raw;
    if constexpr (FLOAT) raw = from_float<T>(v).bits;
    else raw = (u32)v;
    if constexpr (sizeof(T) == 2) {
      w[i / 2] = i % 2 ? __byte_perm(w[i / 2], raw, 0x5410) : __byte_perm(w[i / 2], raw, 0x3254);
    } else {
      const u32 shift = (i % 4) * 8;
      w[i / 4] = (w[i / 4] & ~(0xffu << shift)) | ((raw & 0xffu) << shift);
    }
  }
  // Sets elements 2 j and 2 j + 1: for 16-bit floats one cvt.rn.{bf16x2,f16x2}.f32 into word j.
  TDSL_FN void pack2(int j, Value lo, Value hi) {
    if constexpr (sizeof(T) == 2) {
      w[j] = pair(lo, hi);
    } else {
      w[j / 2] = __byte_perm(w[j / 2], pair(lo, hi), j % 2 ? 0x5410 : 0x3254);
    }
  }
  // Sets elements 4 j .. 4 j + 3: one word of an 8-bit type, two words of a 16-bit type.
  TDSL_FN void pack4(int j, Value a, Value b, Value c, Value d) {
    if constexpr (sizeof(T) == 2) {
      w[2 * j] = pair(a, b);
      w[2 * j + 1] = pair(c, d);
    } else {
      w[j] = join_u16((u16)pair(a, b), (u16)pair(c, d));
    }
  }
  // Elements 2 j and 2 j + 1.
  TDSL_FN void get2(int j, Value& lo, Value& hi) const {
    if constexpr (FLOAT) unpair(sizeof(T) == 2 ? w[j] : w[j / 2] >> (j % 2 * 16), lo, hi);
    else lo = get(2 * j), hi = get(2 * j + 1);
  }
  TDSL_FN u32 word(int j) const { return w[j]; }
  TDSL_FN void set_word(int j, u32 v) { w[j] = v; }
  TDSL_FN void zero() {
#pragma unroll
    for (int j = 0; j < WORDS; ++j) w[j] = 0;
  }
  // Words 4 j .. 4 j + 3 as the A operand of one wgmma.
  TDSL_FN u32 (&quad(int j))[4] { return tdsl::quad(w, j); }

 private:
  // Two elements in the low bits of a word.
  static TDSL_FN u32 pair(Value lo, Value hi);
  static TDSL_FN void unpair(u32 raw, Value& lo, Value& hi);
};

template <class T> struct PairOf {   // integers
  static TDSL_FN u32 pack(i32 lo, i32 hi) {
    if constexpr (sizeof(T) == 2) return __byte_perm((u32)lo, (u32)hi, 0x5410);
    else return __byte_perm((u32)lo, (u32)hi, 0x0040) & 0xffffu;
  }
};
template <> struct PairOf<bf16> {
  static TDSL_FN u32 pack(float lo, float hi) { return pack_bf16x2(lo, hi); }
  static TDSL_FN void unpack(u32 raw, float& lo, float& hi) { unpack_bf16x2(raw, lo, hi); }
};
template <> struct PairOf<f16> {
  static TDSL_FN u32 pack(float lo, float hi) { return pack_f16x2(lo, hi); }
  static TDSL_FN void unpack(u32 raw, float& lo, float& hi) { unpack_f16x2(raw, lo, hi); }
};
template <> struct PairOf<e4m3> {
  static TDSL_FN u32 pack(float lo, float hi) { return pack_e4m3x2(lo, hi); }
  static TDSL_FN void unpack(u32 raw, float& lo, float& hi) { unpack_e4m3x2((u16)raw, lo, hi); }
};
template <> struct PairOf<e5m2> {
  static TDSL_FN u32 pack(float lo, float hi) { return pack_e5m2x2(lo, hi); }
  static TDSL_FN void unpack(u32 raw, float& lo, float& hi) { unpack_e5m2x2((u16)raw, lo, hi); }
};
// add.rn.{f16x2,bf16x2}: of two pairs, each element rounded once. Thread. ISA: add.
template <class T> TDSL_FN u32 add_pair(u32 a, u32 b);
template <> TDSL_FN u32 add_pair<f16>(u32 a, u32 b) {
  u32 r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
template <> TDSL_FN u32 add_pair<bf16>(u32 a, u32 b) {
  u32 r;
  asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// sub.rn.{f16x2,bf16x2}: of two pairs, each element rounded once. Thread. ISA: sub.
template <class T> TDSL_FN u32 sub_pair(u32 a, u32 b);
template <> TDSL_FN u32 sub_pair<f16>(u32 a, u32 b) {
  u32 r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
template <> TDSL_FN u32 sub_pair<bf16>(u32 a, u32 b) {
  u32 r;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// mul.rn.{f16x2,bf16x2}: of two pairs, each element rounded once. Thread. ISA: mul.
template <class T> TDSL_FN u32 mul_pair(u32 a, u32 b);
template <> TDSL_FN u32 mul_pair<f16>(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
template <> TDSL_FN u32 mul_pair<bf16>(u32 a, u32 b) {
  u32 r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// A number twice. Thread. ISA: cvt.
template <class T> TDSL_FN u32 pair_of(float x) { return PairOf<T>::pack(x, x); }
// Elements a and b of a packed tile in one word; both constant after unrolling. Thread. ISA: prmt.
template <class T, int N> TDSL_FN u32 pair_at(const Packed<T, N>& x, int a, int b) {
  if (b == a + 1 && a % 2 == 0) return x.w[a / 2];
  return __byte_perm(x.w[a / 2], x.w[b / 2], (a % 2 ? 0x32 : 0x10) | (b % 2 ? 0x7600 : 0x5400));
}
template <class T, int N> TDSL_FN u32 Packed<T, N>::pair(Value lo, Value hi) { return PairOf<T>::pack(lo, hi); }
template <class T, int N> TDSL_FN void Packed<T, N>::unpair(u32 raw, Value& lo, Value& hi) {
  PairOf<T>::unpack(raw, lo, hi);
}

template <class T, int N> TDSL_FN void keep(Packed<T, N>& p) { keep(p.w); }

// 8-bit elements of an accumulator fragment as the A fragments of wgmma: of 32 columns a lane has pairs
// 2 q, 2 q + 1 of each 8 and gets runs 4 q .. 4 q + 3 of each 16 (q: lane in its quad). Words j and j + 1 hold
// 8 columns each, of row r in their lower half and of row r + 8 in their upper half. Even lanes send the first
// word to lanes 0 and 1 of the quad and the second one to lanes 2 and 3, odd lanes the other way around.
// Warp, converged. ISA: Register fragments for wgmma.mma_async.m64nNk32.
template <class T, int N> TDSL_FN void spread_quads(Packed<T, N>& p) {
  const u32 q = lane_id() & 3u;
  const bool is_odd = q & 1u, is_high = q & 2u;
  const u32 even_lane = 2u * (q & 1u), odd_lane = even_lane + 1u;
#pragma unroll
  for (int j = 0; j < N / 4; j += 2) {
    const u32 x = p.w[j], y = p.w[j + 1];
    const u32 one = __shfl_sync(0xffffffffu, is_odd ? y : x, is_high ? odd_lane : even_lane, 4);
    const u32 two = __shfl_sync(0xffffffffu, is_odd ? x : y, is_high ? even_lane : odd_lane, 4);
    const u32 left = is_high ? two : one, right = is_high ? one : two;
    p.w[j] = __byte_perm(left, right, 0x5410);
    p.w[j + 1] = __byte_perm(left, right, 0x7632);
  }
}

}  // namespace tdsl
