"""Pointers: address arithmetic, loads and stores through single pointers or tiles of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import int1
from tiledsl.dtypes import int64
from tiledsl.errors import TypeMismatch
from tiledsl.errors import VerifyError
from tiledsl.ir.layout import Layout
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Level
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import operands
from tiledsl.ir.op import region
from tiledsl.ir.ops.control import For
from tiledsl.ir.ops.control import same_type
from tiledsl.ir.ops.elementwise import Cast
from tiledsl.ir.ops.elementwise import Select
from tiledsl.ir.ops.elementwise import like
from tiledsl.ir.ops.tile import lane_arguments
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine

LOWER = Level.WARP_SPECIALIZED | Level.MACHINE
LOAD_HINTS = ("", "ca", "cg", "cs", "cv", "evict_first", "evict_last", "no_allocate")
SHARED_BYTES = 16
"""Shared memory in which one thread hands an element to the others."""
STORE_HINTS = ("", "wb", "cg", "cs", "wt", "evict_first", "evict_last", "no_allocate")


def pointed_to(value: Value, what: str) -> DType:
    """The dtype that a pointer or a tile of pointers points to. Raises TypeMismatch."""
    type_ = value.type
    if isinstance(type_, ScalarType | TileType) and type_.dtype.element is not None:
        return type_.dtype.element
    raise TypeMismatch(f"{what}: expected a pointer, got {type_}")


def check_lanes(what: str, pointer: Value, mask: Value | None, **values: Value | None) -> None:
    """Mask and values have the shape of the pointer; values the dtype that it points to."""
    dtype = pointed_to(pointer, what)
    if mask is not None and not same_type(mask.type, like(pointer.type, int1)):
        raise TypeMismatch(f"{what}: mask is {mask.type}, expected {like(pointer.type, int1)}")
    for name, value in values.items():
        if value is not None and not same_type(value.type, like(pointer.type, dtype)):
            expected = like(pointer.type, dtype)
            raise TypeMismatch(f"{what}: {name} is {value.type}, expected {expected}")


def origin_of(pointer: Value) -> str | None:
    """Name of the argument that a pointer was computed from; None when it came from an integer.

    Empty where it may be one of several.
    """
    value, seen = pointer, 0
    while seen < 1000:
        seen += 1
        op = value.defining_op
        if op is None:
            owner = value.owner
            parent = owner.parent if isinstance(owner, Region) else None
            if parent is None:
                return value.name
            if not isinstance(parent, For) or value.index == 0:
                return ""
            value = parent.init[value.index - 1]
        elif isinstance(op, For):
            value = op.init[value.index]
        elif isinstance(op, Cast) and not is_pointer(op.a):
            return None
        elif isinstance(op, Select) or not op.operands or not is_pointer(op.operands[0]):
            return "" if isinstance(op, Select) else None
        else:
            value = op.operands[0]
    return ""


def is_pointer(value: Value) -> bool:
    """Whether a value is a pointer or a tile of pointers."""
    return isinstance(value.type, ScalarType | TileType) and value.type.dtype.is_pointer


class Add(Op, opcode="pointer.add"):
    """Moves a pointer by `offset` elements (i64, of the pointer's shape)."""

    pointer: Value = operand()
    offset: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        pointed_to(self.pointer, "pointer.add")
        if not same_type(self.offset.type, like(self.pointer.type, int64)):
            expected = like(self.pointer.type, int64)
            raise TypeMismatch(f"pointer.add: offset is {self.offset.type}, expected {expected}")
        return (self.pointer.type,)

    def evaluate(self, pointer: Any, offset: Any) -> Any:
        itemsize = pointed_to(self.pointer, "pointer.add").bytes
        return np.asarray(pointer + offset * itemsize, dtype=np.int64)


class Load(Op, opcode="pointer.load", effect=Effect.READ):
    """Elements at pointers; where the mask is false nothing is accessed and the result is `other`.

    Without `other` it is 0 there. hint: a cache operator or eviction priority of PTX, or "".
    volatile: memory that others may change meanwhile; equal in all threads all the same.
    Ref: PTX ISA, ld.
    """

    pointer: Value = operand()
    mask: Value | None = operand(default=None)
    other: Value | None = operand(default=None)
    hint: str = attribute(default="")
    volatile: bool = attribute(default=False)
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        dtype = pointed_to(self.pointer, "load")
        check_lanes("load", self.pointer, self.mask, other=self.other)
        return (like(self.pointer.type, dtype),)

    def verify(self, target: Target) -> None:
        if self.hint not in LOAD_HINTS:
            raise VerifyError(f"load: hint {self.hint!r} is none of {', '.join(LOAD_HINTS[1:])}")
        if self.other is not None and self.mask is None:
            raise VerifyError("load: `other` is given without a mask")

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        pointer, *rest = arrays
        mask = rest[0] if self.mask is not None else True
        other = rest[1] if self.other is not None else 0
        dtype = pointed_to(self.pointer, "load")
        origin = origin_of(self.pointer)
        return machine.memory.gather(pointer, dtype, mask, other, origin=origin)

    def scratch_bytes(self) -> int:
        """One thread reads a changing element for all."""
        is_shared = self.volatile and isinstance(self.pointer.type, ScalarType)
        return SHARED_BYTES if is_shared else 0


class Store(Op, opcode="pointer.store", effect=Effect.WRITE):
    """Writes elements to pointers where the mask holds; of lanes with one address any may win.

    Ref: PTX ISA, st.
    """

    pointer: Value = operand()
    value: Value = operand()
    mask: Value | None = operand(default=None)
    hint: str = attribute(default="")

    def infer_types(self) -> tuple[Type, ...]:
        check_lanes("store", self.pointer, self.mask, value=self.value)
        return ()

    def verify(self, target: Target) -> None:
        if self.hint not in STORE_HINTS:
            raise VerifyError(f"store: hint {self.hint!r} is none of {', '.join(STORE_HINTS[1:])}")

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        pointer, value, *rest = arrays
        mask = rest[0] if rest else True
        machine.memory.scatter(pointer, value, mask, origin=origin_of(self.pointer))


class Barrier(Op, opcode="pointer.barrier", effect=Effect.SYNC):
    """All threads of the program arrive before any goes on; orders their memory accesses.

    warp: only those of each warp. Ref: PTX ISA, bar.sync, bar.warp.sync.
    """

    warp: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        return ()

    def evaluate(self) -> Any:
        """Threads of one program run together here."""


# ---------------------------------------------------------------------- lower levels
class Lanes(Op):
    """Base of accesses whose addresses are computed where they are used.

    inputs, follows, shape, layout and the arguments of body: as in `tile.map`. body yields the
    pointer, then the mask if `masked`, then `other` if `filled`. width: elements that are accessed
    at once; they are neighbours along dimension `axis`, in consecutive registers. whole: whether
    the mask is equal in all elements of such a vector. shifted: lanes side by side whose vectors
    follow each other in memory at addresses aligned for an element only; 0 where vectors are
    aligned. falls: the mask only falls inside of a vector. alike: all vectors that a warp holds are
    off an aligned address by as many bytes. chained: a warp's next vectors follow its last lane's.
    turned: the mask lets in elements one after the other, no fewer than a vector has; they may
    begin inside of a vector, and vectors are aligned in most tensors (ws/turned_rows.py).
    repeats: consecutive registers whose element lies in one place, with one mask; a load reads it
    once.
    """

    vectorized = True
    inputs: tuple[Value, ...] = operands()
    shape: tuple[int, ...] = attribute()
    layout: Layout = attribute()
    follows: tuple[tuple[int | None, ...], ...] = attribute(default=())
    dtype: DType = attribute(kw_only=True)
    masked: bool = attribute(default=False)
    filled: bool = attribute(default=False)
    width: int = attribute(default=1)
    whole: bool = attribute(default=True)
    shifted: int = attribute(default=0)
    falls: bool = attribute(default=False)
    alike: bool = attribute(default=False)
    chained: bool = attribute(default=False)
    turned: bool = attribute(default=False)
    repeats: int = attribute(default=1)
    hint: str = attribute(default="")

    def verify(self, target: Target) -> None:
        body: Region = self.regions[0]
        expected = len(self.inputs) + len(self.shape)
        if len(body.args) != expected:
            raise VerifyError(
                f"{self.opcode}: body has {len(body.args)} arguments, expected {expected}"
            )
        if self.width > 1 and self.layout.num_regs % self.width:
            raise VerifyError(
                f"{self.opcode}: {self.layout.num_regs} registers in vectors of {self.width}"
            )

    def places(self, machine: Machine, inputs: tuple[Any, ...]) -> Generator[None, None, Any]:
        """Addresses, mask and `other` of all elements, and the argument that they belong to."""
        body: Region = self.regions[0]
        args = lane_arguments(self.shape, self.follows, inputs)
        found = yield from machine.run_region(body, args)
        end = body.terminator
        assert end is not None
        at, *rest = (np.broadcast_to(x, self.shape) for x in found)
        mask: Any = rest.pop(0) if self.masked else True
        return at, mask, rest[0] if self.filled else 0, origin_of(end.operands[0])


class LoadLanes(Lanes, opcode="pointer.load_lanes", levels=LOWER, effect=Effect.READ):
    """`pointer.load` of a tile, with the computation of its addresses and mask.

    slot: shared memory where each of `num_threads` threads finds what its `pointer.fetch_lanes`
    brought, if any. waits: for all that the thread has fetched but the latest `pending` groups.
    filled_slot: the fillings of what the mask keeps out lie there too. segment: the last input says
    how far a thread's vectors lie behind its places in the slot, which its warp filled together.
    """

    slot: Value | None = operand(default=None, kw_only=True)
    waits: bool = attribute(default=False)
    pending: int = attribute(default=0)
    num_threads: int = attribute(default=0)
    filled_slot: bool = attribute(default=False)
    segment: bool = attribute(default=False)
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        return (TileType(self.shape, self.dtype, self.layout),)

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        inputs = arrays[: len(self.inputs)]
        at, mask, other, origin = yield from self.places(machine, inputs)
        return machine.memory.gather(at, self.dtype, mask, other, origin=origin)


class StoreLanes(Lanes, opcode="pointer.store_lanes", levels=LOWER, effect=Effect.WRITE):
    """`pointer.store` of a tile, with the computation of its addresses and mask."""

    value: Value = operand(kw_only=True)
    body: Region = region(factory=Region)

    def infer_types(self) -> tuple[Type, ...]:
        if not isinstance(self.value.type, TileType) or self.value.type.shape != self.shape:
            raise TypeMismatch(f"store_lanes: value is {self.value.type}, shape is {self.shape}")
        return ()

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        *inputs, value = arrays
        at, mask, _, origin = yield from self.places(machine, tuple(inputs))
        machine.memory.scatter(at, value, mask, origin=origin)
        return ()
