// sort.cuh - bitonic sorts of rows in shared memory, by unsigned keys in the order of the elements.
#pragma once
#include "tiledsl/reduce.cuh"
#include "tiledsl/regs.cuh"
#include "tiledsl/smem.cuh"
#include "tiledsl/types.cuh"

namespace tdsl {

template <int BYTES> struct KeyBits { using type = u32; };
template <> struct KeyBits<8> { using type = u64; };
template <int BYTES> struct RawBits { using type = u32; };
template <> struct RawBits<1> { using type = u8; };
template <> struct RawBits<2> { using type = u16; };
template <> struct RawBits<8> { using type = u64; };
// 0: unsigned, 1: signed, 2: float.
template <class T> struct key_kind { static constexpr int value = 2; };
template <> struct key_kind<bool> { static constexpr int value = 0; };
template <> struct key_kind<u8> { static constexpr int value = 0; };
template <> struct key_kind<u16> { static constexpr int value = 0; };
template <> struct key_kind<u32> { static constexpr int value = 0; };
template <> struct key_kind<u64> { static constexpr int value = 0; };
template <> struct key_kind<i8> { static constexpr int value = 1; };
template <> struct key_kind<i16> { static constexpr int value = 1; };
template <> struct key_kind<i32> { static constexpr int value = 1; };
template <> struct key_kind<i64> { static constexpr int value = 1; };

// Bits of the largest element of a float type that is no NaN, without its sign.
template <class T> struct largest_bits { static constexpr u32 value = 0; };
template <> struct largest_bits<float> { static constexpr u32 value = 0x7f800000; };
template <> struct largest_bits<bf16> { static constexpr u16 value = 0x7f80; };
template <> struct largest_bits<f16> { static constexpr u16 value = 0x7c00; };
template <> struct largest_bits<e4m3> { static constexpr u8 value = 0x7e; };
template <> struct largest_bits<e5m2> { static constexpr u8 value = 0x7c; };
template <> struct largest_bits<double> { static constexpr u64 value = 0x7ff0000000000000; };

// Keys of an element type; DESCENDING reverses their order. A NaN loses its sign. All functions: thread.
template <class T, bool DESCENDING> struct Keys {
  using Raw = typename RawBits<sizeof(T)>::type;
  using Key = typename KeyBits<sizeof(T)>::type;
  static constexpr Raw TOP = (Raw)((Raw)1 << (8 * sizeof(T) - 1));

  static TDSL_FN Key of(T v) {
    Raw bits = bits_as<Raw>(v);
    if constexpr (key_kind<T>::value == 1) bits = (Raw)(bits ^ TOP);
    if constexpr (key_kind<T>::value == 2) {
      const Raw size = (Raw)(bits & ~TOP);
      bits = (Raw)(bits & TOP && size <= largest_bits<T>::value ? ~bits : size | TOP);
    }
    return DESCENDING ? (Key)~(Key)bits : (Key)bits;
  }
  static TDSL_FN T value(Key key) {
    Raw bits = (Raw)(DESCENDING ? ~key : key);
    if constexpr (key_kind<T>::value == 1) bits = (Raw)(bits ^ TOP);
    if constexpr (key_kind<T>::value == 2) bits = (Raw)(bits & TOP ? bits ^ TOP : ~bits);
    return bits_as<T>(bits);
  }
  static TDSL_FN void put(u32 addr, int i, T v, bool in) {
    if (in) st_shared<Key>(addr + i * sizeof(Key), of(v));
  }
  static TDSL_FN T get(u32 addr, int i) { return value(ld_shared<Key>(addr + i * sizeof(Key))); }
};

// The end of each row of ROW keys, from key `used` on, filled with the largest key. Thread, THREADS of which share.
template <class Key, int ROW> TDSL_FN void pad_rows(u32 addr, int rows, int used, u32 thread, u32 threads) {
  const int rest = ROW - used;
  for (int i = (int)thread; i < rows * rest; i += (int)threads) {
    st_shared<Key>(addr + (i / rest * ROW + used + i % rest) * sizeof(Key), (Key)~(Key)0);
  }
}
// Sorts `rows` rows of ROW keys, from runs of FROM / 2 keys on, which are sorted up and down by turns (FROM = ROW: the
// row is bitonic). `sync` is a barrier of the THREADS threads; ends with one. Steps of up to 32 keys stay inside of the
// 64 keys that a warp has at a time.
template <class Key, int ROW, int FROM, class Sync>
TDSL_FN void sort_rows(u32 addr, int rows, u32 thread, u32 threads, Sync sync) {
  int last = 64;
  for (int run = FROM; run <= ROW; run *= 2) {
    for (int stride = run / 2; stride > 0; stride /= 2) {
      if (stride > 32 || last > 32) sync();
      else warp_sync();
      last = stride;
      for (int p = (int)thread; p < rows * (ROW / 2); p += (int)threads) {
        const int i = 2 * p - (p & (stride - 1));
        const u32 low = addr + i * sizeof(Key), high = low + stride * sizeof(Key);
        const Key a = ld_shared<Key>(low), b = ld_shared<Key>(high);
        const bool up = (i & (ROW - 1) & run) == 0;
        if ((a > b) == up && a != b) st_shared<Key>(low, b), st_shared<Key>(high, a);
      }
    }
  }
  sync();
}

// The smaller key to a, the larger one to b: the one that is not the smaller, since a maximum would be compared again.
// Thread.
template <class Key> TDSL_FN void put_in_order(Key& a, Key& b) {
  const Key both = a ^ b, low = a < b ? a : b;
  a = low, b = both ^ low;
}
// Sorts K keys in registers from runs of FROM / 2 on, as sort_rows does. Thread.
template <int FROM, int K, class Key> TDSL_FN void sort_keys(Key (&k)[K]) {
#pragma unroll
  for (int run = FROM; run <= K; run *= 2) {
#pragma unroll
    for (int stride = run / 2; stride > 0; stride /= 2) {
#pragma unroll
      for (int p = 0; p < K / 2; ++p) {
        const int i = 2 * p - (p & (stride - 1));
        if (i & run & (K - 1)) put_in_order(k[i + stride], k[i]);
        else put_in_order(k[i], k[i + stride]);
      }
    }
  }
}
// The K smallest of two sorted sets of K keys: of one from its beginning and the other one from its end. Thread.
template <int K, class Key> TDSL_FN void keep_first(Key (&best)[K], const Key (&other)[K]) {
#pragma unroll
  for (int i = 0; i < K; ++i) best[i] = best[i] < other[K - 1 - i] ? best[i] : other[K - 1 - i];
  sort_keys<K>(best);
}
// Of the K keys of each of LANES lanes the smallest, to all of them. The full warp, converged. ISA: shfl.sync.
template <int LANES, int K, class Key> TDSL_FN void keep_first_of_lanes(Key (&best)[K]) {
#pragma unroll
  for (int step = 1; step < LANES; step *= 2) {
    Key other[K];
#pragma unroll
    for (int i = 0; i < K; ++i) other[i] = shfl_xor(best[i], step);
    keep_first(best, other);
  }
}
// K keys of each lane from number `first` of `count` in shared memory on, in order. The full warp, converged.
template <int K, class Key> TDSL_FN void sorted_chunk(Key (&found)[K], u32 keys, int first, int count) {
#pragma unroll
  for (int i = 0; i < K; ++i) {
    const int at = first + 32 * i + (int)lane_id();
    found[i] = at < count ? ld_shared<Key>(keys + at * sizeof(Key)) : (Key)~(Key)0;
  }
  sort_keys<2>(found);
}
// The K smallest of `count` keys in shared memory to their beginning, sorted; each lane keeps the K smallest that it has
// seen. UNROLL: chunks at once. The full warp, converged. ISA: shfl.sync.
template <class Key, int K, int UNROLL> TDSL_FN void first_of_part(u32 keys, int count) {
  Key best[K];
  sorted_chunk(best, keys, 0, count);
#pragma unroll UNROLL
  for (int first = 32 * K; first < count; first += 32 * K) {
    Key found[K];
    sorted_chunk(found, keys, first, count);
    keep_first(best, found);
  }
  keep_first_of_lanes<32>(best);
  warp_sync();
  if (lane_id() == 0) {
#pragma unroll
    for (int i = 0; i < K; ++i) st_shared<Key>(keys + i * sizeof(Key), best[i]);
  }
}
// The K smallest keys of each of `rows` rows of ROW, of which each of PARTS parts begins with its own, to the row's
// beginning. `sync` as in sort_rows; begins and ends with one.
template <class Key, int ROW, int K, int PARTS, class Sync>
TDSL_FN void first_of_parts(u32 addr, int rows, u32 thread, u32 threads, Sync sync) {
  const int lane = (int)thread % 32, warp = uniform((int)thread / 32), warps = (int)threads / 32;
  if constexpr (PARTS > 1) {
    sync();
    for (int row = warp; row < rows; row += warps) {
      const u32 keys = addr + (row * PARTS + lane % PARTS) * (ROW / PARTS * sizeof(Key));
      Key best[K];
#pragma unroll
      for (int i = 0; i < K; ++i) best[i] = ld_shared<Key>(keys + i * sizeof(Key));
      keep_first_of_lanes<PARTS>(best);
      warp_sync();
      if (lane == 0) {
#pragma unroll
        for (int i = 0; i < K; ++i) st_shared<Key>(keys + i * sizeof(Key), best[i]);
      }
    }
  }
  sync();
}
// The K smallest keys of each of `rows` rows of ROW, sorted, at the beginning of the row. Each of PARTS parts of a row
// is a warp's. `sync` as in sort_rows; ends with one.
template <class Key, int ROW, int K, int PARTS, class Sync>
TDSL_FN void first_of_rows(u32 addr, int rows, u32 thread, u32 threads, Sync sync) {
  const int warp = uniform((int)thread / 32), warps = (int)threads / 32;
  sync();
  for (int part = warp; part < rows * PARTS; part += warps) {
    first_of_part<Key, K, ROW / PARTS>(addr + part * (ROW / PARTS * sizeof(Key)), ROW / PARTS);
  }
  first_of_parts<Key, ROW, K, PARTS>(addr, rows, thread, threads, sync);
}
// The K smallest of the N keys that each lane holds in registers to `keys` on, sorted; there is room for all of them.
// Only keys up to a bound are looked at: K lanes have one each that does not exceed it. Where these are more than 32,
// as of elements that are mostly equal, lanes compare them in chunks. The full warp, converged. ISA: redux.sync, vote.sync.
template <class Key, int N, int K, class F> TDSL_FN void first_of_warp(u32 keys, F key) {
  constexpr u32 SIZE = sizeof(Key);
  const auto top = [&](int i) { return (u32)(key(i) >> (sizeof(Key) == 8 ? 32 : 0)); };
  const u32 lane = lane_id(), lower = (1u << lane) - 1, own = keys + lane * SIZE;
  u32 left = top(0), bound = 0;
#pragma unroll
  for (int i = 1; i < N; ++i) left = min(left, top(i));
#pragma unroll
  for (int i = 0; i < K; ++i) {
    bound = warp_min(left);
    const u32 equal = warp_ballot(left == bound);
    if (left == bound && !(equal & lower)) left = ~0u;
  }
  u32 to = own;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool in = top(i) <= bound;
    if (in) st_shared<Key>(to, key(i));
    to += in ? 32 * SIZE : 0;
  }
  const u32 count = (to - own) / (32 * SIZE), total = warp_add(count), most = warp_max(count);
  if (total > 32) {
    for (; to < own + most * 32 * SIZE; to += 32 * SIZE) st_shared<Key>(to, (Key)~(Key)0);
    warp_sync();
    first_of_part<Key, K, 1>(keys, (int)most * 32);
    return;
  }
  u32 before = 0;
  for (u32 i = 0; i < most; ++i) {  // together, to places that have been read
    const u32 who = warp_ballot(i < count);
    const Key one = i < count ? ld_shared<Key>(own + i * 32 * SIZE) : (Key)0;
    warp_sync();
    if (i < count) st_shared<Key>(keys + (before + __popc(who & lower)) * SIZE, one);
    before += __popc(who);
  }
  warp_sync();
  const Key mine = lane < total ? ld_shared<Key>(own) : (Key)0;
  u32 rank = 0;
  for (u32 i = 0; i < total; ++i) {
    const Key other = ld_shared<Key>(keys + i * SIZE);
    rank += other < mine || (other == mine && i < lane);
  }
  warp_sync();
  if (lane < total && rank < K) st_shared<Key>(keys + rank * SIZE, mine);
}
// As first_of_rows, of keys in registers: each lane holds N of each of HELD parts that are its warp's. part(r): which.
template <class Key, int ROW, int K, int PARTS, int N, int HELD, class Sync, class F, class G>
TDSL_FN void first_of_registers(u32 addr, int rows, u32 thread, u32 threads, Sync sync, F part, G key) {
#pragma unroll
  for (int r = 0; r < HELD; ++r) {
    first_of_warp<Key, N, K>(addr + uniform((int)part(r)) * (ROW / PARTS * sizeof(Key)), [&](int i) { return key(r * N + i); });
  }
  first_of_parts<Key, ROW, K, PARTS>(addr, rows, thread, threads, sync);
}

}  // namespace tdsl
