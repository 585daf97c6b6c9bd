"""Addresses of tensor parameters."""

from __future__ import annotations

from dataclasses import dataclass

from tiledsl.codegen.emission import Emission
from tiledsl.codegen.emission import Expression
from tiledsl.codegen.registry import emits
from tiledsl.ir.ops.memory_base import Base


@dataclass(frozen=True)
class BaseContext(Expression):
    """A parameter."""

    value: str


@emits("memory.base")
def base(op: Base, e: Emission) -> BaseContext:
    """`a`."""
    return BaseContext("", True, e.params.pointer(op.tensor), cheap=True)
