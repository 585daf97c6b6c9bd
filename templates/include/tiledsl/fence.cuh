// fence.cuh - proxy and memory fences, and programmatic dependent launch.
#pragma once
#include "tiledsl/types.cuh"

namespace tdsl {

// fence.proxy.async.shared::cta: this thread's generic shared-memory writes become visible to TMA stores
// and wgmma; a barrier with the issuing thread must follow. Each writing thread. ISA: membar/fence.
TDSL_FN void fence_async_smem() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// fence.proxy.async.shared::cluster: the same for shared memory of the whole cluster. Each writing thread.
TDSL_FN void fence_async_cluster() { asm volatile("fence.proxy.async.shared::cluster;" ::: "memory"); }
// fence.proxy.async.global: generic global writes of this thread become visible to later TMA loads.
TDSL_FN void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
// fence.proxy.async: all spaces; costs more than the restricted forms. Thread. ISA: membar/fence.
TDSL_FN void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }

// fence.acq_rel.cta. Thread. ISA: membar/fence.
TDSL_FN void fence_cta() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
// fence.acq_rel.cluster. Thread. ISA: membar/fence.
TDSL_FN void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
// fence.acq_rel.gpu. Thread. ISA: membar/fence.
TDSL_FN void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
// fence.acq_rel.sys. Thread. ISA: membar/fence.
TDSL_FN void fence_sys() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
// fence.proxy.tensormap::generic.acquire.gpu: before using a tensor map that the device wrote. Thread.
TDSL_FN void fence_tensormap_acquire(const TensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"((u64)map) : "memory");
}

// griddepcontrol.wait: until the grids this one depends on have completed and their writes are visible.
// Thread; before the first read of their results. ISA: griddepcontrol.
TDSL_FN void grid_dependency_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// griddepcontrol.launch_dependents: the dependent grid may start once all blocks did this or ended; says
// nothing about memory. Thread. ISA: griddepcontrol.
TDSL_FN void grid_launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// The same by the last LAST blocks alone: those before them have ended when these run. Blocks that say it
// start at half the rate of others, so that a grid of many short ones takes twice as long if all do.
template <u32 LAST> TDSL_FN void grid_launch_dependents_by_last() {
  const u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (gridDim.x * gridDim.y * gridDim.z - block <= LAST) grid_launch_dependents();
}

}  // namespace tdsl
