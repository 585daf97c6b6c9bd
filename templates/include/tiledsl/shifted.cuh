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

// A vector of which elements low .. high - 1 are accessed, if `in`: where it begins at coordinate `c` of a dimension, the
// tensor's extent and what is left of the block bound it. Thread.
template <class T> struct RunLane { T* p; bool in; int low, high; T other; };
template <int V, class T> TDSL_FN RunLane<T> run_lane(T* p, bool in, i32 c, i64 extent, int left, T other) {
  const bool some = (u32)c + V - 1 < (u32)extent + V - 1;
  return {p, in && some, (int)-(u32)c, min((int)((u32)extent - (u32)c), left), other};
}
template <int V, class T> TDSL_FN RunLane<T> run_lane(T* p, bool in, i64 c, i64 extent, int left, T other) {
  const bool some = (u64)c + V - 1 < (u64)extent + V - 1;
  return {p, in && some, (int)-(u32)c, (int)min(extent - c, (i64)left), other};
}
template <int V, class T> TDSL_FN Cell<V * sizeof(T)> filling(RunLane<T> a) { return filled_cell<V>(a.other); }
struct ByRun {
  template <int V, class F> static TDSL_FN MaskBits<V> of(F at, int i) {
    const auto run = at(i);
    const u32 below = (1u << min(max(run.low, 0), V)) - 1, above = (1u << min(max(run.high, 0), V)) - 1;
    return {run.in ? above & ~below : 0u};
  }
};
// Word w of what a mask's bits stand for: all bits of each element that is in. Thread.
template <class T> TDSL_FN u32 word_mask(u32 bits, int w) {
  if constexpr (sizeof(T) == 1) return ((bits >> 4 * w & 0xfu) * 0x204081u & 0x1010101u) * 0xffu;
  else if constexpr (sizeof(T) == 2) return ((bits >> 2 * w & 3u) * 0x8001u & 0x10001u) * 0xffffu;
  else return 0u - (bits >> (sizeof(T) == 4 ? w : w / 2) & 1u);
}

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
// The same for any word: halves of eight words are chosen, then words, then bytes. Thread. ISA: shf, selp.
template <class T> TDSL_FN Cell<16> cut_from(Cell<16> lo, Cell<16> hi, u32 off) {
  u32 w[7] = {lo.w[0], lo.w[1], lo.w[2], lo.w[3], hi.w[0], hi.w[1], hi.w[2]};
  const u32 last = off & 8 ? hi.w[3] : hi.w[1];
#pragma unroll
  for (int k = 0; k < 5; ++k) w[k] = off & 8 ? w[k + 2] : w[k];
  w[5] = last;
#pragma unroll
  for (int k = 0; k < 5; ++k) w[k] = off & 4 ? w[k + 1] : w[k];
  Cell<16> c;
#pragma unroll
  for (int k = 0; k < 4; ++k) c.w[k] = sizeof(T) < 4 ? __funnelshift_r(w[k], w[k + 1], 8 * (off & 3)) : w[k];
  return c;
}
template <class T> TDSL_FN Cell<16> joined(Cell<16> lo, Cell<16> hi, u32 off) {
  return off ? cut_from<T>(lo, hi, PIECE - off) : hi;
}
// Whether all vectors of a warp are off by as many bytes: then the warp branches on the word, else each lane selects.
// Chained: in addition lane 0 of each vector begins where lane 31 of the one before ends.
struct Chained { static constexpr bool SAME = true, CHAINED = true; };
struct OneOffset { static constexpr bool SAME = true, CHAINED = false; };
struct AnyOffset { static constexpr bool SAME = false, CHAINED = false; };
constexpr int ANY_WORD = -1;
// Whether rows are turned so that their vectors are aligned, all but those of a tensor that is off by other bytes.
template <class MASK> struct IsTurned { static constexpr bool value = false; };
template <> struct IsTurned<ByTurn> { static constexpr bool value = true; };

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
// What a turned row has no place for behind its others: elements of a vector that begins before the row, those whose
// bits are set. They lie EXTENT elements further on.
template <class T> struct Last { T* p; u32 bits; };
template <class T, int EXTENT> TDSL_FN bool has_last(TurnedLane<T, EXTENT> a) { return a.place < 0 && a.limit > a.place + EXTENT; }
template <int V, class T, int EXTENT> TDSL_FN Last<T> last_of_row(TurnedLane<T, EXTENT> a) {
  return {a.p + EXTENT, (1u << min(min(-a.place, V), a.limit - EXTENT - a.place)) - 1};
}
// The elements of a cell whose bits are set as in another one. Thread.
template <class T> TDSL_FN Cell<16> blend(Cell<16> c, Cell<16> other, u32 bits) {
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const u32 from = word_mask<T>(bits, w);
    c.w[w] = (c.w[w] & ~from) | (other.w[w] & from);
  }
  return c;
}
constexpr int AHEAD = 8;  // vectors of a thread on their way at once: two registers for each of one
constexpr int FEW = 2;    // the same where what the thread holds fills its registers
constexpr int FULL = 96;  // registers

// visit(v, k, address, in) for both pieces k of COUNT vectors v from register `first` on; `in` says what is needed.
template <int COUNT, int V, class MASK, class OFFSETS, class F, class G>
TDSL_FN void each_piece(int first, F at, u32 same, G visit) {
#pragma unroll
  for (int v = 0; v < COUNT; ++v) {
    const int i = first + v * V;
    const auto lane = at(i);
    const u64 p = (u64)lane.p, off = OFFSETS::SAME ? same : p % PIECE;
    const int held = (int)((PIECE - off) / sizeof(*lane.p));  // elements in the first piece
    const auto mask = MASK::template of<V>(at, i);
    visit(v, 0, p - off, mask.before(held));
    visit(v, 1, p - off + PIECE, off && mask.from(held));
  }
}
// What registers hold where the mask cuts a vector: there it is filled. Thread.
template <int COUNT, int V, class MASK, class X, class F> TDSL_FN void fill_cut(X& x, int first, F at) {
  using T = decltype(get_raw(x, 0));
#pragma unroll
  for (int i = first; i < first + COUNT * V; i += V) {
    const auto mask = MASK::template of<V>(at, i);
    if (mask.any() && !mask.all()) {
      put_cell<V, T>(x, i, blend<T>(filling<V>(at(i)), get_cell<V, T>(x, i), mask.bits()));
    }
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
  if constexpr (COUNT <= FEW || sizeof(T) > 4) fill_cut<COUNT, V, MASK>(x, first, at);
}
// Whether the mask holds for all that a warp holds. The full warp, converged. ISA: vote.sync.
template <int N, int V, class MASK, class F> TDSL_FN bool is_whole(F at) {
  bool all = true;
#pragma unroll
  for (int i = 0; i < N; i += V) all &= MASK::template of<V>(at, i).all();
  return warp_all(all);
}
// Whether it holds for any. The same.
template <int N, int V, class MASK, class F> TDSL_FN bool is_live(F at) {
  bool any = false;
#pragma unroll
  for (int i = 0; i < N; i += V) any |= MASK::template of<V>(at, i).any();
  return warp_any(any);
}

// Whether a warp that holds a part of a turned row holds nothing else, and its vectors are aligned. The same.
template <int N, class F> TDSL_FN bool is_run(F at) {
  return warp_all(at(0).place >= 0 && at(N - 1).place < at(0).limit && (u32)(u64)at(0).p % PIECE == 0);
}

// N registers in vectors of V neighbours, 16 bytes each, at addresses aligned for an element, AHEAD vectors at once.
// load(cell, v, k, address, in): reads piece k of vector v. The full warp, converged.
template <int N, int V, int AHEAD, class MASK, class OFFSETS, class X, class F, class L>
TDSL_FN void read_shifted(X& x, F at, L load) {
  const u32 same = OFFSETS::SAME ? uniform((u32)(u64)at(0).p % PIECE) : 0;
  constexpr int WHOLE = N / V / AHEAD * AHEAD, REST = N / V - WHOLE;
#pragma unroll
  for (int v = 0; v < WHOLE; v += AHEAD) load_pieces<AHEAD, V, MASK, OFFSETS>(x, v * V, at, same, load);
  if constexpr (REST > 0) load_pieces<REST, V, MASK, OFFSETS>(x, WHOLE * V, at, same, load);
  if constexpr (sizeof(get_raw(x, 0)) > 4) return;
  if constexpr (AHEAD > FEW) fill_cut<WHOLE, V, MASK>(x, 0, at);
  if constexpr (REST > FEW) fill_cut<REST, V, MASK>(x, WHOLE * V, at);
}
// The same of turned rows: one piece for each vector, but for a tensor that is off by other bytes. The full warp, converged.
template <int N, int V, class MASK, class X, class F, class L> TDSL_FN void read_turned(X& x, F at, L load) {
  using T = decltype(get_raw(x, 0));
  if (is_run<N>(at)) {
    const u64 start = (u64)at(0).p;
#pragma unroll
    for (int v = 0; v < N / V; ++v) {
      Cell<16> c;
      load(c, v, 0, start + v * 32 * PIECE, true);
      put_cell<V, T>(x, v * V, c);
    }
    return;
  }
  if (uniform((u32)(u64)at(0).p % PIECE) == 0) {
#pragma unroll
    for (int v = 0; v < N / V; ++v) {
      Cell<16> c = filling<V>(at(v * V));
      load(c, v, 0, (u64)at(v * V).p, MASK::template of<V>(at, v * V).any());
      put_cell<V, T>(x, v * V, c);
    }
  } else {
#pragma unroll
    for (int v = 0; v < N / V; ++v) {
      Cell<16> c[2] = {filling<V>(at(v * V)), filling<V>(at(v * V))};
      each_piece<1, V, MASK, AnyOffset>(v * V, at, 0, [&](int, int k, u64 p, bool in) { load(c[k], v, k, p, in); });
      put_cell<V, T>(x, v * V, cut_from<T>(c[0], c[1], (u32)(u64)at(v * V).p % PIECE));
    }
  }
  fill_cut<N / V, V, MASK>(x, 0, at);
}
// Then last_of_row. load(cell, address): reads an aligned piece. Thread.
template <int V, class X, class F, class L> TDSL_FN void read_last(X& x, F at, L load) {
  using T = decltype(get_raw(x, 0));
  if (!at(0).full || !has_last(at(0))) return;
  const auto end = last_of_row<V>(at(0));
  if ((u64)end.p % PIECE == 0) {
    Cell<16> c;
    load(c, (u64)end.p);
    put_cell<V, T>(x, 0, blend<T>(get_cell<V, T>(x, 0), c, end.bits));
  } else {
    const T* p = end.p;
#pragma unroll 1
    for (u32 bits = end.bits, bit = 1; bits; bits >>= 1, bit *= 2, ++p) {  // of few registers
      if (bits & 1) put_cell<V, T>(x, 0, blend<T>(get_cell<V, T>(x, 0), filled_cell<V>(*p), bit));
    }
  }
}
// The same from global memory. The full warp, converged. ISA: ld.global.
template <int N, int V, class MASK, class OFFSETS, class LD, class X, class F> TDSL_FN void load_shifted(X& x, F at) {
  if constexpr (IsTurned<MASK>::value) {
    read_turned<N, V, MASK>(x, at, [](Cell<16>& c, int, int, u64 p, bool in) { LD::load_if(c, p, in); });
    read_last<V>(x, at, [](Cell<16>& c, u64 p) { LD::load_if(c, p, true); });
    return;
  } else if constexpr (OFFSETS::SAME && N / V <= AHEAD) {
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
  read_shifted<N, V, (N > FULL ? FEW : AHEAD), MASK, OFFSETS>(x, at, [](Cell<16>& c, int v, int k, u64 p, bool in) { LD::load_if(c, p, in); });
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
  // Where last_of_row lies if pieces are vectors: in the place of one that is not there, else of one behind all.
  TDSL_FN u32 of_last(bool instead) const {
    return instead ? own : own - threadIdx.x * (u32)PIECE + COUNT * STRIDE + threadIdx.x / 32 * (u32)PIECE;
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
    const u64 start = (u64)at(0).p - same;
    if constexpr (IsTurned<MASK>::value) {
      if (at(0).full && !same && has_last(at(0))) cp_async<16>(place.of_last(at(0).place <= -V), last_of_row<V>(at(0)).p);
    }
    if (is_whole<N, V, MASK>(at)) {
#pragma unroll
      for (int v = 0; v < COUNT; ++v) cp_async<16>(place(v, 0), (const void*)(start + v * 32 * PIECE));
      if (same && lane == 31) cp_async<16>(place(COUNT - 1, 1), (const void*)(start + (COUNT - 1) * 32 * PIECE + PIECE));
      return;
    }
    if (IsTurned<MASK>::value && !same) {
#pragma unroll
      for (int v = 0; v < COUNT; ++v) {
        const bool any = MASK::template of<V>(at, v * V).any();
        if (any) cp_async<16>(place(v, 0), (const void*)(start + v * 32 * PIECE));
      }
      return;
    }
    if (!is_live<N, V, MASK>(at)) return;
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
  if constexpr (IsTurned<MASK>::value) {
    read_turned<N, V, MASK>(x, at, [&](Cell<16>& c, int v, int k, u64, bool in) { Fetched::load_if(c, place(v, k), in); });
    read_last<V>(x, at, [&](Cell<16>& c, u64) { Fetched::load(c, place.of_last(at(0).place <= -V)); });
  } else if (OFFSETS::SAME && is_whole<N, V, MASK>(at)) {
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

// Where a lane finds the pieces of its first vector in what its warp fetched for all rows: shifted by `word` bytes.
struct Segment { u32 at, word; };
template <class T> TDSL_FN Segment segment_at(u32 own, i32 back) {
  const u32 p = own + back * (i32)sizeof(T), word = uniform(p % PIECE);
  return {p - word, word};
}
// Reads the vector from register i on, where the shift begins in word Q. Thread. ISA: ld.shared.
template <int Q, int V, class X> TDSL_FN void read_segment(X& x, int i, Segment s) {
  using T = decltype(get_raw(x, 0));
  const u32 at = s.at + i / V * 32 * (u32)PIECE;
  Cell<16> lo, hi;
  Fetched::load(lo, at);
  Fetched::load(hi, at + (s.word ? (u32)PIECE : 0));
  put_cell<V, T>(x, i, cut_at<T, Q>(lo, hi, s.word));
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
// The elements of a vector whose bits are set. Thread. ISA: st.global.
template <class T, class ST> TDSL_FN void store_bits(Cell<16> c, u64 p, u32 bits) {
#pragma unroll 1
  for (; bits; bits &= bits - 1) {
    const u32 at = (u32)(__ffs(bits) - 1) * sizeof(T);
    const u32 lo = at & 4 ? c.w[1] : c.w[0], hi = at & 4 ? c.w[3] : c.w[2], word = at & 8 ? hi : lo;
    Cell<sizeof(T)> one;
    one.w[0] = word >> 8 * (at & 3);
    if constexpr (sizeof(T) == 8) one.w[1] = at & 8 ? c.w[3] : c.w[1];
    ST::store_if(one, p + at, true);
  }
}

template <int Q, int N, int V, int LANES, class MASK, class OFFSETS, class ST, class X, class F>
TDSL_FN void store_pieces(const X& x, bool first, F at, u32 same) {
  using T = decltype(get_raw(x, 0));
  const u32 lane = lane_id();
  u32 full[N / V];
#pragma unroll
  for (int v = 0; v < N / V; ++v) full[v] = warp_ballot(first && MASK::template of<V>(at, v * V).all());
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
      const u32 head = (1u << (PIECE - off) / sizeof(T)) - 1, left = (here ? 0u : head) | (there ? 0u : ~head);
      if (first && !(here && (there || !off))) store_bits<T, ST>(own, p, MASK::template of<V>(at, v * V).bits() & left);
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
// The elements of an aligned vector whose bits are set, without a loop. Thread. ISA: st.global.
template <class T, class ST> TDSL_FN void store_cut(Cell<16> c, u64 p, u32 bits) {
#pragma unroll
  for (int k = 0; k < (int)(16 / sizeof(T)); ++k) {
    const int byte = k * (int)sizeof(T);
    Cell<sizeof(T)> one;
    one.w[0] = c.w[byte / 4] >> 8 * (byte & 3);
    if constexpr (sizeof(T) == 8) one.w[1] = c.w[byte / 4 + 1];
    ST::store_if(one, p + byte, bits >> k & 1u);
  }
}
// The part of a row that a warp holds, at addresses that are off by `same` bytes. The full warp, converged.
template <int N, int V, class MASK, class ST, class X, class F>
TDSL_FN void store_turned_off(const X& x, bool first, F at, u32 same) {
  using T = decltype(get_raw(x, 0));
  constexpr u32 ALL = MaskBits<V>::ALL;
  const u64 start = (u64)at(0).p;
  const u32 lane = lane_id();
  const bool whole = warp_all(first) && is_whole<N, V, MASK>(at);
  if (whole) {
    Cell<16> last{};
#pragma unroll
    for (int i = 0; i < N; i += V) {
      const Cell<16> own = get_cell<V, T>(x, i);
      Cell<16> before;
#pragma unroll
      for (int k = 0; k < 4; ++k) before.w[k] = shfl_idx(lane == 31 ? last.w[k] : own.w[k], (lane + 31) & 31);
      ST::store_if(joined<T>(before, own, same), start - same + i / V * 32 * PIECE, i || lane);
      last = own;
    }
  }
  const u32 head = (1u << (PIECE - same) / sizeof(T)) - 1;
#pragma unroll
  for (int i = 0; i < N; i += V) {
    const auto mask = MASK::template of<V>(at, i);
    const u32 end = (i == 0 && lane == 0 ? head : 0) | (i == N - V && lane == 31 ? ALL & ~head : 0);
    if (first && (whole ? end : mask.any())) {
      store_bits<T, ST>(get_cell<V, T>(x, i), start + i / V * 32 * PIECE, whole ? end : mask.bits());
    }
  }
}
// Turned rows: vectors that are aligned, or pieces of a whole warp that is off. What is cut is written element by element.
// The full warp, converged. ISA: st.global, shfl.sync.
template <int N, int V, class MASK, class ST, class X, class F> TDSL_FN void store_turned(const X& x, bool first, F at) {
  using T = decltype(get_raw(x, 0));
  const u64 start = (u64)at(0).p;
  if (warp_all(first) && is_run<N>(at)) {
#pragma unroll
    for (int i = 0; i < N; i += V) ST::store_if(get_cell<V, T>(x, i), start + i / V * 32 * PIECE, true);
    return;
  }
  const u32 same = uniform((u32)start % PIECE);
  if (!same) {
#pragma unroll
    for (int i = 0; i < N; i += V) {
      const auto mask = MASK::template of<V>(at, i);
      const u64 p = start + i / V * 32 * PIECE;
      ST::store_if(get_cell<V, T>(x, i), p, first && mask.all());
      if (first && mask.any() && !mask.all()) store_cut<T, ST>(get_cell<V, T>(x, i), p, mask.bits());
    }
  } else if (is_live<N, V, MASK>(at)) {
    store_turned_off<N, V, MASK, ST>(x, first, at, same);
  }
}
// Then last_of_row. Thread. ISA: st.global.
template <int V, class ST, class X, class F> TDSL_FN void store_last(const X& x, bool first, F at) {
  if (!at(0).full || !first || !has_last(at(0))) return;
  const auto end = last_of_row<V>(at(0));
  store_bits<decltype(get_raw(x, 0)), ST>(get_cell<V, decltype(get_raw(x, 0))>(x, 0), (u64)end.p, end.bits);
}
// As load_shifted, for stores. LANES lanes side by side hold vectors that follow each other in memory: each writes
// the piece that its vector and the one before share. The full warp, converged. ISA: st.global, shfl.sync.
template <int N, int V, int LANES, class MASK, class OFFSETS, class ST, class X, class F>
TDSL_FN void store_shifted(const X& x, bool first, F at) {
  if constexpr (IsTurned<MASK>::value) {
    store_turned<N, V, MASK, ST>(x, first, at);
    store_last<V, ST>(x, first, at);
  } else if constexpr (!OFFSETS::SAME) {
    store_pieces<ANY_WORD, N, V, LANES, MASK, OFFSETS, ST>(x, first, at, 0);
  } else {
    using T = decltype(get_raw(x, 0));
    const u32 same = uniform((u32)(u64)at(0).p % PIECE);
    if constexpr (OFFSETS::CHAINED) {
      if (warp_all(first) && is_whole<N, V, MASK>(at)) {
        with_word(same, [&](auto q) { store_whole<q.value, N, V, ST>(x, at, same); });
        return;
      }
    }
    bool any = false;
#pragma unroll
    for (int i = 0; i < N; i += V) any |= MASK::template of<V>(at, i).any();
    if (!warp_any(first && any)) return;
    with_word(same, [&](auto q) {
      store_pieces<q.value, N, V, LANES, MASK, OFFSETS, ST>(x, first, at, same);
    });
#pragma unroll
    for (int i = 0; i < N; i += V) {
      const auto mask = MASK::template of<V>(at, i);
      if (first && mask.any() && !mask.all()) store_bits<T, ST>(get_cell<V, T>(x, i), (u64)at(i).p, mask.bits());
    }
  }
}

}  // namespace tdsl
