// rows.cuh - tiles in shared memory whose rows are stored at addresses aligned for one element only. Aligned pieces of
// 16 bytes of a row in global memory are cut out of two pieces of shared memory; its ends are written element by element.
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

}  // namespace tdsl
