"""From bound arguments to the specialisation signature, and torch dtypes to ours."""

from __future__ import annotations

import sys
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol
from typing import TypeGuard
from typing import cast

import numpy as np
import torch

from tiledsl import dtypes
from tiledsl.dtypes import DType
from tiledsl.errors import LaunchError
from tiledsl.ir.specs import NoneSpec
from tiledsl.ir.specs import PointerSpec
from tiledsl.ir.specs import ScalarSpec
from tiledsl.ir.specs import Spec
from tiledsl.ir.specs import TensorSpec
from tiledsl.ir.specs import align_of
from tiledsl.ir.specs import contiguous_strides
from tiledsl.ir.specs import spec_of
from tiledsl.runtime.descriptor import TensorDescriptor

FROM_TORCH: dict[torch.dtype, DType] = {
    torch.bool: dtypes.int1,
    torch.int8: dtypes.int8,
    torch.int16: dtypes.int16,
    torch.int32: dtypes.int32,
    torch.int64: dtypes.int64,
    torch.uint8: dtypes.uint8,
    torch.uint16: dtypes.uint16,
    torch.uint32: dtypes.uint32,
    torch.uint64: dtypes.uint64,
    torch.float8_e4m3fn: dtypes.float8e4nv,
    torch.float8_e5m2: dtypes.float8e5,
    torch.float16: dtypes.float16,
    torch.bfloat16: dtypes.bfloat16,
    torch.float32: dtypes.float32,
    torch.float64: dtypes.float64,
}
TO_TORCH: dict[DType, torch.dtype] = {ours: theirs for theirs, ours in FROM_TORCH.items()}

# What is said of an integer's divisors, by its low four bits: whole vectors of 16 bytes of any
# dtype, of 2-byte and of 4-byte elements, and words of 2-byte elements.
_DIVISORS = tuple(next(d for d in (16, 8, 4, 2, 1) if low % d == 0) for low in range(16))
_I32 = tuple(ScalarSpec(dtypes.int32, n, sign=1) for n in _DIVISORS)
_I64 = tuple(ScalarSpec(dtypes.int64, n, sign=1) for n in _DIVISORS)
_U64 = tuple(ScalarSpec(dtypes.uint64, n, sign=1) for n in _DIVISORS)
_BELOW32 = tuple(ScalarSpec(dtypes.int32, n, sign=-1) for n in _DIVISORS)
_BELOW64 = tuple(ScalarSpec(dtypes.int64, n, sign=-1) for n in _DIVISORS)
_ONE = ScalarSpec(dtypes.int32, 1, value=1, sign=1)
_F32 = ScalarSpec(dtypes.float32)
_I1 = ScalarSpec(dtypes.int1)
_NONE = NoneSpec()
_ALIGN_MASK = 15
MAX_SEEN = 4096


class HasPointer(Protocol):
    """Anything that stands for memory: torch tensors, and objects that wrap one."""

    def data_ptr(self) -> int:
        """Address of the first element."""
        ...


@dataclass(frozen=True, slots=True)
class Device:
    """Where the tensors of a call live. index is 0 for the CPU."""

    type: str
    index: int = 0

    def __str__(self) -> str:
        return self.type if self.type in ("cpu", "meta") else f"{self.type}:{self.index}"


@dataclass(frozen=True, slots=True)
class Signature:
    """Names and specs of the arguments, in order: calls with equal signatures share a kernel."""

    names: tuple[str, ...]
    specs: tuple[Spec, ...]

    def __getitem__(self, name: str) -> Spec:
        return self.specs[self.names.index(name)]

    def __str__(self) -> str:
        return ", ".join(
            f"{name}: {spec}" for name, spec in zip(self.names, self.specs, strict=True)
        )


def signature(
    args: Mapping[str, object],
    *,
    pointers: Collection[str] = (),
    plain: Collection[str] = (),
    factors: Collection[str] | None = None,
    limits: Mapping[str, Collection[object]] = MappingProxyType({}),
) -> tuple[Signature, Device | None]:
    """The signature of a call, and the device of its tensors (None when there are no tensors).

    Args:
        args: bound arguments by name, without the constexpr ones.
        pointers: names of parameters that take tensors as pointers.
        plain: names of parameters whose integers are not looked at.
        factors: names of parameters for which it matters that an integer is 1; None for all.
        limits: for names of parameters, values that it matters to have.

    Raises:
        LaunchError: an argument of an unsupported type or dtype, or tensors on different devices.
    """
    specs: list[Spec] = []
    device: Device | None = None
    owner = ""
    for name, value in args.items():
        if has_pointer(value):
            is_pointer = name in pointers and not isinstance(value, TensorDescriptor)
            specs.append(pointer_spec(name, value) if is_pointer else tensor_spec(name, value))
            place = device_of(value)
            if device is None:
                device, owner = place, name
            elif place != device:
                raise LaunchError(
                    f"argument {name} is on {place} but argument {owner} is on {device}"
                )
        else:
            found = scalar_spec(name, value)
            if found is _ONE and factors is not None and name not in factors:
                found = _I32[1]
            if name in limits and type(value) is int and value > 1 and value in limits[name]:
                assert isinstance(found, ScalarSpec)
                found = replace(found, value=value)
            if name in plain and isinstance(found, ScalarSpec):
                found = ScalarSpec(found.dtype)
            specs.append(found)
    return Signature(tuple(args), tuple(specs)), device


def has_pointer(value: object) -> TypeGuard[HasPointer]:
    """Whether an argument is a tensor, or stands for one."""
    return isinstance(value, torch.Tensor) or hasattr(value, "data_ptr")


def tensor_spec(name: str, value: HasPointer) -> TensorSpec:
    """The spec of a tensor argument; also takes tensors on the meta device.

    Raises:
        LaunchError: a dtype outside the language; names the argument.
    """
    if isinstance(value, torch.Tensor):
        low_bits = _low_bits(name, value)
        key = (value.dtype, value.shape, value.stride(), low_bits)
        found = _seen.get(key)
        if found is None:
            found = _new_spec(name, value, low_bits)
            if len(_seen) >= MAX_SEEN:
                _seen.clear()
            _seen[key] = found
        return found
    dtype = to_dtype(getattr(value, "dtype", None))
    if dtype is None:
        raise _unsupported(name, getattr(value, "dtype", None))
    shape = tuple(int(extent) for extent in getattr(value, "shape", ()))
    stride = getattr(value, "stride", None)
    strides = (
        tuple(cast("Iterable[int]", stride())) if callable(stride) else contiguous_strides(shape)
    )
    if isinstance(value, TensorDescriptor):
        low_bits = 0 if value.is_meta else _low_bits(name, value.base)
    else:
        low_bits = value.data_ptr() & _ALIGN_MASK
    found = spec_of(dtype, shape, strides, ptr=low_bits)
    if isinstance(value, TensorDescriptor):
        *block, padding = value.block
        return replace(found, block_shape=tuple(block), padding=padding)
    return found


_seen: dict[object, TensorSpec] = {}


def _low_bits(name: str, tensor: torch.Tensor) -> int:
    """Of the address. Raises LaunchError for a tensor whose elements are not in its memory."""
    if tensor.layout is not torch.strided:
        raise LaunchError(f"argument {name}: expected a strided tensor, got layout {tensor.layout}")
    if tensor.is_neg() or tensor.is_conj():
        raise LaunchError(
            f"argument {name}: a lazy {'negation' if tensor.is_neg() else 'conjugate'}, whose "
            "memory holds other numbers",
            hint=f"pass {name}.resolve_neg() (or .resolve_conj())",
        )
    if tensor.is_meta:
        return int(tensor.storage_offset()) * tensor.dtype.itemsize & _ALIGN_MASK
    try:
        return tensor.data_ptr() & _ALIGN_MASK
    except RuntimeError as fault:
        kind = type(tensor).__name__
        raise LaunchError(f"argument {name}: a {kind} without an address: {fault}") from fault


def _new_spec(name: str, tensor: torch.Tensor, low_bits: int) -> TensorSpec:
    dtype = FROM_TORCH.get(tensor.dtype)
    if dtype is None:
        raise _unsupported(name, tensor.dtype)
    return spec_of(dtype, tuple(tensor.shape), tensor.stride(), ptr=low_bits)


def pointer_spec(name: str, value: HasPointer) -> PointerSpec:
    """The spec of a tensor argument that the kernel takes as a pointer.

    Raises:
        LaunchError: a dtype outside the language; names the argument.
    """
    given = getattr(value, "dtype", None)
    dtype = to_dtype(given)
    if dtype is None:
        raise _unsupported(name, given)
    is_tensor = isinstance(value, torch.Tensor)
    low_bits = _low_bits(name, value) if is_tensor else value.data_ptr() & _ALIGN_MASK
    return _pointers[dtype, low_bits]


class _PointerSpecs(dict[tuple[DType, int], PointerSpec]):
    def __missing__(self, key: tuple[DType, int]) -> PointerSpec:
        dtype, low_bits = key
        found = self[key] = PointerSpec(dtype, align_of(low_bits))
        return found


_pointers = _PointerSpecs()


def _hint_for(name: str, value: object) -> str:
    """What an argument may have been meant as that is no tensor and no number."""
    if not isinstance(value, list | tuple):
        return f"a compile-time value is declared `{name}: tl.constexpr`"
    return (
        f"give each tensor a parameter of its own, or declare `{name}: tl.TensorList` for a list "
        f"of tensors; a tuple of compile-time values is declared `{name}: tl.constexpr`"
    )


def scalar_spec(name: str, value: object) -> ScalarSpec | NoneSpec:
    """The spec of a scalar: int is i32, i64 from `INT32_ROOM` on; float is f32; bool is i1.

    Raises:
        LaunchError: a value that is no scalar, or an integer of more than 64 bits.
    """
    match value:
        case None:
            return _NONE
        case bool() | np.bool_():
            return _I1
        case int() | np.integer():
            return _int_spec(name, int(value))
        case float() | np.floating():
            return _F32
        case _:
            raise LaunchError(
                f"argument {name}: expected a tensor or scalar, got {type(value).__name__}",
                hint=_hint_for(name, value),
            )


def _int_spec(name: str, value: int) -> ScalarSpec:
    if value == 1:
        return _ONE
    low = value & 15
    if -(2**31) <= value < dtypes.INT32_ROOM:
        return _I32[low] if value > 0 else _BELOW32[low]
    if -(2**63) <= value < 2**63:
        return _I64[low] if value > 0 else _BELOW64[low]
    if 0 <= value < 2**64:
        return _U64[low]
    raise LaunchError(f"argument {name}: {value} does not fit 64 bits")


def device_of(value: HasPointer) -> Device:
    """Device of a tensor; objects without one count as CUDA, on torch's current device."""
    device = cast("torch.device | None", getattr(value, "device", None))
    kind = getattr(device, "type", None)
    if device is None or kind is None:
        return Device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
    return Device(device.type, device.index or 0)


def dot_precision() -> str:
    """What float32 dots without a precision of their own follow, as torch has it now."""
    return sys.intern(torch.get_float32_matmul_precision())


def f32_precision() -> str:
    """The precision of float32 dots that name none: one TF32 product, or "" for all of f32."""
    return "" if dot_precision() == "highest" else "tf32"


def to_dtype(value: object) -> DType | None:
    """Our dtype for a torch dtype, one of ours or a name (`float16`, `f16`); None when unknown."""
    match value:
        case DType():
            return value
        case torch.dtype():
            return FROM_TORCH.get(value)
        case str():
            return dtypes.BY_USER_NAME.get(value) or dtypes.BY_NAME.get(value)
        case _:
            return None


def _unsupported(name: str, dtype: object) -> LaunchError:
    known = ", ".join(str(theirs).removeprefix("torch.") for theirs in FROM_TORCH)
    return LaunchError(
        f"argument {name}: dtype {dtype} is not supported", hint=f"supported are {known}"
    )
