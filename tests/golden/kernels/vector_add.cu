using namespace tdsl;

extern "C" __global__ void __launch_bounds__(128, 1)
vector_add(bf16* x, i64 x_shape_0, bf16* y, i64 y_shape_0, bf16* out, i64 out_shape_0) {
  const u32 warp = warp_id();
  const u32 lane = lane_id();
  const int off_1 = (int)blockIdx.x * 1024;
  Packed<bf16, 8> a_1;
  const int at_1 = off_1 + (int)(lane * 8 + warp * 256);
  bf16* const x_at_1 = x + at_1;
  const bool vectors_1 = x_shape_0 % 8 == 0 || off_1 + 1024 <= x_shape_0;
  if (vectors_1) {
    #pragma unroll
    for (int i = 0; i < 8; i += 8) {
      load_vector<8>(a_1, i, x_at_1 + i, inside(at_1 + i, x_shape_0), bf16{});
    }
  } else {
    load_shifted<8, 8, ByRun, AnyOffset,
        BlockLoad>(a_1, [&](int i) { return run_lane<8>(x_at_1 + i, true, at_1 + i, x_shape_0, 8, bf16{}); });
  }
  Packed<bf16, 8> b_1;
  const int at_2 = off_1 + (int)(lane * 8 + warp * 256);
  bf16* const y_at_1 = y + at_2;
  const bool vectors_2 = y_shape_0 % 8 == 0 || off_1 + 1024 <= y_shape_0;
  if (vectors_2) {
    #pragma unroll
    for (int i = 0; i < 8; i += 8) {
      load_vector<8>(b_1, i, y_at_1 + i, inside(at_2 + i, y_shape_0), bf16{});
    }
  } else {
    load_shifted<8, 8, ByRun, AnyOffset,
        BlockLoad>(b_1, [&](int i) { return run_lane<8>(y_at_1 + i, true, at_2 + i, y_shape_0, 8, bf16{}); });
  }
  Packed<bf16, 8> total_1;
  auto element_1 = [&](int i) {
    return a_1.get(i) + b_1.get(i);
  };
  #pragma unroll
  for (int j = 0; j < 4; ++j) total_1.pack2(j, element_1(2 * j), element_1(2 * j + 1));
  const int at_3 = off_1 + (int)(lane * 8 + warp * 256);
  bf16* const out_at_1 = out + at_3;
  const bool vectors_3 = out_shape_0 % 8 == 0 || off_1 + 1024 <= out_shape_0;
  if (vectors_3) {
    #pragma unroll
    for (int i = 0; i < 8; i += 8) {
      store_vector<8>(total_1, i, out_at_1 + i, inside(at_3 + i, out_shape_0));
    }
  } else {
    store_shifted<8, 8, 32, ByRun, AnyOffset,
        BlockStore>(total_1, true,
        [&](int i) { return run_lane<8>(out_at_1 + i, true, at_3 + i, out_shape_0, 8, bf16{}); });
  }
}
