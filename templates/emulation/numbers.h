// numbers.h - the small float formats: conversions as `cvt` does them, nearest even.
#pragma once

namespace emu {

template <class To, class From> inline To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "one size");
  To to;
  __builtin_memcpy(&to, &x, sizeof(To));
  return to;
}

// A float as sign, E exponent bits and M mantissa bits. IEEE: the top exponent holds infinities and NaN; otherwise
// (e4m3) only the all-ones pattern is NaN. SATURATE: what is beyond the largest value becomes it, infinities too.
template <int E, int M, bool IEEE, bool SATURATE> inline unsigned to_small(float x) {
  const unsigned bits = bits_as<unsigned>(x), sign = bits >> 31 << (E + M), magnitude = bits & 0x7fffffffu;
  constexpr unsigned ones = (1u << (E + M)) - 1, infinity = ((1u << E) - 1) << M;
  constexpr unsigned most = IEEE ? infinity - 1 : ones - 1;
  constexpr unsigned nan = E + M == 15 ? 0x7fffu : IEEE ? ones : ones;
  if (magnitude > 0x7f800000u) return E + M == 15 ? nan : nan;       // cvt gives the canonical NaN, sign cleared
  constexpr int bias = (1 << (E - 1)) - 1;
  int exponent = (int)(magnitude >> 23) - 127;
  unsigned mantissa = (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0);
  if (!(magnitude >> 23)) exponent = -126;
  if (magnitude == 0x7f800000u) return sign | (SATURATE ? most : infinity);
  int shift = 23 - M;                                                // bits to drop
  if (exponent < 1 - bias) shift += 1 - bias - exponent;
  unsigned rounded;
  if (shift > 25) {
    rounded = 0;
  } else {
    const unsigned half = 1u << (shift - 1), rest = mantissa & ((1u << shift) - 1);
    rounded = mantissa >> shift;
    rounded += rest > half || (rest == half && (rounded & 1));
  }
  // A carry out of the mantissa moves into the exponent by itself.
  const unsigned biased = exponent < 1 - bias ? 0 : (unsigned)(exponent + bias - 1) << M;
  const unsigned value = biased + rounded;
  if (value > most) return sign | (SATURATE ? most : infinity);
  return sign | value;
}
template <int E, int M, bool IEEE> inline float from_small(unsigned bits) {
  const unsigned sign = (bits >> (E + M)) & 1, field = (bits >> M) & ((1u << E) - 1), mantissa = bits & ((1u << M) - 1);
  constexpr int bias = (1 << (E - 1)) - 1;
  if (IEEE && field == (1u << E) - 1) return bits_as<float>(sign << 31 | 0x7f800000u | mantissa << (23 - M));
  if (!IEEE && (bits & ((1u << (E + M)) - 1)) == (1u << (E + M)) - 1) return bits_as<float>(0x7fffffffu);
  if (field) return bits_as<float>(sign << 31 | (field + 127 - bias) << 23 | mantissa << (23 - M));
  const float tiny = bits_as<float>((unsigned)(1 - bias - M + 127) << 23);
  const float value = (float)mantissa * tiny;
  return sign ? -value : value;
}

inline unsigned short to_bf16(float x) { return (unsigned short)to_small<8, 7, true, false>(x); }
inline unsigned short to_f16(float x) { return (unsigned short)to_small<5, 10, true, false>(x); }
inline unsigned char to_e4m3(float x) { return (unsigned char)to_small<4, 3, false, true>(x); }
inline unsigned char to_e5m2(float x) { return (unsigned char)to_small<5, 2, true, true>(x); }
inline float from_bf16(unsigned bits) { return bits_as<float>(bits << 16); }
inline float from_f16(unsigned bits) { return from_small<5, 10, true>(bits & 0xffff); }
inline float from_e4m3(unsigned bits) { return from_small<4, 3, false>(bits & 0xff); }
inline float from_e5m2(unsigned bits) { return from_small<5, 2, true>(bits & 0xff); }

// cvt.rna: nearest, ties away from zero, 10 bits of mantissa.
inline unsigned to_tf32(float x) {
  const unsigned bits = bits_as<unsigned>(x);
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

inline unsigned pair16(unsigned low, unsigned high) { return (low & 0xffffu) | high << 16; }
template <class From, class To> inline unsigned fma_pairs(unsigned a, unsigned b, unsigned c, From from, To to) {
  const auto one = [&](unsigned x, unsigned y, unsigned z) { return to(from(x) * from(y) + from(z)); };
  return pair16(one(a, b, c), one(a >> 16, b >> 16, c >> 16));
}
inline unsigned short pair8(unsigned low, unsigned high) { return (unsigned short)((low & 0xffu) | high << 8); }

}  // namespace emu
