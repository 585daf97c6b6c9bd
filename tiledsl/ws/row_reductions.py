"""How a thread of a flow loop's consumer combines the elements that it holds of a row."""

from __future__ import annotations

from tiledsl.dtypes import float32
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ws.plan import Plan

CHAINS = 2
"""Chains of a row's maximum, and of its sum where warpgroups issue in turns, instead of trees.

Measured with attention: the sum at D = 64 (causal 0.96 to 0.98-1.01 of the hand-written kernel,
full 1.006 to 0.987); maxima of two warpgroups at D = 128 (docs/performance.md)."""


def combining(op: Reduce, plan: Plan, *, in_loop: bool, fast_math: bool) -> dict[str, int]:
    """Attributes of a reduction of the consumer; none where it is a balanced tree.

    In chains, each value is combined as soon as it is there, whatever the tensor core does
    meanwhile. Where a loop waits for the CUDA cores, instructions count: a maximum takes three
    values at a time, if a NaN need not be ignored.
    """
    is_max = op.kind == "max" and in_loop
    if is_max and plan.skips_ones and fast_math and op.dtypes == (float32,):
        return {"by_three": True}
    # Two warpgroups that wait for the CUDA cores: chained maxima took 1.258 for 1.310 of bf16.
    waits = plan.skips_ones and plan.num_consumers <= 2
    simple = bool(op.kind) and len(op.inputs) == 1
    return {"chains": CHAINS} if simple and (plan.turns or (is_max and not waits)) else {}
