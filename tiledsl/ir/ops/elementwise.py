"""Elementwise ops on scalars and tiles.

Operands have equal types; broadcasting is explicit (tile.splat, tile.broadcast).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import ClassVar

import numpy as np

from tiledsl.dtypes import DType
from tiledsl.dtypes import float32
from tiledsl.dtypes import int1
from tiledsl.dtypes import int64
from tiledsl.dtypes import rounded
from tiledsl.dtypes import uint64
from tiledsl.errors import TypeMismatch
from tiledsl.ir.op import Op
from tiledsl.ir.op import Value
from tiledsl.ir.op import attribute
from tiledsl.ir.op import operand
from tiledsl.ir.ops.control import same_type
from tiledsl.ir.pointer_values import not_a_number
from tiledsl.ir.types import ScalarType
from tiledsl.ir.types import TileType
from tiledsl.ir.types import Type

# Arrays of reference semantics are of any dtype, which numpy's overloads do not take.
_where: Callable[..., Any] = np.where


def like(type_: Type, dtype: DType) -> Type:
    """The scalar or tile type with another dtype."""
    if isinstance(type_, TileType):
        return type_.with_dtype(dtype)
    return ScalarType(dtype)


def element_dtype(value: Value, what: str) -> DType:
    """The dtype of a scalar or tile operand. Raises TypeMismatch for anything else."""
    if isinstance(value.type, ScalarType | TileType):
        return value.type.dtype
    raise TypeMismatch(f"{what}: expected a scalar or a tile, got {value.type}")


def wide(x: Any) -> Any:
    """Small floats as f32: they are computed in f32 and rounded once per op."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype.itemsize < 4 and x.dtype.kind not in "biu" else x


class Constant(Op, opcode="elementwise.constant"):
    """A scalar constant. value: bool, int or float."""

    value: bool | int | float = attribute()
    dtype: DType = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        return (ScalarType(self.dtype),)

    def evaluate(self) -> Any:
        if self.dtype.is_int:
            bits = 1 << self.dtype.bits
            v = int(self.value) % bits
            if self.dtype.is_signed and v >= bits >> 1:
                v -= bits
            return np.asarray(v, dtype=self.dtype.numpy)
        return rounded(self.value, self.dtype)


class Binary(Op):
    """Base of ops with two operands of one type and a result of that type."""

    numbers = True
    allowed: ClassVar[tuple[str, ...]] = ("int", "uint", "float")
    a: Value = operand()
    b: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        da, db = element_dtype(self.a, self.opcode), element_dtype(self.b, self.opcode)
        if not same_type(self.a.type, self.b.type):
            raise TypeMismatch(f"{self.opcode}: operands differ: {self.a.type} and {self.b.type}")
        if da.kind not in self.allowed:
            raise TypeMismatch(f"{self.opcode}: dtype {db!r} is not supported")
        return (self.a.type,)

    def compute(self, a: Any, b: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, a: Any, b: Any) -> Any:
        dtype = element_dtype(self.a, self.opcode).numpy
        with np.errstate(all="ignore"):
            return np.asarray(self.compute(wide(a), wide(b))).astype(dtype)


class Add(Binary, opcode="elementwise.add"):
    """a + b; integers wrap. no_wrap: here they are known not to."""

    no_wrap: bool = attribute(default=False)

    def compute(self, a: Any, b: Any) -> Any:
        return a + b


class Sub(Binary, opcode="elementwise.sub"):
    """a - b; integers wrap."""

    def compute(self, a: Any, b: Any) -> Any:
        return a - b


class Mul(Binary, opcode="elementwise.mul"):
    """a * b; integers wrap."""

    def compute(self, a: Any, b: Any) -> Any:
        return a * b


class Div(Binary, opcode="elementwise.div"):
    """a / b on floats, 2 ulp in f32 (`div_rn` is correctly rounded), correctly rounded in f64.

    fast: b is at least 1; results below the normal numbers of f32 may be 0.
    """

    allowed = ("float",)
    is_long = True
    fast: bool = attribute(default=False)

    def compute(self, a: Any, b: Any) -> Any:
        return a / b


class FloorDiv(Binary, opcode="elementwise.floordiv"):
    """a // b on integers, truncating toward zero as Triton does; division by zero gives 0 here."""

    allowed = ("int", "uint")

    def compute(self, a: Any, b: Any) -> Any:
        safe = _where(b == 0, np.ones_like(b), b)
        return _where(b == 0, np.zeros_like(a), (a - np.fmod(a, safe)) // safe)


class Mod(Binary, opcode="elementwise.mod"):
    """a % b with the sign of a, as in C, on integers and floats; an integer modulo 0 is 0 here."""

    def compute(self, a: Any, b: Any) -> Any:
        if a.dtype.kind == "f":
            return np.fmod(a, b)
        safe = _where(b == 0, np.ones_like(b), b)
        return _where(b == 0, np.zeros_like(a), np.fmod(a, safe))


class Min(Binary, opcode="elementwise.min"):
    """The smaller operand. propagate_nan: a NaN operand gives NaN, else the other operand."""

    propagate_nan: bool = attribute(default=False)

    def compute(self, a: Any, b: Any) -> Any:
        return np.minimum(a, b) if self.propagate_nan else np.fmin(a, b)


class Max(Binary, opcode="elementwise.max"):
    """The larger operand. propagate_nan: a NaN operand gives NaN, else the other operand."""

    propagate_nan: bool = attribute(default=False)

    def compute(self, a: Any, b: Any) -> Any:
        return np.maximum(a, b) if self.propagate_nan else np.fmax(a, b)


class And(Binary, opcode="elementwise.and"):
    """Bitwise and of integers or bools."""

    allowed = ("bool", "int", "uint")

    def compute(self, a: Any, b: Any) -> Any:
        return a & b


class Or(Binary, opcode="elementwise.or"):
    """Bitwise or of integers or bools."""

    allowed = ("bool", "int", "uint")

    def compute(self, a: Any, b: Any) -> Any:
        return a | b


class Xor(Binary, opcode="elementwise.xor"):
    """Bitwise exclusive or of integers or bools."""

    allowed = ("bool", "int", "uint")

    def compute(self, a: Any, b: Any) -> Any:
        return a ^ b


class Shl(Binary, opcode="elementwise.shl"):
    """a << b on integers; a shift of at least the width gives 0."""

    allowed = ("int", "uint")

    def compute(self, a: Any, b: Any) -> Any:
        bits = a.dtype.itemsize * 8
        return np.where((b >= 0) & (b < bits), a << np.clip(b, 0, bits - 1), 0)


class Shr(Binary, opcode="elementwise.shr"):
    """a >> b on integers, arithmetic when signed; a shift by the width or more is the widest."""

    allowed = ("int", "uint")

    def compute(self, a: Any, b: Any) -> Any:
        bits = a.dtype.itemsize * 8
        over = np.where(a < 0, -1, 0) if a.dtype.kind == "i" else np.zeros_like(a)
        return np.where((b >= 0) & (b < bits), a >> np.clip(b, 0, bits - 1), over)


class Compare(Op, opcode="elementwise.compare"):
    """a <predicate> b, with one of eq, ne, lt, le, gt, ge.

    Result: i1; comparisons with NaN are false, `ne` true.
    """

    predicate: str = attribute()
    a: Value = operand()
    b: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        if self.predicate not in ("eq", "ne", "lt", "le", "gt", "ge"):
            raise TypeMismatch(f"compare: unknown predicate {self.predicate!r}")
        element_dtype(self.a, "compare")
        if not same_type(self.a.type, self.b.type):
            raise TypeMismatch(f"compare: operands differ: {self.a.type} and {self.b.type}")
        return (like(self.a.type, int1),)

    def evaluate(self, a: Any, b: Any) -> Any:
        fn = {
            "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
            "gt": np.greater, "ge": np.greater_equal,
        }  # fmt: skip
        with np.errstate(invalid="ignore"):
            return fn[self.predicate](wide(a), wide(b))


class Select(Op, opcode="elementwise.select"):
    """a where condition holds, else b. condition: i1 of the operands' shape.

    masks: the loop around it knows iterations in which the condition always holds.
    """

    condition: Value = operand()
    a: Value = operand()
    b: Value = operand()
    masks: bool = attribute(default=False)

    def infer_types(self) -> tuple[Type, ...]:
        if not same_type(self.a.type, self.b.type):
            raise TypeMismatch(f"select: operands differ: {self.a.type} and {self.b.type}")
        if not same_type(self.condition.type, like(self.a.type, int1)):
            wanted = like(self.a.type, int1)
            raise TypeMismatch(f"select: condition is {self.condition.type}, expected {wanted}")
        return (self.a.type,)

    def evaluate(self, condition: Any, a: Any, b: Any) -> Any:
        return _where(condition, a, b).astype(np.asarray(a).dtype)


def check_conversion(value: Value, dtype: DType, what: str) -> DType:
    """The dtype of a value that is converted. Pointers convert from and to integers only."""
    source = element_dtype(value, what)
    if source.is_pointer and not (dtype.is_pointer or dtype in (int64, uint64)):
        error = not_a_number(value, what)
        if dtype.is_int and error.hint:
            error.hint += "; addresses have 64 bits: .to(tl.int64)"
        raise error
    if dtype.is_pointer and not (source.is_pointer or source.is_int):
        raise TypeMismatch(f"{what}: an integer becomes a pointer, got {source!r}")
    return source


class Cast(Op, opcode="elementwise.cast"):
    """Converts to another dtype.

    float to smaller float rounds to nearest even (fp8 saturates); float to int truncates toward
    zero and saturates, NaN gives 0; int to smaller int keeps the low bits; anything to i1 is
    `x != 0`.
    """

    a: Value = operand()
    dtype: DType = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        check_conversion(self.a, self.dtype, "cast")
        return (like(self.a.type, self.dtype),)

    def evaluate(self, a: Any) -> Any:
        a = np.asarray(a)
        source = element_dtype(self.a, "cast")
        with np.errstate(all="ignore"):
            if self.dtype.kind == "bool":
                return wide(a) != 0
            if source.is_float and self.dtype.is_int:
                info = np.iinfo(self.dtype.numpy)
                x = wide(a).astype(np.float64)
                x = np.trunc(np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf))
                big = x >= float(info.max)
                small = x <= float(info.min)
                out = np.where(big | small, 0.0, x).astype(self.dtype.numpy)
                ends = _where(small, info.min, out)
                return _where(big, info.max, ends).astype(self.dtype.numpy)
            if self.dtype.is_float:
                return rounded(wide(a), self.dtype)
            return a.astype(self.dtype.numpy)


class Bitcast(Op, opcode="elementwise.bitcast"):
    """The same bits as another dtype of equal width."""

    a: Value = operand()
    dtype: DType = attribute()

    def infer_types(self) -> tuple[Type, ...]:
        source = check_conversion(self.a, self.dtype, "bitcast")
        if source.bits != self.dtype.bits:
            raise TypeMismatch(
                f"bitcast: {source!r} has {source.bits} bits, {self.dtype!r} has {self.dtype.bits}"
            )
        return (like(self.a.type, self.dtype),)

    def evaluate(self, a: Any) -> Any:
        return np.ascontiguousarray(a).view(self.dtype.numpy).reshape(np.shape(a))


class Unary(Op):
    """Base of ops with one operand and a result of its type."""

    numbers = True
    allowed: ClassVar[tuple[str, ...]] = ("float",)
    a: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        if element_dtype(self.a, self.opcode).kind not in self.allowed:
            dtype = element_dtype(self.a, self.opcode)
            raise TypeMismatch(f"{self.opcode}: dtype {dtype!r} is not supported")
        return (self.a.type,)

    def compute(self, a: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, a: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(self.compute(wide(a))).astype(np.asarray(a).dtype)


class Long(Unary):
    """Base of those that take many instructions."""

    is_long = True


class Neg(Unary, opcode="elementwise.neg"):
    """-a; integers wrap."""

    allowed = ("int", "uint", "float")

    def compute(self, a: Any) -> Any:
        return np.negative(a)


class Not(Unary, opcode="elementwise.not"):
    """Bitwise complement of integers, logical not of bools."""

    allowed = ("bool", "int", "uint")

    def compute(self, a: Any) -> Any:
        return np.invert(a)


class Abs(Unary, opcode="elementwise.abs"):
    """|a|; the most negative integer stays."""

    allowed = ("int", "uint", "float")

    def compute(self, a: Any) -> Any:
        return np.abs(a)


class Exp(Unary, opcode="elementwise.exp"):
    """e**a. fast: one `ex2.approx` after a multiplication (2 ulp plus the scaling's rounding).

    nonpositive: a is at most 0, or NaN; results below the smallest normal number are 0 (f32).
    """

    fast: bool = attribute(default=False)
    nonpositive: bool = attribute(default=False)

    def compute(self, a: Any) -> Any:
        return np.exp(a)


class Exp2(Unary, opcode="elementwise.exp2"):
    """2**a. fast: `ex2.approx.ftz`, 2 ulp, subnormals flushed."""

    fast: bool = attribute(default=False)

    def compute(self, a: Any) -> Any:
        return np.exp2(a)


class Log(Long, opcode="elementwise.log"):
    """Natural logarithm."""

    def compute(self, a: Any) -> Any:
        return np.log(a)


class Log2(Long, opcode="elementwise.log2"):
    """Logarithm to base 2."""

    def compute(self, a: Any) -> Any:
        return np.log2(a)


class Sqrt(Unary, opcode="elementwise.sqrt"):
    """Square root, correctly rounded."""

    def compute(self, a: Any) -> Any:
        return np.sqrt(a)


class Rsqrt(Unary, opcode="elementwise.rsqrt"):
    """1 / sqrt(a), 2 ulp."""

    def compute(self, a: Any) -> Any:
        return (1 / np.sqrt(a)).astype(a.dtype)


class Sin(Long, opcode="elementwise.sin"):
    """Sine of an angle in radians."""

    def compute(self, a: Any) -> Any:
        return np.sin(a)


class Cos(Long, opcode="elementwise.cos"):
    """Cosine of an angle in radians."""

    def compute(self, a: Any) -> Any:
        return np.cos(a)


class Tanh(Long, opcode="elementwise.tanh"):
    """Hyperbolic tangent of scale * a, of which `scale` is 1 unless `absolute`.

    absolute: right to 3e-7, near 0 as well (f32).
    """

    absolute: bool = attribute(default=False)
    scale: float = attribute(default=1.0)

    def compute(self, a: Any) -> Any:
        return np.tanh(_times(a, self.scale))


class Erf(Long, opcode="elementwise.erf"):
    """Error function of scale * a; attributes as those of Tanh."""

    absolute: bool = attribute(default=False)
    scale: float = attribute(default=1.0)

    def compute(self, a: Any) -> Any:
        return _erf(_times(a, self.scale))


class Floor(Unary, opcode="elementwise.floor"):
    """Largest integer not above a, as a float."""

    def compute(self, a: Any) -> Any:
        return np.floor(a)


class Ceil(Unary, opcode="elementwise.ceil"):
    """Smallest integer not below a, as a float."""

    def compute(self, a: Any) -> Any:
        return np.ceil(a)


class Fma(Op, opcode="elementwise.fma"):
    """a * b + c with one rounding, on floats of one type."""

    numbers = True
    a: Value = operand()
    b: Value = operand()
    c: Value = operand()

    def infer_types(self) -> tuple[Type, ...]:
        if not same_type(self.a.type, self.b.type) or not same_type(self.a.type, self.c.type):
            raise TypeMismatch(f"fma: operands differ: {self.a.type}, {self.b.type}, {self.c.type}")
        return (self.a.type,)

    def evaluate(self, a: Any, b: Any, c: Any) -> Any:
        with np.errstate(all="ignore"):
            exact = np.asarray(a).astype(np.float64) * np.asarray(b).astype(np.float64)
            return (exact + np.asarray(c).astype(np.float64)).astype(np.asarray(a).dtype)


def _times(x: Any, scale: float) -> Any:
    return x if scale == 1.0 else x * np.asarray(scale, dtype=np.asarray(x).dtype)


def _erf(x: Any) -> Any:
    from math import erf

    x = np.asarray(x)
    flat = np.array([erf(float(v)) for v in x.ravel()])
    return flat.reshape(x.shape).astype(x.dtype if x.dtype.kind == "f" else float32.numpy)
