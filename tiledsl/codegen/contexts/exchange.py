"""Ops that move elements between threads through shared memory.

The scratch holds a tile in row-major order; chunks of 16 bytes are permuted inside of lines of
128, so that neither rows nor columns meet in one bank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.codegen.combining import sync_text
from tiledsl.codegen.contexts.tile import MapContext
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.contexts.tile import dim_name
from tiledsl.codegen.contexts.tile import element
from tiledsl.codegen.contexts.tile import thread_coordinate
from tiledsl.codegen.cpp import indent
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.indexing import replica_conditions
from tiledsl.codegen.indexing import vector_width
from tiledsl.codegen.registry import emits
from tiledsl.errors import CodegenError
from tiledsl.ir.layout_moves import is_padded
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import smem as smem_ops
from tiledsl.ir.ops import tile as tile_ops
from tiledsl.ir.ops import tile_moves as ops
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import TileType
from tiledsl.ir.warp_rows import WARP_BYTES
from tiledsl.ir.warp_rows import rows_of_move


@dataclass(frozen=True)
class ExchangeContext:
    """guard, sync: barriers or "". puts, gets: loops into and out of shared memory."""

    guard: str
    puts: str
    sync: str
    gets: str
    variant: str = ""


def scratch_of(op: Op, e: Emission) -> str:
    """Address of an op's shared memory.

    Raises:
        CodegenError: it has none.
    """
    scratch: Value | None = getattr(op, "scratch", None)
    if scratch is None:
        raise CodegenError(f"{op.opcode} has no scratch")
    return e.atom(scratch)


Parts = Sequence[tuple[str, str]]
"""What the thread and what register `i` contribute to each coordinate."""


def coordinate_parts(e: Emission, type_: TileType) -> Parts:
    """The parts of a tile's coordinates; those of the thread are declared before."""
    layout = e.layout(type_)
    return [
        (thread_coordinate(e, layout, d, dim_name(d, type_.rank)), register_part(layout, d))
        for d in range(type_.rank)
    ]


def sums_of(parts: Parts) -> list[str]:
    """The coordinates that the parts add up to."""
    return [add(thread, register) for thread, register in parts]


def coordinates(e: Emission, type_: TileType) -> list[str]:
    """The coordinates of register `i`; parts that do not change are declared before."""
    return sums_of(coordinate_parts(e, type_))


def inside_tile(e: Emission, type_: TileType, coords: Sequence[str], *, once: bool) -> list[str]:
    """Conditions for register `i` to hold an element; once: in the first of its copies."""
    layout = e.layout(type_)
    conditions = [
        f"{c} < {n}"
        for c, n, padded in zip(coords, type_.shape, layout.padded_shape, strict=True)
        if padded > n
    ]
    if once:
        conditions += [e.use_in(c) for c in replica_conditions(layout, e.place.num_warps)]
    return conditions


def flat_index(coords: Sequence[str], shape: Sequence[int]) -> str:
    """Row-major position of coordinates."""
    text = ""
    for c, n in zip(coords, shape, strict=True):
        text = c if not text or text == "0" else f"({text}) * {n} + {c}"
    return text or "0"


def loop_text(count: int, width: int, statement: str) -> str:
    """A loop over the registers of a tile, `width` at a time."""
    step = "++i" if width == 1 else f"i += {width}"
    return f"#pragma unroll\nfor (int i = 0; i < {count}; {step}) {{\n{indent(statement)}\n}}"


def _place(scratch: str, index: str, size: int) -> str:
    return f"{scratch} + {_swizzled(index, size)}"


def _swizzled(index: str, size: int) -> str:
    byte = index if size == 1 else f"({index}) * {size}"
    return f"exchange_at({byte})"


def _own_place(e: Emission, type_: TileType, own: Parts, scratch: str, shape: Sequence[int]) -> str:
    """Where register `i` of a tile lies in a row-major tile of `shape`, from its beginning on.

    Where all extents are powers of two, what the thread and what the register contribute to an
    index have no bit in common: the place is the exclusive or of theirs, of which that of the
    register is known when the loop is unrolled.
    """
    layout, size = e.layout(type_), type_.dtype.bytes
    extents = (*shape, *(digit.size for dim in layout.dims for digit in dim))
    if is_padded(layout, type_.shape) or any(n & (n - 1) for n in extents):
        return _place(scratch, flat_index(sums_of(own), shape), size)
    places = [_swizzled(flat_index([c[n] or "0" for c in own], shape), size) for n in range(2)]
    return f"{scratch} + ({' ^ '.join(places)})"


def _width(e: Emission, type_: TileType, *multiples: int) -> int:
    """Elements that move at once along the last axis, a divisor of the given numbers."""
    if not type_.rank or is_padded(e.layout(type_), type_.shape):
        return 1
    last = type_.rank - 1
    width = vector_width(e.layout(type_), last, type_.shape[last], type_.dtype.bytes)
    while width > 1 and any(m % width for m in multiples):
        width //= 2
    return width if width * type_.dtype.bytes >= 4 else 1


def put_tile(
    e: Emission,
    value: Value,
    scratch: str,
    shape: Sequence[int],
    start: Sequence[int] | None = None,
) -> str:
    """Writes a tile into a row-major tile of `shape`, from coordinate `start` on."""
    type_ = tile_type(value, "exchange")
    own = coordinate_parts(e, type_)
    coords = sums_of(own)
    condition = " && ".join(inside_tile(e, type_, coords, once=True)) or "true"
    begin = tuple(start or (0,) * type_.rank)
    width = _width(e, type_, begin[-1], shape[-1]) if type_.rank else 1
    if any(begin):
        moved = [add(str(s) if s else "", c) for s, c in zip(begin, coords, strict=True)]
        at = _place(scratch, flat_index(moved, shape), type_.dtype.bytes)
    else:
        at = _own_place(e, type_, own, scratch, shape)
    form = f"{width}, {memory_type(type_.dtype)}"
    statement = f"write_shared<{form}>({e.text(value)}, i, {at}, {condition});"
    return loop_text(e.layout(type_).num_regs, width, statement)


def get_tile(e: Emission, result: Value, scratch: str) -> str:
    """Reads every register of a tile from its place in a row-major tile of the same shape."""
    type_, name = tile_type(result, "exchange"), e.name(result, "x")
    return get_registers(e, type_, name, scratch) + _pins(e, result)


def _get_from(
    e: Emission, result: Value, scratch: str, shape: Sequence[int], width: int, coords: list[str]
) -> str:
    """Reads every register from other coordinates of a row-major tile of `shape`."""
    type_, name = tile_type(result, "exchange"), e.name(result, "x")
    at = _place(scratch, flat_index(coords, shape), type_.dtype.bytes)
    return _reads(e, type_, name, at, width) + _pins(e, result)


def _pins(e: Emission, result: Value) -> str:
    return f"\nkeep({e.name(result)});" if e.is_accumulator(result) else ""


def get_registers(e: Emission, type_: TileType, name: str, scratch: str) -> str:
    """Reads the registers of a variable from a row-major tile."""
    if is_padded(e.layout(type_), type_.shape):
        index = flat_index(clamped_coordinates(e, type_), type_.shape)
        at = _place(scratch, index, type_.dtype.bytes)
    else:
        at = _own_place(e, type_, coordinate_parts(e, type_), scratch, type_.shape)
    return _reads(e, type_, name, at, _width(e, type_))


def _reads(e: Emission, type_: TileType, name: str, at: str, width: int) -> str:
    statement = f"read_shared<{width}, {memory_type(type_.dtype)}>({name}, i, {at});"
    return loop_text(e.layout(type_).num_regs, width, statement)


def clamped_coordinates(e: Emission, type_: TileType) -> list[str]:
    """Coordinates of register `i`, moved inside of the tile where the layout is padded."""
    layout = e.layout(type_)
    return [
        f"min_num<int>({c}, {n - 1})" if padded > n else c
        for c, n, padded in zip(
            coordinates(e, type_), type_.shape, layout.padded_shape, strict=True
        )
    ]


def _exchange(op: Op, e: Emission, puts: str, gets: str, variant: str = "") -> ExchangeContext:
    sync = sync_text(e, getattr(op, "barrier", 0))
    return ExchangeContext(sync if getattr(op, "guarded", True) else "", puts, sync, gets, variant)


def rows_of_warps(op: tile_ops.ConvertLayout, e: Emission) -> ExchangeContext:
    """An accumulator as rows of vectors: each warp through memory of its own, without barriers."""
    type_ = tile_type(op.a, op.opcode)
    made = rows_of_move(e.layout(type_), op.layout, type_.dtype.bytes)
    if made is None:
        raise CodegenError(f"{op.opcode}: {op.layout} is no layout of a warp's rows")
    mine = f"{scratch_of(op, e)} + {e.use_in('warp')} * {WARP_BYTES}u"
    form = f"{made.block_words}, {made.lanes}"
    name = e.name(op.result, "x")
    call = f"rows_in_warp<{form}>({name}, {e.text(op.a)}, {mine}, {e.use_in('lane')});"
    return ExchangeContext("", call, "", "", "exchange")


def whole_tile(op: Op, e: Emission, source: Value, variant: str = "") -> ExchangeContext:
    """The same elements in row-major order, in the layout (and shape) of the result."""
    scratch, result = scratch_of(op, e), op.results[0]
    puts = put_tile(e, source, scratch, tile_type(source, op.opcode).shape)
    gets = get_tile(e, result, scratch)
    return _exchange(op, e, puts, gets, variant)


def _renamed(op: Op, e: Emission, source: Value) -> MapContext:
    """Register i of the result is register i of the source."""
    name = e.name(op.results[0], "x")
    layout = e.layout(tile_type(op.results[0], op.opcode))
    pins = f"keep({name});" if e.is_accumulator(op.results[0]) else ""
    body = indent(f"put_raw({name}, i, get_raw({e.text(source)}, i));")
    return MapContext("", layout.num_regs, body, pins)


@emits("tile.reshape")
def reshape(op: tile_ops.Reshape, e: Emission) -> MapContext | ExchangeContext:
    """Registers as they are, or through shared memory."""
    if op.is_view():
        return _renamed(op, e, op.a)
    return whole_tile(op, e, op.a, "exchange")


@emits("tile.cat")
def cat(op: ops.Cat, e: Emission) -> ExchangeContext:
    """One tile behind the other in shared memory."""
    scratch, type_ = scratch_of(op, e), tile_type(op.result, "cat")
    start = [0] * type_.rank
    start[op.axis] = tile_type(op.a, "cat").shape[op.axis]
    puts = [put_tile(e, op.a, scratch, type_.shape), put_tile(e, op.b, scratch, type_.shape, start)]
    gets = get_tile(e, op.result, scratch)
    return _exchange(op, e, "\n".join(puts), gets)


@emits("tile.flip")
def flip(op: ops.Flip, e: Emission) -> ExchangeContext:
    """Read from the other end."""
    scratch, type_ = scratch_of(op, e), tile_type(op.result, "flip")
    puts = put_tile(e, op.a, scratch, type_.shape)
    coords = clamped_coordinates(e, type_)
    coords[op.axis] = f"{type_.shape[op.axis] - 1} - ({coords[op.axis]})"
    width = _width(e, type_) if op.axis != type_.rank - 1 else 1
    return _exchange(op, e, puts, _get_from(e, op.result, scratch, type_.shape, width, coords))


@emits("tile.gather")
def gather(op: ops.Gather, e: Emission) -> ExchangeContext:
    """Read from the place that the index names."""
    scratch, type_ = scratch_of(op, e), tile_type(op.result, "gather")
    shape = tile_type(op.a, "gather").shape
    puts = put_tile(e, op.a, scratch, shape)
    coords = clamped_coordinates(e, type_)
    index = element(e, op.index, "i")
    coords[op.axis] = f"clamp_index({index}, {shape[op.axis]})"
    return _exchange(op, e, puts, _get_from(e, op.result, scratch, shape, 1, coords))


@emits("tile.histogram")
def histogram(op: ops.Histogram, e: Emission) -> ExchangeContext:
    """Counters in shared memory, added to atomically."""
    scratch, source = scratch_of(op, e), tile_type(op.a, "histogram")
    type_ = tile_type(op.result, "histogram")
    conditions = inside_tile(e, source, coordinates(e, source), once=True)
    if op.mask is not None:
        conditions.append(f"{e.text(op.mask)}[i]")
    condition = " && ".join(conditions) or "true"
    sync = sync_text(e, op.barrier)
    threads = min(32 * e.place.num_warps, e.num_threads)
    zero = f"zero_counters({scratch}, {op.num_bins}, {thread_index(e)}, {threads});"
    count = f"count_element({scratch}, {element(e, op.a, 'i')}, {op.num_bins}, {condition});"
    puts = f"{zero}\n{sync}\n{loop_text(e.layout(source).num_regs, 1, count)}"
    name = e.name(op.result, "x")
    (at,) = clamped_coordinates(e, type_)
    get = f"read_shared<1, int>({name}, i, {scratch} + ({at}) * 4);"
    return _exchange(op, e, puts, loop_text(e.layout(type_).num_regs, 1, get))


def thread_index(e: Emission) -> str:
    """Index of a thread in its instance of the role."""
    e.use("warp", "lane")
    return "(warp * 32 + lane)"


@dataclass(frozen=True)
class ZeroContext:
    """Bytes of shared memory that become 0."""

    smem: str
    num_bytes: int
    thread: str
    threads: int


@emits("smem.zero")
def zero(op: smem_ops.Zero, e: Emission) -> ZeroContext:
    """`zero_shared(a_stage_1, 8192, (warp * 32 + lane), 128);`."""
    threads = min(32 * e.place.num_warps, e.num_threads)
    return ZeroContext(e.text(op.smem), op.num_bytes, thread_index(e), threads)


@dataclass(frozen=True)
class ClearContext:
    """Lines of a swizzled tile that become 0."""

    smem: str
    first: str
    boxes: int
    lines: int


@emits("smem.clear")
def clear(op: smem_ops.Clear, e: Emission) -> ClearContext:
    """`clear_lines<2, 128>(z_1, first_1);`."""
    t = smem_ops.smem_type(op.smem, "smem.clear")
    if t.swizzle_bytes != 128:
        raise CodegenError(f"smem.clear: {t} is not 128-byte swizzled")
    return ClearContext(e.text(op.smem), e.text(op.first), t.num_boxes, t.box_rows)
