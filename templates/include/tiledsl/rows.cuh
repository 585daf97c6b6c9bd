// rows.cuh - tiles in shared memory whose rows are stored at addresses aligned for one element only. Aligned pieces of
// 16 bytes of a row in global memory are cut out of two pieces of shared memory, or lie there as aligned; its ends are
// written element by element.
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

// Asks for the lines of L2 in which ROWS rows of COLS elements lie, of each the columns from .. to - 1. row(r) as above;
// all threads share the work. Thread. ISA: prefetch.
template <class T, int ROWS, int COLS, int THREADS, class F> TDSL_FN void prefetch_block(u32 thread, i64 from, i64 to, F row) {
  constexpr int LINE = 128 / sizeof(T), LINES = (COLS + LINE - 1) / LINE;
#pragma unroll 1
  for (int i = (int)thread; i < ROWS * LINES; i += THREADS) {
    const int col = i % LINES * LINE;
    const MaskedLane<T> begin = row(i / LINES);
    if (begin.in && col >= from && col < to) asm volatile("prefetch.global.L2 [%0];" ::"l"(begin.p + col) : "memory");
  }
}

// ------------------------------------------------------------------ whole sectors
constexpr u64 SECTOR = 32;  // what memory is written by; a part of one costs as much
// Where a tile with rows of COLS elements lies that is stored by whole sectors: each row so that what is aligned in
// global memory is aligned here. Rows V apart are off alike; 16 bytes more for V rows keep those that threads side by
// side write out of each other's banks. row(r): where column 0 of row r goes.
template <class T, int COLS> struct SectorPlaces {
  static constexpr u32 SIZE = sizeof(T), V = PIECE / SIZE, PITCH = (COLS + V) * SIZE;
  u32 scratch, first, step;  // in elements, modulo V: row r begins at first + r * step
  template <class F> TDSL_FN SectorPlaces(u32 scratch, F row) : scratch(scratch) {
    first = (u32)(u64)row(0).p / SIZE;
    step = (u32)(u64)row(1).p / SIZE - first;
  }
  // Of the element at (row + r, col + c): the sums have no carry, and r and c are known when a loop is unrolled.
  TDSL_FN u32 operator()(u32 row, u32 col, u32 r = 0, u32 c = 0) const {
    const u32 off = (first + r * step + row * step) % V, skip = (0u - off) % V;  // for all threads where row is some V
    return scratch + row * PITCH + row / V * (u32)PIECE + col * SIZE + (r * PITCH + r / V * (u32)PIECE + (c + V) * SIZE) - skip * SIZE;
  }
};
// Writes a tile [ROWS, COLS] that an exchange has put into `place`, followed by MORE columns if `more`. Of each row the
// columns from .. to - 1 are written, from the first sector that begins in it on, with `head` from its beginning on;
// with `more` up to the first sector that begins behind it. row(r): where column 0 of row r goes, and whether the row
// is there. Both are complete, and all threads write. Thread. ISA: ld.shared, st.global.
template <class T, int ROWS, int COLS, int MORE, int THREADS, class ST, class F>
TDSL_FN void store_sectors(const SectorPlaces<T, COLS + MORE>& place, u32 thread, i64 from, i64 to, bool head, bool more, F row) {
  constexpr int SIZE = sizeof(T), V = PIECE / SIZE, PIECES = COLS / V, LANES = PIECES < 32 ? PIECES : 32;
  static_assert(COLS % V == 0 && 32 % LANES == 0 && PIECES % LANES == 0, "whole pieces, in all lanes");
  static_assert(MORE * SIZE == SECTOR, "a sector more");
  const int first = from > 0 ? (int)min_num<i64>(from, COLS + MORE) : 0, end = (int)max_num<i64>(min_num<i64>(to, COLS + MORE), 0);
  struct Part { bool in; T* p; int skip, first, end; };
  const auto part = [&](int r) -> Part {
    const MaskedLane<T> begin = row(r);
    const int skip = (int)((SECTOR - (u32)(u64)begin.p % SECTOR) % SECTOR / SIZE);
    return {begin.in, begin.p, skip, max(first, head ? 0 : skip), min(end, COLS + (more ? skip : 0))};
  };
  const int piece = (int)thread % LANES;
#pragma unroll
  for (int n = 0; n < ROWS; n += THREADS / LANES) {
    const int r = n + (int)thread / LANES;
    if (ROWS % (THREADS / LANES) && r >= ROWS) break;
    const Part own = part(r);
    const u32 at = place((u32)r, (u32)(own.skip + piece * V));
#pragma unroll
    for (int k = 0; k < PIECES; k += LANES) {
      const int col = own.skip + (k + piece) * V;
      Cell<16> cell;
      ld_shared_v4<u32>(at + k * (u32)PIECE, cell.w[0], cell.w[1], cell.w[2], cell.w[3]);
      ST::store_if(cell, (u64)(own.p + col), own.in && col >= own.first && col + V <= own.end);
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
    const T v = ld_shared<T>(place((u32)r, (u32)(in ? col : 0)));
    ST::store_if(one_cell(v), (u64)(own.p + col), in);
  }
}

}  // namespace tdsl
