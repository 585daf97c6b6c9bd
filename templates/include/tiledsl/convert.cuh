// convert.cuh - cast<To>(x) between any two element types.
#pragma once
#include "tiledsl/types.cuh"

namespace tdsl {

template <class T> struct is_storage { static constexpr bool value = false; };
template <> struct is_storage<bf16> { static constexpr bool value = true; };
template <> struct is_storage<f16> { static constexpr bool value = true; };
template <> struct is_storage<e4m3> { static constexpr bool value = true; };
template <> struct is_storage<e5m2> { static constexpr bool value = true; };
template <class T> struct is_real { static constexpr bool value = false; };
template <> struct is_real<float> { static constexpr bool value = true; };
template <> struct is_real<double> { static constexpr bool value = true; };

// Element conversion; bf16, f16 and fp8 go through float (an integer or f64 source rounds twice).
// To float: nearest even. Float to integer: toward zero; types under 32 bits keep the low bits of i32.
// Thread. ISA: Data Movement and Conversion: cvt.
template <class To, class From> TDSL_FN To cast(From x) {
  if constexpr (is_storage<From>::value) {
    return cast<To>(to_float(x));
  } else if constexpr (is_storage<To>::value) {
    return from_float<To>((float)x);
  } else if constexpr (is_real<From>::value && !is_real<To>::value && sizeof(To) < 4) {
    return (To)(i32)x;
  } else {
    return (To)x;
  }
}

}  // namespace tdsl
