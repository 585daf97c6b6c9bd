"""Scalars of a MACHINE program as Python functions: what branches and trip counts are made of."""

from __future__ import annotations

import operator
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

import numpy as np

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.types import ScalarType

Env = dict[Value, Any]
"""What a thread knows of its values."""
COMPARE: dict[str, Callable[..., Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def _select(condition: int, a: int, b: int) -> int:
    return a if condition else b


def _cast(a: int) -> int:
    return a


def _floordiv(a: int, b: int) -> int:
    return a // b if b else 0


def _mod(a: int, b: int) -> int:
    return a % b if b else 0


def _and(a: int, b: int) -> int:
    return a & b


def _or(a: int, b: int) -> int:
    return a | b


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "elementwise.add": operator.add,
    "elementwise.sub": operator.sub,
    "elementwise.mul": operator.mul,
    "elementwise.floordiv": _floordiv,
    "elementwise.mod": _mod,
    "elementwise.min": min,
    "elementwise.max": max,
    "elementwise.and": _and,
    "elementwise.or": _or,
    "elementwise.select": _select,
    "elementwise.cast": _cast,
}
"""By opcode, a function of the operands."""


def function_of(op: Any) -> Callable[..., Any] | None:
    """The Python function of a scalar op's operands; None where only its own semantics tell."""
    if op.opcode == "elementwise.constant":
        value = op.value
        return lambda: value
    if op.opcode == "elementwise.compare":
        return COMPARE[op.predicate]
    return FUNCTIONS.get(op.opcode)


def scalar(op: Op, operands: list[Any]) -> Any:
    """The value of a pure scalar op that has no function of its own here."""
    types = [v.type for v in op.operands]
    arrays = [
        np.asarray(v).astype(t.dtype.numpy) if isinstance(t, ScalarType) else v
        for v, t in zip(operands, types, strict=True)
    ]
    return np.asarray(op.evaluate(*arrays)).item()


def bound(function: Callable[..., Any], operands: tuple[Value, ...], result: Value) -> Any:
    """The function with its operands and its result: a call with a thread's values computes it."""
    match operands:
        case (a,):

            def one(env: Env) -> None:
                env[result] = function(env[a])

            return one
        case (a, b):

            def two(env: Env) -> None:
                env[result] = function(env[a], env[b])

            return two
        case _:

            def many(env: Env) -> None:
                env[result] = function(*[env[v] for v in operands])

            return many


class Formula:
    """Scalars as functions of `leaves`: arguments, extents, what no function here gives."""

    def __init__(self, roots: tuple[Value, ...]) -> None:
        self.roots = roots
        self.leaves: list[Value] = []
        self._steps: list[tuple[Value, Callable[..., Any], tuple[Value, ...]]] = []
        self._seen: set[Value] = set()
        for v in roots:
            self._add(v)

    def _add(self, v: Value) -> None:
        if v in self._seen:
            return
        self._seen.add(v)
        op = v.defining_op
        function = function_of(op) if op is not None else None
        if op is None or function is None:
            self.leaves.append(v)
            return
        operands = op.operands
        for o in operands:
            self._add(o)
        self._steps.append((v, function, operands))

    def values(self, leaves: Mapping[Value, int]) -> list[int]:
        """The roots, where the leaves are known."""
        known = dict(leaves)
        for v, function, operands in self._steps:
            try:
                known[v] = int(function(*[known[o] for o in operands]))
            except ZeroDivisionError:
                known[v] = 0
        return [known[v] for v in self.roots]
