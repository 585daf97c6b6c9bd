// combine.cuh - values that reductions and scans combine: tuples, values that may be absent, the named functions, and
// their exchange between lanes and through shared memory. All functions: thread, unless stated.
#pragma once
#include "tiledsl/math.cuh"
#include "tiledsl/reduce.cuh"
#include "tiledsl/smem.cuh"
#include "tiledsl/tile.cuh"
#include "tiledsl/types.cuh"

namespace tdsl {

// ------------------------------------------------------------------ tuples
template <class... T> struct Tuple;
template <class T> struct Tuple<T> {
  T head;
  template <int I> TDSL_FN T get() const { return head; }
};
template <class T, class U, class... R> struct Tuple<T, U, R...> {
  T head;
  Tuple<U, R...> tail;
  template <int I> TDSL_FN auto get() const {
    if constexpr (I == 0) return head;
    else return tail.template get<I - 1>();
  }
};
template <class T> TDSL_FN Tuple<T> tuple(T v) { return Tuple<T>{v}; }
template <class T, class U, class... R> TDSL_FN Tuple<T, U, R...> tuple(T v, U u, R... rest) {
  return Tuple<T, U, R...>{v, tuple<U, R...>(u, rest...)};
}

// A value, or none: elements beyond a tile's edge in a reduction without a neutral element.
template <class T> struct Maybe {
  bool has;
  T value;
};
template <class T> TDSL_FN Maybe<T> maybe(bool has, T value) { return Maybe<T>{has, value}; }
// The combination of those that are there.
template <class C> struct Lifted {
  C combine;
  template <class T> TDSL_FN Maybe<T> operator()(Maybe<T> a, Maybe<T> b) const {
    if (!a.has) return b;
    if (!b.has) return a;
    return Maybe<T>{true, combine(a.value, b.value)};
  }
};
template <class C> TDSL_FN Lifted<C> lift(C combine) { return Lifted<C>{combine}; }

// f of every scalar in a value. Thread.
template <class F, class T> TDSL_FN T for_each_part(F f, T v) { return f(v); }
template <class F, class T> TDSL_FN Tuple<T> for_each_part(F f, Tuple<T> v) { return Tuple<T>{f(v.head)}; }
template <class F, class T, class U, class... R>
TDSL_FN Tuple<T, U, R...> for_each_part(F f, Tuple<T, U, R...> v) {
  return Tuple<T, U, R...>{f(v.head), for_each_part(f, v.tail)};
}
template <class F, class T> TDSL_FN Maybe<T> for_each_part(F f, Maybe<T> v) {
  return Maybe<T>{f(v.has), for_each_part(f, v.value)};
}

// ------------------------------------------------------------------ named functions
struct Sum {
  template <class T> TDSL_FN T operator()(T a, T b) const { return add_wrap(a, b); }
  template <class T> TDSL_FN Tuple<T> operator()(Tuple<T> a, Tuple<T> b) const {
    return Tuple<T>{add_wrap(a.head, b.head)};
  }
  template <class T, class U, class... R>
  TDSL_FN Tuple<T, U, R...> operator()(Tuple<T, U, R...> a, Tuple<T, U, R...> b) const {
    return Tuple<T, U, R...>{add_wrap(a.head, b.head), (*this)(a.tail, b.tail)};
  }
};
struct Prod {
  template <class T> TDSL_FN T operator()(T a, T b) const { return mul_wrap(a, b); }
};
struct Max {
  template <class T> TDSL_FN T operator()(T a, T b) const { return max_num<T>(a, b); }
  template <class T> static TDSL_FN u32 of_pairs(u32 a, u32 b) { return max_pair<T>(a, b); }
};
struct Min {
  template <class T> TDSL_FN T operator()(T a, T b) const { return min_num<T>(a, b); }
  template <class T> static TDSL_FN u32 of_pairs(u32 a, u32 b) { return min_pair<T>(a, b); }
};
struct BitXor {
  template <class T> TDSL_FN T operator()(T a, T b) const { return (T)(a ^ b); }
};
struct BitOr {
  template <class T> TDSL_FN T operator()(T a, T b) const { return (T)(a | b); }
};
struct BitAnd {
  template <class T> TDSL_FN T operator()(T a, T b) const { return (T)(a & b); }
};
// (value, index): of equal values the smallest index; numbers before NaNs.
template <class T> TDSL_FN bool comes_first(bool wins, bool loses, Tuple<T, i32> a, Tuple<T, i32> b) {
  const bool no_a = a.head != a.head, no_b = b.head != b.head;
  return wins || (!loses && (no_a == no_b ? a.tail.head < b.tail.head : no_b));
}
struct ArgMax {
  using Value = Max;
  template <class T> static TDSL_FN bool beats(T a, T b) { return !(a <= b); }
  template <class T> TDSL_FN Tuple<T, i32> operator()(Tuple<T, i32> a, Tuple<T, i32> b) const {
    const bool first = comes_first(a.head > b.head, a.head < b.head, a, b);
    return Tuple<T, i32>{first ? a.head : b.head, Tuple<i32>{first ? a.tail.head : b.tail.head}};
  }
};
struct ArgMin {
  using Value = Min;
  template <class T> static TDSL_FN bool beats(T a, T b) { return !(a >= b); }
  template <class T> TDSL_FN Tuple<T, i32> operator()(Tuple<T, i32> a, Tuple<T, i32> b) const {
    const bool first = comes_first(a.head < b.head, a.head > b.head, a, b);
    return Tuple<T, i32>{first ? a.head : b.head, Tuple<i32>{first ? a.tail.head : b.tail.head}};
  }
};
// The same where all indexes of the first argument are smaller: the second one wins where it is a number that beats a
// number, or stands beside a NaN.
template <class ARG> struct InOrder {
  template <class T> TDSL_FN Tuple<T, i32> operator()(Tuple<T, i32> a, Tuple<T, i32> b) const {
    const bool second = b.head == b.head && ARG::beats(b.head, a.head);
    return Tuple<T, i32>{second ? b.head : a.head, Tuple<i32>{second ? b.tail.head : a.tail.head}};
  }
};
template <class ARG> TDSL_FN InOrder<ARG> in_order(ARG) { return {}; }
// Functions whose result does not depend on the order of the two arguments.
template <class C> struct commutes { static constexpr bool value = false; };
template <> struct commutes<Sum> { static constexpr bool value = true; };
template <> struct commutes<Prod> { static constexpr bool value = true; };
template <> struct commutes<Max> { static constexpr bool value = true; };
template <> struct commutes<Min> { static constexpr bool value = true; };
template <> struct commutes<BitXor> { static constexpr bool value = true; };
template <> struct commutes<BitOr> { static constexpr bool value = true; };
template <> struct commutes<BitAnd> { static constexpr bool value = true; };
template <> struct commutes<ArgMax> { static constexpr bool value = true; };
template <> struct commutes<ArgMin> { static constexpr bool value = true; };
// Functions of values and indexes.
template <class C> struct is_arg { static constexpr bool value = false; };
template <> struct is_arg<ArgMax> { static constexpr bool value = true; };
template <> struct is_arg<ArgMin> { static constexpr bool value = true; };
// Pairs whose two members, of one type, are each combined by themselves.
template <class T, class C> struct is_apart { static constexpr bool value = false; };
template <class T> struct is_apart<Tuple<T, T>, Sum> { static constexpr bool value = true; };

// ------------------------------------------------------------------ lanes
// The value of another lane: scalars under 32 bits travel as i32. Warp, converged. ISA: shfl.sync.
template <class T> TDSL_FN T part_xor(T v, int mask) {
  if constexpr (sizeof(T) < 4) return (T)shfl_xor((i32)v, mask);
  else return shfl_xor(v, mask);
}
template <class T> TDSL_FN T part_idx(T v, int lane) {
  if constexpr (sizeof(T) < 4) return (T)shfl_idx((i32)v, lane);
  else return shfl_idx(v, lane);
}
template <class T> TDSL_FN T value_xor(T v, int mask) {
  return for_each_part([mask](auto x) { return part_xor(x, mask); }, v);
}
template <class T> TDSL_FN T value_idx(T v, int lane) {
  return for_each_part([lane](auto x) { return part_idx(x, lane); }, v);
}

// ------------------------------------------------------------------ shared memory
// COUNT values in shared memory at `addr`, for CLUSTER in that of any block of the cluster; members of a tuple in areas
// of their own that begin at multiples of 8 bytes. put_async completes on an mbarrier, with VALUE_BYTES bytes a value.
template <class T, int COUNT, bool CLUSTER = false> struct SharedValues {
  static constexpr int BYTES = (COUNT * (int)sizeof(T) + 7) / 8 * 8, VALUE_BYTES = sizeof(T);
  static TDSL_FN void put(u32 addr, int i, T v) {
    if constexpr (CLUSTER) st_shared_cluster<T>(addr + i * sizeof(T), v);
    else st_shared<T>(addr + i * sizeof(T), v);
  }
  static TDSL_FN void put_async(u32 addr, u32 bar, int i, T v) { st_async(addr + i * sizeof(T), bar, v); }
  static TDSL_FN T get(u32 addr, int i) { return ld_shared<T>(addr + i * sizeof(T)); }
};
template <class T, int COUNT, bool CLUSTER> struct SharedValues<Tuple<T>, COUNT, CLUSTER> {
  using Head = SharedValues<T, COUNT, CLUSTER>;
  static constexpr int BYTES = Head::BYTES, VALUE_BYTES = Head::VALUE_BYTES;
  static TDSL_FN void put(u32 addr, int i, Tuple<T> v) { Head::put(addr, i, v.head); }
  static TDSL_FN void put_async(u32 addr, u32 bar, int i, Tuple<T> v) { Head::put_async(addr, bar, i, v.head); }
  static TDSL_FN Tuple<T> get(u32 addr, int i) { return Tuple<T>{Head::get(addr, i)}; }
};
template <class T, class U, class... R, int COUNT, bool CLUSTER>
struct SharedValues<Tuple<T, U, R...>, COUNT, CLUSTER> {
  using Head = SharedValues<T, COUNT, CLUSTER>;
  using Tail = SharedValues<Tuple<U, R...>, COUNT, CLUSTER>;
  static constexpr int BYTES = Head::BYTES + Tail::BYTES, VALUE_BYTES = Head::VALUE_BYTES + Tail::VALUE_BYTES;
  static TDSL_FN void put(u32 addr, int i, Tuple<T, U, R...> v) {
    Head::put(addr, i, v.head);
    Tail::put(addr + Head::BYTES, i, v.tail);
  }
  static TDSL_FN void put_async(u32 addr, u32 bar, int i, Tuple<T, U, R...> v) {
    Head::put_async(addr, bar, i, v.head);
    Tail::put_async(addr + Head::BYTES, bar, i, v.tail);
  }
  static TDSL_FN Tuple<T, U, R...> get(u32 addr, int i) {
    return Tuple<T, U, R...>{Head::get(addr, i), Tail::get(addr + Head::BYTES, i)};
  }
};
template <class T, int COUNT, bool CLUSTER> struct SharedValues<Maybe<T>, COUNT, CLUSTER> {
  using Has = SharedValues<bool, COUNT, CLUSTER>;
  using Value = SharedValues<T, COUNT, CLUSTER>;
  static constexpr int BYTES = Has::BYTES + Value::BYTES;
  static TDSL_FN void put(u32 addr, int i, Maybe<T> v) {
    Has::put(addr, i, v.has);
    Value::put(addr + Has::BYTES, i, v.value);
  }
  static TDSL_FN Maybe<T> get(u32 addr, int i) {
    return Maybe<T>{Has::get(addr, i), Value::get(addr + Has::BYTES, i)};
  }
};

// ------------------------------------------------------------------ results
// x[i] = at(i) for every register. Thread.
template <class T, int N, class At> TDSL_FN void put_all(T (&x)[N], At at) {
#pragma unroll
  for (int i = 0; i < N; ++i) x[i] = at(i);
}
template <class T, int N, class At> TDSL_FN void put_all(Packed<T, N>& x, At at) {
#pragma unroll
  for (int j = 0; j < (N + 1) / 2; ++j) x.pack2(j, at(2 * j), at(2 * j + 1 < N ? 2 * j + 1 : 2 * j));
}

}  // namespace tdsl
