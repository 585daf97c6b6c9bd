// exchange.cuh - elements that change their thread through shared memory. All functions: thread.
#pragma once
#include "tiledsl/smem.cuh"
#include "tiledsl/types.cuh"

namespace tdsl {

// Where byte `byte` of a row-major tile lies: 16-byte chunks are permuted inside of 128-byte lines by bits of the
// line number, so that neither rows nor columns of a matrix meet in one bank.
TDSL_FN u32 exchange_at(u32 byte) { return byte ^ ((byte >> 7 ^ byte >> 10 ^ byte >> 13) & 7u) << 4; }
// An index in [0, extent), the nearest bound for others.
template <class T> TDSL_FN int clamp_index(T i, int extent) {
  return i < T(0) ? 0 : i >= T(extent) ? extent - 1 : (int)i;
}
// Counters 0 .. count - 1 become 0; THREADS threads share the work. Thread. ISA: st.
TDSL_FN void zero_counters(u32 addr, int count, u32 thread, u32 threads) {
  for (u32 i = thread; i < (u32)count; i += threads) st_shared<u32>(addr + 4 * i, 0u);
}
// Bytes become 0, 16 at a time; THREADS threads share the work. Thread. ISA: st.
TDSL_FN void zero_shared(u32 addr, u32 bytes, u32 thread, u32 threads) {
  for (u32 i = 16 * thread; i < bytes; i += 16 * threads) st_shared_v4<u32>(addr + i, 0u, 0u, 0u, 0u);
}
// Adds 1 to counter `value` where it exists. Thread. ISA: red.shared.
template <class T> TDSL_FN void count_element(u32 addr, T value, int count, bool in) {
  const bool counts = in && value >= T(0) && (u64)value < (u64)count;
  asm volatile("{\n.reg .pred q;\nsetp.ne.b32 q, %1, 0;\n@q red.shared.add.u32 [%0], 1;\n}" ::"r"(addr + 4 * (u32)value), "r"((u32)counts)
               : "memory");
}

// ------------------------------------------------------------------ registers of inline assembly
// Elements side by side in a register, the first in the low bits. Thread.
template <class R, class T> TDSL_FN R pack_bits(T a) {
  if constexpr (sizeof(R) == sizeof(T)) {
    return bits_as<R>(a);
  } else if constexpr (sizeof(T) == 1) {
    return (R)bits_as<u8>(a);
  } else if constexpr (sizeof(T) == 2) {
    return (R)bits_as<u16>(a);
  } else {
    return (R)bits_as<u32>(a);
  }
}
template <class R, class T, class... U> TDSL_FN R pack_bits(T a, T b, U... rest) {
  return pack_bits<R>(a) | pack_bits<R>(b, rest...) << (8 * sizeof(T));
}
// Element INDEX of a register. Thread.
template <class T, int INDEX, class R> TDSL_FN T unpack_bits(R r) {
  if constexpr (sizeof(R) == sizeof(T)) {
    return bits_as<T>(r);
  } else if constexpr (sizeof(T) == 1) {
    return bits_as<T>((u8)(r >> (8 * INDEX)));
  } else if constexpr (sizeof(T) == 2) {
    return bits_as<T>((u16)(r >> (16 * INDEX)));
  } else {
    return bits_as<T>((u32)(r >> (32 * INDEX)));
  }
}

}  // namespace tdsl
