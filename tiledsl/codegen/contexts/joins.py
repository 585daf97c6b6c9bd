"""Joins and splits of register tiles, whose elements stay with their threads."""

from __future__ import annotations

from tiledsl.codegen.contexts.exchange import loop_text
from tiledsl.codegen.contexts.tile import MapContext
from tiledsl.codegen.contexts.tile import register_index
from tiledsl.codegen.cpp import indent
from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.registry import emits
from tiledsl.errors import CodegenError
from tiledsl.ir.ops import tile_moves as ops
from tiledsl.ir.ops.tile import tile_type


@emits("tile.join")
def join(op: ops.Join, e: Emission) -> MapContext:
    """Registers of two tiles by turns."""
    type_ = tile_type(op.result, "join")
    layout, name = e.layout(type_), e.name(op.result, "x")
    follows = tuple(range(type_.rank - 1))
    index = register_index(e, layout, op.a, follows)
    second = register_part(layout, type_.rank - 1) or "0"
    a, b = (f"get_raw({e.text(v)}, {index})" for v in (op.a, op.b))
    body = indent(f"put_raw({name}, i, {second} ? {b} : {a});")
    return MapContext("", layout.num_regs, body)


@emits("tile.split")
def split(op: ops.Split, e: Emission) -> MapContext | None:
    """The registers with coordinate 0, and those with coordinate 1."""
    source = tile_type(op.a, "split")
    last = source.rank - 1
    pair = next((d for d in e.layout(source).dims[last] if d.size == 2), None)
    if pair is None:
        raise CodegenError("split: the last axis does not lie in registers")
    lines: list[str] = []
    layout = None
    for n, result in enumerate(op.results):
        if not e.users(result):
            continue
        layout = e.layout(tile_type(result, "split"))
        index = register_index(e, layout, op.a, (*range(last), None))
        shift = f" + {pair.stride}" if n else ""
        source_text = f"get_raw({e.text(op.a)}, {index}{shift})"
        lines.append(f"put_raw({e.name(result, 'x')}, i, {source_text});")
    if layout is None:
        return None
    return MapContext("", layout.num_regs, indent("\n".join(lines)))


@emits("tile.stack")
def stack(op: ops.Stack, e: Emission) -> MapContext:
    """The registers of one tile after the other."""
    type_ = tile_type(op.result, "stack")
    name, count = e.name(op.result, "x"), e.layout(type_).num_regs // len(op.parts)
    lines = [
        f"put_raw({name}, {f'{n * count} + i' if n else 'i'}, get_raw({e.text(v)}, i));"
        for n, v in enumerate(op.parts)
    ]
    if is_packed(type_.dtype):  # elements of packed tiles are put in ascending order
        loops = [loop_text(count, 1, line) for line in lines]
        return MapContext("\n".join(loops), 0, "")
    return MapContext("", count, indent("\n".join(lines)))


@emits("tile.unstack")
def unstack(op: ops.Unstack, e: Emission) -> MapContext | None:
    """The registers of one tile after the other."""
    source = e.layout(tile_type(op.a, "unstack"))
    used = [(n, r) for n, r in enumerate(op.results) if e.users(r)]
    if not used:
        return None
    first = next((d for d in source.dims[0] if d.size > 1), None)
    stride = first.stride if first is not None else 0
    layout = e.layout(tile_type(used[0][1], "unstack"))
    lines: list[str] = []
    pins: list[str] = []
    for n, result in used:
        index = register_index(e, layout, op.a, (None, *range(layout.rank)))
        shift = f" + {n * stride}" if n * stride else ""
        lines.append(f"put_raw({e.name(result, 'x')}, i, get_raw({e.text(op.a)}, {index}{shift}));")
        if e.is_accumulator(result):
            pins.append(f"keep({e.name(result)});")
    return MapContext("", layout.num_regs, indent("\n".join(lines)), "\n".join(pins))
