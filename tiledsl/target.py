"""Hardware limits, and nothing else. All numbers of the machine live here."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dtypes import DType


@dataclass(frozen=True, slots=True)
class Target:
    """One GPU architecture.

    arch: NVRTC's name; the `a` suffix unlocks wgmma and setmaxnreg.
    smem_bytes: dynamic shared memory a CTA may use (227 KB on sm_90).
    smem_reserved_bytes: what each CTA on an SM takes beside its own.
    """

    arch: str = "sm_90a"
    compute_capability: tuple[int, int] = (9, 0)
    num_sms: int = 132
    smem_bytes: int = 232448
    smem_per_sm_bytes: int = 233472
    smem_reserved_bytes: int = 1024
    registers_per_thread: int = 255
    registers_per_sm: int = 65536
    warp_lanes: int = 32
    warpgroup_threads: int = 128
    max_threads: int = 1024
    threads_per_sm: int = 2048
    max_blocks_per_sm: int = 32
    max_cluster: int = 8
    named_barriers: int = 16
    wgmma_M: int = 64
    wgmma_max_N: int = 256
    wgmma_K_bytes: int = 32
    tma_max_box: int = 256
    tma_alignment_bytes: int = 16
    swizzle_bytes: int = 128
    l2_bytes: int = 60 << 20

    def smem_of(self, ctas_per_sm: int) -> int:
        """Shared memory that each of so many CTAs of an SM may use."""
        share = self.smem_per_sm_bytes // ctas_per_sm - self.smem_reserved_bytes
        return min(self.smem_bytes, share)

    def mma_K(self, dtype: DType) -> int:
        """K extent of one wgmma instruction for an operand dtype (32 bytes)."""
        return self.wgmma_K_bytes // dtype.bytes


HOPPER = Target()
MAX_GRID = (2**31 - 1, 65535, 65535)
"""CTAs on each axis of a grid. Ref: CUDA C++ Programming Guide, compute capabilities."""
