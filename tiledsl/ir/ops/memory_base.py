"""The address of a tensor parameter, for accesses that are made of pointers."""

from __future__ import annotations

from tiledsl.dtypes import pointer_to
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import operand
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import Type


class Base(Op, opcode="memory.base", levels=Level.WARP_SPECIALIZED | Level.MACHINE):
    """A pointer to element 0 of a tensor."""

    tensor: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(pointer_to(tensor_type(self.tensor, "base").dtype)),)
