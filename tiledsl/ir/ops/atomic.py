"""Atomic updates of memory through pointers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.errors import VerifyError
from tiledsl.ir.layout_moves import exchange_bytes
from tiledsl.ir.op import Effect
from tiledsl.ir.op import Op
from tiledsl.ir.op import Region
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.op import region
from tiledsl.ir.ops.elementwise import like
from tiledsl.ir.ops.elementwise import wide
from tiledsl.ir.ops.pointer import LOWER
from tiledsl.ir.ops.pointer import SHARED_BYTES
from tiledsl.ir.ops.pointer import Lanes
from tiledsl.ir.ops.pointer import check_lanes
from tiledsl.ir.ops.pointer import origin_of
from tiledsl.ir.ops.pointer import pointed_to
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type
from tiledsl.target import Target

if TYPE_CHECKING:
    from tiledsl.ir.machine import Machine
    from tiledsl.ir.machine import Steps

SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("cta", "gpu", "sys")
_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "max": np.fmax,
    "min": np.fmin,
    "and": lambda old, new: old & new,
    "or": lambda old, new: old | new,
    "xor": lambda old, new: old ^ new,
    "xchg": lambda _, new: new,
}


def rmw_problem(kind: str, dtype: DType) -> str:
    """Why there is no such atomic update; empty when there is one."""
    if kind not in _UPDATES:
        return f"unknown kind {kind!r}"
    of_half = kind == "add" and dtype.is_float
    if dtype.bits < 16 or (dtype.bits == 16 and not of_half):
        return f"{dtype!r} is too narrow"
    if dtype.is_float and kind in ("and", "or", "xor"):
        return f"{dtype!r} has no bits to combine"
    if dtype.is_pointer and kind != "xchg":
        return f"{dtype!r} takes xchg only"
    return ""


def _check_order(what: str, sem: str, scope: str) -> None:
    if sem not in SEMANTICS:
        raise VerifyError(f"{what}: sem {sem!r} is none of {', '.join(SEMANTICS)}")
    if scope not in SCOPES:
        raise VerifyError(f"{what}: scope {scope!r} is none of {', '.join(SCOPES)}")


class Rmw(Op, opcode="atomic.rmw", effect=Effect.WRITE):
    """Replaces elements at pointers by `old <kind> value` where the mask holds; gives the old ones.

    kind: add, max, min, and, or, xor or xchg. Lanes with one address all count. The result is 0
    where the mask is false. sem: relaxed, acquire, release or acq_rel; scope: cta, gpu or sys.
    Ref: PTX ISA, atom and red.
    """

    kind: str = attribute()
    pointer: Value = operand()
    value: Value = operand()
    mask: Value | None = operand(default=None)
    sem: str = attribute(default="acq_rel")
    scope: str = attribute(default="gpu")
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        dtype = pointed_to(self.pointer, f"atomic_{self.kind}")
        check_lanes(f"atomic_{self.kind}", self.pointer, self.mask, value=self.value)
        return (like(self.pointer.type, dtype),)

    def verify(self, target: Target) -> None:
        dtype = pointed_to(self.pointer, "atomic")
        if problem := rmw_problem(self.kind, dtype):
            raise VerifyError(f"atomic_{self.kind}: {problem}")
        _check_order(f"atomic_{self.kind}", self.sem, self.scope)

    def scratch_bytes(self) -> int:
        """One thread updates a single element and hands the old one to all."""
        return SHARED_BYTES if isinstance(self.pointer.type, ScalarType) else 0

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        pointer, value, *rest = arrays  # then the scratch, which holds nothing of a meaning
        dtype = pointed_to(self.pointer, "atomic")
        mask = rest[0] if self.mask is not None else True
        step = _combines(self.kind, dtype, value)
        return _in_turn(machine, pointer, mask, dtype, origin_of(self.pointer), step)


class Cas(Op, opcode="atomic.cas", effect=Effect.WRITE):
    """Replaces elements at pointers by `value` where they hold the bits of `compare`.

    Gives the old elements. sem, scope: as in `atomic.rmw`.
    Ref: PTX ISA, atom.cas.
    """

    pointer: Value = operand()
    compare: Value = operand()
    value: Value = operand()
    sem: str = attribute(default="acq_rel")
    scope: str = attribute(default="gpu")
    scratch: Value | None = operand(default=None)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        dtype = pointed_to(self.pointer, "atomic_cas")
        check_lanes("atomic_cas", self.pointer, None, compare=self.compare, value=self.value)
        return (like(self.pointer.type, dtype),)

    def verify(self, target: Target) -> None:
        dtype = pointed_to(self.pointer, "atomic_cas")
        if dtype.bits < 16:
            raise VerifyError(f"atomic_cas: {dtype!r} is too narrow, 16 bits are needed")
        _check_order("atomic_cas", self.sem, self.scope)

    def scratch_bytes(self) -> int:
        """One thread updates a single element and hands the old one to all."""
        return SHARED_BYTES if isinstance(self.pointer.type, ScalarType) else 0

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        pointer, compare, value = arrays[:3]
        dtype = pointed_to(self.pointer, "atomic_cas")
        step = _swaps(compare, value)
        return _in_turn(machine, pointer, True, dtype, origin_of(self.pointer), step)


ElementStep = Callable[[Any, tuple[int, ...]], Any]
"""What becomes of an old element; its place in the tile."""


def _combines(kind: str, dtype: DType, value: Any) -> ElementStep:
    """The update of `atomic.rmw`."""
    update = _UPDATES[kind]

    def step(old: Any, index: tuple[int, ...]) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(update(wide(old), wide(value[index]))).astype(dtype.numpy)

    return step


def _swaps(compare: Any, value: Any) -> ElementStep:
    """The update of `atomic.cas`."""

    def step(old: Any, index: tuple[int, ...]) -> Any:
        same = old.tobytes() == np.asarray(compare[index]).tobytes()
        return value[index] if same else old

    return step


def _in_turn(
    machine: Machine,
    pointer: Any,
    mask: Any,
    dtype: DType,
    origin: str | None,
    step: ElementStep,
) -> Any:
    """Updates the elements one after the other; gives the old ones."""
    pointers, active = np.broadcast_arrays(pointer, mask)
    out = np.zeros(pointers.shape, dtype.numpy)
    for index in np.ndindex(pointers.shape):
        if active[index]:
            at = pointers[index]
            old = machine.memory.gather(at, dtype, origin=origin)
            machine.memory.scatter(at, step(old, index), origin=origin)
            out[index] = old
    return out


# ---------------------------------------------------------------------- lower levels
class Update(Lanes):
    """Base of atomic updates of tiles.

    shared: one thread updates an element that several hold, and hands the old one to the others
    through shared memory. scratch, barrier, guarded: see `reduce.reduce`.
    """

    sem: str = attribute(default="acq_rel")
    scope: str = attribute(default="gpu")
    shared: bool = attribute(default=False)
    barrier: int = attribute(default=0)
    guarded: bool = attribute(default=True)

    def infer_types(self) -> tuple[Type, ...]:
        return (TileType(self.shape, self.dtype, self.layout),)

    def scratch_bytes(self) -> int:
        """Shared memory for the old elements."""
        return exchange_bytes(prod(self.shape), self.dtype.bytes) if self.shared else 0

    def execute(self, machine: Machine, *arrays: Any) -> Any:
        return self.update(machine, arrays, True)

    def update(self, machine: Machine, arrays: tuple[Any, ...], own: Any) -> Steps:
        """Updates the elements where `own` holds, as far as the mask does."""
        count = len(self.inputs)
        at, mask, _, origin = yield from self.places(machine, arrays[:count])
        step = self.step(*(np.broadcast_to(x, self.shape) for x in arrays[count:][: self.given]))
        return (_in_turn(machine, at, np.logical_and(mask, own), self.dtype, origin, step),)

    given = 1
    """Tiles that an update takes."""

    def step(self, *values: Any) -> ElementStep:
        """What becomes of an element."""
        raise NotImplementedError(self.opcode)


class RmwLanes(Update, opcode="atomic.rmw_lanes", levels=LOWER, effect=Effect.WRITE):
    """`atomic.rmw` of a tile, with the computation of its addresses and mask.

    width: elements of one vector instruction, which no result may want.
    """

    kind: str = attribute(kw_only=True)
    value: Value = operand(kw_only=True)
    scratch: Value | None = operand(default=None)
    body: Region = region(factory=Region)

    def step(self, *values: Any) -> ElementStep:
        return _combines(self.kind, self.dtype, values[0])


class CasLanes(Update, opcode="atomic.cas_lanes", levels=LOWER, effect=Effect.WRITE):
    """`atomic.cas` of a tile, with the computation of its addresses."""

    given = 2
    compare: Value = operand(kw_only=True)
    value: Value = operand(kw_only=True)
    scratch: Value | None = operand(default=None)
    body: Region = region(factory=Region)

    def step(self, *values: Any) -> ElementStep:
        return _swaps(*values)
