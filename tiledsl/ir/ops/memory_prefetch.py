"""Blocks of tensors that are asked for in L2, without a value."""

from __future__ import annotations

from typing import Any

from tiledsl.dtypes import int1
from tiledsl.errors import TypeMismatch
from tiledsl.ir.machine import Machine
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.ops.memory import check_block
from tiledsl.ir.ops.memory import tensor_type
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import Type


def line_of(inner: int | None, block_shape: tuple[int, ...]) -> int | None:
    """The one dimension of a block along which its rows are counted; None where there are more."""
    lines = [d for d, n in enumerate(block_shape) if d != inner and n > 1]
    return lines[0] if inner is not None and len(lines) == 1 else None


class PrefetchBlock(
    Op,
    opcode="memory.prefetch_block",
    levels=Level.WARP_SPECIALIZED | Level.MACHINE,
    effect=Effect.SYNC,
):
    """Asks for the lines of L2 that hold a block of rows of a tensor; all threads share the work.

    when: whether any are asked for (i1). Ref: PTX ISA, prefetch.
    """

    tensor: Value = operand()
    offsets: tuple[Value, ...] = operands()
    when: Value | None = operand(default=None)
    block_shape: tuple[int, ...] = attribute(kw_only=True)

    def infer_types(self) -> tuple[Type, ...]:
        t = tensor_type(self.tensor, "prefetch_block")
        check_block(t, self.offsets, self.block_shape, "prefetch_block")
        if line_of(t.inner_dim, self.block_shape) is None:
            raise TypeMismatch(
                f"prefetch_block: a block {list(self.block_shape)} of {t} is no rows"
            )
        if self.when is not None and self.when.type != ScalarType(int1):
            raise TypeMismatch(f"prefetch_block: when is {self.when.type}, expected i1")
        return ()

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        """Nothing changes."""
        return ()
