"""Sorts: keys into shared memory, a bitonic network, values back."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.combining import sync_text
from tiledsl.codegen.contexts.exchange import clamped_coordinates
from tiledsl.codegen.contexts.exchange import coordinates
from tiledsl.codegen.contexts.exchange import flat_index
from tiledsl.codegen.contexts.exchange import inside_tile
from tiledsl.codegen.contexts.exchange import loop_text
from tiledsl.codegen.contexts.exchange import scratch_of
from tiledsl.codegen.contexts.exchange import thread_index
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import emits
from tiledsl.ir.ops import sort as ops
from tiledsl.ir.ops.tile import tile_type

MOST_KEPT = 16
"""Keys of 64 bits that a lane keeps in registers, beside as many that it compares them with."""


@dataclass(frozen=True)
class SortContext:
    """guard, sync: barriers. keys: their type's traits. row, first: of keys, in a row and run.

    variant: "few" where the first few keys of rows are found without sorting the rest; then `first`
    is how many, and `parts` are the warps that share a row.
    """

    guard: str
    puts: str
    pad: str
    keys: str
    row: int
    first: int
    scratch: str
    rows: int
    thread: str
    threads: int
    sync: str
    gets: str
    parts: int
    variant: str


@emits("sort.sort")
def sort(op: ops.Sort, e: Emission) -> SortContext | None:
    """`sort_rows<Keys<float, false>::Key, 1024, 2>(scratch_1, 4, ...)`."""
    if not e.users(op.result):
        return None
    source, type_ = tile_type(op.a, "sort"), tile_type(op.result, "sort")
    scratch, name = scratch_of(op, e), e.name(op.result, "x")
    keys = f"Keys<{memory_type(source.dtype)}, {'true' if op.descending else 'false'}>"
    shape = (*source.shape[:-1], op.row)
    coords = coordinates(e, source)
    inside = " && ".join(inside_tile(e, source, coords, once=True)) or "true"
    at, raw = flat_index(coords, shape), f"get_raw({e.text(op.a)}, i)"
    put = f"{keys}::put({scratch}, {at}, {raw}, {inside});"
    out = flat_index(clamped_coordinates(e, type_), shape)
    get = f"put_raw({name}, i, {keys}::get({scratch}, {out}));"
    n, rows = source.shape[-1], source.num_elements // source.shape[-1]
    threads = min(32 * e.place.num_warps, e.num_threads)
    thread = thread_index(e)
    pad = f"pad_rows<{keys}::Key, {op.row}>({scratch}, {rows}, {n}, {thread}, {threads});"
    sync = sync_text(e, op.barrier)
    few = _few(op)
    first = few or (op.row if op.merge else 2)
    return SortContext(
        sync if op.guarded else "",
        loop_text(e.layout(source).num_regs, 1, put),
        pad if op.row > n else "",
        keys,
        op.row,
        first,
        scratch,
        rows,
        thread,
        threads,
        sync,
        loop_text(e.layout(type_).num_regs, 1, get),
        _parts(op.row // max(1, few), rows, threads // 32),
        "few" if few else "",
    )


def _few(op: ops.Sort) -> int:
    """Keys that a lane keeps where few of a row are wanted, a power of two; else 0."""
    kept = 1 << (op.count - 1).bit_length()
    return 0 if op.merge or kept > MOST_KEPT or 2 * kept > op.row else kept


def _parts(runs: int, rows: int, warps: int) -> int:
    """Warps that share a row of so many runs of what a lane keeps: those that have no row else."""
    parts = 1
    while 2 * parts * rows <= warps and 2 * parts <= runs:
        parts *= 2
    return parts
