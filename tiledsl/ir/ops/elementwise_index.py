"""What a mask along an index comes down to: how many of its elements there are."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.dtypes import int1
from tiledsl.dtypes import int32
from tiledsl.errors import TypeMismatch
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.ops.elementwise import element_dtype
from tiledsl.ir.ops.elementwise import like
from tiledsl.ir.ops.elementwise import same_type
from tiledsl.ir.types import Type


class CountBelow(Op, opcode="elementwise.count_below"):
    """How many of the numbers start, start + 1, ... start + extent - 1 are below a limit.

    limit, start: i32. The numbers do not wrap. inclusive: those that equal the limit count too.
    multiple: divides the count.
    """

    limit: Value = operand()
    start: Value = operand()
    extent: int = attribute()
    inclusive: bool = attribute(default=False)
    multiple: int = attribute(default=1)

    def infer_types(self) -> tuple[Type, ...]:
        for value in (self.limit, self.start):
            if element_dtype(value, "count_below") != int32:
                raise TypeMismatch(f"count_below: expected i32, got {value.type}")
        if not same_type(self.limit.type, self.start.type):
            raise TypeMismatch(
                f"count_below: operands differ: {self.limit.type} and {self.start.type}"
            )
        if self.extent < 1:
            raise TypeMismatch(f"count_below: extent must be positive, got {self.extent}")
        if self.multiple < 1 or self.extent % self.multiple:
            raise TypeMismatch(
                f"count_below: multiple must divide the extent {self.extent}, got {self.multiple}"
            )
        return (self.limit.type,)

    def evaluate(self, limit: Any, start: Any) -> Any:
        gap = np.asarray(limit).astype(np.int64) - np.asarray(start).astype(np.int64)
        return np.clip(gap + self.inclusive, 0, self.extent).astype(np.int32)


class Within(Op, opcode="elementwise.within"):
    """Whether a place lies from 0 up to a limit, which does not count. place, limit: i32."""

    place: Value = operand()
    limit: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        for value in (self.place, self.limit):
            if element_dtype(value, "within") != int32:
                raise TypeMismatch(f"within: expected i32, got {value.type}")
        if not same_type(self.place.type, self.limit.type):
            raise TypeMismatch(f"within: operands differ: {self.place.type} and {self.limit.type}")
        return (like(self.place.type, int1),)

    def evaluate(self, place: Any, limit: Any) -> Any:
        return (np.asarray(place) >= 0) & (np.asarray(place) < np.asarray(limit))


class Around(Op, opcode="elementwise.around"):
    """The place of a tile's element in a row that is turned: what lies before it is its end.

    place: i32, from -extent on. In CUDA the place itself where memory is accessed: that goes around
    where it has to (templates/include/tiledsl/shifted.cuh). Elsewhere only what a thread holds
    first may lie before a row.
    """

    place: Value = operand()
    extent: int = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        if element_dtype(self.place, "around") != int32:
            raise TypeMismatch(f"around: expected i32, got {self.place.type}")
        if self.extent < 1:
            raise TypeMismatch(f"around: extent must be positive, got {self.extent}")
        return (self.place.type,)

    def evaluate(self, place: Any) -> Any:
        at = np.asarray(place)
        return np.where(at < 0, at + self.extent, at).astype(np.int32)
