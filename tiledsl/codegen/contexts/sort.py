"""Sorts: keys into shared memory, a bitonic network, values back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

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
from tiledsl.codegen.indexing import term_sum
from tiledsl.codegen.registry import emits
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.layout_moves import is_padded
from tiledsl.ir.ops import sort as ops
from tiledsl.ir.ops.tile import tile_type

MOST_HELD = 4
"""Rows of a warp for which what finds the first few is repeated."""
MOST_KEPT = 16
"""Keys of 64 bits that a lane keeps in registers, beside as many that it compares them with."""


@dataclass(frozen=True)
class SortContext:
    """guard, sync: barriers. keys: their type's traits. row, first: of keys, in a row and run.

    variant: "few" where the first few keys of rows are found without sorting the rest; then `first`
    is how many, and `parts` are the warps that share a row. "held" where moreover each warp holds
    parts of rows: `held` says how many registers of how many rows, `raw` is one, and `part` the
    number of part r of a warp among all parts.
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
    held: str
    raw: str
    part: str
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
    few, held = _few(op), held_rows(e.layout(source), source.shape, op.row)
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
        held.parts if held else _parts(op.row // max(1, few), rows, threads // 32),
        f"{held.regs}, {held.rows}" if held else "",
        raw,
        held.part if held else "",
        "held" if few and held else "few" if few else "",
    )


def _few(op: ops.Sort) -> int:
    """Keys that a lane keeps where few of a row are wanted, a power of two; else 0."""
    kept = 1 << (op.count - 1).bit_length()
    return 0 if op.merge or kept > MOST_KEPT or 2 * kept > op.row else kept


@dataclass(frozen=True)
class Held:
    """What each warp holds of rows: `regs` registers of each of `rows`, which `parts` warps share.

    part: the number of its part r; those of a row follow each other.
    """

    regs: int
    rows: int
    parts: int
    part: str


def held_rows(layout: Layout, shape: tuple[int, ...], row: int) -> Held | None:
    """Where all lanes of a warp hold elements of the same few rows, and none holds copies."""
    *outer, last = [[d for d in digits if d.size > 1] for digits in layout.dims]
    if layout.has_replicas or is_padded(layout, shape) or shape[-1] != row:
        return None
    regs = prod(d.size for d in last if d.unit is Unit.REG)
    rows = [d for digits in reversed(outer) for d in digits]
    if any(d.unit is Unit.LANE or (d.unit is Unit.REG and d.stride % regs) for d in rows):
        return None
    parts = weight = prod(d.size for d in last if d.unit is Unit.WARP)
    held = layout.num_regs // regs
    if held > MOST_HELD:
        return None
    own, warps = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    at = 1
    for d in (d for d in last if d.unit is Unit.WARP):
        warps.append((d.stride, d.size, at))
        at *= d.size
    for d in rows:
        if d.unit is Unit.REG:
            own.append((d.stride // regs, d.size, weight))
        else:
            warps.append((d.stride, d.size, weight))
        weight *= d.size
    found = term_sum("warp", warps, layout.num_warps), term_sum("r", own, held)
    return Held(regs, held, parts, " + ".join(filter(None, found)) or "0")


def _parts(runs: int, rows: int, warps: int) -> int:
    """Warps that share a row of so many runs of what a lane keeps: those that have no row else."""
    parts = 1
    while 2 * parts * rows <= warps and 2 * parts <= runs:
        parts *= 2
    return parts
