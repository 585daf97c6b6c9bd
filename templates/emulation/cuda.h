// cuda.h - the words of CUDA C++ that kernels and device headers use, on the host. Included before everything else.
#pragma once
#include <cstddef>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS         // half of what every kernel would load, and nothing needs it
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "machine.h"
#include "numbers.h"

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) alignas(n)
#define __forceinline__ inline __attribute__((always_inline))
#define threadIdx (::emu::self->thread)
#define blockIdx (::emu::self->block)
#define blockDim (::emu::self->num_threads)
#define gridDim (::emu::self->num_blocks)

using std::isfinite;
using std::isinf;
using std::isnan;

// ------------------------------------------------------------------ warp and block
inline void __syncthreads() { ::emu::block_sync(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { ::emu::warp_sync(mask); }

namespace emu {
template <class T> inline T shuffled(Shuffle kind, u32 mask, T v, u32 operand, u32 width) {
  static_assert(sizeof(T) <= 8, "4 or 8 bytes");
  u64 bits = 0;
  __builtin_memcpy(&bits, &v, sizeof(T));
  bits = shuffle(kind, mask, bits, operand, width);
  __builtin_memcpy(&v, &bits, sizeof(T));
  return v;
}
}  // namespace emu

template <class T> inline T __shfl_sync(unsigned mask, T v, int lane, int width = 32) {
  return ::emu::shuffled(::emu::Shuffle::idx, mask, v, lane, width);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int lanes, int width = 32) {
  return ::emu::shuffled(::emu::Shuffle::bfly, mask, v, lanes, width);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  return ::emu::shuffled(::emu::Shuffle::up, mask, v, delta, width);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32) {
  return ::emu::shuffled(::emu::Shuffle::down, mask, v, delta, width);
}
inline int __reduce_add_sync(unsigned m, int v) { return (int)::emu::reduce(::emu::Reduce::add_i, m, (unsigned)v); }
inline unsigned __reduce_add_sync(unsigned m, unsigned v) { return ::emu::reduce(::emu::Reduce::add_u, m, v); }
inline int __reduce_max_sync(unsigned m, int v) { return (int)::emu::reduce(::emu::Reduce::max_i, m, (unsigned)v); }
inline unsigned __reduce_max_sync(unsigned m, unsigned v) { return ::emu::reduce(::emu::Reduce::max_u, m, v); }
inline int __reduce_min_sync(unsigned m, int v) { return (int)::emu::reduce(::emu::Reduce::min_i, m, (unsigned)v); }
inline unsigned __reduce_min_sync(unsigned m, unsigned v) { return ::emu::reduce(::emu::Reduce::min_u, m, v); }
inline unsigned __reduce_and_sync(unsigned m, unsigned v) { return ::emu::reduce(::emu::Reduce::and_b, m, v); }
inline unsigned __reduce_or_sync(unsigned m, unsigned v) { return ::emu::reduce(::emu::Reduce::or_b, m, v); }
inline unsigned __reduce_xor_sync(unsigned m, unsigned v) { return ::emu::reduce(::emu::Reduce::xor_b, m, v); }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) {
  return (unsigned)(((unsigned long long)hi << 32 | lo) >> (n & 31));
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) {
  return (unsigned)((((unsigned long long)hi << 32 | lo) << (n & 31)) >> 32);
}
inline unsigned __ballot_sync(unsigned mask, int v) { return ::emu::ballot(mask, v != 0); }
inline int __any_sync(unsigned mask, int v) { return ::emu::ballot(mask, v != 0) != 0; }
inline int __all_sync(unsigned mask, int v) { return ::emu::ballot(mask, v == 0) == 0; }
inline unsigned __activemask() { return 0xffffffffu; }
inline void __threadfence() { ::emu::fence(); }
inline void __threadfence_block() { ::emu::fence(); }
inline void __threadfence_system() { ::emu::fence(); }
inline void __nanosleep(unsigned) { ::emu::step(); }
inline long long clock64() { return (long long)::emu::clock(); }
inline unsigned long __cvta_generic_to_shared(const void* p) { return ::emu::shared_address(p); }

// ------------------------------------------------------------------ bits and numbers
inline float __uint_as_float(unsigned x) { return ::emu::bits_as<float>(x); }
inline unsigned __float_as_uint(float x) { return ::emu::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return ::emu::bits_as<float>(x); }
inline int __float_as_int(float x) { return ::emu::bits_as<int>(x); }
inline long long __double_as_longlong(double x) { return ::emu::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return ::emu::bits_as<double>(x); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const unsigned long long both = (unsigned long long)y << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned s = selector >> (4 * i), byte = (unsigned)(both >> (8 * (s & 7))) & 0xffu;
    out |= (s & 8 ? (byte & 0x80u ? 0xffu : 0u) : byte) << (8 * i);
  }
  return out;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned out = 0;
  for (int i = 0; i < 32; ++i) out |= (x >> i & 1u) << (31 - i);
  return out;
}
inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long long)x * y >> 32); }
inline int __mulhi(int x, int y) { return (int)((long long)x * y >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return (unsigned long long)((unsigned __int128)x * y >> 64);
}
namespace emu {
// Toward zero, saturating; NaN gives 0 for 32 bits and the most negative value (u64: its top bit) for 64 bits.
template <class To, class From> inline To to_int(From x) {
  constexpr bool is_signed = To(-1) < To(0);
  constexpr To most = is_signed ? (To)(((u64)1 << (8 * sizeof(To) - 1)) - 1) : (To)-1;
  constexpr To least = is_signed ? (To)(-most - 1) : (To)0;
  if (x != x) return sizeof(To) == 8 ? (To)((u64)1 << 63) : (To)0;
  if (x >= (From)most) return most;
  if (x <= (From)least) return least;
  return (To)x;
}
}  // namespace emu

#include "intrinsics.h"

inline int min(int x, int y) { return x < y ? x : y; }
inline int max(int x, int y) { return x > y ? x : y; }
inline unsigned min(unsigned x, unsigned y) { return x < y ? x : y; }
inline unsigned max(unsigned x, unsigned y) { return x > y ? x : y; }
inline long long min(long long x, long long y) { return x < y ? x : y; }
inline long long max(long long x, long long y) { return x > y ? x : y; }
inline float min(float x, float y) { return fminf(x, y); }
inline float max(float x, float y) { return fmaxf(x, y); }

// Maxima and minima that ignore signalling NaNs, too, where those of libm are quiet NaNs.
namespace tdsl {
inline float fmaxf(float x, float y) { return y != y ? x : x != x ? y : ::fmaxf(x, y); }
inline float fminf(float x, float y) { return y != y ? x : x != x ? y : ::fminf(x, y); }
inline double fmax(double x, double y) { return y != y ? x : x != x ? y : ::fmax(x, y); }
inline double fmin(double x, double y) { return y != y ? x : x != x ? y : ::fmin(x, y); }
}  // namespace tdsl

// ------------------------------------------------------------------ instructions of one statement
namespace emu {
inline float ftz(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
inline float max_nan(float x, float y) { return x != x || y != y ? bits_as<float>(0x7fffffffu) : fmaxf(x, y); }
inline float min_nan(float x, float y) { return x != x || y != y ? bits_as<float>(0x7fffffffu) : fminf(x, y); }
// The larger (or the smaller) one of both halves of two words, of 16-bit floats.
template <class From> inline unsigned of_halves(unsigned x, unsigned y, From from, bool larger) {
  const float a = from(x & 0xffffu), b = from(y & 0xffffu);
  if (a != a || b != b) return a == a ? x & 0xffffu : b == b ? y & 0xffffu : 0x7fffu;
  if (a == b) return (larger ? x & y : x | y) & 0xffffu;  // zeros of both signs
  return (larger ? a > b : a < b) ? x & 0xffffu : y & 0xffffu;
}
template <class From> inline unsigned of_pairs(unsigned x, unsigned y, From from, bool larger) {
  return pair16(of_halves(x, y, from, larger), of_halves(x >> 16, y >> 16, from, larger));
}
// Between a register and the bits that an instruction moves: same size as they are, else as integers.
template <class To, class From> inline void put(To& to, From from) {
  if constexpr (sizeof(To) == sizeof(From)) to = bits_as<To>(from);
  else to = (To)from;
}
template <class To, class From> inline To raw(From from) {
  To to;
  put(to, from);
  return to;
}
template <class T> __forceinline__ T* global(u64 p, u32 bytes) {  // what is aligned to its size
  check_global((const void*)p, bytes, true);
  return (T*)p;
}

// Atomic operations on memory at `p`; returns the old value.
enum class Atomic { add, min, max, and_, or_, xor_, exch, cas, inc, dec };
template <class T> inline T applied(Atomic kind, T old, T x, T y) {
  if constexpr (T(0.5) == T(0)) {
    switch (kind) {
      case Atomic::and_: return old & x;
      case Atomic::or_: return old | x;
      case Atomic::xor_: return old ^ x;
      case Atomic::inc: return old >= x ? 0 : old + 1;
      case Atomic::dec: return old == 0 || old > x ? x : old - 1;
      default: break;
    }
  }
  switch (kind) {
    case Atomic::add: return (T)(old + x);
    case Atomic::min: return x < old ? x : old;
    case Atomic::max: return x > old ? x : old;
    case Atomic::cas: return __builtin_memcmp(&old, &x, sizeof(T)) == 0 ? y : old;
    default: return x;
  }
}
template <class T> inline T atomic_at(Atomic kind, void* p, T x, T y = T()) {
  T old;
  __builtin_memcpy(&old, p, sizeof(T));
  const T made = applied(kind, old, x, y);
  __builtin_memcpy(p, &made, sizeof(T));
  return old;
}
// Small floats add through float. TO, FROM: the conversions.
template <float (*FROM)(unsigned), unsigned short (*TO)(float)> inline u16 atomic_half(void* p, u16 x) {
  u16 old;
  __builtin_memcpy(&old, p, 2);
  const u16 made = TO(FROM(old) + FROM(x));
  __builtin_memcpy(p, &made, 2);
  return old;
}
__forceinline__ void* atomic_global(u64 p, u32 bytes) {
  before_atomic();
  return (void*)global<u8>(p, bytes);
}
template <class T> __forceinline__ T atomic_on(Atomic kind, T* p, T x, T y = T()) {
  return atomic_at<T>(kind, atomic_global((u64)p, sizeof(T)), x, y);
}
template <class T> struct Same { using type = T; };

}  // namespace emu

template <class T> __forceinline__ T atomicAdd(T* p, typename emu::Same<T>::type x) { return emu::atomic_on(emu::Atomic::add, p, x); }
template <class T> __forceinline__ T atomicSub(T* p, typename emu::Same<T>::type x) { return emu::atomic_on(emu::Atomic::add, p, (T)-x); }
template <class T> __forceinline__ T atomicMin(T* p, typename emu::Same<T>::type x) { return emu::atomic_on(emu::Atomic::min, p, x); }
template <class T> __forceinline__ T atomicMax(T* p, typename emu::Same<T>::type x) { return emu::atomic_on(emu::Atomic::max, p, x); }
template <class T> __forceinline__ T atomicExch(T* p, typename emu::Same<T>::type x) { return emu::atomic_on(emu::Atomic::exch, p, x); }
template <class T> __forceinline__ T atomicAnd(T* p, typename emu::Same<T>::type x) { return emu::atomic_on(emu::Atomic::and_, p, x); }
template <class T> inline T atomicOr(T* p, typename emu::Same<T>::type x) { return emu::atomic_on(emu::Atomic::or_, p, x); }
template <class T> inline T atomicXor(T* p, typename emu::Same<T>::type x) { return emu::atomic_on(emu::Atomic::xor_, p, x); }
template <class T> inline T atomicCAS(T* p, typename emu::Same<T>::type x, typename emu::Same<T>::type y) {
  return emu::atomic_on(emu::Atomic::cas, p, x, y);
}

namespace emu {
// The kernel with its parameters from memory.
template <unsigned... I> struct Seq {};
template <class... A, unsigned... I> inline void call(void (*f)(A...), void** p, Seq<I...>) { f(*(A*)p[I]...); }
template <class... A> inline void invoke(void (*f)(A...), void** p) { call(f, p, Seq<__integer_pack(sizeof...(A))...>()); }
}  // namespace emu
