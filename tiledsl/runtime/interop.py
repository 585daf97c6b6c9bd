"""CPU tensors as numpy arrays that share their memory, for the interpreter."""

from __future__ import annotations

import operator
from collections.abc import Collection
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tiledsl.dtypes import DType
from tiledsl.errors import LaunchError
from tiledsl.runtime.signature import FROM_TORCH

READ_ONLY = "tiledsl_read_only"
"""Set on tensors that stand for arrays of other libraries which must not change."""


@dataclass(frozen=True, slots=True)
class StorageView:
    """The whole storage of a tensor, for pointer arithmetic.

    flat: one-dimensional array over the storage, elements of the tensor's dtype.
    offset: index of the tensor's first element in it.
    """

    flat: np.ndarray
    offset: int


def numpy_view(tensor: torch.Tensor, name: str = "tensor") -> np.ndarray:
    """An array of the tensor's shape, strides and dtype on the same memory.

    Stores into it go into the tensor. bf16 and fp8 come as `ml_dtypes` arrays.

    Raises:
        LaunchError: the tensor is not on the CPU, or its dtype is unsupported.
    """
    view = storage_view(tensor, name)
    flat, shape = view.flat, tuple(tensor.shape)
    if tensor.numel() == 0:
        return np.empty(shape, flat.dtype)
    strides = tuple(int(stride) * flat.itemsize for stride in tensor.stride())
    raw, start = flat.view(np.uint8), view.offset * flat.itemsize
    return np.ndarray(shape, flat.dtype, buffer=raw, offset=start, strides=strides)


def storage_view(tensor: torch.Tensor, name: str = "tensor") -> StorageView:
    """The tensor's storage as a flat array, and where the tensor starts in it.

    Raises:
        LaunchError: as `numpy_view`.
    """
    dtype = FROM_TORCH.get(tensor.dtype)
    if dtype is None:
        raise LaunchError(f"argument {name}: dtype {tensor.dtype} is not supported")
    if tensor.device.type != "cpu":
        raise LaunchError(
            f"argument {name} is on {tensor.device}: the interpreter works on CPU tensors"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise LaunchError(
            f"argument {name} is a lazy conjugate or negation; call .resolve_neg() first"
        )
    raw = _bytes_of(tensor.untyped_storage())
    usable = raw.size // dtype.bytes * dtype.bytes
    return StorageView(raw[:usable].view(dtype.numpy), int(tensor.storage_offset()))


class _Memory:
    """A storage as numpy takes it; an array of it keeps it alive.

    `Tensor.numpy()` would pin the storage's size for good, which FSDP changes.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (storage.nbytes(),),
            "data": (storage.data_ptr(), False),
        }


def _bytes_of(storage: torch.UntypedStorage) -> np.ndarray:
    return np.asarray(_Memory(storage)) if storage.nbytes() else np.empty(0, np.uint8)


def adopted(name: str, value: Any) -> Any:
    """An argument as the runtime takes it: another library's array as a tensor on its memory.

    Raises:
        LaunchError: an array that torch cannot share.
    """
    if isinstance(value, torch.Tensor) or not hasattr(value, "__dlpack__"):
        return value
    if hasattr(value, "data_ptr"):
        return value
    try:
        made = torch.from_dlpack(value)
        # The capsule may say so too, but torch does not look.
        writeable = getattr(getattr(value, "flags", None), "writeable", True)
        setattr(made, READ_ONLY, not writeable)
        return made
    except (TypeError, ValueError, RuntimeError, BufferError) as fault:
        raise LaunchError(
            f"argument {name}: a {type(value).__name__} that cannot be shared: {fault}",
            hint="pass a torch tensor, or an array of numbers that supports DLPack",
        ) from fault


def check_outputs(
    args: Mapping[str, Any], stored: Collection[str], pointers: Collection[str]
) -> None:
    """Refuses what cannot be stored to.

    Args:
        args: run-time arguments by name.
        stored: names of those that the kernel stores to.
        pointers: names of parameters that are pointers, for which strides mean nothing.

    Raises:
        LaunchError: a read-only array, or a tensor several of whose elements share memory.
    """
    for name in stored:
        value = args.get(name)
        if getattr(value, READ_ONLY, False):
            raise LaunchError(
                f"argument {name}: the kernel stores to it, but the array is read-only",
                hint="pass a copy that can be written",
            )
        if isinstance(value, torch.Tensor) and name not in pointers:
            shape, strides = tuple(value.shape), value.stride()
            if shares_elements(shape, strides):
                raise LaunchError(
                    f"argument {name}: the kernel stores to it, but several of its elements share "
                    f"memory (shape {shape}, strides {strides})",
                    hint="pass an output of its own, such as .contiguous() gives",
                )


def check_scalar(name: str, value: object, dtype: DType) -> None:
    """Refuses a number that its parameter cannot hold, as a launch on a GPU does.

    Raises:
        LaunchError: not an integer, or one that is too large.
    """
    if not dtype.is_int:
        return
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    signed = dtype.kind == "int"
    low, high = (-(1 << dtype.bits - 1), 1 << dtype.bits - 1) if signed else (0, 1 << dtype.bits)
    if number is None or (dtype.bits > 1 and not low <= number < high):
        raise LaunchError(f"argument {name}: {value!r} does not fit {dtype}")


def shares_elements(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether several elements of a tensor may lie at one address.

    None do where each stride is longer than all that the shorter ones span; views of tensors are
    like that.
    """
    if 0 in shape:
        return False
    span = 1
    for n, s in sorted(zip(shape, strides, strict=True), key=lambda x: x[1]):
        if n > 1:
            if s < span:
                return True
            span = s * (n - 1) + span
    return False


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """A tensor on the memory of an array, `ml_dtypes` included.

    Raises:
        LaunchError: the dtype has no torch form.
    """
    for theirs, ours in FROM_TORCH.items():
        if ours.numpy == array.dtype:
            bits = array.view(np.dtype(f"{'u' if ours.bytes == 1 else 'i'}{ours.bytes}"))
            tensor: torch.Tensor = torch.from_numpy(bits)  # pyright: ignore[reportUnknownMemberType]
            return tensor.view(theirs)
    raise LaunchError(f"numpy dtype {array.dtype} has no torch form")


def assert_close_arrays(x: object, y: object, atol: float, rtol: float) -> None:
    """Raises AssertionError unless two tensors or sequences are close, computed in float64."""
    left, right = (
        v.detach().double().cpu() if isinstance(v, torch.Tensor) else torch.tensor(v).double()
        for v in (x, y)
    )
    torch.testing.assert_close(left, right, atol=atol, rtol=rtol)
