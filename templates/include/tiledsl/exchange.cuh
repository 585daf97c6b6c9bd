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
// Adds 1 to counter `value` where it exists. Thread. ISA: red.shared.
template <class T> TDSL_FN void count_element(u32 addr, T value, int count, bool in) {
  if (in && value >= T(0) && (u64)value < (u64)count) {
    asm volatile("red.shared.add.u32 [%0], 1;" ::"r"(addr + 4 * (u32)value) : "memory");
  }
}

}  // namespace tdsl
