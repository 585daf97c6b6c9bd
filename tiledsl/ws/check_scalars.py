"""Scalars of a MACHINE program as Python functions: what branches and trip counts are made of."""

from __future__ import annotations

import operator
from collections.abc import Callable
from collections.abc import Hashable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

import numpy as np

from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.types import ScalarType

CONSTANT = "elementwise.constant"
Compute = tuple[int, Callable[..., Any], tuple[int, ...]]
"""The number of a scalar, and its function of others."""
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
    if op.opcode == CONSTANT:
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


def bound(
    function: Callable[..., Any], operands: tuple[Value, ...], result: Value, env: Env
) -> Callable[[], None]:
    """What computes a scalar of a thread from others."""
    match operands:
        case (a,):

            def one(
                env: Env = env,
                result: Value = result,
                function: Callable[..., Any] = function,
                a: Value = a,
            ) -> None:
                env[result] = function(env[a])

            return one
        case (a, b):

            def two(
                env: Env = env,
                result: Value = result,
                function: Callable[..., Any] = function,
                a: Value = a,
                b: Value = b,
            ) -> None:
                env[result] = function(env[a], env[b])

            return two
        case _:

            def many() -> None:
                env[result] = function(*[env[v] for v in operands])

            return many


class Formulas:
    """Scalars of a program as functions of leaves: what a launch gives, and no function here does.

    A scalar that is computed in several places the same way is one. key_of: what leaves of the same
    value have in common. told: the scalar that another one was handed on as, if it is one. leaves:
    one of each, in order. uses: by number, the leaves that a scalar depends on.
    """

    def __init__(
        self, key_of: Callable[[Value], Hashable], told: Callable[[Value], Value | None]
    ) -> None:
        self.leaves: list[Value] = []
        self.uses: list[set[int]] = []
        self._key_of = key_of
        self._told = told
        self._numbers: dict[Value, int] = {}
        self._same: dict[Hashable, int] = {}
        self._given: list[int] = []
        self._steps: list[Compute] = []
        self._constants: list[Any] = []

    def number(self, v: Value) -> int:
        """By which to find a scalar among values."""
        if v not in self._numbers:
            op = v.defining_op
            function = function_of(op) if op is not None else None
            if op is None or function is None:
                source = self._told(v)
                self._numbers[v] = self._leaf(v) if source is None else self.number(source)
            elif op.opcode == CONSTANT:
                self._numbers[v] = self._constant(function())
            elif function is _cast:
                self._numbers[v] = self.number(op.operands[0])
            else:
                inputs = tuple([self.number(o) for o in op.operands])
                self._numbers[v] = self._step(function, inputs)
        return self._numbers[v]

    def _leaf(self, v: Value) -> int:
        key = ("leaf", self._key_of(v))
        if key not in self._same:
            self._given.append(self._add(key, {len(self.leaves)}))
            self.leaves.append(v)
        return self._same[key]

    def _constant(self, value: Any) -> int:
        key = CONSTANT, value
        if key not in self._same:
            self._constants[self._add(key, set())] = value
        return self._same[key]

    def _step(self, function: Callable[..., Any], inputs: tuple[int, ...]) -> int:
        key = function, inputs
        if key not in self._same:
            at = self._add(key, set[int]().union(*[self.uses[i] for i in inputs]))
            self._steps.append((at, function, inputs))
        return self._same[key]

    def _add(self, key: Hashable, uses: set[int]) -> int:
        self._same[key] = at = len(self._constants)
        self._constants.append(0)
        self.uses.append(uses)
        return at

    def values(self, leaves: Iterable[int]) -> list[int]:
        """All scalars, where the leaves are known."""
        out = self._constants.copy()
        for at, value in zip(self._given, leaves, strict=True):
            out[at] = value
        _compute(out, self._steps)
        return out

    def steps_with(self, leaves: set[int]) -> list[Compute]:
        """What computes the scalars that depend on some leaves, by their numbers."""
        return [step for step in self._steps if not leaves.isdisjoint(self.uses[step[0]])]

    def changed(
        self, values: list[int], leaves: Mapping[int, int], steps: list[Compute]
    ) -> list[int]:
        """The same where some leaves are others. steps: as `steps_with` found them."""
        out = values.copy()
        for leaf, value in leaves.items():
            out[self._given[leaf]] = value
        _compute(out, steps)
        return out


def _compute(values: list[int], steps: list[Compute]) -> None:
    for at, function, inputs in steps:
        if len(inputs) == 2:
            a, b = inputs
            values[at] = function(values[a], values[b])
        else:
            values[at] = function(*[values[i] for i in inputs])
