"""Fused elementwise ops as loops over registers, or over groups that are converted together."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.contexts.pairs import pair_of_scalar
from tiledsl.codegen.contexts.pairs import pair_of_tile
from tiledsl.codegen.contexts.segments import read_segments
from tiledsl.codegen.contexts.segments import whole_of_map
from tiledsl.codegen.contexts.tile import INDEX
from tiledsl.codegen.contexts.tile import MapContext
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.contexts.tile import dim_name
from tiledsl.codegen.contexts.tile import element
from tiledsl.codegen.contexts.tile import register_index
from tiledsl.codegen.contexts.tile import thread_coordinate
from tiledsl.codegen.contexts.widened import widened
from tiledsl.codegen.cpp import indent
from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import Coordinate
from tiledsl.codegen.indexing import index_map
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.indexing import registers_inside
from tiledsl.codegen.registry import Tie
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import enters
from tiledsl.codegen.registry import overwrites
from tiledsl.codegen.registry import reads_at_its_own_place
from tiledsl.codegen.registry import yields_to
from tiledsl.codegen.unrolling import unroll_of
from tiledsl.errors import CodegenError
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import control
from tiledsl.ir.ops import tile as ops
from tiledsl.ir.ops.pointer import Lanes
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import TileType


@dataclass(frozen=True)
class WidenContext:
    """8-bit elements, or bits of them, as 16-bit floats. scale: what multiplies them, or ""."""

    name: str
    value: str
    function: str
    scale: str = ""
    variant: str = "widened"


@dataclass(frozen=True)
class StoresContext:
    """What the body of a map does with the values it yields."""

    copies: str


def map_layout(op: ops.Map) -> Layout:
    """The layout of the iteration space.

    Raises:
        CodegenError: it has none.
    """
    if op.layout is None:
        raise CodegenError("tile.map has no layout")
    return op.layout


def _is_whole_packed(op: ops.Map) -> bool:
    """Whether the only result is packed and its registers fill whole pairs or quads."""
    if len(op.out_dtypes) != 1 or not is_packed(op.out_dtypes[0]):
        return False
    return map_layout(op).num_regs % (4 // op.out_dtypes[0].bytes) == 0


@enters("tile.map")
def enter_map(op: ops.Map, e: Emission) -> None:
    """Binds the body's arguments: elements of the inputs, and coordinates."""
    layout = map_layout(op)
    for result in op.results:
        if e.users(result) or e.is_declared(result):
            e.name(result, "x")
    bind_elements(op, layout, e)


def bind_elements(op: ops.Map | Lanes, layout: Layout, e: Emission) -> None:
    """Binds the arguments of a body that runs over registers `i` of a layout."""
    args = op.regions[0].args
    for n, (arg, value) in enumerate(zip(args, op.inputs, strict=False)):
        if isinstance(value.type, TileType):
            follows = op.follows[n] if n < len(op.follows) else tuple(range(value.type.rank))
            index = register_index(e, layout, value, follows)
            if isinstance(op, ops.Map) and op.pairs:
                e.bind(arg, pair_of_tile(e, value, index, INDEX))
                continue
            e.bind(arg, element(e, value, index))
            if is_packed(value.type.dtype):
                e.raw[arg] = f"get_raw({e.text(value)}, {index})"
        elif isinstance(op, ops.Map) and op.pairs:
            e.bind(arg, pair_of_scalar(e, value))
        else:
            e.bind(arg, e.text(value), atomic=e.atom(value) == e.text(value))
            if value in e.raw:
                e.raw[arg] = e.raw[value]
    for dim, arg in enumerate(args[len(op.inputs) :]):
        if e.users(arg):
            thread = thread_coordinate(e, layout, dim, arg.name or dim_name(dim, layout.rank))
            register = register_part(layout, dim)
            text = add(thread, register)
            e.bind(arg, text, atomic=" " not in text)
            if thread and register:
                e.coordinates[arg] = Coordinate(thread, layout, dim)


@yields_to("tile.map")
def yield_map(op: control.Yield, e: Emission) -> StoresContext | None:
    """Stores into the results, or returns the element that is packed with its neighbours."""
    parent = op.parent.parent if op.parent else None
    assert isinstance(parent, ops.Map)
    if parent.pairs:
        return StoresContext(
            f"{e.name(parent.results[0])}.w[{INDEX} / 2] = {e.text(op.values[0])};"
        )
    if moved := _moved(parent, e):
        return StoresContext(f"put_raw({e.name(parent.results[0])}, {INDEX}, {moved});")
    if _is_whole_packed(parent):
        return StoresContext(f"return {e.text(op.values[0])};")
    lines: list[str] = []
    for result, value in zip(parent.results, op.values, strict=True):
        if not e.users(result):
            continue
        name, packed = e.name(result), is_packed(tile_type(result, "map").dtype)
        text = e.text(value)
        lines.append(f"{name}.set({INDEX}, {text});" if packed else f"{name}[{INDEX}] = {text};")
    return StoresContext("\n".join(lines)) if lines else None


@emits("tile.map")
def map_(op: ops.Map, e: Emission, body: str) -> MapContext | WidenContext | None:
    """The loop."""
    if not any(e.users(r) for r in op.results):
        return None
    count = map_layout(op).num_regs
    for tie in map_ties(op):
        e.in_place(tie)
    pins = "\n".join(f"keep({e.name(r)});" for r in op.results if e.is_accumulator(r))
    if op.unless_one >= 0:
        unless = e.text(op.inputs[op.unless_one])
        return MapContext("", count, indent(body), pins, variant="unless_one", unless=unless)
    if not op.pairs and (made := _widened(op, e)) is not None:
        return made
    tiles = [*op.results, *(v for v in op.inputs if isinstance(v.type, TileType))]
    in_registers = any(e.is_accumulator(v) for v in tiles)  # where wgmma has them
    unroll = "" if in_registers else unroll_of(list(op.regions[0].walk()), count)
    if op.pairs:
        return MapContext("", count, indent(body), pins, variant="pairs")
    if _moved(op, e):
        return MapContext("", count, indent(body), pins, unroll=unroll)
    packs = _is_whole_packed(op)
    word, reads = read_segments(op, e, 4 // op.out_dtypes[0].bytes if packs else 0)
    if word and not packs:
        return MapContext("", count, indent(body), variant="segments", word=word, reads=reads)
    if whole := whole_of_map(op, e):
        return MapContext("", count, indent(body), pins, variant="split", whole=whole)
    if not packs:
        packed = [r for r in op.results if is_packed(tile_type(r, "map").dtype) and e.users(r)]
        before = "\n".join(f"{e.name(r)}.zero();" for r in packed)
        kept = _kept(op, INDEX)
        skip = f"  if (!({kept})) continue;\n" if kept != "true" else ""
        return MapContext(before, count, body, pins, skip=skip, unroll=unroll)
    group = 4 // op.out_dtypes[0].bytes
    name = e.name(op.results[0])
    function = e.names.fresh("element")
    arguments = ", ".join(f"{function}({group} * j{f' + {k}' if k else ''})" for k in range(group))
    kept = _kept(op, f"(j * {group})")
    only = f"if ({kept}) " if kept != "true" else ""
    unroll = f" {max(1, int(unroll) // group)}" if unroll else ""
    return MapContext(
        "",
        count // group,
        body,
        pins,
        name,
        function,
        group,
        arguments,
        "packed_segments" if word else "packed",
        only=only,
        unroll=unroll,
        word=word,
        reads=reads,
    )


def _widened(op: ops.Map, e: Emission) -> WidenContext | None:
    """8-bit elements, or bits of them, as 16-bit floats, in pairs of registers."""
    found = widened(op)
    layout = map_layout(op)
    if found is None or layout.num_regs % 2 or any(v in e.segments for v in op.inputs):
        return None
    if _index_of(op, e, found.source) != INDEX:
        return None
    value, scale = e.text(op.inputs[found.source]), ""
    if found.scale >= 0:
        table = layout.reg_index_map(*_lies(op, e, found.scale))
        if any(x != y for x, y in zip(table[::2], table[1::2], strict=True)):
            return None
        index = _index_of(op, e, found.scale)
        if not index:
            return None
        name, scales = e.name(op.results[0]), e.text(op.inputs[found.scale])
        scale = f"scale_pairs({name}, {scales}, [](int i) {{ return {index}; }});"
    return WidenContext(e.name(op.results[0]), value, found.function, scale)


def _lies(op: ops.Map, e: Emission, number: int) -> tuple[Layout, tuple[int | None, ...]]:
    """The layout of an input, and which dimensions of the map its dimensions follow."""
    type_ = tile_type(op.inputs[number], "map")
    follows = op.follows[number] if number < len(op.follows) else tuple(range(type_.rank))
    return e.layout(type_), follows


def _index_of(op: ops.Map, e: Emission, number: int) -> str:
    """Register of an input that goes with register `i`; empty where no formula fits."""
    return index_map(map_layout(op), *_lies(op, e, number), INDEX).text


def _moved(op: ops.Map, e: Emission) -> str:
    """The element that a loop which at most chooses one takes, as it lies in its register.

    As a float it would lose the bits of a NaN, and an infinity of e5m2.
    """
    end = op.body.ops[-1]
    if len(op.results) != 1 or op.part or any(v in e.segments for v in op.inputs):
        return ""
    assert isinstance(end, control.Yield)
    return e.raw.get(end.values[0], "")


def _kept(op: ops.Map, index: str) -> str:
    """A condition on the registers that a map of a part computes."""
    if not op.part:
        return "true"
    start, shape = op.part
    own = op.part_of_warpgroup
    return registers_inside(map_layout(op), start, shape, own=own, index=index)[0]


@overwrites("tile.map")
def map_ties(op: ops.Map) -> tuple[Tie, ...]:
    """A loop in place of an input."""
    return ((op.results[0], op.inputs[op.in_place]),) if op.in_place >= 0 else ()


@reads_at_its_own_place("tile.map")
def map_overwrites(op: Op, operand: Value) -> bool:
    """Whether register i of an input is read only where register i of the result is written."""
    assert isinstance(op, ops.Map)
    layout, type_ = map_layout(op), operand.type
    if len(op.results) != 1 or not isinstance(type_, TileType) or type_.layout is None:
        return False
    for n, value in enumerate(op.inputs):
        if value is operand:
            follows = op.follows[n] if n < len(op.follows) else tuple(range(type_.rank))
            if index_map(layout, type_.layout, follows).text != INDEX:
                return False
    return True
