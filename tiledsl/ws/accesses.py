"""Takes the computation of addresses and masks into the loads, stores and atomics that need them.

Afterwards no tile of pointers exists in registers unless a loop carries one: an access computes the
address of each register, from coordinates, scalars and tiles of integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiledsl.dtypes import DType
from tiledsl.dtypes import int1
from tiledsl.dtypes import int32
from tiledsl.errors import ScheduleError
from tiledsl.ir.analysis.axis_info import AxisFacts
from tiledsl.ir.analysis.axis_info import axis_facts
from tiledsl.ir.analysis.masks import only_falls
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.layout import Layout
from tiledsl.ir.layout import Unit
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import atomic
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import And
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.pointer_copy import COPY_BYTES
from tiledsl.ir.ops.pointer_copy import Copy
from tiledsl.ir.ops.pointer_copy import CopyLanes
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.vectors import vectors_of
from tiledsl.ws.access_layouts import RegisterAccess
from tiledsl.ws.access_layouts import access_of
from tiledsl.ws.access_layouts import access_width
from tiledsl.ws.access_layouts import anchor
from tiledsl.ws.access_layouts import copied_width
from tiledsl.ws.access_layouts import repeated
from tiledsl.ws.access_layouts import vector_dim
from tiledsl.ws.free import is_index
from tiledsl.ws.fuse import LoopBody
from tiledsl.ws.shifted import shift_of


def fuse_accesses(graph: TileGraph, region: Region, divisors: Mapping[str, int]) -> int:
    """Replaces the accesses of tiles under `region`; returns how many there are."""
    facts = axis_facts(region, divisors)
    found = [access for op in list(region.walk()) if (access := access_of(op)) is not None]
    for op in found:
        if isinstance(op, Copy):
            _replace_copy(graph, op, facts)
        else:
            _replace(graph, op, facts)
    _drop_dead(graph, region)
    return len(found)


def _replace(graph: TileGraph, op: RegisterAccess, facts: AxisFacts) -> None:
    type_ = anchor(op).type
    assert isinstance(type_, TileType)
    assert type_.layout is not None
    width, whole = access_width(op, type_.layout, facts)
    body = _AddressBody(graph, type_)
    identity = tuple(range(type_.rank))
    yields = [body.scalar(op.pointer, identity)]
    mask = op.mask if not isinstance(op, atomic.Cas) else None
    inside = [body.condition(mask, _runs(op, mask, width, facts))] if mask is not None else []
    inside += body.padding(type_.layout)
    filled = isinstance(op, pointer.Load) and op.other is not None
    if inside:
        yields.append(body.all(inside))
    if isinstance(op, pointer.Load) and op.other is not None:
        yields.append(body.scalar(op.other, identity))
    inputs = body.close(tuple(yields))
    common: dict[str, Any] = {
        "inputs": tuple(v for v, _ in inputs),
        "shape": type_.shape,
        "layout": type_.layout,
        "follows": tuple(d for _, d in inputs),
        "dtype": pointer.pointed_to(op.pointer, op.opcode),
        "masked": bool(inside),
        "filled": filled,
        **_shift(op, type_.layout, facts),
        "body": body.body,
        "loc": op.loc,
    }
    repeats = repeated(op, type_.layout, facts) if width == 1 else 1
    new = _lanes(graph, op, common, width, whole=whole, repeats=repeats)
    graph.replace_op(op, new)


def _runs(op: RegisterAccess, mask: Value, width: int, facts: AxisFacts) -> tuple[int, ...]:
    """For each dimension the elements that share a condition, of a load of single elements.

    1 where a thread has one of them alone, or others have some of its run.
    """
    axes, type_ = facts.of(mask).axes, anchor(op).type
    assert isinstance(type_, TileType)
    assert type_.layout is not None
    if not isinstance(op, pointer.Load) or width > 1 or len(axes) == 1:
        return (1,) * len(axes)
    runs = tuple(axis.constancy & -axis.constancy for axis in axes)
    return tuple(_own_run(type_.layout, dim, run) for dim, run in enumerate(runs))


def _own_run(layout: Layout, dim: int, run: int) -> int:
    """The length of runs, where a thread has whole ones of more than an element; else 1."""
    threads = (*layout.unit_terms(dim, Unit.LANE), *layout.unit_terms(dim, Unit.WARP))
    is_own = layout.unit_terms(dim, Unit.REG) and not any(t[2] % run for t in threads)
    return run if is_own else 1


def _shift(op: RegisterAccess, layout: Layout, facts: AxisFacts) -> dict[str, Any]:
    """Attributes of an access that is shifted."""
    shift = shift_of(op, layout, facts)
    if shift is None:
        return {"falls": _falls(op, layout, facts)}
    kinds = {"falls": shift.falls, "alike": shift.alike, "chained": shift.chained}
    return {"shifted": shift.lanes, **kinds}


def _falls(op: RegisterAccess, layout: Layout, facts: AxisFacts) -> bool:
    """Whether the mask of a load or a store only falls inside of its vectors."""
    found = vectors_of(layout)
    if found is None or not isinstance(op, pointer.Load | pointer.Store) or op.mask is None:
        return False
    return only_falls(op.mask, found.dim, found.size, facts)


def _replace_copy(graph: TileGraph, op: Copy, facts: AxisFacts) -> None:
    """A copy moves as much at once as addresses and mask allow.

    Raises:
        ScheduleError: less than the hardware copies.
    """
    type_ = op.result.type
    assert isinstance(type_, TileType)
    assert type_.layout is not None
    width, whole = access_width(op, type_.layout, facts)
    if (found := vector_dim(type_.layout)) is not None:
        width, whole = copied_width(op, found[0], width, facts)
    if width * type_.dtype.bytes < min(COPY_BYTES):
        raise ScheduleError(f"copies of {width * type_.dtype.bytes} bytes", op.loc)
    body = _AddressBody(graph, type_)
    identity = tuple(range(type_.rank))
    yields = [body.scalar(op.pointer, identity)]
    if op.mask is not None:
        yields.append(body.scalar(op.mask, identity))
    inputs = body.close(tuple(yields))
    new = CopyLanes(
        tuple(v for v, _ in inputs),
        type_.shape,
        type_.layout,
        tuple(d for _, d in inputs),
        dtype=pointer.pointed_to(op.pointer, op.opcode),
        masked=op.mask is not None,
        width=width,
        whole=whole,
        slot=op.slot,
        body=body.body,
        loc=op.loc,
    )
    graph.insert_before(op, new)
    graph.erase(op)


def _lanes(
    graph: TileGraph,
    op: RegisterAccess,
    common: dict[str, Any],
    width: int,
    *,
    whole: bool,
    repeats: int = 1,
) -> Op:
    wanted = bool(op.results) and graph.has_uses(op.result)
    shared = wanted and common["layout"].has_replicas
    match op:
        case pointer.Load():
            return pointer.LoadLanes(
                **common,
                width=width,
                whole=whole,
                hint="volatile" if op.volatile else op.hint,
                repeats=repeats,
                names=(op.result.name,),
            )
        case pointer.Store():
            return pointer.StoreLanes(
                **common, width=width, whole=whole, hint=op.hint, value=op.value
            )
        case atomic.Rmw():
            vectors = whole and op.kind == "add" and not wanted
            return atomic.RmwLanes(
                **common,
                width=width if vectors and has_vectors(common["dtype"]) else 1,
                kind=op.kind,
                value=op.value,
                sem=op.sem,
                scope=op.scope,
                shared=shared,
                names=(op.result.name,),
            )
        case _:
            return atomic.CasLanes(
                **common,
                compare=op.compare,
                value=op.value,
                sem=op.sem,
                scope=op.scope,
                shared=shared,
                names=(op.result.name,),
            )


def has_vectors(dtype: DType) -> bool:
    """Whether an instruction adds several neighbours of a dtype at once."""
    return dtype.is_float and dtype.bits in (16, 32)


class _AddressBody(LoopBody):
    """The body of an access: index math is always made in place."""

    shortens_masks = False

    def __init__(self, graph: TileGraph, type_: TileType) -> None:
        super().__init__(graph, type_, set())

    def inlines(self, op: Op) -> bool:
        return is_index(op)

    def condition(self, mask: Value, runs: tuple[int, ...]) -> Value:
        """The element of a mask, asked of the first one of those in a run, which are alike."""
        identity = tuple(range(len(runs)))
        if max(runs, default=1) == 1:
            return self.scalar(mask, identity)
        coords, memo = self.coords, self.memo
        firsts = dict[int, Value]()
        for dim, run in enumerate(runs):
            at = self.coordinate(dim)
            firsts[dim] = at if run == 1 else self.add(And(at, self.add(Constant(-run, int32))))
        self.coords, self.memo = firsts, {}
        found = self.scalar(mask, identity)
        self.coords, self.memo = coords, memo
        return found

    def padding(self, layout: Layout) -> list[Value]:
        """Conditions that keep out registers beyond the tile."""
        out: list[Value] = []
        for dim, (n, padded) in enumerate(zip(self.type.shape, layout.padded_shape, strict=True)):
            if padded > n:
                at = self.coordinate(dim)
                out.append(self.add(Compare("lt", at, self.add(Constant(n, int32)))))
        return out

    def all(self, conditions: list[Value]) -> Value:
        """The conjunction."""
        found = conditions[0]
        assert found.type == ScalarType(int1)
        for other in conditions[1:]:
            found = self.add(And(found, other))
        return found

    def close(self, values: tuple[Value, ...]) -> list[tuple[Value, tuple[int | None, ...]]]:
        """Ends the body; returns its inputs and what their dimensions follow."""
        end = Yield(values)
        self.body.ops.append(end)
        end.parent = self.body
        self.number_arguments()
        return list(self.inputs)


def _drop_dead(graph: TileGraph, region: Region) -> None:
    """Erases pure ops that nothing reads any more."""
    for op in reversed(list(region.ops)):
        for inner in op.regions:
            if not isinstance(op, tile.Map | pointer.Lanes):
                _drop_dead(graph, inner)
        is_pure = op.effect is Effect.PURE and not op.regions
        if is_pure and op.results and not any(graph.has_uses(r) for r in op.results):
            graph.erase(op)
