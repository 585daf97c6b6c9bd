"""Matrix multiply-accumulate on tiles."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import float16
from tiledsl.dtypes import float32
from tiledsl.dtypes import float64
from tiledsl.dtypes import int1
from tiledsl.dtypes import int32
from tiledsl.errors import TypeMismatch
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.graph import TileGraph
from tiledsl.ir.library import tf32_high
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import compile_time_int
from tiledsl.ir.operands import constant
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import dtype_argument
from tiledsl.ir.ops.smem import smem_type
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.pointer_values import need_numbers
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type

FP8_PROMOTION = 128
"""The tensor core sums fp8 products with some 14 bits; after so much of K they go to f32."""


def accumulator_dtype(operand_dtype: DType) -> DType:
    """f32 for floats, i32 for int8, f64 for f64."""
    if operand_dtype == float64:
        return float64
    return int32 if operand_dtype.is_int else float32


def sums_in_half(operand_dtype: DType) -> bool:
    """Whether the tensor core can add up products of a dtype in f16. ISA: wgmma.mma_async."""
    return operand_dtype == float16 or operand_dtype.is_fp8


def product_shape(a: TileType, b: TileType) -> tuple[int, ...]:
    """The shape of a @ b. Raises TypeMismatch."""
    if a.rank != b.rank or a.rank < 2:
        raise TypeMismatch(
            f"dot(): a has shape {list(a.shape)} and b {list(b.shape)}, expected two axes each"
        )
    if a.shape[:-2] != b.shape[:-2]:
        raise TypeMismatch(
            f"dot(): a has batch {list(a.shape[:-2])} but b has {list(b.shape[:-2])}"
        )
    if a.shape[-1] != b.shape[-2]:
        raise TypeMismatch(f"dot(): a has K={a.shape[-1]} but b has K={b.shape[-2]}")
    return (*a.shape[:-1], b.shape[-1])


class Dot(Op, opcode="mma.dot", levels=Level.TILE | Level.WARP_SPECIALIZED):
    """acc + a @ b.

    a: [M, K], b: [K, N], one 16-bit, fp8, int8, f32 or f64 dtype. acc, out: [M, N] f32 (i32 for
    int8, f64 for f64; f16 for f16 and fp8 where sums in f16 are asked for), registers.
    a and b may have leading batch dimensions, [B, M, K] and [B, K, N]; then acc has them too.
    precision: for f32 operands "tf32" (one product of operands rounded to TF32), "tf32x3" (three,
    an error of about 2**-21 of the sum of absolute products), "ieee" or "" (as accurate as f32);
    else "".
    promote: elements of K after which an fp8 product is added to acc in f32; 0 never.
    Ref: PTX ISA, wgmma.mma_async.
    """

    numbers = True
    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()
    precision: str = attribute(default="")
    promote: int = attribute(default=FP8_PROMOTION)

    def infer_types(self) -> tuple[Type, ...]:
        a, b, acc = self.a.type, self.b.type, self.acc.type
        if not (isinstance(a, TileType) and isinstance(b, TileType) and isinstance(acc, TileType)):
            raise TypeMismatch(f"dot(): operands must be tiles, got {a}, {b} and {acc}")
        shape = product_shape(a, b)
        if a.dtype != b.dtype and not (a.dtype.is_fp8 and b.dtype.is_fp8):
            raise TypeMismatch(f"dot(): a is {a.dtype!r} but b is {b.dtype!r}")
        in_half = acc.dtype == float16 and sums_in_half(a.dtype)
        want = TileType(shape, float16 if in_half else accumulator_dtype(a.dtype))
        if acc.with_layout(None) != want:
            raise TypeMismatch(f"dot(): acc is {acc.with_layout(None)}, expected {want}")
        return (acc,)

    def evaluate(self, a: Any, b: Any, acc: Any) -> Any:
        wide = np.int64 if np.asarray(a).dtype.kind in "iu" else np.float32
        if np.asarray(a).dtype == np.float32 and self.precision == "tf32":
            a, b = tf32_high(a), tf32_high(b)
        elif np.asarray(a).dtype.itemsize >= 4:
            wide = np.float64
        product = np.asarray(a).astype(wide) @ np.asarray(b).astype(wide)
        if np.asarray(acc).dtype == np.float16:  # rounded once
            return (np.asarray(acc).astype(wide) + product).astype(np.float16)
        return (np.asarray(acc) + product.astype(np.asarray(acc).dtype)).astype(
            np.asarray(acc).dtype
        )


class Issue(
    Op, opcode="mma.issue", levels=Level.WARP_SPECIALIZED | Level.MACHINE, effect=Effect.SYNC
):
    """Starts acc + a @ b on the tensor core; the result may be read only after a wait.

    a: [M, K] in shared memory, or a 16-bit register tile in the accumulator's layout (an 8-bit one
    through mma.spread).
    b: [K, N] in shared memory. acc: [M, N] in a wgmma accumulator
    layout.
    keep: when given and false, acc's old value is ignored (scale-d). The warpgroups of the role
    split the rows of the accumulator (its columns when `split` is 1). swapped: computed as (b^T
    a^T)^T, so that N is the side that is cut into 64-row instructions.
    first_K, count_K: a part of K, whole boxes of operands in shared memory; all of it when 0.
    Ref: PTX ISA, wgmma.mma_async.
    """

    a: Value = operand()
    b: Value = operand()
    acc: Value = operand()
    keep: Value | None = operand(default=None)
    split: int = attribute(default=0)
    swapped: bool = attribute(default=False)
    first_K: int = attribute(default=0)
    count_K: int = attribute(default=0)

    def infer_types(self) -> tuple[Type, ...]:
        b = smem_type(self.b, "mma")
        a = self.a.type if isinstance(self.a.type, TileType) else smem_type(self.a, "mma")
        acc = self.acc.type
        if a.shape[1] != b.shape[0]:
            raise TypeMismatch(f"mma: a has K={a.shape[1]} but b has K={b.shape[0]}")
        # Operands in shared memory may be padded to whole instructions.
        if not isinstance(acc, TileType) or not (
            acc.shape[0] <= a.shape[0] and acc.shape[1] <= b.shape[1]
        ):
            raise TypeMismatch(f"mma: acc is {acc}, expected {a.shape[0]}x{b.shape[1]}")
        return (acc,)


class Fence(
    Op, opcode="mma.fence", levels=Level.WARP_SPECIALIZED | Level.MACHINE, effect=Effect.SYNC
):
    """Orders register accesses before the next wgmma. Ref: PTX ISA, wgmma.fence."""

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class Spread(
    Op, opcode="mma.spread", levels=Level.WARP_SPECIALIZED | Level.MACHINE, effect=Effect.PURE
):
    """A tile of 8-bit elements in the accumulator's layout as a left operand wants it.

    A thread of an accumulator has pairs of columns, one of the operand has runs of four: the bytes
    move inside of quads of lanes. The result is for mma.issue alone.
    Ref: PTX ISA, register fragments of wgmma.m64nNk32.
    """

    a: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        t = self.a.type
        if not isinstance(t, TileType) or t.dtype.bits != 8 or t.rank != 2 or t.shape[1] % 32:
            raise TypeMismatch(f"mma: a is {t}, expected 8-bit elements in columns of 32")
        return (t,)

    def evaluate(self, a: Any) -> Any:
        return a


class Commit(
    Op, opcode="mma.commit", levels=Level.WARP_SPECIALIZED | Level.MACHINE, effect=Effect.SYNC
):
    """Closes a group of wgmmas. Ref: PTX ISA, wgmma.commit_group."""

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class Wait(
    Op, opcode="mma.wait", levels=Level.WARP_SPECIALIZED | Level.MACHINE, effect=Effect.SYNC
):
    """Waits until at most `pending` groups are in flight; accumulators become readable values.

    Ref: PTX ISA, wgmma.wait_group.
    """

    accs: tuple[Value, ...] = operands()
    pending: int = attribute(default=0)

    def infer_types(self) -> tuple[Type, ...]:
        return tuple(v.type for v in self.accs)


class Pin(Op, opcode="mma.pin", levels=Level.WARP_SPECIALIZED | Level.MACHINE, effect=Effect.SYNC):
    """Keeps what an f32 tile needs above the next wait.

    ptxas moves arithmetic across wgmma.wait_group at will; a store that a test of the tile guards
    stays where it is. scratch: 4 bytes of shared memory that nobody reads.
    """

    value: Value = operand()
    scratch: Value | None = operand(default=None)

    def infer_types(self) -> tuple[Type, ...]:
        return ()


class ClusterReduce(
    Op,
    opcode="mma.cluster_reduce",
    levels=Level.WARP_SPECIALIZED | Level.MACHINE,
    effect=Effect.SYNC,
):
    """Sums a partial accumulator over the CTAs of a cluster (split-K).

    Warpgroup g of the role is owned by CTA g % cluster_size: the other CTAs send their part to a
    buffer of the owner with asynchronous remote stores that complete on the owner's mbarrier g /
    cluster_size; the owner waits and adds them in rank order. Once per kernel: nothing frees the
    buffer again.
    Results: the sum (meaningful in the owner's threads) and an i1 that is true there.
    """

    acc: Value = operand()
    index: Value = operand()
    rank: Value = operand()
    cluster_size: int = attribute()
    buffer: Value | None = operand(default=None)
    barriers: Value | None = operand(default=None)

    def infer_types(self) -> tuple[Type, ...]:
        return (self.acc.type, ScalarType(int1))


PRECISIONS = {
    "tf32": "tf32", "tf32x3": "tf32x3", "ieee": "ieee", "bf16x3": "tf32x3", "bf16x6": "ieee",
}  # fmt: skip
"""What is asked for, and what is computed: the same, or something at least as accurate."""


@builtin
def dot(
    builder: Builder,
    a: Value,
    b: Value,
    acc: Value | None = None,
    input_precision: str | None = None,
    allow_tf32: bool | None = None,
    max_num_imprecise_acc: int | None = None,
    out_dtype: DType | None = None,
) -> Value:
    """`a @ b`, plus `acc` when given.

    a: [M, K], b: [K, N], one dtype, or both with leading batch axes. Result: `out_dtype`, else
    acc's dtype, else float32 (int32 for int8 and uint8, float64 for float64). Sums are made in that
    last dtype, and in float16 where `out_dtype` asks for it, a and b are float16 or 8-bit floats,
    and acc, if given, is float16.
    input_precision: for float32 operands "tf32", "tf32x3" or "ieee" ("bf16x3" and "bf16x6" give
    the next more accurate of these); None follows
    `torch.get_float32_matmul_precision()`. allow_tf32: older spelling of "tf32" (True) and "ieee"
    (False).
    max_num_imprecise_acc: for 8-bit floats, how many products may be summed before the sum is added
    in float32 (default 128).
    """
    left, right = _dot_operand(a, "a"), _dot_operand(b, "b")
    _check_pair(a, left.dtype, b, right.dtype)
    wide = accumulator_dtype(left.dtype)
    shape = product_shape(left, right)
    given = _accumulator(acc, shape)
    out = dtype_argument(out_dtype, "dot(): out_dtype") if unwrap(out_dtype) is not None else None
    in_half = out == float16 and sums_in_half(left.dtype)
    if in_half and (given is None or given.dtype == float16):
        wide = float16
    out = out or (given.dtype if given else wide)
    if acc is None:
        start = builder.value(Splat(constant(builder, 0, wide), shape))
    else:
        start = as_value(builder, acc, wide)
    precision = _precision(left.dtype, unwrap(input_precision), unwrap(allow_tf32))
    promote = _promotion(left.dtype, unwrap(max_num_imprecise_acc)) if wide != float16 else 0
    product = builder.value(Dot(a, b, start, precision=precision, promote=promote))
    return as_value(builder, product, out)


FOLLOWS_PRECISION = "follows_precision"
"""Fact of a graph with f32 dots that name no precision."""


def follow_precision(graph: TileGraph, precision: str) -> None:
    """Gives the f32 dots that name no precision this one; the facts say whether there are any."""
    for op in graph.find(Dot):
        if op.precision == "" and isinstance(op.a.type, TileType) and op.a.type.dtype == float32:
            op.precision = precision
            graph.facts[FOLLOWS_PRECISION] = True


def _promotion(dtype: DType, imprecise: int | None) -> int:
    """After how many elements of K an fp8 product is added in f32: at least one instruction box."""
    if not dtype.is_fp8 or imprecise is None:
        return FP8_PROMOTION
    count = compile_time_int(imprecise, "dot(): max_num_imprecise_acc")
    return max(FP8_PROMOTION, count // FP8_PROMOTION * FP8_PROMOTION)


def _dot_operand(x: object, name: str) -> TileType:
    if not isinstance(x, Value) or not isinstance(x.type, TileType):
        raise TypeMismatch(f"dot(): {name} must be a tile, got {describe(x)}")
    dtype = x.type.dtype
    if dtype.is_float or (dtype.is_int and dtype.bits == 8):
        return x.type
    need_numbers(f"dot(): {name}", x)
    raise TypeMismatch(
        f"dot(): {name} is {dtype!r}, expected a float or int8",
        hint=f"cast it first: {x.name or name}.to(tl.float16)",
    )


def _check_pair(a: Value, left: DType, b: Value, right: DType) -> None:
    """Both operands are of one dtype, or of two formats of 8-bit floats."""
    if left == right or (left.is_fp8 and right.is_fp8):
        return
    cast, name, dtype = (a, "a", right) if right.bits >= left.bits else (b, "b", left)
    raise TypeMismatch(
        f"dot(): a is {left!r} but b is {right!r}",
        hint=f"cast one of them: {cast.name or name}.to({dtype!r})",
    )


def _accumulator(acc: object, shape: tuple[int, ...]) -> TileType | None:
    if acc is None:
        return None
    if not isinstance(acc, Value) or not isinstance(acc.type, TileType):
        raise TypeMismatch(f"dot(): acc must be a tile of shape {list(shape)}, got {describe(acc)}")
    if acc.type.shape != shape:
        raise TypeMismatch(f"dot(): acc has shape {list(acc.type.shape)}, expected {list(shape)}")
    return acc.type


def _precision(dtype: DType, wanted: str | None, allow_tf32: bool | None) -> str:
    if wanted is not None and wanted not in PRECISIONS:
        names = ", ".join(map(repr, PRECISIONS))
        raise TypeMismatch(f"dot(): input_precision must be one of {names}, got {wanted!r}")
    if dtype != float32:
        return ""
    if wanted is None and allow_tf32 is not None:
        wanted = "tf32" if allow_tf32 else "ieee"
    return PRECISIONS[wanted] if wanted else ""
