"""Stores by rows: an exchange through shared memory, and pieces of rows out of it."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.combining import sync_text
from tiledsl.codegen.contexts.exchange import get_registers
from tiledsl.codegen.contexts.exchange import loop_text
from tiledsl.codegen.contexts.exchange import put_tile
from tiledsl.codegen.contexts.exchange import scratch_of
from tiledsl.codegen.contexts.exchange import thread_index
from tiledsl.codegen.contexts.memory import access_of
from tiledsl.codegen.contexts.memory import block_of
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.cpp import indent
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.registry import emits
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory_rows import StoreRows
from tiledsl.ir.ops.tile import tile_type


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


def _rows(op: StoreRows, scratch: str, e: Emission) -> str:
    """The call that stores rows at any address."""
    t = tensor_type(op.tensor, "store_rows")
    inner = t.inner_dim
    assert inner is not None
    (line,) = (d for d in range(t.rank) if d != inner and op.block_shape[d] > 1)
    places: list[str] = []
    inside: list[str] = []
    for d, offset in enumerate(op.offsets):
        at = e.atom(offset)
        at = add("" if at == "0" else at, "i") if d == line else at
        if d != inner:
            places.append(f"({at}) * {e.params.stride(op.tensor, d)}")
            inside.append(f"inside({at}, {e.params.shape(op.tensor, d)})")
    start = e.atom(op.offsets[inner])
    at = " + ".join([*places, *([start] if start != "0" else [])])
    element = memory_type(t.dtype)
    lane = f"{e.params.pointer(op.tensor)} + ({at}), {' && '.join(inside)}"
    form = f"{element}, {op.block_shape[line]}, {op.block_shape[inner]}"
    threads = min(32 * e.place.num_warps, e.num_threads)
    ends = f"-(i64){start}, {e.params.shape(op.tensor, inner)} - {start}"
    return (
        f"store_rows<{form}, {threads}, BlockStore>({scratch}, {thread_index(e)}, {ends},\n"
        f"    [&](int i) {{ return MaskedLane<{element}>{{{lane}}}; }});"
    )
