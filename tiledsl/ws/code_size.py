"""How many instructions the code of an epilogue is, about."""

from __future__ import annotations

from collections.abc import Iterable

from tiledsl.ir.op import Op
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.types import TileType

LONG_CODE = 1024
"""Instructions of an epilogue from which on its chunks share one copy of the code."""
INSTRUCTIONS = {
    "exp": 8, "exp_short": 2, "exp2": 4, "exp2_short": 1, "log": 16, "log2": 16, "sin": 40,
    "cos": 40, "tanh": 20, "tanh_short": 6, "erf": 23, "erf_short": 12, "div": 9, "div_short": 4,
    "function": 20, "constant": 0, "yield": 0, "load": 5,
}  # fmt: skip
"""Of an element, by op; others have one. `short`: the form with less precision or range."""


def code_size(loop: Map, loads: Iterable[Load]) -> int:
    """About how many instructions a thread has for a tile in straight code."""
    assert loop.layout is not None
    each = sum(INSTRUCTIONS.get(_kind(op), 1) for op in loop.body.walk())
    types = [o.result.type for o in loads]
    whole = sum(isinstance(t, TileType) and len(t.shape) == len(loop.shape) for t in types)
    return (each + INSTRUCTIONS["load"] * whole) * loop.layout.num_regs


def _kind(op: Op) -> str:
    """What an op is called in the table of instructions."""
    name = op.opcode.partition(".")[2]
    short = getattr(op, "absolute", False) or getattr(op, "fast", False)
    return f"{name}_short" if short else name
