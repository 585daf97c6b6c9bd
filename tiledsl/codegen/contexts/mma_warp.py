"""Products that each warp computes by itself."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import Tie
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import overwrites
from tiledsl.ir.ops.mma_warp import WarpDot
from tiledsl.ir.ops.smem import smem_type


@dataclass(frozen=True)
class WarpDotContext:
    """acc: the sums. a: the address of the rows. b: the registers of the right operand."""

    rows: int
    K: int
    dtype: str
    acc: str
    a: str
    b: str


@overwrites("mma.warp_dot")
def warp_dot_ties(op: WarpDot) -> tuple[Tie, ...]:
    """The sums are updated in place."""
    return ((op.results[0], op.acc),)


@emits("mma.warp_dot")
def warp_dot(op: WarpDot, e: Emission) -> WarpDotContext:
    """`warp_mma<32, 32, f16>(acc_1, a_at_1, b_2, lane);`."""
    a = smem_type(op.a, "mma")
    e.use("lane")
    acc = e.in_place((op.results[0], op.acc))
    dtype = memory_type(a.dtype)
    return WarpDotContext(a.shape[0], a.shape[1], dtype, acc, e.text(op.a), e.text(op.b))
