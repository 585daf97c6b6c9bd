"""Accesses through pointers that are boxes of strided tensors: their starts and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace

from tiledsl.ir.analysis.affine import Address
from tiledsl.ir.analysis.affine import NotAffine
from tiledsl.ir.analysis.affine import Product
from tiledsl.ir.analysis.affine import Sum
from tiledsl.ir.analysis.affine import address_of
from tiledsl.ir.analysis.affine import inner_dims
from tiledsl.ir.analysis.affine import sum_of
from tiledsl.ir.analysis.constants import constant_value
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.pointer import Load
from tiledsl.ir.ops.pointer import Store
from tiledsl.ir.types import TileType
from tiledsl.ws.box_numbers import BoxNumber
from tiledsl.ws.box_numbers import is_int_argument
from tiledsl.ws.box_numbers import lifted
from tiledsl.ws.box_numbers import number_of

ONE = Sum((Product(),))


@dataclass(frozen=True)
class Side:
    """One dimension of a box.

    stride: elements. start: first coordinate. bound: extent of the tensor; None where the access is
    not bounded. wrap: whether coordinates beyond the bound begin anew instead of being left out.
    per: what the start is a multiple of and the coordinate is counted in.
    """

    stride: BoxNumber
    start: Sum
    bound: BoxNumber | None = None
    wrap: bool = False
    per: int = 1


@dataclass(frozen=True)
class Box:
    """A block of a tensor: dimensions that only position it, then those of the tile."""

    base: Value
    outer: tuple[Side, ...]
    sides: tuple[Side, ...]

    @property
    def all_sides(self) -> tuple[Side, ...]:
        return (*self.outer, *self.sides)


def box_of(access: Load | Store) -> Box:
    """The box that an access is. Raises NotAffine with the reason why it is none."""
    type_ = access.pointer.type
    assert isinstance(type_, TileType)
    address = address_of(access.pointer)
    if isinstance(access, Load) and access.other is not None and constant_value(access.other) != 0:
        raise NotAffine("the load has an `other` that is not 0")
    sides, outer = _positions(address, type_)
    bounds = list(_bounds(access.mask)) if access.mask is not None else []
    done = tuple(_bounded(d, s, bounds, outer) for d, s in enumerate(sides))
    return Box(address.base, tuple(Side(stride, start) for stride, start in outer.items()), done)


# ---------------------------------------------------------------------- strides and starts
def _positions(address: Address, type_: TileType) -> tuple[list[Side], dict[BoxNumber, Sum]]:
    sides = [_side(address, d, n) for d, n in enumerate(type_.shape)]
    named = [s.stride for s in sides if isinstance(s.stride, Value)]
    if len(set(named)) != len(named):
        raise NotAffine("two dimensions have the same stride")
    if len([s for s in sides if s.stride == 1]) > 1:
        raise NotAffine("two dimensions have stride 1")
    outer: dict[BoxNumber, Sum] = {}
    for product in address.offset.uniform.products:
        if not _assign(product, sides, outer):
            raise NotAffine(
                "an offset is no multiple of a stride of the tile: write it as an index times a "
                "stride that is a number or an argument"
            )
    return sides, outer


def _side(address: Address, dim: int, extent: int) -> Side:
    """Stride and modulus of one dimension of the tile."""
    along = [p for p in address.offset.products if p.dim == dim]
    if len(along) != 1:
        word = "does not move" if not along else "moves in several ways"
        raise NotAffine(f"the address {word} along dimension {dim}, of extent {extent}")
    (p,) = along
    if not p.scalars:
        stride: BoxNumber = p.number
    elif len(p.scalars) == 1 and p.number == 1 and is_int_argument(p.scalars[0]):
        stride = p.scalars[0]
    else:
        raise NotAffine(
            f"the stride of dimension {dim} is neither a number nor an argument: pass it as one"
        )
    if isinstance(stride, int) and stride < 1:
        raise NotAffine(f"the stride of dimension {dim} is {stride}")
    if p.modulus is None:
        return Side(stride, Sum())
    assert p.inner is not None
    if isinstance(p.modulus, Value) and not is_int_argument(p.modulus):
        raise NotAffine("a modulus is no argument: pass it as one")
    if isinstance(p.modulus, int) and p.modulus < 1:
        raise NotAffine(f"a modulus is {p.modulus}")
    return Side(stride, p.inner.uniform, p.modulus, wrap=True)


def _assign(product: Product, sides: list[Side], outer: dict[BoxNumber, Sum]) -> bool:
    """Adds an offset to the start of the dimension whose stride it is a multiple of."""
    for d, side in enumerate(sides):
        if isinstance(side.stride, Value) and side.stride in product.scalars:
            return _shift(sides, d, _without(product, side.stride))
    strides = [v for v in product.scalars if is_int_argument(v)]
    if strides and len(product.scalars) > 1:
        stride = strides[-1]
        outer[stride] = outer.get(stride, Sum()) + Sum.of([_without(product, stride)])
        return True
    fixed = [(s.stride, d) for d, s in enumerate(sides) if isinstance(s.stride, int)]
    for stride, d in sorted(fixed, reverse=True):
        if product.number % stride == 0 and not sides[d].wrap:
            return _shift(sides, d, replace(product, number=product.number // stride))
    return False


def _without(product: Product, scalar: Value) -> Product:
    left = list(product.scalars)
    left.remove(scalar)
    return replace(product, scalars=tuple(left))


def _shift(sides: list[Side], dim: int, product: Product) -> bool:
    if sides[dim].wrap:
        return False
    sides[dim] = replace(sides[dim], start=sides[dim].start + Sum.of([product]))
    return True


# ---------------------------------------------------------------------- masks
@dataclass(frozen=True)
class Bound:
    """`coordinate < limit` (or `coordinate >= limit`) along a dimension of the tile."""

    dim: int
    limit: Sum
    is_upper: bool


def _bounds(mask: Value) -> Iterator[Bound]:
    """The bounds whose conjunction a mask is. Raises NotAffine for other masks."""
    assert isinstance(mask.type, TileType)
    for part, dims in _parts(mask, tuple(range(mask.type.rank))):
        yield from _conditions(part, dims)


def _conditions(mask: Value, dims: tuple[int | None, ...]) -> Iterator[Bound]:
    """The bounds that one part of a mask is."""
    op = mask.defining_op
    match op:
        case ew.Compare():
            yield from _comparison(op, dims)
        case tile.Splat() if constant_value(op.a) is True:
            return
        case _:
            raise NotAffine("the mask is no conjunction of bounds")


def _comparison(op: ew.Compare, dims: tuple[int | None, ...]) -> Iterator[Bound]:
    if not isinstance(op.a.type, TileType) or op.a.type.dtype.kind != "int":
        raise NotAffine("the mask compares something else than indexes")
    if op.predicate not in ("lt", "le", "gt", "ge"):
        raise NotAffine("the mask is no bound")
    less = op.predicate in ("lt", "le")
    low, high = (op.a, op.b) if less else (op.b, op.a)
    # low < high, or low <= high where equality counts
    difference = sum_of(high, dims) + sum_of(low, dims).times(-1)
    if op.predicate in ("le", "ge"):
        difference = difference + ONE
    along = [p for p in difference.products if p.dim is not None]
    if len(along) != 1 or along[0].scalars or abs(along[0].number) != 1:
        raise NotAffine("the mask is no bound of one dimension")
    (p,) = along
    assert p.dim is not None
    if p.modulus is not None:
        rest = difference.uniform
        limit = rest.number if isinstance(p.modulus, int) else rest.single
        if p.number != -1 or limit != p.modulus:
            raise NotAffine("the mask bounds a remainder")
        return
    rest = difference.uniform
    # -coordinate + rest > 0, or coordinate + rest > 0
    if p.number == -1:
        yield Bound(p.dim, rest, is_upper=True)
    else:
        yield Bound(p.dim, rest.times(-1) + ONE, is_upper=False)


def upper_bounds(mask: Value, dim: int) -> list[Sum]:
    """Limits below which a mask keeps the coordinates along a dimension, from 0 on.

    What else it is a conjunction of only keeps out more.
    """
    assert isinstance(mask.type, TileType)
    found: list[Bound] = []
    for part, dims in _parts(mask, tuple(range(mask.type.rank))):
        try:
            found += _conditions(part, dims)
        except NotAffine:
            continue
    return [b.limit for b in found if b.dim == dim and b.is_upper]


def _parts(
    mask: Value, dims: tuple[int | None, ...]
) -> Iterator[tuple[Value, tuple[int | None, ...]]]:
    """What a mask is the conjunction of, with the dimensions of the mask that its own are."""
    todo = [(mask, dims)]
    while todo:
        mask, dims = todo.pop()
        op = mask.defining_op
        match op:
            case ew.And():
                todo += [(op.b, dims), (op.a, dims)]
            case tile.ExpandDims() | tile.Broadcast():
                todo.append((op.a, inner_dims(op, dims)))
            case _:
                yield mask, dims


def _bounded(dim: int, side: Side, bounds: list[Bound], outer: dict[BoxNumber, Sum]) -> Side:
    """Adds what a mask says of one dimension, in coordinates of the tensor.

    outer: other dimensions by their strides, extended by parts of a coordinate that its bound does
    not count: of `rs * C + c` where the mask keeps `c < C`, rs counts by itself.
    """
    for b in bounds:
        if b.dim != dim:
            continue
        if b.is_upper and not side.wrap:
            side = _lifted(side, side.start + b.limit, outer)
        limit = side.start + b.limit
        if not b.is_upper:
            if limit.number is None:
                raise NotAffine(
                    f"the low end of dimension {dim} is bounded by no number; a multiple of an "
                    "argument in its index is taken for a dimension of its own, unless that "
                    "argument is a tl.constexpr"
                )
            if limit.number != 0:
                raise NotAffine(f"the mask cuts dimension {dim} at the low end")
            continue
        bound = number_of(limit)
        if bound is None:
            raise NotAffine(f"the bound of dimension {dim} is no product of numbers and arguments")
        if side.bound is not None and side.bound != bound:
            raise NotAffine(f"dimension {dim} has two bounds")
        side = replace(side, bound=bound)
    return side


def _lifted(side: Side, limit: Sum, outer: dict[BoxNumber, Sum]) -> Side:
    """A dimension whose coordinate counts no more than its bound does, where that can be."""
    if number_of(limit) is not None:
        return side
    for p in side.start.products:
        found = lifted(p, side.stride) if p in limit.products else None
        if found is not None:
            stride, counted = found
            outer[stride] = outer.get(stride, Sum()) + Sum.of([counted])
            side = replace(side, start=side.start + Sum.of([p]).times(-1))
    return side
