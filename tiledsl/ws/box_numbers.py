"""Strides and extents of boxes: numbers, integer arguments of the kernel, or products of them.

`w_ptr + (rs * C + c) * OC + n` with `c < C` as mask is a box of a tensor of outer stride C * OC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tiledsl.ir.analysis.affine import Product
from tiledsl.ir.analysis.affine import Sum
from tiledsl.ir.op import Value
from tiledsl.ir.types import ScalarType


@dataclass(frozen=True)
class Factors:
    """A product of a number and at least one argument, of two or more factors. scalars: by id."""

    number: int
    scalars: tuple[Value, ...]


BoxNumber = int | Value | Factors


def is_int_argument(value: Value) -> bool:
    """Whether a value is an integer argument of the kernel."""
    return value.is_argument and isinstance(value.type, ScalarType) and value.type.dtype.is_int


def product_of(number: int, scalars: tuple[Value, ...]) -> BoxNumber:
    """A product in its plainest form."""
    if not scalars:
        return number
    if number == 1 and len(scalars) == 1:
        return scalars[0]
    return Factors(number, tuple(sorted(scalars, key=lambda v: v.id)))


def factors_of(item: BoxNumber) -> tuple[int, tuple[Value, ...]]:
    """The number and the arguments that something is the product of."""
    match item:
        case int():
            return item, ()
        case Value():
            return 1, (item,)
        case Factors():
            return item.number, item.scalars


def number_of(total: Sum) -> BoxNumber | None:
    """What a sum is where it is one positive product of arguments, or a number."""
    if total.number is not None:
        return total.number
    if len(total.products) != 1:
        return None
    (p,) = total.products
    plain = p.number > 0 and p.dim is None and all(is_int_argument(v) for v in p.scalars)
    return product_of(p.number, p.scalars) if plain else None


def lifted(product: Product, stride: BoxNumber) -> tuple[BoxNumber, Product] | None:
    """A term of a coordinate as a coordinate of its own: the stride of that, and what it counts.

    None where it is no multiple of an argument or a number.
    """
    args = tuple(v for v in product.scalars if is_int_argument(v))
    rest = tuple(v for v in product.scalars if not is_int_argument(v))
    if args and not rest and product.number == 1:
        args, rest = args[:-1], args[-1:]  # one argument counts, the others are the stride
    by = 1 if args else product.number
    if not args and by <= 1:
        return None
    number, scalars = factors_of(stride)
    made = product_of(number * by, (*scalars, *args))
    return made, Product(product.number // by, rest)


def divisor_of(item: BoxNumber, divisors: Mapping[str, int]) -> int:
    """The largest known number that a stride or an extent is a multiple of."""
    number, scalars = factors_of(item)
    return number * prod(divisors.get(v.name, 1) for v in scalars)


def shown(item: BoxNumber) -> str:
    """For messages."""
    number, scalars = factors_of(item)
    if not scalars:
        return str(number)
    return repr(" * ".join([*([str(number)] if number != 1 else []), *(v.name for v in scalars)]))


def as_item(item: BoxNumber) -> int | str:
    """As views name it (ir/specs.py)."""
    number, scalars = factors_of(item)
    if not scalars:
        return number
    return "*".join([*([str(number)] if number != 1 else []), *(v.name for v in scalars)])
