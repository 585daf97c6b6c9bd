// reduction.cuh - reductions over the registers, lanes and warps of a layout. `combine` is associative; every thread
// that holds a copy of a result gets the same bits.
#pragma once
#include "tiledsl/combine.cuh"
#include "tiledsl/mbarrier.cuh"

namespace tdsl {

// at(LO) .. at(HI - 1) combined as a balanced tree: short chains, small rounding errors. Thread.
template <int LO, int HI, class At, class C> TDSL_FN auto combine_tree(At at, C combine) {
  if constexpr (HI - LO == 1) return at(LO);
  else return combine(combine_tree<LO, (LO + HI) / 2>(at, combine), combine_tree<(LO + HI) / 2, HI>(at, combine));
}
// out[o] = at(o, 0) .. at(o, COUNT - 1) combined. Thread.
template <int COUNT, class T, int N, class At, class C> TDSL_FN void reduce_registers(T (&out)[N], At at, C combine) {
#pragma unroll
  for (int o = 0; o < N; ++o) out[o] = combine_tree<0, COUNT>([&](int r) { return at(o, r); }, combine);
}
// As reduce_registers, in CHAINS chains that each follow the order of the elements: a value is combined as soon as it is
// there, whatever comes first. `combine` commutes. Thread.
template <int COUNT, int CHAINS = 2, class T, int N, class At, class C>
TDSL_FN void reduce_chains(T (&out)[N], At at, C combine) {
  static_assert(COUNT % CHAINS == 0, "chains are equally long");
  T x[N][CHAINS];
#pragma unroll
  for (int r = 0; r < COUNT; r += CHAINS) {
#pragma unroll
    for (int o = 0; o < N; ++o) {
#pragma unroll
      for (int c = 0; c < CHAINS; ++c) x[o][c] = r ? combine(x[o][c], at(o, r + c)) : at(o, c);
    }
  }
#pragma unroll
  for (int o = 0; o < N; ++o) out[o] = combine_tree<0, CHAINS>([&](int c) { return x[o][c]; }, combine);
}
// at(0) .. at(COUNT - 1) combined by `three` and, where two are left, by `two`. Thread.
template <int COUNT, class At, class C3, class C2> TDSL_FN int combine_threes(At at, C3 three, C2 two) {
  int x[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) x[i] = at(i);
#pragma unroll
  for (int n = COUNT; n > 1; n = (n + 2) / 3) {
#pragma unroll
    for (int i = 0; i < n; i += 3)
      x[i / 3] = i + 2 < n ? three(x[i], x[i + 1], x[i + 2]) : i + 1 < n ? two(x[i], x[i + 1]) : x[i];
  }
  return x[0];
}
// As reduce_registers of f32 with Max, three values at a time: in the order of their bits as integers, which is that of
// floats that are not negative; of negative ones it is the reverse, so that a warp with a part of them alone looks for
// the smallest. A NaN may come out. Warp, converged.
template <int COUNT, int N, class At> TDSL_FN void reduce_max_by_three(float (&out)[N], At at, Max) {
  int x[N];
  bool negative = false;
#pragma unroll
  for (int o = 0; o < N; ++o) {
    x[o] = combine_threes<COUNT>(
        [&](int r) { return __float_as_int(at(o, r)); }, [](int a, int b, int c) { return max(max(a, b), c); },
        [](int a, int b) { return max(a, b); });
    negative |= x[o] < 0;
  }
  if (warp_any(negative)) {
#pragma unroll
    for (int o = 0; o < N; ++o) {
      const int least = combine_threes<COUNT>(
          [&](int r) { return __float_as_int(at(o, r)); }, [](int a, int b, int c) { return min(min(a, b), c); },
          [](int a, int b) { return min(a, b); });
      x[o] = x[o] < 0 ? least : x[o];
    }
  }
#pragma unroll
  for (int o = 0; o < N; ++o) out[o] = __int_as_float(x[o]);
}
// x[o] combined over the lanes that differ in digit `lane / STRIDE % SIZE`, both powers of two. Warp, converged.
template <int STRIDE, int SIZE, class T, int N, class C> TDSL_FN void reduce_lanes(T (&x)[N], C combine) {
  static_assert((STRIDE & (STRIDE - 1)) == 0 && (SIZE & (SIZE - 1)) == 0, "digits of lanes are powers of two");
#pragma unroll
  for (int mask = STRIDE; mask < STRIDE * SIZE; mask *= 2) {
    const bool swap = lane_id() & mask;
#pragma unroll
    for (int o = 0; o < N; ++o) {
      const T other = value_xor(x[o], mask);
      if constexpr (commutes<C>::value) x[o] = combine(x[o], other);
      else x[o] = combine(swap ? other : x[o], swap ? x[o] : other);
    }
  }
}
// Partial results of WARPS warps into shared memory, LANES of each warp with values of their own. Thread.
template <int WARPS, int LANES, class T, int N>
TDSL_FN void put_partials(u32 addr, const T (&x)[N], u32 warp, u32 lane) {
#pragma unroll
  for (int o = 0; o < N; ++o) SharedValues<T, WARPS * LANES * N>::put(addr, (o * WARPS + warp) * LANES + lane, x[o]);
}
// As put_partials, into the shared memory of all CTAS blocks of the cluster; WARPS counts the warps of all of them.
// Where all lanes hold one value, lane c writes to block c. Warp, converged. ISA: st, mapa.
template <int CTAS, int WARPS, int LANES, class T, int N>
TDSL_FN void put_partials_cluster(u32 addr, const T (&x)[N], u32 warp, u32 lane) {
  using Values = SharedValues<T, WARPS * LANES * N, true>;
  constexpr int STEP = LANES == 1 ? CTAS : 1;
  const u32 first = LANES == 1 ? lane_id() : 0;
#pragma unroll
  for (int c = 0; c < CTAS; c += STEP) {
    if (first >= CTAS) break;
    const u32 there = mapa(addr, first + c);
#pragma unroll
    for (int o = 0; o < N; ++o) Values::put(there, (o * WARPS + warp) * LANES + lane, x[o]);
  }
}
// As put_partials_cluster for scalars that all lanes hold, without a barrier of the cluster: the stores complete on an
// mbarrier of each block, one of two that the exchanges of a loop use in turn, each with a part of BYTES bytes. Returns
// the part, where everything has arrived. A block overwrites a part two exchanges later, when the one between has told
// that all warps have read it. Warps converged, all threads of the cluster. ISA: st.async, mbarrier.
template <int CTAS, int WARPS, int BYTES, class T, int N>
TDSL_FN u32 exchange_partials(u32 addr, u32 barriers, Cursor<2>& c, const T (&x)[N], u32 warp) {
  const u32 part = addr + c.slot * BYTES, bar = barriers + 8 * c.slot;
  if (threadIdx.x == 0) mbarrier_expect_tx(bar, N * WARPS * sizeof(T));
  if (lane_id() < CTAS) {
    const u32 there = mapa(part, lane_id()), done = mapa(bar, lane_id());
#pragma unroll
    for (int o = 0; o < N; ++o) st_async(there + (o * WARPS + warp) * sizeof(T), done, x[o]);
  }
  mbarrier_wait_cluster(bar, c.parity);
  c.next();
  return part;
}
// x[o] = the partial results of warps from(0) .. from(COUNT - 1), combined in this order. After a barrier. Thread.
template <int COUNT, int WARPS, int LANES, class T, int N, class From, class C>
TDSL_FN void reduce_partials(u32 addr, T (&x)[N], u32 lane, From from, C combine) {
  if constexpr (LANES == 1 && COUNT % 32 == 0) {  // many warps: each lane takes its part
    constexpr int PART = COUNT / 32;
    const int first = (int)lane_id() * PART;
#pragma unroll
    for (int o = 0; o < N; ++o) {
      x[o] = combine_tree<0, PART>(
          [&](int k) { return SharedValues<T, WARPS * N>::get(addr, o * WARPS + from(first + k)); }, combine);
    }
    reduce_lanes<1, 32>(x, combine);
    return;
  }
#pragma unroll
  for (int o = 0; o < N; ++o) {
    x[o] = combine_tree<0, COUNT>(
        [&](int k) {
          return SharedValues<T, WARPS * LANES * N>::get(addr, (o * WARPS + from(k)) * LANES + lane);
        },
        combine);
  }
}

}  // namespace tdsl
