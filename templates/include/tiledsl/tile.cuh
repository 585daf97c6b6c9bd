// tile.cuh - register tiles: filling, copying, rounding, and moving them to and from memory. A tile is an array
// T x[N], or Packed<T, N> for 8- and 16-bit elements; register indices are constant after unrolling.
#pragma once
#include "tiledsl/convert.cuh"
#include "tiledsl/regs.cuh"
#include "tiledsl/smem.cuh"
#include "tiledsl/types.cuh"
#include "tiledsl/widen.cuh"

namespace tdsl {

// ------------------------------------------------------------------ scalars
// The nearest value of a small float type, as a float. Thread. ISA: cvt.
template <class T> TDSL_FN float round_to(float x) { return to_float(from_float<T>(x)); }
// cvt.rn.bf16x2.f32 into the upper half; a cvt to one bf16 takes four times as long. Thread. ISA: cvt.
template <> TDSL_FN float round_to<bf16>(float x) { return __uint_as_float(pack_bf16x2(0.0f, x)); }

// Float to integer: toward zero, saturating, NaN gives 0. Thread. ISA: cvt.
template <class To> TDSL_FN To float_to_int(double x) {
  if constexpr (To(-1) > To(0)) {
    if constexpr (sizeof(To) == 8) return x != x ? To(0) : __double2ull_rz(x);
    const u32 v = x != x ? 0u : __double2uint_rz(x);
    if constexpr (sizeof(To) == 4) return v;
    constexpr u32 most = (1u << (8 * sizeof(To) % 32)) - 1u;
    return (To)(v < most ? v : most);
  } else {
    if constexpr (sizeof(To) == 8) return x != x ? To(0) : __double2ll_rz(x);
    const i32 v = x != x ? 0 : __double2int_rz(x);
    if constexpr (sizeof(To) == 4) return v;
    constexpr i32 most = (i32)((1u << (8 * sizeof(To) - 1) % 32) - 1u);
    return (To)(v > most ? most : v < -most - 1 ? -most - 1 : v);
  }
}
template <class To> TDSL_FN To float_to_int(float x) {
  if constexpr (To(-1) > To(0)) {
    if constexpr (sizeof(To) == 8) return x != x ? To(0) : __float2ull_rz(x);
    const u32 v = __float2uint_rz(x);
    if constexpr (sizeof(To) == 4) return v;
    constexpr u32 most = (1u << (8 * sizeof(To) % 32)) - 1u;
    return (To)(v < most ? v : most);
  } else {
    if constexpr (sizeof(To) == 8) return x != x ? To(0) : __float2ll_rz(x);
    const i32 v = __float2int_rz(x);
    if constexpr (sizeof(To) == 4) return v;
    constexpr i32 most = (i32)((1u << (8 * sizeof(To) - 1) % 32) - 1u);
    return (To)(v > most ? most : v < -most - 1 ? -most - 1 : v);
  }
}

// Integer arithmetic that wraps (the plain operators of signed types may not overflow in C++). Thread.
template <class T> struct unsigned_of { using type = T; };
template <> struct unsigned_of<i32> { using type = u32; };
template <> struct unsigned_of<i64> { using type = u64; };
template <class T> TDSL_FN T add_wrap(T x, T y) {
  using U = typename unsigned_of<T>::type;
  return (T)((U)x + (U)y);
}
template <class T> TDSL_FN T sub_wrap(T x, T y) {
  using U = typename unsigned_of<T>::type;
  return (T)((U)x - (U)y);
}
template <class T> TDSL_FN T mul_wrap(T x, T y) {
  using U = typename unsigned_of<T>::type;
  return (T)((U)x * (U)y);
}
// An integer of 8 or 16 bits as a float: added to 3 * 2 ** 22, whose last bit is worth 1. A conversion of a
// byte takes four times as long as an addition. Thread. ISA: cvt.
TDSL_FN float small_to_float(i32 x) { return __int_as_float(0x4b400000 + x) - 12582912.0f; }

// Product of 32-bit numbers in 64 bits. Thread. ISA: mul.wide.
TDSL_FN i64 mul_wide(i32 x, i32 y) {
  i64 r;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(r) : "r"(x), "r"(y));
  return r;
}
// Quotient and remainder toward zero; 0 where the divisor is 0. Thread. ISA: div, rem.
template <class T> TDSL_FN T div_or_zero(T x, T y) { return y == 0 ? T(0) : (T)(x / y); }
template <class T> TDSL_FN T mod_or_zero(T x, T y) { return y == 0 ? T(0) : (T)(x % y); }
TDSL_FN float mod_or_zero(float x, float y) { return fmodf(x, y); }
TDSL_FN double mod_or_zero(double x, double y) { return fmod(x, y); }
// Shifts by any count: one outside 0 .. width - 1 shifts everything out. Thread. ISA: shl, shr.
template <class T> TDSL_FN T shift_left(T x, T n) {
  return n >= 0 && n < T(8 * sizeof(T)) ? (T)(x << n) : T(0);
}
template <class T> TDSL_FN T shift_right(T x, T n) {
  return n >= 0 && n < T(8 * sizeof(T)) ? (T)(x >> n) : x < 0 ? T(-1) : T(0);
}

// Is a coordinate inside [0, extent)? Thread.
TDSL_FN bool inside(i32 c, i64 extent) { return (u32)c < (u32)extent; }
TDSL_FN bool inside(i64 c, i64 extent) { return (u64)c < (u64)extent; }
// Is an address a multiple of BYTES? Thread.
template <int BYTES> TDSL_FN bool aligned(const void* p) { return (u64)p % BYTES == 0; }

// ------------------------------------------------------------------ whole tiles
// Every element equal to `v`. Thread.
template <class T, int N> TDSL_FN void fill(T (&x)[N], T v) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = v;
}
template <class T, int N> TDSL_FN void fill(Packed<T, N>& x, typename Packed<T, N>::Value v) {
#pragma unroll
  for (int j = 0; j < (N + 1) / 2; ++j) x.pack2(j, v, v);
}
// The same elements in another variable. Thread.
template <class T, int N> TDSL_FN void copy(T (&to)[N], const T (&from)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = from[i];
}
template <class T, int N> TDSL_FN void copy(Packed<T, N>& to, const Packed<T, N>& from) { copy(to.w, from.w); }

// ------------------------------------------------------------------ elements and vectors of a tile
// Element i as it lies in memory. Elements of a packed tile are put in ascending order. Thread.
template <class T, int N> TDSL_FN T get_raw(const T (&x)[N], int i) { return x[i]; }
template <class T, int N> TDSL_FN T get_raw(const Packed<T, N>& x, int i) {
  constexpr int PER = 4 / sizeof(T);
  const u32 raw = x.w[i / PER] >> (i % PER * (32 / PER));
  if constexpr (sizeof(T) == 1) return bits_as<T>((u8)raw);
  else return bits_as<T>((u16)raw);
}
template <class T, int N> TDSL_FN void put_raw(T (&x)[N], int i, T v) { x[i] = v; }
template <class T, int N> TDSL_FN void put_raw(Packed<T, N>& x, int i, T v) {
  constexpr int PER = 4 / sizeof(T);
  u32 raw;
  if constexpr (sizeof(T) == 1) raw = bits_as<u8>(v);
  else raw = bits_as<u16>(v);
  const u32 shifted = raw << (i % PER * (32 / PER));
  x.w[i / PER] = i % PER ? x.w[i / PER] | shifted : shifted;
}

// 4, 8 or 16 bytes that move at once.
template <int BYTES> struct alignas(BYTES) Words { u32 w[BYTES / 4]; };

// The V elements from element i on (a multiple of V), as words. Thread.
template <int V, class T, int N> TDSL_FN Words<V * sizeof(T)> get_words(const T (&x)[N], int i) {
  Words<V * sizeof(T)> out;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if constexpr (sizeof(T) == 8) {
      const u64 bits = bits_as<u64>(x[i + k]);
      out.w[2 * k] = (u32)bits;
      out.w[2 * k + 1] = (u32)(bits >> 32);
    } else if constexpr (sizeof(T) == 1) {   // bool
      out.w[k / 4] = (k % 4 ? out.w[k / 4] : 0u) | (u32)x[i + k] << k % 4 * 8;
    } else {
      out.w[k] = bits_as<u32>(x[i + k]);
    }
  }
  return out;
}
template <int V, class T, int N> TDSL_FN Words<V * sizeof(T)> get_words(const Packed<T, N>& x, int i) {
  Words<V * sizeof(T)> out;
#pragma unroll
  for (int k = 0; k < V * (int)sizeof(T) / 4; ++k) out.w[k] = x.w[i * sizeof(T) / 4 + k];
  return out;
}
template <int V, class T, int N> TDSL_FN void put_words(T (&x)[N], int i, Words<V * sizeof(T)> v) {
#pragma unroll
  for (int k = 0; k < V; ++k) {
    if constexpr (sizeof(T) == 8) x[i + k] = bits_as<T>((u64)v.w[2 * k + 1] << 32 | v.w[2 * k]);
    else if constexpr (sizeof(T) == 1) x[i + k] = (v.w[k / 4] >> k % 4 * 8 & 0xffu) != 0;
    else x[i + k] = bits_as<T>(v.w[k]);
  }
}
template <int V, class T, int N> TDSL_FN void put_words(Packed<T, N>& x, int i, Words<V * sizeof(T)> v) {
#pragma unroll
  for (int k = 0; k < V * (int)sizeof(T) / 4; ++k) x.w[i * sizeof(T) / 4 + k] = v.w[k];
}

// Elements i and i + 1 (i even) of 8 bits, in ascending order as `put_raw`. Thread.
template <class T, int N> TDSL_FN void put_half(Packed<T, N>& x, int i, u16 v) {
  static_assert(sizeof(T) == 1, "two elements of 8 bits");
  x.w[i / 4] = i % 4 ? x.w[i / 4] | (u32)v << 16 : (u32)v;
}

// ------------------------------------------------------------------ global memory
// Element i from `p`, or `other`. Thread. ISA: ld.global.
template <class X, class T> TDSL_FN void load_element(X& x, int i, const T* p, bool in, T other) {
  put_raw(x, i, in ? *p : other);
}
// V elements from i on, all or none of which are inside; `p` aligned to their size. Thread. ISA: ld.global.
template <int V, class X, class T> TDSL_FN void load_vector(X& x, int i, const T* p, bool in, T other) {
  if (in) {
    put_words<V>(x, i, *reinterpret_cast<const Words<V * sizeof(T)>*>(p));
  } else {
#pragma unroll
    for (int k = 0; k < V; ++k) put_raw(x, i + k, other);
  }
}
// Element i to `p` where `in`. Thread. ISA: st.global.
template <class X, class T> TDSL_FN void store_element(const X& x, int i, T* p, bool in) {
  if (in) *p = get_raw(x, i);
}
// V elements from i on, all or none of which are inside; `p` aligned to their size. Thread. ISA: st.global.
template <int V, class X, class T> TDSL_FN void store_vector(const X& x, int i, T* p, bool in) {
  if (in) *reinterpret_cast<Words<V * sizeof(T)>*>(p) = get_words<V>(x, i);
}

// ------------------------------------------------------------------ shared memory
// Offset of byte `byte` of line `line` in a tile of LINES lines of LINE_BYTES contiguous bytes. SWIZZLE 128: cut
// into boxes of 128 bytes a line, one box after the other, 16-byte chunks permuted by the line number modulo 8, as
// TMA and wgmma have it. SWIZZLE 0: line after line. Thread. ISA: Tensor swizzle modes.
template <int SWIZZLE, int LINES, int LINE_BYTES> TDSL_FN u32 smem_at(int line, int byte) {
  static_assert(SWIZZLE == 0 || SWIZZLE == 128, "swizzle of 0 or 128 bytes");
  if constexpr (SWIZZLE == 0) return line * LINE_BYTES + byte;
  return byte / 128 * (LINES * 128) + line * 128 + (byte % 128 ^ (line & 7) << 4);
}
// The same in two steps: the place of a thread's first byte in a slot at `base`, with a swizzle of 128 bytes, and what
// is some lines (a multiple of 8) and bytes (none of whose bits the place's has) further on. Thread.
TDSL_FN u32 swizzled_place(u32 base, int line, int byte) { return base + line * 128 + (byte ^ (line & 7) << 4); }
template <int LINES> TDSL_FN u32 swizzled_at(u32 place, int lines, int bytes) {
  return (place ^ (bytes & 0x70)) + (bytes & 0xf) + bytes / 128 * (LINES * 128) + lines * 128;
}
template <int BYTES> TDSL_FN Words<BYTES> ld_words(u32 addr) {
  Words<BYTES> v;
  if constexpr (BYTES == 4) v.w[0] = ld_shared<u32>(addr);
  else if constexpr (BYTES == 8) ld_shared_v2(addr, v.w[0], v.w[1]);
  else ld_shared_v4(addr, v.w[0], v.w[1], v.w[2], v.w[3]);
  return v;
}
template <int BYTES> TDSL_FN void st_words(u32 addr, Words<BYTES> v) {
  if constexpr (BYTES == 4) st_shared(addr, v.w[0]);
  else if constexpr (BYTES == 8) st_shared_v2(addr, v.w[0], v.w[1]);
  else st_shared_v4(addr, v.w[0], v.w[1], v.w[2], v.w[3]);
}
// V elements of type T from i on: from and to shared memory, aligned to their size. Thread. ISA: ld.shared, st.shared.
template <int V, class T, class X> TDSL_FN void read_shared(X& x, int i, u32 addr) {
  if constexpr (V == 1) put_raw(x, i, ld_shared<T>(addr));
  else if constexpr (V * sizeof(T) == 2) put_half(x, i, ld_shared<u16>(addr));
  else put_words<V>(x, i, ld_words<V * sizeof(T)>(addr));
}
template <int V, class T, int N> TDSL_FN void st_elements(u32 addr, const T (&x)[N], int i) {
  st_words<V * sizeof(T)>(addr, get_words<V>(x, i));
}
template <int V, class T, int N> TDSL_FN void st_elements(u32 addr, const Packed<T, N>& x, int i) {
  st_words<V * sizeof(T)>(addr, get_words<V>(x, i));
}
template <int V, int N> TDSL_FN void st_elements(u32 addr, const float (&x)[N], int i) {
  if constexpr (V == 2) st_floats(addr, x[i], x[i + 1]);
  else st_floats(addr, x[i], x[i + 1], x[i + 2], x[i + 3]);
}
template <int V, class T, class X> TDSL_FN void write_shared(const X& x, int i, u32 addr, bool in) {
  if (!in) return;
  if constexpr (V == 1) st_shared<T>(addr, get_raw(x, i));
  else st_elements<V>(addr, x, i);
}

// Part of a 16-bit tile that lies as wgmma accumulators (BLOCK words per 64 rows), into 128-byte swizzled rows whose
// contiguous dimension is the instruction's columns: COLS columns from column FIRST, of all rows, or of M_COUNT blocks of 64 from M_FIRST on. LINES: rows of the
// destination; `row`: its row for this warp's first row. Warp, converged. ISA: stmatrix, wgmma register fragments.
template <int BLOCK, int FIRST, int COLS, int LINES, int M_FIRST = 0, int M_COUNT = -1, class T, int N>
TDSL_FN void write_rows(u32 smem, const Packed<T, N>& x, u32 row, u32 lane) {
  static_assert(sizeof(T) == 2 && FIRST % 8 == 0 && COLS % 8 == 0, "16-bit elements, columns in eights");
  const u32 base = smem + (row + (lane & 15)) * 128, chunk = ((lane >> 4) ^ (lane & 7)) << 4;
#pragma unroll
  for (int m = 0; m < (M_COUNT < 0 ? N / 2 / BLOCK : M_COUNT); ++m) {
#pragma unroll
    for (int c = 0; c < COLS; c += 16) {
      const int w = (M_FIRST + m) * BLOCK + (FIRST + c) / 4;
      const u32 addr = base + m * 8192 + c / 64 * (LINES * 128) + (chunk ^ c % 64 * 2);
      if (c + 16 <= COLS) stmatrix_x4(addr, x.w[w], x.w[w + 1], x.w[w + 2], x.w[w + 3]);
      else stmatrix_x2(addr, x.w[w], x.w[w + 1]);
    }
  }
}
// As write_rows where the destination's contiguous dimension is the instruction's rows: each column of the fragment
// is a line, each block of 64 rows a box of LINES lines. `row`: this warp's first row in the box. Warp, converged.
template <int BLOCK, int FIRST, int COLS, int LINES, int M_FIRST = 0, int M_COUNT = -1, class T, int N>
TDSL_FN void write_columns(u32 smem, const Packed<T, N>& x, u32 row, u32 lane) {
  static_assert(sizeof(T) == 2 && FIRST % 8 == 0 && COLS % 8 == 0, "16-bit elements, columns in eights");
  const u32 base = smem + row / 64 * (LINES * 128) + ((lane >> 4) * 8 + (lane & 7)) * 128;
  const u32 chunk = ((row % 64 / 8 + (lane >> 3 & 1)) ^ (lane & 7)) << 4;
#pragma unroll
  for (int m = 0; m < (M_COUNT < 0 ? N / 2 / BLOCK : M_COUNT); ++m) {
#pragma unroll
    for (int c = 0; c < COLS; c += 16) {
      const int w = (M_FIRST + m) * BLOCK + (FIRST + c) / 4;
      const u32 addr = base + m * (LINES * 128) + c * 128 + chunk;
      if (c + 16 <= COLS) stmatrix_x4_trans(addr, x.w[w], x.w[w + 1], x.w[w + 2], x.w[w + 3]);
      else stmatrix_x2_trans(addr, x.w[w], x.w[w + 1]);
    }
  }
}
// A 16-bit tile that lies as wgmma accumulators (BLOCK words per 64 rows), as rows of 16-byte vectors, LANES lanes a
// row. `scratch`: 2048 bytes of the warp. Warp, converged. ISA: stmatrix, wgmma register fragments.
template <int BLOCK, int LANES, class T, int N>
TDSL_FN void rows_in_warp(Packed<T, N>& to, const Packed<T, N>& from, u32 scratch, u32 lane) {
  static_assert(sizeof(T) == 2 && BLOCK % (2 * LANES) == 0, "16-bit elements, whole rows of vectors");
  const u32 put = scratch + (lane & 15) * 128, chunk = ((lane >> 4) ^ (lane & 7)) << 4;
#pragma unroll
  for (int w = 0; w < N / 2; w += 2 * LANES) {
    warp_sync();
#pragma unroll
    for (int c = 0; c < LANES / 2; ++c) {
      const int v = w + 4 * c;
      stmatrix_x4(put + (chunk ^ c * 32), from.w[v], from.w[v + 1], from.w[v + 2], from.w[v + 3]);
    }
    warp_sync();
#pragma unroll
    for (int j = 0; j < LANES / 2; ++j) {
      const u32 row = lane / LANES + j * (32 / LANES), at = (lane % LANES ^ (row & 7)) << 4;
      u32* const v = to.w + w + 4 * j;
      ld_shared_v4<u32>(scratch + row * 128 + at, v[0], v[1], v[2], v[3]);
    }
  }
}
// The same of 32-bit elements: pairs of a row are written side by side.
template <int BLOCK, int LANES, class T, int N>
TDSL_FN void rows_in_warp(T (&to)[N], const T (&from)[N], u32 scratch, u32 lane) {
  static_assert(sizeof(T) == 4 && BLOCK % (2 * LANES) == 0, "32-bit elements, whole rows of vectors");
  const u32 put = scratch + lane / 4 * 128 + lane % 2 * 8, chunk = (lane % 4 / 2 ^ lane / 4 % 4 * 2) << 4;
#pragma unroll
  for (int r = 0; r < N; r += 2 * LANES) {
    warp_sync();
#pragma unroll
    for (int c = 0; c < LANES / 2; ++c) {
      const T* const v = from + r + 4 * c;
      st_shared_v2<T>(put + (chunk ^ c * 32), v[0], v[1]);
      st_shared_v2<T>(put + 1024 + (chunk ^ c * 32), v[2], v[3]);
    }
    warp_sync();
#pragma unroll
    for (int j = 0; j < LANES / 2; ++j) {
      const u32 row = lane / LANES + j * (32 / LANES), at = (lane % LANES ^ row % 4 * 2) << 4;
      T* const v = to + r + 4 * j;
      ld_shared_v4<T>(scratch + row * 128 + at, v[0], v[1], v[2], v[3]);
    }
  }
}
// The reverse of write_rows for a whole tile. Warp, converged. ISA: ldmatrix, wgmma register fragments.
template <int BLOCK, int COLS, int LINES, class T, int N>
TDSL_FN void read_rows(u32 smem, Packed<T, N>& x, u32 row, u32 lane) {
  static_assert(sizeof(T) == 2 && COLS % 8 == 0, "16-bit elements, columns in eights");
  const u32 base = smem + (row + (lane & 15)) * 128, chunk = ((lane >> 4) ^ (lane & 7)) << 4;
#pragma unroll
  for (int m = 0; m < N / 2 / BLOCK; ++m) {
#pragma unroll
    for (int c = 0; c < COLS; c += 16) {
      const int w = m * BLOCK + c / 4;
      const u32 addr = base + m * 8192 + c / 64 * (LINES * 128) + (chunk ^ c % 64 * 2);
      if (c + 16 <= COLS) ldmatrix_x4(addr, x.w[w], x.w[w + 1], x.w[w + 2], x.w[w + 3]);
      else ldmatrix_x2(addr, x.w[w], x.w[w + 1]);
    }
  }
}
// Columns FIRST to FIRST + COLS of such a tile, from column AT of the rows on, a multiple of 16. Warp, converged.
template <int BLOCK, int FIRST, int COLS, int LINES, int AT, class T, int N>
TDSL_FN void read_row_parts(u32 smem, Packed<T, N>& x, u32 row, u32 lane) {
  static_assert(sizeof(T) == 2 && FIRST % 8 == 0 && COLS % 8 == 0 && AT % 16 == 0, "16-bit elements");
  const u32 base = smem + (row + (lane & 15)) * 128, chunk = ((lane >> 4) ^ (lane & 7)) << 4;
#pragma unroll
  for (int m = 0; m < N / 2 / BLOCK; ++m) {
#pragma unroll
    for (int c = 0; c < COLS; c += 16) {
      const int w = m * BLOCK + (FIRST + c) / 4, at = AT + c;
      const u32 addr = base + m * 8192 + at / 64 * (LINES * 128) + (chunk ^ at % 64 * 2);
      if (c + 16 <= COLS) ldmatrix_x4(addr, x.w[w], x.w[w + 1], x.w[w + 2], x.w[w + 3]);
      else ldmatrix_x2(addr, x.w[w], x.w[w + 1]);
    }
  }
}
// The reverse of write_columns for a whole tile. Warp, converged.
template <int BLOCK, int COLS, int LINES, class T, int N>
TDSL_FN void read_columns(u32 smem, Packed<T, N>& x, u32 row, u32 lane) {
  static_assert(sizeof(T) == 2 && COLS % 8 == 0, "16-bit elements, columns in eights");
  const u32 base = smem + row / 64 * (LINES * 128) + ((lane >> 4) * 8 + (lane & 7)) * 128;
  const u32 chunk = ((row % 64 / 8 + (lane >> 3 & 1)) ^ (lane & 7)) << 4;
#pragma unroll
  for (int m = 0; m < N / 2 / BLOCK; ++m) {
#pragma unroll
    for (int c = 0; c < COLS; c += 16) {
      const int w = m * BLOCK + c / 4;
      const u32 addr = base + m * (LINES * 128) + c * 128 + chunk;
      if (c + 16 <= COLS) ldmatrix_x4_trans(addr, x.w[w], x.w[w + 1], x.w[w + 2], x.w[w + 3]);
      else ldmatrix_x2_trans(addr, x.w[w], x.w[w + 1]);
    }
  }
}

// Ends when loads from shared memory to x have arrived: something has to consume a register, or a later arrive
// overtakes its load. A store that a test of all of them guards stays where it is. Thread.
template <int BLOCK, int FIRST, int COLS, class T, int N> TDSL_FN void part_arrived(const Packed<T, N>& x, u32 scratch) {
  u32 all = 0;
#pragma unroll
  for (int m = 0; m < N / 2 / BLOCK; ++m) {
#pragma unroll
    for (int c = 0; c < COLS / 4; ++c) all |= x.w[m * BLOCK + FIRST / 4 + c];
  }
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0x7FC1FFFE;\n@p st.shared.u32 [%1], %0;\n}" ::"r"(all), "r"(scratch)
               : "memory");
}
template <class T, int N> TDSL_FN u32 any_bits(const T (&x)[N]) {
  static_assert(sizeof(T) == 4);
  u32 all = 0;
#pragma unroll
  for (int j = 0; j < N; ++j) all |= bits_as<u32>(x[j]);
  return all;
}
template <class T, int N> TDSL_FN u32 any_bits(const Packed<T, N>& x) {
  u32 all = 0;
#pragma unroll
  for (int j = 0; j < Packed<T, N>::WORDS; ++j) all |= x.w[j];
  return all;
}
template <class X> TDSL_FN void arrived(const X& x, u32 scratch) {
  const u32 all = any_bits(x);
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0x7FC1FFFE;\n@p st.shared.u32 [%1], %0;\n}" ::"r"(all), "r"(scratch)
               : "memory");
}
// As arrived, one test for several.
template <class... X> TDSL_FN void all_arrived(u32 scratch, const X&... x) {
  const u32 all[1] = {(any_bits(x) | ...)};
  arrived(all, scratch);
}

}  // namespace tdsl
