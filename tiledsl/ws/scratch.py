"""Shared memory for ops by which the threads of a role exchange data: reductions, scans, sorts.

An op asks through `scratch_bytes()` once its operands have layouts; it gets a buffer of its own, or
one that it shares, one part for each instance of the role, the role's named barriers, and whether a
barrier has to precede its writes because what lies there may still be read.
"""

from __future__ import annotations

from typing import Any
from typing import cast

from tiledsl.dtypes import uint8
from tiledsl.errors import ScheduleError
from tiledsl.ir.builder import Builder
from tiledsl.ir.extents import tile_shapes
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import smem
from tiledsl.ir.ops.role import Role
from tiledsl.ir.ops.role import WarpgroupIndex
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType
from tiledsl.ws.budget import SmemPlan
from tiledsl.ws.scratch_in_rings import behind_rings

ALIGN_BYTES = 128
POOL_ALIGN_BYTES = 1024
SMALL_BYTES = 1024
OWN_BYTES = 32768
"""Ops that need no more than SMALL_BYTES have shared memory of their own, the smallest first and up
to OWN_BYTES for all of them; the others share one buffer.
"""


def assign_scratch(
    graph: TileGraph,
    role: Role,
    plan: SmemPlan,
    top: Builder,
    barrier: int = 0,
    rings: tuple[int, int] = (0, 0),
) -> None:
    """Gives every op of a role that asks for it its shared memory.

    top: where buffers are made. barrier: the first named barrier of the role's instances, 0 where
    the role is the whole CTA. rings: start and end of memory that is free behind all loops.
    """
    for op in _in_rings(role, *rings):
        _assign(graph, role, op, top, rings[0], barrier, guarded=False)
    small, large = _parted(role)
    guarded = [
        _may_run_again(graph, op) and _is_alone(op, small) and getattr(op, "barriers", None) is None
        for op in small
    ]
    for op, guard in zip(small, guarded, strict=True):
        at = plan.take(
            f"{op.opcode.rpartition('.')[2]} scratch",
            padded_bytes(op) * role.instances,
            align=ALIGN_BYTES,
            detail=op.loc.short if op.loc else "",
            shapes=tile_shapes(*op.operands),
        )
        _assign(graph, role, op, top, at, barrier, guarded=guard)
    if large:
        biggest = max(large, key=padded_bytes)
        at = plan.take(
            "exchange between threads",
            padded_bytes(biggest) * role.instances,
            align=POOL_ALIGN_BYTES,
            detail=f"shared by {len(large)} ops; {biggest.opcode.rpartition('.')[2]} needs all",
            hint="fewer changes of layout",
            shapes=tile_shapes(*biggest.operands),
        )
        for i, op in enumerate(large):
            again = len(large) > 1 and i > 0
            _assign(graph, role, op, top, at, barrier, guarded=again or _may_run_again(graph, op))


def refuse_cooperation(role: Role) -> None:
    """A single thread cannot exchange data with others, and threads that copy do not wait for that.

    Raises:
        ScheduleError: an op of the role would wait for threads that do not run it.
    """
    for op in role.body.walk():
        if not hasattr(op, "scratch_bytes"):
            continue
        on_tiles = any(isinstance(v.type, TileType) for v in (*op.operands, *op.results))
        if (on_tiles and role.single_thread) or requested_bytes(op):
            name = op.opcode.rpartition(".")[2]
            raise ScheduleError(f"the addresses of loads depend on a {name} of a tile", op.loc)


def _in_rings(role: Role, start: int, end: int) -> list[Op]:
    """Ops for which the memory of rings has room when these are not used any more."""
    fitting = behind_rings(role, end) if end > start and role.instances == 1 else []
    return [op for op in fitting if 0 < padded_bytes(op) <= end - start]


def scratch_bytes(role: Role, ring_bytes: int = 0) -> int:
    """Bytes that `assign_scratch` will take for a role, alignment included.

    ring_bytes: of memory that is free behind all loops.
    """
    free = set(_in_rings(role, 0, ring_bytes))
    small, large = ([op for op in ops if op not in free] for ops in _parted(role))
    shared = max(map(padded_bytes, large), default=0)
    slack = POOL_ALIGN_BYTES if small or large else 0
    return role.instances * (sum(map(padded_bytes, small)) + shared) + slack


def _parted(role: Role) -> tuple[list[Op], list[Op]]:
    """Ops with memory of their own, and those that share, both in program order.

    What has no barriers does not share.
    """
    wanting = [op for op in role.body.walk() if requested_bytes(op) and not _has_scratch(op)]
    own = set(filter(_has_no_barrier, wanting))
    left = OWN_BYTES // role.instances
    for op in sorted((op for op in wanting if op not in own), key=requested_bytes):
        left -= padded_bytes(op)
        if left < 0 or requested_bytes(op) > SMALL_BYTES:
            break
        own.add(op)
    return [op for op in wanting if op in own], [op for op in wanting if op not in own]


def padded_bytes(op: Op) -> int:
    """Bytes that an op gets: a multiple of the alignment."""
    return -(-requested_bytes(op) // ALIGN_BYTES) * ALIGN_BYTES


def requested_bytes(op: Op) -> int:
    """Bytes of shared memory that an op needs for itself."""
    ask = getattr(op, "scratch_bytes", None)
    return cast("int", ask()) if ask is not None else 0


def _may_run_again(graph: TileGraph, op: Op) -> bool:
    return any(around.is_loop for around in graph.enclosing(op))


def _is_alone(op: Op, wanting: list[Op]) -> bool:
    """Whether no barrier of another op certainly separates two runs of the op.

    Another op of the same block runs between two runs of this one, and its barrier comes after all
    threads have read what this one wrote.
    """
    return not any(
        other is not op and other.parent is op.parent and not _has_no_barrier(other)
        for other in wanting
    )


def _has_scratch(op: Op) -> bool:
    return getattr(op, "scratch", None) is not None


def _has_no_barrier(op: Op) -> bool:
    """Whether each warp exchanges data in memory of its own."""
    return getattr(op, "is_within_warps", False)


def _assign(
    graph: TileGraph, role: Role, op: Op, top: Builder, at: int, barrier: int, *, guarded: bool
) -> None:
    num_bytes = padded_bytes(op)
    type_ = SmemType((num_bytes,), uint8, 0, 0)
    buffer = top.value(smem.Buffer(type_, role.instances, at, loc=op.loc), "scratch")
    if role.instances > 1:
        buffer = _instance_part(graph, role, op, buffer)
    changes: dict[str, Any] = {"scratch": buffer, "barrier": barrier, "guarded": guarded}
    new = op.rebuild({}, op.regions, **changes)
    for old, value in zip(op.results, new.results, strict=True):
        value.type = old.type
    graph.supersede(op, new, dict(zip(op.results, new.results, strict=True)))


def _instance_part(graph: TileGraph, role: Role, op: Op, buffer: Value) -> Value:
    """The part of the buffer that belongs to the executing instance (one warpgroup each)."""
    assert op.parent is not None
    b = Builder(graph, op.parent, op.parent.ops.index(op), op.loc)
    index = b.value(WarpgroupIndex(), "warpgroup")
    del role
    return b.value(smem.Slot(buffer, None, index, 1), "scratch")
