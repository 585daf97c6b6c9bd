"""Variables that pass through a region: split into leaves that have one type on every path."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from tiledsl.dtypes import DType
from tiledsl.dtypes import promote
from tiledsl.errors import SourceLoc
from tiledsl.errors import TypeMismatch
from tiledsl.ir.builder import Builder
from tiledsl.ir.op import Value
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import is_number
from tiledsl.ir.operands import is_sequence
from tiledsl.ir.operands import literal_dtype
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import Type


def leaves(value: object) -> list[object]:
    """The elements of nested tuples in order; a value that is no tuple is its own only leaf."""
    if is_sequence(value):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def rebuild(like: object, new: Iterator[object]) -> object:
    """Nested tuples shaped as `like`, with leaves taken from an iterator."""
    if is_sequence(like):
        items = [rebuild(item, new) for item in like]
        if isinstance(like, tuple):
            make = getattr(type(like), "_make", tuple)
            return cast("tuple[object, ...]", make(items))
        return items
    return next(new)


def same_structure(x: object, y: object) -> bool:
    """Whether two values are equally nested tuples."""
    if is_sequence(x) and is_sequence(y):
        pairs = zip(x, y, strict=False)
        return len(x) == len(y) and all(same_structure(a, b) for a, b in pairs)
    return not is_sequence(x) and not is_sequence(y)


def is_run_time(leaf: object) -> bool:
    """Whether a leaf is a value that can pass through a region as an argument."""
    return isinstance(leaf, Value) and not isinstance(leaf.type, TensorType)


def same_leaf(x: object, y: object) -> bool:
    """Whether two leaves are one value, or equal compile-time objects of one class."""
    if x is y:
        return True
    if isinstance(x, Value) or isinstance(y, Value) or type(x) is not type(y):
        return False
    if isinstance(x, float) and isinstance(y, float) and math.isnan(x):
        return math.isnan(y)
    return x == y


def own_type(leaf: Value | bool | int | float) -> Type:
    """The type of a leaf; that of a number on its own."""
    return leaf.type if isinstance(leaf, Value) else ScalarType(literal_dtype(leaf))


@dataclass(frozen=True)
class Conflict:
    """Two leaves that no type can hold."""

    first: object
    second: object


def meet(x: object, y: object) -> Type | Conflict:
    """The type that both leaves can take.

    Equal types, scalars of signed (or of unsigned) integers, a number beside a scalar.
    """
    if not all(is_run_time(leaf) or is_number(leaf) for leaf in (x, y)):
        return Conflict(x, y)
    numbers = [leaf for leaf in (x, y) if not isinstance(leaf, Value)]
    tx = own_type(cast("Value", x))
    ty = own_type(cast("Value", y))
    if tx == ty:
        return tx
    if not isinstance(tx, ScalarType) or not isinstance(ty, ScalarType):
        return Conflict(x, y)
    if len(numbers) == 2:
        return ScalarType(promote(tx.dtype, ty.dtype))
    if len(numbers) == 1:
        weak, strong = (tx.dtype, ty.dtype) if numbers[0] is x else (ty.dtype, tx.dtype)
        return _meet_number(weak, strong, Conflict(x, y))
    return _widen(tx.dtype, ty.dtype, Conflict(x, y))


def _meet_number(weak: DType, strong: DType, otherwise: Conflict) -> Type | Conflict:
    rank = {"bool": 0, "int": 1, "uint": 1, "float": 2}
    if strong.is_pointer:
        return otherwise
    return ScalarType(strong) if rank[weak.kind] <= rank[strong.kind] else otherwise


def _widen(x: DType, y: DType, otherwise: Conflict) -> Type | Conflict:
    if x.is_int and y.is_int and x.kind == y.kind:
        return ScalarType(promote(x, y))
    return otherwise


def convert(b: Builder, leaf: object, type_: Type) -> Value:
    """A leaf as a value of the type that `meet` found."""
    if isinstance(leaf, Value) and leaf.type == type_:
        return leaf
    assert isinstance(type_, ScalarType)
    return as_value(b, cast("Value", leaf), type_.dtype)


def place_of(value: object) -> SourceLoc | None:
    """Where a value was made."""
    if isinstance(value, Value) and value.defining_op is not None:
        return value.defining_op.loc
    return None


Side = tuple[object, str, SourceLoc | None]


def conflict_error(message: str, first: Side, second: Side) -> TypeMismatch:
    """The error for a variable with two types.

    Each side is a value, the words for its place, and where the variable was assigned.
    """
    error = TypeMismatch(message)
    for value, words, assignment in (first, second):
        error.note(f"{words} it is {describe(value)}", place_of(value) or assignment)
    return error
