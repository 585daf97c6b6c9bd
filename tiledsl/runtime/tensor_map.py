"""Tensor maps (TMA descriptors): the facts of one, checked, and their encoding by the driver."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass

from tiledsl.codegen.module import TensorMapParam
from tiledsl.dtypes import DType
from tiledsl.errors import InternalError
from tiledsl.errors import LaunchError
from tiledsl.ir.specs import TMA_ALIGN_BYTES
from tiledsl.ir.specs import TMA_MAX_EXTENT
from tiledsl.ir.specs import TMA_MAX_RANK
from tiledsl.ir.specs import pitch_fault
from tiledsl.ir.specs import tma_legal
from tiledsl.runtime import driver
from tiledsl.target import HOPPER

__all__ = ["MapFacts", "encode", "encoder", "map_facts", "tma_legal"]

MAP_BYTES = 128
CACHED_MAPS = 256

Encoder = Callable[[int, tuple[int, ...], tuple[int, ...]], bytes]

_DATA_TYPES = {
    "i1": "UINT8",
    "i8": "UINT8",
    "u8": "UINT8",
    "e4m3": "UINT8",
    "e5m2": "UINT8",
    "i16": "UINT16",
    "u16": "UINT16",
    "i32": "INT32",
    "u32": "UINT32",
    "i64": "INT64",
    "u64": "UINT64",
    "f16": "FLOAT16",
    "bf16": "BFLOAT16",
    "f32": "FLOAT32",
    "f64": "FLOAT64",
}
_SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
_PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}


@dataclass(frozen=True, slots=True)
class MapFacts:
    """Arguments of cuTensorMapEncodeTiled, innermost dimension first.

    extents: elements.  pitches_bytes: strides of all dimensions but the inner one.  box: elements.
    """

    dtype: DType
    ptr: int
    extents: tuple[int, ...]
    pitches_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_bytes: int
    l2_promotion_bytes: int


def map_facts(
    param: TensorMapParam, ptr: int, shape: Sequence[int], strides: Sequence[int]
) -> MapFacts:
    """The map of a tensor, in the dimension order that the parameter states.

    Args:
        param: order of dimensions, box and swizzle.
        ptr: base address.
        shape: extents of the tensor.
        strides: strides in elements.

    Raises:
        LaunchError: the tensor cannot be described; names the argument.
        InternalError: the parameter itself breaks a rule.
    """
    _check_param(param, len(shape))
    itemsize = param.dtype.bytes
    if 0 in shape:
        raise _refused(param, "it has no elements")
    if ptr % TMA_ALIGN_BYTES:
        raise _refused(param, f"its address {ptr:#x} is not 16-byte aligned")
    inner = param.dims[0]
    if shape[inner] != 1 and strides[inner] != 1:
        raise _refused(param, f"dimension {inner} has stride {strides[inner]}, not 1")
    for dim, _, per in param.axes:
        if shape[dim] % per:
            raise _refused(param, f"dimension {dim} has extent {shape[dim]}, no multiple of {per}")
    extents = tuple(extent or int(shape[dim]) // per for dim, extent, per in param.axes)
    if max(extents) > TMA_MAX_EXTENT:
        raise _refused(param, f"an extent of {max(extents)} is over 2**32")
    # The stride of a dimension of extent 1 is never used but still checked by the driver.
    spare = -(-extents[0] * itemsize // TMA_ALIGN_BYTES) * TMA_ALIGN_BYTES
    pitches: list[int] = []
    for (dim, _, per), extent in zip(param.axes[1:], extents[1:], strict=True):
        pitch = spare if extent == 1 else int(strides[dim]) * per * itemsize
        if fault := pitch_fault(pitch):
            raise _refused(param, f"dimension {dim} has a stride of {pitch} bytes, {fault}")
        pitches.append(pitch)
    return MapFacts(
        param.dtype,
        ptr,
        extents,
        tuple(pitches),
        param.box,
        param.swizzle_bytes,
        param.l2_promotion_bytes,
    )


def encode(facts: MapFacts) -> bytes:
    """The 128 bytes of a map.

    Raises:
        LaunchError: the driver is missing or refuses the map.
    """
    cuda = driver.bindings()
    extent, box = cuda.cuuint64_t, cuda.cuuint32_t
    rank = len(facts.extents)
    with driver.some_context():
        result = cuda.cuTensorMapEncodeTiled(
            getattr(
                cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_DATA_TYPES[facts.dtype.name]}"
            ),
            rank,
            facts.ptr,
            [extent(n) for n in facts.extents],
            [extent(n) for n in facts.pitches_bytes],
            [box(n) for n in facts.box],
            [box(1)] * rank,
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(
                cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_SWIZZLES[facts.swizzle_bytes]}"
            ),
            getattr(
                cuda.CUtensorMapL2promotion,
                f"CU_TENSOR_MAP_L2_PROMOTION_{_PROMOTIONS[facts.l2_promotion_bytes]}",
            ),
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    encoded = driver.check(result, f"encode a tensor map ({facts})")
    return ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)  # type: ignore[attr-defined]


def encoder(param: TensorMapParam) -> Encoder:
    """(address, shape, strides) -> map bytes for one parameter, with the latest maps kept.

    A map depends on nothing but these values, so a kept one is never stale.
    """

    @functools.lru_cache(maxsize=CACHED_MAPS)
    def cached(ptr: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
        if param.in_table and 0 in shape:
            return bytes(MAP_BYTES)  # nothing is loaded through it
        return encode(map_facts(param, ptr, shape, strides))

    return cached


def _refused(param: TensorMapParam, reason: str) -> LaunchError:
    return LaunchError(
        f"argument {param.arg}: TMA cannot read this tensor: {reason}",
        hint="the kernel was compiled for tensors that TMA can read; compile it for this one",
    )


def _check_param(param: TensorMapParam, rank: int) -> None:
    """Rules that the compiler must keep, whatever the tensor."""
    inner_bytes = param.box[0] * param.dtype.bytes if param.box else 0
    faults = [
        (
            sorted({*param.dims}) != list(range(rank)) or len(param.dims) > rank + 1,
            f"dims {param.dims} are not those of a rank {rank} tensor",
        ),
        (
            not 1 <= len(param.dims) <= TMA_MAX_RANK,
            f"rank {len(param.dims)} is outside 1..{TMA_MAX_RANK}",
        ),
        (
            len(param.box) != len(param.dims),
            f"box {param.box} has not the rank of dims {param.dims}",
        ),
        (
            any(not 1 <= n <= HOPPER.tma_max_box for n in param.box),
            f"box {param.box} is outside 1..256",
        ),
        (
            inner_bytes % TMA_ALIGN_BYTES != 0,
            f"the inner box has {inner_bytes} bytes, not a multiple of 16",
        ),
        (param.swizzle_bytes not in _SWIZZLES, f"swizzle of {param.swizzle_bytes} bytes"),
        (
            0 < param.swizzle_bytes < inner_bytes,
            f"inner box of {inner_bytes} bytes over the swizzle span",
        ),
        (
            param.l2_promotion_bytes not in _PROMOTIONS,
            f"L2 promotion of {param.l2_promotion_bytes} bytes",
        ),
    ]
    for wrong, text in faults:
        if wrong:
            raise InternalError(f"tensor map {param.name} of argument {param.arg}: {text}")
