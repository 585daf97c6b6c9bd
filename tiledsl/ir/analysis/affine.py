"""Integer and pointer expressions as sums of products: what boxes of strided tensors are found by.

A tile of pointers is `base + sum of products`; each product is a number times scalars times at most
one coordinate along a dimension of the tile. Arithmetic counts as exact: offsets of addresses have
64 bits, and coordinates are taken not to overflow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace

from tiledsl.ir.analysis.constants import wrap
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ew
from tiledsl.ir.ops import pointer
from tiledsl.ir.ops import tile
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import Yield
from tiledsl.ir.ops.elementwise_hints import Hint
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType

MAX_TERMS = 64

# For each dimension of a value, the dimension of the tile that it runs along.
Dims = tuple[int | None, ...]


class NotAffine(Exception):
    """An expression of another form; the text says which."""


@dataclass(frozen=True)
class Product:
    """`number * scalars * coordinate`.

    scalars: sorted by id. dim: the dimension whose coordinate 0, 1, ... is a factor, or None.
    modulus: the coordinate with all its scalar terms is reduced modulo this; such a product stands
    for the whole remainder, `inner` for what is reduced.
    """

    number: int = 1
    scalars: tuple[Value, ...] = ()
    dim: int | None = None
    modulus: Value | int | None = None
    inner: Sum | None = None

    @property
    def key(self) -> tuple[object, ...]:
        return (self.scalars, self.dim, self.modulus, self.inner)


@dataclass(frozen=True)
class Sum:
    """A sum of products, equal ones merged."""

    products: tuple[Product, ...] = ()

    @staticmethod
    def of(products: Iterable[Product]) -> Sum:
        """Merges products of the same factors; drops zeros."""
        found: dict[tuple[object, ...], Product] = {}
        for p in products:
            old = found.get(p.key)
            found[p.key] = p if old is None else replace(old, number=old.number + p.number)
        kept = tuple(p for p in found.values() if p.number)
        if len(kept) > MAX_TERMS:
            raise NotAffine("the address has too many terms")
        return Sum(kept)

    @staticmethod
    def number_of(number: int) -> Sum:
        """A constant."""
        return Sum.of([Product(number)])

    def __add__(self, other: Sum) -> Sum:
        return Sum.of((*self.products, *other.products))

    def times(self, number: int) -> Sum:
        return Sum.of(replace(p, number=p.number * number) for p in self.products)

    def __mul__(self, other: Sum) -> Sum:
        return Sum.of(_product(p, q) for p in self.products for q in other.products)

    @property
    def uniform(self) -> Sum:
        """The products without a coordinate."""
        return Sum(tuple(p for p in self.products if p.dim is None))

    @property
    def number(self) -> int | None:
        """The value where it is a known number."""
        if not self.products:
            return 0
        (first, *rest) = self.products
        if rest or first.scalars or first.dim is not None:
            return None
        return first.number

    @property
    def single(self) -> Value | None:
        """The scalar that the sum is, or None."""
        if len(self.products) != 1:
            return None
        (p,) = self.products
        is_plain = p.number == 1 and len(p.scalars) == 1 and p.dim is None
        return p.scalars[0] if is_plain else None


def _product(p: Product, q: Product) -> Product:
    if p.dim is not None and q.dim is not None:
        raise NotAffine("two coordinates are multiplied")
    scalars = tuple(sorted((*p.scalars, *q.scalars), key=lambda v: v.id))
    one = p if p.dim is not None else q
    return replace(one, number=p.number * q.number, scalars=scalars)


@dataclass(frozen=True)
class Address:
    """A tile of pointers: a pointer argument moved by a sum of elements."""

    base: Value
    offset: Sum = field(default_factory=Sum)


def address_of(value: Value) -> Address:
    """A tile of pointers as an address. Raises NotAffine."""
    assert isinstance(value.type, TileType)
    return _address(value, tuple(range(value.type.rank)))


@deep
def _address(value: Value, dims: Dims) -> Address:
    op = value.defining_op
    if op is None:
        if isinstance(value.type, ScalarType) and value.is_argument:
            return Address(value)
        raise NotAffine("the pointer comes from a loop or a branch")
    match op:
        case pointer.Add():
            inner = _address(op.pointer, dims)
            return Address(inner.base, inner.offset + sum_of(op.offset, dims))
        case tile.Splat():
            return _address(op.a, ())
        case tile.ExpandDims() | tile.Broadcast() | tile.Transpose():
            return _address(op.a, inner_dims(op, dims))
        case Hint():
            return _address(op.a, dims)
        case _:
            raise NotAffine(f"the pointer is computed by {op.opcode}")


def inner_dims(op: tile.ExpandDims | tile.Broadcast | tile.Transpose, dims: Dims) -> Dims:
    """Dims of an op's operand from those of its result."""
    match op:
        case tile.ExpandDims():
            return (*dims[: op.axis], *dims[op.axis + 1 :])
        case tile.Broadcast():
            source = op.a.type
            assert isinstance(source, TileType)
            pairs = zip(dims, source.shape, op.shape, strict=True)
            return tuple(d if n == m else None for d, n, m in pairs)
        case tile.Transpose():
            inverse = [op.order.index(i) for i in range(len(op.order))]
            return tuple(dims[i] for i in inverse)


@deep
def sum_of(value: Value, dims: Dims = ()) -> Sum:
    """An integer scalar or tile as a sum. Raises NotAffine."""
    op = value.defining_op
    match op:
        case ew.Add() | ew.Sub() | ew.Mul() | ew.Neg():
            return _arithmetic(op, dims)
        case ew.Constant():
            return Sum.of([Product(wrap(int(op.value), op.dtype))])
        case ew.Cast() if _is_signed(op.a) and op.dtype.kind == "int" and op.dtype.bits >= 32:
            return sum_of(op.a, dims)
        case Hint():
            return sum_of(op.a, dims)
        case tile.Splat():
            return sum_of(op.a)
        case tile.Arange():
            (dim,) = dims
            start = Product(op.start)
            return Sum.of([start] if dim is None else [start, Product(dim=dim)])
        case tile.ExpandDims() | tile.Broadcast() | tile.Transpose():
            return sum_of(op.a, inner_dims(op, dims))
        case ew.Mod() if isinstance(value.type, TileType):
            return _remainder(op, dims)
        case _:
            return _leaf(value)


def _arithmetic(op: ew.Add | ew.Sub | ew.Mul | ew.Neg, dims: Dims) -> Sum:
    a = sum_of(op.a, dims)
    match op:
        case ew.Add():
            return a + sum_of(op.b, dims)
        case ew.Sub():
            return a + sum_of(op.b, dims).times(-1)
        case ew.Mul():
            return a * sum_of(op.b, dims)
        case ew.Neg():
            return a.times(-1)


def _is_signed(value: Value) -> bool:
    type_ = value.type
    return isinstance(type_, ScalarType | TileType) and type_.dtype.kind == "int"


def _remainder(op: ew.Mod, dims: Dims) -> Sum:
    """`(start + coordinate) % modulus` along one dimension."""
    inner, divisor = sum_of(op.a, dims), sum_of(op.b, dims)
    modulus = divisor.single or divisor.number
    along = [p for p in inner.products if p.dim is not None]
    if not modulus or len(along) != 1 or along[0].number != 1 or along[0].scalars:
        raise NotAffine("a remainder is no plain index modulo a scalar")
    return Sum.of([Product(dim=along[0].dim, modulus=modulus, inner=inner)])


_WORDS = {
    "floordiv": "`//`",
    "mod": "`%`",
    "load": "a load",
    "select": "`tl.where`",
    "min": "`tl.minimum`",
    "max": "`tl.maximum`",
}
"""Ops that indexes are often made by, as they are written in a kernel."""


def _leaf(value: Value) -> Sum:
    if isinstance(value.type, TileType):
        op = value.defining_op
        maker = "a loop or a branch"
        if op is not None:
            name = op.opcode.rpartition(".")[2]
            maker = _WORDS.get(name, f"`{name}`")
        raise NotAffine(
            f"an index comes from {maker}, and is no sum of `tl.arange` and scalars times strides"
        )
    moved = _induction(value)
    return moved if moved is not None else Sum.of([Product(scalars=(value,))])


def _induction(value: Value) -> Sum | None:
    """A carried scalar that moves by the same amount each time, in terms of the loop variable."""
    owner = value.owner
    loop = owner.parent if isinstance(owner, Region) else None
    if not isinstance(loop, For) or value.index == 0:
        return None
    end = loop.body.terminator
    init = sum_of(loop.init[value.index - 1])
    lower, step = sum_of(loop.lower).number, sum_of(loop.step).number
    if not isinstance(end, Yield) or lower != 0 or not step:
        return None
    following = end.values[value.index - 1].defining_op
    if not isinstance(following, ew.Add) or value not in following.operands:
        return None
    other = following.b if following.a is value else following.a
    move = sum_of(other)
    inside = {v for op in loop.body.walk() for v in op.results} | set(loop.body.args)
    if any(v in inside for p in move.products for v in p.scalars):
        return None
    if any(p.number % step for p in move.products):
        return None
    per_unit = Sum(tuple(replace(p, number=p.number // step) for p in move.products))
    return init + per_unit * Sum.of([Product(scalars=(loop.iv,))])
