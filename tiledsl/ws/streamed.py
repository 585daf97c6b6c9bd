"""What a plan does about an operand that one program alone reads: a stream from HBM.

Its first boxes are fetched into L2 before the kernel before has ended (`ws/prefetch.py`), and its
tensor map asks for lines of 128 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tiledsl.target import Target
from tiledsl.ws.cost import Cost
from tiledsl.ws.plan import Plan
from tiledsl.ws.plan import revised

LEAST_BYTES, SHARE, MOST_BYTES = 32 * 1024, 8, 128 * 1024
"""Of a stream that the CTAs of an SM fetch into L2 before the kernel before has ended: the first
and a part of what a program reads. What is more takes HBM from the kernel that still runs; the
longer programs take, the further apart they end. To cuBLAS, of 1 MB a program (M = 16, N = K =
8192): none 0.97, 64 KB 1.062, 96 KB 1.073, 128 KB 1.079, 160 KB 1.068; of 512 KB (fp8) 96 KB 1.20,
128 KB 1.19; of 256 KB (N = K = 4096) none 1.38, 32 KB 1.46, 64 KB 1.48, 96 KB 1.45, 128 KB 1.38.
"""
STREAM_LINE_BYTES = 128
"""Promotion in L2 where an operand is streamed. To 256 bytes a request fetches its neighbour, too,
which the next box asks for at the same time: 4 to 5 % of few rows. Of tiles that are read again and
again 256 is up to 1 % better.
"""


@dataclass(frozen=True)
class Stream:
    """What is streamed in an iteration, and what a CTA takes of its SM.

    num_bytes: of an iteration; 0 where no operand is read by one program alone. trips: of a CTA in
    the loop. cta_bytes: of shared memory. grid: programs per axis.
    """

    num_bytes: int
    trips: int
    cta_bytes: int
    grid: tuple[int, int, int]

    def iterations(self, plan: Plan, *, bound: bool, late: bool, per_sm: int) -> int:
        """Of how many the stream is fetched ahead.

        Not more than its ring takes beside a slot that is read. bound: HBM bounds the kernel;
        others fetch half as much, where all programs run at once.
        """
        if not plan.pdl or not self.num_bytes or (not bound and (late or plan.persistent)):
            return 0
        own = min(MOST_BYTES, LEAST_BYTES + self.num_bytes * self.trips // SHARE)
        most = own // (per_sm * self.num_bytes) if bound else own // (2 * self.num_bytes)
        return min(most, max(1, plan.num_stages - 1))

    def resident(self, plan: Plan, target: Target) -> tuple[int, int]:
        """Programs that run at once where each is a CTA or a cluster; CTAs of an SM."""
        if plan.persistent:
            return target.num_sms, 1
        own = self.cta_bytes + target.smem_reserved_bytes
        per_sm = max(1, target.smem_per_sm_bytes // own)
        return target.num_sms * per_sm // plan.split_k, per_sm


def with_stream(plan: Plan, cost: Cost, s: Stream, target: Target, asked: int | None) -> Plan:
    """The plan with its prefetches and its promotion in L2.

    Programs that begin after others have ended would fetch while those load, so that of a grid
    that does not run at once only the first programs fetch. asked: the launch option.
    """
    bound = cost.bottleneck == "HBM"
    if plan.unit_axes:
        plan = revised(plan, l2_promotion_bytes=min(plan.l2_promotion_bytes, STREAM_LINE_BYTES))
    first, per_sm = s.resident(plan, target)
    late = not plan.persistent and prod(s.grid) > first
    if asked is None:
        asked = s.iterations(plan, bound=bound, late=late, per_sm=per_sm)
    if not asked:
        return plan
    return revised(plan, prefetch=asked, prefetch_programs=first if late else 0)
