"""Loops over registers of turned rows: what warps fetched for all rows, warps without edges."""

from __future__ import annotations

from tiledsl.codegen.emission import Emission
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Op
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise_index import Around
from tiledsl.ir.ops.elementwise_index import Within
from tiledsl.ir.ops.pointer import LoadLanes
from tiledsl.ir.ops.tile import Map
from tiledsl.ir.vectors import vectors_of


def read_segments(op: Op, e: Emission, group: int) -> tuple[str, str]:
    """The shift of the segments that a loop over registers reads, and the reads: vector by vector.

    `x_9_at.word`, and `if (j % 4 == 0) read_segment<q.value, 8>(x_9, 2 * j, x_9_at);`. group:
    registers of an iteration of a loop over j, 0 in one over registers i. Empty where none is read.
    """
    found = [v for v in dict.fromkeys(op.operands) if v in e.segments]
    lines: list[str] = []
    for v in found:
        load = v.defining_op
        assert isinstance(load, LoadLanes)
        width, arguments = load.width, f"{e.name(v)}, {{}}, {e.segments[v]}"
        index, first = ("j", f"{group} * j") if group else ("i", "i")
        call = f"read_segment<q.value, {width}>({arguments.format(first)});"
        lines.append(f"    if ({index} % {width // max(group, 1)} == 0) {call}")
    return (f"{e.segments[found[0]]}.word" if found else ""), "\n".join(lines)


def bound_of_map(op: Map) -> Within | None:
    """What keeps elements out of a loop whose warps hold runs of a row, where it has one.

    None also where results are packed, the loop makes the row's length, or reads segments.
    """
    loads = [v.defining_op for v in op.inputs]
    if any(isinstance(load, LoadLanes) and load.segment for load in loads):
        return None
    found = [inner for inner in op.body.ops if isinstance(inner, Within)]
    vectors = vectors_of(op.layout) if op.layout is not None else None
    if len(found) != 1 or vectors is None or not vectors.chained or op.part:
        return None
    bound = found[0]
    place = _signed(bound)
    is_input = bound.limit.owner is op.body and bound.limit.index < len(op.inputs)
    dims = op.body.args[len(op.inputs) :]
    is_place = place is not None and place.a in dims
    if not is_input or not is_place or any(d.is_float and d.bits < 32 for d in op.out_dtypes):
        return None
    return bound


def _signed(bound: Within) -> Add | None:
    """The place that a bound is asked of before it is taken modulo the tile's extent."""
    around = bound.place.defining_op
    place = around.place.defining_op if isinstance(around, Around) else None
    return place if isinstance(place, Add) else None


def whole_of_map(op: Map, e: Emission) -> str:
    """Whether all that a thread holds lies in the row: its first place and its last."""
    bound = bound_of_map(op)
    if bound is None or op.layout is None:
        return ""
    place = _signed(bound)
    assert place is not None
    at = e.coordinates[place.a]
    back = e.text(place.b)
    last = sum((n - 1) * weight for _, n, weight in op.layout.unit_terms(at.dim, Unit.REG))
    limit = e.text(bound.limit)
    first = f"{at.thread} + {back}"
    return f"is_within({first}, {limit}) && is_within({first} + {last}, {limit})"
