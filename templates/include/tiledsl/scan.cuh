// scan.cuh - inclusive scans along an axis whose digits lie in registers, lanes and warps. Level by level, from the
// least significant digit on: each level combines the totals of the blocks below it and puts what came before a block
// in front of the block's elements.
#pragma once
#include "tiledsl/combine.cuh"

namespace tdsl {

// Register digits (stride, size, stride, size, ...) of the levels below: registers that differ in them are one block.
template <int... D> struct Below {
  static TDSL_FN constexpr int first(int i) { return i; }
};
template <int STRIDE, int SIZE, int... D> struct Below<STRIDE, SIZE, D...> {
  static TDSL_FN constexpr int first(int i) { return Below<D...>::first(i - i / STRIDE % SIZE * STRIDE); }
};

// x: elements, scanned inside of their blocks. total[first of a block]: the block's combination. REVERSE: the axis is
// read from its end. All methods: thread, except those that say otherwise.
template <bool REVERSE, class T, int N> struct Scan {
  T (&x)[N];
  T total[N];
  T before[N];

  TDSL_FN explicit Scan(T (&elements)[N]) : x(elements) {
#pragma unroll
    for (int i = 0; i < N; ++i) total[i] = x[i];
  }
  static TDSL_FN constexpr int digit(int index, int stride, int size) {
    const int d = index / stride % size;
    return REVERSE ? size - 1 - d : d;
  }
  // A digit of the registers.
  template <int STRIDE, int SIZE, class B, class C> TDSL_FN void registers(B, C combine) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i / STRIDE % SIZE != 0 || B::first(i) != i) continue;
      T run = total[i + (REVERSE ? (SIZE - 1) * STRIDE : 0)];
#pragma unroll
      for (int v = 1; v < SIZE; ++v) {
        const int j = i + (REVERSE ? SIZE - 1 - v : v) * STRIDE;
        before[j] = run;
        run = combine(run, total[j]);
      }
      total[i] = run;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (digit(k, STRIDE, SIZE) > 0) x[k] = combine(before[B::first(k)], x[k]);
    }
  }
  // A digit of the lanes, a power of two. Warp, converged.
  template <int STRIDE, int SIZE, class B, class C> TDSL_FN void lanes(B, C combine) {
    static_assert((SIZE & (SIZE - 1)) == 0, "digits of lanes are powers of two");
    const int lane = (int)lane_id(), place = lane / STRIDE % SIZE;
    const int rank = REVERSE ? SIZE - 1 - place : place, step = REVERSE ? STRIDE : -STRIDE;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (B::first(i) != i) continue;
      T run = total[i];
#pragma unroll
      for (int n = 1; n < SIZE; n *= 2) {
        const T other = value_idx(run, lane + n * step);
        if (rank >= n) run = combine(other, run);
      }
      before[i] = value_idx(run, lane + step);
      total[i] = value_idx(run, lane + ((REVERSE ? 0 : SIZE - 1) - place) * STRIDE);
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (rank > 0) x[k] = combine(before[B::first(k)], x[k]);
    }
  }
  // Totals of BLOCKS blocks of every lane into shared memory, for a digit of WARPS warps.
  template <int WARPS, int BLOCKS, class B> TDSL_FN void put_totals(B, u32 addr, u32 warp) const {
    int n = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (B::first(i) == i) {
        SharedValues<T, WARPS * BLOCKS * 32>::put(addr, (n * WARPS + warp) * 32 + lane_id(), total[i]);
        ++n;
      }
    }
  }
  // A digit of the warps, after put_totals and a barrier.
  template <int STRIDE, int SIZE, int WARPS, int BLOCKS, class B, class C>
  TDSL_FN void warps(B, u32 addr, u32 warp, C combine) {
    const int place = (int)warp / STRIDE % SIZE, rank = REVERSE ? SIZE - 1 - place : place;
    int n = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (B::first(i) != i) continue;
      T run;
#pragma unroll
      for (int v = 0; v < SIZE; ++v) {
        const int from = (int)warp + ((REVERSE ? SIZE - 1 - v : v) - place) * STRIDE;
        const T next = SharedValues<T, WARPS * BLOCKS * 32>::get(addr, (n * WARPS + from) * 32 + lane_id());
        if (v == rank) before[i] = run;
        run = v == 0 ? next : combine(run, next);
      }
      total[i] = run;
      ++n;
    }
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (rank > 0) x[k] = combine(before[B::first(k)], x[k]);
    }
  }
};

}  // namespace tdsl
