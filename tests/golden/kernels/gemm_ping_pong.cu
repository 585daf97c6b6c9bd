using namespace tdsl;

extern "C" __global__ void __launch_bounds__(384, 1)
__cluster_dims__(2, 1, 1)
gemm_pp(const __grid_constant__ TensorMap a_map, i64 a_shape_1, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, int grid_0, int grid_1, int grid_2) {
  extern __shared__ __align__(1024) u8 smem[];
  const u32 smem_base = smem_addr(smem);
  const u32 warpgroup = warpgroup_id();
  const u32 a_ring_1 = smem_base + 0;  // 4 x 128x64 bf16, 65536 bytes
  const u32 b_ring_1 = smem_base + 65536;  // 4 x 64x192 bf16, 98304 bytes
  const u32 c_ring_1 = smem_base + 163840;  // 2 x 128x64 bf16, 32768 bytes
  const u32 full_1 = smem_base + 196608;  // 4 mbarriers of 1 arrivals
  const u32 empty_1 = smem_base + 196640;  // 4 mbarriers of 8 arrivals
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 4; ++i) mbarrier_init(full_1 + 8 * i, 1);
    for (u32 i = 0; i < 4; ++i) mbarrier_init(empty_1 + 8 * i, 8);
    mbarrier_init_fence();
    tma_prefetch_map(&a_map);
    tma_prefetch_map(&b_map);
    tma_prefetch_map(&c_map);
  }
  cluster_sync();
  const int tiles_1 = num_tiles<0, 2>(grid_0, grid_1, grid_2);
  const int k_slots_1 = ((int)a_shape_1 + 63) / 64;
  if (warpgroup == 0) {
    // ---------------------------------------- producer
    reg_dec<24>();
    if (warp_id() == 0 && elect_one()) {
      Cursor<4> cursor_1;
      const int rank_1 = (int)cluster_rank();
      for (int t_1 = first_tile<2>(); t_1 < tiles_1; t_1 += tile_step<2>()) {
        const Program program_1 = program_of_tile<4, 0, 0, 2>(t_1, grid_0, grid_1, cluster_rank());
        const int m0_1 = program_1.axis_0 * 128;
        const int n0_1 = program_1.axis_1 * 192;
        const int n0_part_1 = n0_1 + rank_1 * 96;
        for (int kb_1 = 0; kb_1 < k_slots_1; ++kb_1) {
          mbarrier_wait(empty_1 + 8 * cursor_1.slot, cursor_1.parity ^ 1);
          mbarrier_expect_tx(full_1 + 8 * cursor_1.slot, 40960);
          const u32 a_1 = a_ring_1 + cursor_1.slot * 16384u;
          const u32 b_1 = b_ring_1 + cursor_1.slot * 24576u;
          const int k0_1 = kb_1 * 64;
          tma_load(a_1, &a_map, full_1 + 8 * cursor_1.slot, k0_1, m0_1);
          tma_load_multicast(b_1 + rank_1 * 12288, &b_map, full_1 + 8 * cursor_1.slot, (u16)3, k0_1,
              n0_part_1);
          cursor_1.next();
        }
      }
    }
  } else {
    // ---------------------------------------- consumer
    reg_inc<240>();
    const u32 warp = warp_in_group();
    const u32 lane = lane_id();
    const bool leader = thread_in_group() == 0;
    const int me_1 = (int)(warpgroup - 1);
    Cursor<4> cursor_2;
    Cursor<4> released_1;
    Cursor<1> staging_1;
    if (me_1 == 1) {
      named_barrier_arrive(3, 256);
    }
    const int t_2 = me_1 * k_slots_1;
    cursor_2.skip(t_2);
    released_1.skip(t_2);
    const int step_1 = tile_step<2>();
    const int first_1 = first_tile<2>() + me_1 * step_1;
    const int t_3 = step_1 * 2;
    for (int t_4 = first_1; t_4 < tiles_1; t_4 += t_3) {
      const Program program_2 = program_of_tile<4, 0, 0, 2>(t_4, grid_0, grid_1, cluster_rank());
      const int m0_2 = program_2.axis_0 * 128;
      const int n0_2 = program_2.axis_1 * 192;
      named_barrier_sync(3 + me_1, 256);
      float acc_1[192];
      for (int kb_2 = 0; kb_2 < k_slots_1; ++kb_2) {
        mbarrier_wait(full_1 + 8 * cursor_2.slot, cursor_2.parity);
        const u32 a_2 = a_ring_1 + cursor_2.slot * 16384u;
        const u32 b_2 = b_ring_1 + cursor_2.slot * 24576u;
        wgmma_fence();
        mma_128x192x64_bf16(acc_1, a_2, b_2, kb_2 != 0);
        wgmma_commit();
        cursor_2.next();
        wgmma_wait<1>();
        if (kb_2 >= 1) {
          if (lane < 2) mbarrier_arrive_remote(empty_1 + 8 * released_1.slot, lane);
          released_1.next();
        }
      }
      named_barrier_arrive(3 + (me_1 ^ 1), 256);
      wgmma_wait<0>();
      keep(acc_1);
      if (k_slots_1 > 0) {
        if (lane < 2) mbarrier_arrive_remote(empty_1 + 8 * released_1.slot, lane);
        released_1.next();
      }
      Packed<bf16, 192> packed_1;
      auto element_1 = [&](int i) {
        return acc_1[i];
      };
      #pragma unroll
      for (int j = 0; j < 96; ++j) packed_1.pack2(j, element_1(2 * j), element_1(2 * j + 1));
      if (leader) tma_wait_read<0>();
      named_barrier_sync(1 + me_1, 128);
      const u32 out_1 = c_ring_1 + staging_1.slot * 16384u + me_1 * 16384u;
      write_rows<48, 0, 64, 128>(out_1, packed_1, warp * 16, lane);
      fence_async_smem();
      named_barrier_sync(1 + me_1, 128);
      if (leader) {
        tma_store(&c_map, out_1, n0_2, m0_2);
        tma_commit();
      }
      staging_1.next();
      if (leader) tma_wait_read<0>();
      named_barrier_sync(1 + me_1, 128);
      const u32 out_2 = c_ring_1 + staging_1.slot * 16384u + me_1 * 16384u;
      write_rows<48, 64, 64, 128>(out_2, packed_1, warp * 16, lane);
      fence_async_smem();
      named_barrier_sync(1 + me_1, 128);
      if (leader) {
        tma_store(&c_map, out_2, n0_2 + 64, m0_2);
        tma_commit();
      }
      staging_1.next();
      if (leader) tma_wait_read<0>();
      named_barrier_sync(1 + me_1, 128);
      const u32 out_3 = c_ring_1 + staging_1.slot * 16384u + me_1 * 16384u;
      write_rows<48, 128, 64, 128>(out_3, packed_1, warp * 16, lane);
      fence_async_smem();
      named_barrier_sync(1 + me_1, 128);
      if (leader) {
        tma_store(&c_map, out_3, n0_2 + 128, m0_2);
        tma_commit();
      }
      staging_1.next();
      cursor_2.skip(k_slots_1);
      released_1.skip(k_slots_1);
    }
    if (leader) tma_wait_read<0>();
  }
  cluster_sync();
}
