"""What the first programs load is fetched into L2 before the wait for the kernel before.

A kernel bound by HBM leaves it idle between two launches: the one before drains, while the CTAs
that have come to their places wait. They ask for their first tiles meanwhile. L2 is where all
writes meet, so that a prefetch needs no order with the kernel before; the loads still wait.

Ref: PTX ISA, prefetch, griddepcontrol.
"""

from __future__ import annotations

from tiledsl.dtypes import int32
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.graph import clone_op
from tiledsl.ir.graph import clone_region
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import program
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import While
from tiledsl.ir.ops.memory import Load
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory_prefetch import PrefetchBlock
from tiledsl.ir.ops.memory_prefetch import line_of
from tiledsl.ir.ops.pointer import Lanes
from tiledsl.ir.ops.pointer import LoadLanes
from tiledsl.ir.ops.pointer_copy import FetchLanes
from tiledsl.ir.ops.pointer_copy import PrefetchLanes
from tiledsl.ir.ops.role import FirstTile
from tiledsl.ir.types import TileType
from tiledsl.ws.dependent_launch import accessed_bytes
from tiledsl.ws.dependent_launch import end_of_loops
from tiledsl.ws.dependent_launch import last_ctas
from tiledsl.ws.dependent_launch import wait_first
from tiledsl.ws.row_loops import reduces
from tiledsl.ws.short_rows import last_first_load
from tiledsl.ws.slices import scalar_slice
from tiledsl.ws.stay import staying_loop

UNCACHED = ("volatile", "cv")
"""Cache operators of what is read from memory each time."""
SM_BYTES = 32768
"""Bytes that CTAs on an SM ask for; with more, what they gain is less."""
LATE_BYTES = range(8192, 32768)
"""Bytes of whole rows behind whose loads the next kernel may start: what it asks for comes after
them. Behind longer and shorter ones, and those that masks cut, it starts too late for that.
"""
SECOND_PARTS = 2
"""The part of a CTA's second program that is asked for: with more, its first one comes later."""
FULL_REGS = 128
"""Elements of a block that a thread holds, with which nothing that ptxas keeps from the request to
the load has a register: 60 bytes spilled.
"""


def start_early(
    graph: TileGraph,
    region: Region,
    num_sms: int,
    blocks: int,
    *,
    stays: bool,
    has_short_rows: bool,
    has_full_rows: bool,
    is_sparse: bool,
) -> None:
    """Lets a kernel start while the one before ends: what stands in front of a role's body.

    blocks: CTAs on an SM. stays: whether they run program after program. has_short_rows: whether
    the next kernel may start only behind the first loads (`last_first_load`); has_full_rows:
    whether it may where these take a while. is_sparse: whether it may only behind the last loop:
    CTAs that wait keep others from SMs, which then share fewer.
    """
    last = 0 if stays else last_ctas(region, num_sms, blocks)
    after = last_first_load(region)
    if not has_short_rows and not (has_full_rows and _takes_a_while(region, after)):
        after = None
    if is_sparse and (loop_end := end_of_loops(region)) is not None:
        last, after = 0, loop_end
    wait_first(graph, region, last, after)
    prefetch_first_loads(graph, region, num_sms, blocks)
    if (loop := staying_loop(region)) is not None:
        prefetch_second_loads(graph, region, loop)


def _takes_a_while(region: Region, last: Op | None) -> bool:
    """Whether the loads up to the last first one wait for no other, and move LATE_BYTES."""
    if last is None:
        return False
    before = region.ops[: region.ops.index(last) + 1]
    if any(isinstance(op, For | While) for op in before):
        return False
    loads = [op for op in before if isinstance(op, LoadLanes)]
    are_alone = all(scalar_slice(region, op.inputs) is not None for op in loads)
    return are_alone and sum(map(accessed_bytes, loads)) in LATE_BYTES


def prefetch_first_loads(graph: TileGraph, region: Region, num_sms: int, blocks: int) -> int:
    """Adds prefetches to the beginning of a role's body; returns how many.

    blocks: CTAs on an SM, of which the first ones ask: when the last ones come, the kernel before
    has ended. Only loads whose
    addresses follow from arguments and the program's numbers are fetched; what all programs load
    from one place is in L2 anyway. Programs that walk over rows start once: there it made no
    difference (docs/performance.md).
    """
    if any(reduces(loop) for loop in graph.find(For)):
        return 0
    if graph.find(mma.Dot):
        return 0
    loads = [op for op in region.ops if isinstance(op, LoadLanes | FetchLanes | Load)]
    found = [(op, s) for op in loads if (s := _slice(region, op)) is not None]
    num_bytes = sum(accessed_bytes(op) for op, _ in found)
    programs = num_sms * max(1, min(blocks, SM_BYTES // max(1, num_bytes)))
    b = Builder(graph, region, 0)
    values: dict[Value, Value] = {}
    is_first: Value | None = None
    for access, needed in found:
        for op in needed:
            if op.results[0] not in values:
                b.add(clone_op(op, values))
        if isinstance(access, FetchLanes):
            when = values.get(access.when, access.when) if access.when is not None else None
        else:
            is_first = is_first or _is_among(b, graph, programs)
            when = is_first
        b.add(_prefetch(access, values, when))
    return len(found)


def prefetch_second_loads(graph: TileGraph, region: Region, loop: While) -> int:
    """Adds prefetches of what a CTA that stays copies next, behind its first copies.

    These find their rows in L2, and until they have been read memory would be idle. Not of rows at
    odd addresses, whose loops need all registers. Returns how many were added.
    """
    following = loop.init[1]
    copies = [op for op in region.ops if isinstance(op, FetchLanes) and not _is_off(op)]
    found = [(op, s) for op in copies if (s := _slice(region, op)) is not None]
    if not found:
        return 0
    known = following.defining_op
    assert known is not None
    after = max([found[-1][0], known], key=region.ops.index)
    b = Builder(graph, region, region.ops.index(after) + 1, after.loc)
    values: dict[Value, Value] = {}
    for access, needed in found:
        for op in needed:
            if isinstance(op, FirstTile):
                values[op.result] = following
            elif op.results[0] not in values:
                b.add(clone_op(op, values))
        assert access.when is not None
        b.add(_prefetch(access, values, values[access.when], SECOND_PARTS))
    return len(found)


def _is_off(op: FetchLanes) -> bool:
    """Whether a thread's vectors lie at odd addresses."""
    return bool(op.shifted or op.turned or op.segment)


def _is_among(b: Builder, graph: TileGraph, programs: int) -> Value:
    """Whether a program is one of the first so many, as the grid is numbered."""
    ids: list[program.ProgramId] = graph.find(program.ProgramId)
    last = max((op.axis for op in ids), default=0)
    number = b.value(program.ProgramId(last))
    for axis in reversed(range(last)):
        before = b.value(ew.Mul(number, b.value(program.NumPrograms(axis))))
        number = b.value(ew.Add(before, b.value(program.ProgramId(axis))))
    return b.value(ew.Compare("lt", number, b.value(ew.Constant(programs, int32))), "first")


def _slice(region: Region, op: LoadLanes | FetchLanes | Load) -> tuple[Op, ...] | None:
    """The ops behind a load of the program's own, or None."""
    if isinstance(op, Load):
        inner = tensor_type(op.tensor, "load").inner_dim
        is_argument = op.tensor.defining_op is None
        if op.part or op.streamed or not is_argument or line_of(inner, op.block_shape) is None:
            return None
        type_ = op.result.type
        assert isinstance(type_, TileType)
        assert type_.layout is not None
        if type_.layout.num_regs >= FULL_REGS:
            return None
        own = scalar_slice(region, op.offsets)
        return own if any(isinstance(o, program.ProgramId) for o in own or ()) else None
    if isinstance(op, LoadLanes) and (op.slot is not None or op.hint in UNCACHED):
        return None
    when = op.when if isinstance(op, FetchLanes) else None
    own = scalar_slice(region, op.inputs)
    needed = scalar_slice(region, op.inputs if when is None else (*op.inputs, when))
    if own is None or not any(isinstance(o, program.ProgramId | FirstTile) for o in own):
        return None
    return needed


def _prefetch(
    access: Lanes | Load, values: dict[Value, Value], when: Value | None, parts: int = 1
) -> Op:
    """parts: the first of so many parts is asked for, where a thread has as many vectors."""
    if isinstance(access, Load):
        offsets = tuple(values.get(v, v) for v in access.offsets)
        return PrefetchBlock(
            access.tensor, offsets, when, block_shape=access.block_shape, loc=access.loc
        )
    inner = dict(values)
    body = clone_region(access.regions[0], inner)
    kept = {
        k: v
        for k, v in access.attributes.items()
        if k not in ("hint", "waits", "pending", "num_threads", "filled_slot", "segment")
    }
    inputs = tuple(values.get(v, v) for v in access.inputs)
    parts = (
        parts if access.layout.num_regs % (parts * max(access.width, access.repeats)) == 0 else 1
    )
    return PrefetchLanes(inputs=inputs, when=when, parts=parts, body=body, loc=access.loc, **kept)
