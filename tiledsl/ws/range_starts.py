"""Whether later iterations of a loop exist, asked without counting past the end of its integers."""

from __future__ import annotations

from tiledsl.ir.analysis.constants import int_limits
from tiledsl.ir.analysis.range_ends import dtype_of
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops.control import For


def start_of_last(b: Builder, loop: For, ahead: int = 1) -> Value:
    """What `iv` is below where the iteration `ahead` after it exists; for a loop that counts up.

    That is `upper - ahead * step`, or the least integer where that is below it. b: before the loop;
    of a step that is no constant, `ahead` is 1. The text of a loop that may count too far asks the
    same of its variable (`codegen/contexts/counted_loops.py`), and NVVM asks once.
    """
    dtype, step = dtype_of(loop.iv), loop.step
    if ahead > 1:
        step = b.value(ew.Mul(step, b.value(ew.Constant(ahead, dtype))))
    least = b.value(ew.Constant(int_limits(dtype)[0], dtype))
    is_below = b.value(ew.Compare("lt", loop.upper, b.value(ew.Add(least, step))))
    return b.value(ew.Select(is_below, least, b.value(ew.Sub(loop.upper, step))))
