// tiledsl.cuh - every device header.
#pragma once
#include "tiledsl/types.cuh"
#include "tiledsl/convert.cuh"
#include "tiledsl/regs.cuh"
#include "tiledsl/mbarrier.cuh"
#include "tiledsl/fence.cuh"
#include "tiledsl/smem.cuh"
#include "tiledsl/tma.cuh"
#include "tiledsl/wgmma.cuh"
#include "tiledsl/math.cuh"
#include "tiledsl/reduce.cuh"
