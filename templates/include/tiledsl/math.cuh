// math.cuh - elementary functions, minimum and maximum, integer division. All functions: thread.
// Names such as exp also exist outside the namespace: write tdsl::exp.
#pragma once
#include "tiledsl/types.cuh"

namespace tdsl {

// ------------------------------------------------------------------ accurate
// The compiler's own math library: errors of at most a few units in the last place, except where the
// whole program is compiled with fast math. ISA: Floating Point Instructions.
TDSL_FN float exp(float x) { return expf(x); }
TDSL_FN double exp(double x) { return ::exp(x); }
TDSL_FN float exp2(float x) { return exp2f(x); }
TDSL_FN double exp2(double x) { return ::exp2(x); }
TDSL_FN float log(float x) { return logf(x); }
TDSL_FN double log(double x) { return ::log(x); }
TDSL_FN float log2(float x) { return log2f(x); }
TDSL_FN double log2(double x) { return ::log2(x); }
TDSL_FN float tanh(float x) { return tanhf(x); }
TDSL_FN double tanh(double x) { return ::tanh(x); }
// Error function without branches, so that many of them interleave in few registers: x P(x^2) below 0.95, above it
// 1 - 2^(|x| Q(|x|)), polynomials fitted to minimal largest error. At most 3 ulp. Thread. ISA: fma, ex2.
TDSL_FN float erf(float x) {
  const float t = fminf(fabsf(x), 4.0f), s = x * x;
  float p = 8.215423736e-05f;
  p = fmaf(p, s, -8.105965126e-04f);
  p = fmaf(p, s, 5.197797168e-03f);
  p = fmaf(p, s, -2.685810429e-02f);
  p = fmaf(p, s, 1.128367255e-01f);
  p = fmaf(p, s, -3.761263229e-01f);
  p = fmaf(p, s, 1.128379166e+00f);
  float q = -6.224301466e-06f;
  q = fmaf(q, t, 5.472376248e-05f);
  q = fmaf(q, t, 1.281686620e-04f);
  q = fmaf(q, t, -4.385001175e-03f);
  q = fmaf(q, t, 3.296923407e-02f);
  q = fmaf(q, t, -1.521083558e-01f);
  q = fmaf(q, t, -9.168852641e-01f);
  q = fmaf(q, t, -1.628183977e+00f);
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(q * t));
  return fabsf(x) >= 0.95f ? copysignf(1.0f - e, x) : p * x;
}
TDSL_FN double erf(double x) { return ::erf(x); }
TDSL_FN float pow(float x, float y) { return powf(x, y); }
TDSL_FN double pow(double x, double y) { return ::pow(x, y); }
// sin and cos of a large argument use a short stack frame (local memory); the f64 forms of pow, sin and
// cos are real calls, which a kernel with wgmma in flight cannot have.
TDSL_FN float sin(float x) { return sinf(x); }
TDSL_FN double sin(double x) { return ::sin(x); }
TDSL_FN float cos(float x) { return cosf(x); }
TDSL_FN double cos(double x) { return ::cos(x); }
// sqrt.rn, correctly rounded. ISA: sqrt.
TDSL_FN float sqrt(float x) { return __fsqrt_rn(x); }
TDSL_FN double sqrt(double x) { return ::sqrt(x); }
// rsqrt.approx.f32, 2^-22.4 relative. ISA: rsqrt.
TDSL_FN float rsqrt(float x) { return rsqrtf(x); }
TDSL_FN double rsqrt(double x) { return ::rsqrt(x); }
// div.rn, correctly rounded. ISA: div.
TDSL_FN float div_rn(float x, float y) { return __fdiv_rn(x, y); }
TDSL_FN double div_rn(double x, double y) { return x / y; }
// fma.rn. ISA: fma.
TDSL_FN float fma(float x, float y, float z) { return __fmaf_rn(x, y, z); }
TDSL_FN double fma(double x, double y, double z) { return __fma_rn(x, y, z); }
// cvt.rmi, cvt.rpi, abs. ISA: cvt, abs.
TDSL_FN float floor(float x) { return floorf(x); }
TDSL_FN double floor(double x) { return ::floor(x); }
TDSL_FN float ceil(float x) { return ceilf(x); }
TDSL_FN double ceil(double x) { return ::ceil(x); }
TDSL_FN float abs(float x) { return fabsf(x); }
TDSL_FN double abs(double x) { return fabs(x); }
TDSL_FN i32 abs(i32 x) { return x < 0 ? -x : x; }
TDSL_FN i64 abs(i64 x) { return x < 0 ? -x : x; }

// ------------------------------------------------------------------ approximate, one instruction
// ex2.approx.ftz.f32: 2^x, 2^-22.5 relative; subnormals are zero. ISA: ex2.
TDSL_FN float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// lg2.approx.ftz.f32. ISA: lg2.
TDSL_FN float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// rcp.approx.ftz.f32, 1 ulp. ISA: rcp.
TDSL_FN float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// x / y, 2 ulp over the full range: div.full.f32 in steps, so that those on y are taken once where many are divided by
// it. ISA: rcp.
TDSL_FN float div_full(float x, float y) {
  const float size = fabsf(y);
  const float scale = size > 0x1p126f ? 0.25f : size < 0x1p-126f ? 0x1p24f : 1.0f;
  return x * scale * rcp_approx(y * scale);
}
// x / y of y >= 1, 2 ulp of a normal result: of y up to 2^128 a quarter has a normal reciprocal. ISA: rcp.
TDSL_FN float div_normal(float x, float y) { return x * 0.25f * rcp_approx(y * 0.25f); }
// 1 / y, 2 ulp over the full range, as one instruction: the steps of div_full wander to where y is made, and slots and
// descriptors of the loops around leave the uniform registers (16 moves before a chain of wgmmas). Thread. ISA: div.
TDSL_FN float reciprocal(float y) {
  float r;
  asm("div.full.f32 %0, 0f3F800000, %1;" : "=f"(r) : "f"(y));
  return r;
}
// tanh.approx.f32, 2^-11 relative. ISA: tanh.
TDSL_FN float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// rsqrt.approx.ftz.f32. ISA: rsqrt.
TDSL_FN float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ------------------------------------------------------------------ minimum, maximum
// max.NaN.f32 / min.NaN.f32: NaN when either is NaN. ISA: max, min.
TDSL_FN float max_nan(float x, float y) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
TDSL_FN float min_nan(float x, float y) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
}
TDSL_FN double max_nan(double x, double y) { return x > y || x != x ? x : y; }
TDSL_FN double min_nan(double x, double y) { return x < y || x != x ? x : y; }
// e^x of x <= 0 or NaN: 2^t for t = x log2(e), times what t is off by. 2 ulp; below 2^-126 it is 0. ISA: ex2, fma.
TDSL_FN float exp_nonpositive(float x) {
  x = max_nan(x, -104.0f);
  const float t = x * 1.442695041f, y = exp2_approx(t);
  const float rest = fmaf(t, 1.904654323e-09f, fmaf(t, -0.6931471825f, x));  // x - t log(2)
  return fmaf(y, rest, y);
}
// erf(s x) of a constant s > 0, right to 2e-7, for where it only adds to 1: 1 - 2^(t Q(t)) for t = |s x| up to 4.35, Q
// fitted to minimal largest error of 2^(t Q(t)); its coefficients take in the powers of s. No operand of the chain has a
// modifier: with |x| in place of t, behind a matmul, the wgmmas of the other warpgroup lose 3 %. Thread. ISA: fma, ex2.
TDSL_FN float erf_absolute(float x, float s) {
  const float s2 = s * s, s4 = s2 * s2, t = min_nan(fabsf(x), 4.35f / s);
  float q = 1.002092929e-04f * (s4 * s2 * s);
  q = fmaf(q, t, -4.615055223e-04f * (s4 * s2));
  q = fmaf(q, t, -2.302384004e-03f * (s4 * s));
  q = fmaf(q, t, 2.945266478e-02f * s4);
  q = fmaf(q, t, -1.489637494e-01f * (s2 * s));
  q = fmaf(q, t, -9.183286429e-01f * s2);
  q = fmaf(q, t, -1.627913713e+00f * s);
  return copysignf(1.0f - exp2_approx(q * t), x);
}
// tanh(s x) of a constant s > 0, right to 3e-7, where tanh only adds to 1. Thread. ISA: ex2, rcp, fma.
TDSL_FN float tanh_absolute(float x, float s) {
  const float y = exp2_approx(fabsf(x) * (2.885390082f * s));
  return copysignf(fmaf(-2.0f, rcp_approx(1.0f + y), 1.0f), x);
}
// set.{gt,ge,lt,le}.f32: 1 where x lies beyond a limit, else 0. Thread. ISA: set.
struct IsOver {
  static TDSL_FN float one(float x, float limit) {
    float r;
    asm("set.gt.f32.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(limit));
    return r;
  }
};
struct IsFrom {
  static TDSL_FN float one(float x, float limit) {
    float r;
    asm("set.ge.f32.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(limit));
    return r;
  }
};
struct IsBelow {
  static TDSL_FN float one(float x, float limit) {
    float r;
    asm("set.lt.f32.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(limit));
    return r;
  }
};
struct IsUpTo {
  static TDSL_FN float one(float x, float limit) {
    float r;
    asm("set.le.f32.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(limit));
    return r;
  }
};
// How many limits x lies beyond: sums have twice the rate of comparisons and selects. Thread. ISA: set, add.
template <class HOW, class... L> TDSL_FN i32 count_steps(float x, L... limits) {
  float count = 8388608.0f;  // 2^23 plus an integer: its bits
  ((count += HOW::one(x, limits)), ...);
  return __float_as_int(count) - 0x4b000000;
}
// max.f32 / min.f32: the other one when one is NaN; integers of any width. ISA: max, min.
template <class T> TDSL_FN T max_num(T x, T y) { return x > y ? x : y; }
template <class T> TDSL_FN T min_num(T x, T y) { return x < y ? x : y; }
template <> TDSL_FN float max_num<float>(float x, float y) { return fmaxf(x, y); }
template <> TDSL_FN float min_num<float>(float x, float y) { return fminf(x, y); }
template <> TDSL_FN double max_num<double>(double x, double y) { return fmax(x, y); }
template <> TDSL_FN double min_num<double>(double x, double y) { return fmin(x, y); }
// max.{bf16x2,f16x2} / min: of both 16-bit floats of two words; the other one when one is NaN. ISA: max, min.
template <class T> TDSL_FN u32 max_pair(u32 x, u32 y);
template <class T> TDSL_FN u32 min_pair(u32 x, u32 y);
template <> TDSL_FN u32 max_pair<bf16>(u32 x, u32 y) {
  u32 r;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
template <> TDSL_FN u32 min_pair<bf16>(u32 x, u32 y) {
  u32 r;
  asm("min.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
template <> TDSL_FN u32 max_pair<f16>(u32 x, u32 y) {
  u32 r;
  asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
template <> TDSL_FN u32 min_pair<f16>(u32 x, u32 y) {
  u32 r;
  asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}

// max.s32, min.s32. Of a plain expression with a constant the compiler copies what follows, once
// for the case that the constant is the result. ISA: max, min.
TDSL_FN int max_s32(int x, int y) {
  int r;
  asm("max.s32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
TDSL_FN int min_s32(int x, int y) {
  int r;
  asm("min.s32 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y));
  return r;
}
// How many of the N numbers from `start` on are below a limit (S: 0), or up to it (S: 1); they do
// not wrap, and nothing here overflows.
template <int N, int S> TDSL_FN int count_numbers(int limit, int start) {
  constexpr int highest = 0x7fffffff, lowest = -highest - 1;
  int first = max_num(start, lowest + S) - S, end = min_num(start, highest - (N - S)) + (N - S);
  return min_s32(max_s32(limit, first), end) - start + S;
}
template <int N> TDSL_FN int count_below(int limit, int start) {
  return count_numbers<N, 0>(limit, start);
}
template <int N> TDSL_FN int count_up_to(int limit, int start) {
  return count_numbers<N, 1>(limit, start);
}
// Whether a place lies from 0 up to a limit, which may be less.
TDSL_FN bool is_within(int place, int limit) { return (u32)place < (u32)max_s32(limit, 0); }
// A place of a turned row, from -extent on; accesses take one before the row for one of its end (shifted.cuh).
TDSL_FN int signed_place(int place) { return place; }
// Its place in the tile, a power of two: only the first V registers of a thread can lie before the row.
template <int V, int EXTENT> TDSL_FN int around(int reg, int place) { return reg < V ? place & (EXTENT - 1) : place; }
// A loop over registers in which it is known of all places, or is not: f is called with one of both. Warp, converged.
template <bool ALL> struct Whole { static constexpr bool value = ALL; };
template <bool ALL> TDSL_FN bool is_within(Whole<ALL>, int place, int limit) { return ALL || is_within(place, limit); }
template <class F> TDSL_FN void with_whole(bool all, F f) {
  if (__all_sync(0xffffffffu, all)) f(Whole<true>{});
  else f(Whole<false>{});
}

// ------------------------------------------------------------------ integer division
// ceil(x / y) for x >= 0, y > 0; x + y - 1 must not overflow. ISA: div.
template <class T> TDSL_FN T cdiv(T x, T y) { return (x + y - 1) / y; }
// Toward zero, as C and as `//` on run-time integers of the language. ISA: div.
template <class T> TDSL_FN T div_trunc(T x, T y) { return x / y; }
// Remainder of div_trunc: the sign of x. ISA: rem.
template <class T> TDSL_FN T mod_trunc(T x, T y) { return x % y; }
// Toward minus infinity, as Python. ISA: div.
template <class T> TDSL_FN T div_floor(T x, T y) {
  const T q = x / y;
  if constexpr (T(-1) > T(0)) return q;   // unsigned
  else return q * y != x && (x ^ y) < 0 ? q - 1 : q;
}
// Remainder of div_floor: the sign of y. ISA: rem.
template <class T> TDSL_FN T mod_floor(T x, T y) {
  const T r = x % y;
  if constexpr (T(-1) > T(0)) return r;   // unsigned
  else return r != 0 && (r ^ y) < 0 ? r + y : r;
}

}  // namespace tdsl
