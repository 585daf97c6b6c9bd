// intrinsics.h - integer, rounding and math functions of CUDA C++ that the host's library lacks.
#pragma once
#include <fenv.h>
#include <math.h>

namespace emu {

// f() under a rounding mode; the operands are read through `volatile`, so that nothing moves out of it.
template <int MODE, class F> inline auto rounded(F f) {
  fesetround(MODE);
  volatile auto r = f();
  fesetround(FE_TONEAREST);
  return r;
}
// Newton's method for y with f(y) = x, from `y` on; `slope` is f'.
template <class F, class G> inline double solved(double x, double y, F f, G slope) {
  for (int i = 0; i < 60; ++i) {
    const double next = y - (f(y) - x) / slope(y);
    if (!(fabs(next - y) > 1e-17 * fabs(y))) return next;
    y = next;
  }
  return y;
}
inline double erf_inverse(double x) {
  if (!(fabs(x) < 1)) return fabs(x) == 1 ? copysign(INFINITY, x) : NAN;
  const double w = log(1 - x * x), a = 2 / (M_PI * 0.147) + w / 2;
  const double start = copysign(sqrt(sqrt(a * a - w / 0.147) - a), x);
  return solved(x, start, [](double y) { return erf(y); }, [](double y) { return 2 / sqrt(M_PI) * exp(-y * y); });
}
inline double erfc_inverse(double x) {
  if (x > 0.1) return erf_inverse(1 - x);
  if (!(x > 0)) return x == 0 ? INFINITY : NAN;
  const auto f = [](double y) { return log(erfc(y)); };
  return solved(log(x), sqrt(-log(x)), f, [](double y) { return -2 / sqrt(M_PI) * exp(-y * y) / erfc(y); });
}
inline double bessel_i(int order, double x) {
  double term = order ? x / 2 : 1, sum = term;
  for (int k = 1; k < 2000 && fabs(term) > 1e-18 * fabs(sum); ++k) sum += term *= x * x / 4 / k / (k + order);
  return sum;
}
inline double erfc_scaled(double x) {
  if (x < 25) return exp(x * x) * erfc(x);
  const double r = 1 / (x * x);
  return 1 / (x * sqrt(M_PI)) * (1 - r / 2 + 3 * r * r / 4);
}

}  // namespace emu

// ------------------------------------------------------------------ integers
inline long long __mul64hi(long long x, long long y) { return (long long)((__int128)x * y >> 64); }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev((unsigned)x) << 32 | __brev((unsigned)(x >> 32));
}
inline int __mul24(int x, int y) { return (int)((unsigned)(x << 8 >> 8) * (unsigned)(y << 8 >> 8)); }
inline unsigned __umul24(unsigned x, unsigned y) { return (x & 0xffffffu) * (y & 0xffffffu); }
inline int __hadd(int x, int y) { return (int)(((long long)x + y) >> 1); }
inline int __rhadd(int x, int y) { return (int)(((long long)x + y + 1) >> 1); }
inline unsigned __uhadd(unsigned x, unsigned y) { return (unsigned)(((unsigned long long)x + y) >> 1); }
inline unsigned __urhadd(unsigned x, unsigned y) { return (unsigned)(((unsigned long long)x + y + 1) >> 1); }
inline unsigned __sad(int x, int y, unsigned z) { return (unsigned)(x < y ? (long long)y - x : (long long)x - y) + z; }
inline unsigned __usad(unsigned x, unsigned y, unsigned z) { return (x < y ? y - x : x - y) + z; }

// ------------------------------------------------------------------ directed rounding
#define EMU_ROUNDED(suffix, mode)                                                                             \
  inline float __fadd_##suffix(volatile float x, volatile float y) { return emu::rounded<mode>([&] { return x + y; }); }   \
  inline float __fsub_##suffix(volatile float x, volatile float y) { return emu::rounded<mode>([&] { return x - y; }); }   \
  inline float __fmul_##suffix(volatile float x, volatile float y) { return emu::rounded<mode>([&] { return x * y; }); }   \
  inline float __fdiv_##suffix(volatile float x, volatile float y) { return emu::rounded<mode>([&] { return x / y; }); }   \
  inline float __frcp_##suffix(volatile float x) { return emu::rounded<mode>([&] { return 1.0f / x; }); }                  \
  inline float __fsqrt_##suffix(volatile float x) { return emu::rounded<mode>([&] { return sqrtf(x); }); }                 \
  inline float __fmaf_##suffix(volatile float x, volatile float y, volatile float z) {                                     \
    return emu::rounded<mode>([&] { return fmaf(x, y, z); });                                                              \
  }                                                                                                                        \
  inline double __dadd_##suffix(volatile double x, volatile double y) { return emu::rounded<mode>([&] { return x + y; }); } \
  inline double __dsub_##suffix(volatile double x, volatile double y) { return emu::rounded<mode>([&] { return x - y; }); } \
  inline double __dmul_##suffix(volatile double x, volatile double y) { return emu::rounded<mode>([&] { return x * y; }); } \
  inline double __ddiv_##suffix(volatile double x, volatile double y) { return emu::rounded<mode>([&] { return x / y; }); } \
  inline double __drcp_##suffix(volatile double x) { return emu::rounded<mode>([&] { return 1.0 / x; }); }                 \
  inline double __dsqrt_##suffix(volatile double x) { return emu::rounded<mode>([&] { return sqrt(x); }); }                \
  inline double __fma_##suffix(volatile double x, volatile double y, volatile double z) {                                  \
    return emu::rounded<mode>([&] { return ::fma((double)x, (double)y, (double)z); });                                     \
  }                                                                                                                        \
  inline float __double2float_##suffix(volatile double x) { return emu::rounded<mode>([&] { return (float)x; }); }         \
  EMU_CONVERSIONS(float, float, suffix, mode) EMU_CONVERSIONS(double, double, suffix, mode)
#define EMU_CONVERSIONS(name, type, suffix, mode)                                             \
  EMU_CONVERSION(name, type, int, int, suffix, mode) EMU_CONVERSION(name, type, uint, unsigned, suffix, mode) \
  EMU_CONVERSION(name, type, ll, long long, suffix, mode) EMU_CONVERSION(name, type, ull, unsigned long long, suffix, mode)
#define EMU_CONVERSION(name, type, int_name, int_type, suffix, mode)                                    \
  inline int_type __##name##2##int_name##_##suffix(volatile type x) {                                   \
    return emu::to_int<int_type>((type)emu::rounded<mode>([&] { return (type)::rint((double)x); }));    \
  }                                                                                                     \
  inline type __##int_name##2##name##_##suffix(volatile int_type x) {                                   \
    return emu::rounded<mode>([&] { return (type)x; });                                                 \
  }
EMU_ROUNDED(rn, FE_TONEAREST)
EMU_ROUNDED(rz, FE_TOWARDZERO)
EMU_ROUNDED(rd, FE_DOWNWARD)
EMU_ROUNDED(ru, FE_UPWARD)
#undef EMU_ROUNDED
#undef EMU_CONVERSIONS
#undef EMU_CONVERSION

// ------------------------------------------------------------------ math
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / ::sqrt(x); }
inline float __frsqrt_rn(float x) { return (float)(1.0 / ::sqrt((double)x)); }
inline float __saturatef(float x) { return x != x ? 0.0f : fminf(fmaxf(x, 0.0f), 1.0f); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return (float)pow(10.0, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
#define EMU_UNARY(name, text)                                  \
  inline double name(double x) { return text; }                \
  inline float name##f(float x) { return (float)name((double)x); }
EMU_UNARY(rcbrt, 1 / cbrt(x))
EMU_UNARY(sinpi, ::sin(M_PI * ::fmod(x, 2.0)))
EMU_UNARY(cospi, ::cos(M_PI * ::fmod(x, 2.0)))
EMU_UNARY(erfcx, emu::erfc_scaled(x))
EMU_UNARY(erfinv, emu::erf_inverse(x))
EMU_UNARY(erfcinv, emu::erfc_inverse(x))
EMU_UNARY(normcdf, ::erfc(-x / M_SQRT2) / 2)
EMU_UNARY(normcdfinv, -M_SQRT2 * emu::erfc_inverse(2 * x))
EMU_UNARY(cyl_bessel_i0, emu::bessel_i(0, x))
EMU_UNARY(cyl_bessel_i1, emu::bessel_i(1, x))
#undef EMU_UNARY
inline double rhypot(double x, double y) { return 1 / ::hypot(x, y); }
inline float rhypotf(float x, float y) { return (float)rhypot(x, y); }
inline double norm3d(double x, double y, double z) { return ::sqrt(x * x + y * y + z * z); }
inline float norm3df(float x, float y, float z) { return (float)norm3d(x, y, z); }
inline double rnorm3d(double x, double y, double z) { return 1 / norm3d(x, y, z); }
inline float rnorm3df(float x, float y, float z) { return (float)rnorm3d(x, y, z); }
inline double norm4d(double x, double y, double z, double w) { return ::sqrt(x * x + y * y + z * z + w * w); }
inline float norm4df(float x, float y, float z, float w) { return (float)norm4d(x, y, z, w); }
inline double rnorm4d(double x, double y, double z, double w) { return 1 / norm4d(x, y, z, w); }
inline float rnorm4df(float x, float y, float z, float w) { return (float)rnorm4d(x, y, z, w); }
