// library.cuh - library functions that are more than one C function: overloads over widths, tests, bits. All: thread.
#pragma once
#include "tiledsl/math.cuh"
#include "tiledsl/types.cuh"

namespace tdsl {

// ------------------------------------------------------------------ special registers
// mov %globaltimer: nanoseconds. ISA: Special Registers.
TDSL_FN i64 clock_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return (i64)t;
}
// mov %smid: the multiprocessor. ISA: Special Registers.
TDSL_FN int smid() {
  u32 r;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(r));
  return (int)r;
}
// True, which ptxas does not know: no SM has so high a number. A branch on it stays one. ISA: Special Registers: %smid.
TDSL_FN bool always() {
  u32 sm;
  asm("mov.u32 %0, %%smid;" : "=r"(sm));
  return sm >> 24 == 0u;
}

// ------------------------------------------------------------------ tests of floats
TDSL_FN i32 is_nan(float x) { return x != x; }
TDSL_FN i32 is_nan(double x) { return x != x; }
TDSL_FN i32 is_inf(float x) { return fabsf(x) == __int_as_float(0x7f800000); }
TDSL_FN i32 is_inf(double x) { return fabs(x) == __longlong_as_double(0x7ff0000000000000ll); }
TDSL_FN i32 is_finite(float x) { return fabsf(x) < __int_as_float(0x7f800000); }
TDSL_FN i32 is_finite(double x) { return fabs(x) < __longlong_as_double(0x7ff0000000000000ll); }
TDSL_FN i32 sign_bit(float x) { return (i32)(__float_as_uint(x) >> 31); }
TDSL_FN i32 sign_bit(double x) { return (i32)((u64)__double_as_longlong(x) >> 63); }

// ------------------------------------------------------------------ powers, TF32
TDSL_FN float power_int(float x, i32 n) { return powf(x, (float)n); }
TDSL_FN double power_int(double x, i32 n) { return ::pow(x, (double)n); }
// cvt.rna.tf32.f32: the nearest number with 10 mantissa bits, ties away from zero. ISA: cvt.
TDSL_FN float tf32_high(float x) {
  u32 r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return __uint_as_float(r);
}
// What tf32_high leaves, rounded to TF32; 0 where x is not finite.
TDSL_FN float tf32_low(float x) {
  const float rest = x - tf32_high(x);
  return is_finite(rest) ? tf32_high(rest) : 0.0f;
}

// ------------------------------------------------------------------ integers
// The upper half of a product. ISA: mul.hi.
TDSL_FN i32 high_product(i32 x, i32 y) { return __mulhi(x, y); }
TDSL_FN u32 high_product(u32 x, u32 y) { return __umulhi(x, y); }
TDSL_FN i64 high_product(i64 x, i64 y) { return __mul64hi(x, y); }
TDSL_FN u64 high_product(u64 x, u64 y) { return __umul64hi(x, y); }
// ISA: clz.
TDSL_FN i32 leading_zeros(i32 x) { return __clz(x); }
TDSL_FN i32 leading_zeros(u32 x) { return __clz((i32)x); }
TDSL_FN i32 leading_zeros(i64 x) { return __clzll(x); }
TDSL_FN i32 leading_zeros(u64 x) { return __clzll((i64)x); }
// ISA: popc.
TDSL_FN i32 bit_count(i32 x) { return __popc((u32)x); }
TDSL_FN i32 bit_count(u32 x) { return __popc(x); }
TDSL_FN i32 bit_count(i64 x) { return __popcll((u64)x); }
TDSL_FN i32 bit_count(u64 x) { return __popcll(x); }
// Position of the lowest bit that is set, from 1; 0 for 0.
TDSL_FN i32 first_set(i32 x) { return __ffs(x); }
TDSL_FN i32 first_set(u32 x) { return __ffs((i32)x); }
TDSL_FN i32 first_set(i64 x) { return __ffsll(x); }
TDSL_FN i32 first_set(u64 x) { return __ffsll((i64)x); }
// ISA: brev.
TDSL_FN i32 bit_reverse(i32 x) { return (i32)__brev((u32)x); }
TDSL_FN u32 bit_reverse(u32 x) { return __brev(x); }
TDSL_FN i64 bit_reverse(i64 x) { return (i64)__brevll((u64)x); }
TDSL_FN u64 bit_reverse(u64 x) { return __brevll(x); }
// The low 32 bits of the product of the low 24 bits. ISA: mul24.
TDSL_FN i32 product_24(i32 x, i32 y) { return __mul24(x, y); }
TDSL_FN u32 product_24(u32 x, u32 y) { return __umul24(x, y); }
// (x + y) / 2 without overflow, rounded down or up.
TDSL_FN i32 half_sum(i32 x, i32 y) { return __hadd(x, y); }
TDSL_FN u32 half_sum(u32 x, u32 y) { return __uhadd(x, y); }
TDSL_FN i32 half_sum_up(i32 x, i32 y) { return __rhadd(x, y); }
TDSL_FN u32 half_sum_up(u32 x, u32 y) { return __urhadd(x, y); }
// ISA: prmt.
// Selectors are the low 3 bits of each nibble; the machine instruction takes the fourth for the sign.
TDSL_FN i32 byte_perm(i32 x, i32 y, i32 s) { return (i32)__byte_perm((u32)x, (u32)y, (u32)s & 0x7777u); }
TDSL_FN u32 byte_perm(u32 x, u32 y, u32 s) { return __byte_perm(x, y, s & 0x7777u); }

}  // namespace tdsl
