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

// Bytes off .. off + 15 of two pieces, where `off` lies in word Q of the first. Thread. ISA: shf.
template <class T, int Q> TDSL_FN Cell<16> cut_at(Cell<16> lo, Cell<16> hi, u32 off) {
  const u32 w[8] = {lo.w[0], lo.w[1], lo.w[2], lo.w[3], hi.w[0], hi.w[1], hi.w[2], hi.w[3]};
  Cell<16> c;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    c.w[k] = sizeof(T) < 4 ? __funnelshift_r(w[k + Q], w[k + Q + 1], 8 * (off & 3)) : w[k + Q];
  }
  return c;
}
// Bytes 16 - off .. 31 - off: the last `off` bytes of one vector, and what fits of the next. Thread. ISA: shf.
template <class T, int Q> TDSL_FN Cell<16> joined_at(Cell<16> lo, Cell<16> hi, u32 off) {
  const u32 w[8] = {lo.w[0], lo.w[1], lo.w[2], lo.w[3], hi.w[0], hi.w[1], hi.w[2], hi.w[3]};
  Cell<16> c;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    c.w[k] = sizeof(T) < 4 ? __funnelshift_l(w[3 + k - Q], w[4 + k - Q], 8 * (off & 3)) : w[4 + k - Q];
  }
  return c;
}
// The same for any word. Thread. ISA: shf, selp.
template <class T> TDSL_FN Cell<16> cut_from(Cell<16> lo, Cell<16> hi, u32 off) {
  const Cell<16> a = off & 4 ? cut_at<T, 1>(lo, hi, off) : cut_at<T, 0>(lo, hi, off);
  const Cell<16> b = off & 4 ? cut_at<T, 3>(lo, hi, off) : cut_at<T, 2>(lo, hi, off);
  return off & 8 ? b : a;
}
template <class T> TDSL_FN Cell<16> joined(Cell<16> lo, Cell<16> hi, u32 off) {
  const Cell<16> a = off & 4 ? joined_at<T, 1>(lo, hi, off) : joined_at<T, 0>(lo, hi, off);
  const Cell<16> b = off & 4 ? joined_at<T, 3>(lo, hi, off) : joined_at<T, 2>(lo, hi, off);
  return off & 8 ? b : a;
}
// Whether all vectors of a warp are off by as many bytes: then the warp branches on the word, else each lane selects.
// Chained: in addition lane 0 of each vector begins where lane 31 of the one before ends.
struct Chained { static constexpr bool SAME = true, CHAINED = true; };
struct OneOffset { static constexpr bool SAME = true, CHAINED = false; };
struct AnyOffset { static constexpr bool SAME = false, CHAINED = false; };
constexpr int ANY_WORD = -1;

template <class T, int Q> TDSL_FN Cell<16> cut(Cell<16> lo, Cell<16> hi, u32 off) {
  if constexpr (Q == ANY_WORD) return cut_from<T>(lo, hi, off);
  else return cut_at<T, Q>(lo, hi, off);
}
template <class T, int Q> TDSL_FN Cell<16> join(Cell<16> lo, Cell<16> hi, u32 off) {
  if constexpr (Q == ANY_WORD) return joined<T>(lo, hi, off);
  else return joined_at<T, Q>(lo, hi, off);
}
// f of the word that byte `off` of a piece lies in, known to the compiler. Warp-uniform.
template <int Q> struct Word { static constexpr int value = Q; };
template <class F> TDSL_FN void with_word(u32 off, F f) {
  if (off & 8) {
    if (off & 4) f(Word<3>{});
    else f(Word<2>{});
  } else {
    if (off & 4) f(Word<1>{});
    else f(Word<0>{});
  }
}
template <int Q, int V, class T, int COUNT, class X, class F>
TDSL_FN void put_cut(X& x, int first, const Cell<16> (&lo)[COUNT], const Cell<16> (&hi)[COUNT], u32 off, F at) {
#pragma unroll
  for (int v = 0; v < COUNT; ++v) {
    const int i = first + v * V;
    put_cell<V, T>(x, i, cut<T, Q>(lo[v], hi[v], Q == ANY_WORD ? (u32)(u64)at(i).p % PIECE : off));
  }
}
// visit(v, k, address, in) for both pieces k of COUNT vectors v from register `first` on; `in` says what is needed.
template <int COUNT, int V, class MASK, class OFFSETS, class F, class G>
TDSL_FN void each_piece(int first, F at, u32 same, G visit) {
#pragma unroll
  for (int v = 0; v < COUNT; ++v) {
    const int i = first + v * V;
    const auto lane = at(i);
    const u64 p = (u64)lane.p, off = OFFSETS::SAME ? same : p % PIECE;
    const int held = (int)((PIECE - off) / sizeof(*lane.p));  // elements in the first piece
    visit(v, 0, p - off, MASK::template before<V>(at, i, held));
    visit(v, 1, p - off + PIECE, off && MASK::template from<V>(at, i, held));
  }
}
// COUNT vectors from register `first` on; load(cell, v, k, address, in) reads a piece.
template <int COUNT, int V, class MASK, class OFFSETS, class X, class F, class L>
TDSL_FN void load_pieces(X& x, int first, F at, u32 same, L load) {
  using T = decltype(get_raw(x, 0));
  Cell<16> lo[COUNT], hi[COUNT];
#pragma unroll
  for (int v = 0; v < COUNT; ++v) hi[v] = lo[v] = filling<V>(at(first + v * V));
  each_piece<COUNT, V, MASK, OFFSETS>(first, at, same, [&](int v, int k, u64 p, bool in) {
    load(k ? hi[v] : lo[v], first / V + v, k, p, in);
  });
  if constexpr (!OFFSETS::SAME) put_cut<ANY_WORD, V, T>(x, first, lo, hi, 0, at);
  else with_word(same, [&](auto q) { put_cut<q.value, V, T>(x, first, lo, hi, same, at); });
}
// Whether the mask holds for all that a warp holds. The full warp, converged. ISA: vote.sync.
template <int N, int V, class MASK, class F> TDSL_FN bool is_whole(F at) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < N; i += V) all &= MASK::template all<V>(at, i);
  return warp_all(all);
}
constexpr int AHEAD = 8;  // vectors of a thread on their way at once: two registers for each of one

// N registers in vectors of V neighbours, 16 bytes each, at addresses aligned for an element, AHEAD vectors at once.
// load(cell, v, k, address, in): reads piece k of vector v. The full warp, converged.
template <int N, int V, int AHEAD, class MASK, class OFFSETS, class X, class F, class L>
TDSL_FN void read_shifted(X& x, F at, L load) {
  using T = decltype(get_raw(x, 0));
  const u32 same = OFFSETS::SAME ? uniform((u32)(u64)at(0).p % PIECE) : 0;
  constexpr int WHOLE = N / V / AHEAD * AHEAD, REST = N / V - WHOLE;
#pragma unroll
  for (int v = 0; v < WHOLE; v += AHEAD) load_pieces<AHEAD, V, MASK, OFFSETS>(x, v * V, at, same, load);
  if constexpr (REST > 0) load_pieces<REST, V, MASK, OFFSETS>(x, WHOLE * V, at, same, load);
#pragma unroll
  for (int v = 0; v < N / V; ++v) {
    if (MASK::template any<V>(at, v * V) && !MASK::template all<V>(at, v * V)) {
      Cell<16> cell = get_cell<V, T>(x, v * V);
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const auto one = at(v * V + k);
        put_filling<T>(cell, k, filling<16 / sizeof(T)>(one), is_in(one));
      }
      put_cell<V, T>(x, v * V, cell);
    }
  }
}
// The same from global memory. The full warp, converged. ISA: ld.global.
template <int N, int V, class MASK, class OFFSETS, class LD, class X, class F> TDSL_FN void load_shifted(X& x, F at) {
  if constexpr (OFFSETS::SAME && N / V <= AHEAD) {
    if (is_whole<N, V, MASK>(at)) {
      using T = decltype(get_raw(x, 0));
      const u32 off = uniform((u32)(u64)at(0).p % PIECE), more = off ? PIECE : 0;
      Cell<16> lo[N / V], hi[N / V];
#pragma unroll
      for (int v = 0; v < N / V; ++v) {
        const u64 p = (u64)at(v * V).p - off;
        LD::load_if(lo[v], p, true);
        LD::load_if(hi[v], p + more, true);
      }
      with_word(off, [&](auto q) { put_cut<q.value, V, T>(x, 0, lo, hi, off, at); });
      return;
    }
  }
  read_shifted<N, V, AHEAD, MASK, OFFSETS>(x, at, [](Cell<16>& c, int v, int k, u64 p, bool in) { LD::load_if(c, p, in); });
}
// Where a thread finds piece k of vector v that was fetched. Chained: piece 1 is piece 0 of the next lane, that of the
// last lane and vector lies behind all; else a vector has two places. `own`: the thread's first place.
template <class OFFSETS, int COUNT, int STRIDE> struct PiecePlaces {
  u32 own, next, last;
  TDSL_FN PiecePlaces(u32 own) : own(own) {
    const bool is_last = lane_id() == 31;
    next = own + (is_last ? STRIDE - 31 * (u32)PIECE : (u32)PIECE);
    last = own + (COUNT - 1) * STRIDE + (u32)PIECE;
    if (is_last) last = own - threadIdx.x * (u32)PIECE + COUNT * STRIDE + threadIdx.x / 32 * (u32)PIECE;
  }
  TDSL_FN u32 operator()(int v, int k) const {
    if constexpr (!OFFSETS::CHAINED) return own + (2 * v + k) * STRIDE;
    else return !k ? own + v * STRIDE : v < COUNT - 1 ? next + v * STRIDE : last;
  }
};
// As fetch_lanes. A piece that two lanes share is copied by the second one if it needs it, else by the first. The full
// warp, converged. ISA: cp.async, vote.sync.
template <int N, int V, int STRIDE, class MASK, class OFFSETS, class F> TDSL_FN void fetch_shifted(u32 own, F at) {
  constexpr int COUNT = N / V;
  const u32 same = OFFSETS::SAME ? uniform((u32)(u64)at(0).p % PIECE) : 0;
  const PiecePlaces<OFFSETS, COUNT, STRIDE> place(own);
  if constexpr (OFFSETS::CHAINED) {
    const u32 lane = lane_id();
    u32 first[COUNT + 1];  // lanes that need their first piece
    bool rest[COUNT];
    each_piece<COUNT, V, MASK, OFFSETS>(0, at, same, [&](int v, int k, u64 p, bool in) {
      if (!k) first[v] = warp_ballot(in);
      else rest[v] = in;
      if (!k && in) cp_async<16>(place(v, 0), (const void*)p);
    });
    first[COUNT] = 0;
#pragma unroll
    for (int v = 0; v < COUNT; ++v) {
      const u32 after = first[v] >> 1 | first[v + 1] << 31;
      if (rest[v] && !(after >> lane & 1)) cp_async<16>(place(v, 1), (const void*)((u64)at(v * V).p - same + PIECE));
    }
  } else {
    each_piece<COUNT, V, MASK, OFFSETS>(0, at, same, [&](int v, int k, u64 p, bool in) {
      if (in) cp_async<16>(place(v, k), (const void*)p);
    });
  }
}
// What fetch_shifted brought, after cp_async_wait. The full warp, converged. ISA: ld.shared.
template <int N, int V, int STRIDE, class MASK, class OFFSETS, class X, class F>
TDSL_FN void load_fetched_shifted(X& x, u32 own, F at) {
  const PiecePlaces<OFFSETS, N / V, STRIDE> place(own);
  if constexpr (OFFSETS::CHAINED) warp_sync();
  if (OFFSETS::SAME && is_whole<N, V, MASK>(at)) {
    using T = decltype(get_raw(x, 0));
    const u32 off = uniform((u32)(u64)at(0).p % PIECE);
#pragma unroll
    for (int v = 0; v < N / V; ++v) {
      Cell<16> lo[1], hi[1];
      Fetched::load(lo[0], place(v, 0));
      Fetched::load(hi[0], place(v, 1));
      with_word(off, [&](auto q) { put_cut<q.value, V, T>(x, v * V, lo, hi, off, at); });
    }
  } else {
    read_shifted<N, V, 1, MASK, OFFSETS>(x, at, [&](Cell<16>& c, int v, int k, u64 p, bool in) {
      Fetched::load_if(c, place(v, k), in);
    });
  }
  if constexpr (OFFSETS::CHAINED) warp_sync();
}

// The bytes of a piece from number `off` on, or those before it; `off` lies in word Q. Thread. ISA: st.global.
template <class T, int Q, class ST> TDSL_FN void store_end(Cell<16> piece, u64 base, u32 off) {
#pragma unroll
  for (int k = Q + (sizeof(T) < 4); k < 4; ++k) ST::store_if(Cell<4>{{piece.w[k]}}, base + 4 * k, true);
  if constexpr (sizeof(T) == 2) {
    ST::store_if(Cell<2>{{piece.w[Q] >> 16}}, base + 4 * Q + 2, true);
    ST::store_if(Cell<2>{{piece.w[Q] & 0xffffu}}, base + 4 * Q, !(off & 3));
  } else if constexpr (sizeof(T) == 1) {
#pragma unroll
    for (u32 k = 0; k < 4; ++k) {
      ST::store_if(Cell<1>{{piece.w[Q] >> 8 * k & 0xffu}}, base + 4 * Q + k, k >= (off & 3));
    }
  }
}
template <class T, int Q, class ST> TDSL_FN void store_begin(Cell<16> piece, u64 base, u32 off) {
#pragma unroll
  for (int k = 0; k < Q; ++k) ST::store_if(Cell<4>{{piece.w[k]}}, base + 4 * k, true);
  if constexpr (sizeof(T) == 2) {
    ST::store_if(Cell<2>{{piece.w[Q] & 0xffffu}}, base + 4 * Q, off & 3);
  } else if constexpr (sizeof(T) == 1) {
#pragma unroll
    for (u32 k = 0; k < 3; ++k) ST::store_if(Cell<1>{{piece.w[Q] >> 8 * k & 0xffu}}, base + 4 * Q + k, k < (off & 3));
  }
}
// The elements of a vector where the mask holds. Thread. ISA: st.global.
template <int V, class ST, class X, class F>
TDSL_FN void store_each(const X& x, int i, F at, bool first, bool rest, int n) {
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const auto one = at(i + k);
    store_lane<1, ST>(x, i + k, one.p, (k < n ? first : rest) && is_in(one));
  }
}

template <int Q, int N, int V, int LANES, class MASK, class OFFSETS, class ST, class X, class F>
TDSL_FN void store_pieces(const X& x, bool first, F at, u32 same) {
  using T = decltype(get_raw(x, 0));
  const u32 lane = lane_id();
  u32 full[N / V];
#pragma unroll
  for (int v = 0; v < N / V; ++v) full[v] = warp_ballot(first && MASK::template all<V>(at, v * V));
#pragma unroll
  for (int v = 0; v < N / V; ++v) {
    const u64 p = (u64)at(v * V).p;
    const u32 off = Q == ANY_WORD ? (u32)p % PIECE : same;
    const bool all = full[v] >> lane & 1;
    const Cell<16> own = get_cell<V, T>(x, v * V);
    Cell<16> before = own;
    // Lanes of which the one before, or the one after, holds all of its vector.
    u32 after = full[v] << 1, ahead = full[v] >> 1;
    if constexpr (OFFSETS::CHAINED) {
      if (v > 0) {
        const Cell<16> last = get_cell<V, T>(x, (v ? v - 1 : 0) * V);
#pragma unroll
        for (int k = 0; k < 4; ++k) before.w[k] = shfl_idx(lane == 31 ? last.w[k] : own.w[k], (lane + 31) & 31);
        after |= full[v ? v - 1 : 0] >> 31;
      }
      if (v + 1 < N / V) ahead |= full[v + 1 < N / V ? v + 1 : 0] << 31;
    }
    if (!OFFSETS::CHAINED || v == 0) {
#pragma unroll
      for (int k = 0; k < 4; ++k) before.w[k] = shfl_up(own.w[k], 1);
    }
    // The piece with the beginning of the vector, and the one with its end, which the next lane writes.
    const bool here = all && (!off || ((OFFSETS::CHAINED || lane % LANES) && after >> lane & 1));
    const bool there = all && (OFFSETS::CHAINED || lane % LANES != LANES - 1) && ahead >> lane & 1;
    const Cell<16> piece = join<T, Q>(before, own, off);
    ST::store_if(piece, p - off, here);
    if constexpr (Q == ANY_WORD) {
      const bool any = first && MASK::template any<V>(at, v * V), head = any && !here, tail = any && off && !there;
      if (head || tail) store_each<V, ST>(x, v * V, at, head, tail, (int)((PIECE - off) / sizeof(T)));
    } else {
      if (all && !here) store_end<T, Q, ST>(piece, p - off, off);
      if (all && off && !there) store_begin<T, Q, ST>(join<T, Q>(own, own, off), p - off + PIECE, off);
    }
  }
}
// The same where all of a warp's vectors are there and follow each other: only the ends of the whole are cut.
template <int Q, int N, int V, class ST, class X, class F> TDSL_FN void store_whole(const X& x, F at, u32 off) {
  using T = decltype(get_raw(x, 0));
  const u32 lane = lane_id();
  Cell<16> last{};
#pragma unroll
  for (int v = 0; v < N / V; ++v) {
    const u64 p = (u64)at(v * V).p - off;
    const Cell<16> own = get_cell<V, T>(x, v * V);
    Cell<16> before = own;  // of which the last `off` bytes count
#pragma unroll
    for (int k = 3 - Q; k < 4; ++k) {
      before.w[k] = v ? shfl_idx(lane == 31 ? last.w[k] : own.w[k], (lane + 31) & 31) : shfl_up(own.w[k], 1);
    }
    const Cell<16> piece = join<T, Q>(before, own, off);
    ST::store_if(piece, p, v || !off || lane);
    if (!v && off && !lane) store_end<T, Q, ST>(piece, p, off);
    if (v == N / V - 1 && off && lane == 31) store_begin<T, Q, ST>(join<T, Q>(own, own, off), p + PIECE, off);
    last = own;
  }
}
// As load_shifted, for stores. LANES lanes side by side hold vectors that follow each other in memory: each writes
// the piece that its vector and the one before share. The full warp, converged. ISA: st.global, shfl.sync.
template <int N, int V, int LANES, class MASK, class OFFSETS, class ST, class X, class F>
TDSL_FN void store_shifted(const X& x, bool first, F at) {
  if constexpr (!OFFSETS::SAME) {
    store_pieces<ANY_WORD, N, V, LANES, MASK, OFFSETS, ST>(x, first, at, 0);
  } else {
    const u32 same = uniform((u32)(u64)at(0).p % PIECE);
    if constexpr (OFFSETS::CHAINED) {
      if (warp_all(first) && is_whole<N, V, MASK>(at)) {
        with_word(same, [&](auto q) { store_whole<q.value, N, V, ST>(x, at, same); });
        return;
      }
    }
    bool any = false;
#pragma unroll
    for (int i = 0; i < N; i += V) any |= MASK::template any<V>(at, i);
    if (!warp_any(first && any)) return;
    with_word(same, [&](auto q) {
      store_pieces<q.value, N, V, LANES, MASK, OFFSETS, ST>(x, first, at, same);
    });
#pragma unroll
    for (int i = 0; i < N; i += V) {
      const bool cut = MASK::template any<V>(at, i) && !MASK::template all<V>(at, i);
      if (first && cut) store_each<V, ST>(x, i, at, true, true, V);
    }
  }
}

}  // namespace tdsl
