block_sync();
  if (threadIdx.x == 0) {
    // kernels.py:22  m, n = tl.program_id(0) * BM, tl.program_id(1) * BN
    const int n_1 = (int)blockIdx.y * 64;
    const int t_1 = min_num<int>((int)a_shape_1, 384);
    // kernels.py:24  for k in range(0, a.shape[1], BK):
    for (int k_1 = 0; k_1 < t_1; k_1 += 128) {
      // kernels.py:25  acc = tl.dot(a.load((m, k), (BM, BK)), b.load((k, n), (BK, BN)), acc)
      tma_prefetch(&b_map, n_1, k_1);
    }
  }
  grid_launch_dependents();
  grid_dependency_wait();
