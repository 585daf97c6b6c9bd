"""The table of scalar library functions: signatures, reference semantics, device names.

A row of the table is all there is to a function: `elementwise.function` evaluates it with numpy,
codegen calls the
device function. Accuracy of the device functions: the CUDA math library's, or the instruction's
where a name says so (`fast_*`, `*_approx`).
Ref: libdevice user's guide; CUDA math API.
"""

# The table holds lambdas of arrays of any dtype.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import float64
from tiledsl.dtypes import int32
from tiledsl.dtypes import int64
from tiledsl.dtypes import uint32
from tiledsl.dtypes import uint64
from tiledsl.errors import TileError

Compute = (
    Callable[[Any], Any]
    | Callable[[Any, Any], Any]
    | Callable[[Any, Any, Any], Any]
    | Callable[[Any, Any, Any, Any], Any]
)
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Signature:
    """One overload: dtypes of the arguments and of the result, and the device function."""

    args: tuple[DType, ...]
    result: DType
    device: str


@dataclass(frozen=True)
class LibraryFunction:
    """A function by name. compute: on numpy arrays of the argument dtypes."""

    name: str
    signatures: tuple[Signature, ...]
    compute: Compute

    @property
    def arity(self) -> int:
        return len(self.signatures[0].args)

    def match(self, dtypes: tuple[DType, ...]) -> Signature | None:
        """The overload that takes exactly these dtypes."""
        return next((s for s in self.signatures if s.args == dtypes), None)


LIBRARY: dict[str, LibraryFunction] = {}


def _add(name: str, compute: Compute, *signatures: Signature) -> None:
    LIBRARY[name] = LibraryFunction(name, signatures, compute)


def _floats(
    name: str, compute: Compute, arity: int = 1, device: str = "", device64: str = ""
) -> None:
    """A function of equal floats: by default the C functions `namef` and `name`."""
    _add(
        name,
        compute,
        Signature((float32,) * arity, float32, device or f"::{name}f"),
        Signature((float64,) * arity, float64, device64 or f"::{name}"),
    )


def _single(name: str, compute: Compute, device: str, arity: int = 1) -> None:
    """A function that exists in f32 only."""
    _add(name, compute, Signature((float32,) * arity, float32, device))


def _ints(name: str, compute: Compute, device: str, *dtypes: DType, arity: int = 1) -> None:
    """A function of equal integers with a result of their type."""
    _add(name, compute, *(Signature((d,) * arity, d, device) for d in dtypes))


def _special(name: str, *, of: str | None = None) -> Compute:
    """A function of scipy.special, which only the interpreter needs."""

    def compute(*arrays: Any) -> Any:
        try:
            from scipy import special  # type: ignore[import-untyped]
        except ImportError:
            raise TileError(f"the interpreter needs scipy for {name}()") from None
        return getattr(special, of or name)(*arrays)

    return compute


def _each(function: Callable[..., float]) -> Compute:
    """A function of Python floats applied to every element."""

    def compute(*arrays: Any) -> Any:
        return np.vectorize(function, otypes=[np.float64])(*arrays)

    return compute


def _wide(function: Compute) -> Compute:
    """Computed in f64 and rounded once."""

    def compute(*arrays: Any) -> Any:
        first = np.asarray(arrays[0])
        return np.asarray(function(*(np.asarray(a).astype(np.float64) for a in arrays))).astype(
            first.dtype
        )

    return compute


# ---------------------------------------------------------------------- elementary
for _name in (
    "exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "cbrt", "trunc", "floor", "ceil", "rint",
):  # fmt: skip
    _floats(_name, getattr(np, _name))
for _name in ("sin", "cos", "tan", "sinh", "cosh", "tanh"):
    _floats(f"a{_name}", getattr(np, f"arc{_name}"))
_floats("nearbyint", np.rint)
_floats("sqrt", np.sqrt)
_floats("rsqrt", lambda x: 1 / np.sqrt(x))
_floats("rcbrt", lambda x: 1 / np.cbrt(x))
_floats("abs", np.abs, device="::fabsf", device64="::fabs")
_floats("fabs", np.abs, device="::fabsf", device64="::fabs")
_floats("exp10", lambda x: np.power(10.0, x, dtype=np.float64).astype(x.dtype))
_floats("sinpi", lambda x: np.sin(np.pi * np.fmod(x.astype(np.float64), 2.0)).astype(x.dtype))
_floats("cospi", lambda x: np.cos(np.pi * np.fmod(x.astype(np.float64), 2.0)).astype(x.dtype))
_floats(
    "round", lambda x: np.copysign(np.floor(np.abs(x.astype(np.float64)) + 0.5), x).astype(x.dtype)
)
_floats(
    "logb", lambda x: np.where(x == 0, -np.inf, np.where(np.isinf(x), np.inf, np.frexp(x)[1] - 1.0))
)
_floats("pow", np.power, 2)
_floats("atan2", np.arctan2, 2)
_floats("copysign", np.copysign, 2)
_floats("nextafter", np.nextafter, 2)
_floats("hypot", np.hypot, 2)
_floats("rhypot", lambda x, y: 1 / np.hypot(x, y), 2)
_floats(
    "fdim", lambda x, y: np.where(np.isnan(x) | np.isnan(y), np.nan, np.where(x > y, x - y, 0)), 2
)
_floats("fmod", np.fmod, 2)
_floats("remainder", _each(math.remainder), 2)
_floats("fmax", np.fmax, 2)
_floats("fmin", np.fmin, 2)
_floats("norm3d", lambda x, y, z: np.sqrt(x * x + y * y + z * z), 3)
_floats("rnorm3d", lambda x, y, z: 1 / np.sqrt(x * x + y * y + z * z), 3)
_floats("norm4d", lambda x, y, z, w: np.sqrt(x * x + y * y + z * z + w * w), 4)
_floats("rnorm4d", lambda x, y, z, w: 1 / np.sqrt(x * x + y * y + z * z + w * w), 4)
_floats("fma", _wide(lambda x, y, z: x * y + z), 3)
_floats("erf", _special("erf"))
_floats("erfc", _special("erfc"))
_floats("erfcx", _special("erfcx"))
_floats("erfinv", _special("erfinv"))
_floats("erfcinv", _special("erfcinv"))
_floats("normcdf", _special("ndtr"))
_floats("normcdfinv", _special("ndtri"))
_floats("lgamma", _special("gammaln"))
_floats("tgamma", _special("gamma"))
for _name in ("j0", "j1", "y0", "y1"):
    _floats(_name, _special(_name))
_floats("cyl_bessel_i0", _special("i0"))
_floats("cyl_bessel_i1", _special("i1"))


def _with_int(
    name: str, compute: Compute, *, int_first: bool = False, result: DType | None = None
) -> None:
    """A function of an i32 and a float."""
    rows: list[Signature] = []
    for dtype, device in ((float32, f"::{name}f"), (float64, f"::{name}")):
        args = (int32, dtype) if int_first else (dtype, int32)
        rows.append(Signature(args, result or dtype, device))
    _add(name, compute, *rows)


_with_int("ldexp", np.ldexp)
_with_int("scalbn", np.ldexp)
_with_int("jn", _special("jv"), int_first=True)
_with_int("yn", _special("yn"), int_first=True)
LIBRARY["pow"] = LibraryFunction(
    "pow",
    (
        *LIBRARY["pow"].signatures,
        Signature((float32, int32), float32, "power_int"),
        Signature((float64, int32), float64, "power_int"),
    ),
    lambda x, y: np.power(x, np.asarray(y).astype(x.dtype)),
)


# ---------------------------------------------------------------------- rounding modes
def _directed(function: Function, mode: str) -> Compute:
    """A function rounded to nearest (rn), toward zero (rz), down (rd) or up (ru)."""

    def compute(*arrays: Any) -> Any:
        dtype = np.asarray(arrays[0]).dtype
        near = np.asarray(function(*arrays)).astype(dtype)
        if mode == "rn":
            return near
        exact = np.longdouble if dtype == np.float64 else np.float64
        true = function(*(np.asarray(a).astype(exact) for a in arrays))
        below = np.where(near > true, np.nextafter(near, dtype.type(-np.inf)), near)
        above = np.where(near < true, np.nextafter(near, dtype.type(np.inf)), near)
        return {"rd": below, "ru": above, "rz": np.where(true >= 0, below, above)}[mode].astype(
            dtype
        )

    return compute


_RATIONAL: dict[str, tuple[Compute, int]] = {
    "add": (lambda x, y: x + y, 2),
    "sub": (lambda x, y: x - y, 2),
    "mul": (lambda x, y: x * y, 2),
    "div": (lambda x, y: x / y, 2),
    "rcp": (lambda x: 1 / x, 1),
    "sqrt": (np.sqrt, 1),
    "fma": (lambda x, y, z: x * y + z, 3),
}
for _name, (_function, _arity) in _RATIONAL.items():
    for _mode in ("rn", "rz", "rd", "ru"):
        _single32 = f"__f{_name}_{_mode}" if _name != "fma" else f"__fmaf_{_mode}"
        _double64 = f"__d{_name}_{_mode}" if _name != "fma" else f"__fma_{_mode}"
        _rounded = (
            _wide(_function) if _name == "fma" and _mode == "rn" else _directed(_function, _mode)
        )
        _floats(f"{_name}_{_mode}", _rounded, _arity, _single32, _double64)
_single("rsqrt_rn", lambda x: (1 / np.sqrt(x.astype(np.float64))).astype(x.dtype), "__frsqrt_rn")
_single("saturatef", lambda x: np.where(np.isnan(x), 0, np.clip(x, 0, 1)), "__saturatef")

# ---------------------------------------------------------------------- approximate
_single("fast_sinf", np.sin, "__sinf")
_single("fast_cosf", np.cos, "__cosf")
_single("fast_tanf", np.tan, "__tanf")
_single("fast_expf", np.exp, "__expf")
_single("fast_exp10f", lambda x: np.power(np.float32(10), x), "__exp10f")
_single("fast_logf", np.log, "__logf")
_single("fast_log2f", np.log2, "__log2f")
_single("fast_log10f", np.log10, "__log10f")
_single("fast_powf", np.power, "__powf", 2)
_single("fast_dividef", lambda x, y: x / y, "__fdividef", 2)
_single("fast_tanhf", np.tanh, "tanh_approx")
_single("div_full", lambda x, y: x / y, "div_full", 2)


# ---------------------------------------------------------------------- an f32 as two TF32
def tf32_high(x: Any) -> Any:
    """The nearest number with 10 mantissa bits, ties away. Ref: PTX ISA, cvt.rna.tf32.f32."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x).astype(np.float32).reshape(np.shape(x))


def tf32_low(x: Any) -> Any:
    """What `tf32_high` leaves of a number, itself rounded to TF32; 0 where x is not finite."""
    with np.errstate(invalid="ignore"):
        rest = np.asarray(x, dtype=np.float32) - tf32_high(x)
    return tf32_high(np.where(np.isfinite(rest), rest, 0).astype(np.float32))


_single("tf32_high", tf32_high, "tf32_high")
_single("tf32_low", tf32_low, "tf32_low")


# ---------------------------------------------------------------------- tests
def _test(name: str, compute: Function, device: str, *dtypes: DType) -> None:
    """A test of floats with an i32 result, 0 or 1."""
    rows = (Signature((d,), int32, device) for d in dtypes or (float32, float64))
    _add(name, lambda x: np.asarray(compute(x)).astype(np.int32), *rows)


_test("isnan", np.isnan, "is_nan")
_test("isinf", np.isinf, "is_inf")
_test("isfinited", np.isfinite, "is_finite", float64, float32)
_test("finitef", np.isfinite, "is_finite", float32, float64)
_test("signbit", np.signbit, "sign_bit")
_add(
    "ilogb", lambda x: (np.frexp(x)[1] - 1).astype(np.int32),
    Signature((float32,), int32, "::ilogbf"), Signature((float64,), int32, "::ilogb"),
)  # fmt: skip


# ---------------------------------------------------------------------- integers
def _high_product(a: Any, b: Any) -> Any:
    """The upper half of a product; any integer width."""
    dtype = np.asarray(a).dtype
    bits = dtype.itemsize * 8
    if bits <= 32:
        wide = np.int64 if dtype.kind == "i" else np.uint64
        return ((np.asarray(a).astype(wide) * np.asarray(b).astype(wide)) >> wide(bits)).astype(
            dtype
        )
    product = np.asarray(a).astype(object) * np.asarray(b).astype(object)
    high = np.asarray(product >> bits, dtype=object)
    modulus = 1 << bits

    def wrap(v: Any) -> int:
        return int(v) % modulus

    wrapped = np.vectorize(wrap, otypes=[object])(high)
    return np.asarray(wrapped.tolist(), dtype=np.uint64).reshape(np.shape(product)).astype(dtype)


def _count(function: Callable[[int, int], int]) -> Compute:
    """A function of the unsigned bits of an integer and their number, with an i32 result."""

    def compute(x: Any) -> Any:
        array = np.asarray(x)
        bits = array.dtype.itemsize * 8

        def one(v: Any) -> int:
            return function(int(v) % (1 << bits), bits)

        each = np.vectorize(one, otypes=[np.int64])
        return each(array.astype(object)).astype(np.int32)

    return compute


def _counts(name: str, function: Callable[[int, int], int], device: str) -> None:
    rows = (Signature((d,), int32, device) for d in (int32, uint32, int64, uint64))
    _add(name, _count(function), *rows)


_ALL_INTS = (int32, uint32, int64, uint64)
_ints("mulhi", _high_product, "high_product", *_ALL_INTS, arity=2)
_ints("umulhi", _high_product, "high_product", uint32, uint64, int32, int64, arity=2)
_counts("clz", lambda v, bits: bits - v.bit_length(), "leading_zeros")
_counts("popc", lambda v, bits: v.bit_count(), "bit_count")
_counts("ffs", lambda v, bits: (v & -v).bit_length(), "first_set")


def _reversed_bits(x: Any) -> Any:
    array = np.asarray(x)
    bits = array.dtype.itemsize * 8
    unsigned = np.dtype(f"u{array.dtype.itemsize}")

    def flip(v: int) -> int:
        return int(format(int(v) % (1 << bits), f"0{bits}b")[::-1], 2)

    flipped = np.vectorize(flip, otypes=[object])(array.astype(object))
    return np.asarray(flipped.tolist(), dtype=unsigned).reshape(array.shape).astype(array.dtype)


_ints("brev", _reversed_bits, "bit_reverse", *_ALL_INTS)
_ints("mul24", lambda a, b: ((a << 8) >> 8) * ((b << 8) >> 8), "product_24", int32, uint32, arity=2)
_ints(
    "hadd",
    lambda a, b: ((a.astype(np.int64) + b) >> 1).astype(a.dtype),
    "half_sum",
    int32,
    uint32,
    arity=2,
)
_ints(
    "rhadd",
    lambda a, b: ((a.astype(np.int64) + b + 1) >> 1).astype(a.dtype),
    "half_sum_up",
    int32,
    uint32,
    arity=2,
)
_add(
    "sad",
    lambda a, b, c: (np.abs(a.astype(np.int64) - b).astype(np.uint32) + c).astype(np.uint32),
    Signature((int32, int32, uint32), uint32, "::__sad"),
)


def _permuted_bytes(a: Any, b: Any, s: Any) -> Any:
    both = np.asarray(b).astype(np.uint32).astype(np.uint64) << np.uint64(32) | np.asarray(
        a
    ).astype(np.uint32).astype(np.uint64)
    out = np.zeros(np.shape(both), np.uint32)
    for i in range(4):
        pick = (np.asarray(s).astype(np.uint32) >> np.uint32(4 * i)) & np.uint32(7)
        byte = (both >> pick.astype(np.uint64) * np.uint64(8)) & np.uint64(255)
        out |= byte.astype(np.uint32) << np.uint32(8 * i)
    return out.astype(np.asarray(a).dtype)


_ints("byte_perm", _permuted_bytes, "byte_perm", int32, uint32, arity=3)


# ---------------------------------------------------------------------- conversions
def _saturated(x: Any, dtype: DType, mode: str) -> Any:
    rounded = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}[mode](
        x.astype(np.float64)
    )
    info = np.iinfo(dtype.numpy)
    low, high = rounded <= float(info.min), rounded >= float(info.max)
    safe = np.where(low | high | np.isnan(rounded), 0, rounded).astype(dtype.numpy)
    return np.where(low, info.min, np.where(high, info.max, safe)).astype(dtype.numpy)


def _to_float(x: Any, dtype: DType, mode: str) -> Any:
    near = np.asarray(x).astype(dtype.numpy)
    if mode == "rn":
        return near
    true, back = np.asarray(x).astype(np.longdouble), near.astype(np.longdouble)
    below = np.where(back > true, np.nextafter(near, dtype.numpy.type(-np.inf)), near)
    above = np.where(back < true, np.nextafter(near, dtype.numpy.type(np.inf)), near)
    return {"rd": below, "ru": above, "rz": np.where(true >= 0, below, above)}[mode].astype(
        dtype.numpy
    )


_FLOAT_NAMES = {"float": float32, "double": float64}
_INT_NAMES = {"int": int32, "uint": uint32, "ll": int64, "ull": uint64}
for _mode in ("rn", "rz", "rd", "ru"):
    for _fname, _ftype in _FLOAT_NAMES.items():
        for _iname, _itype in _INT_NAMES.items():
            _add(
                f"{_fname}2{_iname}_{_mode}",
                lambda x, d=_itype, m=_mode: _saturated(np.asarray(x), d, m),
                Signature((_ftype,), _itype, f"__{_fname}2{_iname}_{_mode}"),
            )
            _exact = _fname == "double" and _iname in ("int", "uint")
            _add(
                f"{_iname}2{_fname}_{_mode}",
                lambda x, d=_ftype, m=_mode: _to_float(x, d, m),
                Signature((_itype,), _ftype, f"__{_iname}2{_fname}_{'rn' if _exact else _mode}"),
            )
    _add(
        f"double2float_{_mode}",
        lambda x, m=_mode: _to_float(x, float32, m),
        Signature((float64,), float32, f"__double2float_{_mode}"),
    )
_add("uint2double_rn", LIBRARY["uint2double_rn"].compute, Signature((uint32,), float64, "(double)"))
_add("int2double_rn", LIBRARY["int2double_rn"].compute, Signature((int32,), float64, "(double)"))


def _bits(name: str, source: DType, target: DType) -> None:
    _add(
        name,
        lambda x: np.ascontiguousarray(x).view(target.numpy).reshape(np.shape(x)),
        Signature((source,), target, f"bits_as<{'int' if target.name == 'i32' else target.cuda}>"),
    )


_bits("int_as_float", int32, float32)
_bits("float_as_int", float32, int32)
_bits("uint_as_float", uint32, float32)
_bits("float_as_uint", float32, uint32)
_bits("longlong_as_double", int64, float64)
_bits("double_as_longlong", float64, int64)
_add(
    "llrint",
    lambda x: np.rint(x).astype(np.int64),
    Signature((float32,), int64, "::llrintf"),
    Signature((float64,), int64, "::llrint"),
)
_add(
    "llround",
    lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x).astype(np.int64),
    Signature((float32,), int64, "::llroundf"),
    Signature((float64,), int64, "::llround"),
)
