// types.cuh - element types, storage structs and their conversions to and from float.
//
// Nothing outside this folder is included, so NVRTC compiles every header without a search path.
// Each function below names its PTX form, who executes it, its memory order where it touches
// memory, and the section of the PTX ISA that defines it.
#pragma once
#include "tiledsl/build.cuh"

#define TDSL_FN __device__ __forceinline__

namespace tdsl {

using u8 = unsigned char;
using i8 = signed char;
using u16 = unsigned short;
using i16 = short;
using u32 = unsigned int;
using i32 = int;
using u64 = unsigned long long;
using i64 = long long;

// Storage of one element; arithmetic goes through float.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct e4m3 { u8 bits; };
struct e5m2 { u8 bits; };

// The bytes of the driver's CUtensorMap; pass it as a `const __grid_constant__` kernel parameter.
struct alignas(64) TensorMap { u64 opaque[16]; };
// A parameter of each tensor of a list.
template <class T, int N> struct Table { T at[N]; };

// Same bits as another type of the same size; no instruction. Thread.
template <class To, class From> TDSL_FN To bits_as(From x) {
  static_assert(sizeof(To) == sizeof(From), "bits_as needs types of one size");
  return *reinterpret_cast<const To*>(&x);
}

// ------------------------------------------------------------------ pairs of floats <-> words
// In every pair `lo` is the element at the lower address (the low half of the word).

// cvt.rn.bf16x2.f32, nearest even. Thread. ISA: Data Movement and Conversion: cvt.
TDSL_FN u32 pack_bf16x2(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// cvt.rn.f16x2.f32, nearest even, overflow gives infinity. Thread. ISA: cvt.
TDSL_FN u32 pack_f16x2(float lo, float hi) {
  u32 r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
// cvt.rn.satfinite.e4m3x2.f32: nearest even, saturates to +-448 (infinities too), NaN stays. Thread. ISA: cvt.
TDSL_FN u16 pack_e4m3x2(float lo, float hi) {
  u16 r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
  return r;
}
// cvt.rn.satfinite.e5m2x2.f32: nearest even, saturates to +-57344 (infinities too), NaN stays. Thread. ISA: cvt.
TDSL_FN u16 pack_e5m2x2(float lo, float hi) {
  u16 r;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
  return r;
}
// mov.b32 {lo, hi}: ptxas lets the second of two 8-bit cvts write the upper half beside the first one's. Thread.
TDSL_FN u32 join_u16(u16 lo, u16 hi) {
  u32 r;
  asm("mov.b32 %0, {%1, %2};" : "=r"(r) : "h"(lo), "h"(hi));
  return r;
}
// shl / and: bf16 is the upper half of a float. Thread.
TDSL_FN void unpack_bf16x2(u32 w, float& lo, float& hi) {
  lo = __uint_as_float(w << 16);
  hi = __uint_as_float(w & 0xffff0000u);
}
// cvt.f32.f16 of both halves, exact. Thread. ISA: cvt.
TDSL_FN void unpack_f16x2(u32 w, float& lo, float& hi) {
  asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
      : "=f"(lo), "=f"(hi) : "r"(w));
}
// cvt.rn.f16x2.e4m3x2 then cvt.f32.f16, exact. Thread. ISA: cvt.
TDSL_FN void unpack_e4m3x2(u16 w, float& lo, float& hi) {
  u32 h;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(w));
  unpack_f16x2(h, lo, hi);
}
// cvt.rn.f16x2.e5m2x2 then cvt.f32.f16, exact. Thread. ISA: cvt.
TDSL_FN void unpack_e5m2x2(u16 w, float& lo, float& hi) {
  u32 h;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(h) : "h"(w));
  unpack_f16x2(h, lo, hi);
}

// ------------------------------------------------------------------ one element
TDSL_FN float to_float(float x) { return x; }
// shl by 16, exact. Thread.
TDSL_FN float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
// cvt.f32.f16, exact. Thread. ISA: cvt.
TDSL_FN float to_float(f16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
// cvt.rn.f16x2.e4m3x2, exact. Thread. ISA: cvt.
TDSL_FN float to_float(e4m3 x) {
  float lo, hi;
  unpack_e4m3x2(x.bits, lo, hi);
  return lo;
}
// cvt.rn.f16x2.e5m2x2, exact. Thread. ISA: cvt.
TDSL_FN float to_float(e5m2 x) {
  float lo, hi;
  unpack_e5m2x2(x.bits, lo, hi);
  return lo;
}

// Rounds to nearest even; the fp8 types saturate to their largest finite value. Thread. ISA: cvt.
template <class T> TDSL_FN T from_float(float x);
template <> TDSL_FN float from_float<float>(float x) { return x; }
template <> TDSL_FN bf16 from_float<bf16>(float x) { return bf16{(u16)pack_bf16x2(x, 0.0f)}; }
template <> TDSL_FN f16 from_float<f16>(float x) {
  f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
template <> TDSL_FN e4m3 from_float<e4m3>(float x) { return e4m3{(u8)pack_e4m3x2(x, 0.0f)}; }
template <> TDSL_FN e5m2 from_float<e5m2>(float x) { return e5m2{(u8)pack_e5m2x2(x, 0.0f)}; }

}  // namespace tdsl
