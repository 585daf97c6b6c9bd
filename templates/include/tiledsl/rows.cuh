// rows.cuh - tiles in shared memory whose rows are stored at addresses aligned for one element only. Aligned pieces of
// 16 bytes of a row in global memory are cut out of two pieces of shared memory, or gathered where its columns lie
// there; its ends are written element by element.
#pragma once
#include "tiledsl/exchange.cuh"
#include "tiledsl/shifted.cuh"

namespace tdsl {

// Writes a row-major tile [ROWS, COLS] that an exchange has put into `scratch` (exchange_at), of each row the columns
// from .. to - 1. row(r): where column 0 of row r goes, and whether the row is there. The tile is complete, and all
// threads write. Thread. ISA: ld.shared, st.global.
template <class T, int ROWS, int COLS, int THREADS, class ST, class F>
TDSL_FN void store_rows(u32 scratch, u32 thread, i64 from, i64 to, F row) {
  constexpr int V = PIECE / sizeof(T), PIECES = COLS / V;
  static_assert(COLS % V == 0, "rows of whole pieces");
  const int first = from > 0 ? (int)min_num<i64>(from, COLS) : 0, end = to < COLS ? (int)max_num<i64>(to, 0) : COLS;
  const bool whole = first == 0 && end == COLS;
#pragma unroll
  for (int n = 0; n < ROWS * PIECES; n += THREADS) {
    const int i = n + (int)thread, piece = i % PIECES;
    if (ROWS * PIECES % THREADS && i >= ROWS * PIECES) break;
    const MaskedLane<T> begin = row(i / PIECES);
    const u32 off = (u32)(u64)begin.p % PIECE, head = (PIECE - off) % PIECE;  // bytes
    const int col = piece * V + (int)(head / sizeof(T));
    const bool fits = begin.in && col + V <= COLS;
    Cell<16> lo, hi;
    ld_shared_v4<u32>(scratch + exchange_at(i * (u32)PIECE), lo.w[0], lo.w[1], lo.w[2], lo.w[3]);
    hi = lo;
    if (head && fits) {
      ld_shared_v4<u32>(scratch + exchange_at((i + 1) * (u32)PIECE), hi.w[0], hi.w[1], hi.w[2], hi.w[3]);
    }
    const Cell<16> cell = cut_from<T>(lo, hi, head);
    ST::store_if(cell, (u64)(begin.p + col), fits && (whole || (col >= first && col + V <= end)));
    if (!whole && fits && col < end && col + V > first && (col < first || col + V > end)) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const T v = ld_shared<T>(scratch + exchange_at((i / PIECES * COLS + col + k) * (u32)sizeof(T)));
        ST::store_if(one_cell(v), (u64)(begin.p + col + k), col + k >= first && col + k < end);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < ROWS * V; n += THREADS) {
    const int i = n + (int)thread, k = i % V;
    if (ROWS * V % THREADS && i >= ROWS * V) break;
    const MaskedLane<T> begin = row(i / V);
    const int off = (int)((u32)(u64)begin.p % PIECE / sizeof(T)), col = k < off ? COLS - 1 - k : k - off;
    const T v = ld_shared<T>(scratch + exchange_at((i / V * COLS + col) * (u32)sizeof(T)));
    ST::store_if(one_cell(v), (u64)(begin.p + col), begin.in && off && col >= first && col < end);
  }
}

// ------------------------------------------------------------------ whole sectors
constexpr u64 SECTOR = 32;  // what memory is written by; a part of one costs as much
// Where byte `byte` of a tile lies whose columns of COLUMN bytes follow each other: the 16-byte chunks of V columns are
// permuted alike, those of the next V in another way, so that neither a column nor rows of a piece meet in one bank.
template <int COLUMN, int V> TDSL_FN u32 column_at(u32 byte) {
  static_assert(COLUMN * V >= 128, "whole lines");
  return byte ^ (byte / (COLUMN * V) & 7u) << 4;
}
// Writes a tile [ROWS, COLS] whose columns an exchange has put into `scratch` (column_at), followed by MORE columns if
// `more`. Of each row the columns from .. to - 1 are written, from the first sector that begins in it on, with `head` from
// its beginning on; with `more` up to the first sector that begins behind it. row(r): where column 0 of row r goes,
// and whether the row is there. Both are complete, and all threads write. Thread. ISA: ld.shared, st.global.
template <class T, int ROWS, int COLS, int MORE, int THREADS, class ST, class F>
TDSL_FN void store_sectors(u32 scratch, u32 thread, i64 from, i64 to, bool head, bool more, F row) {
  constexpr int SIZE = sizeof(T), V = PIECE / SIZE, LANES = 8, LINES = 32 / LANES, COLUMN = ROWS * SIZE;
  constexpr int PAIR = SIZE == 2 ? 2 : 1;  // rows of a word: they are off differently, and go to different lanes
  static_assert(COLS % (LANES * V) == 0 && ROWS % (LINES * PAIR) == 0, "whole pieces, in all lanes");
  static_assert(MORE * SIZE == SECTOR, "a sector more");
  const int first = from > 0 ? (int)min_num<i64>(from, COLS + MORE) : 0, end = (int)max_num<i64>(min_num<i64>(to, COLS + MORE), 0);
  struct Part { bool in; T* p; int skip, first, end; };
  const auto part = [&](int r) -> Part {
    const MaskedLane<T> begin = row(r);
    const int skip = (int)((SECTOR - (u32)(u64)begin.p % SECTOR) % SECTOR / SIZE);
    return {begin.in, begin.p, skip, max(first, head ? 0 : skip), min(end, COLS + (more ? skip : 0))};
  };
  constexpr int WARPS = THREADS / 32, GROUPS = ROWS / LINES, STEPS = COLS / (LANES * V);
  constexpr int ALONG = WARPS < GROUPS ? WARPS : GROUPS, SHARES = WARPS / ALONG;
  const int warp = (int)thread / 32, piece = (int)thread % LANES, line = (int)thread % 32 / LANES;
#pragma unroll
  for (int n = 0; n < GROUPS; n += ALONG) {
    const int group = n + warp % ALONG, r = group / PAIR * (LINES * PAIR) + line * PAIR + group % PAIR;
    if (GROUPS % ALONG && group >= GROUPS) break;
    if (warp / ALONG >= SHARES) break;
    const Part own = part(r);
    u32 at[V];
#pragma unroll
    for (int k = 0; k < V; ++k) {
      at[k] = scratch + column_at<COLUMN, V>((u32)((piece * V + own.skip + k) * COLUMN + r * SIZE));
    }
#pragma unroll
    for (int s = 0; s < STEPS; s += SHARES) {
      const int step = s + warp / ALONG, col = own.skip + (step * LANES + piece) * V;
      if (STEPS % SHARES && step >= STEPS) break;
      if (!own.in || col < own.first || col + V > own.end) continue;
      T v[V];
#pragma unroll
      for (int k = 0; k < V; ++k) v[k] = ld_shared<T>(at[k] + (u32)(step * LANES * V * COLUMN));
      Cell<16> cell;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if constexpr (SIZE == 2) cell.w[k] = pack_bits<u32>(v[2 * k], v[2 * k + 1]);
        else cell.w[k] = pack_bits<u32>(v[k]);
      }
      ST::store_if(cell, (u64)(own.p + col), true);
    }
  }
  if (!head && more && first == 0 && to >= COLS + MORE) return;
  constexpr int ENDS = MORE + V;  // elements before the first piece, and behind the last one
  for (int i = (int)thread; i < ROWS * ENDS; i += THREADS) {
    const int r = i / ENDS, k = i % ENDS;
    const Part own = part(r);
    const int begin = own.first <= own.skip ? own.skip : own.skip + (own.first - own.skip + V - 1) / V * V;
    const int last = max(begin, own.skip + max(own.end - own.skip, 0) / V * V);
    const int col = k < MORE ? own.first + k : last + k - MORE;
    const bool in = own.in && col < own.end && (k >= MORE || col < begin);
    const int c = in ? col : 0;
    const T v = ld_shared<T>(scratch + column_at<COLUMN, V>((u32)(c * COLUMN + r * SIZE)));
    ST::store_if(one_cell(v), (u64)(own.p + col), in);
  }
}

}  // namespace tdsl
