// reduce.cuh - exchange between the lanes of a warp. All functions: the full warp, converged.
#pragma once
#include "tiledsl/types.cuh"

namespace tdsl {

// shfl.sync.bfly.b32 (two for 64-bit types): the value of lane `lane ^ mask`. Warp. ISA: shfl.sync.
TDSL_FN float shfl_xor(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
TDSL_FN double shfl_xor(double v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
TDSL_FN i32 shfl_xor(i32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
TDSL_FN u32 shfl_xor(u32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
TDSL_FN i64 shfl_xor(i64 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
TDSL_FN u64 shfl_xor(u64 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }

// shfl.sync.idx.b32: the value of lane `lane`. Warp. ISA: shfl.sync.
TDSL_FN float shfl_idx(float v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
TDSL_FN double shfl_idx(double v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
TDSL_FN i32 shfl_idx(i32 v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
TDSL_FN u32 shfl_idx(u32 v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
TDSL_FN i64 shfl_idx(i64 v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
TDSL_FN u64 shfl_idx(u64 v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }

// shfl.sync.up.b32: the value of lane `lane - delta`, the own value in the first lanes. Warp. ISA: shfl.sync.
TDSL_FN float shfl_up(float v, int delta) { return __shfl_up_sync(0xffffffffu, v, delta); }
TDSL_FN double shfl_up(double v, int delta) { return __shfl_up_sync(0xffffffffu, v, delta); }
TDSL_FN i32 shfl_up(i32 v, int delta) { return __shfl_up_sync(0xffffffffu, v, delta); }
TDSL_FN u32 shfl_up(u32 v, int delta) { return __shfl_up_sync(0xffffffffu, v, delta); }
TDSL_FN i64 shfl_up(i64 v, int delta) { return __shfl_up_sync(0xffffffffu, v, delta); }
TDSL_FN u64 shfl_up(u64 v, int delta) { return __shfl_up_sync(0xffffffffu, v, delta); }

// shfl.sync.down.b32: the value of lane `lane + delta`, the own value in the last lanes. Warp. ISA: shfl.sync.
TDSL_FN float shfl_down(float v, int delta) { return __shfl_down_sync(0xffffffffu, v, delta); }
TDSL_FN double shfl_down(double v, int delta) { return __shfl_down_sync(0xffffffffu, v, delta); }
TDSL_FN i32 shfl_down(i32 v, int delta) { return __shfl_down_sync(0xffffffffu, v, delta); }
TDSL_FN u32 shfl_down(u32 v, int delta) { return __shfl_down_sync(0xffffffffu, v, delta); }
TDSL_FN i64 shfl_down(i64 v, int delta) { return __shfl_down_sync(0xffffffffu, v, delta); }
TDSL_FN u64 shfl_down(u64 v, int delta) { return __shfl_down_sync(0xffffffffu, v, delta); }

// redux.sync over the warp, 32-bit integers only. Warp. ISA: redux.sync.
TDSL_FN i32 warp_add(i32 v) { return __reduce_add_sync(0xffffffffu, v); }
TDSL_FN u32 warp_add(u32 v) { return __reduce_add_sync(0xffffffffu, v); }
TDSL_FN i32 warp_max(i32 v) { return __reduce_max_sync(0xffffffffu, v); }
TDSL_FN u32 warp_max(u32 v) { return __reduce_max_sync(0xffffffffu, v); }
TDSL_FN i32 warp_min(i32 v) { return __reduce_min_sync(0xffffffffu, v); }
TDSL_FN u32 warp_min(u32 v) { return __reduce_min_sync(0xffffffffu, v); }

// vote.sync.any / all / ballot. Warp. ISA: vote.sync.
TDSL_FN bool warp_any(bool v) { return __any_sync(0xffffffffu, v); }
TDSL_FN bool warp_all(bool v) { return __all_sync(0xffffffffu, v); }
TDSL_FN u32 warp_ballot(bool v) { return __ballot_sync(0xffffffffu, v); }
// Whether any of the warp's numbers is not 1 (NaN is not). Warp, converged.
template <int N> TDSL_FN bool any_but_one(const float (&x)[N]) {
  bool differs = false;
#pragma unroll
  for (int i = 0; i < N; ++i) differs |= x[i] != 1.0f;
  return warp_any(differs);
}

}  // namespace tdsl
