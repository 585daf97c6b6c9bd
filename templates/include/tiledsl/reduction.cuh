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
// The same of 16-bit floats, neighbours first in halves of words. Thread. ISA: max, min.
template <int LO, int HI, class T, int N, class C> TDSL_FN u32 combine_pairs(const Packed<T, N>& x, C combine) {
  if constexpr (HI - LO == 1) return x.w[LO];
  else return C::template of_pairs<T>(combine_pairs<LO, (LO + HI) / 2>(x, combine), combine_pairs<(LO + HI) / 2, HI>(x, combine));
}
template <int COUNT, int O, class T, int N, int M, class C>
TDSL_FN void reduce_pairs_from(float (&out)[N], const Packed<T, M>& x, C combine) {
  if constexpr (O < N) {
    const u32 both = combine_pairs<O * COUNT / 2, (O + 1) * COUNT / 2>(x, combine);
    out[O] = combine(to_float(T{(u16)both}), to_float(T{(u16)(both >> 16)}));
    reduce_pairs_from<COUNT, O + 1>(out, x, combine);
  }
}
template <int COUNT, class T, int N, int M, class C>
TDSL_FN void reduce_pairs(float (&out)[N], const Packed<T, M>& x, C combine) {
  reduce_pairs_from<COUNT, 0>(out, x, combine);
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
template <int STRIDE, int SIZE, class T, int N, class C> TDSL_FN void reduce_lanes(T (&x)[N], C combine);
// Both members of a pair over the lanes as in reduce_lanes: half of them combine one, half the other. Warp, converged.
template <int STRIDE, int SIZE, class T, class C> TDSL_FN void reduce_apart(Tuple<T, T>& x, C combine) {
  const bool second = lane_id() & STRIDE;
  const T given = part_xor(second ? x.head : x.tail.head, STRIDE);
  T mine = combine(second ? x.tail.head : x.head, given);
#pragma unroll
  for (int mask = 2 * STRIDE; mask < STRIDE * SIZE; mask *= 2) mine = combine(mine, part_xor(mine, mask));
  const T other = part_xor(mine, STRIDE);
  x = Tuple<T, T>{second ? other : mine, Tuple<T>{second ? mine : other}};
}
// The bits of a value in the smallest type of unsigned words that has them all, and back. Thread.
TDSL_FN bool is_minus_zero(float v) { return __float_as_int(v) == (int)0x80000000; }
TDSL_FN bool is_minus_zero(double v) { return __double_as_longlong(v) == (long long)0x8000000000000000; }
template <class T> TDSL_FN bool is_minus_zero(T) { return false; }
// (value, index) over the lanes as in reduce_lanes: the best value, and of the lanes that have it the smallest index.
// Warp, converged. ISA: shfl.sync, redux.sync.
template <int STRIDE, int SIZE, class T, int N, class ARG> TDSL_FN void reduce_indexed(Tuple<T, i32> (&x)[N], ARG) {
  T best[N];
  i32 index[N];
  bool zero = false;
#pragma unroll
  for (int o = 0; o < N; ++o) best[o] = x[o].head;
  reduce_lanes<STRIDE, SIZE>(best, typename ARG::Value());
#pragma unroll
  for (int o = 0; o < N; ++o) {
    index[o] = x[o].head == best[o] || best[o] != best[o] ? x[o].tail.head : 0x7fffffff;
    zero |= (T)1 / 2 != 0 && best[o] == (T)0;
  }
  if constexpr (STRIDE == 1 && SIZE == 32) {
#pragma unroll
    for (int o = 0; o < N; ++o) index[o] = warp_min(index[o]);
  } else {
    reduce_lanes<STRIDE, SIZE>(index, Min());
  }
  if ((T)1 / 2 != 0 && warp_any(zero)) {  // zeros of both signs are equal: that of the index
    i32 minus[N];
#pragma unroll
    for (int o = 0; o < N; ++o) minus[o] = x[o].tail.head == index[o] && is_minus_zero(x[o].head);
    reduce_lanes<STRIDE, SIZE>(minus, Max());
#pragma unroll
    for (int o = 0; o < N; ++o) best[o] = best[o] != (T)0 ? best[o] : minus[o] ? -(T)0 : (T)0;
  }
#pragma unroll
  for (int o = 0; o < N; ++o) x[o] = Tuple<T, i32>{best[o], Tuple<i32>{index[o]}};
}
// x[o] combined over the lanes that differ in digit `lane / STRIDE % SIZE`, both powers of two. Warp, converged.
template <int STRIDE, int SIZE, class T, int N, class C> TDSL_FN void reduce_lanes(T (&x)[N], C combine) {
  static_assert((STRIDE & (STRIDE - 1)) == 0 && (SIZE & (SIZE - 1)) == 0, "digits of lanes are powers of two");
  if constexpr (is_apart<T, C>::value && SIZE >= 8) {
#pragma unroll
    for (int o = 0; o < N; ++o) reduce_apart<STRIDE, SIZE>(x[o], combine);
    return;
  }
  if constexpr (is_arg<C>::value && SIZE > 2) {
    reduce_indexed<STRIDE, SIZE>(x, combine);
    return;
  }
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
// x[o], which all lanes hold, as number o * STRIDE + `at` of the values at `addr` in each of CTAS blocks: lane c writes to
// block c, and its stores complete on the mbarrier at `bar` there. Warp, converged. ISA: st.async, mapa.
template <int CTAS, int STRIDE, class VALUES, class T, int N>
TDSL_FN void send_to_blocks(u32 addr, u32 bar, const T (&x)[N], u32 at) {
  if (lane_id() < CTAS) {
    const u32 there = mapa(addr, lane_id()), done = mapa(bar, lane_id());
#pragma unroll
    for (int o = 0; o < N; ++o) VALUES::put_async(there, done, o * STRIDE + at, x[o]);
  }
}
// As put_partials_cluster for values that all lanes hold, without a barrier of the cluster: the stores complete on an
// mbarrier of each block, one of two that the exchanges of a loop use in turn, each with a part of BYTES bytes. Returns
// the part, where everything has arrived. A block overwrites a part two exchanges later, when the one between has told
// that all warps have read it. They lie in this block's own shared memory, for which acquire.cta is enough: acquire.cluster
// also empties the SM's L1, after what threads load into shared memory meanwhile. Warps converged, all threads of the
// cluster. ISA: st.async, mbarrier.
template <int CTAS, int WARPS, int BYTES, class T, int N>
TDSL_FN u32 exchange_partials(u32 addr, u32 barriers, Cursor<2>& c, const T (&x)[N], u32 warp) {
  using Values = SharedValues<T, WARPS * N, true>;
  const u32 part = addr + c.slot * BYTES, bar = barriers + 8 * c.slot;
  if (threadIdx.x == 0) mbarrier_expect_tx(bar, N * WARPS * Values::VALUE_BYTES);
  send_to_blocks<CTAS, WARPS, Values>(part, bar, x, warp);
  mbarrier_wait(bar, c.parity);
  c.next();
  return part;
}
// x[o] = the partial results of warps from(0) .. from(COUNT - 1), combined in this order. After a barrier. Thread.
template <int COUNT, int WARPS, int LANES, class T, int N, class From, class C>
TDSL_FN void reduce_partials(u32 addr, T (&x)[N], u32 lane, From from, C combine) {
  if constexpr (LANES == 1 && COUNT == 16 && is_apart<T, C>::value) {  // fewer shuffles than loads
    const int k = (int)lane_id() % COUNT;
#pragma unroll
    for (int o = 0; o < N; ++o) x[o] = SharedValues<T, WARPS * N>::get(addr, o * WARPS + from(k));
    reduce_lanes<1, COUNT>(x, combine);
    return;
  }
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
// x[o] = values 0 .. COUNT - 1 of the o-th group in shared memory, combined in this order. Lanes take them apart: held by
// one thread they would cost the kernel as many registers. Pairs would take more shuffles than that. Warp, converged.
template <int COUNT, class VALUES, class T, int N, class C> TDSL_FN void combine_shared(u32 addr, T (&x)[N], C combine) {
  if constexpr (is_apart<T, C>::value) {
#pragma unroll
    for (int o = 0; o < N; ++o) {
      x[o] = combine_tree<0, COUNT>([&](int k) { return VALUES::get(addr, o * COUNT + k); }, combine);
    }
  } else {
#pragma unroll
    for (int o = 0; o < N; ++o) x[o] = VALUES::get(addr, o * COUNT + (int)lane_id() % COUNT);
    reduce_lanes<1, COUNT>(x, combine);
  }
}
// x[o] of each warp, which all lanes hold, over a cluster of CTAS blocks with WARPS warps each: first in each block, where
// `combine_own` makes x[o] of what its warps put at an address, then one message from block to block, as by
// exchange_partials. Returns where the CTAS values of each x[o] lie. What arrives costs an SM some ten clocks a message.
// Warps converged, all threads of the cluster. ISA: bar.sync, st.async, mbarrier.
template <int CTAS, int WARPS, int BYTES, class T, int N, class Own>
TDSL_FN u32 exchange_blocks(u32 addr, u32 barriers, Cursor<2>& c, T (&x)[N], u32 warp, Own combine_own) {
  using All = SharedValues<T, CTAS * N, true>;
  constexpr int OWN_BYTES = SharedValues<T, WARPS * N>::BYTES;
  static_assert(OWN_BYTES + All::BYTES <= BYTES, "both lie in a part");
  const u32 own = addr + c.slot * BYTES, all = own + OWN_BYTES, bar = barriers + 8 * c.slot;
  put_partials<WARPS, 1>(own, x, warp % WARPS, 0);
  block_sync();
  if (warp % WARPS == 0) {
    if (lane_id() == 0) mbarrier_expect_tx(bar, N * CTAS * All::VALUE_BYTES);
    combine_own(own);
    send_to_blocks<CTAS, CTAS, All>(all, bar, x, warp / WARPS);
  }
  mbarrier_wait(bar, c.parity);
  c.next();
  return all;
}
// x[o] combined over all warps of a cluster of CTAS blocks with WARPS warps each, whose lanes hold one value. Warps
// converged, all threads of the cluster.
template <int CTAS, int WARPS, int BYTES, class T, int N, class C>
TDSL_FN void reduce_cluster(u32 addr, u32 barriers, Cursor<2>& c, T (&x)[N], u32 warp, C combine) {
  const u32 all = exchange_blocks<CTAS, WARPS, BYTES>(addr, barriers, c, x, warp,
      [&](u32 own) { combine_shared<WARPS, SharedValues<T, WARPS * N>>(own, x, combine); });
  combine_shared<CTAS, SharedValues<T, CTAS * N, true>>(all, x, combine);
}

// (largest, sum of e^(x - largest)) of SIZE neighbouring lanes merged; a part without an element over -inf has no sum.
// Warp, converged. ISA: shfl.sync, ex2.
template <int SIZE> TDSL_FN Tuple<float, float> merge_lanes(Tuple<float, float> x) {
  const bool is_empty = x.tail.head == 0.0f;
  float largest[1] = {is_empty ? __int_as_float(0xff800000) : x.head};
  reduce_lanes<1, SIZE>(largest, Max());
  float total[1] = {is_empty ? 0.0f : x.tail.head * exp_nonpositive(x.head - largest[0])};
  reduce_lanes<1, SIZE>(total, Sum());
  return tuple<float, float>(largest[0], total[0]);
}
// As reduce_cluster, for the largest of each warp (0 where it has none over -inf) and its sum of exponentials: those of
// all warps, and by what the warp's own exponentials are multiplied. Warps converged, all threads of the cluster.
template <int CTAS, int WARPS, int BYTES, int N>
TDSL_FN void merge_exponentials(u32 addr, u32 barriers, Cursor<2>& c, const float (&own)[N], const float (&part)[N],
    float (&largest)[N], float (&total)[N], float (&factor)[N], u32 warp) {
  using T = Tuple<float, float>;
  using Own = SharedValues<T, WARPS * N>;
  using All = SharedValues<T, CTAS * N, true>;
  T x[N];
#pragma unroll
  for (int o = 0; o < N; ++o) x[o] = tuple<float, float>(own[o], part[o]);
  const u32 all = exchange_blocks<CTAS, WARPS, BYTES>(addr, barriers, c, x, warp, [&](u32 mine) {
#pragma unroll
    for (int o = 0; o < N; ++o) x[o] = merge_lanes<WARPS>(Own::get(mine, o * WARPS + (int)lane_id() % WARPS));
  });
#pragma unroll
  for (int o = 0; o < N; ++o) {
    x[o] = merge_lanes<CTAS>(All::get(all, o * CTAS + (int)lane_id() % CTAS));
    largest[o] = x[o].head;
    const float zero = largest[o] - largest[o];  // NaN where all are -inf
    total[o] = x[o].tail.head + zero;
    factor[o] = part[o] == 0.0f ? zero : exp_nonpositive(own[o] - largest[o]);
  }
}

}  // namespace tdsl
