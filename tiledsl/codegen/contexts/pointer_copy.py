"""Copies from global to shared memory that threads start and wait for later."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tiledsl.codegen.contexts.pointer import enter_lanes
from tiledsl.codegen.contexts.pointer import fetch_stride
from tiledsl.codegen.contexts.pointer import mask_kind
from tiledsl.codegen.contexts.pointer import own_place
from tiledsl.codegen.contexts.pointer import shifted_kinds
from tiledsl.codegen.contexts.pointer import yield_lanes
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.contexts.tile import dim_name
from tiledsl.codegen.contexts.tile import thread_coordinate
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.indexing import registers_inside
from tiledsl.codegen.indexing import replica_conditions
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import enters
from tiledsl.codegen.registry import yields_to
from tiledsl.ir.layout import Layout
from tiledsl.ir.ops import pointer_copy as ops
from tiledsl.ir.ops.smem import smem_type
from tiledsl.ir.types import TileType

COPIES_AT_ONCE = 8
_LANES = ("pointer.copy_lanes", "pointer.fetch_lanes", "pointer.prefetch_lanes")
enters(*_LANES)(enter_lanes)
yields_to(*_LANES)(yield_lanes)


@dataclass(frozen=True)
class CopyContext:
    """A loop over vectors of `width` elements.

    at: the function of their addresses. call: the copy of one. line, byte: where register `i` goes
    in the slot. only: the registers and threads that have something to copy. unroll: iterations.
    """

    at: str
    body: str
    count: int
    width: int
    call: str
    slot: str
    place: str
    line: str
    byte: str
    only: str
    unroll: str = ""


@dataclass(frozen=True)
class WaitContext:
    """pending: groups that may still be on their way."""

    pending: int


@dataclass(frozen=True)
class NoContext:
    """A statement without operands."""


@emits("pointer.copy_lanes")
def copy_lanes(op: ops.CopyLanes, e: Emission, body: str) -> CopyContext:
    """`copy_lane<8>(slot_1 + smem_at<128, 64, 128>(line, byte), at_1(i));`."""
    e.accesses.has_copies = True
    memory = smem_type(op.slot, "copy")
    coords = [
        add(
            thread_coordinate(e, op.layout, dim, dim_name(dim, len(op.shape))),
            register_part(op.layout, dim),
        )
        for dim in range(len(op.shape))
    ]
    major = memory.major
    line = ""
    for dim, extent in enumerate(memory.shape):
        if dim != major:
            line = f"({line}) * {extent} + {coords[dim]}" if line and line != "0" else coords[dim]
    size = memory.dtype.bytes
    extent = memory.shape[major]
    at = e.names.fresh("at")
    whole, part = f"copy_lane<{op.width}>(to, {at}(i))", f"copy_partial<{op.width}>(to, i, {at})"
    place = f"{memory.swizzle_bytes}, {prod(memory.shape) // extent}, {extent * size}"
    return CopyContext(
        at,
        body,
        op.layout.num_regs,
        op.width,
        whole if op.whole else part,
        e.text(op.slot),
        place,
        line or "0",
        coords[major] if size == 1 else f"({coords[major]}) * {size}",
        _only(op.layout, op.shape, coords, e),
        _unrolled(op, e),
    )


def _unrolled(op: ops.CopyLanes, e: Emission) -> str:
    """How many copies of a load role are made at once: the compiler keeps all their addresses."""
    many = op.layout.num_regs // op.width > COPIES_AT_ONCE
    held = any(isinstance(v.type, TileType) for v in op.inputs)
    return f" {COPIES_AT_ONCE // 2}" if e.place.copies and many and not held else ""


def _only(layout: Layout, shape: tuple[int, ...], coords: list[str], e: Emission) -> str:
    """What keeps out registers beyond the tile, and threads that hold copies."""
    conditions = [e.use_in(c) for c in replica_conditions(layout, e.place.num_warps)]
    kept, sure = registers_inside(layout, (0,) * len(shape), shape, own=False)
    if kept != "true":
        conditions.insert(0, kept)
    if not sure:
        padded = layout.padded_shape
        beyond = [d for d in range(len(shape)) if padded[d] != shape[d]]
        conditions += [f"inside({coords[d]}, {shape[d]})" for d in beyond]
    return " && ".join(conditions) or "true"


@dataclass(frozen=True)
class FetchContext:
    """Copies of a thread for itself, where `when` holds. at: the function of their addresses."""

    when: str
    at: str
    body: str
    call: str


@emits("pointer.fetch_lanes")
def fetch_lanes(op: ops.FetchLanes, e: Emission, body: str) -> FetchContext:
    """`fetch_lanes<32, 8, 8192, ByEnds>(ring_1 + threadIdx.x * 16, at_1);`."""
    e.accesses.has_copies = True
    at, own = e.names.fresh("at"), own_place(op, op.slot, e)
    form = f"{op.layout.num_regs}, {op.width}, {fetch_stride(op, op.num_threads)}"
    call = f"fetch_lanes<{form}, {mask_kind(op)}>({own}, {at});"
    when = "true" if op.when is None else e.text(op.when)
    if op.segment:
        vector = op.width * op.dtype.bytes
        count = op.layout.num_regs if op.segment == "main" else op.width
        form = f"{count}, {op.width}, {32 * vector}, {mask_kind(op)}, {e.accesses.load(op.hint)}"
        if op.segment == "main":
            own = f"{own} + {ops.LINE_BYTES}"
        else:
            when = f"{when} && lane_id() < {ops.LINE_BYTES // vector}"
        call = f"fetch_filled<{form}>({own}, {at});"
    elif op.filled_slot:
        policy = e.accesses.load(op.hint)
        call = f"fetch_filled<{form}, {mask_kind(op)}, {policy}>({own}, {at});"
    elif op.shifted:
        call = f"fetch_shifted<{form}, {shifted_kinds(op)}>({own}, {at});"
    return FetchContext(when, at, body, call)


@emits("pointer.prefetch_lanes")
def prefetch_lanes(op: ops.PrefetchLanes, e: Emission, body: str) -> FetchContext:
    """`prefetch_lanes<32, 8, ByEnds>(at_1);`."""
    at = e.names.fresh("at")
    step = max(op.width, op.repeats)
    call = f"prefetch_lanes<{op.layout.num_regs // op.parts}, {step}, {mask_kind(op)}>({at});"
    return FetchContext("true" if op.when is None else e.text(op.when), at, body, call)


@emits("pointer.copy_commit")
def copy_commit(op: ops.CopyCommit, e: Emission) -> NoContext:
    """`cp_async_commit();`."""
    del op, e
    return NoContext()


@emits("pointer.copy_wait")
def copy_wait(op: ops.CopyWait, e: Emission) -> WaitContext:
    """`cp_async_wait<2>();`."""
    del e
    return WaitContext(op.pending)
