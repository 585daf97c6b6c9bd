"""How many instructions the code of an epilogue is, about."""

from __future__ import annotations

from tiledsl.ir.op import Op
from tiledsl.ir.ops.tile import Map

LONG_CODE = 1024
"""Instructions of an epilogue from which on its chunks share one copy of the code. A residual, most
of whose code is addresses, is no faster so: 0.974 of the bare product for 0.979 in one process.
"""
INSTRUCTIONS = {
    "exp": 8, "exp_short": 2, "exp2": 4, "exp2_short": 1, "log": 16, "log2": 16, "sin": 40,
    "cos": 40, "tanh": 20, "tanh_short": 6, "erf": 23, "erf_short": 12, "div": 9, "div_short": 4,
    "function": 20, "constant": 0, "yield": 0,
}  # fmt: skip
"""Of an element, by op; others have one. `short`: the form with less precision or range."""


def code_size(loop: Map) -> int:
    """About how many instructions a thread has for the arithmetic of a tile in straight code."""
    assert loop.layout is not None
    each = sum(INSTRUCTIONS.get(_kind(op), 1) for op in loop.body.walk())
    return each * loop.layout.num_regs


def _kind(op: Op) -> str:
    """What an op is called in the table of instructions."""
    name = op.opcode.partition(".")[2]
    short = getattr(op, "absolute", False) or getattr(op, "fast", False)
    return f"{name}_short" if short else name
