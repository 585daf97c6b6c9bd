// raster.cuh - which tiles a block computes, and in which order. All functions: thread.
#pragma once
#include "tiledsl/math.cuh"
#include "tiledsl/mbarrier.cuh"
#include "tiledsl/regs.cuh"
#include "tiledsl/smem.cuh"
#include "tiledsl/types.cuh"

namespace tdsl {

// The index of a program in the user's grid.
struct Program { i32 axis_0, axis_1, axis_2; };

// Extent of grid axis AXIS in cluster tiles: SIZE programs side by side along CLUSTER_AXIS (-1: none) count as one.
template <int AXIS, int CLUSTER_AXIS, int SIZE> TDSL_FN i32 cluster_tiles(i32 extent) {
  return AXIS == CLUSTER_AXIS ? (extent + SIZE - 1) / SIZE : extent;
}
// Cluster tiles of the whole grid.
template <int CLUSTER_AXIS, int SIZE> TDSL_FN i32 num_tiles(i32 grid_0, i32 grid_1, i32 grid_2) {
  return cluster_tiles<0, CLUSTER_AXIS, SIZE>(grid_0) * cluster_tiles<1, CLUSTER_AXIS, SIZE>(grid_1) *
         cluster_tiles<2, CLUSTER_AXIS, SIZE>(grid_2);
}
// Index of this block's cluster in the launched grid, and the number of clusters: first tile and step of a
// persistent loop.
template <int SIZE> TDSL_FN i32 first_tile() { return (i32)(blockIdx.x / SIZE); }
template <int SIZE> TDSL_FN i32 tile_step() { return (i32)(gridDim.x / SIZE); }

// The tile that number `drawn` of a launch's counter stands for. `tiles` numbers are drawn in all; whoever has
// the last one sets the counter back.
TDSL_FN i32 next_tile(i32* counter, i32 drawn, i32 tiles) {
  if (drawn == tiles - 1) *counter = 0;
  return drawn + (i32)gridDim.x;
}

// A cluster of SIZE blocks that stays runs program first_tile, then the one a round later, then drawn ones; large ones,
// which may find no place for long, draw the second as well, at the beginning. The others are drawn with each program that
// it starts, by its first thread. After all draws of a launch the counter is 0 again. As a sum, ptxas would take lanes
// together and wait for what they drew at once: 0.45 us in which the cluster waits for this warp. ISA: atom.
template <int SIZE> constexpr bool DRAWS_SECOND = SIZE > 4;
template <int SIZE> TDSL_FN bool draws() { return threadIdx.x == 0 && (SIZE == 1 || cluster_rank() == 0); }
template <int SIZE> TDSL_FN i32 draw_program(i32* counter, i32 count) {
  i32 drawn = 0;
  asm volatile("{\n.reg .pred q;\nsetp.ne.b32 q, %2, 0;\n@q atom.relaxed.gpu.global.inc.u32 %0, [%1], %3;\n}"
               : "+r"(drawn) : "l"(counter), "r"((u32)draws<SIZE>()),
                 "r"(count - 1 + (DRAWS_SECOND<SIZE> ? tile_step<SIZE>() : 0)) : "memory");
  return drawn;
}
// Sends the program of a drawn number to the blocks of the cluster, lane c to block c. A kernel without clusters has no
// st.async: its block arrives itself. All threads, warps converged. ISA: st.async.
template <int SIZE> TDSL_FN void send_program(i32 drawn, u32 box, u32 barrier) {
  if constexpr (SIZE == 1) {
    if (draws<SIZE>()) {
      st_shared<i32>(box, drawn + 2 * tile_step<SIZE>());
      mbarrier_arrive(barrier);
    }
  } else {
    if (threadIdx.x == 0) mbarrier_expect_tx(barrier, sizeof(i32));
    if (threadIdx.x < 32 && cluster_rank() == 0) {
      const i32 program = uniform(drawn) + (DRAWS_SECOND<SIZE> ? 1 : 2) * tile_step<SIZE>();
      if (lane_id() < SIZE) st_async(mapa(box, lane_id()), mapa(barrier, lane_id()), program);
    }
  }
}
// What was sent, to this block's own shared memory: see exchange_partials. All threads, warps converged. ISA:
// mbarrier.try_wait, ld.shared.
template <int SIZE> TDSL_FN i32 receive_program(u32 box, u32 barrier, Cursor<1>& c) {
  mbarrier_wait(barrier, c.parity);
  c.next();
  return uniform(ld_shared<i32>(box));
}

// The program of cluster tile `tile` for block `rank` of its cluster. GROUP tiles along GROUP_AXIS (0 or 1) are
// visited before the other one of axes 0 and 1 advances; GROUP 0 is the grid's own order, axis 0 fastest. Axis 2
// is slowest. Along CLUSTER_AXIS the result may lie beyond a grid whose extent SIZE does not divide.
template <int GROUP, int GROUP_AXIS, int CLUSTER_AXIS, int SIZE>
TDSL_FN Program program_of_tile(i32 tile, i32 grid_0, i32 grid_1, u32 rank) {
  const i32 n0 = cluster_tiles<0, CLUSTER_AXIS, SIZE>(grid_0);
  const i32 n1 = cluster_tiles<1, CLUSTER_AXIS, SIZE>(grid_1);
  const i32 z = tile / (n0 * n1), t = tile - z * (n0 * n1);
  i32 x, y;
  if constexpr (GROUP == 0) {
    y = t / n0;
    x = t - y * n0;
  } else {
    const i32 along = GROUP_AXIS == 0 ? n0 : n1, across = GROUP_AXIS == 0 ? n1 : n0;
    const i32 g = t / (GROUP * across), r = t - g * (GROUP * across);
    const i32 width = min_num(along - g * GROUP, (i32)GROUP);
    const i32 b = r / width, a = g * GROUP + r - b * width;
    x = GROUP_AXIS == 0 ? a : b;
    y = GROUP_AXIS == 0 ? b : a;
  }
  return {CLUSTER_AXIS == 0 ? x * SIZE + (i32)rank : x, CLUSTER_AXIS == 1 ? y * SIZE + (i32)rank : y,
          CLUSTER_AXIS == 2 ? z * SIZE + (i32)rank : z};
}
// As program_of_tile with axes 1 and 2 taken together: GROUP programs along them before axis 0 advances.
template <int GROUP> TDSL_FN Program program_of_tile_merged(i32 tile, i32 grid_0, i32 grid_1, i32 grid_2) {
  const Program p = program_of_tile<GROUP, 1, -1, 1>(tile, grid_0, grid_1 * grid_2, 0);
  const i32 z = p.axis_1 / grid_1;
  return {p.axis_0, p.axis_1 - z * grid_1, z};
}

}  // namespace tdsl
