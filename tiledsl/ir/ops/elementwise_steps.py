"""Quantisers: how many of some limits a number is beyond."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.dtypes import float32
from tiledsl.dtypes import int32
from tiledsl.errors import TypeMismatch
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.ops.elementwise import element_dtype
from tiledsl.ir.ops.elementwise import like
from tiledsl.ir.types import Type

COMPARISONS = {"gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal}
MOST_LIMITS = 255


class CountSteps(Op, opcode="elementwise.count_steps"):
    """For how many limits `a <predicate> limit` holds: i32 of f32. predicate: gt, ge, lt or le.

    For a NaN it is 0.
    """

    a: Value = operand()
    limits: tuple[float, ...] = attribute()
    predicate: str = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        if element_dtype(self.a, "count_steps") != float32:
            raise TypeMismatch(f"count_steps: expected f32, got {self.a.type}")
        if self.predicate not in COMPARISONS:
            raise TypeMismatch(f"count_steps: unknown predicate {self.predicate!r}")
        if not 0 < len(self.limits) <= MOST_LIMITS:
            raise TypeMismatch(f"count_steps: {len(self.limits)} limits")
        return (like(self.a.type, int32),)

    def evaluate(self, a: Any) -> Any:
        compare = COMPARISONS[self.predicate]
        x = np.asarray(a)
        found = np.zeros(x.shape, np.int32)
        with np.errstate(invalid="ignore"):
            for limit in self.limits:
                found = found + compare(x, np.float32(limit))
        return found.astype(np.int32)
