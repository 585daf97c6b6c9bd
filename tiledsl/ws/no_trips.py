"""Sums of a dot loop that had no trips."""

from __future__ import annotations

from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import If
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ws.dot_loop import DotLoop
from tiledsl.ws.dot_loop import always_runs


def zero_if_empty(
    b: Builder, found: DotLoop, values: list[Value], trips: Value, *, in_place: bool
) -> list[Value]:
    """Accumulators that no iteration wrote are zero.

    A select on reading them, not a branch that clears them: with a write to the accumulators beside
    the wgmmas' ptxas injects waits (C7517, C7519). in_place: partial sums of a split loop are
    cleared all the same; they are sent from where they are.
    """
    if not in_place and always_runs(found.loop):
        return values
    assert isinstance(trips.type, ScalarType)
    empty = b.value(Compare("eq", trips, b.value(Constant(0, trips.type.dtype))), "empty")
    out = list(values)
    for i, zero in zip(found.sums, found.zero_init, strict=True):
        type_ = values[i].type
        if not zero or not isinstance(type_, TileType):
            continue
        if in_place:
            out[i] = cleared(b, values[i], empty)
            continue
        nothing = b.value(Splat(b.value(Constant(0, type_.dtype)), type_.shape))
        where = b.value(Splat(empty, type_.shape))
        out[i] = b.value(Select(where, nothing, values[i]), values[i].name)
    return out


def cleared(b: Builder, value: Value, empty: Value) -> Value:
    """A tile, or zeros in its place, by a branch."""
    assert isinstance(value.type, TileType)
    branch = If(empty, result_types=(value.type,))
    b.add(branch)
    branch.results[0].name = value.name
    with b.at(branch.then):
        nothing = b.value(Constant(0, value.type.dtype))
        b.add(Yield((b.value(Splat(nothing, value.type.shape)),)))
    with b.at(branch.orelse):
        b.add(Yield((value,)))
    return branch.results[0]
