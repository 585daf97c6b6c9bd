"""Functions of the language on pointers: loads and stores, and the type of pointers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from tiledsl.dtypes import DType
from tiledsl.dtypes import int1
from tiledsl.dtypes import int8
from tiledsl.dtypes import pointer_to
from tiledsl.errors import TypeMismatch
from tiledsl.ir.analysis.deep import deep
from tiledsl.ir.block_pointers import BlockPointer
from tiledsl.ir.broadcasting import broadcast_value
from tiledsl.ir.broadcasting import shape_of
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.operands import as_value
from tiledsl.ir.operands import describe
from tiledsl.ir.operands import dtype_argument
from tiledsl.ir.operands import is_true
from tiledsl.ir.ops.elementwise import Add
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Constant
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.elementwise import Sub
from tiledsl.ir.ops.pointer import LOAD_HINTS
from tiledsl.ir.ops.pointer import STORE_HINTS
from tiledsl.ir.ops.pointer import Barrier
from tiledsl.ir.ops.pointer import Load
from tiledsl.ir.ops.pointer import Store
from tiledsl.ir.ops.tile import Broadcast
from tiledsl.ir.ops.tile import ExpandDims
from tiledsl.ir.ops.tile import Reshape
from tiledsl.ir.ops.tile import Splat
from tiledsl.ir.pointer_values import pointer_dtype
from tiledsl.ir.types import TensorType
from tiledsl.ir.types import TileType

Mask = Operand | None


@builtin
def load(
    b: Builder,
    pointer: Value | BlockPointer,
    mask: Mask = None,
    other: Operand | None = None,
    boundary_check: Sequence[int] = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> Value:
    """The elements at a pointer or a tile of pointers.

    mask: where it is false nothing is read and the result is `other` (0 when left out); both
    broadcast to the pointer's shape. cache_modifier: ".ca", ".cg" or ".cv". eviction_policy:
    "evict_first", "evict_last". A block pointer takes boundary_check (the axes to check) and
    padding_option ("zero", "nan") instead of mask and other.
    """
    if _is_block_pointer(pointer):
        if mask is not None or other is not None:
            raise TypeMismatch(
                "load(): a block pointer takes boundary_check and padding_option, no mask or other"
            )
        made = pointer.access(b, boundary_check, padding_option, "load()")
        pointer, mask, other = made.pointer, made.mask, made.other
    elif tuple(unwrap(boundary_check) or ()) or unwrap(padding_option):
        raise TypeMismatch("load(): boundary_check and padding_option go with block pointers only")
    at, dtype = _pointer(b, pointer, "load()")
    lanes = masked(b, at, mask, "load()")
    if other is not None and lanes is None and unwrap(mask) is None:
        raise TypeMismatch("load(): `other` is given without a mask")
    fill: Value | None = None
    if other is not None and lanes is not None:
        fill = lane_value(b, at, other, dtype, "load(): other")
    hint = _hint("load()", cache_modifier, eviction_policy, LOAD_HINTS)
    varying = None if fill is None or is_uniform(fill) else fill
    loaded = b.value(
        Load(at, lanes, fill if varying is None else None, hint, bool(unwrap(volatile)))
    )
    if varying is not None and lanes is not None:
        loaded = b.value(Select(lanes, loaded, varying))
    return b.value(Cast(loaded, int1)) if _pointee(pointer) == int1 else loaded


@builtin
def store(
    b: Builder,
    pointer: Value | BlockPointer,
    value: Operand,
    mask: Mask = None,
    boundary_check: Sequence[int] = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Writes elements to a pointer or a tile of pointers, cast to the type it points to.

    mask: where it is false nothing is written. value and mask broadcast to the pointer's shape.
    cache_modifier: ".wb", ".cg", ".cs" or ".wt". eviction_policy: "evict_first", "evict_last".
    """
    if _is_block_pointer(pointer):
        if mask is not None:
            raise TypeMismatch("store(): a block pointer takes boundary_check, no mask")
        made = pointer.access(b, boundary_check, "", "store()")
        pointer, mask = made.pointer, made.mask
    elif tuple(unwrap(boundary_check) or ()):
        raise TypeMismatch("store(): boundary_check goes with block pointers only")
    at, dtype = _pointer(b, pointer, "store()")
    lanes = masked(b, at, mask, "store()")
    if _pointee(pointer) == int1:
        value = as_value(b, value, int1, what="store(): value")
    data = lane_value(b, at, value, dtype, "store(): value")
    hint = _hint("store()", cache_modifier, eviction_policy, STORE_HINTS)
    b.add(Store(at, data, lanes, hint))


@deep
def is_uniform(value: Value) -> bool:
    """Whether a value is one scalar in all places, by the ops that make it."""
    op = value.defining_op
    if isinstance(op, Broadcast | ExpandDims | Reshape | Cast):
        return is_uniform(op.a)
    return not isinstance(value.type, TileType) or isinstance(op, Splat | Constant)


def pointer_operand(x: object, what: str) -> Value:
    """A pointer or a tile of pointers. Raises TypeMismatch for anything else."""
    if isinstance(x, Value):
        if pointer_dtype(x) is not None:
            return x
        if isinstance(x.type, TensorType):
            name = x.name or "a"
            raise TypeMismatch(
                f"{what}: {name!r} is a tl.Tensor, which has no address of its own",
                hint=f"use {name}.load(offsets, block_shape) and {name}.store(offsets, tile), "
                "or leave out the annotation to get a pointer",
            )
    names = _arguments_in(x) if isinstance(x, Value) else []
    made = f", made of argument {' and '.join(names)}" if names else ""
    hint = "pointers are arguments that are tensors, moved by + and - of integers"
    if len(names) == 1:
        hint = f"give a tensor for {names[0]}; {hint}"
    raise TypeMismatch(
        f"{what}: expected a pointer or a tile of pointers, got {describe(x)}{made}", hint=hint
    )


def _arguments_in(value: Value) -> list[str]:
    """Arguments of the kernel that a value is, or is a sum of, in order."""
    op, region = value.defining_op, value.owner
    if isinstance(region, Region):
        return [value.name] if region.parent is None and value.name else []
    if not isinstance(op, Add | Sub | Broadcast | Cast | ExpandDims | Reshape | Splat):
        return []
    return list(dict.fromkeys(name for v in op.operands for name in _arguments_in(v)))


def masked(b: Builder, pointer: Value, mask: Mask, what: str) -> Value | None:
    """The mask in the pointer's shape; None when all lanes are active."""
    mask = unwrap(mask)
    if mask is None or mask is True:
        return None
    lanes = is_true(b, mask, f"{what}: mask")
    _fits(pointer, lanes, f"{what}: mask")
    return broadcast_value(b, lanes, shape_of(pointer), f"{what}: mask")


def lane_value(b: Builder, pointer: Value, x: Operand, dtype: DType, what: str) -> Value:
    """A value in the pointer's shape, cast to `dtype`."""
    x = unwrap(x)
    if isinstance(x, float) and not dtype.is_float:
        x = as_value(b, x, what=what)
    value = as_value(b, x, dtype, what=what)
    _fits(pointer, value, what)
    return broadcast_value(b, value, shape_of(pointer), what)


def _fits(pointer: Value, x: Value, what: str) -> None:
    if shape_of(pointer) is None and shape_of(x) is not None:
        raise TypeMismatch(
            f"{what} is {describe(x)}, but the pointer is a single one",
            hint="add an offset tile to the pointer: ptr + tl.arange(0, N)",
        )


def _pointer(b: Builder, x: object, what: str) -> tuple[Value, DType]:
    """The pointer, to bytes when it points to bools, and the dtype that is accessed."""
    value = pointer_operand(x, what)
    dtype = _pointee(value)
    if dtype == int1:
        return b.value(Cast(value, pointer_to(int8))), int8
    return value, dtype


def _pointee(x: object) -> DType:
    found = pointer_dtype(x)
    assert found is not None
    assert found.element is not None
    return found.element


def _hint(what: str, modifier: str | None, policy: str | None, known: tuple[str, ...]) -> str:
    """The cache operator, or the eviction priority where there is none."""
    cache: str = unwrap(modifier) or ""
    priority: str = unwrap(policy) or ""
    allowed = [h for h in known if h and "_" not in h]
    if cache.lstrip(".") not in ("", *allowed):
        raise TypeMismatch(
            f"{what}: cache_modifier {cache!r} is none of {', '.join('.' + h for h in allowed)}"
        )
    if priority not in ("", "evict_first", "evict_last", "evict_normal"):
        raise TypeMismatch(
            f"{what}: eviction_policy {priority!r} is none of evict_first, evict_last, evict_normal"
        )
    return cache.lstrip(".") or priority.replace("evict_normal", "")


def _is_block_pointer(x: object) -> TypeGuard[BlockPointer]:
    return isinstance(x, BlockPointer)


def _host_pointer_type(element_ty: object, address_space: int = 1) -> DType:
    del address_space
    return pointer_to(dtype_argument(element_ty, "pointer_type(): element_ty"))


@builtin(on_host=_host_pointer_type)
def pointer_type(b: Builder, element_ty: DType, address_space: int = 1) -> DType:
    """The dtype of pointers to elements of a dtype: `address.to(tl.pointer_type(tl.float32))`."""
    del b
    return _host_pointer_type(element_ty, address_space)


@builtin
def debug_barrier(b: Builder) -> None:
    """Barrier of the threads of a program.

    Orders a store and a later load of the same addresses by one program.
    """
    b.add(Barrier())
