"""Buffers and slots of shared memory, and register tiles written there or read back."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from math import prod

from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.contexts.tile import dim_name
from tiledsl.codegen.contexts.tile import thread_coordinate
from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.fragments import Fragment
from tiledsl.codegen.fragments import fragment_of
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.indexing import registers_inside
from tiledsl.codegen.indexing import replica_conditions
from tiledsl.codegen.indexing import vector_width
from tiledsl.codegen.registry import emits
from tiledsl.errors import CodegenError
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout_moves import is_padded
from tiledsl.ir.ops import smem as ops
from tiledsl.ir.ops.smem import smem_type
from tiledsl.ir.ops.smem_ring import RingSlot
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import SmemType
from tiledsl.ir.types import TileType

CHUNK_BYTES = 16


@dataclass(frozen=True)
class BufferContext:
    """`name = smem_base + offset_bytes`."""

    name: str
    offset_bytes: int
    comment: str


@dataclass(frozen=True)
class SlotContext:
    """The address of one tile of a buffer."""

    target: str
    address: str


@dataclass(frozen=True)
class FragmentContext:
    """A part of a 16-bit accumulator tile, by stmatrix; a whole one, by ldmatrix.

    block: words of 64 rows. first, cols: columns of the fragment. lines: of the destination. row:
    this warp's first.
    """

    function: str
    smem: str
    value: str
    block: int
    first: int
    cols: int
    lines: int
    row: str
    blocks: str = ""
    pins: str = ""
    variant: str = "fragment"


@dataclass(frozen=True)
class PartContext:
    """Some columns of a fragment, from a slot that holds them from column `at` on."""

    smem: str
    value: str
    block: int
    first: int
    cols: int
    lines: int
    at: int
    row: str
    scratch: str
    variant: str = "part"


@dataclass(frozen=True)
class Place:
    """Where a thread reads first, and what register `i` adds to that: lines and bytes.

    total: lines of the slot.
    """

    name: str
    lines: str
    bytes: str
    total: int


@dataclass(frozen=True)
class ElementsContext:
    """A loop over vectors of `width` elements. line, byte: where register `i` lies; inside.

    Its predicate.
    """

    smem: str
    value: str
    type: str
    count: int
    width: int
    swizzle: int
    lines: int
    line_bytes: int
    line: str
    byte: str
    inside: str = "true"
    pins: str = ""
    kept: str = ""
    place: Place | None = None

    @property
    def variant(self) -> str:
        """The macro's form."""
        return "placed" if self.place is not None else ""


@emits("smem.buffer")
def buffer(op: ops.Buffer, e: Emission) -> BufferContext:
    """`const u32 a_1 = smem_base + 0;  // 4 x 128x64 bf16`."""
    t = op.type_
    comment = f"{op.slots} x {'x'.join(map(str, t.shape))} {t.dtype}, {op.slots * t.bytes} bytes"
    return BufferContext(e.name(op.result, "buffer"), op.offset_bytes, comment)


@emits("smem.slot")
def slot(op: ops.Slot, e: Emission) -> SlotContext:
    """`const u32 a_2 = a_1 + c_1.slot * 16384u;`."""
    bytes_ = smem_type(op.buffer, "slot").bytes
    address = e.text(op.buffer)
    if op.cursor is not None:
        address += f" + {e.text(op.cursor)}.slot * {bytes_}u"
    if op.group is not None:
        address += f" + {e.atom(op.group)} * {op.group_slots * bytes_}u"
    return SlotContext(e.assignment(op.result, "slot"), address)


@emits("smem.ring_slot")
def ring_slot(op: RingSlot, e: Emission) -> SlotContext:
    """`const u32 a_2 = a_1 + slot_1 * 16384u;`."""
    bytes_ = smem_type(op.ring, "ring_slot").bytes
    address = f"{e.text(op.ring)} + (u32){e.atom(op.index)} * {bytes_}u"
    return SlotContext(e.assignment(op.result, "slot"), address)


@emits("smem.view")
def view(op: ops.View, e: Emission) -> None:
    """The same address."""
    e.bind(op.result, e.text(op.a), atomic=e.text(op.a) == e.atom(op.a))


@emits("smem.write")
def write(op: ops.Write, e: Emission) -> FragmentContext | ElementsContext:
    """Stmatrix for 16-bit accumulators, vectors or elements for the rest."""
    type_, dest = tile_type(op.value, "smem.write"), smem_type(op.smem, "smem.write")
    if type_.dtype != dest.dtype or type_.rank != len(dest.shape):
        raise CodegenError(f"smem.write: a tile {type_} into {dest}")
    start = op.start or (0,) * type_.rank
    context = _fragment_write(op, e, type_, dest, start)
    return context if context is not None else _element_write(op, e, type_, dest, start)


def _fragment_write(
    op: ops.Write, e: Emission, type_: TileType, dest: SmemType, start: tuple[int, ...]
) -> FragmentContext | None:
    f = fragment_of(type_)
    if f is None or type_.dtype.bits != 16 or dest.swizzle_bytes != 128:
        return None
    if is_padded(e.layout(type_), type_.shape):
        return None
    cols_dim = 1 - f.row_dim
    first, cols = start[cols_dim], dest.shape[cols_dim]
    blocks = _row_blocks(op, f, type_, dest, start)
    shared_cols = f.col_groups > 1 and not op.per_warpgroup
    fits = first % 8 == 0 and cols % 8 == 0 and first + cols <= f.cols
    if blocks is None or shared_cols or not fits:
        return None
    by_rows = dest.major == cols_dim
    _check_boxes(dest)
    return FragmentContext(
        "write_rows" if by_rows else "write_columns",
        e.text(op.smem),
        e.text(op.value),
        f.cols // 4,
        first,
        cols,
        dest.shape[f.row_dim] if by_rows else cols,
        _warp_row(f, e, per_warpgroup=op.per_warpgroup),
        blocks,
    )


def _row_blocks(
    op: ops.Write, f: Fragment, type_: TileType, dest: SmemType, start: tuple[int, ...]
) -> str | None:
    """Template arguments for the 64-row blocks to write: none for all, None if not whole."""
    first, extent = start[f.row_dim], dest.shape[f.row_dim]
    if first == 0 and extent == (f.rows if op.per_warpgroup else type_.shape[f.row_dim]):
        return ""
    alone = op.per_warpgroup or f.row_groups == 1
    if alone and first % 64 == 0 and extent % 64 == 0 and first + extent <= f.rows:
        return f", {first // 64}, {extent // 64}"
    return None


def _warp_row(f: Fragment, e: Emission, *, per_warpgroup: bool) -> str:
    """First row of this warp in the destination."""
    e.use("warp", "lane")
    if f.groups == 1 or f.row_groups == 1:
        return "warp * 16" if f.groups == 1 else "warp % 4 * 16"
    if per_warpgroup:
        return "warp % 4 * 16"
    return f"warp % 4 * 16 + warp / 4 * {f.rows}"


def _element_write(
    op: ops.Write, e: Emission, type_: TileType, dest: SmemType, start: tuple[int, ...]
) -> ElementsContext:
    layout = e.layout(type_)
    own = op.per_warpgroup
    conditions: list[str] = []
    coords: list[str] = []
    # A destination that is larger than the tile keeps what is beyond it.
    box = (
        dest.shape
        if own
        else tuple(min(n, m - s) for n, m, s in zip(dest.shape, type_.shape, start, strict=True))
    )
    for dim, extent in enumerate(box):
        thread = thread_coordinate(e, layout, dim, dim_name(dim, type_.rank), own_group=own)
        text = add(thread, register_part(layout, dim), f"{-start[dim]}" if start[dim] else "")
        coords.append(text.replace("+ -", "- "))
        span = type_.shape[dim] if not own else extent
        if own or start[dim] or span != extent or layout.padded_shape[dim] != type_.shape[dim]:
            conditions.append(f"inside({coords[dim]}, {extent})")
    if not own:
        conditions += [e.use_in(c) for c in replica_conditions(layout, e.place.num_warps)]
    width = _width(type_, dest, start[dest.major])
    context = _elements(e, e.text(op.value), type_, dest, coords, width, e.text(op.smem))
    kept, sure = registers_inside(layout, start, box, own=own)
    if sure:
        conditions = [c for c in conditions if not c.startswith("inside(")]
    return replace(
        context, inside=" && ".join(conditions) or "true", kept="" if kept == "true" else kept
    )


@emits("smem.read")
def read(op: ops.Read, e: Emission) -> FragmentContext | ElementsContext | PartContext:
    """Ldmatrix for 16-bit accumulators; else every register from its place."""
    type_, source = tile_type(op.result, "smem.read"), smem_type(op.smem, "smem.read")
    name = e.name(op.result, "x")
    if op.part:
        return _part_read(op, e, type_, source, name)
    pins = [f"keep({name});"] if e.is_accumulator(op.result) else []
    if op.scratch is not None:
        pins.append(f"arrived({name}, {e.text(op.scratch)});")
    context = _fragment_read(op, e, type_, source, name)
    if context is None:
        context = _element_read(op, e, type_, source, name)
    return replace(context, pins="\n".join(pins))


@dataclass(frozen=True)
class ArrivedContext:
    """The registers of several tiles, and where a store would go."""

    scratch: str
    values: str


@emits("smem.arrived")
def arrived(op: ops.Arrived, e: Emission) -> ArrivedContext:
    """`all_arrived(pins_1, rows_3, sb_3);`."""
    if op.scratch is None:
        raise CodegenError("smem.arrived: no scratch memory")
    return ArrivedContext(e.text(op.scratch), ", ".join(e.text(v) for v in op.values))


def _part_read(
    op: ops.Read, e: Emission, type_: TileType, source: SmemType, name: str
) -> PartContext:
    f = fragment_of(type_)
    first, cols, at = op.part
    if f is None or f.row_dim or f.col_groups > 1 or source.major != 1 or op.scratch is None:
        raise CodegenError(f"smem.read: {type_} is not read in parts from {source}")
    if type_.dtype.bits != 16 or source.swizzle_bytes != 128 or first % 8 or at % 16:
        raise CodegenError(f"smem.read: no columns from {first} on of {type_} start at {at}")
    row, scratch = _warp_row(f, e, per_warpgroup=False), e.text(op.scratch)
    smem = e.text(op.smem)
    return PartContext(smem, name, f.cols // 4, first, cols, source.shape[0], at, row, scratch)


def _fragment_read(
    op: ops.Read, e: Emission, type_: TileType, source: SmemType, name: str
) -> FragmentContext | None:
    f = fragment_of(type_)
    if f is None or type_.dtype.bits != 16 or source.swizzle_bytes != 128 or f.col_groups > 1:
        return None
    if is_padded(e.layout(type_), type_.shape) or type_.shape != source.shape:
        return None
    cols_dim = 1 - f.row_dim
    by_rows = source.major == cols_dim
    return FragmentContext(
        "read_rows" if by_rows else "read_columns",
        e.text(op.smem),
        name,
        f.cols // 4,
        0,
        f.cols,
        source.shape[f.row_dim] if by_rows else f.cols,
        _warp_row(f, e, per_warpgroup=False),
    )


def _element_read(
    op: ops.Read, e: Emission, type_: TileType, source: SmemType, name: str
) -> ElementsContext:
    layout = e.layout(type_)
    coords = [
        add(
            thread_coordinate(e, layout, dim, dim_name(dim, type_.rank)), register_part(layout, dim)
        )
        for dim in range(type_.rank)
    ]
    for dim, extent in enumerate(source.shape):
        if layout.padded_shape[dim] > extent:
            coords[dim] = f"min_num<int>({coords[dim]}, {extent - 1})"
    is_padded = any(p > n for p, n in zip(layout.padded_shape, source.shape, strict=True))
    if op.first is not None:
        coords[0] = add(coords[0], e.text(op.first))
    alone = is_padded or op.first is not None
    width = 1 if alone else _width(type_, source, 0, 2 if is_packed(type_.dtype) else 4)
    made = _elements(e, name, type_, source, coords, width, e.text(op.smem))
    if alone or source.swizzle_bytes != 128 or not _is_apart(layout, source):
        return made
    return replace(made, place=_place(e, layout, source, made, e.text(op.smem)))


def _is_apart(layout: Layout, source: SmemType) -> bool:
    """Whether what registers add to the place of a thread changes no bit that the swizzle takes."""
    if len(source.shape) != 2:
        return False
    coords = layout.coords()
    start, steps = coords[:, :, 0], coords[0, 0] - coords[0, 0, 0]
    line, byte = 1 - source.major, source.major
    of_thread = start[..., byte].reshape(-1, 1) * source.dtype.bytes
    of_register = steps[:, byte] * source.dtype.bytes
    whole = bool((coords == start[:, :, None] + steps).all())
    lines = bool((steps[:, line] % 8 == 0).all())
    return whole and lines and of_thread.max() < 128 and not (of_thread & of_register).any()


def _place(
    e: Emission, layout: Layout, source: SmemType, made: ElementsContext, smem: str
) -> Place:
    """Where a thread reads first, and how far from there registers lie."""
    line, byte = (
        thread_coordinate(e, layout, dim, dim_name(dim, 2)) or "0"
        for dim in (1 - source.major, source.major)
    )
    size = source.dtype.bytes
    name = e.names.fresh("place")
    first = byte if size == 1 else f"{byte} * {size}"
    e.before(f"const u32 {name} = swizzled_place({smem}, {line}, {first});")
    lines, columns = (register_part(layout, dim) or "0" for dim in (1 - source.major, source.major))
    return Place(name, lines, columns if size == 1 else f"({columns}) * {size}", made.lines)


def _width(type_: TileType, memory: SmemType, start: int, least_bytes: int = 4) -> int:
    layout = type_.layout
    assert layout is not None
    width = vector_width(
        layout,
        memory.major,
        memory.shape[memory.major],
        type_.dtype.bytes,
        limit_bytes=CHUNK_BYTES,
        least_bytes=least_bytes,
    )
    while width > 1 and (start % width or type_.shape[memory.major] % width):
        width //= 2
    return width if width * type_.dtype.bytes >= least_bytes else 1


def _elements(
    e: Emission,
    name: str,
    type_: TileType,
    memory: SmemType,
    coords: list[str],
    width: int,
    smem: str,
) -> ElementsContext:
    _check_boxes(memory)
    size = memory.dtype.bytes
    line = ""
    for dim, extent in enumerate(memory.shape):
        if dim != memory.major:
            line = f"({line}) * {extent} + {coords[dim]}" if line and line != "0" else coords[dim]
    byte = coords[memory.major] if size == 1 else f"({coords[memory.major]}) * {size}"
    extent = memory.shape[memory.major]
    return ElementsContext(
        smem,
        name,
        memory_type(memory.dtype),
        e.layout(type_).num_regs,
        width,
        memory.swizzle_bytes,
        prod(memory.shape) // extent,
        extent * size,
        line or "0",
        byte,
    )


def _check_boxes(memory: SmemType) -> None:
    if memory.swizzle_bytes not in (0, 128):
        raise CodegenError(f"{memory}: expected a swizzle of 0 or 128 bytes")


@dataclass(frozen=True)
class ScalarsContext:
    """Scalars at the start of a slot. value: the expressions, or the left side.

    uniform: a mask, and of what may be negative a second argument.
    """

    smem: str
    value: str
    variant: str = ""
    uniform: str = ""


@emits("smem.write_scalars")
def write_scalars(op: ops.WriteScalars, e: Emission) -> ScalarsContext:
    """`st_shared<int>(slot_1, tile_1);`, or all four in one store."""
    values = ", ".join(e.text(v) for v in op.values)
    return ScalarsContext(e.text(op.smem), values, "four" if len(op.values) > 1 else "")


@emits("smem.read_scalars")
def read_scalars(op: ops.ReadScalars, e: Emission) -> ScalarsContext:
    """`const int tile_1 = uniform(ld_shared<int>(slot_1));`, or a struct of four."""
    if op.count == 1:
        return ScalarsContext(e.text(op.smem), e.assignment(op.result, "scalar"))
    name = e.names.fresh("scalars")
    for field, result in zip("abcd", op.results, strict=True):
        e.bind(result, f"{name}.{field}")
    uniform = f"{sum(1 << i for i in op.uniform)}{', true' if op.signed else ''}"
    return ScalarsContext(e.text(op.smem), f"const Scalars {name}", "four", uniform)
