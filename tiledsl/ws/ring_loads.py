"""How a tile that is loaded comes through a ring in shared memory, or why it cannot.

Neighbours have to lie side by side, and what the address takes must not depend on what the loop
computes from its tiles, where copies come ahead of their iteration.
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.dtypes import float32
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.pointer_copy import COPY_BYTES
from tiledsl.ir.passes.fold_sums import is_zero
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.access_layouts import VECTOR_BYTES
from tiledsl.ws.access_layouts import copied_width
from tiledsl.ws.access_layouts import wanted_shape
from tiledsl.ws.block_copies import as_pointers
from tiledsl.ws.copies_in_place import place_obstacle
from tiledsl.ws.copy_loop import RingLoad
from tiledsl.ws.copy_loop import dot_uses
from tiledsl.ws.dot_operands import ATOM_BYTES
from tiledsl.ws.dot_operands import is_MN_major
from tiledsl.ws.dot_shapes import shape_of_dot
from tiledsl.ws.warp_dots import rows_in_ring

FILLED = "`other` is not 0, and copies fill with zeros"
UNCHANGED_HINTS = ("cv", "cs")
"""Cache operators that a copy cannot have."""


TileLoad = pointer.Load | memory.Load


@dataclass(frozen=True)
class RingLimits:
    """What rings may take. depth: slots at most. num_warps: of the role.

    by_warps: the dot that warps compute, who read its left operand of a ring, or None.
    """

    depth: int
    num_warps: int
    target: Target
    by_warps: mma.Dot | None = None

    @property
    def groups(self) -> int:
        """Warpgroups of the role."""
        return max(1, self.num_warps // 4)


def needed_ops(
    loop: For, loads: list[pointer.Load]
) -> tuple[tuple[Op, ...], tuple[int, ...]] | None:
    """The ops of the body that addresses and masks take in every iteration, in order.

    With them the positions of the carried values that they take, whose next values are among what
    these ops make. None where one of them depends on what must not be computed ahead.
    """
    end = loop.body.terminator
    assert isinstance(end, Yield)
    needed: set[int] = set()
    state: set[int] = set()
    todo = [v for load in loads for v in (load.pointer, load.mask) if v is not None]
    while todo:
        value = todo.pop()
        op = value.defining_op
        if op is None:
            at = value.index - 1
            if value.owner is loop.body and at >= 0 and at not in state:
                if isinstance(value.type, TileType):
                    return None
                state.add(at)
                todo.append(end.values[at])
        elif op.parent is loop.body and op.id not in needed:
            if op.regions or not (op.effect is Effect.PURE or is_index_load(op)):
                return None
            needed.add(op.id)
            todo += op.operands
    return tuple(op for op in loop.body.ops if op.id in needed), tuple(sorted(state))


def is_index_load(op: Op) -> bool:
    """Whether an op loads what addresses are made of, from memory that nobody changes."""
    return isinstance(op, pointer.Load) and not op.volatile


def ring_candidate(
    graph: TileGraph,
    loop: For,
    load: TileLoad,
    facts: AxisFacts,
    limits: RingLimits,
    *,
    is_ahead: bool = True,
) -> RingLoad | str:
    """How a load lies in its ring, or why it cannot be copied; blocks become tiles of pointers.

    is_ahead: whether it comes ahead of its iteration, or is copied where it stands.
    """
    if isinstance(load, pointer.Load):
        return _copied(graph, loop, load, facts, limits, is_ahead=is_ahead)
    type_ = load.result.type
    assert isinstance(type_, TileType)
    if type_.rank not in (1, 2) or type_.dtype.bits < 8:
        return f"blocks {type_} are not copied"
    through = as_pointers(graph, load, facts)
    if through is None:
        return FILLED
    graph.replace_uses(load.result, through.result)
    made = _copied(graph, loop, through, facts, limits, is_ahead=is_ahead)
    if isinstance(made, RingLoad):
        graph.erase(load)
    else:
        graph.replace_uses(through.result, load.result)
        graph.erase(through)
    return made


def _copied(
    graph: TileGraph,
    loop: For,
    load: pointer.Load,
    facts: AxisFacts,
    limits: RingLimits,
    *,
    is_ahead: bool,
) -> RingLoad | str:
    problem = copy_obstacle(loop, load) if is_ahead else _obstacle(load)
    made = problem or _ring_load(graph, load, facts, limits)
    if is_ahead or isinstance(made, str):
        return made
    for dot, side, order in dot_uses(graph, load):
        if _slot_of(dot, side, order, made.memory.major, limits) != made.memory:
            return "a dot that reads it needs another layout"
    return place_obstacle(graph, made) or made


def copy_obstacle(loop: For, load: pointer.Load) -> str:
    """Why a load cannot come iterations ahead; empty where it can."""
    if load.parent is not loop.body:
        return "it is under an if"
    if problem := _obstacle(load):
        return problem
    if needed_ops(loop, [load]) is None:
        return "addresses depend on what the loop computes"
    return ""


def _obstacle(load: pointer.Load) -> str:
    """Why a load cannot be a copy at all; empty where it can."""
    dtype = pointer.pointed_to(load.pointer, "load")
    if load.volatile or load.hint in UNCHANGED_HINTS:
        return "it asks for a cache operator"
    if dtype.is_pointer or dtype.bits < 8:
        return f"elements of {dtype} are not copied"
    if load.other is not None and not is_zero(load.other):
        return FILLED
    return ""


def _ring_load(
    graph: TileGraph, load: pointer.Load, facts: AxisFacts, limits: RingLimits
) -> RingLoad | str:
    """How a load lies in its ring, or why it cannot be copied."""
    type_ = load.result.type
    assert isinstance(type_, TileType)
    if type_.rank not in (1, 2):
        return f"it has {type_.rank} dimensions, copies take 1 or 2"
    fast = wanted_shape(load, facts).order[0]
    width_bytes = copy_bytes(load, fast, facts)
    if isinstance(width_bytes, str):
        return width_bytes
    for dot, side, order in dot_uses(graph, load):
        memory = _slot_of(dot, side, order, fast, limits)
        if memory is not None:
            operand = (dot.a, dot.b)[side].type
            assert isinstance(operand, TileType)
            K = order[1 - side]
            padded = memory.shape[K] != operand.shape[1 - side]
            return RingLoad(load, memory, width_bytes, is_zeroed=padded, is_direct=True)
    swizzle = ATOM_BYTES if type_.rank == 2 else 0
    return RingLoad(load, SmemType(type_.shape, type_.dtype, fast, swizzle), width_bytes)


def _slot_of(
    dot: mma.Dot, side: int, order: tuple[int, ...], fast: int, limits: RingLimits
) -> SmemType | None:
    """How a loaded tile lies for a dot that takes it with its dimensions in an order.

    fast: the tile's contiguous dimension. None where wgmma, or a warp, cannot read that.
    """
    if dot is limits.by_warps:
        return rows_in_ring(dot) if (side, fast, order) == (0, 1, (0, 1)) else None
    made = _operand_type(dot, side, order.index(fast), limits)
    if made is None:
        return None
    return SmemType((made.shape[order.index(0)], made.shape[order.index(1)]), made.dtype, fast)


def copy_bytes(load: pointer.Load, fast: int, facts: AxisFacts) -> int | str:
    """What one copy moves along the fast dimension, or why that is less than a copy takes."""
    type_ = load.result.type
    assert isinstance(type_, TileType)
    size, least = type_.dtype.bytes, min(COPY_BYTES)
    width = facts.of(load.pointer).width(fast, VECTOR_BYTES // size)
    if width * size < least:
        return f"{width * size} bytes side by side are aligned, a copy takes {least}"
    width, _ = copied_width(load, fast, _divided(width, type_.shape[fast]), facts)
    if width * size < least:
        return f"the mask may cut {least} bytes, the least that a copy takes"
    return width * size


def _divided(width: int, extent: int) -> int:
    """The largest power of two up to a width that divides an extent."""
    while width > 1 and extent % width:
        width //= 2
    return width


def _operand_type(dot: mma.Dot, side: int, major: int, limits: RingLimits) -> SmemType | None:
    """How an operand of a dot lies, contiguous along `major`; None where wgmma cannot read that."""
    operand = (dot.a, dot.b)[side].type
    assert isinstance(operand, TileType)
    dtype = operand.dtype
    if dtype == float32 or dtype.bits > 16:
        return None
    shape = shape_of_dot(dot, limits.groups)
    K_dim = 1 - side
    K_step = limits.target.mma_K(dtype)
    extents = [0, 0]
    extents[K_dim] = -(-operand.shape[K_dim] // K_step) * K_step
    extents[side] = shape.M if side == 0 else shape.N
    is_parted = (shape.split == 0) != (shape.swapped != (side == 1))
    made = SmemType((extents[0], extents[1]), dtype, major)
    whole = ATOM_BYTES // dtype.bytes * (limits.groups if is_parted else 1)
    return made if major == K_dim or is_MN_major(made, side, whole) else None
