"""Assertions that the host checks before a launch.

`tl.device_assert` with a condition that follows from extents and strides of the arguments and from
constants needs no device: it is checked before every launch that no earlier one is like, in every
build, and costs the kernel nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import TYPE_CHECKING
from typing import Any

from tiledsl.errors import LaunchError
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.analysis.evaluate import HostValues
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.ops.debug import Assert
from tiledsl.ir.ops.elementwise import And
from tiledsl.ir.ops.elementwise import Compare
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import Stride
from tiledsl.ir.types import ScalarType

if TYPE_CHECKING:
    from tiledsl.ir.graph import TileGraph

SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def host_asserts(graph: TileGraph) -> list[Assert]:
    """The assertions of a TILE graph that a launch decides."""
    asserts: list[Assert] = graph.find(Assert)
    return [op for op in asserts if op.parent is graph.body and _is_known(op.condition)]


@deep
def _is_known(value: Value) -> bool:
    """Whether a scalar is made of extents, strides and constants."""
    op = value.owner
    return isinstance(op, Op) and (
        isinstance(op, Shape | Stride)
        or (
            isinstance(value.type, ScalarType)
            and op.effect is Effect.PURE
            and not op.regions
            and op.opcode.startswith("elementwise.")
            and all(_is_known(v) for v in op.operands)
        )
    )


def check_asserts(graph: TileGraph, args: Mapping[str, Any]) -> None:
    """Checks them for the arguments of a launch.

    args: by name; tensors have `.shape` and `.strides` in elements.

    Raises:
        LaunchError: one does not hold; with its line, its message and its numbers.
    """
    asserts = host_asserts(graph)
    if not asserts:
        return
    values = HostValues(
        {a: args[a.name] for a in graph.args if a.name in args}, (1, 1, 1), (0, 0, 0)
    )
    for op in asserts:
        if not bool(values.get(op.condition)):
            raise LaunchError(_message(op, values.get), op.loc)


def _message(op: Assert, get: Callable[[Value], Any]) -> str:
    found = _failing(op.condition, get)
    compared = ""
    if found is not None:
        compared = f" ({get(found.a)} {SIGNS[found.predicate]} {get(found.b)} does not hold)"
    return f"device_assert failed before the launch: {op.message or 'the condition'}{compared}"


@deep
def _failing(value: Value, get: Callable[[Value], Any]) -> Compare | None:
    """The comparison that makes a condition false, where it is one or a conjunction of some."""
    match value.defining_op:
        case Compare() as op:
            return op
        case And() as op:
            sides = (op.a, op.b)
            return next((f for v in sides if not get(v) and (f := _failing(v, get))), None)
        case _:
            return None
