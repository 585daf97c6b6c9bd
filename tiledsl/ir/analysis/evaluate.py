"""Evaluates scalar values of a tile graph on the host, for launch facts such as trip counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.memory import Pick
from tiledsl.ir.ops.memory import Shape
from tiledsl.ir.ops.memory import Stride
from tiledsl.ir.ops.program import NumPrograms
from tiledsl.ir.ops.program import ProgramId


class Unknown(Exception):
    """A value that only the device can know."""


class HostValues:
    """Values of scalars for one launch.

    args: run-time arguments by value: numbers for scalars, objects with `.shape` and `.strides`
    (elements) for tensors.
    grid: the user's grid. program: the program that `program.id` stands for.
    """

    def __init__(
        self, args: Mapping[Value, Any], grid: tuple[int, int, int], program: tuple[int, int, int]
    ) -> None:
        self.args = args
        self.grid = grid
        self.program = program
        self.known: dict[Value, Any] = {}

    def get(self, value: Value) -> Any:
        """The number. Raises Unknown when it depends on loaded data."""
        if value not in self.known:
            self.known[value] = self._compute(value)
        return self.known[value]

    @deep
    def _compute(self, value: Value) -> Any:
        if value in self.args:
            return self.args[value]
        owner = value.owner
        if isinstance(owner, Region):
            if isinstance(owner.parent, For):
                return self.get(owner.parent.lower)
            raise Unknown(value.name)
        if isinstance(owner, ProgramId):
            return np.int32(self.program[owner.axis])
        if isinstance(owner, NumPrograms):
            return np.int32(self.grid[owner.axis])
        if isinstance(owner, Shape):
            return np.int32(self.get(owner.tensor).shape[owner.dim])
        if isinstance(owner, Stride):
            return np.int64(self.get(owner.tensor).strides[owner.dim])
        if isinstance(owner, Pick):
            return self.get(owner.tensors[int(self.get(owner.index))])
        if owner.effect is not Effect.PURE or owner.regions:
            raise Unknown(value.name)
        return owner.evaluate(*(self.get(v) for v in owner.operands))
