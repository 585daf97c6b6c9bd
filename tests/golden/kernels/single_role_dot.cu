using namespace tdsl;

extern "C" __global__ void __launch_bounds__(128, 1)
single_role_dot(bf16* a, i64 a_shape_0, i64 a_shape_1, i64 a_stride_0, bf16* b, i64 b_shape_0, i64 b_shape_1,
    i64 b_stride_0, float* c, i64 c_shape_0, i64 c_shape_1, i64 c_stride_0) {
  extern __shared__ __align__(1024) u8 smem[];
  const u32 smem_base = smem_addr(smem);
  const u32 warp = warp_id();
  const u32 lane = lane_id();
  const u32 a_smem_1 = smem_base + 0;  // 1 x 64x64 bf16, 8192 bytes
  const u32 b_smem_1 = smem_base + 8192;  // 1 x 64x64 bf16, 8192 bytes
  Packed<bf16, 32> a_tile_1;
  const int row_1 = (int)(lane / 8 + warp * 4);
  const int col_1 = (int)(lane % 8 * 8);
  bf16* const a_at_1 = a + (row_1 * a_stride_0 + col_1);
  #pragma unroll
  for (int i = 0; i < 32; i += 8) {
    load_vector<8>(a_tile_1, i, a_at_1 + ((i / 8 * 16) * a_stride_0 + i % 8),
        inside(row_1 + i / 8 * 16, a_shape_0) && inside(col_1 + i % 8, a_shape_1), bf16{});
  }
  const int row_2 = (int)(lane / 8 + warp * 4);
  const int col_2 = (int)(lane % 8 * 8);
  #pragma unroll
  for (int i = 0; i < 32; i += 8) {
    const u32 at = a_smem_1 + smem_at<128, 64, 128>(row_2 + i / 8 * 16, (col_2 + i % 8) * 2);
    write_shared<8, bf16>(a_tile_1, i, at, true);
  }
  Packed<bf16, 32> b_tile_1;
  const int row_3 = (int)(lane / 8 + warp * 4);
  const int col_3 = (int)(lane % 8 * 8);
  bf16* const b_at_1 = b + (row_3 * b_stride_0 + col_3);
  #pragma unroll
  for (int i = 0; i < 32; i += 8) {
    load_vector<8>(b_tile_1, i, b_at_1 + ((i / 8 * 16) * b_stride_0 + i % 8),
        inside(row_3 + i / 8 * 16, b_shape_0) && inside(col_3 + i % 8, b_shape_1), bf16{});
  }
  const int row_4 = (int)(lane / 8 + warp * 4);
  const int col_4 = (int)(lane % 8 * 8);
  #pragma unroll
  for (int i = 0; i < 32; i += 8) {
    const u32 at = b_smem_1 + smem_at<128, 64, 128>(row_4 + i / 8 * 16, (col_4 + i % 8) * 2);
    write_shared<8, bf16>(b_tile_1, i, at, true);
  }
  fence_async_smem();
  block_sync();
  float acc_1[32];
  fill(acc_1, 0.0f);
  keep(acc_1);
  wgmma_fence();
  mma_64x64x64_bf16_tb(acc_1, a_smem_1, b_smem_1, 1);
  wgmma_commit();
  wgmma_wait<0>();
  keep(acc_1);
  const int row_5 = (int)(lane / 4 + warp * 16);
  const int col_5 = (int)(lane % 4 * 2);
  float* const c_at_1 = c + (row_5 * c_stride_0 + col_5);
  #pragma unroll
  for (int i = 0; i < 32; i += 2) {
    store_vector<2>(acc_1, i, c_at_1 + ((i / 2 % 2 * 8) * c_stride_0 + i % 2 + i / 4 * 8),
        inside(row_5 + i / 2 % 2 * 8, c_shape_0) && inside(col_5 + i % 2 + i / 4 * 8, c_shape_1));
  }
}
