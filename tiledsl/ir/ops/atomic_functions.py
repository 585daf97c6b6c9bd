"""Functions of the language that update memory atomically."""

from __future__ import annotations

from tiledsl.dtypes import DType
from tiledsl.errors import TypeMismatch
from tiledsl.ir.builder import Builder
from tiledsl.ir.builtin import builtin
from tiledsl.ir.markers import unwrap
from tiledsl.ir.op import Value
from tiledsl.ir.operands import Operand
from tiledsl.ir.ops.atomic import SCOPES
from tiledsl.ir.ops.atomic import SEMANTICS
from tiledsl.ir.ops.atomic import Cas
from tiledsl.ir.ops.atomic import Rmw
from tiledsl.ir.ops.atomic import rmw_problem
from tiledsl.ir.ops.pointer import pointed_to
from tiledsl.ir.ops.pointer_functions import Mask
from tiledsl.ir.ops.pointer_functions import lane_value
from tiledsl.ir.ops.pointer_functions import masked
from tiledsl.ir.ops.pointer_functions import pointer_operand

Sem = str | None


@builtin
def atomic_add(
    b: Builder, pointer: Value, val: Operand, mask: Mask = None, sem: Sem = None, scope: Sem = None
) -> Value:
    """Adds `val` to the elements at pointers where the mask holds; gives the old elements.

    sem: "acq_rel" (default), "relaxed", "acquire" or "release". scope: "gpu" (default), "cta" or
    "sys". Lanes with one address all count; the result is 0 where the mask is false.
    """
    return _rmw(b, "add", pointer, val, mask, sem, scope)


@builtin
def atomic_max(
    b: Builder, pointer: Value, val: Operand, mask: Mask = None, sem: Sem = None, scope: Sem = None
) -> Value:
    """The larger of element and `val`, as `atomic_add`."""
    return _rmw(b, "max", pointer, val, mask, sem, scope)


@builtin
def atomic_min(
    b: Builder, pointer: Value, val: Operand, mask: Mask = None, sem: Sem = None, scope: Sem = None
) -> Value:
    """The smaller of element and `val`, as `atomic_add`."""
    return _rmw(b, "min", pointer, val, mask, sem, scope)


@builtin
def atomic_and(
    b: Builder, pointer: Value, val: Operand, mask: Mask = None, sem: Sem = None, scope: Sem = None
) -> Value:
    """Bitwise and of integers, as `atomic_add`."""
    return _rmw(b, "and", pointer, val, mask, sem, scope)


@builtin
def atomic_or(
    b: Builder, pointer: Value, val: Operand, mask: Mask = None, sem: Sem = None, scope: Sem = None
) -> Value:
    """Bitwise or of integers, as `atomic_add`."""
    return _rmw(b, "or", pointer, val, mask, sem, scope)


@builtin
def atomic_xor(
    b: Builder, pointer: Value, val: Operand, mask: Mask = None, sem: Sem = None, scope: Sem = None
) -> Value:
    """Bitwise exclusive or of integers, as `atomic_add`."""
    return _rmw(b, "xor", pointer, val, mask, sem, scope)


@builtin
def atomic_xchg(
    b: Builder, pointer: Value, val: Operand, mask: Mask = None, sem: Sem = None, scope: Sem = None
) -> Value:
    """Puts `val` in the place of the element, as `atomic_add`."""
    return _rmw(b, "xchg", pointer, val, mask, sem, scope)


@builtin
def atomic_cas(
    b: Builder, pointer: Value, cmp: Operand, val: Operand, sem: Sem = None, scope: Sem = None
) -> Value:
    """Puts `val` in the place of the element if that has the bits of `cmp`; gives the old one."""
    at = pointer_operand(pointer, "atomic_cas()")
    dtype = pointed_to(at, "atomic_cas()")
    if dtype.bits < 16:
        raise TypeMismatch(f"atomic_cas(): {dtype!r} is too narrow, 16 bits are needed")
    compare = lane_value(b, at, cmp, dtype, "atomic_cas(): cmp")
    value = lane_value(b, at, val, dtype, "atomic_cas(): val")
    return b.value(Cas(at, compare, value, *_order("atomic_cas()", sem, scope)))


def _rmw(
    b: Builder, kind: str, pointer: Value, val: Operand, mask: Mask, sem: Sem, scope: Sem
) -> Value:
    what = f"atomic_{kind}()"
    at = pointer_operand(pointer, what)
    dtype: DType = pointed_to(at, what)
    if problem := rmw_problem(kind, dtype):
        raise TypeMismatch(f"{what}: {problem}")
    value = lane_value(b, at, val, dtype, f"{what}: val")
    return b.value(Rmw(kind, at, value, masked(b, at, mask, what), *_order(what, sem, scope)))


def _order(what: str, sem: Sem, scope: Sem) -> tuple[str, str]:
    chosen_sem, chosen_scope = unwrap(sem) or "acq_rel", unwrap(scope) or "gpu"
    if chosen_sem not in SEMANTICS:
        raise TypeMismatch(f"{what}: sem {chosen_sem!r} is none of {', '.join(SEMANTICS)}")
    if chosen_scope not in SCOPES:
        raise TypeMismatch(f"{what}: scope {chosen_scope!r} is none of {', '.join(SCOPES)}")
    return chosen_sem, chosen_scope
