"""Registers that dots take of the threads of a single-role kernel, and how many warps hold them."""

from __future__ import annotations

from math import prod

from tiledsl.errors import ResourceError
from tiledsl.ir.extents import named_extents
from tiledsl.ir.extents import smaller
from tiledsl.ir.extents import tile_shapes
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import mma
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.types import TileType
from tiledsl.ws.dot_shapes import dot_shape
from tiledsl.ws.single_plan import Limits
from tiledsl.ws.single_plan import SinglePlan

DOT_REGISTERS = {1: 176, 2: 176, 4: 88}
"""Registers of a thread that dots may take, by warpgroups of the CTA."""


def warps_for_dots(dots: list[mma.Dot], num_warps: int | None, limits: Limits) -> SinglePlan:
    """The fewest warpgroups that hold the dots and what loops carry beside them.

    Where none do, those of which the fewest registers spill; then those that hold one form of f32
    operands, which are written to shared memory one after the other.
    """
    wanted = max(1, (num_warps or 4) // 4)
    problem: ResourceError | None = None
    crowded: dict[SinglePlan, int] = {}
    narrow: list[SinglePlan] = []
    for groups, room in DOT_REGISTERS.items():
        if groups < wanted and groups != max(DOT_REGISTERS):
            continue
        try:
            needed = max(_registers(d, groups) for d in dots)
            held = max(_registers(d, groups) + _carried_beside(d, groups) for d in dots)
        except ResourceError as error:
            problem = error
            continue
        if needed <= room:
            if held <= room or num_warps is not None or not limits.roomy:
                return SinglePlan(4 * groups)
            crowded[SinglePlan(4 * groups)] = (held - room) * groups
            continue
        worst = max(dots, key=lambda d: _registers(d, groups, forms=1))
        least = _registers(worst, groups, forms=1)
        if limits.one_form and least <= room:
            narrow.append(SinglePlan(4 * groups))
        problem = ResourceError(
            f"dot(): a thread of {4 * groups} warps would hold {least} registers of accumulators "
            f"and operands, {room} are there: {_parts(worst, groups)}",
            worst.loc,
            smaller(tile_shapes(worst.acc, worst.a, worst.b)),
        )
    if crowded:
        return min(crowded, key=lambda plan: crowded[plan])
    if narrow:
        return narrow[0]
    assert problem is not None
    raise problem


def _carried_beside(dot: mma.Dot, num_warpgroups: int) -> int:
    """Registers of a thread for the tiles that loops around a dot carry beside its accumulators."""
    acc = dot.acc.type
    assert isinstance(acc, TileType)
    found = 0
    op: Op | None = dot.parent.parent if dot.parent else None
    while op is not None:
        if isinstance(op, For | While):
            carried = [v.type for v in op.init if isinstance(v.type, TileType)]
            found = max(found, sum(t.num_elements * t.dtype.bits for t in carried))
        op = op.parent.parent if op.parent else None
    own = acc.num_elements * acc.dtype.bits
    return max(0, found - own) // (32 * 128 * num_warpgroups)


def _registers(dot: mma.Dot, num_warpgroups: int, forms: int = 2) -> int:
    """Registers of a thread for the accumulators and operands of a dot.

    forms: how many of an f32 operand's are held at once, where it has two.
    """
    return sum(_register_parts(dot, num_warpgroups, forms))


def _register_parts(dot: mma.Dot, num_warpgroups: int, forms: int) -> tuple[int, int, int]:
    """Registers of a thread for the accumulators, for a and for b of a dot."""
    acc, a, b = dot.acc.type, dot.a.type, dot.b.type
    assert isinstance(acc, TileType)
    assert isinstance(a, TileType)
    assert isinstance(b, TileType)
    M, N = acc.shape[-2:]
    shape = dot_shape(M, N, num_warpgroups, a.dtype, dot.loc)
    accumulators = shape.registers(num_warpgroups) * prod(acc.shape[:-2])
    copies = 2 if a.dtype.is_fp8 and dot.promote else 1
    held = forms if a.dtype.name == "f32" and dot.precision != "tf32" else 1
    a_regs, b_regs = (
        held * t.num_elements * t.dtype.bytes // (4 * 128 * num_warpgroups) for t in (a, b)
    )
    return copies * accumulators, a_regs, b_regs


def _parts(dot: mma.Dot, num_warpgroups: int) -> str:
    """What takes the registers of a dot."""
    counts = _register_parts(dot, num_warpgroups, 1)
    tiles = zip(("the result", "a", "b"), counts, (dot.acc, dot.a, dot.b), strict=True)
    return ", ".join(f"{n} for {what}, {_extents(value)}" for what, n, value in tiles)


def _extents(value: Value) -> str:
    assert isinstance(value.type, TileType)
    return f"{named_extents(value.type.shape)} {value.type.dtype}"
