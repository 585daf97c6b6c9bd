"""What a kernel does with its sums and with memory, as far as plans depend on it."""

from __future__ import annotations

from tiledsl.ir.op import Effect
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import Store
from tiledsl.ir.types import TileType
from tiledsl.ws.analysis import Analysis

# fmt: off
SEPARABLE = frozenset({
    "tile.splat", "tile.arange", "tile.broadcast", "tile.expand_dims", "tile.full",
    "tile.transpose", "tile.undef",
})
# fmt: on


def separable(body: Region, analysis: Analysis) -> bool:
    """Whether what is done with the sums is done element by element.

    Under split-K a warpgroup has the whole sums of its own part only.
    """
    inside = {o.id for f in analysis.loops for o in f.loop.body.walk()}
    for op in body.walk():
        touches = any(isinstance(v.type, TileType) for v in (*op.operands, *op.results))
        known = op.opcode.partition(".")[0] in ("elementwise", "memory", "control")
        if op.id not in inside and touches and not known and op.opcode not in SEPARABLE:
            return False
    return True


def in_blocks(body: Region) -> bool:
    """Whether memory is accessed in blocks of tensors only, which end at the tensor's bounds."""
    effects = (Effect.READ, Effect.WRITE)
    return all(
        op.effect not in effects or isinstance(op, Load | Store | For | If) for op in body.walk()
    )


def is_rounded_sum(value: Value) -> bool:
    """Whether a stored tile is the result of a loop as it is, or rounded."""
    op = value.defining_op
    while isinstance(op, Cast):
        op = op.a.defining_op
    return isinstance(op, For)
