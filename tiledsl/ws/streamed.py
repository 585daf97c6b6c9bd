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

PREFETCH_BYTES = 128 * 1024
"""Of a stream that the CTAs of an SM fetch into L2 before the kernel before has ended: M = 1, 8,
16, 32, 48, 64, N = K = 8192, 64 x 128 one-shot, to cuBLAS: 64 KB 1.084, 1.063, 1.062, 1.064, 1.055,
1.050; 96 KB 1.093, 1.073, 1.073, 1.072, 1.061, 1.053; 128 KB 1.099, 1.080, 1.079, 1.075, 1.058,
1.051. At a promotion of 256 bytes 160 KB were 0.02 and 256 KB 0.09 behind 96 KB: they take HBM from
the kernel that still runs.
"""
STREAM_LINE_BYTES = 128
"""Promotion in L2 of what HBM bounds. To 256 bytes a request fetches its neighbour, too, which the
next box asks for at the same time: 4 to 5 % of few rows. Where L2 bounds, 256 is up to 1 % better.
"""


@dataclass(frozen=True)
class Stream:
    """What is streamed in an iteration, and what a CTA takes of its SM.

    num_bytes: of an iteration; 0 where no operand is read by one program alone.
    cta_bytes: of shared memory. grid: programs per axis.
    """

    num_bytes: int
    cta_bytes: int
    grid: tuple[int, int, int]

    def resident(self, plan: Plan, target: Target) -> tuple[int, int]:
        """Programs that run at once where each is a CTA or a cluster; CTAs of an SM."""
        own = self.cta_bytes + target.smem_reserved_bytes
        per_sm = max(1, target.smem_per_sm_bytes // own)
        return target.num_sms * per_sm // plan.split_k, per_sm


def with_stream(plan: Plan, cost: Cost, s: Stream, target: Target, asked: int | None) -> Plan:
    """The plan with its prefetches and its promotion in L2.

    Programs that begin after others have ended would fetch while those load, so that of a grid
    that does not run at once only the first programs fetch. asked: the launch option.
    """
    bound = cost.bottleneck == "HBM"
    if bound or plan.unit_axes:
        plan = revised(plan, l2_promotion_bytes=min(plan.l2_promotion_bytes, STREAM_LINE_BYTES))
    first, per_sm = s.resident(plan, target)
    late = not plan.persistent and prod(s.grid) > first
    if asked is None:
        known = bound and plan.pdl and s.num_bytes
        # The ring has room for as much at once, but for a slot.
        most = PREFETCH_BYTES // (per_sm * s.num_bytes) if known else 0
        asked = min(most, max(1, plan.num_stages - 1))
    if not asked:
        return plan
    return revised(plan, prefetch=asked, prefetch_programs=first if late else 0)
