"""Matrix multiply-accumulate by single warps."""

from __future__ import annotations

from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import operand
from tiledsl.ir.ops.smem import LOWER
from tiledsl.ir.ops.smem import smem_type
from tiledsl.ir.ops.tile import tile_type
from tiledsl.ir.types import Type
from tiledsl.ir.warp_layouts import ROWS
from tiledsl.ir.warp_layouts import STEP
from tiledsl.target import Target


class WarpDot(Op, opcode="mma.warp_dot", levels=LOWER, effect=Effect.READ):
    """acc + a @ b, complete on return: each warp of the role computes columns by itself.

    a: [M, K] in shared memory, contiguous along K, swizzled in 128 bytes; M and K multiples of 16.
    b: [K, N], the same dtype, registers as `warp_operand` says. acc: [M, N], f32 or (for f16) f16,
    registers as `warp_accumulator` says. Reads of a are generic: no proxy fence, no barrier behind.
    Ref: PTX ISA, mma.m16n8k16, ldmatrix.
    """

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        a, b, acc = smem_type(self.a, "mma"), tile_type(self.b, "mma"), tile_type(self.acc, "mma")
        if a.dtype != b.dtype or a.dtype.name not in ("f16", "bf16"):
            raise TypeMismatch(f"mma: a is {a.dtype} and b {b.dtype}, expected f16 or bf16")
        if a.shape[1] != b.shape[0] or acc.shape != (a.shape[0], b.shape[1]):
            raise TypeMismatch(f"mma: a {list(a.shape)}, b {list(b.shape)}, acc {list(acc.shape)}")
        return (acc,)

    def verify(self, target: Target) -> None:
        a = smem_type(self.a, "mma")
        if a.major != 1 or a.swizzle_bytes != 128 or a.shape[0] % ROWS or a.shape[1] % STEP:
            raise VerifyError(f"mma: a is {a}, expected whole blocks contiguous along K")
