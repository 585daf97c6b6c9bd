"""Exchanges that find room in the memory of rings: behind all loops that copy to them.

A warp that passes a tile through memory of its own (`is_within_warps`) needs no barrier for it.
Where the last loop has ended and all threads have met, nobody reads the rings any more; what such a
warp writes there lies in its own part.
"""

from __future__ import annotations

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import barrier
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.role import Role
from tiledsl.ir.types import SmemType


def behind_rings(role: Role, end_bytes: int) -> list[Op]:
    """Exchanges within warps that may use the memory of rings.

    end_bytes: where that memory ends; other buffers lie behind it.
    """
    found: list[Op] = []
    met = False
    for op in role.body.ops:
        inner = [op, *(o for region in op.regions for o in region.walk())]
        if isinstance(op, barrier.CtaSync):
            met = True
        elif any(_touches(o, end_bytes) for o in inner):
            # A dot outside of loops may stage its operands there; all threads meet behind it.
            met = isinstance(op, mma.Dot)
            found.clear()
        elif met and getattr(op, "is_within_warps", False):
            found.append(op)
    return found


def _touches(op: Op, end_bytes: int) -> bool:
    """Whether an op may access the memory of rings."""
    return isinstance(op, mma.Dot) or any(_is_ring(v, end_bytes) for v in op.operands)


def _is_ring(value: Value, end_bytes: int) -> bool:
    """Whether a tile in shared memory lies in a ring, or may."""
    if not isinstance(value.type, SmemType):
        return False
    op = value.defining_op
    while op is not None and not isinstance(op, smem.Buffer):
        source = next((v for v in op.operands if isinstance(v.type, SmemType)), None)
        op = source.defining_op if source is not None else None
    return op is None or op.offset_bytes < end_bytes
