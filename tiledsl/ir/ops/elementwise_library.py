"""The library functions as one op, and as functions of the language: `libdevice.log1p(x)`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.dtypes import BY_NAME
from tiledsl.dtypes import DType
from tiledsl.errors import TypeMismatch
from tiledsl.ir import operators
from tiledsl.ir.broadcasting import unify
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import Builtin
from tiledsl.ir.builtin import builtin
from tiledsl.ir.library import LIBRARY
from tiledsl.ir.library import LibraryFunction
from tiledsl.ir.library import Signature
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operands
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import common_dtype
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.operands import element_type
from tiledsl.ir.operands import is_number
from tiledsl.ir.ops.control import same_type
from tiledsl.ir.ops.elementwise import element_dtype
from tiledsl.ir.ops.elementwise import like
from tiledsl.ir.ops.elementwise_functions import ON_VALUES
from tiledsl.ir.pointer_values import need_numbers
from tiledsl.ir.types import Type


class Function(Op, opcode="elementwise.function"):
    """A function of the library (ir/library.py), on operands of the dtypes of one signature."""

    is_long = True
    args: tuple[Value, ...] = operands()
    name: str = attribute()

    @property
    def signature(self) -> Signature:
        """The overload. Raises TypeMismatch for a name or dtypes that do not exist."""
        function = LIBRARY.get(self.name)
        if function is None:
            raise TypeMismatch(f"function: unknown name {self.name!r}")
        dtypes = tuple(element_dtype(v, self.name) for v in self.args)
        found = function.match(dtypes)
        if found is None:
            raise TypeMismatch(f"{self.name}: no form takes ({', '.join(map(repr, dtypes))})")
        return found

    def infer_types(self) -> tuple[Type, ...]:
        signature = self.signature
        first = self.args[0].type
        for v in self.args[1:]:
            if not same_type(like(v.type, signature.args[0]), like(first, signature.args[0])):
                raise TypeMismatch(f"{self.name}: operands differ: {first} and {v.type}")
        return (like(first, signature.result),)

    def evaluate(self, *arrays: Any) -> Any:
        compute = LIBRARY[self.name].compute
        with np.errstate(all="ignore"):
            found = compute(*(np.asarray(a) for a in arrays))
            return np.asarray(found).astype(self.signature.result.numpy)


def call_library(b: Builder, name: str, *args: Operand) -> Value:
    """A library function on values and numbers that broadcast together.

    Floats under 32 bits are computed in float32 and rounded back. Raises TypeMismatch.
    """
    function = LIBRARY[name]
    what = f"{name}()"
    if len(args) != function.arity:
        raise TypeMismatch(f"{what}: expected {function.arity} arguments, got {len(args)}")
    args = tuple(unwrap(a) for a in args)
    signature = _choose(function, args, what)
    cast = [as_value(b, x, d, what=what) for x, d in zip(args, signature.args, strict=True)]
    result = b.value(Function(tuple(unify(b, cast, None, what)), name=name))
    small = common_dtype(args, what)
    if signature.result.is_float and small.is_float and small.bits < 32:
        return as_value(b, result, small)
    return result


def _choose(function: LibraryFunction, args: tuple[Operand, ...], what: str) -> Signature:
    """The first form whose dtypes the arguments have, up to small floats and numbers."""
    for signature in function.signatures:
        if all(_fits(x, d, what) for x, d in zip(args, signature.args, strict=True)):
            return signature
    need_numbers(what, *args)
    got = ", ".join(repr(element_type(x, what)) for x in args)
    forms = " or ".join(f"({', '.join(map(repr, s.args))})" for s in function.signatures[:4])
    raise TypeMismatch(
        f"{what}: got ({got}), expected {forms}", hint="cast it first: x.to(tl.float32)"
    )


def _fits(x: Operand, dtype: DType, what: str) -> bool:
    if not isinstance(x, Value):
        return is_number(x) and (dtype.is_float or (isinstance(x, int) and not isinstance(x, bool)))
    found = element_type(x, what)
    if found == dtype:
        return True
    return dtype.name == "f32" and found.is_float and found.bits < 32


def library_builtin(name: str) -> Builtin[..., object]:
    """A library function as a function of the language."""
    function = LIBRARY[name]

    def of(b: Builder, *args: Operand) -> Value:
        return call_library(b, name, *args)

    forms = "; ".join(
        f"({', '.join(map(repr, s.args))}) to {s.result!r}" for s in function.signatures
    )
    of.__name__ = name
    of.__qualname__ = name
    of.__doc__ = f"The library's `{name}`, elementwise: {forms}."
    return builtin(of)


# ---------------------------------------------------------------------- under tl
@builtin(methods=ON_VALUES)
def fdiv(b: Builder, x: Operand, y: Operand, ieee_rounding: bool = False) -> Value:
    """X / y on floats, in their common dtype; correctly rounded in any case."""
    del ieee_rounding
    dtype = common_dtype((x, y), "fdiv()")
    if not dtype.is_float:
        raise TypeMismatch(f"fdiv(): expected floats, got {dtype!r}")
    return as_value(
        b, operators.binary(b, "/", as_value(b, x, dtype), as_value(b, y, dtype)), dtype
    )


@builtin(methods=ON_VALUES)
def div_rn(b: Builder, x: Operand, y: Operand) -> Value:
    """X / y on floats, correctly rounded."""
    dtype = common_dtype((x, y), "div_rn()")
    return call_library(b, "div_rn", _floating(b, x, dtype), _floating(b, y, dtype))


def _floating(b: Builder, x: Operand, dtype: DType) -> Operand:
    return as_value(b, x, dtype) if dtype.is_float else x


@builtin(methods=ON_VALUES)
def sqrt_rn(b: Builder, x: Operand) -> Value:
    """Square root, correctly rounded."""
    return call_library(b, "sqrt_rn", x)


@builtin(methods=ON_VALUES)
def umulhi(b: Builder, x: Operand, y: Operand) -> Value:
    """The upper half of the product of 32- or 64-bit integers."""
    dtype = common_dtype((x, y), "umulhi()")
    return call_library(b, "umulhi", as_value(b, x, dtype), as_value(b, y, dtype))


@builtin(methods=ON_VALUES)
def add(b: Builder, x: Operand, y: Operand, sanitize_overflow: bool = True) -> Value:
    """X + y."""
    del sanitize_overflow
    return operators.binary(b, "+", x, y)


@builtin(methods=ON_VALUES)
def sub(b: Builder, x: Operand, y: Operand, sanitize_overflow: bool = True) -> Value:
    """X - y."""
    del sanitize_overflow
    return operators.binary(b, "-", x, y)


@builtin(methods=ON_VALUES)
def mul(b: Builder, x: Operand, y: Operand, sanitize_overflow: bool = True) -> Value:
    """X * y."""
    del sanitize_overflow
    return operators.binary(b, "*", x, y)


@builtin(methods=ON_VALUES)
def logical_and(b: Builder, x: Operand, y: Operand) -> Value:
    """`x and y`, elementwise."""
    return operators.logical(b, "and", as_value(b, x), as_value(b, y))


@builtin(methods=ON_VALUES)
def logical_or(b: Builder, x: Operand, y: Operand) -> Value:
    """`x or y`, elementwise."""
    return operators.logical(b, "or", as_value(b, x), as_value(b, y))


def _host_int_dtype(bitwidth: int, signed: bool) -> DType:
    names = {False: "u", True: "i"}
    if bitwidth == 1:
        return BY_NAME["i1"]
    found = BY_NAME.get(f"{names[bool(signed)]}{bitwidth}")
    if found is None:
        raise TypeMismatch(f"get_int_dtype(): no integer dtype has {bitwidth} bits")
    return found


@builtin(on_host=_host_int_dtype)
def get_int_dtype(b: Builder, bitwidth: int, signed: bool) -> DType:
    """The integer dtype of a width and signedness."""
    del b
    return _host_int_dtype(
        compile_time_int(bitwidth, "get_int_dtype(): bitwidth"), bool(unwrap(signed))
    )
