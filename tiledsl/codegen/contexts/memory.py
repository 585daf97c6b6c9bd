"""Blocks of tensors straight to and from registers, by predicated accesses of 64-bit addresses.

Where the layout has neighbours in registers, a check that is equal in all threads chooses vectors
of up to 16 bytes: the block begins at an aligned place and no vector crosses the tensor's edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace

from tiledsl.codegen.contexts.divisibility import divisor
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.contexts.tile import dim_name
from tiledsl.codegen.contexts.tile import thread_coordinate
from tiledsl.codegen.cpp import memory_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.indexing import registers_inside
from tiledsl.codegen.indexing import replica_conditions
from tiledsl.codegen.indexing import vector_width
from tiledsl.codegen.registry import emits
from tiledsl.dtypes import DType
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Value
from tiledsl.ir.ops import memory as ops
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.ops.memory import tensors_of
from tiledsl.ir.specs import TMA_ALIGN_BYTES
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ir.vectors import is_too_long
from tiledsl.ir.vectors import vectors_of

PIECE_BYTES = 16
"""What is read or written at once where vectors are not aligned."""


@dataclass(frozen=True)
class AccessContext:
    """A loop over elements, one over vectors, or both under a check.

    at: address of the element that register `i` goes with; inside: its predicate. other: value
    outside, for loads. shifted: what takes the place of the loop over elements.
    """

    name: str
    count: int
    at: str
    inside: str
    other: str = ""
    width: int = 1
    vectors_ok: str = ""
    pins: str = ""
    variant: str = ""
    skip: str = ""
    shifted: str = ""


@dataclass(frozen=True)
class Block:
    """Facts of one block access, shared by loads and stores."""

    tensor: Value
    type_: TensorType
    offsets: tuple[Value, ...]
    extents: tuple[int, ...]
    tile_dims: tuple[int | None, ...]
    layout: Layout
    end: Value | None = None
    end_dim: int = 0


@dataclass(frozen=True)
class ExtentContext(Expression):
    """An extent or a stride: a parameter."""

    value: str


@emits("memory.pick")
def pick(op: ops.Pick, e: Emission) -> None:
    """Nothing: what reads it takes entries of tables of parameters."""
    e.bind(op.result, op.tensors[0].name)


@emits("memory.shape")
def shape(op: ops.Shape, e: Emission) -> ExtentContext:
    """`(int)a_shape_0`."""
    return ExtentContext("", True, e.params.shape(op.tensor, op.dim), cheap=True)


@emits("memory.stride")
def stride(op: ops.Stride, e: Emission) -> ExtentContext:
    """`a_stride_0`."""
    return ExtentContext("", True, e.params.stride(op.tensor, op.dim), cheap=True)


@emits("memory.load")
def load(op: ops.Load, e: Emission) -> AccessContext:
    """Elements outside the tensor are `other`, or 0."""
    block = block_of(op.tensor, op.offsets, op.block_shape, op.squeeze, op.result.type, e)
    name = e.name(op.result, "x")
    dtype = block.type_.dtype
    other = _other(op.other, dtype, e)
    pins = f"keep({name});" if e.is_accumulator(op.result) else ""
    made = access_of(block, e, name, other=other, pins=pins, is_store=False)
    if not op.part:
        return made
    own = op.part_of_warpgroup
    kept, _ = registers_inside(block.layout, op.part[0], op.part[1], own=own)
    if kept == "true":
        return made
    variant = "checked" if made.variant == "shifted" else made.variant
    return replace(made, variant=variant, skip=f"  if (!({kept})) continue;\n")


@emits("memory.store")
def store(op: ops.Store, e: Emission) -> AccessContext:
    """Elements outside the tensor are dropped; of threads with copies the first one stores."""
    block = block_of(op.tensor, op.offsets, op.block_shape, op.squeeze, op.value.type, e)
    if op.end is not None:
        block = replace(block, end=op.end, end_dim=op.end_dim)
    return access_of(block, e, e.text(op.value), other="", pins="", is_store=True)


def block_of(
    tensor: Value,
    offsets: tuple[Value, ...],
    extents: tuple[int, ...],
    squeeze: tuple[int, ...],
    tile: object,
    e: Emission,
) -> Block:
    """The facts of an access of a tile."""
    assert isinstance(tile, TileType)
    kept = [d for d in range(len(extents)) if d not in squeeze]
    tile_dims = tuple(kept.index(d) if d in kept else None for d in range(len(extents)))
    return Block(tensor, tensor_type(tensor, "block"), offsets, extents, tile_dims, e.layout(tile))


def _other(value: Value | None, dtype: DType, e: Emission) -> str:
    """The value outside, as it lies in memory."""
    if value is None:
        return f"{memory_type(dtype)}{{}}"
    text = e.text(value)
    if dtype.is_float and dtype.bits < 32:
        return f"from_float<{memory_type(dtype)}>({text})"
    return f"({memory_type(dtype)}){e.atom(value)}"


def access_of(
    block: Block, e: Emission, name: str, *, other: str, pins: str, is_store: bool
) -> AccessContext:
    """The access of the registers of `name`."""
    starts = [_start(block, dim, e) for dim in range(block.type_.rank)]
    at, run = _address(block, starts, e), _Run()
    inside = _inside(block, starts, e, run, is_store=is_store)
    count = block.layout.num_regs
    inner = block.type_.inner_dim
    tile_dim = None if inner is None else block.tile_dims[inner]
    if inner is None or tile_dim is None or (block.end is not None and block.end_dim == inner):
        return AccessContext(name, count, at, inside, other, pins=pins)
    width = vector_width(block.layout, tile_dim, block.extents[inner], block.type_.dtype.bytes)
    if width == 1:
        return AccessContext(name, count, at, inside, other, pins=pins)
    check = _vector_check(block, inner, width, e)
    if not check:
        return AccessContext(name, count, at, inside, other, width, pins=pins, variant="vectors")
    flag = e.names.fresh("vectors")
    e.before(f"const bool {flag} = {check};")
    made = AccessContext(name, count, at, inside, other, width, flag, pins, "checked")
    shifted = _shifted(block, made, run, is_store=is_store)
    return replace(made, variant="shifted", shifted=shifted) if shifted else made


@dataclass
class _Run:
    """Register `i`'s predicate in parts: along the contiguous dimension it holds for a run.

    outer: of the other dimensions. at: coordinate along the contiguous one, below `extent`.
    left: elements of the block from there on, or "".
    """

    outer: str = "true"
    at: str = ""
    extent: str = ""
    left: str = ""

    def lane(self, width: int, pointer: str, other: str) -> str:
        """The vector that begins at register `i`."""
        left = self.left or str(width)
        parts = (pointer, self.outer, self.at, self.extent, left, other)
        return f"run_lane<{width}>({', '.join(parts)})"


def _shifted(block: Block, c: AccessContext, run: _Run, *, is_store: bool) -> str:
    """The access in aligned pieces of vectors that are not aligned themselves, or ""."""
    found, element = vectors_of(block.layout), memory_type(block.type_.dtype)
    is_whole = c.width * block.type_.dtype.bytes == PIECE_BYTES
    if not is_whole or found is None or is_too_long(block.layout, block.type_.dtype.bytes):
        return ""
    if not is_store:
        lane = run.lane(c.width, c.at, c.other)
        form = f"{c.count}, {c.width}, ByRun, AnyOffset, BlockLoad"
        return f"load_shifted<{form}>({c.name}, [&](int i) {{ return {lane}; }});"
    if found.size != c.width or found.lanes == 1:
        return ""
    lane = run.lane(c.width, c.at, f"{element}{{}}")
    form = f"{c.count}, {c.width}, {found.lanes}, ByRun, AnyOffset, BlockStore"
    return f"store_shifted<{form}>({c.name}, true, [&](int i) {{ return {lane}; }});"


def _start(block: Block, dim: int, e: Emission) -> str:
    """The coordinate of this thread's first element along a dimension of the tensor, atomic."""
    offset, tile_dim = block.offsets[dim], block.tile_dims[dim]
    base = e.atom(offset)
    if tile_dim is None:
        return base
    stem = dim_name(dim, block.type_.rank)
    if isinstance(offset.type, ScalarType) and offset.type.dtype.bits == 64:
        return _wide_start(block, tile_dim, stem, base, e)
    return (
        thread_coordinate(e, block.layout, tile_dim, stem, base="" if base == "0" else base) or "0"
    )


def _wide_start(block: Block, tile_dim: int, stem: str, base: str, e: Emission) -> str:
    part = thread_coordinate(e, block.layout, tile_dim, stem)
    if not part:
        return base
    name = e.names.fresh(f"{stem}_wide")
    e.before(f"const i64 {name} = {base} + {part};")
    return name


def _reg(block: Block, dim: int) -> str:
    tile_dim = block.tile_dims[dim]
    return "" if tile_dim is None else register_part(block.layout, tile_dim)


def _address(block: Block, starts: list[str], e: Emission) -> str:
    """Pointer of this thread's first element, declared before, plus the register's distance."""
    first: list[str] = []
    step: list[str] = []
    for dim, start in enumerate(starts):
        reg = _reg(block, dim)
        if dim == block.type_.inner_dim:
            first.append(start)
            step += [reg] if reg else []
        else:
            stride_name = e.params.stride(block.tensor, dim)
            first.append(f"{start} * {stride_name}")
            step += [f"({reg}) * {stride_name}"] if reg else []
    pointer = e.params.pointer(block.tensor)
    name = e.names.fresh(f"{tensors_of(block.tensor)[0].name}_at")
    const = f"{memory_type(block.type_.dtype)}* const {name}"
    distance = " + ".join(t for t in first if t != "0")
    distance = f"({distance})" if " " in distance else distance
    e.before(f"{const} = {pointer} + {distance};" if distance else f"{const} = {pointer};")
    return " + ".join(
        [
            name,
            *(
                step
                if len(step) == 1 and "+" not in step[0]
                else [f"({add(*step)})"]
                if step
                else []
            ),
        ]
    )


def _inside(block: Block, starts: list[str], e: Emission, run: _Run, *, is_store: bool) -> str:
    """The predicate of register `i`; its parts go to `run`."""
    by_dim: list[list[str]] = []
    for dim, start in enumerate(starts):
        extent = e.params.shape(block.tensor, dim)
        at = add("" if start == "0" else start, _reg(block, dim))
        conditions = [f"inside({at}, {extent})"]
        if block.end is not None and dim == block.end_dim:
            conditions.append(f"{at or '0'} < {e.atom(block.end)}")
        if dim == block.type_.inner_dim:
            run.at, run.extent = at or "0", extent
        tile_dim = block.tile_dims[dim]
        if tile_dim is not None and block.layout.padded_shape[tile_dim] > block.extents[dim]:
            thread = thread_coordinate(e, block.layout, tile_dim, "in_block")
            place = add(thread, _reg(block, dim))
            conditions.append(f"{place} < {block.extents[dim]}")
            if dim == block.type_.inner_dim:
                run.left = f"{block.extents[dim]} - ({place})"
        by_dim.append(conditions)
    first: list[str] = []
    if is_store and (replicas := replica_conditions(block.layout, e.place.num_warps)):
        name = e.names.fresh("first_copy")
        e.before(f"const bool {name} = {e.use_in(' && '.join(replicas))};")
        first = [name]
    outer = [c for d, found in enumerate(by_dim) if d != block.type_.inner_dim for c in found]
    run.outer = " && ".join([*first, *outer]) or "true"
    return " && ".join([*first, *(c for found in by_dim for c in found)])


def _vector_check(block: Block, inner: int, width: int, e: Emission) -> str:
    """When all vectors are aligned and none crosses the tensor's edge.

    Empty when that is certain; beside other roles the check stays, since it keeps ptxas from moving
    accesses of an epilogue between products, whose registers they would take.
    """
    type_ = block.type_
    bytes_ = width * type_.dtype.bytes
    checks: list[str] = []
    offset = block.offsets[inner]
    if divisor(offset) % width:
        checks.append(f"{e.atom(offset)} % {width} == 0")
    if type_.align_bytes % bytes_:
        checks.append(f"aligned<{bytes_}>({e.params.pointer(block.tensor)})")
    if not type_.tma:
        checks += [
            f"{e.params.stride(block.tensor, d)} % {width} == 0"
            for d in range(type_.rank)
            if d != inner
        ]
    if type_.tma and type_.rank > 1 and not type_.ragged and e.is_alone:
        assert TMA_ALIGN_BYTES % bytes_ == 0
        return " && ".join(checks)
    extent = e.params.shape(block.tensor, inner)
    start = "" if e.atom(offset) == "0" else e.atom(offset)
    tail = f"{extent} % {width} == 0 || {add(start, str(block.extents[inner]))} <= {extent}"
    return " && ".join([*checks, f"({tail})"]) if checks else tail
