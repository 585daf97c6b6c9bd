"""Turns accesses through pointers into block accesses of tensors, so that loops can be specialised.

`a_ptr + rows[:, None] * stride + cols[None, :]` with bounds as mask is a block of a tensor whose
extents and strides are arguments of the kernel. Where all operands of the dots are such blocks, and
a tensor map can load them, the pointers become tensor arguments ("views") that the launch makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field

from tiledsl.dtypes import DType
from tiledsl.dtypes import int32
from tiledsl.errors import SourceLoc
from tiledsl.ir.analysis.affine import NotAffine
from tiledsl.ir.analysis.affine import Product
from tiledsl.ir.analysis.affine import Sum
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.axis_values import Divisors
from tiledsl.ir.builder import Builder
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import control
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import memory
from tiledsl.ir.ops import mma
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.pointer import Load
from tiledsl.ir.ops.pointer import Store
from tiledsl.ir.ops.pointer import origin_of
from tiledsl.ir.ops.pointer import pointed_to
from tiledsl.ir.specs import TMA_ALIGN_BYTES
from tiledsl.ir.specs import TMA_MAX_RANK
from tiledsl.ir.specs import TensorView
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType
from tiledsl.ws.box_lines import Divides
from tiledsl.ws.box_lines import quotient
from tiledsl.ws.box_lines import within_rows
from tiledsl.ws.box_numbers import as_item
from tiledsl.ws.box_numbers import divisor_of
from tiledsl.ws.box_numbers import factors_of
from tiledsl.ws.box_numbers import shown
from tiledsl.ws.boxes import Box
from tiledsl.ws.boxes import Side
from tiledsl.ws.boxes import box_of
from tiledsl.ws.boxes import upper_bounds


@dataclass
class Blocks:
    """What became of the accesses of a graph.

    views: tensor arguments that were added, in order. notes: why accesses stayed as they are.
    pointers: loads of operands that did.
    """

    views: list[TensorView] = field(default_factory=list[TensorView])
    notes: list[str] = field(default_factory=list[str])
    pointers: list[Load] = field(default_factory=list[Load])

    def decline(self, op: Op, reason: str) -> None:
        at = f" ({_place(op.loc)})" if op.loc else ""
        self.notes.append(f"accesses through pointers stay: {reason}{at}")


def _place(loc: SourceLoc) -> str:
    return loc.short


def block_accesses(graph: TileGraph, *, copies: bool = False) -> Blocks:
    """Replaces accesses by block accesses where every operand of a dot can be loaded that way.

    copies: also where some cannot, which threads are to copy.
    """
    out = Blocks()
    operands = _operand_loads(graph)
    if not operands or isinstance(operands, Op):
        if isinstance(operands, Op):
            out.decline(operands, "an operand of the dot is not loaded")
        return out
    written = _written(graph)
    boxes: dict[Op, Box] = {}
    divisors: Mapping[str, int] = graph.facts.get("divisors", {})
    facts = axis_facts(graph.body, divisors)
    loading = _Loading(graph, written, divisors, lambda v: facts.of(v).every)
    for load in operands:
        found = loading.operand_box(load)
        if isinstance(found, Box):
            boxes[load] = found
            continue
        out.decline(load, found)
        out.pointers.append(load)
        if not copies:
            return out
    for op in graph.walk():
        if (
            op in boxes
            or op in out.pointers
            or not isinstance(op, Load | Store)
            or not _is_tile(op.pointer)
        ):
            continue
        try:
            box = box_of(op)
        except NotAffine as reason:
            out.decline(op, str(reason))
            continue
        found = _problem(graph, op, box, written) or loading.within_rows(op, box)
        if isinstance(found, Box):
            boxes[op] = found
        else:
            out.decline(op, found)
    _rewrite(graph, boxes, divisors, out)
    return out


@dataclass(frozen=True)
class _Loading:
    """How boxes are found for loads of a graph.

    written: pointers that it writes through. divisors: of arguments. divides: of scalars.
    """

    graph: TileGraph
    written: set[str] | None
    divisors: Mapping[str, int]
    divides: Divides

    def operand_box(self, load: Load) -> Box | str:
        """The box that a tensor map loads for an operand, or why there is none."""
        try:
            box = box_of(load)
        except NotAffine as reason:
            return str(reason)
        problem = _problem(self.graph, load, box, self.written)
        return problem or tma_problem(load, box, self.divisors) or self.within_rows(load, box)

    def within_rows(self, op: Load | Store, box: Box) -> Box | str:
        """The box as a tensor map loads it, if one does."""
        type_ = op.pointer.type
        assert isinstance(type_, TileType)
        if isinstance(op, Store) or tma_problem(op, box, self.divisors):
            return box
        return within_rows(box, type_.shape, pointed_to(op.pointer, "load"), self.divides)


def _is_tile(value: Value) -> bool:
    return isinstance(value.type, TileType)


def _operand_loads(graph: TileGraph) -> list[Load] | Op:
    """The pointer loads behind the operands of dots, in order; the dot of one that has none."""
    found: dict[Load, None] = {}
    dots: list[mma.Dot] = graph.find(mma.Dot)
    for dot in dots:
        for value in (dot.a, dot.b):
            op = value.defining_op
            while isinstance(op, tile.Transpose) and op.order == (1, 0):
                op = op.a.defining_op
            if isinstance(op, Load):
                found[op] = None
    return list(found)


def _written(graph: TileGraph) -> set[str] | None:
    """Names of the pointers that the kernel writes through; None where one is unknown."""
    names: set[str] = set()
    for op in graph.walk():
        pointer = getattr(op, "pointer", None)
        if op.effect is Effect.WRITE and isinstance(pointer, Value):
            name = origin_of(pointer)
            if not name:
                return None
            names.add(name)
    return names


def _problem(graph: TileGraph, op: Load | Store, box: Box, written: set[str] | None) -> str:
    """Why an access must not become a block access; empty when it may."""
    if isinstance(op, Load):
        if op.volatile or op.hint:
            return "the load asks for a cache operator"
        if written is None or box.base.name in written:
            return "the kernel also stores through the pointer it loads from; store to another one"
        for dim, side in enumerate(box.sides):
            if side.wrap and not _beyond_is_dropped(graph, op.result, dim, side):
                return (
                    "an index wraps around, and what lies beyond is used: leave `% n` out and "
                    "mask the load, or store the result by `tl.store` under a mask"
                )
        return ""
    if any(s.wrap for s in box.sides):
        return "the index of a store wraps around: mask the store instead"
    return "the store asks for a cache operator" if op.hint else ""


def tma_problem(op: Load, box: Box, divisors: Mapping[str, int]) -> str:
    """Why no tensor map can load a box; empty when one can for all arguments of this class."""
    dtype = pointed_to(op.pointer, "load")
    if divisors.get(box.base.name, 1) % TMA_ALIGN_BYTES:
        return "the pointer is not aligned to 16 bytes; copy what it points to"
    sides = box.all_sides
    if len(sides) > TMA_MAX_RANK:
        return f"the tensor has {len(sides)} dimensions"
    if [s.stride for s in box.sides].count(1) != 1:
        return "no dimension has stride 1"
    for side in sides:
        if _is_empty(side, divisors):
            assert side.bound is not None
            return f"it has no elements, as {shown(side.bound)} is not over 0"
        if side.stride != 1 and divisor_of(side.stride, divisors) * dtype.bytes % TMA_ALIGN_BYTES:
            return (
                f"the stride {shown(side.stride)} is not known to be a multiple of 16 bytes; pad "
                "rows to such a multiple"
            )
    return ""


def _is_empty(side: Side, divisors: Mapping[str, int]) -> bool:
    """Whether an argument in an extent is one of which the launch says that it is 0 or less.

    A tensor map has no extent of 0.
    """
    numbers = divisors.numbers if isinstance(divisors, Divisors) else {}
    scalars = () if side.bound is None else factors_of(side.bound)[1]
    return any(not numbers.get(v.name, (1, True))[1] for v in scalars)


# ---------------------------------------------------------------------- indexes that wrap
def _beyond_is_dropped(graph: TileGraph, value: Value, dim: int, side: Side) -> bool:
    """Whether rows whose index wrapped are stored nowhere: masks of all stores leave them out."""
    if not isinstance(side.bound, Value | int):
        return False
    end = Sum.number_of(side.bound) if isinstance(side.bound, int) else _scalar(side.bound)
    limit = end + side.start.times(-1)
    seen: set[tuple[Value, int]] = set()
    pending = [(value, dim)]
    while pending:
        item = pending.pop()
        if item in seen:
            continue
        seen.add(item)
        for use in graph.users(item[0]):
            reached = _reached(use.op, use.index, *item, limit)
            if reached is None:
                return False
            pending += reached
    return True


def _scalar(value: Value) -> Sum:
    return Sum.of([Product(scalars=(value,))])


def _reached(
    op: Op, index: int, value: Value, dim: int, limit: Sum
) -> list[tuple[Value, int]] | None:
    """Where rows of an operand end up; None where they spread over a whole result."""
    match op:
        case mma.Dot():
            if value is op.acc:
                return [(op.result, dim)]
            kept = 0 if value is op.a else 1
            return [(op.result, dim)] if dim == kept and op.a is not op.b else None
        case tile.Transpose():
            return [(op.result, op.order.index(dim))]
        case control.For():
            at = index - 3
            return [(op.carried[at], dim), (op.results[at], dim)] if at >= 0 else None
        case control.Yield():
            return _yielded(op, index, dim)
        case Store():
            if op.value is not value or op.mask is None:
                return None
            try:
                limits = upper_bounds(op.mask, dim)
            except NotAffine:
                return None
            return [] if any((x + limit.times(-1)).number == 0 for x in limits) else None
        case _ if op.opcode.startswith("elementwise.") and op.results:
            return [(op.results[0], dim)] if _is_tile(op.results[0]) else None
        case _:
            return None


def _yielded(op: control.Yield, index: int, dim: int) -> list[tuple[Value, int]] | None:
    parent = op.parent.parent if op.parent is not None else None
    match parent:
        case control.For():
            return [(parent.carried[index], dim), (parent.results[index], dim)]
        case control.If():
            return [(parent.results[index], dim)]
        case _:
            return None


# ---------------------------------------------------------------------- rewriting
def _rewrite(
    graph: TileGraph, boxes: Mapping[Op, Box], divisors: Mapping[str, int], out: Blocks
) -> None:
    known: dict[tuple[object, ...], Value] = {}
    for op, box in boxes.items():
        assert isinstance(op, Load | Store)
        dtype = pointed_to(op.pointer, "block")
        tensor = _view(graph, box, dtype, divisors, known, out)
        assert op.parent is not None
        b = Builder(graph, op.parent, op.parent.ops.index(op), op.loc)
        offsets = tuple(_start(b, s) for s in box.all_sides)
        type_ = op.pointer.type
        assert isinstance(type_, TileType)
        block = (1,) * len(box.outer) + type_.shape
        squeeze = tuple(range(len(box.outer)))
        if isinstance(op, Load):
            new: Op = memory.Load(
                tensor,
                offsets,
                block_shape=block,
                squeeze=squeeze,
                loc=op.loc,
                names=(op.result.name,),
            )
        else:
            new = memory.Store(
                tensor, offsets, op.value, block_shape=block, squeeze=squeeze, loc=op.loc
            )
        graph.replace_op(op, new)


def _view(
    graph: TileGraph,
    box: Box,
    dtype: DType,
    divisors: Mapping[str, int],
    known: dict[tuple[object, ...], Value],
    out: Blocks,
) -> Value:
    """The tensor argument for a box; equal tensors are one."""
    sides = box.all_sides
    key = (box.base, *((s.stride, s.bound) for s in sides))
    if key in known:
        return known[key]
    inner = next((d for d, s in enumerate(sides) if s.stride == 1), None)
    align = divisors.get(box.base.name, 1)
    aligned = all(
        s.stride == 1 or divisor_of(s.stride, divisors) * dtype.bytes % TMA_ALIGN_BYTES == 0
        for s in sides
    )
    tma = inner is not None and aligned and align >= TMA_ALIGN_BYTES and len(sides) <= TMA_MAX_RANK
    tma = tma and not any(_is_empty(s, divisors) for s in sides)
    count = sum(v.pointer == box.base.name for v in out.views)
    name = f"{box.base.name}_view" + (f"_{count + 1}" if count else "")
    # An extent that the kernel does not check holds all that it stores.
    end = sides[inner].bound if inner is not None else None
    ragged = end is not None and divisor_of(end, divisors) * dtype.bytes % TMA_ALIGN_BYTES != 0
    type_ = TensorType(len(sides), dtype, inner, tma, min(align, TMA_ALIGN_BYTES), ragged)
    known[key] = graph.body.add_arg(type_, name)
    shape = tuple(None if s.bound is None else as_item(s.bound) for s in sides)
    strides = tuple(as_item(s.stride) for s in sides)
    out.views.append(TensorView(name, box.base.name, dtype, shape, strides))
    return known[key]


def _start(b: Builder, side: Side) -> Value:
    """The first coordinate of a box along a dimension."""
    if side.per == 1:
        return _coordinate(b, side.start)
    whole, rest = quotient(side.start, side.per)
    if not rest.products:
        return _coordinate(b, whole)
    parts = b.value(ew.FloorDiv(_coordinate(b, rest), b.value(ew.Constant(side.per, int32))))
    return b.value(ew.Add(_coordinate(b, whole), parts)) if whole.products else parts


def _coordinate(b: Builder, total: Sum) -> Value:
    """A sum of products of scalars as an int32 scalar."""
    result: Value | None = None
    for product in total.products:
        term: Value | None = None
        for scalar in product.scalars:
            assert isinstance(scalar.type, ScalarType)
            factor = scalar if scalar.type.dtype == int32 else b.value(ew.Cast(scalar, int32))
            term = factor if term is None else b.value(ew.Mul(term, factor))
        number = b.value(ew.Constant(product.number, int32))
        if term is None:
            term = number
        elif product.number != 1:
            term = b.value(ew.Mul(term, number))
        result = term if result is None else b.value(ew.Add(result, term))
    return result if result is not None else b.value(ew.Constant(0, int32))
