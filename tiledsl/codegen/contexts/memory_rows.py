"""Stores by rows: an exchange through shared memory, and pieces of rows out of it.

Rows that are stored by whole sectors are put into shared memory as they are aligned in the tensor
(`SectorPlaces` of templates/include/tiledsl/rows.cuh).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.combining import sync_text
from tiledsl.codegen.contexts.exchange import coordinate_parts
from tiledsl.codegen.contexts.exchange import get_registers
from tiledsl.codegen.contexts.exchange import inside_tile
from tiledsl.codegen.contexts.exchange import loop_text
from tiledsl.codegen.contexts.exchange import put_tile
from tiledsl.codegen.contexts.exchange import scratch_of
from tiledsl.codegen.contexts.exchange import sums_of
from tiledsl.codegen.contexts.exchange import thread_index
from tiledsl.codegen.contexts.memory import access_of
from tiledsl.codegen.contexts.memory import block_of
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.cpp import indent
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import emits
from tiledsl.ir.op import Value
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory_prefetch import PrefetchBlock
from tiledsl.ir.ops.memory_prefetch import line_of
from tiledsl.ir.ops.memory_rows import StoreRows
from tiledsl.ir.ops.memory_rows import StoreSectors
from tiledsl.ir.ops.tile import tile_type

Rows = StoreRows | StoreSectors | PrefetchBlock


@dataclass(frozen=True)
class RowsContext:
    """guard, sync: barriers. puts: a loop into shared memory.

    vectors_ok: whether vectors are aligned, so that registers are stored. rows: what is done else.
    """

    guard: str
    puts: str
    sync: str
    vectors_ok: str
    from_registers: str
    rows: str


@emits("memory.store_rows")
def store_rows(op: StoreRows, e: Emission) -> RowsContext:
    """`store_rows<bf16, 128, 64, 256, BlockStore>(scratch_1, ..., [&](int i) { ... });`."""
    source = tile_type(op.value, "store_rows")
    type_, scratch = source.with_layout(op.layout), scratch_of(op, e)
    name, sync = e.names.fresh("x"), sync_text(e, op.barrier)
    puts = put_tile(e, op.value, scratch, source.shape)
    gets = get_registers(e, type_, name, scratch)
    block = block_of(op.tensor, op.offsets, op.block_shape, op.squeeze, type_, e)
    access = access_of(block, e, name, other="", pins="", is_store=True)
    store = f"store_vector<{access.width}>({name}, i, {access.at}, {access.inside});"
    lines = [
        f"{e.tile_declaration(type_, name)};",
        gets,
        loop_text(access.count, access.width, store),
    ]
    return RowsContext(
        sync if op.guarded else "",
        puts,
        sync,
        access.vectors_ok or "true",
        indent("\n".join(lines)),
        indent(_rows(op, scratch, e)),
    )


@dataclass(frozen=True)
class SectorsContext:
    """guard, sync: barriers. row, place: what rows and places in shared memory are found by.

    puts, puts_more: loops into shared memory. stores: the call behind.
    """

    row: str
    place: str
    guard: str
    puts: str
    puts_more: str
    sync: str
    stores: str


@emits("memory.store_sectors")
def store_sectors(op: StoreSectors, e: Emission) -> SectorsContext:
    """`store_sectors<bf16, 64, 128, 16, 256, BlockStore>(place_1, ..., head, more, line_1);`."""
    scratch, sync = scratch_of(op, e), sync_text(e, op.barrier)
    rows, line = tile_type(op.value, "store_sectors"), _line(op)
    more = tile_type(op.more, "store_sectors").shape[1]
    row, place = e.names.fresh("line"), e.names.fresh("place")
    program, programs = e.atom(op.program), e.atom(op.programs)
    element, cols = memory_type(rows.dtype), rows.shape[1]
    form = f"{element}, {op.block_shape[line]}, {cols}, {more}, {_threads(e)}, BlockStore"
    return SectorsContext(
        f"const auto {row} = {_row(op, line, e)};",
        f"const SectorPlaces<{element}, {cols + more}> {place}({scratch}, {row});",
        sync if op.guarded else "",
        _put_rows(e, op.value, place, 0),
        _put_rows(e, op.more, place, cols),
        sync,
        f"store_sectors<{form}>({place}, {thread_index(e)}, {_ends(op, e)},\n"
        f"    {program} == 0, {program} + 1 < {programs}, {row});",
    )


@dataclass(frozen=True)
class PrefetchContext:
    """A call, and when it is made."""

    when: str
    call: str


@emits("memory.prefetch_block")
def prefetch_block(op: PrefetchBlock, e: Emission) -> PrefetchContext:
    """`if (first_1) prefetch_block<bf16, 128, 64, 256>(thread, from, to, [&](int i) { ... });`."""
    t, line = tensor_type(op.tensor, "prefetch_block"), _line(op)
    assert t.inner_dim is not None
    form = f"{memory_type(t.dtype)}, {op.block_shape[line]}, {op.block_shape[t.inner_dim]}"
    call = f"prefetch_block<{form}, {_threads(e)}>({thread_index(e)}, {_ends(op, e)},"
    when = "true" if op.when is None else e.text(op.when)
    return PrefetchContext(when, f"{call}\n    {_row(op, line, e)});")


def _put_rows(e: Emission, value: Value, place: str, first: int) -> str:
    """Writes a matrix into shared memory element by element, from column `first` on."""
    type_ = tile_type(value, "store_sectors")
    layout = e.layout(type_)
    (row, r), (col, c) = coordinate_parts(e, type_)
    inside = inside_tile(e, type_, sums_of(((row, r), (col, c))), once=True)
    c = add(c, str(first)) if first else c
    at = f"{place}({', '.join(part or '0' for part in (row, col, r, c))})"
    form = f"1, {memory_type(type_.dtype)}"
    statement = f"write_shared<{form}>({e.text(value)}, i, {at}, {' && '.join(inside) or 'true'});"
    return loop_text(layout.num_regs, 1, statement)


def _line(op: Rows) -> int:
    """The dimension of the tensor that the rows of a tile are counted along."""
    line = line_of(tensor_type(op.tensor, "store").inner_dim, op.block_shape)
    assert line is not None
    return line


def _threads(e: Emission) -> int:
    return min(32 * e.place.num_warps, e.num_threads)


def _ends(op: Rows, e: Emission) -> str:
    """The columns of a tile that the tensor begins and ends with."""
    inner = tensor_type(op.tensor, "store").inner_dim
    assert inner is not None
    start = e.atom(op.offsets[inner])
    return f"-(i64){start}, {e.params.shape(op.tensor, inner)} - {start}"


def _row(op: Rows, line: int, e: Emission) -> str:
    """A function of a row's number: where it begins, and whether it is there."""
    t = tensor_type(op.tensor, "store")
    places: list[str] = []
    inside: list[str] = []
    for d, offset in enumerate(op.offsets):
        at = e.atom(offset)
        at = add("" if at == "0" else at, "i") if d == line else at
        if d != t.inner_dim:
            places.append(f"({at}) * {e.params.stride(op.tensor, d)}")
            inside.append(f"inside({at}, {e.params.shape(op.tensor, d)})")
    assert t.inner_dim is not None
    start = e.atom(op.offsets[t.inner_dim])
    at = " + ".join([*places, *([start] if start != "0" else [])])
    lane = f"{e.params.pointer(op.tensor)} + ({at}), {' && '.join(inside)}"
    return f"[&](int i) {{ return MaskedLane<{memory_type(t.dtype)}>{{{lane}}}; }}"


def _rows(op: StoreRows, scratch: str, e: Emission) -> str:
    """The call that stores rows at any address."""
    t, line = tensor_type(op.tensor, "store_rows"), _line(op)
    assert t.inner_dim is not None
    form = f"{memory_type(t.dtype)}, {op.block_shape[line]}, {op.block_shape[t.inner_dim]}"
    first = f"{scratch}, {thread_index(e)}, {_ends(op, e)}"
    return f"store_rows<{form}, {_threads(e)}, BlockStore>({first},\n    {_row(op, line, e)});"
