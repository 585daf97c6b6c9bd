// shifted.cuh - vectors whose addresses are aligned for one element only. Memory is read and written in aligned
// pieces of 16 bytes, and registers are shifted by what the address is off; only the ends of what a group of lanes
// holds are written element by element. A piece that is read holds an element of the vector, so that it exists.
#pragma once
#include "tiledsl/global.cuh"
#include "tiledsl/reduce.cuh"
#include "tiledsl/regs.cuh"

namespace tdsl {

constexpr u64 PIECE = 16;

// How blocks of tensors are accessed. Thread. ISA: ld.global, st.global.
struct BlockLoad {
  static TDSL_FN void load_if(Cell<16>& c, u64 p, bool in) {
    if (!in) return;
    const Words<16> words = *reinterpret_cast<const Words<16>*>(p);
#pragma unroll
    for (int k = 0; k < 4; ++k) c.w[k] = words.w[k];
  }
};
struct BlockStore {
  template <int BYTES> static TDSL_FN void store_if(Cell<BYTES> c, u64 p, bool in) {
    if (!in) return;
    if constexpr (BYTES == 1) {
      *reinterpret_cast<u8*>(p) = (u8)c.w[0];
    } else if constexpr (BYTES == 2) {
      *reinterpret_cast<u16*>(p) = (u16)c.w[0];
    } else {
      Words<BYTES> words;
#pragma unroll
      for (int k = 0; k < BYTES / 4; ++k) words.w[k] = c.w[k];
      *reinterpret_cast<Words<BYTES>*>(p) = words;
    }
  }
};

// Bytes off .. off + 15 of two pieces; off is below 16 and a multiple of an element. Thread. ISA: shf, selp.
template <class T> TDSL_FN Cell<16> cut_from(Cell<16> lo, Cell<16> hi, u32 off) {
  u32 w[8] = {lo.w[0], lo.w[1], lo.w[2], lo.w[3], hi.w[0], hi.w[1], hi.w[2], hi.w[3]};
#pragma unroll
  for (int k = 0; k < 6; ++k) w[k] = off & 8 ? w[k + 2] : w[k];
  if constexpr (sizeof(T) < 8) {
#pragma unroll
    for (int k = 0; k < 5; ++k) w[k] = off & 4 ? w[k + 1] : w[k];
  }
  if constexpr (sizeof(T) < 4) {
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k] = __funnelshift_r(w[k], w[k + 1], 8 * (off & 3));
  }
  return Cell<16>{{w[0], w[1], w[2], w[3]}};
}
// Bytes 16 - off .. 31 - off: the last `off` bytes of one vector, and what fits of the next. Thread. ISA: shf, selp.
template <class T> TDSL_FN Cell<16> joined(Cell<16> lo, Cell<16> hi, u32 off) {
  u32 w[8] = {lo.w[0], lo.w[1], lo.w[2], lo.w[3], hi.w[0], hi.w[1], hi.w[2], hi.w[3]};
#pragma unroll
  for (int k = 7; k >= 2; --k) w[k] = off & 8 ? w[k - 2] : w[k];
  if constexpr (sizeof(T) < 8) {
#pragma unroll
    for (int k = 7; k >= 3; --k) w[k] = off & 4 ? w[k - 1] : w[k];
  }
  if constexpr (sizeof(T) < 4) {
#pragma unroll
    for (int k = 7; k >= 4; --k) w[k] = __funnelshift_l(w[k - 1], w[k], 8 * (off & 3));
  }
  return Cell<16>{{w[4], w[5], w[6], w[7]}};
}

template <class T> TDSL_FN bool is_in(FilledLane<T> a) { return a.in; }
// What registers hold that are not read.
template <int V, class T> TDSL_FN Cell<V * sizeof(T)> filling(Lane<T>) { return {}; }
template <int V, class T> TDSL_FN Cell<V * sizeof(T)> filling(MaskedLane<T>) { return {}; }
template <int V, class T> TDSL_FN Cell<V * sizeof(T)> filling(FilledLane<T> a) { return filled_cell<V>(a.other); }

// Element k of a cell as in another one, unless it is `in`. Thread.
template <class T> TDSL_FN void put_filling(Cell<16>& c, int k, Cell<16> other, bool in) {
  if constexpr (sizeof(T) < 4) {
    const u32 bits = ((1u << 8 * sizeof(T)) - 1) << 8 * (k * sizeof(T) % 4);
    const int w = k * sizeof(T) / 4;
    c.w[w] = in ? c.w[w] : (c.w[w] & ~bits) | (other.w[w] & bits);
  } else {
#pragma unroll
    for (int w = k * sizeof(T) / 4; w < (k + 1) * (int)sizeof(T) / 4; ++w) c.w[w] = in ? c.w[w] : other.w[w];
  }
}

// How the mask of V neighbours is asked for: by their ends where it only falls or is equal, else by each; where it
// holds between two bounds, both ends say whether it holds for all.
struct ByEnds {
  template <int V, class F> static TDSL_FN bool all(F at, int i) { return is_in(at(i + V - 1)); }
  template <int V, class F> static TDSL_FN bool any(F at, int i) { return is_in(at(i)); }
  // Any of the elements before number `n`, or from there on.
  template <int V, class F> static TDSL_FN bool before(F at, int i, int n) { return is_in(at(i)); }
  template <int V, class F> static TDSL_FN bool from(F at, int i, int n) { return is_in(at(i + n)); }
};
struct ByElement {
  template <int V, class F> static TDSL_FN bool all(F at, int i) {
    bool found = true;
#pragma unroll
    for (int k = 0; k < V; ++k) found &= is_in(at(i + k));
    return found;
  }
  template <int V, class F> static TDSL_FN bool any(F at, int i) {
    bool found = false;
#pragma unroll
    for (int k = 0; k < V; ++k) found |= is_in(at(i + k));
    return found;
  }
  template <int V, class F> static TDSL_FN bool before(F at, int i, int n) {
    bool found = false;
#pragma unroll
    for (int k = 0; k < V; ++k) found |= k < n && is_in(at(i + k));
    return found;
  }
  template <int V, class F> static TDSL_FN bool from(F at, int i, int n) {
    bool found = false;
#pragma unroll
    for (int k = 0; k < V; ++k) found |= k >= n && is_in(at(i + k));
    return found;
  }
};

struct ByBounds {
  template <int V, class F> static TDSL_FN bool all(F at, int i) { return is_in(at(i)) && is_in(at(i + V - 1)); }
  template <int V, class F> static TDSL_FN bool any(F at, int i) { return all<V>(at, i) || ByElement::any<V>(at, i); }
  template <int V, class F> static TDSL_FN bool before(F at, int i, int n) {
    return all<V>(at, i) || ByElement::before<V>(at, i, n);
  }
  template <int V, class F> static TDSL_FN bool from(F at, int i, int n) {
    return all<V>(at, i) || ByElement::from<V>(at, i, n);
  }
};

// N registers in vectors of V neighbours, 16 bytes each, at addresses aligned for an element. Thread. ISA: ld.global.
template <int N, int V, class MASK, class LD, class X, class F> TDSL_FN void load_shifted(X& x, F at) {
  using T = decltype(get_raw(x, 0));
  Cell<16> lo[N / V], hi[N / V];
#pragma unroll
  for (int v = 0; v < N / V; ++v) {
    const auto lane = at(v * V);
    const u64 p = (u64)lane.p, off = p % PIECE;
    const int held = (int)((PIECE - off) / sizeof(T));  // elements in the first piece
    hi[v] = lo[v] = filling<V>(lane);
    LD::load_if(lo[v], p - off, MASK::template before<V>(at, v * V, held));
    LD::load_if(hi[v], p - off + PIECE, off && MASK::template from<V>(at, v * V, held));
  }
#pragma unroll
  for (int v = 0; v < N / V; ++v) {
    Cell<16> cell = cut_from<T>(lo[v], hi[v], (u32)(u64)at(v * V).p % PIECE);
    if (MASK::template any<V>(at, v * V) && !MASK::template all<V>(at, v * V)) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const auto one = at(v * V + k);
        put_filling<T>(cell, k, filling<16 / sizeof(T)>(one), is_in(one));
      }
    }
    put_cell<V, T>(x, v * V, cell);
  }
}

// As load_shifted, for stores. LANES lanes side by side hold vectors that follow each other in memory: each writes
// the piece that its vector and the one before share. The full warp, converged. ISA: st.global, shfl.sync.
template <int N, int V, int LANES, class MASK, class ST, class X, class F>
TDSL_FN void store_shifted(const X& x, bool first, F at) {
  using T = decltype(get_raw(x, 0));
  const u32 lane = lane_id();
#pragma unroll
  for (int v = 0; v < N / V; ++v) {
    const u64 p = (u64)at(v * V).p;
    const u32 off = (u32)p % PIECE;
    const bool all = first && MASK::template all<V>(at, v * V), any = first && MASK::template any<V>(at, v * V);
    const Cell<16> own = get_cell<V, T>(x, v * V);
    Cell<16> before;
#pragma unroll
    for (int k = 0; k < 4; ++k) before.w[k] = shfl_up(own.w[k], 1);
    const u32 full = warp_ballot(all);
    // The piece with the beginning of the vector, and the one with its end, which the next lane writes.
    const bool here = all && (!off || (lane % LANES && full >> (lane - 1) & 1));
    const bool there = all && lane % LANES != LANES - 1 && full >> lane >> 1 & 1;
    ST::store_if(joined<T>(before, own, off), p - off, here);
    const bool head = any && !here, tail = any && off && !there;
    if (head || tail) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const auto one = at(v * V + k);
        const bool left = k * sizeof(T) < PIECE - off ? head : tail;
        store_lane<1, ST>(x, v * V + k, one.p, left && is_in(one));
      }
    }
  }
}

}  // namespace tdsl
