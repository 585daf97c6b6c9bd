using namespace tdsl;

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_co(const __grid_constant__ TensorMap a_map, i64 a_shape_1, const __grid_constant__ TensorMap b_map,
    const __grid_constant__ TensorMap c_map, int grid_0, int grid_1, int grid_2) {
  extern __shared__ __align__(1024) u8 smem[];
  const u32 smem_base = smem_addr(smem);
  const u32 warpgroup = warpgroup_id();
  const u32 a_ring_1 = smem_base + 0;  // 4 x 128x64 bf16, 65536 bytes
  const u32 b_ring_1 = smem_base + 65536;  // 4 x 64x256 bf16, 131072 bytes
  const u32 c_ring_1 = smem_base + 196608;  // 4 x 64x64 bf16, 32768 bytes
  const u32 full_1 = smem_base + 229376;  // 4 mbarriers of 1 arrivals
  const u32 empty_1 = smem_base + 229408;  // 4 mbarriers of 8 arrivals
  if (threadIdx.x == 0) {
    for (u32 i = 0; i < 4; ++i) mbarrier_init(full_1 + 8 * i, 1);
    for (u32 i = 0; i < 4; ++i) mbarrier_init(empty_1 + 8 * i, 8);
    mbarrier_init_fence();
    tma_prefetch_map(&a_map);
    tma_prefetch_map(&b_map);
    tma_prefetch_map(&c_map);
  }
  block_sync();
  const int tiles_1 = num_tiles<-1, 1>(grid_0, grid_1, grid_2);
  const int k_slots_1 = ((int)a_shape_1 + 63) / 64;
  if (warpgroup == 0) {
    // ---------------------------------------- producer
    reg_dec<40>();
    if (warp_id() == 0 && elect_one()) {
      Cursor<4> cursor_1;
      for (int t_1 = first_tile<1>(); t_1 < tiles_1; t_1 += tile_step<1>()) {
        const Program program_1 = program_of_tile<16, 0, -1, 1>(t_1, grid_0, grid_1, 0);
        const int m0_1 = program_1.axis_0 * 128;
        const int n0_1 = program_1.axis_1 * 256;
        for (int kb_1 = 0; kb_1 < k_slots_1; ++kb_1) {
          mbarrier_wait(empty_1 + 8 * cursor_1.slot, cursor_1.parity ^ 1);
          mbarrier_expect_tx(full_1 + 8 * cursor_1.slot, 49152);
          const u32 a_1 = a_ring_1 + cursor_1.slot * 16384u;
          const u32 b_1 = b_ring_1 + cursor_1.slot * 32768u;
          const int k0_1 = kb_1 * 64;
          tma_load(a_1, &a_map, full_1 + 8 * cursor_1.slot, k0_1, m0_1);
          tma_load(b_1, &b_map, full_1 + 8 * cursor_1.slot, k0_1, n0_1);
          cursor_1.next();
        }
      }
    }
  } else {
    // ---------------------------------------- consumer
    reg_inc<232>();
    const u32 warp = warp_id() - 4;
    const u32 lane = lane_id();
    const bool leader = thread_in_group() == 0;
    const int me_1 = (int)(warpgroup - 1);
    Cursor<4> cursor_2;
    Cursor<4> released_1;
    Cursor<2> staging_1;
    Packed<bf16, 128> packed_1;
    int last_m_1 = -1;
    int last_n_1 = 0;
    for (int t_2 = first_tile<1>(); t_2 < tiles_1; t_2 += tile_step<1>()) {
      const Program program_2 = program_of_tile<16, 0, -1, 1>(t_2, grid_0, grid_1, 0);
      const int m0_2 = program_2.axis_0 * 128;
      const int n0_2 = program_2.axis_1 * 256;
      const int m_part_1 = m0_2 + me_1 * 64;
      const bool pending_1 = last_m_1 >= 0;
      float acc_1[128];
      const bool t_3 = 0 < k_slots_1;
      if (t_3) {
        mbarrier_wait(full_1 + 8 * cursor_2.slot, cursor_2.parity);
        const u32 a_2 = a_ring_1 + cursor_2.slot * 16384u;
        const u32 b_2 = b_ring_1 + cursor_2.slot * 32768u;
        wgmma_fence();
        mma_64x256x64_bf16(acc_1, a_2 + (warpgroup - 1) * 8192u, b_2, false);
        wgmma_commit();
        cursor_2.next();
      }
      if (pending_1) {
        if (leader) tma_wait_read<1>();
        named_barrier_sync(1 + me_1, 128);
        const u32 out_1 = c_ring_1 + staging_1.slot * 8192u + me_1 * 16384u;
        write_rows<64, 0, 64, 64>(out_1, packed_1, warp % 4 * 16, lane);
        fence_async_smem();
        named_barrier_sync(1 + me_1, 128);
        if (leader) {
          tma_store(&c_map, out_1, last_n_1, last_m_1);
          tma_commit();
        }
        staging_1.next();
      }
      wgmma_wait<0>();
      keep(acc_1);
      if (t_3) {
        if (lane == 0) mbarrier_arrive(empty_1 + 8 * released_1.slot);
        released_1.next();
      }
      const bool t_4 = 1 < k_slots_1;
      if (t_4) {
        mbarrier_wait(full_1 + 8 * cursor_2.slot, cursor_2.parity);
        const u32 a_3 = a_ring_1 + cursor_2.slot * 16384u;
        const u32 b_3 = b_ring_1 + cursor_2.slot * 32768u;
        wgmma_fence();
        mma_64x256x64_bf16(acc_1, a_3 + (warpgroup - 1) * 8192u, b_3, true);
        wgmma_commit();
        cursor_2.next();
      }
      if (pending_1) {
        if (leader) tma_wait_read<1>();
        named_barrier_sync(1 + me_1, 128);
        const u32 out_2 = c_ring_1 + staging_1.slot * 8192u + me_1 * 16384u;
        write_rows<64, 64, 64, 64>(out_2, packed_1, warp % 4 * 16, lane);
        fence_async_smem();
        named_barrier_sync(1 + me_1, 128);
        if (leader) {
          tma_store(&c_map, out_2, last_n_1 + 64, last_m_1);
          tma_commit();
        }
        staging_1.next();
      }
      wgmma_wait<0>();
      keep(acc_1);
      if (t_4) {
        if (lane == 0) mbarrier_arrive(empty_1 + 8 * released_1.slot);
        released_1.next();
      }
      const bool t_5 = 2 < k_slots_1;
      if (t_5) {
        mbarrier_wait(full_1 + 8 * cursor_2.slot, cursor_2.parity);
        const u32 a_4 = a_ring_1 + cursor_2.slot * 16384u;
        const u32 b_4 = b_ring_1 + cursor_2.slot * 32768u;
        wgmma_fence();
        mma_64x256x64_bf16(acc_1, a_4 + (warpgroup - 1) * 8192u, b_4, true);
        wgmma_commit();
        cursor_2.next();
      }
      if (pending_1) {
        if (leader) tma_wait_read<1>();
        named_barrier_sync(1 + me_1, 128);
        const u32 out_3 = c_ring_1 + staging_1.slot * 8192u + me_1 * 16384u;
        write_rows<64, 128, 64, 64>(out_3, packed_1, warp % 4 * 16, lane);
        fence_async_smem();
        named_barrier_sync(1 + me_1, 128);
        if (leader) {
          tma_store(&c_map, out_3, last_n_1 + 128, last_m_1);
          tma_commit();
        }
        staging_1.next();
      }
      wgmma_wait<0>();
      keep(acc_1);
      if (t_5) {
        if (lane == 0) mbarrier_arrive(empty_1 + 8 * released_1.slot);
        released_1.next();
      }
      const bool t_6 = 3 < k_slots_1;
      if (t_6) {
        mbarrier_wait(full_1 + 8 * cursor_2.slot, cursor_2.parity);
        const u32 a_5 = a_ring_1 + cursor_2.slot * 16384u;
        const u32 b_5 = b_ring_1 + cursor_2.slot * 32768u;
        wgmma_fence();
        mma_64x256x64_bf16(acc_1, a_5 + (warpgroup - 1) * 8192u, b_5, true);
        wgmma_commit();
        cursor_2.next();
      }
      if (pending_1) {
        if (leader) tma_wait_read<1>();
        named_barrier_sync(1 + me_1, 128);
        const u32 out_4 = c_ring_1 + staging_1.slot * 8192u + me_1 * 16384u;
        write_rows<64, 192, 64, 64>(out_4, packed_1, warp % 4 * 16, lane);
        fence_async_smem();
        named_barrier_sync(1 + me_1, 128);
        if (leader) {
          tma_store(&c_map, out_4, last_n_1 + 192, last_m_1);
          tma_commit();
        }
        staging_1.next();
      }
      wgmma_wait<0>();
      keep(acc_1);
      if (t_6) {
        if (lane == 0) mbarrier_arrive(empty_1 + 8 * released_1.slot);
        released_1.next();
      }
      for (int kb_2 = 4; kb_2 < k_slots_1; ++kb_2) {
        mbarrier_wait(full_1 + 8 * cursor_2.slot, cursor_2.parity);
        const u32 a_6 = a_ring_1 + cursor_2.slot * 16384u;
        const u32 b_6 = b_ring_1 + cursor_2.slot * 32768u;
        wgmma_fence();
        mma_64x256x64_bf16(acc_1, a_6 + (warpgroup - 1) * 8192u, b_6, 1);
        wgmma_commit();
        cursor_2.next();
        wgmma_wait<0>();
        keep(acc_1);
        if (lane == 0) mbarrier_arrive(empty_1 + 8 * released_1.slot);
        released_1.next();
      }
      wgmma_wait<0>();
      keep(acc_1);
      auto element_1 = [&](int i) {
        return acc_1[i];
      };
      #pragma unroll
      for (int j = 0; j < 64; ++j) packed_1.pack2(j, element_1(2 * j), element_1(2 * j + 1));
      last_m_1 = m_part_1;
      last_n_1 = n0_2;
    }
    if (last_m_1 >= 0) {
      if (leader) tma_wait_read<1>();
      named_barrier_sync(1 + me_1, 128);
      const u32 out_5 = c_ring_1 + staging_1.slot * 8192u + me_1 * 16384u;
      write_rows<64, 0, 64, 64>(out_5, packed_1, warp % 4 * 16, lane);
      fence_async_smem();
      named_barrier_sync(1 + me_1, 128);
      if (leader) {
        tma_store(&c_map, out_5, last_n_1, last_m_1);
        tma_commit();
      }
      staging_1.next();
      if (leader) tma_wait_read<1>();
      named_barrier_sync(1 + me_1, 128);
      const u32 out_6 = c_ring_1 + staging_1.slot * 8192u + me_1 * 16384u;
      write_rows<64, 64, 64, 64>(out_6, packed_1, warp % 4 * 16, lane);
      fence_async_smem();
      named_barrier_sync(1 + me_1, 128);
      if (leader) {
        tma_store(&c_map, out_6, last_n_1 + 64, last_m_1);
        tma_commit();
      }
      staging_1.next();
      if (leader) tma_wait_read<1>();
      named_barrier_sync(1 + me_1, 128);
      const u32 out_7 = c_ring_1 + staging_1.slot * 8192u + me_1 * 16384u;
      write_rows<64, 128, 64, 64>(out_7, packed_1, warp % 4 * 16, lane);
      fence_async_smem();
      named_barrier_sync(1 + me_1, 128);
      if (leader) {
        tma_store(&c_map, out_7, last_n_1 + 128, last_m_1);
        tma_commit();
      }
      staging_1.next();
      if (leader) tma_wait_read<1>();
      named_barrier_sync(1 + me_1, 128);
      const u32 out_8 = c_ring_1 + staging_1.slot * 8192u + me_1 * 16384u;
      write_rows<64, 192, 64, 64>(out_8, packed_1, warp % 4 * 16, lane);
      fence_async_smem();
      named_barrier_sync(1 + me_1, 128);
      if (leader) {
        tma_store(&c_map, out_8, last_n_1 + 192, last_m_1);
        tma_commit();
      }
      staging_1.next();
    }
    if (leader) tma_wait_read<0>();
  }
}
