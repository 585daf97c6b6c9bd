// widen.cuh - bit fields of 8-bit elements as 16-bit floats, two elements an instruction: the bits become the low
// bits of the mantissa of a number whose exponent makes them units, and what that adds is taken off again. Exact.
#pragma once
#include "tiledsl/regs.cuh"
#include "tiledsl/types.cuh"

namespace tdsl {

// fma.rn.{bf16x2,f16x2}: of pairs, each element rounded once. Thread. ISA: Half Precision Floating Point
// Instructions: fma.
template <class T> TDSL_FN u32 fma_pair(u32 a, u32 b, u32 c);
template <> TDSL_FN u32 fma_pair<bf16>(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
template <> TDSL_FN u32 fma_pair<f16>(u32 a, u32 b, u32 c) {
  u32 r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}
TDSL_FN constexpr u32 twice_u16(u32 x) { return x | x << 16; }
// The bits of a whole number of at most 8 (bf16) or 11 (f16) significant bits, times 2 to the power -DOWN.
template <int MANTISSA, int BIAS> TDSL_FN constexpr u32 small_bits(int x, int down = 0) {
  if (x == 0) return 0;
  const u32 sign = x < 0 ? 0x8000u : 0u;
  u32 m = x < 0 ? -x : x;
  int e = 0;
  while (m >> e > 1u) ++e;
  m = e > MANTISSA ? m >> (e - MANTISSA) : m << (MANTISSA - e);
  return sign | (u32)(e - down + BIAS) << MANTISSA | (m & ((1u << MANTISSA) - 1u));
}

// A constant that ptxas takes for a variable, which stays in a register outside of loops: an instruction has room for
// one that is written out, and a second one costs another instruction each time. No SM has so high a number. Thread.
// ISA: Special Registers: %smid.
TDSL_FN u32 kept_constant(u32 x) {
  u32 sm;
  asm("mov.u32 %0, %%smid;" : "=r"(sm));
  return x ^ sm >> 24;
}

// Bits FIRST .. FIRST + BITS - 1 of the bytes 0 and 1 of `raw`, as numbers (of two's complement where SIGNED) plus
// OFFSET, as a pair of T. The results have at most 8 significant bits. Thread. ISA: prmt, lop3, sub.
template <class T, int FIRST, int BITS, bool SIGNED, int OFFSET> struct Widen;
template <int FIRST, int BITS, bool SIGNED, int OFFSET> struct Widen<bf16, FIRST, BITS, SIGNED, OFFSET> {
  static constexpr u32 FLIP = SIGNED ? twice_u16(1u << (BITS - 1)) : 0u;
  u32 exponents = kept_constant(0x43434343u), second = kept_constant(BITS == 8 ? 0x3f803f80u : FIRST ? 0x43004300u | FLIP : FLIP);

  TDSL_FN u32 pair(u32 raw) const {
    const u32 v = __byte_perm(raw, exponents, 0x4140);  // 128 + the lower 7 bits, where the eighth is 0
    if constexpr (BITS < 8) {
      constexpr u32 mask = twice_u16((1u << BITS) - 1u);
      constexpr int more = 128 + (SIGNED ? 1 << (BITS - 1) : 0) - OFFSET;
      static_assert(more <= 256 || more % 2 == 0, "bf16 holds what is taken off");
      const u32 x = FIRST ? (v >> FIRST & mask) ^ second : (v & (0xff00ff00u | mask)) ^ second;
      return sub_pair<bf16>(x, twice_u16(small_bits<7, 127>(more)));
    } else {
      // The eighth bit is one of the exponent: with it, half of the number is 128 + the lower bits.
      const u32 half = (v & 0x00800080u) ^ second;  // 0.5 or 1
      const u32 less = fma_pair<bf16>(half, twice_u16(small_bits<7, 127>(SIGNED ? 256 : -256)),
                                  twice_u16(small_bits<7, 127>(SIGNED ? -384 : 128)));
      const u32 x = fma_pair<bf16>(half, v, less);
      return OFFSET ? sub_pair<bf16>(x, twice_u16(small_bits<7, 127>(-OFFSET))) : x;
    }
  }
};
template <int FIRST, int BITS, bool SIGNED, int OFFSET> struct Widen<f16, FIRST, BITS, SIGNED, OFFSET> {
  static constexpr u32 FLIP = SIGNED ? twice_u16(1u << (FIRST + BITS - 1)) : 0u;
  u32 exponents = kept_constant(0x64646464u), second = kept_constant(FLIP);

  TDSL_FN u32 pair(u32 raw) const {
    const u32 v = __byte_perm(raw, exponents, 0x4140);  // 1024 + the 8 bits
    constexpr u32 mask = twice_u16(((1u << BITS) - 1u) << FIRST);
    constexpr int more = (SIGNED ? 1 << (BITS - 1) : 0) - OFFSET;
    const u32 x = BITS < 8 || SIGNED ? (v & (0xff00ff00u | mask)) ^ second : v;
    if constexpr (FIRST == 0) return sub_pair<f16>(x, twice_u16(small_bits<10, 15>(1024 + more)));
    return fma_pair<f16>(x, twice_u16(small_bits<10, 15>(1, FIRST)),
                     twice_u16(small_bits<10, 15>(-(1024 >> FIRST) - more)));
  }
};
// The same of all elements of a tile. Thread.
template <int FIRST, int BITS, bool SIGNED, int OFFSET, class T, class From, int N>
TDSL_FN void widen(Packed<T, N>& to, const Packed<From, N>& from) {
  static_assert(sizeof(T) == 2 && sizeof(From) == 1 && N % 2 == 0, "from 8 bits to 16, in pairs");
  const Widen<T, FIRST, BITS, SIGNED, OFFSET> w;
#pragma unroll
  for (int j = 0; j < N / 2; ++j) to.w[j] = w.pair(j % 2 ? from.w[j / 2] >> 16 : from.w[j / 2] & 0xffffu);
}
// 8-bit floats as 16-bit ones, in pairs. Thread. ISA: cvt.
template <class T, class From, int N> TDSL_FN void widen_floats(Packed<T, N>& to, const Packed<From, N>& from) {
  static_assert(sizeof(T) == 2 && sizeof(From) == 1 && N % 2 == 0, "from 8 bits to 16, in pairs");
#pragma unroll
  for (int j = 0; j < N / 2; ++j) {
    float lo, hi;
    from.get2(j, lo, hi);
    to.pack2(j, lo, hi);
  }
}
// Each pair of elements times one scale, element index(i) of `scales` for both. Thread. ISA: prmt, mul.
template <class T, int N, int M, class I>
TDSL_FN void scale_pairs(Packed<T, N>& x, const Packed<T, M>& scales, I index) {
#pragma unroll
  for (int j = 0; j < N / 2; ++j) {
    const int i = index(2 * j);
    x.w[j] = mul_pair<T>(x.w[j], __byte_perm(scales.w[i / 2], 0u, i % 2 ? 0x3232 : 0x1010));
  }
}

}  // namespace tdsl
