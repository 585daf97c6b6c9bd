"""How many registers of a thread the tiles of a role hold, and how many CTAs an SM holds for that.

Counted on the program with layouts, before dots are lowered: what elementwise math takes meanwhile,
addresses and masks come on top of it. Where ptxas is not told how many CTAs are to share an SM, it
takes more registers than it needs, for addresses that it works out long before they are used.
"""

from __future__ import annotations

from math import prod

from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import smem
from tiledsl.ir.passes.fold_sums import is_zero
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.dot_operands import in_ring
from tiledsl.ws.free import FreeTiles

GROUP_WARPS, MOST_WARPS = 4, 24
"""Warps of a CTA whose registers are counted, and warps on an SM that hide the time of loads."""
BESIDE_REGISTERS = 20
"""What a thread needs beside its tiles; a few bytes that spill cost less than a CTA."""


def blocks_of_tiles(
    num_warps: int, registers: int, smem_bytes: int, grid: tuple[int, ...], target: Target
) -> int:
    """CTAs of one warpgroup that an SM holds, where tiles take so many registers of a thread.

    1 for other CTAs. grid: of the launch, if it is known.
    """
    if num_warps != GROUP_WARPS:
        return 1
    by_registers = target.registers_per_sm // (32 * num_warps * (registers + BESIDE_REGISTERS))
    by_memory = target.smem_per_sm_bytes // (smem_bytes + target.smem_reserved_bytes)
    most = min(by_registers, by_memory, MOST_WARPS // num_warps)
    if grid:
        most = min(most, -(-prod(grid) // target.num_sms))
    return max(1, most)


def live_registers(region: Region) -> int:
    """Registers of 32 bits for the tiles that live at one point of a region, at most."""
    return _Count().most(region, set())


class _Count:
    """free: tiles that are made anew wherever they are read."""

    def __init__(self) -> None:
        self.free = FreeTiles()

    def most(self, region: Region, after: set[Value]) -> int:
        """after: values that live on behind the region."""
        live, most = set(after), 0
        for op in reversed(region.ops):
            most = max(most, self.size(live))
            live.difference_update(op.results)
            for inner in op.regions:
                # What a loop reads in an iteration it reads in the next one too.
                most = max(most, self.most(inner, live | _captured(inner)))
                live |= _captured(inner)
            live |= {v for v in op.operands if not _takes_none(op, v)}
            most = max(most, self.size(live))
        return most

    def size(self, live: set[Value]) -> int:
        return -(-sum(map(self.bits, live)) // 32)

    def bits(self, value: Value) -> int:
        type_ = value.type
        if not isinstance(type_, TileType) or type_.layout is None or self.free(value):
            return 0
        return type_.layout.num_regs * type_.dtype.bits


def _takes_none(op: Op, value: Value) -> bool:
    """Whether an operand of a dot is no tile of registers: a ring holds it, or it is zero."""
    if not isinstance(op, mma.Dot):
        return False
    made = value.defining_op
    return (isinstance(made, smem.Read) and in_ring(made.smem)) or (
        value is op.acc and is_zero(value)
    )


def _captured(region: Region) -> set[Value]:
    """Values from outside of a region that it reads."""
    inside = {*region.args}
    read: set[Value] = set()
    for op in region.walk():
        inside.update(op.results)
        inside.update(a for inner in op.regions for a in inner.args)
        read.update(op.operands)
    return read - inside
