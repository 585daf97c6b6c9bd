"""Which loads of a loop come through rings in shared memory, by asynchronous copies of the threads.

In a single role nothing else hides the time of the loads that feed a dot. A tile of pointers whose
neighbours lie side by side is copied iterations ahead of its use; where it lies in shared memory as
the tensor core wants it, no register sees it. What an address takes may change with the loop, be
carried by it, or be loaded itself, but must not depend on what the loop computes from its tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from typing import TypeGuard

from tiledsl.dtypes import float32
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.constants import trip_count
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.memory_base import Base
from tiledsl.ir.ops.pointer_copy import COPY_BYTES
from tiledsl.ir.passes.fold_sums import is_zero
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.target import Target
from tiledsl.ws.access_layouts import VECTOR_BYTES
from tiledsl.ws.access_layouts import copied_width
from tiledsl.ws.access_layouts import wanted_shape
from tiledsl.ws.block_copies import as_pointers
from tiledsl.ws.copy_loop import CopyLoop
from tiledsl.ws.copy_loop import RingLoad
from tiledsl.ws.copy_loop import dot_uses
from tiledsl.ws.copy_loop import writes_operands
from tiledsl.ws.dot_operands import ATOM_BYTES
from tiledsl.ws.dot_operands import is_MN_major
from tiledsl.ws.dot_operands import is_promoted
from tiledsl.ws.dot_shapes import shape_of_dot
from tiledsl.ws.load_ahead import counts_up

NOT_COPIED = "is not copied ahead of its iteration"
"""What notes say of a load, before the reason."""
FLIGHT_SLOTS = 4
"""Slots from which on a product stays in flight over the end of an iteration: it still reads one,
and of three that leaves too few for the copies."""
FILLED = "`other` is not 0, and copies fill with zeros"
UNCHANGED_HINTS = ("cv", "cs")
"""Cache operators that a copy cannot have."""


TileLoad = pointer.Load | memory.Load


@dataclass(frozen=True)
class RingLimits:
    """What rings may take. depth: slots at most. num_warps: of the role."""

    depth: int
    num_warps: int
    target: Target

    @property
    def groups(self) -> int:
        """Warpgroups of the role."""
        return max(1, self.num_warps // 4)


def copy_rings(graph: TileGraph, region: Region, limits: RingLimits) -> list[str]:
    """Rewrites the innermost loops with dots under `region`.

    Returns a line for each load, with the reason where it has no ring.
    """
    notes: list[str] = []
    for loop in [op for op in region.walk() if isinstance(op, For)]:
        inner = list(loop.body.walk())
        if any(isinstance(op, For | While) for op in inner):
            continue
        loads = [op for op in inner if _is_tile_load(op)]
        if not loads or not any(isinstance(op, mma.Dot) for op in inner):
            continue
        if limits.depth < 2:
            notes.append(
                f"{_place(loop)}: what the loop loads {NOT_COPIED}: a ring needs two slots"
            )
            continue
        facts = axis_facts(region, graph.facts.get("divisors", {}))
        trips = trip_count(loop)
        # More slots than iterations would stay empty.
        depth = limits.depth if trips is None else max(2, min(limits.depth, trips))
        made, why = _decide(graph, loop, loads, facts, replace(limits, depth=depth))
        notes += why
        if made is not None:
            notes += made.describe()
            made.rewrite(graph)
    return notes


def _place(op: Op) -> str:
    return op.loc.short if op.loc else "?"


def _is_tile_load(op: Op) -> TypeGuard[TileLoad]:
    return isinstance(op, pointer.Load | memory.Load) and isinstance(op.result.type, TileType)


def _decide(
    graph: TileGraph, loop: For, loads: list[TileLoad], facts: AxisFacts, limits: RingLimits
) -> tuple[CopyLoop | None, list[str]]:
    """What is done with a loop, and why loads stay as they are."""
    problem = _loop_problem(loop)
    if problem:
        return None, [f"{_place(loop)}: what the loop loads {NOT_COPIED}: {problem}"]
    notes: list[str] = []
    found: list[RingLoad] = []
    through = [op for op in loads if isinstance(op, pointer.Load)]
    slices = [made for load in through if (made := needed_ops(loop, [load])) is not None]
    indexes = {op.id for ops, _ in slices for op in ops if isinstance(op, pointer.Load)}
    for load in loads:
        if load.id in indexes:
            continue
        name = load.result.name or _source(graph, load)
        made = _candidate(graph, loop, load, facts, limits)
        if isinstance(made, RingLoad):
            found.append(replace(made, name=name))
        else:
            name = name or "a tile"
            notes.append(f"{_place(load)}: {name} {NOT_COPIED}: {made}")
    if not found:
        return None, notes
    ops, state = needed_ops(loop, [c.load for c in found]) or ((), ())
    used = tuple(op for op in ops if isinstance(op, pointer.Load))
    origins = {read_argument(graph, op.pointer) for op in (*(c.load for c in found), *used)}
    problem = _order_problem(graph, loop, origins)
    if problem:
        return None, [*notes, f"{_place(loop)}: what the loop loads {NOT_COPIED}: {problem}"]
    deep = limits.depth >= FLIGHT_SLOTS
    dot = _dot_in_flight(graph, loop, found, limits) if deep else None
    writes = writes_operands(loop, {c.load.result for c in found if c.is_direct})
    late = dot is None and any(writes)
    # A late copy goes to the slot that was just read, so that one slot less suffices.
    depth = max(2, limits.depth - 1) if late else limits.depth
    plan = CopyLoop(
        loop, tuple(found), ops, used, state, depth, dot, limits.groups,
        late=late, is_fenced=late and writes[0],
    )  # fmt: skip
    return plan, notes


# ---------------------------------------------------------------------- the loop
def _loop_problem(loop: For) -> str:
    if not counts_up(loop.step):
        return "the step may be negative"
    if any(op.effect is Effect.SYNC for op in loop.body.walk()):
        return "the loop has a barrier"
    return ""


def _order_problem(graph: TileGraph, loop: For, origins: set[str | None]) -> str:
    """Loads must not pass a store that may write what they read."""
    for op in loop.body.walk():
        if op.effect is Effect.WRITE:
            written = written_argument(graph, op)
            if not written or not all(origins) or written in origins:
                return "the loop may write what it loads"
    return ""


def written_argument(graph: TileGraph, op: Op) -> str | None:
    """The argument that a store writes to; None or empty where that is not known."""
    if isinstance(op, memory.Store):
        return _argument(graph, op.tensor)
    return read_argument(graph, op.pointer) if isinstance(op, pointer.Store) else ""


def _source(graph: TileGraph, load: TileLoad) -> str:
    """The argument that a load reads, empty where that is not known."""
    if isinstance(load, memory.Load):
        return _argument(graph, load.tensor)
    return read_argument(graph, load.pointer) or ""


def read_argument(graph: TileGraph, at: Value) -> str | None:
    """As pointer.origin_of, for blocks of tensors too."""
    op = at.defining_op
    while op is not None and op.operands and pointer.is_pointer(op.operands[0]):
        op = op.operands[0].defining_op
    return _argument(graph, op.tensor) if isinstance(op, Base) else pointer.origin_of(at)


def _argument(graph: TileGraph, tensor: Value) -> str:
    """The argument behind a tensor, which may be the view of a pointer."""
    views = {view.name: view.pointer for view in graph.facts.get("views", ())}
    return views.get(tensor.name, tensor.name) if tensor.defining_op is None else ""


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


# ---------------------------------------------------------------------- one load
def _candidate(
    graph: TileGraph, loop: For, load: TileLoad, facts: AxisFacts, limits: RingLimits
) -> RingLoad | str:
    """How a load lies in its ring, or why it cannot be copied; blocks become tiles of pointers."""
    if isinstance(load, pointer.Load):
        return copy_obstacle(loop, load) or _ring_load(graph, load, facts, limits)
    type_ = load.result.type
    assert isinstance(type_, TileType)
    if type_.rank not in (1, 2) or type_.dtype.bits < 8:
        return f"blocks {type_} are not copied"
    through = as_pointers(graph, load, facts)
    if through is None:
        return FILLED
    graph.replace_uses(load.result, through.result)
    made = copy_obstacle(loop, through) or _ring_load(graph, through, facts, limits)
    if isinstance(made, RingLoad):
        graph.erase(load)
    else:
        graph.replace_uses(through.result, load.result)
        graph.erase(through)
    return made


def copy_obstacle(loop: For, load: pointer.Load) -> str:
    """Why a load cannot come iterations ahead; empty where it can."""
    dtype = pointer.pointed_to(load.pointer, "load")
    if load.parent is not loop.body:
        return "it is under an if"
    if load.volatile or load.hint in UNCHANGED_HINTS:
        return "it asks for a cache operator"
    if dtype.is_pointer or dtype.bits < 8:
        return f"elements of {dtype} are not copied"
    if load.other is not None and not is_zero(load.other):
        return FILLED
    if needed_ops(loop, [load]) is None:
        return "addresses depend on what the loop computes"
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
        made = _operand_type(dot, side, order.index(fast), limits)
        if made is not None:
            operand = (dot.a, dot.b)[side].type
            assert isinstance(operand, TileType)
            padded = made.shape[1 - side] != operand.shape[1 - side]
            memory = SmemType(
                (made.shape[order.index(0)], made.shape[order.index(1)]), type_.dtype, fast
            )
            return RingLoad(load, memory, width_bytes, is_zeroed=padded, is_direct=True)
    swizzle = ATOM_BYTES if type_.rank == 2 else 0
    return RingLoad(load, SmemType(type_.shape, type_.dtype, fast, swizzle), width_bytes)


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


def _dot_in_flight(
    graph: TileGraph, loop: For, found: list[RingLoad], limits: RingLimits
) -> mma.Dot | None:
    """The one dot of a loop that adds to a carried value, where both sides are read from rings.

    Its result is a whole number of instructions.
    """
    dots = [op for op in loop.body.walk() if isinstance(op, mma.Dot)]
    if len(dots) != 1 or dots[0].parent is not loop.body:
        return None
    (dot,) = dots
    direct = [c.load for c in found if c.is_direct]
    sides = {side for load in direct for user, side, _ in dot_uses(graph, load) if user is dot}
    end = loop.body.terminator
    assert isinstance(end, Yield)
    if sides != {0, 1} or dot.acc not in loop.carried or is_promoted(dot):
        return None
    shape, acc = shape_of_dot(dot, limits.groups), dot.acc.type
    if not isinstance(acc, TileType) or acc.shape != (shape.M, shape.N):
        return None
    at = loop.carried.index(dot.acc)
    users = [u.op for u in (*graph.users(dot.acc), *graph.users(dot.result))]
    return dot if end.values[at] is dot.result and users == [dot, end] else None
