"""The dtype table: one row per element type, with its numpy, CUDA and tensor-map names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import ml_dtypes
import numpy as np

Kind = Literal["bool", "int", "uint", "float", "ptr"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    name: the name in the IR and in user code (`f32` prints, `tl.float32` is the user's name).
    cuda: the C++ type that holds one element in a register or in memory.
    element: of a pointer, the dtype it points to; pointers are 64-bit addresses (int64 in numpy).
    """

    name: str
    user_name: str
    kind: Kind
    bits: int
    numpy: np.dtype
    cuda: str
    mantissa_bits: int = 0
    element: DType | None = None

    @property
    def bytes(self) -> int:
        """Bytes of one element in memory (a bool takes one)."""
        return max(1, self.bits // 8)

    @property
    def primitive_bitwidth(self) -> int:
        """Bits of one element, by Triton's name."""
        return self.bits

    def is_floating(self) -> bool:
        """As `is_float`, by Triton's name."""
        return self.kind == "float"

    def is_bf16(self) -> bool:
        """By Triton's name; so the next ones, which Python functions on constants ask for."""
        return self.name == "bf16"

    def is_fp16(self) -> bool:
        return self.name == "f16"

    def is_fp32(self) -> bool:
        return self.name == "f32"

    def is_fp64(self) -> bool:
        return self.name == "f64"

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_int(self) -> bool:
        """Integers, signed or not; bool is not one."""
        return self.kind in ("int", "uint")

    @property
    def is_pointer(self) -> bool:
        return self.kind == "ptr"

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    @property
    def is_16bit_float(self) -> bool:
        return self.kind == "float" and self.bits == 16

    @property
    def is_fp8(self) -> bool:
        return self.kind == "float" and self.bits == 8

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"tl.{self.user_name}"

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DType) and other.name == self.name


def _dt(
    name: str, user: str, kind: Kind, bits: int, numpy: object, cuda: str, mant: int = 0
) -> DType:
    return DType(name, user, kind, bits, np.dtype(numpy), cuda, mant)  # type: ignore[call-overload]


int1 = _dt("i1", "int1", "bool", 1, np.bool_, "bool")
int8 = _dt("i8", "int8", "int", 8, np.int8, "i8")
int16 = _dt("i16", "int16", "int", 16, np.int16, "i16")
int32 = _dt("i32", "int32", "int", 32, np.int32, "i32")
int64 = _dt("i64", "int64", "int", 64, np.int64, "i64")
uint8 = _dt("u8", "uint8", "uint", 8, np.uint8, "u8")
uint16 = _dt("u16", "uint16", "uint", 16, np.uint16, "u16")
uint32 = _dt("u32", "uint32", "uint", 32, np.uint32, "u32")
uint64 = _dt("u64", "uint64", "uint", 64, np.uint64, "u64")
float8e4nv = _dt("e4m3", "float8e4nv", "float", 8, ml_dtypes.float8_e4m3fn, "e4m3", 3)
float8e5 = _dt("e5m2", "float8e5", "float", 8, ml_dtypes.float8_e5m2, "e5m2", 2)
float16 = _dt("f16", "float16", "float", 16, np.float16, "f16", 10)
bfloat16 = _dt("bf16", "bfloat16", "float", 16, ml_dtypes.bfloat16, "bf16", 7)
float32 = _dt("f32", "float32", "float", 32, np.float32, "float", 23)
float64 = _dt("f64", "float64", "float", 64, np.float64, "double", 52)

# Formats of other hardware: tables of dtypes name them, nothing computes with them.
float8e4b8 = _dt("e4m3fnuz", "float8e4b8", "float", 8, ml_dtypes.float8_e4m3fnuz, "u8", 3)
float8e5b16 = _dt("e5m2fnuz", "float8e5b16", "float", 8, ml_dtypes.float8_e5m2fnuz, "u8", 2)
float8e4b15 = _dt("e4b15", "float8e4b15", "float", 8, np.uint8, "u8", 3)
FOREIGN: tuple[DType, ...] = (float8e4b8, float8e5b16, float8e4b15)

ALL: tuple[DType, ...] = (
    int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float8e4nv, float8e5, float16, bfloat16, float32, float64,
)  # fmt: skip


@cache
def pointer_to(element: DType) -> DType:
    """The dtype of addresses of elements of a dtype: prints `ptr<f32>`."""
    cuda = "int" if element.name == "i32" else element.cuda
    return DType(
        f"ptr<{element.name}>",
        f"pointer_type(tl.{element.user_name})",
        "ptr",
        64,
        np.dtype(np.int64),
        f"{cuda}*",
        0,
        element,
    )


INT32_ROOM = 2**31 - 2**16
"""Integer arguments from here on are int64: a step or a tile beyond them is still counted right."""

FP8_LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def rounded(x: np.ndarray | np.generic | float, dtype: DType) -> np.ndarray:
    """Numbers as floats of a dtype, to nearest even.

    fp8 saturates, infinities too; other dtypes overflow to infinity.
    """
    array = np.asarray(x)
    with np.errstate(all="ignore"):
        if dtype.is_fp8:
            largest = FP8_LARGEST[dtype.name]
            array = array.astype(np.float64 if array.dtype == np.float64 else np.float32)
            array = np.asarray(np.where(np.isnan(array), array, np.clip(array, -largest, largest)))
        return array.astype(dtype.numpy)


BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
BY_USER_NAME: dict[str, DType] = {d.user_name: d for d in ALL}


def promote(a: DType, b: DType) -> DType:
    """The common dtype of two operands of equal standing (Triton's rules).

    f64, then f32, then f16 win over everything else; bf16 with anything but bf16 gives f32; two
    different fp8 formats give f16; fp8 wins over integers. Of two ints the wider wins, and at equal
    width unsigned wins; bool gives way to both.
    """
    if a == b:
        return a
    for wide in (float64, float32, float16):
        if wide in (a, b):
            return wide
    if bfloat16 in (a, b):
        return float32
    if a.is_fp8 or b.is_fp8:
        return float16 if a.is_fp8 and b.is_fp8 else (a if a.is_fp8 else b)
    if a.kind == "bool":
        return b
    if b.kind == "bool":
        return a
    if a.bits == b.bits:
        return a if a.kind == "uint" else b
    return a if a.bits > b.bits else b
