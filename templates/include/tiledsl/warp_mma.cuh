// Products that each warp computes by itself, of 16-bit floats.
#pragma once
#include "tiledsl/regs.cuh"
#include "tiledsl/smem.cuh"
#include "tiledsl/tile.cuh"

namespace tdsl {

// mma.sync.aligned.m16n8k16.row.col: D (+)= A * B, sums in f32 or (of f16) in f16. Warp, converged. ISA: mma.
template <class T> TDSL_FN void mma_m16n8k16(float* d, const u32 (&a)[4], u32 b0, u32 b1);
template <> TDSL_FN void mma_m16n8k16<f16>(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> TDSL_FN void mma_m16n8k16<bf16>(float* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
      " {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
TDSL_FN void mma_m16n8k16_half(u32* d, const u32 (&a)[4], u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// acc[M, N] += a[M, K] * b[K, N], N of this warp: `a` is the address of a K-major tile in lines of 128 bytes, b and
// acc are in the instruction's own order, blocks of 8 columns outside of blocks of K, inside of blocks of 16 rows.
// Warp, converged. ISA: mma, ldmatrix.
template <int M, int K, class T, int B, class F>
TDSL_FN void warp_mma_blocks(u32 a, const Packed<T, B>& b, u32 lane, F step) {
  constexpr int STEPS = K / 16, BLOCKS = B / (K / 4);
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
#pragma unroll
    for (int m = 0; m < M / 16; ++m) {
      u32 rows[4];
      ldmatrix_x4(a + smem_at<128, M, 2 * K>(m * 16 + lane % 16, k * 32 + lane / 16 * 16), rows[0],
                  rows[1], rows[2], rows[3]);
#pragma unroll
      for (int n = 0; n < BLOCKS; ++n) {
        const int at = (n * STEPS + k) * 2;
        step(m * BLOCKS + n, rows, b.w[at], b.w[at + 1]);
      }
    }
  }
}
template <int M, int K, class T, int R, int B>
TDSL_FN void warp_mma(float (&acc)[R], u32 a, const Packed<T, B>& b, u32 lane) {
  warp_mma_blocks<M, K>(a, b, lane, [&](int block, const u32 (&rows)[4], u32 b0, u32 b1) {
    mma_m16n8k16<T>(&acc[4 * block], rows, b0, b1);
  });
}
template <int M, int K, class T, int R, int B>
TDSL_FN void warp_mma(Packed<f16, R>& acc, u32 a, const Packed<T, B>& b, u32 lane) {
  warp_mma_blocks<M, K>(a, b, lane, [&](int block, const u32 (&rows)[4], u32 b0, u32 b1) {
    mma_m16n8k16_half(&acc.w[2 * block], rows, b0, b1);
  });
}

}  // namespace tdsl
