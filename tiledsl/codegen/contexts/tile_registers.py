"""Register tiles that are filled, and whose elements move between registers of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.codegen.contexts.exchange import rows_of_warps
from tiledsl.codegen.contexts.exchange import whole_tile
from tiledsl.codegen.contexts.tile import INDEX
from tiledsl.codegen.contexts.tile import MapContext
from tiledsl.codegen.contexts.tile import add
from tiledsl.codegen.contexts.tile import register_index
from tiledsl.codegen.contexts.tile import thread_coordinate
from tiledsl.codegen.cpp import indent
from tiledsl.codegen.cpp import is_packed
from tiledsl.codegen.cpp import scalar_type
from tiledsl.codegen.emission import Emission
from tiledsl.codegen.indexing import register_part
from tiledsl.codegen.indexing import registers_inside
from tiledsl.codegen.registry import Tie
from tiledsl.codegen.registry import emits
from tiledsl.codegen.registry import overwrites
from tiledsl.errors import CodegenError
from tiledsl.ir.layout import register_shift
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import tile as ops
from tiledsl.ir.ops.tile import tile_type


@dataclass(frozen=True)
class FillContext:
    """Every element equal to one scalar."""

    name: str
    value: str
    pins: str


@dataclass(frozen=True)
class ShiftContext:
    """Registers that move down in one variable, where the condition on `i` holds."""

    name: str
    count: int
    condition: str
    distance: int
    pins: str


# ---------------------------------------------------------------------- shifts
@overwrites("tile.shift")
def shift_ties(op: ops.Shift) -> tuple[Tie, ...]:
    """Registers move down in one variable."""
    return ((op.result, op.a),)


@emits("tile.shift")
def shift(op: ops.Shift, e: Emission) -> ShiftContext:
    """`acc_1[i] = acc_1[i + 32]` where there is such an element, from the first register up.

    Raises:
        CodegenError: elements of the distance do not lie in registers of one distance.
    """
    type_ = tile_type(op.result, "shift")
    layout = e.layout(type_)
    found = register_shift(layout, type_.shape, op.dim, op.distance)
    if found is None:
        raise CodegenError("tile.shift: registers of the layout do not move together")
    kept = [n - op.distance * (d == op.dim) for d, n in enumerate(type_.shape)]
    condition, _ = registers_inside(layout, (0,) * len(kept), kept, own=False)
    name = e.in_place((op.result, op.a))
    pins = f"keep({name});" if e.is_accumulator(op.result) else ""
    return ShiftContext(name, layout.num_regs, condition, found, pins)


# ---------------------------------------------------------------------- fills
@emits("tile.splat")
def splat(op: ops.Splat, e: Emission) -> FillContext:
    """`fill(acc_1, 0.0f);`."""
    name = e.name(op.result, "x")
    dtype = tile_type(op.result, "splat").dtype
    value = e.text(op.a)
    if not is_packed(dtype) and dtype.kind != "bool":
        value = value if _is_plain(value) else f"({scalar_type(dtype)})({value})"
    return FillContext(name, value, f"keep({name});" if e.is_accumulator(op.result) else "")


def _is_plain(text: str) -> bool:
    return "(" not in text


@emits("tile.undef")
def undef(op: ops.Undef, e: Emission) -> None:
    """A declaration only."""
    e.name(op.result, "acc")


@emits("tile.arange")
def arange(op: ops.Arange, e: Emission) -> MapContext:
    """Coordinates as values."""
    name = e.name(op.result, "x")
    layout = e.layout(tile_type(op.result, "arange"))
    text = add(
        str(op.start) if op.start else "",
        thread_coordinate(e, layout, 0, "at"),
        register_part(layout, 0),
    )
    return MapContext("", layout.num_regs, indent(f"{name}[{INDEX}] = {text};"))


# ---------------------------------------------------------------------- moves
def _move(op: Op, e: Emission, source: Value, follows: Sequence[int | None]) -> MapContext:
    """Registers renamed.

    The elements of the source that a thread of the result needs are its own.
    """
    result = op.results[0]
    layout = e.layout(tile_type(result, op.opcode))
    name = e.name(result, "x")
    index = register_index(e, layout, source, follows)
    pins = f"keep({name});" if e.is_accumulator(result) else ""
    body = indent(f"put_raw({name}, {INDEX}, get_raw({e.text(source)}, {index}));")
    return MapContext("", layout.num_regs, body, pins)


@emits("tile.convert_layout")
def convert_layout(op: ops.ConvertLayout, e: Emission) -> object:
    """Registers renamed where that is all, else through shared memory."""
    if op.scratch is not None:
        if op.is_within_warps:
            return rows_of_warps(op, e)
        return whole_tile(op, e, op.a, "exchange")
    return _move(op, e, op.a, tuple(range(tile_type(op.result, "convert").rank)))


@emits("tile.transpose")
def transpose(op: ops.Transpose, e: Emission) -> MapContext:
    """Source dimension order[i] follows result dimension i."""
    return _move(op, e, op.a, tuple(op.order.index(d) for d in range(len(op.order))))


@emits("tile.expand_dims")
def expand_dims(op: ops.ExpandDims, e: Emission) -> MapContext:
    """The inserted dimension is left out."""
    rank = tile_type(op.a, "expand_dims").rank
    return _move(op, e, op.a, tuple(d if d < op.axis else d + 1 for d in range(rank)))


@emits("tile.broadcast")
def broadcast(op: ops.Broadcast, e: Emission) -> MapContext:
    """Dimensions of extent 1 follow nothing."""
    shape = tile_type(op.a, "broadcast").shape
    return _move(
        op,
        e,
        op.a,
        tuple(
            None if a == 1 != b else d for d, (a, b) in enumerate(zip(shape, op.shape, strict=True))
        ),
    )
