"""Coordinates and products of indexes that are computed in 64 bits."""

from __future__ import annotations

from tiledsl.codegen.emission import Emission
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops import elementwise as ops
from tiledsl.ir.types import ScalarType

MANY_PRODUCTS = 6
"""Products of indexes and strides: with 14 a kernel gained 5 %, with 1 or 2 some lost 1 to 2 %."""


def wide_coordinate(value: Value, e: Emission) -> str:
    """A widened coordinate in two parts, `(i64)at_1 + (i / 8 * 256)`; empty for anything else.

    What stands in front of a sum of both is then one address for all registers: a sum of 32 bits
    is widened for each of them.
    """
    parts = _wide_parts(value, e)
    return f"{parts[0]} + {parts[1].removeprefix('(i64)')}" if parts is not None else ""


def wide_product(value: Value, e: Emission) -> tuple[str, str] | None:
    """A product with one in two parts, `(i64)at_1 * s` and `(i64)(i / 8 * 256) * s`."""
    product = value.defining_op
    if not isinstance(product, ops.Mul) or len(e.users(value)) != 1:
        return None
    for one, by in ((product.a, product.b), (product.b, product.a)):
        parts = _wide_parts(one, e)
        if parts is not None:
            factor = e.atom(by)
            return f"{parts[0]} * {factor}", f"{parts[1]} * {factor}"
    return None


def _wide_parts(value: Value, e: Emission) -> tuple[str, str] | None:
    """What the thread and what the register gives to a widened coordinate; None for others."""
    cast = value.defining_op
    if not isinstance(cast, ops.Cast) or cast.a not in e.coordinates or cast.dtype != int64:
        return None
    at = e.coordinates[cast.a]
    return (f"(i64){at.thread}", f"(i64)({at.register()})") if " " not in at.thread else None


def is_inside(op: Op) -> bool:
    """Whether a loop over registers computes an op for each of them."""
    around = op.parent.parent if op.parent is not None else None
    return around is not None and around.vectorized


def has_many_products(e: Emission) -> bool:
    """Whether products of indexes and strides are a part of a kernel's work.

    Fewer are left to NVVM, which puts some of them into uniform registers.
    """
    if e.has_many_products is None:
        products: list[ops.Mul] = e.graph.find(ops.Mul)
        outside = [op for op in products if not is_inside(op)]
        wide = [op for op in outside if widened_index(op.a) and widened_index(op.b)]
        e.has_many_products = len(wide) >= MANY_PRODUCTS
    return e.has_many_products


def widened_index(value: Value) -> Value | None:
    """The int32 scalar that a product takes in 64 bits, where it is not a number.

    NVVM takes indexes that are not below 0 for unsigned, and multiplies these by signed strides in
    three instructions.
    """
    cast = value.defining_op
    if not isinstance(cast, ops.Cast) or cast.dtype != int64 or cast.a.type != ScalarType(int32):
        return None
    return None if isinstance(cast.a.defining_op, ops.Constant) else cast.a
