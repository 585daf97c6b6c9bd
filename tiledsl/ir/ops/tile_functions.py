"""Functions of the language over shape ops: join, split, cat, flip, gather, histogram, softmax."""

from __future__ import annotations

from tiledsl.dtypes import int64
from tiledsl.errors import TypeMismatch
from tiledsl.ir import operators
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.broadcasting import unify
from tiledsl.ir.broadcasting import unify_pair
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import axis_argument
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.operands import element_type
from tiledsl.ir.operands import is_true
from tiledsl.ir.ops import reduce_functions
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise_functions import exp
from tiledsl.ir.ops.elementwise_library import fdiv
from tiledsl.ir.ops.reduce import Reduce
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import Reshape
from tiledsl.ir.ops.tile import expand_dims
from tiledsl.ir.ops.tile import reshape
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.ops.tile_moves import Cat
from tiledsl.ir.ops.tile_moves import Flip
from tiledsl.ir.ops.tile_moves import Gather
from tiledsl.ir.ops.tile_moves import Histogram
from tiledsl.ir.ops.tile_moves import Join
from tiledsl.ir.ops.tile_moves import Split
from tiledsl.ir.pointer_values import need_numbers
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

ON_TILES = (TileType,)


def as_scalar(b: Builder, x: Value) -> Value:
    """The only element of a tile."""
    t = tile_type(x, "scalar")
    if t.dtype.is_pointer:
        return b.value(Cast(as_scalar(b, b.value(Cast(x, int64))), t.dtype))
    kind = "or" if t.dtype.kind == "bool" else "sum"
    op = Reduce((x,), axes=tuple(range(t.rank)), kind=kind)
    b.add(op)
    return op.results[0]


# ---------------------------------------------------------------------- join and cut
@builtin
def broadcast(b: Builder, input: Operand, other: Operand) -> tuple[Value, Value]:
    """Both operands in the shape that they broadcast to; each keeps its dtype."""
    left, right = unify(b, (as_value(b, input), as_value(b, other)), None, "broadcast()")
    return left, right


@builtin(methods=ON_TILES)
def join(b: Builder, a: Operand, other: Operand) -> Value:
    """A new last axis of extent 2 that holds `a`, then `other`; both broadcast together."""
    left, right = unify_pair(b, a, other, "join()")
    if isinstance(left.type, ScalarType):
        one = [broadcast_value(b, v, (1,), "join()") for v in (left, right)]
        return b.value(Reshape(b.value(Join(one[0], one[1])), (2,)))
    return b.value(Join(left, right))


@builtin(methods=ON_TILES)
def split(b: Builder, a: Value) -> tuple[Value, Value]:
    """The two tiles (or scalars) along a last axis of extent 2."""
    t = tile_type(a, "split()")
    if t.shape[-1:] != (2,):
        raise TypeMismatch(f"split(): the last axis must have extent 2, got shape {list(t.shape)}")
    if t.rank == 1:
        a = b.value(ExpandDims(a, 0))
    op = Split(a)
    b.add(op)
    first, second = op.results
    return (as_scalar(b, first), as_scalar(b, second)) if t.rank == 1 else (first, second)


@builtin
def interleave(b: Builder, a: Operand, other: Operand) -> Value:
    """Elements of the last axes of two tiles by turns: a0, b0, a1, b1, ..."""
    both = join.fn(b, a, other)
    shape = tile_type(both, "interleave()").shape
    if len(shape) == 1:
        return both
    return b.value(Reshape(both, (*shape[:-2], 2 * shape[-2])))


@builtin
def cat(b: Builder, input: Value, other: Value, can_reorder: bool = False, dim: int = 0) -> Value:
    """`input`, then `other` along an axis. can_reorder: accepted; the order is kept anyway."""
    del can_reorder
    left, right = tile_type(input, "cat()"), tile_type(other, "cat()")
    if left.dtype != right.dtype:
        raise TypeMismatch(f"cat(): dtypes differ: {left.dtype!r} and {right.dtype!r}")
    return b.value(Cat(input, other, axis_argument(dim, left.rank, "cat(): dim")))


@builtin(methods=ON_TILES)
def flip(b: Builder, x: Value, dim: int | None = None) -> Value:
    """The elements in reverse order along an axis, by default the last."""
    rank = tile_type(x, "flip()").rank
    return b.value(Flip(x, axis_argument(-1 if dim is None else dim, rank, "flip(): dim")))


@builtin(methods=ON_TILES)
def gather(b: Builder, src: Value, index: Value, axis: int) -> Value:
    """Element i of the result is the element of `src` whose coordinate along `axis` is `index[i]`.

    index: integers, of src's rank and of its extents on the other axes. Those outside of
    [0, extent) read the element at the nearest bound.
    """
    rank = tile_type(src, "gather()").rank
    return b.value(Gather(src, index, axis_argument(axis, rank, "gather(): axis")))


@builtin(methods=ON_TILES)
def histogram(b: Builder, input: Value, num_bins: int, mask: Operand | None = None) -> Value:
    """How often 0, 1, ..., num_bins - 1 occur in a tile of integers with one axis; int32.

    mask: only elements where it holds are counted. Other values are not counted.
    """
    t = tile_type(input, "histogram()")
    kept = None
    if mask is not None:
        kept = broadcast_value(b, is_true(b, mask, "histogram(): mask"), t.shape, "histogram()")
    bins = compile_time_int(num_bins, "histogram(): num_bins")
    return b.value(Histogram(input, kept, num_bins=bins))


# ---------------------------------------------------------------------- axes
@builtin(methods=ON_TILES)
def squeeze(b: Builder, x: Value, dim: int) -> Value:
    """Removes an axis of extent 1."""
    shape = tile_type(x, "squeeze()").shape
    axis = axis_argument(dim, len(shape), "squeeze(): dim")
    if shape[axis] != 1:
        raise TypeMismatch(f"squeeze(): axis {axis} of shape {list(shape)} is not 1")
    rest = shape[:axis] + shape[axis + 1 :]
    return b.value(Reshape(x, rest)) if rest else as_scalar(b, x)


@builtin(methods=(TileType, ScalarType))
def unsqueeze(b: Builder, x: Value, dim: int) -> Value:
    """Inserts an axis of extent 1."""
    return expand_dims.fn(b, x, dim)


@builtin
def view(b: Builder, input: Value, *shape: int) -> Value:
    """As `reshape`."""
    return reshape.fn(b, input, *shape)


# ---------------------------------------------------------------------- compositions
@builtin(methods=ON_TILES)
def softmax(
    b: Builder,
    x: Value,
    dim: int | None = None,
    keep_dims: bool = False,
    ieee_rounding: bool = False,
) -> Value:
    """exp(x - max) / sum(exp(x - max)) along an axis, by default axis 0; float32 at least."""
    del keep_dims
    need_numbers("softmax()", x)
    axis = 0 if dim is None else dim
    if not element_type(x, "softmax()").is_float:
        raise TypeMismatch("softmax(): expected floats")
    top = reduce_functions.max.fn(b, x, axis, keep_dims=True)
    assert isinstance(top, Value)
    shifted = exp.fn(b, operators.binary(b, "-", x, top))
    total = reduce_functions.sum.fn(b, shifted, axis, keep_dims=True)
    return fdiv.fn(b, shifted, total, ieee_rounding)
