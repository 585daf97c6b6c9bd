"""Functions of the language over `reduce.reduce`: sum, max, argmax, reduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.dtypes import uint32
from tiledsl.errors import TypeMismatch
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import axis_argument
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import dtype_argument
from tiledsl.ir.operands import is_sequence
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import And
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Max
from tiledsl.ir.ops.elementwise import Min
from tiledsl.ir.ops.elementwise import Mul
from tiledsl.ir.ops.elementwise import Or
from tiledsl.ir.ops.elementwise import Xor
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.reduce import combined_types
from tiledsl.ir.ops.tile import Arange
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.pointer_values import need_numbers
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

ON_VALUES = (TileType, ScalarType)
_KIND_OF: dict[type[Op], str] = {
    Add: "sum", Mul: "prod", Max: "max", Min: "min", Xor: "xor", Or: "or", And: "and",
}  # fmt: skip


# ---------------------------------------------------------------------- shared with scans
def combine_region(
    b: Builder, function: object, dtypes: Sequence[DType], what: str
) -> tuple[str, Region]:
    """A combine function as (kind, empty region), or as ("", region) where it has no name.

    The function takes one element of each operand, then another, and returns their combination.
    """
    if b.apply is None:
        raise TypeMismatch(f"{what}: a combine function can only be given in a kernel")
    region = Region()
    scalars = [ScalarType(d) for d in dtypes]
    args = [region.add_arg(t, f"{side}{i}") for side in "ab" for i, t in enumerate(scalars)]
    with b.at(region):
        found = unwrap(b.apply(function, args))
        items = list(found) if is_sequence(found) else [found]
        if len(items) != len(dtypes):
            raise TypeMismatch(
                f"{what}: the combine function returns {len(items)} values, expected {len(dtypes)}"
            )
        values = [
            as_value(b, cast("Operand", x), d, what=f"{what}: the combine function's result")
            for x, d in zip(items, dtypes, strict=True)
        ]
        for value in values:
            if not isinstance(value.type, ScalarType):
                raise TypeMismatch(f"{what}: the combine function must return scalars")
        b.add(Yield(tuple(values)))
    kind = kind_of(region)
    if kind:
        for op in reversed(list(region.ops)):
            b.graph.erase(op)
        return kind, Region()
    return "", region


def kind_of(region: Region) -> str:
    """The name of the function that a combine region computes, or an empty string."""
    if len(region.args) != 2 or len(region.ops) != 2:
        return ""
    op = region.ops[0]
    if set(op.operands) != set(region.args) or getattr(op, "propagate_nan", False):
        return ""
    dtype = cast("ScalarType", region.args[0].type).dtype
    kind = _KIND_OF.get(type(op), "")
    return "" if kind in ("sum", "prod") and dtype.is_float and dtype.bits < 32 else kind


def operands_of(x: object, what: str) -> tuple[list[Value], bool]:
    """The tiles of an argument that is a tile or a tuple of tiles, and whether it is a tuple."""
    items = list(x) if is_sequence(x) else [x]
    values: list[Value] = []
    for item in items:
        if not isinstance(item, Value) or not isinstance(item.type, TileType):
            raise TypeMismatch(f"{what}: expected a tile, got {describe(item)}")
        values.append(item)
    need_numbers(what, *values)
    combined_types(values, what)
    return values, is_sequence(x)


# ---------------------------------------------------------------------- reductions
def _axes(axis: object, rank: int, what: str) -> tuple[int, ...]:
    axis = unwrap(axis)
    if axis is None:
        return tuple(range(rank))
    if is_sequence(axis):
        return tuple(sorted({axis_argument(a, rank, f"{what}: axis") for a in axis}))
    return (axis_argument(axis, rank, f"{what}: axis"),)


def _reduced(
    b: Builder, values: list[Value], axis: object, kind: str, what: str, *, keep_dims: object
) -> list[Value]:
    return _finish(b, values, axis, kind, Region(), what, keep_dims=keep_dims)


def _finish(
    b: Builder,
    values: list[Value],
    axis: object,
    kind: str,
    region: Region,
    what: str,
    *,
    keep_dims: object,
    rising: bool = False,
) -> list[Value]:
    rank = combined_types(values, what)[0].rank
    axes = _axes(axis, rank, what)
    op = Reduce(tuple(values), axes=axes, kind=kind, body=region, rising=rising)
    b.add(op)
    results = list(op.results)
    if not unwrap(keep_dims):
        return results
    if len(axes) == rank:
        return [broadcast_value(b, r, (1,) * rank, what) for r in results]
    for a in axes:
        results = [b.value(ExpandDims(r, a)) for r in results]
    return results


@builtin(methods=(TileType,))
def reduce(
    b: Builder,
    input: Value | tuple[Value, ...],
    axis: int | None,
    combine_fn: object,
    keep_dims: bool = False,
) -> Value | tuple[Value, ...]:
    """Combines the elements along an axis (all when None) with an associative function.

    The order is unspecified. input: a tile, or a tuple of tiles of one shape that are reduced
    together. combine_fn: takes one
    element of each tile, then another, and returns their combination (a tuple for a tuple).
    """
    values, is_tuple = operands_of(input, "reduce()")
    dtypes = [tile_type(v, "reduce()").dtype for v in values]
    kind, region = combine_region(b, combine_fn, dtypes, "reduce()")
    results = _finish(b, values, axis, kind, region, "reduce()", keep_dims=keep_dims)
    return tuple(results) if is_tuple else results[0]


@builtin(methods=ON_VALUES)
def sum(
    b: Builder,
    input: Operand,
    axis: int | None = None,
    keep_dims: bool = False,
    dtype: DType | None = None,
) -> Value:
    """The sum along an axis, or of all elements.

    Integers below 32 bits sum in int32 (uint32 when unsigned or bool), or in `dtype`; floats keep
    their type and are accumulated in float32 at least.
    """
    value = widened_sum(b, input, dtype, "sum()")
    if not isinstance(value.type, TileType):
        return value
    return _reduced(b, [value], axis, "sum", "sum()", keep_dims=keep_dims)[0]


def widened_sum(b: Builder, x: Operand, dtype: DType | None, what: str) -> Value:
    """The operand of a sum or product in the dtype that it is computed in."""
    need_numbers(what, x)
    value = as_value(b, x, what=what)
    if unwrap(dtype) is not None:
        return as_value(b, value, dtype_argument(dtype, f"{what}: dtype"))
    return as_value(b, value, summed_dtype(cast("TileType", value.type).dtype))


def summed_dtype(dtype: DType) -> DType:
    """The dtype in which elements of a dtype are summed: small integers widen."""
    if dtype.is_float or dtype.bits >= 32:
        return dtype
    return int32 if dtype.kind == "int" else uint32


def _ordered(b: Builder, x: Operand, what: str) -> Value:
    """The operand of an extremum: elements below 32 bits are widened."""
    need_numbers(what, x)
    value = as_value(b, x, what=what)
    dtype = cast("TileType", value.type).dtype
    if dtype.bits >= 32:
        return value
    return as_value(b, value, float32 if dtype.is_float else int32)


def _extremum(
    b: Builder, x: Operand, axis: object, kind: str, *, indices: object, keep_dims: object
) -> Value | tuple[Value, Value]:
    what = f"{kind}()"
    value = _ordered(b, x, what)
    if not isinstance(value.type, TileType):
        zero = b.value(Constant(0, int32))
        return (value, zero) if unwrap(indices) else value
    if not unwrap(indices):
        return _reduced(b, [value], axis, kind, what, keep_dims=keep_dims)[0]
    best, at = _indexed(b, value, axis, f"arg{kind}", what, keep_dims=keep_dims)
    return best, at


def _indexed(
    b: Builder, value: Value, axis: object, kind: str, what: str, *, keep_dims: object
) -> list[Value]:
    shape = tile_type(value, what).shape
    index = _positions(b, shape, _axes(axis, len(shape), what), what)
    values, region = [value, index], Region()
    return _finish(b, values, axis, kind, region, what, keep_dims=keep_dims, rising=True)


def _positions(b: Builder, shape: tuple[int, ...], axes: tuple[int, ...], what: str) -> Value:
    """For each element its index along the axes, counted in row-major order."""
    total: Value | None = None
    weight = 1
    for axis in reversed(axes):
        at = b.value(Arange(0, shape[axis]))
        for _ in range(len(shape) - 1 - axis):
            rank = tile_type(at, what).rank
            at = b.value(ExpandDims(at, rank))
        at = broadcast_value(b, at, shape, what)
        if weight > 1:
            scale = broadcast_value(b, b.value(Constant(weight, int32)), shape, what)
            at = b.value(Mul(at, scale))
        total = at if total is None else b.value(Add(total, at))
        weight *= shape[axis]
    assert total is not None
    return total


@builtin(methods=ON_VALUES)
def max(
    b: Builder,
    input: Operand,
    axis: int | None = None,
    return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Value | tuple[Value, Value]:
    """The largest element along an axis, or of all; NaN is ignored.

    Elements below 32 bits are widened to float32 or int32. return_indices: also the int32 index; of
    equal elements the first. Where all are NaN, so is the result, and the index is the first one.
    """
    del return_indices_tie_break_left
    return _extremum(b, input, axis, "max", indices=return_indices, keep_dims=keep_dims)


@builtin(methods=ON_VALUES)
def min(
    b: Builder,
    input: Operand,
    axis: int | None = None,
    return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False,
) -> Value | tuple[Value, Value]:
    """The smallest element along an axis, or of all; see `max`."""
    del return_indices_tie_break_left
    return _extremum(b, input, axis, "min", indices=return_indices, keep_dims=keep_dims)


@builtin(methods=(TileType,))
def argmax(
    b: Builder, input: Value, axis: int | None, tie_break_left: bool = True, keep_dims: bool = False
) -> Value:
    """The int32 index of the largest element along an axis; of equal elements the first.

    NaN is ignored, where there is a number.
    """
    del tie_break_left
    return _indexed(
        b, _ordered(b, input, "argmax()"), axis, "argmax", "argmax()", keep_dims=keep_dims
    )[1]


@builtin(methods=(TileType,))
def argmin(
    b: Builder, input: Value, axis: int | None, tie_break_left: bool = True, keep_dims: bool = False
) -> Value:
    """The int32 index of the smallest element along an axis; of equal elements the first.

    NaN is ignored, where there is a number.
    """
    del tie_break_left
    return _indexed(
        b, _ordered(b, input, "argmin()"), axis, "argmin", "argmin()", keep_dims=keep_dims
    )[1]


@builtin(methods=(TileType,))
def xor_sum(b: Builder, input: Value, axis: int | None = None, keep_dims: bool = False) -> Value:
    """The exclusive or of integers along an axis, or of all."""
    return _reduced(
        b, [_integers(input, "xor_sum()")], axis, "xor", "xor_sum()", keep_dims=keep_dims
    )[0]


@builtin(methods=(TileType,))
def reduce_or(b: Builder, input: Value, axis: int | None = None, keep_dims: bool = False) -> Value:
    """The bitwise or of integers or bools along an axis, or of all."""
    return _reduced(
        b, [_integers(input, "reduce_or()")], axis, "or", "reduce_or()", keep_dims=keep_dims
    )[0]


def _integers(x: Value, what: str) -> Value:
    dtype = tile_type(x, what).dtype
    if dtype.is_float:
        raise TypeMismatch(f"{what}: expected integers, got {dtype!r}")
    return x
