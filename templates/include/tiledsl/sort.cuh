// sort.cuh - bitonic sorts of rows in shared memory, by unsigned keys in the order of the elements.
#pragma once
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

// Keys of an element type; DESCENDING reverses their order. All functions: thread.
template <class T, bool DESCENDING> struct Keys {
  using Raw = typename RawBits<sizeof(T)>::type;
  using Key = typename KeyBits<sizeof(T)>::type;
  static constexpr Raw TOP = (Raw)((Raw)1 << (8 * sizeof(T) - 1));

  static TDSL_FN Key of(T v) {
    Raw bits = bits_as<Raw>(v);
    if constexpr (key_kind<T>::value == 1) bits = (Raw)(bits ^ TOP);
    if constexpr (key_kind<T>::value == 2) bits = (Raw)(bits & TOP ? ~bits : bits | TOP);
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
// row is bitonic). `sync` is a barrier of the THREADS threads; ends with one.
template <class Key, int ROW, int FROM, class Sync>
TDSL_FN void sort_rows(u32 addr, int rows, u32 thread, u32 threads, Sync sync) {
  for (int run = FROM; run <= ROW; run *= 2) {
    for (int stride = run / 2; stride > 0; stride /= 2) {
      sync();
      for (int p = (int)thread; p < rows * (ROW / 2); p += (int)threads) {
        const int i = p / stride * stride * 2 + p % stride;
        const u32 low = addr + i * sizeof(Key), high = low + stride * sizeof(Key);
        const Key a = ld_shared<Key>(low), b = ld_shared<Key>(high);
        const bool up = (i & (ROW - 1) & run) == 0;
        if ((a > b) == up && a != b) st_shared<Key>(low, b), st_shared<Key>(high, a);
      }
    }
  }
  sync();
}

}  // namespace tdsl
