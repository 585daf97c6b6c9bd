// global.cuh - global memory through pointers that each register computes for itself. What is accessed comes from a
// function of the register index; how, from a policy that is generated per kernel (generated/access.cuh.j2).
#pragma once
#include "tiledsl/tile.cuh"

namespace tdsl {

// Where an element lies, whether it is accessed, and what it is read as if not.
template <class T> struct Lane { T* p; };
template <class T> struct MaskedLane { T* p; bool in; };
template <class T> struct FilledLane { T* p; bool in; T other; };
// The same of a turned row: its place in the row, which has `limit` elements, see turned_limit. Places before the row hold
// the last of EXTENT elements, if there are so many (last_of_row); `full`: of all programs, whether there can be.
template <class T, int EXTENT> struct TurnedLane { T* p; int place, limit; bool full; T other; };
// The elements of a row that is there, else so few that no place, nor one before the row, lies below. Thread.
TDSL_FN int turned_limit(bool in, int count) { return in && count > 0 ? count : -(1 << 30); }

template <class P> struct Pointee;
template <class T> struct Pointee<T*> { using type = T; };

// Up to 16 bytes on their way; fewer than four fill the low part of a word.
template <int BYTES> struct Cell { u32 w[(BYTES + 3) / 4]; };

// The bits of an element in the low part of a 64-bit word, and back. Thread.
template <class T> TDSL_FN u64 element_bits(T v) {
  if constexpr (sizeof(T) == 1) return bits_as<u8>(v);
  else if constexpr (sizeof(T) == 2) return bits_as<u16>(v);
  else if constexpr (sizeof(T) == 4) return bits_as<u32>(v);
  else return bits_as<u64>(v);
}
template <class T> TDSL_FN T element_of(u64 bits) {
  if constexpr (sizeof(T) == 1) return bits_as<T>((u8)bits);
  else if constexpr (sizeof(T) == 2) return bits_as<T>((u16)bits);
  else if constexpr (sizeof(T) == 4) return bits_as<T>((u32)bits);
  else return bits_as<T>(bits);
}
template <class T> TDSL_FN Cell<sizeof(T)> one_cell(T v) {
  Cell<sizeof(T)> c;
  const u64 bits = element_bits(v);
  c.w[0] = (u32)bits;
  if constexpr (sizeof(T) == 8) c.w[1] = (u32)(bits >> 32);
  return c;
}
template <class T> TDSL_FN T from_cell(Cell<sizeof(T)> c) {
  if constexpr (sizeof(T) == 8) return element_of<T>((u64)c.w[1] << 32 | c.w[0]);
  else return element_of<T>(c.w[0]);
}
// V copies of an element. Thread.
template <int V, class T> TDSL_FN Cell<V * sizeof(T)> filled_cell(T v) {
  Cell<V * sizeof(T)> c;
  u32 word = (u32)element_bits(v);
  if constexpr (sizeof(T) == 1 && V > 1) word |= word << 8 | word << 16 | word << 24;
  if constexpr (sizeof(T) == 2 && V > 1) word |= word << 16;
#pragma unroll
  for (int k = 0; k < (int)(sizeof(c.w) / 4); ++k) c.w[k] = word;
  if constexpr (sizeof(T) == 8) {
#pragma unroll
    for (int k = 0; k < V; ++k) c.w[2 * k + 1] = (u32)(element_bits(v) >> 32);
  }
  return c;
}
// The V elements of a tile from register i on. Thread.
template <int V, class T, class X> TDSL_FN Cell<V * sizeof(T)> get_cell(const X& x, int i) {
  if constexpr (V == 1) return one_cell<T>(get_raw(x, i));
  else if constexpr (V * sizeof(T) == 2) {
    return {{(u32)element_bits(get_raw(x, i)) | (u32)element_bits(get_raw(x, i + 1)) << 8}};
  } else {
    const Words<V * sizeof(T)> words = get_words<V>(x, i);
    Cell<V * sizeof(T)> c;
#pragma unroll
    for (int k = 0; k < V * (int)sizeof(T) / 4; ++k) c.w[k] = words.w[k];
    return c;
  }
}
template <int V, class T, class X> TDSL_FN void put_cell(X& x, int i, Cell<V * sizeof(T)> c) {
  if constexpr (V == 1) put_raw(x, i, from_cell<T>(c));
  else if constexpr (V * sizeof(T) == 2) {
    put_raw(x, i, element_of<T>(c.w[0]));
    put_raw(x, i + 1, element_of<T>(c.w[0] >> 8));
  } else {
    Words<V * sizeof(T)> words;
#pragma unroll
    for (int k = 0; k < V * (int)sizeof(T) / 4; ++k) words.w[k] = c.w[k];
    put_words<V>(x, i, words);
  }
}

// ------------------------------------------------------------------ masks
template <class T> TDSL_FN bool is_in(Lane<T>) { return true; }
template <class T> TDSL_FN bool is_in(MaskedLane<T> a) { return a.in; }
template <class T> TDSL_FN bool is_in(FilledLane<T> a) { return a.in; }
template <class T, int E> TDSL_FN bool is_in(TurnedLane<T, E> a) { return is_within(a.place, a.limit); }
// What registers hold that are not read.
template <int V, class T> TDSL_FN Cell<V * sizeof(T)> filling(Lane<T>) { return {}; }
template <int V, class T> TDSL_FN Cell<V * sizeof(T)> filling(MaskedLane<T>) { return {}; }
template <int V, class T> TDSL_FN Cell<V * sizeof(T)> filling(FilledLane<T> a) { return filled_cell<V>(a.other); }
template <int V, class T, int E> TDSL_FN Cell<V * sizeof(T)> filling(TurnedLane<T, E> a) { return filled_cell<V>(a.other); }

// Element k of a cell as in another one, unless it is `in`. Thread.
template <class T, int BYTES> TDSL_FN void put_filling(Cell<BYTES>& c, int k, Cell<BYTES> other, bool in) {
  if constexpr (sizeof(T) < 4) {
    const u32 bits = ((1u << 8 * sizeof(T)) - 1) << 8 * (k * sizeof(T) % 4);
    const int w = k * sizeof(T) / 4;
    c.w[w] = in ? c.w[w] : (c.w[w] & ~bits) | (other.w[w] & bits);
  } else {
#pragma unroll
    for (int w = k * sizeof(T) / 4; w < (k + 1) * (int)sizeof(T) / 4; ++w) c.w[w] = in ? c.w[w] : other.w[w];
  }
}

// The mask of V neighbours as bits, element 0 the lowest: what a vector at an odd address is cut by. Thread.
template <int V> struct MaskBits {
  static constexpr u32 ALL = V < 32 ? (1u << V % 32) - 1 : ~0u;
  u32 in;
  TDSL_FN u32 bits() const { return in; }
  TDSL_FN bool all() const { return in == ALL; }
  TDSL_FN bool any() const { return in; }
  // Any of the elements before number `n`, or from there on.
  TDSL_FN bool before(int n) const { return in & ((1u << n) - 1); }
  TDSL_FN bool from(int n) const { return in >> n; }
};
template <int V, class F> TDSL_FN u32 mask_bits(F at, int i) {
  u32 bits = 0;
#pragma unroll
  for (int k = 0; k < V; ++k) bits |= is_in(at(i + k)) ? 1u << k : 0u;
  return bits;
}
// The same where it only falls or is equal: its ends are asked.
template <int V, class F> struct MaskEnds {
  F at;
  int i;
  TDSL_FN u32 bits() const { return mask_bits<V>(at, i); }
  TDSL_FN bool all() const { return is_in(at(i + V - 1)); }
  TDSL_FN bool any() const { return is_in(at(i)); }
  TDSL_FN bool before(int) const { return is_in(at(i)); }
  TDSL_FN bool from(int n) const { return is_in(at(i + n)); }
};

// The same of a row that is turned by some elements: it may begin and end inside of a vector.
template <int V> struct MaskTurned {
  int place, limit;
  TDSL_FN u32 bits() const {
    const u32 low = (1u << min(max(-place, 0), V)) - 1, high = (1u << min(max(limit - place, 0), V)) - 1;
    return high & ~low;
  }
  TDSL_FN bool all() const { return place >= 0 && place + V <= limit; }
  TDSL_FN bool any() const { return place > -V && place < limit; }
  TDSL_FN bool before(int n) const { return place > -n && place < limit; }
  TDSL_FN bool from(int n) const { return n < V && place > -V && place + n < limit; }
};

// How the mask of V neighbours is asked for: by their ends where it only falls or is equal, else by each.
struct ByEnds {
  template <int V, class F> static TDSL_FN bool all(F at, int i) { return is_in(at(i + V - 1)); }
  template <int V, class F> static TDSL_FN bool any(F at, int i) { return is_in(at(i)); }
  template <int V, class F> static TDSL_FN MaskEnds<V, F> of(F at, int i) { return {at, i}; }
};
struct ByTurn {
  template <int V, class F> static TDSL_FN bool all(F at, int i) { return of<V>(at, i).all(); }
  template <int V, class F> static TDSL_FN bool any(F at, int i) { return of<V>(at, i).any(); }
  template <int V, class F> static TDSL_FN MaskTurned<V> of(F at, int i) { return {at(i).place, at(i).limit}; }
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
  template <int V, class F> static TDSL_FN MaskBits<V> of(F at, int i) { return {mask_bits<V>(at, i)}; }
};

// ------------------------------------------------------------------ loads
// One vector. Thread. ISA: ld.global.
template <int V, class LD, class X, class T> TDSL_FN void load_lane(X& x, int i, Lane<T> a) {
  Cell<V * sizeof(T)> c;
  LD::load(c, (u64)a.p);
  put_cell<V, T>(x, i, c);
}
template <int V, class LD, class X, class T> TDSL_FN void load_lane(X& x, int i, MaskedLane<T> a) {
  Cell<V * sizeof(T)> c = {};
  LD::load_if(c, (u64)a.p, a.in);
  put_cell<V, T>(x, i, c);
}
template <int V, class LD, class X, class T> TDSL_FN void load_lane(X& x, int i, FilledLane<T> a) {
  Cell<V * sizeof(T)> c = filled_cell<V>(a.other);
  LD::load_if(c, (u64)a.p, a.in);
  put_cell<V, T>(x, i, c);
}
// N registers in vectors of V neighbours; `at(i)` says where register i lies. Thread. ISA: ld.global.
template <int N, int V, class LD, class X, class F> TDSL_FN void load_lanes(X& x, F at) {
#pragma unroll
  for (int i = 0; i < N; i += V) load_lane<V, LD>(x, i, at(i));
}
// As load_lanes of single elements, of which R consecutive registers hold one. Thread. ISA: ld.global.
template <int N, int R, class LD, class X, class F> TDSL_FN void load_repeated(X& x, F at) {
#pragma unroll
  for (int i = 0; i < N; i += R) {
    load_lane<1, LD>(x, i, at(i));
    const auto raw = get_raw(x, i);
#pragma unroll
    for (int k = 1; k < R; ++k) put_raw(x, i + k, raw);
  }
}
// As load_lanes where a mask may cut a vector: it is read all the same, since a part of it exists. Thread.
template <int N, int V, class MASK, class LD, class X, class F> TDSL_FN void load_partial(X& x, F at) {
  using T = decltype(get_raw(x, 0));
#pragma unroll
  for (int i = 0; i < N; i += V) {
    const auto lane = at(i);
    const bool any = MASK::template any<V>(at, i);
    Cell<V * sizeof(T)> c = filling<V>(lane);
    LD::load_if(c, (u64)lane.p, any);
    if (any && !MASK::template all<V>(at, i)) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const auto one = at(i + k);
        put_filling<T>(c, k, filling<V>(one), is_in(one));
      }
    }
    put_cell<V, T>(x, i, c);
  }
}
// One element that all threads read. Thread. ISA: ld.global.
template <class LD, class T> TDSL_FN T load_one(const T* p) {
  Cell<sizeof(T)> c;
  LD::load(c, (u64)p);
  return from_cell<T>(c);
}
template <class LD, class T> TDSL_FN T load_one(const T* p, bool in, T other) {
  Cell<sizeof(T)> c = one_cell(other);
  LD::load_if(c, (u64)p, in);
  return from_cell<T>(c);
}

// ------------------------------------------------------------------ prefetches
// Brings what load_lanes reads into L2. Of neighbours, the thread asks whose vector is the first that begins in a line.
// Thread. ISA: prefetch.
template <int N, int V, class MASK, class F> TDSL_FN void prefetch_lanes(F at) {
  constexpr u32 LINE = 128;
#pragma unroll
  for (int i = 0; i < N; i += V) {
    const u64 p = (u64)at(i).p;
    if (p % LINE < V * sizeof(*at(0).p) && MASK::template any<V>(at, i)) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
    }
  }
}

// ------------------------------------------------------------------ copies to shared memory
// What a thread copies for itself: vector v of V elements lies at own + v * STRIDE, so that no other thread has to be
// waited for. As load_partial, a vector that a mask cuts is copied whole. Thread. ISA: cp.async.
template <int N, int V, int STRIDE, class MASK, class F> TDSL_FN void fetch_lanes(u32 own, F at) {
  constexpr int SIZE = sizeof(*at(0).p);
#pragma unroll
  for (int i = 0; i < N; i += V) {
    if (MASK::template any<V>(at, i)) cp_async<V * SIZE>(own + i / V * STRIDE, at(i).p);
  }
}
// As fetch_lanes, with the fillings of what the mask keeps out: for what is read again and again. Thread. ISA: cp.async,
// st.shared.
template <int N, int V, int STRIDE, class MASK, class LD, class F> TDSL_FN void fetch_filled(u32 own, F at) {
  using T = typename Pointee<decltype(at(0).p)>::type;
#pragma unroll
  for (int i = 0; i < N; i += V) {
    const u32 to = own + i / V * STRIDE;
    if (MASK::template all<V>(at, i)) {
      cp_async<V * sizeof(T)>(to, at(i).p);
    } else {
#pragma unroll 1
      for (int k = 0; k < V; ++k) {
        const auto one = at(i + k);
        Cell<sizeof(T)> c = filling<1>(one);
        LD::load_if(c, (u64)one.p, is_in(one));
        st_shared<T>(to + k * sizeof(T), from_cell<T>(c));
      }
    }
  }
}
// Where load_lanes and load_partial find it: addresses in shared memory in the place of global ones.
template <int V, int STRIDE, class F> struct FetchedLanes {
  u32 own;
  F at;
  TDSL_FN auto operator()(int i) const {
    auto lane = at(i);
    using P = decltype(lane.p);
    lane.p = (P)(u64)(own + i / V * STRIDE + i % V * sizeof(*lane.p));
    return lane;
  }
};
template <int V, int STRIDE, class F> TDSL_FN FetchedLanes<V, STRIDE, F> fetched(u32 own, F at) { return {own, at}; }
// How it is read. Thread. ISA: ld.shared.
struct Fetched {
  template <int BYTES> static TDSL_FN void load(Cell<BYTES>& c, u64 p) {
    if constexpr (BYTES == 16) {
      ld_shared_v4<u32>((u32)p, c.w[0], c.w[1], c.w[2], c.w[3]);
    } else if constexpr (BYTES == 8) {
      const u64 bits = ld_shared<u64>((u32)p);
      c.w[0] = (u32)bits, c.w[1] = (u32)(bits >> 32);
    } else {
      static_assert(BYTES == 4, "cp.async moves 4, 8 or 16 bytes");
      c.w[0] = ld_shared<u32>((u32)p);
    }
  }
  template <int BYTES> static TDSL_FN void load_if(Cell<BYTES>& c, u64 p, bool in) {
    if (in) load(c, p);
  }
};
// What fetch_filled brought, after cp_async_wait. Thread. ISA: ld.shared.
template <int N, int V, int STRIDE, class X> TDSL_FN void load_filled(X& x, u32 own) {
  using T = decltype(get_raw(x, 0));
#pragma unroll
  for (int i = 0; i < N; i += V) {
    Cell<V * sizeof(T)> c;
    Fetched::load(c, own + i / V * STRIDE);
    put_cell<V, T>(x, i, c);
  }
}
// Starts a copy of V neighbours; zeros where the first is outside. Thread. ISA: cp.async.
template <int V, class T> TDSL_FN void copy_lane(u32 to, Lane<T> a) { cp_async<V * sizeof(T)>(to, a.p); }
template <int V, class T> TDSL_FN void copy_lane(u32 to, MaskedLane<T> a) {
  cp_async_zfill<V * sizeof(T)>(to, a.p, a.in);
}
// As copy_lane where only the first few of the neighbours may be inside. Thread. ISA: cp.async.
template <int V, class F> TDSL_FN void copy_partial(u32 to, int i, F at) {
  constexpr int SIZE = sizeof(*at(i).p);
  u32 count = V;
  if (!at(i + V - 1).in) {
    count = 0;
#pragma unroll
    for (int k = 0; k < V - 1; ++k) count += at(i + k).in;
  }
  cp_async_part<V * SIZE>(to, at(i).p, count * SIZE);
}

// ------------------------------------------------------------------ stores
// One vector, where `first` (the threads that do not hold copies). Thread. ISA: st.global.
template <int V, class ST, class X, class T> TDSL_FN void store_lane(const X& x, int i, T* p, bool in) {
  ST::store_if(get_cell<V, T>(x, i), (u64)p, in);
}
template <int N, int V, class ST, class X, class F> TDSL_FN void store_lanes(const X& x, bool first, F at) {
#pragma unroll
  for (int i = 0; i < N; i += V) {
    const auto lane = at(i);
    store_lane<V, ST>(x, i, lane.p, first && is_in(lane));
  }
}
// As store_lanes where a mask may cut a vector: then it is written element by element. Thread.
template <int N, int V, class MASK, class ST, class X, class F>
TDSL_FN void store_partial(const X& x, bool first, F at) {
#pragma unroll
  for (int i = 0; i < N; i += V) {
    const bool all = first && MASK::template all<V>(at, i);
    store_lane<V, ST>(x, i, at(i).p, all);
    if (first && !all && MASK::template any<V>(at, i)) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const auto one = at(i + k);
        store_lane<1, ST>(x, i + k, one.p, is_in(one));
      }
    }
  }
}
// One element, where `in`. Thread. ISA: st.global.
template <class ST, class T> TDSL_FN void store_one(T* p, T v, bool in) { ST::store_if(one_cell(v), (u64)p, in); }

// ------------------------------------------------------------------ atomics
// The old value of one element, 0 where not `in`. Thread. ISA: atom.
template <class OP, class T> TDSL_FN T rmw_one(T* p, T v, bool in) {
  return in ? element_of<T>(OP::atom((u64)p, element_bits(v))) : element_of<T>(0);
}
template <class OP, class T> TDSL_FN T cas_one(T* p, T compare, T v, bool in) {
  return in ? element_of<T>(OP::cas((u64)p, element_bits(compare), element_bits(v))) : element_of<T>(0);
}
// Updates of N registers, each with its old value. Thread. ISA: atom.
template <int N, class OP, class Y, class X, class F> TDSL_FN void rmw_lanes(Y& old, const X& x, bool first, F at) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const auto lane = at(i);
    put_raw(old, i, rmw_one<OP>(lane.p, get_raw(x, i), first && is_in(lane)));
  }
}
template <int N, class OP, class Y, class X, class F>
TDSL_FN void cas_lanes(Y& old, const X& compare, const X& x, bool first, F at) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const auto lane = at(i);
    put_raw(old, i, cas_one<OP>(lane.p, get_raw(compare, i), get_raw(x, i), first && is_in(lane)));
  }
}
// Elements that one of several threads has, to the others: out, and after a barrier in. Thread. ISA: st.shared.
template <int N, class X, class F, class G>
TDSL_FN void share_out(const X& x, u32 scratch, bool first, F index, G held) {
  using T = decltype(get_raw(x, 0));
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (first && held(i)) st_shared<T>(scratch + index(i) * sizeof(T), get_raw(x, i));
  }
}
template <int N, class X, class F, class G> TDSL_FN void share_in(X& x, u32 scratch, F index, G held) {
  using T = decltype(get_raw(x, 0));
#pragma unroll
  for (int i = 0; i < N; ++i) put_raw(x, i, ld_shared<T>(scratch + (held(i) ? index(i) : 0) * sizeof(T)));
}
// Updates whose old values nobody wants, V neighbours at once. Thread. ISA: red.
template <int N, int V, class OP, class X, class F> TDSL_FN void red_lanes(const X& x, bool first, F at) {
#pragma unroll
  for (int i = 0; i < N; i += V) {
    const auto lane = at(i);
    using T = decltype(get_raw(x, i));
    if (first && is_in(lane)) {
      if constexpr (V == 1) OP::red((u64)lane.p, element_bits(get_raw(x, i)));
      else OP::red((u64)lane.p, get_cell<V, T>(x, i));
    }
  }
}

}  // namespace tdsl
