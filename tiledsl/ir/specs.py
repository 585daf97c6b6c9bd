"""Specialisation specs of kernel arguments, and the rules that say when TMA may read a tensor.

A spec holds what the compiler may know about an argument; two calls with equal specs share a
kernel. Specs need neither torch nor a GPU: `spec(bf16, 2)` describes the usual contiguous tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tiledsl.dtypes import DType

# Ref: CUDA driver API, cuTensorMapEncodeTiled.
TMA_ALIGN_BYTES = 16
TMA_MAX_RANK = 5
TMA_MAX_EXTENT = 1 << 32
TMA_MAX_STRIDE_BYTES = 1 << 40
LINE_BYTES = 128


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What the compiler knows about a tensor argument.

    inner_dim: the dimension with stride 1 (a dimension of extent 1 counts as one), or None.
    tma: whether a tensor map can describe the tensor; tma_reason says why not (empty when it can).
    pitch_128: every stride but the inner one is a multiple of 128 bytes.
    align_bytes: alignment of the base address, a power of two of at most 16.
    fours: of 8-bit elements, whether the rows (the dimension before the contiguous one) come in
    fours.
    ragged: of a tensor that a tensor map can describe, whether its rows end between multiples of 16
    bytes: bulk stores would write past them.
    pitch_bytes: of a tensor that no tensor map can describe, what divides all strides but the inner
    one, a power of two of at most 16.
    block_shape, padding: of a tensor descriptor made by the host; empty for other tensors.
    """

    dtype: DType
    rank: int
    inner_dim: int | None
    tma: bool
    tma_reason: str = ""
    pitch_128: bool = False
    align_bytes: int = TMA_ALIGN_BYTES
    block_shape: tuple[int, ...] = ()
    padding: str = ""
    fours: bool = False
    ragged: bool = False
    pitch_bytes: int = 1

    def __str__(self) -> str:
        facts = [f"inner={self.inner_dim}", "tma" if self.tma else "no tma"]
        facts += ["pitch128"] if self.pitch_128 else []
        facts += ["rows in fours"] if self.fours else []
        facts += ["ragged rows"] if self.ragged else []
        facts += [f"pitch {self.pitch_bytes}"] if self.pitch_bytes > 1 and not self.tma else []
        facts += [f"block {list(self.block_shape)} {self.padding}"] if self.block_shape else []
        return (
            f"tensor<{self.dtype}, rank {self.rank}, {', '.join(facts)}, align {self.align_bytes}>"
        )


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A scalar argument passed by value as `dtype`.

    divisible: of an integer, the largest of 16, 8, 4, 2 and 1 that divides its value. value: of an
    integer, what it is, where that is known: 1, or the extent that it bounds; else 0. sign: of an
    integer, 1 over 0, -1 for 0 and less, 0 where that is not known.
    """

    dtype: DType
    divisible: int = 1
    value: int = 0
    sign: int = 0

    def __str__(self) -> str:
        facts = f", multiple of {self.divisible}" if self.divisible > 1 else ""
        facts += f", = {self.value}" if self.value else ""
        facts += ", not over 0" if self.sign < 0 else ""
        facts += ", of any sign" if self.sign == 0 and self.dtype.is_int else ""
        return f"scalar<{self.dtype}{facts}>"


@dataclass(frozen=True, slots=True)
class PointerSpec:
    """A tensor argument that the kernel takes as a pointer.

    dtype: of the elements. align_bytes: of the address, a power of two of at most 16.
    """

    dtype: DType
    align_bytes: int = TMA_ALIGN_BYTES

    def __str__(self) -> str:
        return f"pointer<{self.dtype}, align {self.align_bytes}>"


@dataclass(frozen=True, slots=True)
class NoneSpec:
    """An argument that is None."""

    def __str__(self) -> str:
        return "none"


@dataclass(frozen=True, slots=True)
class TensorView:
    """A strided tensor that a kernel describes by a pointer argument and integer arguments.

    name: of the tensor argument that stands for it. pointer: name of the pointer argument.
    shape, strides: in elements; an int, the name of an argument, a product of such ("4*C*OC"), or
    None for an extent that the kernel does not check.
    """

    name: str
    pointer: str
    dtype: DType
    shape: tuple[int | str | None, ...]
    strides: tuple[int | str, ...]


def factors_in(item: int | str) -> tuple[int, tuple[str, ...]]:
    """An extent or a stride of a view: the number, and the names of arguments, in the product."""
    if isinstance(item, int):
        return item, ()
    parts = item.split("*")
    numbers = [int(p) for p in parts if p.isdecimal()]
    return prod(numbers), tuple(p for p in parts if not p.isdecimal())


def product_in(item: int | str, value: Callable[[str], int]) -> int:
    """The value of an extent or a stride of a view. value: of an argument by its name."""
    number, names = factors_in(item)
    return number * prod(value(name) for name in names)


Spec = TensorSpec | PointerSpec | ScalarSpec | NoneSpec


class AutoInt(int):
    """The value chosen for a `tl.auto` constexpr.

    It keeps its class where it is used as a tile dimension, so that an analysis can see which
    dimensions a constexpr feeds; arithmetic on it gives a plain int.
    """

    name: str

    def __new__(cls, value: int, name: str) -> AutoInt:
        """An int that knows the constexpr it came from."""
        made = super().__new__(cls, value)
        made.name = name
        return made

    def __reduce__(self) -> tuple[type[AutoInt], tuple[int, str]]:
        return AutoInt, (int(self), self.name)


def spec(
    dtype: DType,
    rank: int,
    *,
    inner_dim: int | None = -1,
    tma: bool = True,
    tma_reason: str = "",
    pitch_128: bool = False,
    align_bytes: int = TMA_ALIGN_BYTES,
) -> TensorSpec:
    """A spec written by hand; the defaults are a contiguous, aligned tensor that TMA can read.

    A negative `inner_dim` counts from the end. `tma` falls to False, with a reason, where the other
    arguments rule it out.
    """
    inner = inner_dim + rank if inner_dim is not None and inner_dim < 0 else inner_dim
    if inner is not None and not 0 <= inner < rank:
        inner = None
    if tma:
        if not 1 <= rank <= TMA_MAX_RANK:
            tma, tma_reason = False, _rank_reason(rank)
        elif inner is None:
            tma, tma_reason = False, "no dimension has stride 1"
        elif align_bytes < TMA_ALIGN_BYTES:
            tma, tma_reason = False, f"the base is aligned to {align_bytes} bytes, 16 are needed"
    return TensorSpec(
        dtype,
        rank,
        inner,
        tma,
        "" if tma else tma_reason or "TMA was ruled out",
        pitch_128,
        align_bytes,
    )


def spec_of(
    dtype: DType, shape: Sequence[int], strides: Sequence[int] | None = None, *, ptr: int = 0
) -> TensorSpec:
    """The spec of a tensor of these extents, strides in elements and base address.

    Without strides the tensor is contiguous.
    """
    if strides is None:
        strides = contiguous_strides(shape)
    inner = inner_dim_of(shape, strides)
    legal, reason = tma_legal(ptr, shape, strides, dtype.bytes)
    pitch_128 = inner is not None and all(
        stride * dtype.bytes % LINE_BYTES == 0
        for dim, (extent, stride) in enumerate(zip(shape, strides, strict=True))
        if dim != inner and extent != 1
    )
    outer = [dim for dim in range(len(shape)) if dim != inner]
    fours = dtype.bits == 8 and dtype.is_float and bool(outer) and shape[outer[-1]] % 4 == 0
    ragged = (
        legal is not None and len(shape) > 1 and shape[legal] * dtype.bytes % TMA_ALIGN_BYTES != 0
    )
    return TensorSpec(
        dtype,
        len(shape),
        inner,
        legal is not None,
        reason,
        pitch_128,
        align_of(ptr),
        fours=fours,
        ragged=ragged,
        pitch_bytes=1 if legal is not None else pitch_of(shape, strides, dtype.bytes),
    )


def pitch_of(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """Bytes that divide all strides but the inner one, at most 16."""
    inner = inner_dim_of(shape, strides)
    found = TMA_ALIGN_BYTES
    for dim, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if dim != inner and extent != 1:
            found = min(found, align_of(stride * itemsize))
    return found


def align_of(ptr: int) -> int:
    """Alignment of an address in bytes, at most 16."""
    return min(ptr & -ptr, TMA_ALIGN_BYTES) if ptr else TMA_ALIGN_BYTES


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(1, shape[dim + 1])
    return tuple(strides)


def inner_dim_of(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """The dimension along which neighbours are adjacent in memory.

    The last dimension of extent over 1 with stride 1; failing that a dimension of extent 1, whose
    stride is never used (the last one, a stated stride of 1 first).
    """
    dims = range(len(shape) - 1, -1, -1)
    for dim in dims:
        if shape[dim] != 1 and strides[dim] == 1:
            return dim
    ones = [dim for dim in dims if shape[dim] == 1]
    return next((dim for dim in ones if strides[dim] == 1), ones[0] if ones else None)


def tma_legal(
    ptr: int, shape: Sequence[int], strides: Sequence[int], itemsize: int
) -> tuple[int | None, str]:
    """Whether a tensor map can describe a tensor.

    Args:
        ptr: base address.
        shape: extents.
        strides: strides in elements; those of dimensions of extent 1 do not matter.
        itemsize: bytes of an element.

    Returns:
        (inner dimension, "") when it can, else (None, reason).

    Ref: CUDA driver API, cuTensorMapEncodeTiled.
    """
    if not 1 <= len(shape) <= TMA_MAX_RANK:
        return None, _rank_reason(len(shape))
    if 0 in shape:
        return None, "the tensor has no elements"
    inner = inner_dim_of(shape, strides)
    if inner is None:
        return None, f"no dimension has stride 1 (strides {tuple(strides)})"
    if shape[inner] == 1:
        # Bulk stores of single elements were seen to write beside them on an H200.
        return None, "the contiguous dimension has extent 1"
    if ptr % TMA_ALIGN_BYTES:
        return None, f"the base is aligned to {align_of(ptr)} bytes, 16 are needed"
    for dim, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        if extent > TMA_MAX_EXTENT:
            return None, f"dimension {dim} has extent {extent}, over 2**32"
        if dim != inner and extent != 1 and (fault := pitch_fault(stride * itemsize)):
            return None, f"dimension {dim} has a stride of {stride * itemsize} bytes, {fault}"
    return inner, ""


def pitch_fault(pitch_bytes: int) -> str:
    """Why a tensor map cannot step by so many bytes; empty when it can."""
    if pitch_bytes <= 0:
        return "not over 0 (an expanded dimension)"
    if pitch_bytes % TMA_ALIGN_BYTES:
        return f"not a multiple of {TMA_ALIGN_BYTES}"
    return "2**40 or more" if pitch_bytes >= TMA_MAX_STRIDE_BYTES else ""


def _rank_reason(rank: int) -> str:
    return f"rank {rank} is outside 1..{TMA_MAX_RANK}"
